//! mkfs.journalfs, judged by e2fsck, dumpe2fs and the kernel.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::command::Output;
use crate::support::environment::program;
use crate::support::image::{dumpe2fs, field};
use crate::support::tree::{self, Abilities};
use crate::support::{driver, needs_root, ok, run, Driver, Image, Mounted, Scope, Snapshot};

const LIMIT: Duration = Duration::from_secs(120);

fn mkfs(image: &Path, arguments: &[&str]) -> Output {
    run(Command::new(program("mkfs.journalfs")).args(arguments).arg(image), LIMIT)
}

fn made(bytes: u64, arguments: &[&str]) -> Image {
    let image = Image::new(bytes);
    let output = mkfs(&image.path(), arguments);
    assert!(output.status.success(), "mkfs.journalfs {arguments:?}: {}", output.text());
    image.assert_clean();
    image
}

fn features(image: &Image) -> BTreeSet<String> {
    let features = field(&dumpe2fs(&image.path()), "Filesystem features");
    features.split_whitespace().map(str::to_owned).collect()
}

/// Skips where the kernel's driver and mke2fs are under test.
macro_rules! needs_ours {
    () => {
        if driver() == Driver::Kernel {
            return;
        }
    };
}

#[test]
fn every_profile_block_and_inode_size() {
    needs_ours!();
    needs_root!();
    for profile in ["journalfs", "ext3", "ext4"] {
        for block in ["1024", "2048", "4096"] {
            for inode in ["128", "256"] {
                let arguments = ["-q", "-t", profile, "-b", block, "-I", inode];
                let image = made(100 << 20, &arguments);
                let header = dumpe2fs(&image.path());
                assert_eq!(field(&header, "Block size"), block);
                assert_eq!(field(&header, "Inode size"), inode);
                assert!(features(&image).contains("has_journal"), "{arguments:?}");
                let kernel_type = if profile == "ext3" { "ext3" } else { "ext4" };
                let mounted = Mounted::kernel_at(&image.path(), kernel_type, "");
                for index in 0..50 {
                    let directory = mounted.join(format!("d{index}"));
                    fs::create_dir(&directory).expect("mkdir");
                    fs::write(directory.join("file"), vec![1; 100_000]).expect("write");
                }
                mounted.unmount();
                image.assert_clean();
            }
        }
    }
}

/// The ext3 and ext4 profiles are what mke2fs makes.
#[test]
fn same_features_as_mke2fs() {
    needs_ours!();
    for profile in ["ext3", "ext4"] {
        for block in ["1024", "4096"] {
            let ours = made(200 << 20, &["-q", "-t", profile, "-b", block]);
            let theirs = Image::mke2fs(200 << 20, profile, &["-b", block]);
            assert_eq!(features(&ours), features(&theirs), "-t {profile} -b {block}");
            let (ours, theirs) = (dumpe2fs(&ours.path()), dumpe2fs(&theirs.path()));
            for name in [
                "Inode count",
                "Block count",
                "Reserved block count",
                "First block",
                "Blocks per group",
                "Inodes per group",
                "Flex block group size",
                "First inode",
                "Inode size",
                "Journal inode",
                "Default directory hash",
            ] {
                assert_eq!(field(&ours, name), field(&theirs, name), "-t {profile} -b {block}: {name}");
            }
        }
    }
}

#[test]
fn from_two_megabytes_up() {
    needs_ours!();
    for (block, journal) in [("1024", true), ("2048", false), ("4096", false)] {
        let image = Image::new(2 << 20);
        let output = mkfs(&image.path(), &["-b", block]);
        assert!(output.status.success(), "{}", output.text());
        image.assert_e2fsck();
        assert_eq!(features(&image).contains("has_journal"), journal, "-b {block}");
        if !journal {
            assert!(output.text().contains("journal"), "does not say so: {}", output.text());
        }
    }
    for bytes in [3 << 20, 8 << 20, (8 << 20) + 512, 129 << 20, (128 << 20) + 12288, 1 << 30] {
        for block in ["1024", "4096"] {
            made(bytes, &["-q", "-b", block]);
        }
    }
}

/// Tables are left to be initialised later, as mke2fs does.
#[test]
fn sixteen_terabytes_in_seconds() {
    needs_ours!();
    needs_root!();
    let image = Image::new(16 << 40);
    let started = Instant::now();
    let output = mkfs(&image.path(), &["-q"]);
    assert!(output.status.success(), "{}", output.text());
    let took = started.elapsed();
    assert!(took < Duration::from_secs(30), "took {took:?}");
    let used = fs::metadata(image.path()).expect("stat").blocks() * 512;
    assert!(used < 4 << 30, "{used} bytes written");
    let mounted = Mounted::kernel(&image, "");
    fs::write(mounted.join("file"), b"text").expect("write");
    mounted.unmount();
    assert_eq!(field(&dumpe2fs(&image.path()), "Filesystem state"), "clean");
}

#[test]
fn options_arrive() {
    needs_ours!();
    let uuid = "01234567-89ab-4cde-8f01-23456789abcd";
    let arguments = ["-q", "-N", "5000", "-m", "2", "-L", "a label", "-U", uuid, "-J", "size=16"];
    let image =
        made(200 << 20, &[&arguments[..], &["-O", "^has_journal,has_journal,^resize_inode"]].concat());
    let header = dumpe2fs(&image.path());
    let inodes: u32 = field(&header, "Inode count").parse().expect("a number");
    assert!((5000..5200).contains(&inodes), "{inodes} inodes");
    assert_eq!(field(&header, "Filesystem volume name"), "a label");
    assert_eq!(field(&header, "Filesystem UUID"), uuid);
    assert!(!features(&image).contains("resize_inode"));
    let number = |name| field(&header, name).parse::<u64>().expect("a number");
    assert_eq!(number("Reserved block count"), number("Block count") * 2 / 100);
    let journal = field(&header, "Total journal size");
    assert_eq!(journal, "16M");

    let few = made(200 << 20, &["-q", "-i", "65536"]);
    let inodes: u32 = field(&dumpe2fs(&few.path()), "Inode count").parse().expect("a number");
    assert!((3000..3600).contains(&inodes), "{inodes} inodes");

    let untouched = Image::new(50 << 20);
    let output = mkfs(&untouched.path(), &["-n"]);
    assert!(output.status.success() && !output.text().is_empty(), "{}", output.text());
    assert_eq!(fs::metadata(untouched.path()).expect("stat").blocks(), 0, "-n wrote");

    let output = mkfs(&untouched.path(), &["-O", "no_such_feature"]);
    assert!(!output.status.success());
    assert!(output.stderr.contains("no_such_feature"), "{}", output.text());
}

#[test]
fn foreign_and_busy_devices_are_refused() {
    needs_ours!();
    needs_root!();
    let foreign: [(&str, u64, &[u8]); 4] = [
        ("XFS", 0, b"XFSB"),
        ("LUKS", 0, b"LUKS\xba\xbe"),
        ("swap", 4086, b"SWAPSPACE2"),
        ("btrfs", 65600, b"_BHRfS_M"),
    ];
    for (what, offset, magic) in foreign {
        let image = Image::new(64 << 20);
        let file = fs::OpenOptions::new().write(true).open(image.path());
        file.and_then(|file| file.write_all_at(magic, offset)).expect("write magic");
        let output = mkfs(&image.path(), &["-q"]);
        assert!(!output.status.success(), "overwrote {what}");
        assert!(output.stderr.to_lowercase().contains(&what.to_lowercase()), "{what}: {}", output.text());
        let output = mkfs(&image.path(), &["-q", "-F"]);
        assert!(output.status.success(), "-F over {what}: {}", output.text());
        image.assert_clean();
    }
    let image = Image::formatted(64 << 20, "ext4", &[]);
    let mounted = Mounted::kernel(&image, "");
    let output = mkfs(&image.path(), &["-q"]);
    assert!(!output.status.success(), "formatted while the kernel has it mounted");
    mounted.unmount();
    let mounted = Mounted::journalfs(&image.path(), "");
    let output = mkfs(&image.path(), &["-q"]);
    assert!(!output.status.success(), "formatted while we have it mounted");
    mounted.unmount();
    image.assert_clean();
}

/// `-d`: the tree of a directory with all that is in it, without a mount; times too.
#[test]
fn populated_from_a_directory() {
    needs_ours!();
    needs_root!();
    for (profile, arguments, abilities) in [
        ("journalfs", &[][..], Abilities::FULL),
        ("ext3", &["-b", "1024"], Abilities { extents: false, ..Abilities::FULL }),
    ] {
        let source = Image::mke2fs(256 << 20, if profile == "ext3" { "ext3" } else { "ext4" }, &[]);
        let tree = Mounted::kernel(&source, "noatime");
        tree::build(tree.root(), abilities);
        let image = Image::new(256 << 20);
        let directory = tree.root().to_str().expect("UTF-8");
        let output = mkfs(&image.path(), &[&["-q", "-t", profile, "-d", directory], arguments].concat());
        assert!(output.status.success(), "{}", output.text());
        image.assert_clean();
        let copy = Mounted::kernel(&image, "ro");
        let what = format!("{profile}: the copy and its source");
        Snapshot::take(copy.root()).assert_same(&Snapshot::take(tree.root()), Scope::Portable, &what);
        for name in ["", "contents", "times", "attributes"] {
            let times = |root: &Path| {
                let stat = fs::symlink_metadata(root.join(name)).expect("stat");
                (stat.mtime(), stat.mtime_nsec(), stat.mode(), stat.uid())
            };
            assert_eq!(times(copy.root()), times(tree.root()), "{profile}: {name:?}");
        }
        copy.unmount();
        tree.unmount();
        let mounted = Mounted::journalfs(&image.path(), "");
        fs::write(mounted.join("after"), b"goes on").expect("write");
        mounted.unmount();
        image.assert_clean();
    }
}

/// What doesn't fit is named, nothing is left of a file that was to be made, and the image is not put into itself.
#[test]
fn a_directory_that_does_not_fit() {
    needs_ours!();
    let source = tempfile::tempdir().expect("directory");
    fs::write(source.path().join("large"), vec![1; 20 << 20]).expect("write");
    let directory = source.path().to_str().expect("UTF-8");
    let image = source.path().join("image");
    let output = run(
        Command::new(program("mkfs.journalfs")).args(["-q", "-d", directory]).arg(&image).arg("16M"),
        LIMIT,
    );
    assert!(!output.status.success());
    assert!(output.stderr.contains("large") && output.stderr.contains("space"), "{}", output.text());
    assert!(!image.exists());
    let output = run(
        Command::new(program("mkfs.journalfs")).args(["-q", "-d", directory]).arg(&image).arg("64M"),
        LIMIT,
    );
    assert!(output.status.success(), "{}", output.text());
    let list = ok(Command::new("debugfs").args(["-R", "ls -p /"]).arg(&image), LIMIT);
    assert!(list.contains("/large/") && !list.contains("/image/"), "{list}");
}
