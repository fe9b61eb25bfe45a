//! Trees that the kernel wrote, in every format that mke2fs makes, read and then changed by us.

use std::process::Command;
use std::time::Duration;

use crate::roundtrip::compare_drivers;
use crate::support::image::{dumpe2fs, field};
use crate::support::tree::{self, Abilities};
use crate::support::{driver, needs_root, ok, Driver, Image, Mounted, Scope, Snapshot};

const BYTES: u64 = 512 << 20;
const LIMIT: Duration = Duration::from_secs(60);

fn abilities(image: &Image) -> Abilities {
    let header = dumpe2fs(&image.path());
    let features = field(&header, "Filesystem features");
    let inode_size = field(&header, "Inode size");
    Abilities {
        extents: features.split(' ').any(|feature| feature == "extent"),
        wide_times: inode_size != "128",
        ..Abilities::FULL
    }
}

/// The kernel builds; we and the kernel must see the same, and the same changes must give the same.
fn take_over(kernel_type: &'static str, arguments: &[&str]) {
    take_over_image(&Image::mke2fs(BYTES, kernel_type, arguments), "noatime");
}

fn take_over_image(image: &Image, options: &str) {
    let abilities = abilities(image);
    let mounted = Mounted::kernel(image, "noatime");
    tree::build(mounted.root(), abilities);
    mounted.unmount();
    compare_drivers(image, "of the kernel's tree");

    let reference = image.copy();
    let mounted = Mounted::kernel(&reference, "noatime");
    let their_log = tree::change(mounted.root(), abilities);
    mounted.unmount();
    let mounted = Mounted::kernel(&reference, "ro");
    let theirs = Snapshot::take(mounted.root());
    mounted.unmount();

    let mounted = Mounted::new(image, options);
    let our_log = tree::change(mounted.root(), abilities);
    let live = Snapshot::take(mounted.root());
    let _ = mounted.unmount_with_messages();
    image.assert_clean();
    let after = compare_drivers(image, "after our changes");
    // The kernel's SEEK_DATA does not see delayed allocations of files without extents.
    if driver() == Driver::Journalfs {
        live.assert_same(&after, Scope::Live, "while mounted and after");
    }
    after.assert_same(&theirs, Scope::Portable, "our changes and the kernel's");
    assert_eq!(our_log, their_log, "answers to the same changes");
}

/// A feature that we may decline to write: then the mount is read-only and says which feature.
fn take_over_or_read_only(feature: &str, kernel_type: &'static str, arguments: &[&str]) {
    if driver() == Driver::Kernel {
        return take_over(kernel_type, arguments);
    }
    let image = Image::mke2fs(16 << 20, kernel_type, arguments);
    if is_writable(&image, feature) {
        return take_over(kernel_type, arguments);
    }
    let image = Image::mke2fs(BYTES, kernel_type, arguments);
    let mounted = Mounted::kernel(&image, "noatime");
    tree::build(mounted.root(), abilities(&image));
    mounted.unmount();
    compare_drivers(&image, "of the kernel's tree");
}

/// A format that we refuse altogether, by the feature's name, in one line.
fn refused(feature: &str, kernel_type: &'static str, arguments: &[&str]) {
    if driver() == Driver::Kernel {
        return;
    }
    let image = Image::mke2fs(64 << 20, kernel_type, arguments);
    for options in ["", "ro"] {
        let Err((status, message)) = Mounted::try_journalfs(&image.path(), options) else {
            panic!("mounted a file system with {feature}");
        };
        assert!(!status.success());
        assert!(message.contains(feature), "{message}");
        assert_eq!(message.trim().lines().count(), 1, "{message}");
    }
}

/// One test per format, so that they run side by side and fail by name.
macro_rules! formats {
    ($($name:ident: $kernel_type:literal, $arguments:expr;)*) => {
        $(#[test]
        fn $name() {
            needs_root!();
            take_over($kernel_type, &$arguments);
        })*
    };
}

formats! {
    ext3_defaults: "ext3", [];
    ext3_1k_small_inodes: "ext3", ["-b", "1024", "-I", "128"];
    ext3_no_filetype_no_index: "ext3", ["-O", "^filetype,^dir_index"];
    ext4_defaults: "ext4", [];
    ext4_1k: "ext4", ["-b", "1024"];
    ext4_2k: "ext4", ["-b", "2048"];
    ext4_big_inodes: "ext4", ["-I", "1024"];
    ext4_without_checksums: "ext4", ["-O", "^metadata_csum,^64bit,^uninit_bg"];
    ext4_group_descriptor_checksums: "ext4", ["-O", "^metadata_csum,uninit_bg"];
    ext4_checksums_32bit: "ext4", ["-O", "metadata_csum,^64bit"];
    ext4_meta_bg: "ext4", ["-b", "1024", "-O", "meta_bg,^resize_inode"];
    ext4_meta_bg_32bit: "ext4", ["-b", "1024", "-O", "meta_bg,^resize_inode,^64bit,^flex_bg"];
    ext4_no_flex_bg: "ext4", ["-O", "^flex_bg"];
    ext4_csum_seed: "ext4", ["-O", "metadata_csum_seed"];
    ext4_sparse_super2: "ext4", ["-b", "1024", "-O", "sparse_super2,^resize_inode"];
    ext4_no_sparse_super: "ext4", ["-b", "1024", "-O", "^sparse_super,^resize_inode"];
    ext4_large_dir: "ext4", ["-b", "1024", "-O", "large_dir"];
    ext4_orphan_file: "ext4", ["-O", "orphan_file"];
    ext4_stable_inodes: "ext4", ["-O", "stable_inodes"];
    ext4_no_extents: "ext4", ["-O", "^extent,^64bit"];
    ext4_no_huge_file_dir_nlink: "ext4", ["-O", "^huge_file,^dir_nlink,^extra_isize"];
    ext4_fast_commit: "ext4", ["-O", "fast_commit"];
    ext4_lazy_tables: "ext4", ["-E", "lazy_itable_init=1,lazy_journal_init=1"];
    ext4_small_groups: "ext4", ["-g", "8192", "-N", "20000"];
}

/// mke2fs always writes half-MD4; the other hashes are on old file systems.
#[test]
fn legacy_and_tea_hashes() {
    needs_root!();
    for hash in ["legacy", "tea"] {
        let image = Image::mke2fs(BYTES, "ext4", &["-b", "1024"]);
        tune2fs(&image, &["-E", &format!("hash_alg={hash}")]);
        take_over_image(&image, "noatime");
    }
}

fn tune2fs(image: &Image, arguments: &[&str]) {
    let mut command = Command::new("tune2fs");
    ok(command.args(arguments).arg(image.path()), LIMIT);
}

/// Features that this kernel may not be built for are added after it wrote the tree.
fn added_later(feature: &str, named: &str) {
    let image = Image::mke2fs(BYTES, "ext4", &[]);
    let mounted = Mounted::kernel(&image, "noatime");
    tree::build(mounted.root(), abilities(&image));
    mounted.unmount();
    tune2fs(&image, &["-O", feature]);
    compare_drivers(&image, &format!("of a tree with {feature}"));
    if driver() == Driver::Journalfs {
        assert_not_writable(&image, named);
    }
}

/// Whether we write it; if not, the mount fails or is read-only, and names the feature.
fn is_writable(image: &Image, feature: &str) -> bool {
    match Mounted::try_journalfs(&image.path(), "noatime") {
        Ok(mounted) => {
            let writable = std::fs::write(mounted.join("probe"), b"").is_ok();
            let messages = mounted.unmount_with_messages();
            assert!(
                writable || messages.contains(feature),
                "read-only because of {feature}, but it says: {messages}"
            );
            writable
        }
        Err((status, message)) => {
            assert!(message.contains(feature), "{status}: {message}");
            false
        }
    }
}

fn assert_not_writable(image: &Image, feature: &str) {
    assert!(!is_writable(image, feature), "{feature} is not kept up to date by us");
}

/// Without a journal there is no crash promise: writing is by explicit choice.
#[test]
fn ext2_is_read_only_by_default() {
    needs_root!();
    let image = Image::mke2fs(BYTES, "ext2", &[]);
    let mounted = Mounted::kernel(&image, "noatime");
    tree::build(mounted.root(), abilities(&image));
    mounted.unmount();
    compare_drivers(&image, "of an ext2 tree");
    if driver() == Driver::Kernel {
        return;
    }
    let mounted = Mounted::journalfs(&image.path(), "");
    let refused = std::fs::write(mounted.join("new"), b"").expect_err("written without a journal");
    assert_eq!(refused.raw_os_error(), Some(30), "EROFS");
    let messages = mounted.unmount_with_messages();
    assert!(messages.contains("journal"), "does not say why: {messages}");
    image.assert_clean();
}

#[test]
fn ext2_is_written_on_demand() {
    needs_root!();
    take_over_image(&Image::mke2fs(BYTES, "ext2", &[]), "noatime,nojournal");
}

#[test]
fn ext4_without_a_journal_is_written_on_demand() {
    needs_root!();
    let image = Image::mke2fs(BYTES, "ext4", &["-O", "^has_journal"]);
    take_over_image(&image, "noatime,nojournal");
}

#[test]
fn inline_data() {
    needs_root!();
    take_over_or_read_only("inline_data", "ext4", &["-O", "inline_data"]);
}

#[test]
fn ea_inode() {
    needs_root!();
    take_over_or_read_only("ea_inode", "ext4", &["-O", "ea_inode"]);
}

#[test]
fn mmp() {
    needs_root!();
    take_over_or_read_only("mmp", "ext4", &["-O", "mmp", "-E", "mmp_update_interval=1"]);
}

#[test]
fn bigalloc() {
    needs_root!();
    take_over_or_read_only("bigalloc", "ext4", &["-O", "bigalloc"]);
}

#[test]
fn quota() {
    needs_root!();
    added_later("quota", "quota");
}

#[test]
fn project() {
    needs_root!();
    // tune2fs adds quota with it, and that is what we name first.
    added_later("project", "quota");
}

#[test]
fn verity() {
    needs_root!();
    take_over_or_read_only("verity", "ext4", &["-O", "verity"]);
}

#[test]
fn encrypt_is_refused() {
    needs_root!();
    refused("encrypt", "ext4", &["-O", "encrypt"]);
}

#[test]
fn casefold_is_refused() {
    needs_root!();
    refused("casefold", "ext4", &["-O", "casefold"]);
}

#[test]
fn external_journal_device_is_refused() {
    needs_root!();
    refused("journal_dev", "ext4", &["-O", "journal_dev"]);
}
