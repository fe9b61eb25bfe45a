//! Truncated, corrupt and foreign images: a clear error in one line, never a panic, a hang or a daemon
//! that eats the memory.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::image::{dumpe2fs, field};
use crate::support::mount::is_mounted;
use crate::support::{driver, needs_root, ok, run, Driver, Image, Mounted};

const BYTES: u64 = 64 << 20;
/// Far more than a walk of so small an image can need.
const MEMORY_LIMIT_KIB: u64 = 1 << 20;

fn poke(image: &Image, offset: u64, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).open(image.path());
    file.and_then(|file| file.write_all_at(bytes, offset)).expect("poke the image");
}

/// The mount must fail, with one line that holds each of `words`.
fn assert_refused(image: &Image, words: &[&str], what: &str) {
    match Mounted::try_journalfs(&image.path(), "") {
        Ok(_) => panic!("{what}: mounted"),
        Err((status, message)) => {
            assert!(!status.success(), "{what}: {status}");
            assert_clear(&message, what);
            for word in words {
                assert!(message.contains(word), "{what}: no {word:?} in: {message}");
            }
        }
    }
}

fn assert_clear(message: &str, what: &str) {
    assert!(!message.contains("panicked"), "{what}: {message}");
    // Warnings may come before it; the error itself is one line, the last.
    let errors = message.lines().filter(|line| !line.contains(" WARN "));
    assert_eq!(errors.count(), 1, "{what}: {message:?}");
}

/// The mount fails clearly, or works; then every call on the tree comes back, and the daemon lives.
fn assert_survived(image: &Image, what: &str) {
    let mounted = match Mounted::try_journalfs(&image.path(), "errors=continue") {
        Ok(mounted) => mounted,
        Err((status, message)) => {
            assert_eq!(status.code().map(|code| code != 0), Some(true), "{what}");
            assert_clear(&message, what);
            return;
        }
    };
    let walk = "cd \"$1\" || exit 0
        find . -ls | head -n 20000 | wc -l
        find . -type f -exec head -c 2000000 {} + | head -c 200000000 | wc -c
        getfattr -R -d -m- . | head -n 100000 | wc -l
        for n in 1 2 3 4 5 6 7 8; do mkdir d$n; echo x > d$n/f; mv d$n e$n; done
        head -c 300000 /dev/zero > big; sync -f .; rm -rf e1 big; ls -lR | head -n 20000 | wc -l";
    let mut command = Command::new("sh");
    command.args(["-c", walk, "sh"]).arg(mounted.root());
    // Whatever the tools say of a broken tree is fine, as long as they end.
    let _ = run(&mut command, Duration::from_secs(60));
    let status = std::fs::read_to_string(format!("/proc/{}/status", mounted.pid().unwrap_or(0)));
    let status = status.unwrap_or_else(|error| panic!("{what}: the daemon is gone: {error}"));
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak: u64 = peak
        .and_then(|text| text.trim().strip_suffix(" kB")?.trim().parse().ok())
        .unwrap_or_else(|| panic!("{what}: the daemon is dying:\n{status}"));
    assert!(peak < MEMORY_LIMIT_KIB, "{what}: {peak} KiB resident");
    assert!(is_mounted(mounted.root()), "{what}: the mount is gone");
    let _ = run(Command::new("umount").arg(mounted.root()), Duration::from_secs(60));
    let messages = mounted.wait_for_end();
    assert!(!messages.contains("panicked"), "{what}: {messages}");
}

#[test]
fn foreign_and_truncated_images() {
    needs_root!();
    if driver() == Driver::Kernel {
        return;
    }
    for bytes in [0, 1, 1024, 1500, 2048, 4096, 1 << 20] {
        let image = Image::new(bytes);
        assert_refused(&image, &[], &format!("{bytes} zero bytes"));
    }
    let image = Image::new(BYTES);
    poke(&image, 0, &vec![0xff; 1 << 20]);
    assert_refused(&image, &["superblock"], "all ones");
    let image = Image::new(BYTES);
    poke(&image, 0, b"XFSB");
    assert_refused(&image, &[], "XFS");
    let image = Image::mke2fs(BYTES, "ext4", &[]);
    for keep in [BYTES / 2, BYTES - 4096, 8192, 2048] {
        let file = OpenOptions::new().write(true).open(image.path());
        file.expect("open").set_len(keep).expect("truncate");
        assert_refused(&image, &[], &format!("truncated to {keep}"));
    }
}

/// Superblock fields at their offsets, with values that no formatter writes.
#[test]
fn hostile_superblocks() {
    needs_root!();
    if driver() == Driver::Kernel {
        return;
    }
    let image = Image::mke2fs(BYTES, "ext3", &["-b", "1024"]);
    let cases: &[(&str, u64, &[u8])] = &[
        ("no inodes", 0x00, &[0; 4]),
        ("all inodes", 0x00, &[0xff; 4]),
        ("no blocks", 0x04, &[0; 4]),
        ("all blocks", 0x04, &[0xff; 4]),
        ("first data block", 0x14, &[0xff; 4]),
        ("block size 2^70", 0x18, &[60, 0, 0, 0]),
        ("block size overflow", 0x18, &[0xff; 4]),
        ("no blocks per group", 0x20, &[0; 4]),
        ("one block per group", 0x20, &[1, 0, 0, 0]),
        ("all blocks per group", 0x20, &[0xff; 4]),
        ("no inodes per group", 0x28, &[0; 4]),
        ("all inodes per group", 0x28, &[0xff; 4]),
        ("magic", 0x38, &[0; 2]),
        ("revision", 0x4c, &[9, 0, 0, 0]),
        ("inode size 0", 0x58, &[0; 2]),
        ("inode size 100", 0x58, &[100, 0]),
        ("inode size 65535", 0x58, &[0xff; 2]),
        ("unknown incompatible features", 0x60, &[0xff; 4]),
    ];
    for (what, offset, bytes) in cases {
        let image = image.copy();
        poke(&image, 1024 + offset, bytes);
        assert_refused(&image, &[], what);
    }
    // With metadata_csum any change shows.
    let image = Image::mke2fs(BYTES, "ext4", &[]);
    poke(&image, 1024 + 0x70, &[0x55]);
    assert_refused(&image, &["superblock", "checksum"], "superblock checksum");
}

/// Whole structures overwritten, found with debugfs on a tree that the kernel wrote.
#[test]
fn trashed_structures() {
    needs_root!();
    if driver() == Driver::Kernel {
        return;
    }
    for format in ["ext3", "ext4"] {
        let image = populated(format);
        let block = |what: &str| -> u64 {
            let mut command = Command::new("debugfs");
            command.args(["-R", what]).arg(image.path());
            let output = run(&mut command, Duration::from_secs(30));
            output
                .stdout
                .split(|c: char| !c.is_ascii_digit())
                .find_map(|word| word.parse().ok())
                .unwrap_or_else(|| panic!("{what}: {}", output.text()))
        };
        let cases = [
            ("group descriptors", 1),
            ("journal", block("bmap <8> 0")),
            ("journal block 1", block("bmap <8> 1")),
            ("root directory", block("bmap <2> 0")),
            ("wide directory", block("bmap /wide 0")),
            ("wide directory's leaf", block("bmap /wide 2")),
        ];
        for (what, number) in cases {
            for fill in [0x00, 0xff, 0x5a] {
                let image = image.copy();
                poke(&image, number * 4096, &[fill; 4096]);
                let what = format!("{format}: {what} filled with {fill:#x}");
                assert_survived(&image, &what);
            }
        }
    }
}

/// Random bytes changed where the metadata is.
#[test]
fn random_damage() {
    needs_root!();
    if driver() == Driver::Kernel {
        return;
    }
    let rounds: u64 = std::env::var("HOSTILE_ROUNDS").map_or(40, |text| text.parse().unwrap_or(40));
    let images = [populated("ext3"), populated("ext4")];
    for round in 0..rounds {
        let image = images[round as usize % 2].copy();
        let mut state = round.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        for _ in 0..64 {
            // Descriptors, bitmaps, inode tables and the first directories lie in the first 4 MiB.
            let offset = 4096 + random() % (4 << 20);
            poke(&image, offset, &[random() as u8]);
        }
        assert_survived(&image, &format!("random damage {round}"));
    }
}

/// A small tree with every kind of metadata, written by the kernel in 4 KiB blocks. Without checksums
/// for ext3, so that damage reaches the code behind them.
fn populated(format: &'static str) -> Image {
    let image = Image::mke2fs(BYTES, format, &["-b", "4096", "-N", "2048"]);
    let mounted = Mounted::kernel(&image, "");
    let fill = "cd \"$1\" && mkdir -p wide a/b/c && for n in $(seq 900); do
            : > wide/a-rather-long-name-for-an-entry-$n; done
        for n in 1 2 3 4 5 6 7 8 9; do head -c ${n}00000 /dev/urandom > a/b/file-$n; done
        ln -s /nowhere a/link; ln a/b/file-1 a/hard; mkfifo a/fifo
        setfattr -n user.name -v value a/b/file-2
        setfattr -n user.big -v \"$(head -c 600 /dev/zero | tr '\\0' x)\" a/b/file-3
        truncate -s 1G a/sparse; echo x >> a/sparse";
    let mut command = Command::new("sh");
    command.args(["-ec", fill, "sh"]).arg(mounted.root());
    crate::support::ok(&mut command, Duration::from_secs(60));
    mounted.unmount();
    image.assert_clean();
    image
}

/// An image with a directory `d` whose block is damaged.
fn with_damaged_directory() -> Image {
    let image = Image::formatted(BYTES, "journalfs", &[]);
    let mounted = Mounted::journalfs(&image.path(), "");
    std::fs::create_dir(mounted.join("d")).expect("mkdir");
    mounted.unmount();
    let mut debugfs = Command::new("debugfs");
    let blocks = ok(debugfs.args(["-R", "blocks /d"]).arg(image.path()), Duration::from_secs(60));
    let block: u64 = blocks.lines().find_map(|line| line.trim().parse().ok()).expect("the directory's block");
    poke(&image, block * 4096 + 4, &[3; 20]);
    image
}

#[test]
fn errors_panic_ends_the_mount_at_once() {
    needs_root!();
    if driver() == Driver::Kernel {
        return;
    }
    let image = with_damaged_directory();
    let mounted = Mounted::journalfs(&image.path(), "errors=panic");
    std::fs::create_dir(mounted.join("lost")).expect("mkdir");
    // Whatever comes of it.
    let _ = std::fs::read_dir(mounted.join("d")).map(Iterator::count);
    let began = Instant::now();
    while is_mounted(mounted.root()) {
        assert!(began.elapsed() < Duration::from_secs(30), "still mounted");
        std::thread::sleep(Duration::from_millis(20));
    }
    let messages = mounted.wait_for_end();
    assert!(messages.contains("the mount ends here (errors=panic)"), "{messages}");
    assert!(messages.contains("corrupt"), "what was met: {messages}");
    let header = dumpe2fs(&image.path());
    assert!(field(&header, "Filesystem state").contains("with errors"), "{header}");
    // As after a crash: it can be mounted again, and what was not committed is gone.
    let mounted = Mounted::journalfs(&image.path(), "errors=continue");
    assert!(!mounted.join("lost").exists());
    let _ = mounted.unmount_with_messages();
}

#[test]
fn the_image_knows_of_an_error_while_it_is_mounted() {
    needs_root!();
    if driver() == Driver::Kernel {
        return;
    }
    let image = with_damaged_directory();
    let mounted = Mounted::journalfs(&image.path(), "errors=continue");
    // Whatever comes of it.
    let _ = std::fs::read_dir(mounted.join("d")).map(Iterator::count);
    std::thread::sleep(Duration::from_millis(1500));
    mounted.kill();
    // In the log by now; whoever replays it finds it.
    let replayed = run(
        Command::new("e2fsck").args(["-y", "-E", "journal_only"]).arg(image.path()),
        Duration::from_secs(60),
    );
    let header = dumpe2fs(&image.path());
    assert!(field(&header, "Filesystem state").contains("with errors"), "{}{header}", replayed.text());
    assert!(!field(&header, "FS Error count").is_empty(), "{header}");
}
