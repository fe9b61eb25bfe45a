//! fsx: random operations on one file, each read checked against a copy in memory.

use std::process::Command;
use std::time::Duration;

use crate::support::environment::tool;
use crate::support::{needs_root, ok, Image, Mounted};

/// Operations a run; `FSX_OPERATIONS` makes long ones.
fn operations() -> String {
    std::env::var("FSX_OPERATIONS").unwrap_or_else(|_| "50000".to_owned())
}

fn exercise(profile: &'static str, arguments: &[&str], options: &str, seed: u32, weights: &str) {
    let image = Image::formatted(256 << 20, profile, arguments);
    let mounted = Mounted::new(&image, options);
    let work = tempfile::tempdir().expect("temporary directory");
    let config = work.path().join("fsx.toml");
    let text = format!("flen = 1048576\n[opsize]\nmax = 131072\n[weights]\n{weights}");
    std::fs::write(&config, text).expect("write configuration");
    let output = ok(
        Command::new(tool("fsx"))
            .arg("-f")
            .arg(&config)
            .args(["-N", &operations(), "-S", &seed.to_string(), "-P"])
            .arg(work.path())
            .arg(mounted.join("file"))
            .current_dir(work.path()),
        Duration::from_secs(900),
    );
    assert!(output.contains("All operations completed"), "{output}");
    mounted.unmount();
    image.assert_clean();
}

const MMAP: &str = "close_open = 1\nread = 10\nwrite = 10\nmapread = 10\nmapwrite = 10\n\
    invalidate = 1\ntruncate = 5\nfsync = 1\nfdatasync = 1\nsendfile = 2\nposix_fadvise = 1\n";
const FALLOCATE: &str = "close_open = 1\nread = 10\nwrite = 10\nmapread = 3\nmapwrite = 3\n\
    truncate = 5\nfsync = 1\nfdatasync = 1\nposix_fallocate = 5\npunch_hole = 5\n\
    copy_file_range = 5\n";

#[test]
fn mmap() {
    needs_root!();
    exercise("journalfs", &[], "", 1, MMAP);
}

#[test]
fn mmap_on_ext3_with_small_blocks() {
    needs_root!();
    exercise("ext3", &["-b", "1024"], "", 2, MMAP);
}

#[test]
fn fallocate() {
    needs_root!();
    exercise("journalfs", &["-b", "1024"], "", 3, FALLOCATE);
}

#[test]
fn fallocate_on_ext4() {
    needs_root!();
    exercise("ext4", &[], "data=journal", 4, FALLOCATE);
}
