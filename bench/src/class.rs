//! Classes of devices, each made as a loop device over a file in memory or over the slow device.

use crate::run::run;
use crate::slow_device::Latency;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

const DEVICE_BYTES: u64 = 1 << 30;
const PATIENCE: Duration = Duration::from_secs(10);

/// A class of devices.
#[derive(Copy, Clone, Debug)]
pub struct Class {
    /// Its name in the results.
    pub name: &'static str,
    /// What its requests take; `None`: no more than the memory does.
    pub latency: Option<Latency>,
    /// Client and daemon run on one CPU.
    pub pinned: bool,
    /// Files that each thread writes in a full run.
    pub files: u32,
}

/// All of them.
pub const CLASSES: [Class; 4] = [
    Class { name: "array", latency: Some(latency(100, 1200)), pinned: false, files: 100 },
    Class { name: "disk", latency: Some(latency(200, 18_000)), pinned: false, files: 20 },
    Class { name: "ram", latency: None, pinned: false, files: 1000 },
    Class { name: "ram-pinned", latency: None, pinned: true, files: 1000 },
];

const fn latency(transfer_us: u64, flush_us: u64) -> Latency {
    Latency { transfer: Duration::from_micros(transfer_us), flush: Duration::from_micros(flush_us) }
}

impl Class {
    /// What a commit of one write and one flush takes there.
    pub fn commit(&self) -> Option<Duration> {
        self.latency.map(|latency| latency.transfer + latency.flush)
    }
}

/// A device of a class, taken down when dropped.
pub struct Device {
    /// The loop device.
    pub path: PathBuf,
    slow: Option<(PathBuf, Child)>,
    _bytes: tempfile::TempDir,
}

impl Device {
    /// Makes one; `program` is this program, which serves the slow device as `program device ...`.
    pub fn new(class: &Class, program: &Path) -> io::Result<Self> {
        let dir = tempfile::Builder::new().prefix("journalfs-bench.").tempdir_in("/dev/shm")?;
        let bytes = dir.path().join("bytes");
        File::create_new(&bytes)?.set_len(DEVICE_BYTES)?;
        let mut slow = None;
        let mut backing = bytes.clone();
        if let Some(latency) = class.latency {
            let mount = dir.path().join("slow");
            std::fs::create_dir(&mount)?;
            let child = Command::new(program)
                .arg("device")
                .args([&mount, &bytes])
                .args([latency.transfer.as_micros().to_string(), latency.flush.as_micros().to_string()])
                .spawn()?;
            backing = mount.join("disk");
            slow = Some((mount, child));
            let since = Instant::now();
            while !backing.exists() {
                if since.elapsed() > PATIENCE {
                    return Err(io::Error::other("the slow device does not start"));
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        let mut args = vec!["-f".into(), "--show".into(), backing.into_os_string()];
        if class.latency.is_some() {
            args.push("--direct-io=on".into());
        }
        let path = PathBuf::from(run("losetup", args)?.trim());
        Ok(Self { path, slow, _bytes: dir })
    }

    /// Flushes that the device has served; `None` where nobody counts.
    pub fn flushes(&self) -> Option<u64> {
        let (mount, _) = self.slow.as_ref()?;
        let counts = std::fs::read_to_string(mount.join("counts")).ok()?;
        counts.split_whitespace().nth(2)?.parse().ok()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = run("losetup", ["-d".as_ref(), self.path.as_os_str()]);
        if let Some((mount, mut child)) = self.slow.take() {
            // The kernel lets go of the loop device a little later.
            for _ in 0..50 {
                if run("umount", [&mount]).is_ok() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(100));
            }
            let _ = child.wait();
        }
    }
}
