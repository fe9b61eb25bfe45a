//! Names, links, nodes and directories.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{symlink, FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{mknodat, renameat_with, FileType, Mode, RenameFlags, CWD};

use super::{chown, edit, make, make_dir, note, Abilities, Log};

pub(super) fn names(root: &Path) {
    let dir = root.join("names");
    make_dir(&dir);
    let mut all: Vec<Vec<u8>> = [".hidden", "with space", "new\nline", "\u{e4}\u{4e2d}\u{1f980}"]
        .iter()
        .map(|name| name.as_bytes().to_vec())
        .collect();
    all.push(vec![0xff, 0xfe, 0x80, b'x']);
    all.push(b"-rf".to_vec());
    for length in [1, 2, 3, 4, 5, 254, 255] {
        all.push(vec![b'n'; length]);
    }
    for name in all {
        make(&dir.join(OsString::from_vec(name.clone())), &name);
    }
}

pub(super) fn links(root: &Path) {
    let dir = root.join("links");
    make_dir(&dir);
    make(&dir.join("file"), b"linked");
    for index in 0..100 {
        fs::hard_link(dir.join("file"), dir.join(format!("hard-{index}"))).expect("link");
    }
    make_dir(&dir.join("elsewhere"));
    fs::hard_link(dir.join("file"), dir.join("elsewhere/file")).expect("link");
    for length in [1, 2, 58, 59, 60, 61, 255, 900, 1000] {
        let target = "t".repeat(length);
        symlink(&target, dir.join(format!("symlink-{length}"))).expect("symlink");
    }
    symlink("../contents/size-1", dir.join("relative")).expect("symlink");
    fs::hard_link(dir.join("symlink-60"), dir.join("hard-to-symlink")).expect("link");
}

pub(super) fn nodes(root: &Path) {
    let dir = root.join("nodes");
    make_dir(&dir);
    let mode = Mode::from_raw_mode(0o640);
    for (name, kind, device) in [
        ("fifo", FileType::Fifo, (0, 0)),
        ("socket", FileType::Socket, (0, 0)),
        ("null", FileType::CharacterDevice, (1, 3)),
        ("char-wide", FileType::CharacterDevice, (4095, 0xf_ffff)),
        ("block", FileType::BlockDevice, (8, 1)),
        ("block-wide", FileType::BlockDevice, (259, 70_000)),
        ("regular", FileType::RegularFile, (0, 0)),
    ] {
        let device = rustix::fs::makedev(device.0, device.1);
        mknodat(CWD, dir.join(name), kind, mode, device)
            .unwrap_or_else(|error| panic!("mknod {name}: {error}"));
    }
}

pub(super) fn directories(root: &Path, abilities: Abilities) {
    let dir = root.join("directories");
    make_dir(&dir);
    let mut deep = dir.join("deep");
    for level in 0..30 {
        make_dir(&deep);
        make(&deep.join("file"), format!("level {level}").as_bytes());
        deep.push("d");
    }
    let wide = dir.join("wide");
    make_dir(&wide);
    for index in 0..abilities.wide_directory {
        let file = File::create(wide.join(wide_name(index)));
        file.unwrap_or_else(|error| panic!("create {}: {error}", wide_name(index)));
    }
    // Every other one goes, and half of the gaps fill again with names of another length.
    for index in (0..abilities.wide_directory).step_by(2) {
        fs::remove_file(wide.join(wide_name(index))).expect("unlink");
    }
    for index in (0..abilities.wide_directory).step_by(4) {
        make(&wide.join(format!("again-{index}")), b"");
    }
    let many = dir.join("many-subdirectories");
    make_dir(&many);
    for index in 0..150 {
        make_dir(&many.join(format!("sub-{index}")));
    }
    for mode in [0o000, 0o111, 0o700, 0o1777, 0o2755, 0o4711, 0o7777] {
        let path = dir.join(format!("mode-{mode:o}"));
        make_dir(&path);
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("chmod");
    }
    // Directories and files made in a set-group-ID directory take its group.
    let group = dir.join("group");
    make_dir(&group);
    chown(&group, 0, 4321);
    fs::set_permissions(&group, fs::Permissions::from_mode(0o2775)).expect("chmod");
    make_dir(&group.join("inherits"));
    make(&group.join("inherits/file"), b"");
}

fn wide_name(index: u32) -> String {
    let length = (index * 7) as usize % 60;
    format!("entry-{index:06}-{}", "x".repeat(length))
}

pub(super) fn renames(root: &Path, log: &mut Log) {
    let dir = root.join("renamed");
    make_dir(&dir);
    let from = root.join("names");
    fs::rename(from.join(".hidden"), dir.join("no longer hidden")).expect("rename");
    fs::rename(from.join("-rf"), from.join("with space")).expect("rename over a file");
    make_dir(&dir.join("empty"));
    make_dir(&dir.join("full"));
    make(&dir.join("full/file"), b"1");
    fs::rename(dir.join("full"), dir.join("empty")).expect("rename over an empty directory");
    fs::rename(dir.join("empty"), root.join("links/moved-directory")).expect("move a directory");
    // A wide directory keeps its entries and gets a new "..".
    fs::rename(root.join("directories/wide"), dir.join("wide")).expect("move the wide directory");
    // A hard link over itself changes nothing.
    fs::rename(root.join("links/hard-1"), root.join("links/hard-2")).expect("rename over itself");
    make(&dir.join("a"), b"a");
    make_dir(&dir.join("b"));
    let flagged = |log: &mut Log, what: &str, from: &str, to: &str, flags| {
        let (from, to): (PathBuf, PathBuf) = (dir.join(from), dir.join(to));
        note(log, what, renameat_with(CWD, from, CWD, to, flags));
    };
    flagged(log, "exchange", "a", "b", RenameFlags::EXCHANGE);
    flagged(log, "exchange with nothing", "a", "c", RenameFlags::EXCHANGE);
    flagged(log, "no replace", "a", "b", RenameFlags::NOREPLACE);
    flagged(log, "no replace, free", "a", "d", RenameFlags::NOREPLACE);
    flagged(log, "whiteout", "b", "e", RenameFlags::WHITEOUT);
    flagged(log, "into itself", "wide", "wide/below", RenameFlags::empty());
    flagged(log, "file over directory", "e", "d", RenameFlags::empty());
}

pub(super) fn removals(root: &Path, abilities: Abilities) {
    let open = edit(&root.join("contents/size-1024"));
    fs::remove_file(root.join("contents/size-1024")).expect("unlink an open file");
    open.write_all_at(b"still here", 5000).expect("write");
    let mut back = [0; 10];
    open.read_exact_at(&mut back, 5000).expect("read");
    assert_eq!(&back, b"still here");
    drop(open);
    fs::remove_file(root.join("links/file")).expect("unlink");
    fs::remove_dir_all(root.join("directories/deep")).expect("rm -r");
    fs::remove_dir(root.join("directories/many-subdirectories/sub-7")).expect("rmdir");
    fs::remove_file(root.join("nodes/fifo")).expect("unlink");
    let wide = root.join("renamed/wide");
    for index in (1..abilities.wide_directory).step_by(2) {
        if index % 3 != 0 {
            fs::remove_file(wide.join(wide_name(index))).expect("unlink");
        }
    }
    let full = fs::remove_dir(root.join("renamed/wide")).expect_err("rmdir of a full directory");
    assert_eq!(full.raw_os_error(), Some(39), "ENOTEMPTY");
}
