//! What mkfs.journalfs does with the device: refusals, sizes, leftovers.

mod common;

use common::{debugfs, dumpe2fs, have_e2fsprogs, text, umount, Image};
use std::process::Command;

#[test]
fn foreign_contents_are_refused_without_force() {
    for (offset, signature) in
        [(0, &b"XFSB"[..]), (0x1_0040, b"_BHRfS_M"), (4086, b"SWAPSPACE2"), (510, b"\x55\xaa")]
    {
        let image = Image::filled(64 << 20, 0);
        let mut bytes = std::fs::read(&image.path).unwrap();
        bytes[offset..offset + signature.len()].copy_from_slice(signature);
        std::fs::write(&image.path, &bytes).unwrap();
        image.refuse("", "", "-F");
        assert_eq!(std::fs::read(&image.path).unwrap(), bytes, "a refusal must change nothing");
        image.make("-F", "");
        let after = std::fs::read(&image.path).unwrap();
        assert_ne!(&after[offset..offset + signature.len()], signature, "an old signature is left");
    }
}

#[test]
fn an_older_file_system_is_refused_without_force() {
    let image = Image::new();
    image.make("-L home", "64M");
    image.refuse("", "", "labelled 'home'");
    image.make("-F -L new", "");
    image.refuse("", "", "labelled 'new'");
}

#[test]
fn a_mounted_image_is_refused_even_with_force() {
    if !have_e2fsprogs() {
        return;
    }
    let (image, dir) = (Image::new(), tempfile::tempdir().unwrap());
    image.make("", "16M");
    let mounted = Command::new("mount").args(["-o", "loop"]).arg(&image.path).arg(dir.path()).output();
    if !mounted.is_ok_and(|output| output.status.success()) {
        println!("skipped: mounting by the kernel");
        return;
    }
    image.refuse("-F", "", "mounted");
    umount(dir.path());
    image.check("a refusal");
}

#[test]
fn image_files_are_made_and_extended() {
    let image = Image::new();
    image.refuse("", "", "does not exist");
    image.refuse("-O bigalloc", "64M", "bigalloc");
    assert!(!image.path.exists(), "a file is left of a run that failed");
    image.make("", "8M");
    assert_eq!(image.path.metadata().unwrap().len(), 8 << 20);
    image.make("-F", "20M");
    assert_eq!(image.path.metadata().unwrap().len(), 20 << 20);
    image.make("-F -b 2048", "4096");
    assert_eq!(image.path.metadata().unwrap().len(), 20 << 20);
    if have_e2fsprogs() {
        image.check("a size in blocks");
        assert!(dumpe2fs(&image.path).contains("Block count:              4096"));
    }
}

#[test]
fn a_dry_run_writes_nothing() {
    let image = Image::filled(16 << 20, 0);
    let output = image.run("-n", "");
    assert!(output.status.success() && text(&output).contains("Would make"), "{}", text(&output));
    assert!(std::fs::read(&image.path).unwrap().iter().all(|byte| *byte == 0));
}

#[test]
fn garbage_on_the_device_does_not_show() {
    if !have_e2fsprogs() {
        return;
    }
    for options in [
        "-t ext3",
        "-t ext4",
        "-b 1024 -E lazy_itable_init=0",
        "-b 1024 -E lazy_journal_init=1",
        "-t ext3 -E lazy_journal_init=1",
        "-O ^metadata_csum,uninit_bg",
        "-O ^metadata_csum",
        "-O meta_bg,orphan_file,mmp -b 1024 -g 512",
    ] {
        let image = Image::filled(40 << 20, 0xaa);
        image.make(&format!("{options} -E nodiscard"), "");
        image.check(options);
        let log = image.path.with_extension("log");
        debugfs(&image.path, &format!("dump <8> {}", log.display()));
        let log = std::fs::read(log).unwrap();
        assert!(log.len() >= 1 << 20, "{options}: the log has {} bytes", log.len());
        let sequence = u32::from_be_bytes(log[24..28].try_into().unwrap());
        let zero = log[4096..].iter().all(|byte| *byte == 0);
        // Whatever an older journal left must not be taken for this one's: zeroes, or another sequence.
        assert!(zero || sequence > 1, "{options}: stale log blocks and sequence {sequence}");
        assert_eq!(zero, !options.contains("lazy_journal_init"), "{options}");
        image.mount_and_use(if options.contains("ext3") { "ext3" } else { "ext4" }, options);
    }
}

#[test]
fn names_and_owners() {
    if !have_e2fsprogs() {
        return;
    }
    let image = Image::new();
    let uuid = "01234567-89ab-4cde-8f01-23456789abcd";
    image.make(&format!("-L root -U {uuid} -e remount-ro -E root_owner=12:34,hash_seed={uuid}"), "64M");
    let shown = dumpe2fs(&image.path);
    for line in [
        format!("Filesystem UUID:          {uuid}"),
        format!("Directory Hash Seed:      {uuid}"),
        "Filesystem volume name:   root".to_owned(),
        "Errors behavior:          Remount read-only".to_owned(),
    ] {
        assert!(shown.contains(&line), "'{line}' is not in {shown}");
    }
    let root = debugfs(&image.path, "stat <2>");
    assert!(root.contains("User:    12   Group:    34"), "{root}");
    image.refuse("-F -L a_label_of_17_byte", "", "longer than 16");
}

#[test]
fn an_offset_leaves_what_is_before_it() {
    if !have_e2fsprogs() {
        return;
    }
    let image = Image::filled(1 << 20, 0x11);
    image.make("-E offset=1048576", "32M");
    let bytes = std::fs::read(&image.path).unwrap();
    assert_eq!(bytes.len(), 33 << 20);
    assert!(bytes[..1 << 20].iter().all(|byte| *byte == 0x11));
    std::fs::write(&image.path, &bytes[1 << 20..]).unwrap();
    image.check("an offset");
}

#[test]
fn the_resize_inode_lets_it_grow() {
    if !have_e2fsprogs() {
        return;
    }
    for options in ["-t ext3 -b 1024", "-t ext4 -b 1024", "-t journalfs"] {
        let image = Image::new();
        image.make(options, "64M");
        let file = std::fs::OpenOptions::new().write(true).open(&image.path).unwrap();
        file.set_len(700 << 20).unwrap();
        let output = Command::new("resize2fs").arg(&image.path).output().unwrap();
        assert!(output.status.success(), "{options}: {}", text(&output));
        image.check(&format!("growth of {options}"));
    }
}

/// A loop device over an image, detached at the end.
struct LoopDevice(String);

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.0).status();
    }
}

#[test]
fn block_devices_are_formatted_whatever_they_were_before() {
    if !have_e2fsprogs() {
        return;
    }
    let (backing, dir) = (Image::filled(200 << 20, 0xaa), tempfile::tempdir().unwrap());
    let attached = Command::new("losetup").args(["-f", "--show"]).arg(&backing.path).output();
    let Some(attached) = attached.ok().filter(|output| output.status.success()) else {
        println!("skipped: no loop device can be attached");
        return;
    };
    let device = LoopDevice(String::from_utf8(attached.stdout).unwrap().trim().to_owned());
    let image = Image::at(std::path::Path::new(&device.0));
    for options in
        ["-t journalfs", "-t ext3", "-t ext4 -E nodiscard,lazy_journal_init=1", "-t ext3 -E nodiscard"]
    {
        image.make(&format!("-F {options}"), "");
        image.check(options);
        let mounted = Command::new("mount").arg(&device.0).arg(dir.path()).output().unwrap();
        assert!(mounted.status.success(), "{options}: {}", text(&mounted));
        // Leaves pages of the device in the page cache, which the next round must not trip over.
        std::fs::write(dir.path().join("file"), vec![1; 3 << 20]).unwrap();
        image.refuse("-F", "", "mounted");
        umount(dir.path());
        image.check(&format!("{options} and the kernel"));
    }
}
