//! An image file, the formatters that fill it and the checkers that judge it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::environment::{driver, program, scratch, Driver};
use super::{ok, run};

const LIMIT: Duration = Duration::from_secs(120);

/// A sparse image file in the scratch directory, removed at the end.
pub(crate) struct Image {
    directory: tempfile::TempDir,
    kernel_type: &'static str,
}

impl Image {
    /// An image of `bytes` zero bytes.
    pub(crate) fn new(bytes: u64) -> Self {
        Self::new_in(&scratch(), bytes)
    }

    fn new_in(directory: &Path, bytes: u64) -> Self {
        let directory = tempfile::Builder::new()
            .prefix("journalfs-test-")
            .tempdir_in(directory)
            .expect("scratch directory");
        let file = std::fs::File::create(directory.path().join("image")).expect("create image");
        file.set_len(bytes).expect("size of image");
        Self { directory, kernel_type: "ext4" }
    }

    /// An image that `mkfs.journalfs -t PROFILE` made (mke2fs where the kernel is under test).
    pub(crate) fn formatted(bytes: u64, profile: &'static str, arguments: &[&str]) -> Self {
        Self::formatted_in(&scratch(), bytes, profile, arguments)
    }

    /// As [`Image::formatted`], in that directory.
    pub(crate) fn formatted_in(
        directory: &Path,
        bytes: u64,
        profile: &'static str,
        arguments: &[&str],
    ) -> Self {
        let mut image = Self::new_in(directory, bytes);
        image.kernel_type = if profile == "ext3" { "ext3" } else { "ext4" };
        let mut mkfs = match driver() {
            Driver::Journalfs => {
                let mut mkfs = Command::new(program("mkfs.journalfs"));
                mkfs.args(["-t", profile]);
                mkfs
            }
            Driver::Kernel => {
                let mut mkfs = Command::new("mke2fs");
                mkfs.args(["-F", "-t", image.kernel_type]);
                mkfs
            }
        };
        ok(mkfs.arg("-q").args(arguments).arg(image.path()), LIMIT);
        image.assert_clean();
        image
    }

    /// An image that mke2fs made, for the kernel's driver of type `kernel_type`.
    pub(crate) fn mke2fs(bytes: u64, kernel_type: &'static str, arguments: &[&str]) -> Self {
        let mut image = Self::new(bytes);
        image.kernel_type = kernel_type;
        let mut mkfs = Command::new("mke2fs");
        mkfs.args(["-q", "-F", "-t", kernel_type]).args(arguments);
        ok(mkfs.arg(image.path()), LIMIT);
        image
    }

    /// A byte-for-byte copy (sparse where this one is).
    pub(crate) fn copy(&self) -> Self {
        let copy = Self::new(0);
        let mut cp = Command::new("cp");
        cp.arg("--sparse=always").arg(self.path()).arg(copy.path());
        ok(&mut cp, LIMIT);
        Self { kernel_type: self.kernel_type, ..copy }
    }

    /// The file.
    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("image")
    }

    /// What `mount -t` should say for the kernel to mount this image as its users would.
    pub(crate) fn kernel_type(&self) -> &'static str {
        self.kernel_type
    }

    /// Demands a clean file system with an empty journal: `e2fsck -fn` finds nothing. e2fsck skips a
    /// journal that needs recovery when it may not write, so that is asked separately.
    pub(crate) fn assert_clean(&self) {
        let header = dumpe2fs(&self.path());
        let features = field(&header, "Filesystem features");
        assert!(
            !features.contains("needs_recovery"),
            "needs_recovery is set after a clean unmount: {features}"
        );
        let state = field(&header, "Filesystem state");
        assert_eq!(state, "clean", "state after a clean unmount");
        self.assert_e2fsck();
    }

    /// Demands that `e2fsck -fn` exits 0.
    pub(crate) fn assert_e2fsck(&self) {
        let output = run(Command::new("e2fsck").arg("-fn").arg(self.path()), LIMIT);
        assert!(output.status.success(), "e2fsck -fn: {}\n{}", output.status, output.text());
    }
}

/// The superblock as `dumpe2fs -h` shows it.
pub(crate) fn dumpe2fs(image: &Path) -> String {
    ok(Command::new("dumpe2fs").arg("-h").arg(image), LIMIT)
}

/// The value of one line of [`dumpe2fs`]; empty where there is no such line.
pub(crate) fn field(header: &str, name: &str) -> String {
    header.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap_or("").trim().to_owned()
}
