//! Who mounts the recorded file.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Driver {
    Journalfs,
    /// e2fsprogs' driver in user space, which writes no journal.
    Fuse2fs,
}

impl Driver {
    pub(crate) fn is_there(self) -> bool {
        self == Driver::Journalfs || Command::new("fuse2fs").arg("-V").output().is_ok()
    }

    /// In the foreground, so that its end can be waited for.
    fn command(self, image: &Path, root: &Path) -> Command {
        match self {
            Driver::Journalfs => {
                let mut command = Command::new(program());
                command.arg("mount").arg("--foreground").arg(image).arg(root);
                command
            }
            Driver::Fuse2fs => {
                let mut command = Command::new("fuse2fs");
                command.arg(image).arg(root).arg("-f");
                command
            }
        }
    }
}

/// The daemon: from `JOURNALFS_BIN_DIR`, else as cargo has just built it.
fn program() -> PathBuf {
    match std::env::var_os("JOURNALFS_BIN_DIR") {
        Some(directory) => PathBuf::from(directory).join("journalfs"),
        None => env!("CARGO_BIN_EXE_journalfs").into(),
    }
}

pub(crate) struct Mounted {
    dir: tempfile::TempDir,
    daemon: Child,
}

impl Mounted {
    pub(crate) fn new(driver: Driver, image: &Path) -> Self {
        let dir = tempfile::Builder::new().prefix("journalfs-mnt-").tempdir().unwrap();
        let daemon = driver.command(image, dir.path()).spawn().unwrap_or_else(|e| panic!("{driver:?}: {e}"));
        let mounted = Self { dir, daemon };
        let started = Instant::now();
        while !mounted.is_mounted() {
            assert!(started.elapsed() < Duration::from_secs(30), "{driver:?} doesn't mount");
            std::thread::sleep(Duration::from_millis(5));
        }
        mounted
    }

    fn is_mounted(&self) -> bool {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        mounts.lines().any(|line| line.split(' ').nth(1) == self.dir.path().to_str())
    }

    pub(crate) fn root(&self) -> &Path {
        self.dir.path()
    }

    /// Unmounts and waits until the daemon has written everything.
    pub(crate) fn unmount(mut self) {
        super::run(Command::new("umount").arg(self.root()));
        let status = self.daemon.wait().unwrap();
        assert!(status.success(), "the daemon: {status}");
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.is_mounted() {
            let _ = Command::new("umount").arg("-l").arg(self.root()).output();
        }
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}
