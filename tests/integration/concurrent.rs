//! Many threads and processes at once: what each was told holds, and the file system is consistent.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::process::Command;
use std::time::Duration;

use rustix::fs::AtFlags;

use crate::support::{needs_root, ok, Image, Mounted};

const LIMIT: Duration = Duration::from_secs(120);
const BLOCK: usize = 4096;

/// Lines appended with O_APPEND by many are all there, each whole.
#[test]
fn appended_lines_are_whole() {
    needs_root!();
    let image = Image::formatted(64 << 20, "journalfs", &[]);
    let mounted = Mounted::new(&image, "");
    let path = mounted.join("log");
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let path = &path;
            scope.spawn(move || {
                let mut file = OpenOptions::new().append(true).create(true).open(path).expect("open");
                for line in 0..300 {
                    let text = format!("{thread} {line} {}\n", "x".repeat((thread * 37 + line) % 300));
                    file.write_all(text.as_bytes()).expect("append");
                    if line % 50 == 0 {
                        file.sync_all().expect("fsync");
                    }
                }
            });
        }
    });
    mounted.unmount();
    image.assert_clean();
    let mounted = Mounted::kernel(&image, "ro");
    let text = fs::read_to_string(mounted.join("log")).expect("read");
    let mut seen = BTreeSet::new();
    for line in text.lines() {
        let mut words = line.split(' ');
        let mut number = || words.next().and_then(|word| word.parse::<usize>().ok());
        let (thread, index) = (number().expect("thread"), number().expect("line"));
        assert_eq!(words.next().map(str::len), Some((thread * 37 + index) % 300), "{line}");
        assert!(seen.insert((thread, index)), "twice: {line}");
    }
    assert_eq!(seen.len(), 8 * 300);
    mounted.unmount();
}

/// O_TMPFILE: a file gets its name when it is whole, or never had one.
#[test]
fn files_without_a_name() {
    needs_root!();
    let image = Image::formatted(64 << 20, "journalfs", &[]);
    let mounted = Mounted::new(&image, "");
    let make = || {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(rustix::fs::OFlags::TMPFILE.bits() as i32);
        options.open(mounted.root()).expect("O_TMPFILE")
    };
    for index in 0..20 {
        let mut file = make();
        file.write_all(&vec![index; 10_000]).expect("write");
        file.sync_all().expect("fsync");
        assert_eq!(file.metadata().expect("stat").nlink(), 0);
        if index % 2 == 0 {
            let opened = format!("/proc/self/fd/{}", file.as_raw_fd());
            let name = mounted.join(format!("whole-{index}"));
            rustix::fs::linkat(rustix::fs::CWD, opened, rustix::fs::CWD, &name, AtFlags::SYMLINK_FOLLOW)
                .expect("linkat");
            assert_eq!(fs::metadata(name).expect("stat").nlink(), 1);
        }
    }
    mounted.unmount();
    image.assert_clean();
    let mounted = Mounted::kernel(&image, "ro");
    for index in (0..20).step_by(2) {
        let found = fs::read(mounted.join(format!("whole-{index}"))).expect("read");
        assert!(found == vec![index; 10_000]);
    }
    assert_eq!(fs::read_dir(mounted.root()).expect("list").count(), 11);
    mounted.unmount();
}

/// While others come and go, a listing shows each lasting entry exactly once.
#[test]
fn listing_a_directory_that_changes() {
    needs_root!();
    let image = Image::formatted(128 << 20, "journalfs", &["-b", "1024"]);
    let mounted = Mounted::new(&image, "");
    let dir = mounted.join("dir");
    fs::create_dir(&dir).expect("mkdir");
    let lasting: BTreeSet<String> = (0..2000).map(|index| format!("lasting-{index}")).collect();
    for name in &lasting {
        File::create(dir.join(name)).expect("create");
    }
    let stop = std::sync::atomic::AtomicBool::new(false);
    let stopped = || stop.load(std::sync::atomic::Ordering::Relaxed);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (dir, stopped) = (&dir, &stopped);
            scope.spawn(move || {
                for round in (0..).take_while(|_| !stopped()) {
                    let path =
                        dir.join(format!("passing-{thread}-{}-{}", round % 700, "y".repeat(round % 90)));
                    File::create(&path).expect("create");
                    let moved = dir.join(format!("moved-{thread}-{round}"));
                    fs::rename(&path, &moved).expect("rename");
                    if round % 3 != 0 {
                        fs::remove_file(&moved).expect("unlink");
                    }
                }
            });
        }
        for _ in 0..15 {
            let mut seen = BTreeSet::new();
            for entry in fs::read_dir(&dir).expect("readdir") {
                let name = entry.expect("readdir").file_name().into_string().expect("UTF-8");
                if name.starts_with("lasting") {
                    assert!(seen.insert(name.clone()), "{name} is listed twice");
                }
            }
            if seen != lasting {
                stop.store(true, std::sync::atomic::Ordering::Relaxed);
            }
            let missing: Vec<_> = lasting.difference(&seen).take(5).collect();
            assert!(seen == lasting, "{} of 2000 listed, missing {missing:?}", seen.len());
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    mounted.unmount();
    image.assert_clean();
}

/// Renames across directories from all sides, of files and of directories.
#[test]
fn renames_from_all_sides() {
    needs_root!();
    let image = Image::formatted(64 << 20, "journalfs", &["-b", "1024"]);
    let mounted = Mounted::new(&image, "");
    for dir in 0..4 {
        fs::create_dir(mounted.join(format!("d{dir}"))).expect("mkdir");
    }
    for index in 0..40 {
        let dir = index % 4;
        fs::write(mounted.join(format!("d{dir}/file-{index}")), index.to_string()).expect("write");
        fs::create_dir(mounted.join(format!("d{dir}/sub-{index}"))).expect("mkdir");
    }
    std::thread::scope(|scope| {
        for thread in 0..6_u32 {
            let root = mounted.root();
            scope.spawn(move || {
                let mut state = thread + 1;
                let mut random = |limit: u32| {
                    state = state.wrapping_mul(1_103_515_245).wrapping_add(12345);
                    (state >> 8) % limit
                };
                for _ in 0..600 {
                    let kind = ["file", "sub"][random(2) as usize];
                    let (index, from, to) = (random(40), random(4), random(4));
                    // Most have moved elsewhere: ENOENT is no news.
                    let _ = fs::rename(
                        root.join(format!("d{from}/{kind}-{index}")),
                        root.join(format!("d{to}/{kind}-{index}")),
                    );
                    if random(50) == 0 {
                        let _ = fs::rename(
                            root.join(format!("d{from}/sub-{index}")),
                            root.join(format!("d{to}/sub-{}/sub-{index}", random(40))),
                        );
                    }
                }
            });
        }
    });
    mounted.unmount();
    image.assert_clean();
    let mounted = Mounted::kernel(&image, "ro");
    let found =
        ok(Command::new("find").arg(mounted.root()).args(["-name", "file-*", "-o", "-name", "sub-*"]), LIMIT);
    assert_eq!(found.lines().count(), 80, "{found}");
    let mut texts = BTreeSet::new();
    for path in found.lines().filter(|path| path.contains("/file-")) {
        texts.insert(fs::read_to_string(path).expect("read"));
    }
    assert_eq!(texts.len(), 40);
    mounted.unmount();
}

/// Writers and readers of one file by write(2) and mmap(2), truncation in between: no process sees
/// bytes that nobody wrote.
#[test]
fn one_file_many_writers() {
    needs_root!();
    let image = Image::formatted(64 << 20, "journalfs", &[]);
    let mounted = Mounted::new(&image, "");
    let path = mounted.join("file");
    File::create(&path).expect("create");
    let check = |bytes: &[u8]| {
        for piece in bytes.chunks(BLOCK) {
            assert!(piece.iter().all(|&byte| byte < 9), "bytes that nobody wrote");
        }
    };
    std::thread::scope(|scope| {
        for thread in 1..=4_u8 {
            let path = &path;
            scope.spawn(move || {
                let file = OpenOptions::new().read(true).write(true).open(path).expect("open");
                for round in 0..200_u64 {
                    let block = (round * 7 + u64::from(thread) * 3) % 50;
                    file.write_all_at(&[thread; BLOCK], block * BLOCK as u64).expect("write");
                    let mut back = vec![0; 3 * BLOCK];
                    let length = file.read_at(&mut back, block * BLOCK as u64).expect("read");
                    check(&back[..length]);
                    match round % 20 {
                        5 => file.set_len(block * BLOCK as u64 + 100).expect("truncate"),
                        9 => file.sync_all().expect("fsync"),
                        _ => {}
                    }
                }
            });
        }
    });
    mounted.unmount();
    image.assert_clean();
    let mounted = Mounted::kernel(&image, "ro");
    check(&fs::read(mounted.join("file")).expect("read"));
    mounted.unmount();
}

/// Locks are left to the kernel, and work.
#[test]
fn locks() {
    needs_root!();
    let image = Image::formatted(16 << 20, "ext3", &["-b", "1024"]);
    let mounted = Mounted::new(&image, "");
    let script = r#"
        cd "$1"
        n=0; echo 0 > counter
        for worker in 1 2 3 4; do
            ( for i in $(seq 25); do
                flock lock sh -c 'echo $(($(cat counter) + 1)) > counter'
              done ) &
        done
        wait
        cat counter
    "#;
    let mut command = Command::new("sh");
    command.args(["-euc", script, "sh"]).arg(mounted.root());
    assert_eq!(ok(&mut command, LIMIT).trim(), "100");
    mounted.unmount();
    image.assert_clean();
}
