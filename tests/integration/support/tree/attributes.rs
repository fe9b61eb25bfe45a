//! Owners, extended attributes, ACLs, flags and times.

use std::fs::{self, File};
use std::os::unix::fs::{symlink, PermissionsExt};
use std::path::Path;

use rustix::fs::{
    ioctl_getflags, ioctl_setflags, mknodat, setxattr, utimensat, AtFlags, FileType, IFlags, Mode, Timespec,
    Timestamps, XattrFlags, CWD,
};

use super::{chown, make, make_dir, noise, note, set_attribute, Abilities, Log};

pub(super) fn owners(root: &Path) {
    let dir = root.join("owners");
    make_dir(&dir);
    for (uid, gid) in [(1, 2), (65_534, 65_535), (65_536, 70_000), (4_000_000_000, 1 << 31)] {
        let path = dir.join(format!("{uid}-{gid}"));
        make(&path, b"owned");
        chown(&path, uid, gid);
    }
    // chown by root clears set-user-ID of a file; a later chmod sets it again.
    let program = dir.join("program");
    make(&program, b"#!/bin/sh\n");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o6755)).expect("chmod");
    chown(&program, 12, 34);
    let again = dir.join("program-again");
    make(&again, b"#!/bin/sh\n");
    chown(&again, 12, 34);
    fs::set_permissions(&again, fs::Permissions::from_mode(0o6755)).expect("chmod");
    symlink("nowhere", dir.join("symlink")).expect("symlink");
    chown(&dir.join("symlink"), 77, 88);
}

pub(super) fn attributes(root: &Path, log: &mut Log) {
    let dir = root.join("attributes");
    make_dir(&dir);
    make(&dir.join("small"), b"");
    for index in 0..3 {
        set_attribute(&dir.join("small"), &format!("user.name{index}"), b"value").expect("setxattr");
    }
    make(&dir.join("block"), b"");
    for index in 0..12_u8 {
        let value = noise(u64::from(index), 20 + usize::from(index) * 5);
        note(
            log,
            "block of xattrs",
            set_attribute(&dir.join("block"), &format!("user.block{index}"), &value),
        );
    }
    make(&dir.join("big"), b"");
    for size in [0, 1, 500, 700] {
        let name = format!("user.size{size}");
        let answer = set_attribute(&dir.join("big"), &name, &noise(1, size));
        note(log, &name, answer);
    }
    // The same block of attributes on many files: shared, then changed on some.
    for index in 0..20 {
        let path = dir.join(format!("shared-{index}"));
        make(&path, b"");
        set_attribute(&path, "user.shared", &noise(99, 600)).expect("setxattr");
        if index % 5 == 0 {
            set_attribute(&path, "user.shared", &noise(98, 580)).expect("setxattr");
        }
    }
    set_attribute(&dir, "user.on-directory", b"yes").expect("setxattr");
    set_attribute(&dir.join("small"), "trusted.overlay", b"\0\x01\x02").expect("setxattr");
    set_attribute(&dir.join("small"), "security.test", b"label").expect("setxattr");
    symlink("small", dir.join("symlink")).expect("symlink");
    let on_symlink =
        rustix::fs::lsetxattr(dir.join("symlink"), "trusted.on-symlink", b"x", XattrFlags::empty());
    note(log, "xattr on symlink", on_symlink);
    let exists = setxattr(dir.join("small"), "user.name0", b"", XattrFlags::CREATE);
    note(log, "create an xattr that exists", exists);
    let missing = setxattr(dir.join("small"), "user.none", b"", XattrFlags::REPLACE);
    note(log, "replace an xattr that does not exist", missing);
    let huge = set_attribute(&dir.join("small"), "user.huge", &vec![7; 65536]);
    note(log, "64 KiB xattr", huge);
}

/// `system.posix_acl_*` as setfacl(1) would write it: version 2, then tag, permissions, id.
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&permissions.to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
    }
    bytes
}

pub(super) fn acls(root: &Path) {
    const NONE: u32 = u32::MAX;
    let dir = root.join("acls");
    make_dir(&dir);
    // user::rwx user:1000:r-x group::r-x group:2000:rwx mask::rwx other::---
    let rich = acl(&[(1, 7, NONE), (2, 5, 1000), (4, 5, NONE), (8, 7, 2000), (16, 7, NONE), (32, 0, NONE)]);
    make(&dir.join("file"), b"");
    set_attribute(&dir.join("file"), "system.posix_acl_access", &rich).expect("access ACL");
    // An ACL that says no more than a mode becomes one.
    let plain = acl(&[(1, 6, NONE), (4, 4, NONE), (32, 4, NONE)]);
    make(&dir.join("plain"), b"");
    set_attribute(&dir.join("plain"), "system.posix_acl_access", &plain).expect("access ACL");
    let heir = dir.join("default");
    make_dir(&heir);
    set_attribute(&heir, "system.posix_acl_default", &rich).expect("default ACL");
    make(&heir.join("file"), b"");
    make_dir(&heir.join("directory"));
    make(&heir.join("directory/file"), b"");
    symlink("file", heir.join("symlink")).expect("symlink");
    let mode = Mode::from_raw_mode(0o666);
    mknodat(CWD, heir.join("fifo"), FileType::Fifo, mode, 0).expect("mkfifo");
    // chmod moves the mask.
    make(&heir.join("narrowed"), b"");
    fs::set_permissions(heir.join("narrowed"), fs::Permissions::from_mode(0o604)).expect("chmod");
}

pub(super) fn flags(root: &Path) {
    let dir = root.join("flags");
    make_dir(&dir);
    for (name, flag) in [("nodump", IFlags::NODUMP), ("noatime", IFlags::NOATIME)] {
        make(&dir.join(name), b"");
        set_flag(&dir.join(name), flag);
    }
    // Inherited by what is made inside.
    make_dir(&dir.join("dirsync"));
    set_flag(&dir.join("dirsync"), IFlags::DIRSYNC | IFlags::NODUMP);
    make(&dir.join("dirsync/file"), b"");
    make_dir(&dir.join("dirsync/below"));
}

fn set_flag(path: &Path, flag: IFlags) {
    let file = File::open(path).expect("open");
    let flags = ioctl_getflags(&file).expect("GETFLAGS");
    ioctl_setflags(&file, flags | flag).expect("SETFLAGS");
}

pub(super) fn times(root: &Path, abilities: Abilities) {
    let dir = root.join("times");
    if !dir.exists() {
        make_dir(&dir);
    }
    let nanoseconds = if abilities.wide_times { 123_456_789 } else { 0 };
    let mut cases = vec![
        ("epoch", 0, 0),
        ("billennium", 1_000_000_000, nanoseconds),
        ("last-32-bit", i64::from(i32::MAX), 0),
        ("before-1970", -1, 0),
        ("first-32-bit", i64::from(i32::MIN), 0),
    ];
    if abilities.wide_times {
        cases.push(("after-2038", i64::from(i32::MAX) + 1, 999_999_999));
        cases.push(("year-2106", 1 << 32, 1));
        cases.push(("year-2400", 13_569_465_600, 5));
    }
    for (name, seconds, nanoseconds) in cases {
        let path = dir.join(name);
        make(&path, name.as_bytes());
        let time = |seconds| Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
        let times = Timestamps { last_access: time(seconds), last_modification: time(seconds / 2) };
        utimensat(CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW)
            .unwrap_or_else(|error| panic!("utimensat {name}: {error}"));
    }
}

pub(super) fn changed_attributes(root: &Path, log: &mut Log) {
    let dir = root.join("attributes");
    let remove = |path: &Path, name: &str| rustix::fs::removexattr(path, name);
    note(log, "remove", remove(&dir.join("small"), "user.name1"));
    note(log, "remove again", remove(&dir.join("small"), "user.name1"));
    note(log, "replace", set_attribute(&dir.join("small"), "user.name2", &noise(3, 300)));
    for index in [3, 4] {
        let path = dir.join(format!("shared-{index}"));
        note(log, "remove shared", remove(&path, "user.shared"));
    }
    fs::remove_file(dir.join("shared-6")).expect("unlink");
    note(log, "remove the default ACL", remove(&root.join("acls/default"), "system.posix_acl_default"));
    make(&root.join("acls/default/after"), b"");
    fs::set_permissions(root.join("acls/file"), fs::Permissions::from_mode(0o750)).expect("chmod");
}
