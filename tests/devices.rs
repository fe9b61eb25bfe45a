//! Image files and block devices against the kernel's own ideas: loop devices, mounts, holes.
//! Needs root and loop devices; where there are none the tests say so and end.

use journalfs::device::lock::{DeviceLock, Exclusion};
use journalfs::device::{open, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

fn output(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// A loop device over an image, detached at the end.
struct Loop {
    device: PathBuf,
    image: tempfile::NamedTempFile,
}

impl Loop {
    fn new(bytes: u64, extra: &[&str]) -> Option<Self> {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(bytes).unwrap();
        let mut args = vec!["-f", "--show"];
        args.extend(extra);
        args.push(image.path().to_str().unwrap());
        let device = output("losetup", &args);
        if device.is_none() {
            eprintln!("no loop devices here: nothing tested");
        }
        Some(Self { device: device?.into(), image })
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        output("losetup", &["-d", self.device.to_str().unwrap()]);
    }
}

fn at_once() -> OpenOptions {
    OpenOptions { wait: Duration::ZERO, ..OpenOptions::default() }
}

fn refusal(path: &Path) -> String {
    open(path, &at_once()).err().expect("refused").to_string()
}

#[test]
fn a_block_device_reads_back_what_was_written_and_zeroed() {
    for sector in ["512", "4096"] {
        let Some(on) = Loop::new(1 << 22, &["--sector-size", sector]) else { return };
        let opened = open(&on.device, &at_once()).unwrap();
        let device = &opened.device;
        assert_eq!((device.size_bytes(), device.sector_bytes().to_string()), (1 << 22, sector.to_owned()));
        let mut want = vec![0u8; 1 << 22];
        for (n, (at, len)) in [(0, 4096), (1000, 3000), (8191, 2), (1 << 20, 3 << 19)].into_iter().enumerate()
        {
            let bytes = vec![n as u8 + 1; len];
            device.write_at(at as u64, &bytes).unwrap();
            want[at..at + len].copy_from_slice(&bytes);
        }
        device.write_zeroes((1 << 20) + 100, 100_000).unwrap();
        want[(1 << 20) + 100..(1 << 20) + 100_100].fill(0);
        device.discard(3 << 19, 1 << 18).unwrap();
        want[3 << 19..(3 << 19) + (1 << 18)].fill(0);
        device.flush().unwrap();
        let mut got = vec![9; 1 << 22];
        device.read_at(0, &mut got).unwrap();
        assert!(got == want, "sector size {sector}");
        assert!(std::fs::read(&on.device).unwrap() == want, "through the page cache, sector size {sector}");
    }
}

#[test]
fn an_attached_or_mounted_image_is_refused_and_the_error_says_where() {
    let Some(on) = Loop::new(4 << 20, &[]) else { return };
    let why = refusal(on.image.path());
    assert!(why.contains(on.device.to_str().unwrap()), "{why}");

    let dir = tempfile::tempdir().unwrap();
    let (device, target) = (on.device.to_str().unwrap(), dir.path().to_str().unwrap());
    output("mke2fs", &["-q", "-F", device]).unwrap();
    output("mount", &["-t", "ext2", device, target]).unwrap();
    let patient = OpenOptions { wait: Duration::from_secs(60), ..OpenOptions::default() };
    let began = Instant::now();
    for path in [on.image.path(), &on.device] {
        let why = open(path, &patient).err().unwrap().to_string();
        assert!(why.contains(target), "{why}");
    }
    assert!(began.elapsed() < Duration::from_secs(30), "a mounted device is not waited for");
    output("umount", &[target]).unwrap();
    open(&on.device, &at_once()).unwrap();
}

#[test]
fn a_block_device_has_one_user_and_the_kernel_respects_it() {
    let Some(on) = Loop::new(4 << 20, &[]) else { return };
    let device = on.device.to_str().unwrap();
    output("mke2fs", &["-q", "-F", device]).unwrap();
    let opened = open(&on.device, &at_once()).unwrap();
    let why = refusal(&on.device);
    assert!(why.contains("in use"), "{why}");
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(output("mount", &["-t", "ext2", device, dir.path().to_str().unwrap()]), None);
    drop(opened);
    open(&on.device, &at_once()).unwrap();
}

#[test]
fn an_image_in_use_as_a_file_is_not_to_be_had_through_a_loop_device() {
    use nix::fcntl::{Flock, FlockArg};
    let Some(on) = Loop::new(4 << 20, &[]) else { return };
    let file = on.image.reopen().unwrap();
    let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).unwrap();
    let why = refusal(&on.device);
    assert!(why.contains(on.image.path().to_str().unwrap()), "{why}");
    drop(lock);
    DeviceLock::acquire(&on.device, Exclusion::Exclusive, Duration::ZERO).unwrap();
}

#[test]
fn a_discarded_image_is_sparse() {
    use std::os::unix::fs::MetadataExt;
    let image = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(image.path(), vec![1; 4 << 20]).unwrap();
    image.as_file().sync_all().unwrap();
    let before = image.as_file().metadata().unwrap().blocks();
    let opened = open(image.path(), &at_once()).unwrap();
    opened.device.discard(0, 2 << 20).unwrap();
    opened.device.write_zeroes(2 << 20, 2 << 20).unwrap();
    opened.device.flush().unwrap();
    let after = image.as_file().metadata().unwrap();
    assert!(after.blocks() < before / 2 && after.len() == 4 << 20);
}
