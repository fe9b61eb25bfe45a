//! What the host does to a mount: takes its memory, runs out of space under its sparse image, cuts the image short.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::environment::program;
use crate::support::load::{load, recover};
use crate::support::{driver, needs_root, ok, run, Driver, Image, Mounted};

const LIMIT: Duration = Duration::from_secs(60);

/// A memory cgroup of either version, removed at the end.
struct MemoryGroup(PathBuf);

impl MemoryGroup {
    /// `None`, with a word, where there is no memory controller that we may use.
    fn new(bytes: u64) -> Option<Self> {
        let name = format!("journalfs-test-{}", std::process::id());
        let (v1, v2) = (Path::new("/sys/fs/cgroup/memory"), Path::new("/sys/fs/cgroup"));
        let made = if v1.join("memory.limit_in_bytes").exists() {
            Self::make(v1.join(name), "memory.limit_in_bytes", bytes)
        } else {
            let _ = fs::write(v2.join("cgroup.subtree_control"), "+memory");
            Self::make(v2.join(name), "memory.max", bytes)
        };
        if made.is_none() {
            eprintln!("skipped: no memory cgroup");
        }
        made
    }

    fn make(path: PathBuf, limit: &str, bytes: u64) -> Option<Self> {
        fs::create_dir(&path).ok()?;
        let group = Self(path);
        fs::write(group.0.join(limit), bytes.to_string()).ok()?;
        Some(group)
    }

    fn take(&self, pid: u32) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).expect("move into the cgroup");
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Whether the process is gone, or only waits for its parent.
fn is_dead(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z "))
}

#[test]
fn killed_for_want_of_memory() {
    needs_root!();
    if driver() == Driver::Kernel {
        return;
    }
    let Some(group) = MemoryGroup::new(2 << 20) else { return };
    let image = Image::formatted(256 << 20, "journalfs", &[]);
    let mounted = Mounted::journalfs(&image.path(), "");
    let pid = mounted.pid().expect("daemon");
    let (promised, open) = load(mounted.root(), 1, |_| {
        group.take(pid);
        let started = Instant::now();
        while !is_dead(pid) {
            assert!(started.elapsed() < LIMIT, "the daemon lives on in 2 MiB");
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    drop(open);
    mounted.kill();
    assert!(!promised.is_empty());
    recover(&image, &promised, 0, "killed for want of memory");
}

/// A small tmpfs of its own, unmounted at the end.
struct SmallHost(tempfile::TempDir);

impl SmallHost {
    fn new(size: &str) -> Self {
        let dir = tempfile::Builder::new().prefix("journalfs-host-").tempdir().expect("directory");
        ok(
            Command::new("mount")
                .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
                .arg(dir.path()),
            LIMIT,
        );
        Self(dir)
    }

    fn free_bytes(&self) -> u64 {
        let stat = rustix::fs::statvfs(self.0.path()).expect("statvfs");
        stat.f_bfree * stat.f_frsize
    }

    fn resize(&self, size: &str) {
        let option = format!("remount,size={size}");
        ok(Command::new("mount").args(["-o", &option]).arg(self.0.path()), LIMIT);
    }
}

impl Drop for SmallHost {
    fn drop(&mut self) {
        let _ = run(Command::new("umount").arg("-l").arg(self.0.path()), LIMIT);
    }
}

/// The image promises more than the host has: what can't be written is refused to who asked for it, and what was
/// acknowledged before is there when the host has space again.
#[test]
fn the_host_is_full_under_a_sparse_image() {
    needs_root!();
    if driver() == Driver::Kernel {
        return;
    }
    for (round, profile) in ["journalfs", "ext3"].into_iter().enumerate() {
        let host = SmallHost::new("24M");
        let image = Image::formatted_in(host.0.path(), 256 << 20, profile, &["-J", "size=4"]);
        let mounted = Mounted::journalfs(&image.path(), "");
        let (promised, open) = load(mounted.root(), round as u64, |_| {
            let started = Instant::now();
            while host.free_bytes() > 64 << 10 && started.elapsed() < LIMIT {
                std::thread::sleep(Duration::from_millis(10));
            }
            std::thread::sleep(Duration::from_millis(300));
        });
        drop(open);
        let what = format!("round {round}, the host was full");
        let last = fs::write(mounted.join("last"), vec![1; 1 << 20])
            .and_then(|()| File::open(mounted.join("last")))
            .and_then(|file| file.sync_all());
        let refused = last.expect_err("an fsync that can't have written anything");
        assert!(matches!(refused.raw_os_error(), Some(5 | 28 | 30)), "{what}: {refused}");
        let messages = mounted.wait_for_end();
        assert!(messages.contains("No space left"), "{what}: the daemon said: {messages:?}");
        assert!(!messages.contains("panicked"), "{what}: {messages}");
        assert!(!promised.is_empty());
        host.resize("400M");
        recover(&image, &promised, 2 * round as u64, &what);
    }
}

/// Half of the image goes while it is mounted: errors, not crashes or hangs, and a checker can make what is left whole.
#[test]
fn the_image_is_cut_short() {
    needs_root!();
    if driver() == Driver::Kernel {
        return;
    }
    let image = Image::formatted(64 << 20, "journalfs", &[]);
    let mounted = Mounted::journalfs(&image.path(), "");
    for index in 0..40 {
        fs::write(mounted.join(format!("file-{index}")), vec![index; 1 << 20]).expect("write");
    }
    mounted.unmount();
    let mounted = Mounted::journalfs(&image.path(), "");
    File::options().write(true).open(image.path()).and_then(|f| f.set_len(16 << 20)).expect("cut");
    let mut lost = 0;
    for index in 0..40 {
        match fs::read(mounted.join(format!("file-{index}"))) {
            Ok(bytes) => assert!(bytes == vec![index; 1 << 20], "file-{index} reads as something else"),
            Err(error) => {
                assert!(matches!(error.raw_os_error(), Some(5 | 117)), "file-{index}: {error}");
                lost += 1;
            }
        }
    }
    assert!(lost > 10, "{lost} files lost");
    // Whatever becomes of these, they return.
    for index in 0..10 {
        let _ = fs::write(mounted.join(format!("new-{index}")), vec![index; 100_000]);
        let _ = File::open(mounted.join(format!("new-{index}"))).and_then(|file| file.sync_all());
        let _ = fs::remove_file(mounted.join(format!("file-{index}")));
    }
    let messages = mounted.wait_for_end();
    assert!(!messages.contains("panicked"), "{messages}");
    File::options().write(true).open(image.path()).and_then(|f| f.set_len(64 << 20)).expect("size");
    let output = run(Command::new(program("fsck.journalfs")).arg("-fn").arg(image.path()), LIMIT);
    assert!(output.status.code().is_some_and(|code| code & 0x60 == 0), "{}", output.text());
    for _ in 0..2 {
        run(Command::new("e2fsck").arg("-fy").arg(image.path()), LIMIT);
    }
    image.assert_e2fsck();
}
