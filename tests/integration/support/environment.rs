//! What this machine offers, and where the programs under test are.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

/// Which driver the tests exercise.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Driver {
    /// `mount.journalfs`, with images from `mkfs.journalfs`.
    Journalfs,
    /// The kernel's ext3/ext4 driver over a loop device, with images from mke2fs: tests the tests.
    Kernel,
}

/// The driver that `JOURNALFS_TEST_DRIVER` names; journalfs unless it says otherwise.
pub(crate) fn driver() -> Driver {
    match std::env::var("JOURNALFS_TEST_DRIVER").as_deref() {
        Ok("kernel") => Driver::Kernel,
        Ok("journalfs" | "") | Err(_) => Driver::Journalfs,
        Ok(other) => panic!("JOURNALFS_TEST_DRIVER={other}: journalfs or kernel"),
    }
}

/// Whether file systems can be mounted here: root, with /dev/fuse and loop devices.
pub(crate) fn can_mount() -> bool {
    rustix::process::geteuid().is_root()
        && Path::new("/dev/fuse").exists()
        && Path::new("/dev/loop-control").exists()
}

/// The checkout.
pub(crate) fn top() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A program of ours (`mount.journalfs`, ...), from `JOURNALFS_BIN_DIR` or else target/release. There
/// it is brought up to date first, so that a test never judges yesterday's binary.
pub(crate) fn program(name: &str) -> PathBuf {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    let directory = DIRECTORY.get_or_init(|| {
        if let Some(given) = std::env::var_os("JOURNALFS_BIN_DIR") {
            return PathBuf::from(given);
        }
        let mut build = Command::new("make");
        build.args(["-s", "build"]).current_dir(top());
        // What cargo set for this test must not leak into the nested build.
        for variable in ["CARGO_BUILD_TARGET", "CARGO_ENCODED_RUSTFLAGS", "MAKEFLAGS"] {
            build.env_remove(variable);
        }
        super::ok(&mut build, Duration::from_secs(1200));
        top().join("target/release")
    });
    let path = directory.join(name);
    assert!(path.exists(), "{} is missing: make build", path.display());
    path
}

/// A pinned tool that `make deps` installs (pjdfstest, fsx).
pub(crate) fn tool(name: &str) -> PathBuf {
    let path = top().join("target/tools/bin").join(name);
    assert!(path.exists(), "{} is missing: make deps", path.display());
    path
}

/// Where images are made: `JOURNALFS_TEST_SCRATCH`, else a roomy tmpfs, else the temporary directory.
pub(crate) fn scratch() -> PathBuf {
    if let Some(given) = std::env::var_os("JOURNALFS_TEST_SCRATCH") {
        return PathBuf::from(given);
    }
    let shm = Path::new("/dev/shm");
    let room = rustix::fs::statvfs(shm).map_or(0, |st| st.f_bavail * st.f_frsize);
    if room >= 3 << 30 {
        shm.to_path_buf()
    } else {
        std::env::temp_dir()
    }
}
