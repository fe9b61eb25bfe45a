//! Attributes, flags, labels and space of whole mounted file systems in images that mke2fs made (nothing here without it).

use super::attr::{Caller, SetAttr, TimeOrNow};
use super::options::MountOptions;
use super::Fs;
use crate::device::file::FileDevice;
use crate::error::{Error, Result};
use crate::format::acl::{Acl, Entry, Tag};
use crate::format::inode::InodeFlags;
use crate::format::time::Timestamp;
use crate::units::InodeNr;
use std::process::Command;
use std::sync::Arc;

const FILE: InodeNr = InodeNr(12);
const ROOT: Caller = Caller::ROOT;
const USER: Caller = Caller { uid: 1000, gid: 1000, pid: 0 };

struct Mount {
    fs: Arc<Fs>,
    path: std::path::PathBuf,
    _dir: tempfile::TempDir,
}

impl Mount {
    fn new(options: &[&str]) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let made = Command::new("mke2fs").arg("-qF").args(options).arg(&path).arg("16M").output();
        if !made.is_ok_and(|output| output.status.success()) {
            println!("skipped: no usable mke2fs");
            return None;
        }
        Command::new("debugfs").args(["-w", "-R", "write /dev/null f"]).arg(&path).output().unwrap();
        let device = Arc::new(FileDevice::open(&path, false, false).unwrap());
        Some(Self { fs: Fs::mount(device, &MountOptions::default()).unwrap(), path, _dir: dir })
    }

    fn end(self) {
        self.fs.unmount().unwrap();
        let output = Command::new("e2fsck").arg("-fn").arg(&self.path).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }

    fn set(&self, set: &SetAttr) -> Result<u16> {
        self.fs.setattr(FILE, set, &ROOT).map(|attr| attr.mode & 0o7777)
    }

    fn chmod(&self, mode: u32) -> u16 {
        self.set(&SetAttr { mode: Some(mode), ..SetAttr::default() }).unwrap()
    }
}

fn named_user() -> Vec<u8> {
    let tags = [(Tag::UserObj, 6), (Tag::User(7), 6), (Tag::GroupObj, 4), (Tag::Mask, 6), (Tag::Other, 0)];
    Acl::new(tags.iter().map(|&(tag, perm)| Entry { tag, perm }).collect()).unwrap().to_xattr()
}

#[test]
fn mode_and_access_acl_follow_each_other() {
    let Some(mount) = Mount::new(&["-t", "ext4"]) else { return };
    let (fs, name) = (&mount.fs, b"system.posix_acl_access");
    assert!(fs.getxattr(FILE, name).unwrap_err().is(libc::ENODATA));
    fs.setxattr(FILE, name, &named_user(), 0, &ROOT).unwrap();
    assert_eq!(fs.getattr(FILE).unwrap().mode & 0o777, 0o660);
    assert_eq!(fs.listxattr(FILE).unwrap(), b"system.posix_acl_access\0");
    assert_eq!(mount.chmod(0o640), 0o640);
    let acl = Acl::from_xattr(&fs.getxattr(FILE, name).unwrap()).unwrap().unwrap();
    assert_eq!(acl.entries()[3], Entry { tag: Tag::Mask, perm: 4 });
    fs.setxattr(FILE, name, &Acl::from_mode(0o604).to_xattr(), 0, &ROOT).unwrap();
    assert_eq!(fs.getattr(FILE).unwrap().mode & 0o777, 0o604);
    assert!(fs.listxattr(FILE).unwrap().is_empty());
    fs.removexattr(FILE, name, &ROOT).unwrap();
    let default = b"system.posix_acl_default";
    assert!(fs.setxattr(FILE, default, &named_user(), 0, &ROOT).unwrap_err().is(libc::EACCES));
    fs.setxattr(InodeNr::ROOT, default, &named_user(), 0, &ROOT).unwrap();
    mount.end();
}

#[test]
fn names_and_callers_are_checked() {
    let Some(mount) = Mount::new(&["-t", "ext3", "-I", "128"]) else { return };
    let fs = &mount.fs;
    let set = |name: &str, caller| fs.setxattr(FILE, name.as_bytes(), b"v", 0, caller);
    set("user.a", &USER).unwrap();
    assert!(set("trusted.a", &USER).unwrap_err().is(libc::EPERM));
    set("trusted.a", &ROOT).unwrap();
    for name in ["system.data", "nothing.a", "user.", "a"] {
        assert!(set(name, &ROOT).unwrap_err().is(libc::EOPNOTSUPP), "{name}");
    }
    assert!(fs.removexattr(FILE, b"user.b", &ROOT).unwrap_err().is(libc::ENODATA));
    assert!(fs.setxattr(FILE, b"user.b", &vec![0; 65537], 0, &ROOT).unwrap_err().is(libc::E2BIG));
    assert!(fs.setxattr(FILE, b"user.b", &vec![0; 65536], 0, &ROOT).unwrap_err().is(libc::ENOSPC));
    fs.removexattr(FILE, b"user.a", &ROOT).unwrap();
    assert_eq!(fs.listxattr(FILE).unwrap(), b"trusted.a\0");
    mount.end();
}

#[test]
fn chown_takes_privileges_and_capabilities() {
    let Some(mount) = Mount::new(&["-t", "ext4"]) else { return };
    let fs = &mount.fs;
    mount.chmod(0o6755);
    fs.setxattr(FILE, b"security.capability", &[1; 20], 0, &ROOT).unwrap();
    fs.setxattr(FILE, b"user.kept", b"1", 0, &ROOT).unwrap();
    assert_eq!(mount.set(&SetAttr { gid: Some(5), ..SetAttr::default() }).unwrap(), 0o755);
    assert_eq!(fs.listxattr(FILE).unwrap(), b"user.kept\0");
    fs.setxattr(FILE, b"security.capability", &[1; 20], 0, &ROOT).unwrap();
    mount.chmod(0o4755);
    let truncate = SetAttr { size: Some(0), kill_suid_sgid: true, ..SetAttr::default() };
    assert_eq!(mount.set(&truncate).unwrap(), 0o755);
    let capability = || fs.getxattr(FILE, b"security.capability");
    assert!(capability().unwrap_err().is(libc::ENODATA));
    fs.setxattr(FILE, b"security.capability", &[1; 20], 0, &ROOT).unwrap();
    assert_eq!(capability().unwrap(), [1; 20]);
    fs.write(FILE, 0, b"x", &ROOT, false).unwrap();
    assert!(capability().unwrap_err().is(libc::ENODATA));
    assert_eq!(fs.getxattr(FILE, b"user.kept").unwrap(), b"1");
    mount.end();
}

#[test]
fn flags_forbid_what_they_say() {
    let Some(mount) = Mount::new(&["-t", "ext4"]) else { return };
    let fs = &mount.fs;
    let flags = fs.get_flags(FILE).unwrap();
    assert_eq!(flags & InodeFlags::EXTENTS.bits(), InodeFlags::EXTENTS.bits());
    let touch = SetAttr { mtime: Some(TimeOrNow::Now), ..SetAttr::default() };
    let chmod = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    let refused = |result: Result<u16>| matches!(result, Err(Error::Posix(libc::EPERM)));
    fs.set_flags(FILE, flags | InodeFlags::APPEND.bits(), &ROOT).unwrap();
    mount.set(&touch).unwrap();
    assert!(refused(mount.set(&chmod)));
    assert!(fs.setxattr(FILE, b"user.a", b"", 0, &ROOT).unwrap_err().is(libc::EPERM));
    fs.set_flags(FILE, flags | InodeFlags::IMMUTABLE.bits(), &ROOT).unwrap();
    assert!(refused(mount.set(&touch)));
    assert!(refused(mount.set(&SetAttr { size: Some(0), ..SetAttr::default() })));
    let mut fsx = fs.get_fsxattr(FILE).unwrap();
    assert_eq!(fsx.xflags, 0x8);
    fsx.xflags = 0x80;
    fs.set_fsxattr(FILE, fsx, &ROOT).unwrap();
    assert_eq!(fs.get_flags(FILE).unwrap(), flags | InodeFlags::NODUMP.bits());
    mount.set(&chmod).unwrap();
    mount.end();
}

#[test]
fn times_are_kept_as_far_as_the_inode_can() {
    for (bytes, seconds, nanoseconds) in [("128", i64::from(i32::MAX), 0), ("256", 1 << 33, 7)] {
        let Some(mount) = Mount::new(&["-t", "ext4", "-I", bytes]) else { return };
        let time = TimeOrNow::Time(Timestamp { seconds: 1 << 33, nanoseconds: 7 });
        let set = SetAttr { atime: Some(time), ..SetAttr::default() };
        let attr = mount.fs.setattr(FILE, &set, &ROOT).unwrap();
        assert_eq!(attr.atime, Timestamp { seconds, nanoseconds });
        assert_eq!(mount.fs.getattr(FILE).unwrap(), attr);
        mount.end();
    }
}

#[test]
fn space_labels_and_trim_of_the_whole() {
    let Some(mount) = Mount::new(&["-t", "ext4", "-b", "1024", "-L", "before", "-m", "10"]) else { return };
    let fs = &mount.fs;
    let stat = fs.statfs().unwrap();
    assert_eq!((stat.block_bytes, stat.name_max), (1024, 255));
    assert!(stat.blocks < 16384 && stat.free < stat.blocks && stat.available + 1638 <= stat.free, "{stat:?}");
    assert_eq!(fs.label().unwrap(), b"before");
    assert!(fs.set_label(b"new", &USER).unwrap_err().is(libc::EPERM));
    assert!(fs.set_label(b"seventeen letters", &ROOT).unwrap_err().is(libc::EINVAL));
    fs.set_label(b"new", &ROOT).unwrap();
    assert_eq!(fs.label().unwrap(), b"new");
    let trimmed = fs.trim(0, u64::MAX, 0).unwrap();
    assert!(trimmed <= stat.free * 1024 && trimmed > stat.free * 512, "{trimmed} of {stat:?}");
    assert_eq!(fs.statfs().unwrap().free, stat.free);
    assert!(fs.trim(0, 10, 0).unwrap_err().is(libc::EINVAL));
    assert!(fs.trim(1 << 40, 4096, 0).unwrap_err().is(libc::EINVAL));
    mount.end();
}
