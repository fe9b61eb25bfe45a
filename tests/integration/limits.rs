//! The edges: full devices, wide directories, many subdirectories, the largest files.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{Error, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use crate::support::{needs_root, Image, Mounted};

const ENOSPC: Option<i32> = Some(28);
const EFBIG: Option<i32> = Some(27);

/// Writes pieces into `name` until the device is full; the error must come to us, by write or fsync.
fn fill(root: &Path, name: &str, piece: &[u8]) -> usize {
    let mut file = File::create(root.join(name)).expect("create");
    let mut written = 0;
    for count in 1.. {
        let result =
            file.write_all(piece).and_then(|()| if count % 8 == 0 { file.sync_data() } else { Ok(()) });
        match result {
            Ok(()) => written += piece.len(),
            Err(error) => {
                assert_eq!(error.raw_os_error(), ENOSPC, "{error}");
                break;
            }
        }
        assert!(written < 1 << 30, "never full");
    }
    written
}

/// ENOSPC comes to who caused it, nothing that was accepted is lost, and freed space is there at once.
fn full_device(profile: &'static str, options: &str) {
    let image = Image::formatted(48 << 20, profile, &["-b", "1024"]);
    let mounted = Mounted::new(&image, options);
    let root = mounted.root();
    fs::write(root.join("kept"), vec![7; 3 << 20]).expect("write");
    File::open(root.join("kept")).and_then(|file| file.sync_all()).expect("fsync");
    for round in 0..3 {
        let written = fill(root, "filler", &vec![round; 100_000]);
        assert!(written > 16 << 20, "round {round}: full after {written} bytes");
        // Nor is there space for more, of whatever kind: each either fails with ENOSPC or is whole.
        let mut made = 0;
        let refused = (0..3000).find_map(|index| {
            let result = fs::write(root.join(format!("small-{index}")), vec![1; 3000])
                .and_then(|()| File::open(root.join(format!("small-{index}"))))
                .and_then(|file| file.sync_all());
            made += 1;
            result.err()
        });
        let refused = refused.unwrap_or_else(|| panic!("{made} files on a full device"));
        assert_eq!(refused.raw_os_error(), ENOSPC, "{refused}");
        for index in 0..made - 1 {
            let found = fs::read(root.join(format!("small-{index}"))).expect("read");
            assert!(found == vec![1; 3000], "small-{index} of {made}: {} bytes", found.len());
        }
        for index in 0..made {
            let _ = fs::remove_file(root.join(format!("small-{index}")));
        }
        let mut first = vec![0; 100_000];
        File::open(root.join("filler")).and_then(|mut file| file.read_exact(&mut first)).expect("read");
        assert!(first == vec![round; 100_000]);
        fs::remove_file(root.join("filler")).expect("unlink on a full device");
    }
    assert!(fs::read(root.join("kept")).expect("read") == vec![7; 3 << 20]);
    mounted.unmount();
    image.assert_clean();
}

#[test]
fn full_device_journalfs() {
    needs_root!();
    full_device("journalfs", "");
}

#[test]
fn full_device_ext3_with_all_data_logged() {
    needs_root!();
    full_device("ext3", "data=journal");
}

#[test]
fn full_of_inodes() {
    needs_root!();
    let image = Image::formatted(32 << 20, "journalfs", &["-b", "1024", "-N", "1024"]);
    let mounted = Mounted::new(&image, "");
    for round in 0..2 {
        let error = (0..2000)
            .find_map(|index| File::create(mounted.join(format!("file-{index}"))).err())
            .expect("1024 inodes hold no 2000 files");
        assert_eq!(error.raw_os_error(), ENOSPC, "{error}");
        let files = fs::read_dir(mounted.root()).expect("readdir").count();
        assert!(files > 1000, "round {round}: {files} files");
        for entry in fs::read_dir(mounted.root()).expect("readdir") {
            let entry = entry.expect("readdir");
            if entry.file_name() != "lost+found" {
                fs::remove_file(entry.path()).expect("unlink");
            }
        }
    }
    mounted.unmount();
    image.assert_clean();
}

/// dir_nlink: past 65,000 a directory's link count is 1, for "unknown".
#[test]
fn more_subdirectories_than_links() {
    needs_root!();
    let image = Image::formatted(512 << 20, "journalfs", &["-b", "1024", "-N", "70000"]);
    let mounted = Mounted::new(&image, "");
    let parent = mounted.join("parent");
    fs::create_dir(&parent).expect("mkdir");
    let links = || fs::metadata(&parent).expect("stat").nlink();
    for index in 0..65_100 {
        fs::create_dir(parent.join(format!("{index}")))
            .unwrap_or_else(|error| panic!("mkdir {index}: {error}"));
        if index == 999 {
            assert_eq!(links(), 1002);
        }
    }
    assert_eq!(links(), 1);
    assert_eq!(fs::read_dir(&parent).expect("readdir").count(), 65_100);
    for index in 0..200 {
        fs::remove_dir(parent.join(format!("{index}"))).expect("rmdir");
    }
    assert_eq!(links(), 1, "it stays unknown");
    mounted.unmount();
    image.assert_clean();
    let mounted = Mounted::kernel(&image, "ro");
    assert_eq!(fs::read_dir(mounted.join("parent")).expect("readdir").count(), 64_900);
    assert_eq!(fs::metadata(mounted.join("parent")).expect("stat").nlink(), 1);
    mounted.unmount();
}

/// On ext3, without dir_nlink, there is an end: EMLINK, for files too.
#[test]
fn as_many_links_as_the_format_has() {
    needs_root!();
    let image = Image::formatted(128 << 20, "ext3", &["-b", "4096"]);
    let mounted = Mounted::new(&image, "");
    fs::write(mounted.join("file"), b"x").expect("write");
    fs::create_dir(mounted.join("links")).expect("mkdir");
    let error = (1..70_000)
        .find_map(|index| fs::hard_link(mounted.join("file"), mounted.join(format!("links/{index}"))).err())
        .expect("no end of links");
    assert_eq!(error.raw_os_error(), Some(31), "EMLINK: {error}");
    assert_eq!(fs::metadata(mounted.join("file")).expect("stat").nlink(), 65_000);
    mounted.unmount();
    image.assert_clean();
}

/// Near what two levels of index blocks hold with blocks of 1 KiB.
const COUNT: u32 = 80_000;

/// A directory with two levels of index blocks: every name is found, listed once, and can go.
#[test]
fn a_very_wide_directory() {
    needs_root!();
    let name = |index: u32| format!("a-name-of-some-length-so-that-blocks-fill-up-{index:08}");
    let image = Image::formatted(512 << 20, "journalfs", &["-b", "1024", "-N", "90000"]);
    let mounted = Mounted::new(&image, "");
    let wide = mounted.join("wide");
    fs::create_dir(&wide).expect("mkdir");
    for index in 0..COUNT {
        File::create(wide.join(name(index))).unwrap_or_else(|error| panic!("create {index}: {error}"));
    }
    mounted.unmount();
    image.assert_clean();
    let mounted = Mounted::new(&image, "");
    let wide = mounted.join("wide");
    let list = || -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for entry in fs::read_dir(&wide).expect("readdir") {
            let name = entry.expect("readdir").file_name().into_string().expect("UTF-8");
            assert!(names.insert(name.clone()), "{name} is listed twice");
        }
        names
    };
    assert_eq!(list(), (0..COUNT).map(name).collect());
    for index in (0..COUNT).step_by(97) {
        assert!(wide.join(name(index)).exists(), "lookup {index}");
        assert!(!wide.join(format!("{}x", name(index))).exists());
    }
    for index in (0..COUNT).filter(|index| index % 10 != 3) {
        fs::remove_file(wide.join(name(index))).unwrap_or_else(|error| panic!("unlink {index}: {error}"));
    }
    assert_eq!(list(), (0..COUNT).filter(|index| index % 10 == 3).map(name).collect());
    mounted.unmount();
    image.assert_clean();
}

/// The last byte a file may have, by each way of mapping; one more is EFBIG.
#[test]
fn largest_files() {
    needs_root!();
    for (profile, block, limit) in [
        ("journalfs", 4096, (1_u64 << 44) - 4096),
        ("journalfs", 1024, (1_u64 << 42) - 1024),
        ("ext3", 1024, 17_247_252_480),
        ("ext3", 2048, 275_415_851_008),
        // i_blocks has 32 bits, without huge_file.
        ("ext3", 4096, 2_196_873_666_560),
    ] {
        let image = Image::formatted(64 << 20, profile, &["-b", &block.to_string()]);
        let mounted = Mounted::new(&image, "");
        let file = OpenOptions::new().write(true).read(true).create_new(true).open(mounted.join("file"));
        let file = file.expect("create");
        let what = format!("{profile} -b {block}");
        let write = |offset: u64, bytes: &[u8]| file.write_all_at(bytes, offset);
        write(limit - 5, b"final").unwrap_or_else(|error| panic!("{what}: {error}"));
        let past = write(limit, b"x").map_err(|error: Error| error.raw_os_error());
        assert_eq!(past, Err(EFBIG), "{what}");
        let longer = file.set_len(limit + 1).map_err(|error| error.raw_os_error());
        assert_eq!(longer, Err(EFBIG), "{what}: truncate");
        file.sync_all().expect("fsync");
        let mut end = [0; 5];
        file.read_exact_at(&mut end, limit - 5).expect("read");
        assert_eq!(&end, b"final");
        assert_eq!(file.metadata().expect("stat").len(), limit, "{what}");
        drop(file);
        mounted.unmount();
        image.assert_clean();
    }
}
