//! Images for the tests of mkfs.journalfs, and the oracles that look at them.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// A directory of its own for one test, with an image in it.
pub(crate) struct Image {
    _dir: Option<tempfile::TempDir>,
    pub(crate) path: PathBuf,
}

impl Image {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        Self { _dir: Some(dir), path }
    }

    /// An image or device that is there already.
    pub(crate) fn at(path: &Path) -> Self {
        Self { _dir: None, path: path.to_owned() }
    }

    /// An image file of `bytes` bytes, each `fill`.
    pub(crate) fn filled(bytes: usize, fill: u8) -> Self {
        let image = Self::new();
        std::fs::write(&image.path, vec![fill; bytes]).unwrap();
        image
    }

    pub(crate) fn run(&self, options: &str, size: &str) -> Output {
        Command::new(env!("CARGO_BIN_EXE_mkfs-journalfs"))
            .args(options.split_whitespace())
            .arg(&self.path)
            .args(size.split_whitespace())
            .stdin(std::process::Stdio::null())
            .output()
            .unwrap()
    }

    /// Runs mkfs.journalfs, which must succeed and, with -q, print nothing on standard output.
    pub(crate) fn make(&self, options: &str, size: &str) -> Output {
        let output = self.run(&format!("-q {options}"), size);
        assert!(output.status.success(), "{options} {size}: {}", text(&output));
        assert!(output.stdout.is_empty(), "{options} {size}: {}", text(&output));
        output
    }

    /// Runs mkfs.journalfs, which must refuse with one line that contains `named`.
    pub(crate) fn refuse(&self, options: &str, size: &str, named: &str) {
        let output = self.run(options, size);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{options} {size}: succeeded");
        assert!(error.contains(named), "{options} {size}: '{error}' does not name '{named}'");
    }

    /// e2fsck must find nothing, nor anything to optimise.
    pub(crate) fn check(&self, what: &str) {
        let output = Command::new("e2fsck").arg("-fn").arg(&self.path).output().unwrap();
        assert!(output.status.success(), "e2fsck after {what}: {}", text(&output));
        let shown = dumpe2fs(&self.path);
        assert!(shown.contains("Filesystem magic number:  0xEF53"), "dumpe2fs after {what}");
    }

    /// The kernel must mount the image and keep a file and a directory in it.
    pub(crate) fn mount_and_use(&self, fs_type: &str, what: &str) {
        if !kernel_mounts() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        mount(&self.path, dir.path(), fs_type).unwrap_or_else(|error| panic!("mount of {what}: {error}"));
        let written = std::fs::write(dir.path().join("file"), vec![7; 20_000])
            .and_then(|()| std::fs::create_dir(dir.path().join("dir")))
            .and_then(|()| std::fs::read_dir(dir.path().join("lost+found")).map(Iterator::count));
        umount(dir.path());
        assert_eq!(written.unwrap_or_else(|error| panic!("{what}: {error}")), 0);
        self.check(&format!("{what} and the kernel"));
    }
}

fn mount(image: &Path, dir: &Path, fs_type: &str) -> Result<(), String> {
    let output = Command::new("mount").args(["-o", "loop", "-t", fs_type]).arg(image).arg(dir).output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(text(&output)),
        Err(error) => Err(error.to_string()),
    }
}

/// Unmounts. A test that forks meanwhile holds our descriptors for a moment, so a busy mount is tried again.
pub(crate) fn umount(dir: &Path) {
    let mut last = String::new();
    for _ in 0..100 {
        let output = Command::new("umount").arg(dir).output().unwrap();
        if output.status.success() {
            return;
        }
        last = text(&output);
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    panic!("umount {}: {last}", dir.display());
}

/// Whether mount -o loop works here at all: asked once, of an image that mke2fs made.
fn kernel_mounts() -> bool {
    static WORKS: OnceLock<bool> = OnceLock::new();
    *WORKS.get_or_init(|| {
        let (image, dir) = (Image::new(), tempfile::tempdir().unwrap());
        mke2fs(&image.path, "-t ext4", "16M");
        match mount(&image.path, dir.path(), "ext4") {
            Ok(()) => {
                umount(dir.path());
                true
            }
            Err(error) => {
                println!("skipped: mounting by the kernel ({})", error.trim());
                false
            }
        }
    })
}

/// Whether e2fsprogs is there; says so if it is not.
pub(crate) fn have_e2fsprogs() -> bool {
    let there = Command::new("mke2fs").arg("-V").output().is_ok();
    if !there {
        println!("skipped: e2fsprogs is not installed");
    }
    there
}

pub(crate) fn mke2fs(path: &Path, options: &str, size: &str) {
    let output = Command::new("mke2fs")
        .args(["-q", "-F"])
        .args(options.split_whitespace())
        .arg(path)
        .arg(size)
        .output()
        .unwrap();
    assert!(output.status.success(), "mke2fs {options} {size}: {}", text(&output));
}

/// What dumpe2fs says of the superblock and the journal.
pub(crate) fn dumpe2fs(path: &Path) -> String {
    let output = Command::new("dumpe2fs").arg("-h").arg(path).output().unwrap();
    assert!(output.status.success(), "dumpe2fs: {}", text(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// What debugfs answers to one request.
pub(crate) fn debugfs(path: &Path, request: &str) -> String {
    let output = Command::new("debugfs").args(["-R", request]).arg(path).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}
