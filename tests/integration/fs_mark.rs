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
            // A directory for each thread: now and then two threads of one run choose the same names (on any file system),
            // and count as one.
            // fs_mark has little room for its own command line, hence short names.
            let directories: Vec<_> =
                (0..threads).map(|thread| format!("{method}.{threads}.{thread}")).collect();
            let files = (160 / threads).max(8);
            let work = tempfile::tempdir().expect("temporary directory");
            let mut fs_mark = Command::new("fs_mark");
            fs_mark.args(["-k", "-s", "5000", "-S", &method.to_string(), "-n", &files.to_string()]);
            for directory in &directories {
                std::fs::create_dir(mounted.join(directory)).expect("mkdir");
                fs_mark.arg("-d").arg(directory);
            }
            fs_mark.arg("-l").arg(work.path().join("log")).current_dir(mounted.root());
            let output = ok(&mut fs_mark, Duration::from_secs(300));
            for directory in directories {
                let written = std::fs::read_dir(mounted.join(&directory)).expect("readdir").count();
                assert_eq!(written, files, "{directory}:\n{output}");
            }
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
