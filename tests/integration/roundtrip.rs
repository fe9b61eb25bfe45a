//! What programs write through us is what the kernel finds in the image, in every profile.

use std::fs;

use crate::support::tree::{self, Abilities};
use crate::support::{needs_root, Image, Mounted, Scope, Snapshot};

const BYTES: u64 = 512 << 20;

/// Builds a rich tree, changes it, and compares after each step: with the kernel's view of the same
/// image, and with what the kernel makes of the same calls.
fn roundtrip(profile: &'static str, arguments: &[&str], abilities: Abilities) {
    let image = Image::formatted(BYTES, profile, arguments);
    let reference = Image::mke2fs(BYTES, image.kernel_type(), arguments);

    let ours = write(&image, |root| tree::build(root, abilities));
    let theirs = write_by_kernel(&reference, |root| tree::build(root, abilities));
    compare(&ours, &theirs, "after building the tree");

    let ours = write(&image, |root| tree::change(root, abilities));
    let theirs = write_by_kernel(&reference, |root| tree::change(root, abilities));
    compare(&ours, &theirs, "after changing the tree");

    // The kernel goes on with what we made, and we with what it made of that.
    let mounted = Mounted::kernel(&image, "noatime");
    fs::remove_dir_all(mounted.join("renamed")).expect("rm -r by the kernel");
    fs::rename(mounted.join("contents"), mounted.join("attributes/contents")).expect("rename");
    fs::write(mounted.join("by-the-kernel"), vec![5; 1 << 20]).expect("write by the kernel");
    mounted.unmount();
    image.assert_clean();
    compare_drivers(&image, "after the kernel changed our tree");
    let mounted = Mounted::new(&image, "noatime");
    for entry in fs::read_dir(mounted.root()).expect("readdir") {
        let path = entry.expect("readdir").path();
        if path.is_dir() {
            fs::remove_dir_all(&path).unwrap_or_else(|error| panic!("rm -r {}: {error}", path.display()));
        } else {
            fs::remove_file(&path).unwrap_or_else(|error| panic!("rm {}: {error}", path.display()));
        }
    }
    mounted.unmount();
    image.assert_clean();
}

struct Written {
    log: tree::Log,
    after: Snapshot,
}

/// Runs `work` through the driver under test; the kernel must then show the same tree.
fn write(image: &Image, work: impl FnOnce(&std::path::Path) -> tree::Log) -> Written {
    let mounted = Mounted::new(image, "noatime");
    let log = work(mounted.root());
    let live = Snapshot::take(mounted.root());
    mounted.unmount();
    image.assert_clean();
    let after = compare_drivers(image, "after a remount");
    live.assert_same(&after, Scope::Live, "while mounted and after");
    Written { log, after }
}

fn write_by_kernel(image: &Image, work: impl FnOnce(&std::path::Path) -> tree::Log) -> Written {
    let mounted = Mounted::kernel(image, "noatime");
    let log = work(mounted.root());
    mounted.unmount();
    let mounted = Mounted::kernel(image, "ro");
    let after = Snapshot::take(mounted.root());
    mounted.unmount();
    Written { log, after }
}

/// Demands that our driver and the kernel's show exactly the same; returns what they show.
pub(crate) fn compare_drivers(image: &Image, what: &str) -> Snapshot {
    let mounted = Mounted::new(image, "ro");
    let ours = Snapshot::take(mounted.root());
    mounted.unmount();
    let mounted = Mounted::kernel(image, "ro");
    let theirs = Snapshot::take(mounted.root());
    mounted.unmount();
    ours.assert_same(&theirs, Scope::Exact, &format!("we and the kernel {what}"));
    theirs
}

fn compare(ours: &Written, theirs: &Written, what: &str) {
    assert!(ours.after.len() > 500, "only {} entries", ours.after.len());
    ours.after.assert_same(&theirs.after, Scope::Portable, &format!("our result and the kernel's {what}"));
    assert_eq!(ours.log, theirs.log, "answers {what}");
}

const INDIRECT: Abilities = Abilities { extents: false, ..Abilities::FULL };

#[test]
fn journalfs_profile_4k() {
    needs_root!();
    roundtrip("journalfs", &["-b", "4096"], Abilities::FULL);
}

#[test]
fn journalfs_profile_1k() {
    needs_root!();
    roundtrip("journalfs", &["-b", "1024"], Abilities::FULL);
}

#[test]
fn journalfs_profile_2k() {
    needs_root!();
    roundtrip("journalfs", &["-b", "2048"], Abilities::FULL);
}

#[test]
fn ext3_profile_4k() {
    needs_root!();
    roundtrip("ext3", &["-b", "4096"], INDIRECT);
}

#[test]
fn ext3_profile_1k() {
    needs_root!();
    roundtrip("ext3", &["-b", "1024"], INDIRECT);
}

#[test]
fn ext3_profile_small_inodes() {
    needs_root!();
    let abilities = Abilities { wide_times: false, ..INDIRECT };
    roundtrip("ext3", &["-b", "4096", "-I", "128"], abilities);
}

#[test]
fn ext4_profile_4k() {
    needs_root!();
    roundtrip("ext4", &["-b", "4096"], Abilities::FULL);
}

#[test]
fn ext4_profile_1k() {
    needs_root!();
    roundtrip("ext4", &["-b", "1024"], Abilities::FULL);
}
