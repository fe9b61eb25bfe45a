//! fs_mark, in every way of syncing and with up to twenty threads, runs to its end.

use std::process::Command;
use std::time::Duration;

use crate::support::{needs_root, ok, Image, Mounted};

#[test]
fn every_sync_method_and_thread_count() {
    needs_root!();
    let image = Image::formatted(1 << 30, "journalfs", &[]);
    let mounted = Mounted::new(&image, "batch=adaptive");
    for method in 0..=6 {
        for threads in [1, 2, 4, 8, 20] {
            let directory = mounted.join(format!("S{method}-t{threads}"));
            std::fs::create_dir(&directory).expect("mkdir");
            let files = (160 / threads).max(8);
            let work = tempfile::tempdir().expect("temporary directory");
            let output = ok(
                Command::new("fs_mark")
                    .args(["-k", "-s", "5000", "-S", &method.to_string()])
                    .args(["-t", &threads.to_string(), "-n", &files.to_string()])
                    .arg("-d")
                    .arg(&directory)
                    .current_dir(work.path()),
                Duration::from_secs(300),
            );
            let written = std::fs::read_dir(&directory).expect("readdir").count();
            assert_eq!(written, files * threads, "-S {method} -t {threads}:\n{output}");
        }
    }
    mounted.unmount();
    image.assert_clean();
    // Everything is there, whole, for another driver too.
    let mounted = Mounted::kernel(&image, "ro");
    let mut files = 0;
    for directory in std::fs::read_dir(mounted.root()).expect("readdir") {
        let directory = directory.expect("readdir");
        if directory.file_name() == "lost+found" {
            continue;
        }
        for file in std::fs::read_dir(directory.path()).expect("readdir") {
            let length = file.expect("readdir").metadata().expect("stat").len();
            assert_eq!(length, 5000);
            files += 1;
        }
    }
    assert!(files > 5000, "{files} files");
    mounted.unmount();
}
