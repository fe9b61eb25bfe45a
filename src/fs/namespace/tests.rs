//! Names on whole mounted file systems, in images that mke2fs made; e2fsck finds nothing afterwards.

use super::RenameFlags;
use crate::device::file::FileDevice;
use crate::error::{Error, Result};
use crate::format::inode::{FileKind, InodeFlags};
use crate::fs::attr::{Attr, Caller};
use crate::fs::options::MountOptions;
use crate::fs::Fs;
use crate::units::InodeNr;
use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;

const ROOT: InodeNr = InodeNr::ROOT;
const USER: Caller = Caller { uid: 1000, gid: 1000, pid: 0 };
const NONE: RenameFlags = RenameFlags::empty();

struct Mount {
    fs: Arc<Fs>,
    path: std::path::PathBuf,
    _dir: tempfile::TempDir,
}

impl Mount {
    fn new(options: &str) -> Self {
        Self::sized(options, "32M")
    }

    fn sized(options: &str, size: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let mut make = Command::new("mke2fs");
        let made = make.arg("-qF").args(options.split_whitespace()).arg(&path).arg(size).output();
        assert!(made.unwrap().status.success(), "mke2fs {options}");
        let device = Arc::new(FileDevice::open(&path, false, false).unwrap());
        Self { fs: Fs::mount(device, &MountOptions::default()).unwrap(), path, _dir: dir }
    }

    fn end(self) {
        self.fs.unmount().unwrap();
        let output = Command::new("e2fsck").arg("-fn").arg(&self.path).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }

    fn file(&self, parent: InodeNr, name: &str) -> Result<Attr> {
        self.fs.mknod(parent, name.as_bytes(), libc::S_IFREG | 0o644, 0, 0, &USER)
    }

    fn dir(&self, parent: InodeNr, name: &str) -> Result<Attr> {
        self.fs.mkdir(parent, name.as_bytes(), 0o755, 0, &USER)
    }

    fn mv(&self, from: (InodeNr, &str), to: (InodeNr, &str), flags: RenameFlags) -> Result<()> {
        self.fs.rename(from.0, from.1.as_bytes(), to.0, to.1.as_bytes(), flags, &USER)
    }

    fn find(&self, parent: InodeNr, name: &str) -> Result<InodeNr> {
        self.fs.lookup(parent, name.as_bytes()).map(|attr| attr.nr)
    }

    fn links(&self, nr: InodeNr) -> u32 {
        self.fs.getattr(nr).unwrap().links
    }

    fn list(&self, nr: InodeNr) -> Vec<String> {
        let mut names = Vec::new();
        self.fs
            .readdir(nr, 0, &mut |entry| {
                names.push(String::from_utf8_lossy(entry.name).into_owned());
                true
            })
            .unwrap();
        names.retain(|name| name != "." && name != ".." && name != "lost+found");
        names.sort();
        names
    }
}

#[track_caller]
fn fails<T: std::fmt::Debug>(result: Result<T>, errno: i32) {
    match result {
        Err(error) => assert_eq!(error.errno(), errno, "{error}"),
        Ok(value) => panic!("succeeded with {value:?}"),
    }
}

#[test]
fn errors_are_those_of_linux() {
    let m = Mount::new("-t ext4");
    let (fs, f, d) = (&m.fs, m.file(ROOT, "f").unwrap().nr, m.dir(ROOT, "d").unwrap().nr);
    m.file(d, "in").unwrap();
    fails(m.file(ROOT, "f"), libc::EEXIST);
    fails(m.dir(ROOT, "f"), libc::EEXIST);
    fails(m.file(f, "x"), libc::ENOTDIR);
    fails(m.find(f, "x"), libc::ENOTDIR);
    fails(m.find(ROOT, "absent"), libc::ENOENT);
    for (name, errno) in
        [(".", libc::EEXIST), ("", libc::ENOENT), ("a/b", libc::EINVAL), ("a\0b", libc::EINVAL)]
    {
        fails(m.file(ROOT, name), errno);
    }
    let longest = "n".repeat(255);
    fails(m.file(ROOT, &format!("{longest}n")), libc::ENAMETOOLONG);
    fails(m.find(ROOT, &format!("{longest}n")), libc::ENAMETOOLONG);
    m.file(ROOT, &longest).unwrap();
    fails(fs.unlink(ROOT, b"d"), libc::EISDIR);
    fails(fs.unlink(ROOT, b"absent"), libc::ENOENT);
    fails(fs.rmdir(ROOT, b"f"), libc::ENOTDIR);
    fails(fs.rmdir(ROOT, b"d"), libc::ENOTEMPTY);
    fails(fs.rmdir(ROOT, b"."), libc::EINVAL);
    fails(fs.rmdir(d, b".."), libc::ENOTEMPTY);
    fails(fs.link(d, ROOT, b"hard", &Caller::ROOT), libc::EPERM);
    fails(fs.link(f, ROOT, b"d", &Caller::ROOT), libc::EEXIST);
    fails(fs.mknod(ROOT, b"x", libc::S_IFDIR, 0, 0, &USER), libc::EPERM);
    fails(fs.symlink(ROOT, b"x", b"", &USER), libc::ENOENT);
    fails(fs.symlink(ROOT, b"x", &[b'x'; 4096], &USER), libc::ENAMETOOLONG);
    fails(fs.readlink(f), libc::EINVAL);
    fails(m.mv((ROOT, "absent"), (ROOT, "x"), NONE), libc::ENOENT);
    fails(m.mv((ROOT, "f"), (ROOT, "d"), NONE), libc::EISDIR);
    fails(m.mv((ROOT, "d"), (ROOT, "f"), NONE), libc::ENOTDIR);
    fails(m.mv((ROOT, "d"), (d, "x"), NONE), libc::EINVAL);
    fails(m.mv((d, "in"), (ROOT, "d"), NONE), libc::ENOTEMPTY);
    fails(m.mv((ROOT, "f"), (d, "in"), RenameFlags::NOREPLACE), libc::EEXIST);
    fails(m.mv((ROOT, "f"), (d, "x"), RenameFlags::EXCHANGE), libc::ENOENT);
    fails(m.mv((ROOT, "d"), (d, "in"), RenameFlags::EXCHANGE), libc::EINVAL);
    fails(m.mv((ROOT, "f"), (d, "x"), RenameFlags::EXCHANGE | RenameFlags::NOREPLACE), libc::EINVAL);
    fails(m.mv((ROOT, "f"), (d, "x"), RenameFlags::from_bits_retain(8)), libc::EINVAL);
    fails(m.mv((ROOT, "."), (d, "x"), NONE), libc::EBUSY);
    let full = m.dir(ROOT, "full").unwrap().nr;
    m.file(full, "x").unwrap();
    fails(m.mv((ROOT, "d"), (ROOT, "full"), NONE), libc::ENOTEMPTY);
    m.end();
}

#[test]
fn new_inodes_are_as_asked_for() {
    let m = Mount::new("-t ext4");
    let fs = &m.fs;
    let file = fs.mknod(ROOT, b"file", 0o666, 0, 0o027, &USER).unwrap();
    assert_eq!((file.mode as u32, file.links, file.size), (libc::S_IFREG | 0o640, 1, 0));
    assert_eq!((file.uid, file.gid), (1000, 1000));
    assert!(file.crtime == file.mtime && file.crtime.seconds > 1_700_000_000);
    let device = fs.mknod(ROOT, b"dev", libc::S_IFBLK | 0o600, 0x0010_0803, 0, &USER).unwrap();
    assert_eq!(device.rdev, 0x0010_0803);
    for kind in [libc::S_IFIFO, libc::S_IFSOCK, libc::S_IFCHR] {
        let name = format!("kind{kind}");
        let made = fs.mknod(ROOT, name.as_bytes(), kind | 0o600, 0, 0, &USER).unwrap();
        assert_eq!(made.mode as u32 & libc::S_IFMT, kind);
    }
    // A directory with set-group-ID hands down its group, and the bit to directories.
    let shared = m.dir(ROOT, "shared").unwrap().nr;
    {
        let inode = fs.inode(shared).unwrap();
        let mut state = inode.write();
        state.raw.mode |= 0o2000;
        state.raw.gid = 7;
        state.raw.flags |=
            InodeFlags::NODUMP | InodeFlags::NOATIME | InodeFlags::DIRSYNC | InodeFlags::TOPDIR;
    }
    let below = m.dir(shared, "dir").unwrap();
    assert_eq!((below.gid, below.mode & 0o7777), (7, 0o2755));
    let flags = |nr| fs.read_record(nr).unwrap().flags;
    assert!(flags(below.nr).contains(InodeFlags::NODUMP | InodeFlags::NOATIME | InodeFlags::DIRSYNC));
    let inside = fs.mknod(shared, b"f", libc::S_IFREG | 0o2775, 0, 0, &USER).unwrap();
    assert_eq!((inside.gid, inside.mode & 0o7777), (7, 0o775), "not a member of the group");
    let wanted = InodeFlags::NODUMP | InodeFlags::NOATIME | InodeFlags::EXTENTS;
    assert_eq!(flags(inside.nr), wanted);
    let link = fs.symlink(shared, b"l", b"t", &USER).unwrap();
    assert_eq!(flags(link.nr), InodeFlags::NODUMP | InodeFlags::NOATIME);
    m.end();
}

#[test]
fn symbolic_links_of_every_length() {
    for (options, longest) in
        [("-t ext4 -b 4096", 4095), ("-t ext4 -b 1024", 1023), ("-t ext3 -b 1024 -I 128", 1023)]
    {
        let m = Mount::new(options);
        let mut made = Vec::new();
        for len in [1, 58, 59, 60, 61, 255, 1000, longest] {
            let target: Vec<u8> = (0..len).map(|i| b'a' + (i % 26) as u8).collect();
            let name = format!("link{len}");
            let attr = m.fs.symlink(ROOT, name.as_bytes(), &target, &USER).unwrap();
            assert_eq!((attr.size, attr.mode as u32), (len, libc::S_IFLNK | 0o777));
            assert_eq!(attr.blocks > 0, len >= 60);
            made.push((name, attr.nr, target));
        }
        for (name, nr, target) in &made {
            assert_eq!(m.fs.readlink(*nr).unwrap(), *target, "{name}");
        }
        fails(m.fs.symlink(ROOT, b"x", &vec![b'x'; longest as usize + 1], &USER), libc::ENAMETOOLONG);
        for (name, ..) in made.iter().step_by(2) {
            m.fs.unlink(ROOT, name.as_bytes()).unwrap();
        }
        m.end();
    }
}

#[test]
fn names_and_link_counts() {
    let m = Mount::new("-t ext4");
    m.fs.expect_forgets();
    let (a, b) = (m.dir(ROOT, "a").unwrap().nr, m.dir(ROOT, "b").unwrap().nr);
    let f = m.file(a, "f").unwrap().nr;
    assert_eq!(m.fs.link(f, b, b"g", &Caller::ROOT).unwrap().links, 2);
    let sub = m.dir(a, "sub").unwrap().nr;
    assert_eq!((m.links(a), m.links(b), m.links(ROOT)), (3, 2, 5));
    m.mv((a, "sub"), (b, "sub"), NONE).unwrap();
    assert_eq!((m.links(a), m.links(b)), (2, 3));
    assert_eq!(m.find(sub, "..").unwrap(), b);
    // Two names of one file: rename does nothing.
    m.mv((a, "f"), (b, "g"), NONE).unwrap();
    assert_eq!((m.list(a), m.list(b)), (vec!["f".into()], vec!["g".into(), "sub".into()]));
    // A directory and a file change places.
    m.mv((a, "f"), (b, "sub"), RenameFlags::EXCHANGE).unwrap();
    assert_eq!((m.find(a, "f").unwrap(), m.find(b, "sub").unwrap()), (sub, f));
    assert_eq!((m.links(a), m.links(b), m.find(sub, "..").unwrap()), (3, 2, a));
    // A whiteout stays behind.
    m.mv((b, "g"), (b, "h"), RenameFlags::WHITEOUT).unwrap();
    let whiteout = m.fs.lookup(b, b"g").unwrap();
    assert_eq!((whiteout.mode as u32, whiteout.rdev), (libc::S_IFCHR, 0));
    // An empty directory is replaced by another, and ends.
    let other = m.dir(b, "other").unwrap().nr;
    m.mv((a, "f"), (b, "other"), NONE).unwrap();
    assert_eq!(m.find(b, "other").unwrap(), sub);
    assert_eq!((m.links(a), m.links(b)), (2, 3));
    fails(m.file(other, "x"), libc::ENOENT);
    // A file is replaced: one of its names goes.
    m.file(ROOT, "new").unwrap();
    m.mv((ROOT, "new"), (b, "h"), NONE).unwrap();
    assert_eq!(m.links(f), 1);
    m.fs.rmdir(b, b"other").unwrap();
    m.fs.rmdir(ROOT, b"a").unwrap();
    assert_eq!(m.links(b), 2);
    m.end();
}

#[test]
fn a_rename_makes_no_loops_however_deep() {
    let m = Mount::new("-t ext4 -b 1024");
    let mut dirs = vec![m.dir(ROOT, "top").unwrap().nr];
    for _ in 0..30 {
        let above = *dirs.last().unwrap();
        dirs.push(m.dir(above, "d").unwrap().nr);
    }
    let (bottom, middle) = (dirs[30], dirs[15]);
    fails(m.mv((ROOT, "top"), (bottom, "x"), NONE), libc::EINVAL);
    fails(m.mv((middle, "d"), (bottom, "x"), NONE), libc::EINVAL);
    m.file(ROOT, "file").unwrap();
    fails(m.mv((bottom, "absent"), (ROOT, "top"), NONE), libc::ENOENT);
    m.file(bottom, "file").unwrap();
    fails(m.mv((bottom, "file"), (ROOT, "top"), RenameFlags::EXCHANGE), libc::EINVAL);
    fails(m.mv((bottom, "file"), (ROOT, "top"), NONE), libc::ENOTEMPTY);
    m.mv((middle, "d"), (ROOT, "half"), NONE).unwrap();
    assert_eq!(m.find(dirs[16], "..").unwrap(), ROOT);
    m.mv((ROOT, "top"), (bottom, "x"), NONE).unwrap();
    m.end();
}

#[test]
fn a_file_without_a_name_may_get_its_first_one() {
    let m = Mount::new("-t ext4");
    let free = m.fs.allocator.free_inodes();
    let dropped = m.fs.tmpfile(ROOT, 0o100_640, 0o022, &USER).unwrap();
    assert_eq!((dropped.links, dropped.mode, dropped.uid), (0, 0o100_640, USER.uid));
    m.fs.write(dropped.nr, 0, &[1; 9000], &USER, false).unwrap();
    m.fs.fsync(dropped.nr, false, 0).unwrap();
    m.fs.release(dropped.nr).unwrap();
    m.fs.drain_inactivation();
    fails(m.fs.getattr(dropped.nr), libc::ESTALE);
    assert_eq!(m.fs.allocator.free_inodes(), free);

    let kept = m.fs.tmpfile(ROOT, 0o600, 0, &USER).unwrap().nr;
    m.fs.write(kept, 0, b"kept", &USER, false).unwrap();
    assert_eq!(m.fs.link(kept, ROOT, b"name", &USER).unwrap().links, 1);
    assert_eq!(m.fs.orphans.len(), 0);
    m.fs.release(kept).unwrap();
    m.fs.unlink(ROOT, b"name").unwrap();
    m.fs.drain_inactivation();
    assert_eq!(m.fs.allocator.free_inodes(), free);

    // One that is open when everything ends is an orphan, which the next mount frees.
    m.fs.tmpfile(ROOT, 0o600, 0, &USER).unwrap();
    assert_eq!(m.fs.orphans.len(), 1);
    m.end();
}

#[test]
fn the_superuser_s_share_is_spared_by_whatever_takes_blocks() {
    let m = Mount::new("-t ext4 -m 20");
    // What maps need comes out of the share, as a file that is promised space must get its map.
    let reserved = m.fs.superblock.lock().r_blocks_count - 8;
    let big = m.file(ROOT, "big").unwrap().nr;
    let mut end = 0;
    let error = loop {
        match m.fs.fallocate(big, 0, end, 1 << 20, &USER) {
            Ok(()) => end += 1 << 20,
            Err(error) => break error,
        }
    };
    fails::<()>(Err(error), libc::ENOSPC);
    assert!(m.fs.allocator.free_blocks() >= reserved, "{} {reserved}", m.fs.allocator.free_blocks());
    // A directory that must grow, a long symbolic link, a large attribute.
    let long = |i: u32| format!("{i:0200}");
    let refused =
        (0..20_000).find_map(|i| m.file(ROOT, &long(i)).err()).expect("the directory can't grow for ever");
    fails::<()>(Err(refused), libc::ENOSPC);
    fails(m.fs.symlink(ROOT, b"long", &[b'x'; 200], &USER), libc::ENOSPC);
    fails(m.fs.setxattr(big, b"user.large", &[1; 700], 0, &USER), libc::ENOSPC);
    assert!(m.fs.allocator.free_blocks() >= reserved);
    m.fs.symlink(ROOT, b"long", &[b'x'; 200], &Caller::ROOT).unwrap();
    m.fs.setxattr(big, b"user.large", &[1; 700], 0, &Caller::ROOT).unwrap();
    m.fs.fallocate(big, 0, end, 1 << 20, &Caller::ROOT).unwrap();
    m.end();
}

#[test]
fn open_files_outlive_their_names() {
    let m = Mount::new("-t ext4");
    let free = m.fs.allocator.free_inodes();
    let f = m.file(ROOT, "f").unwrap().nr;
    let d = m.dir(ROOT, "d").unwrap().nr;
    m.fs.open(f, libc::O_RDWR).unwrap();
    m.fs.open(d, libc::O_RDONLY).unwrap();
    m.fs.write(f, 0, b"still here", &USER, false).unwrap();
    m.fs.unlink(ROOT, b"f").unwrap();
    m.fs.rmdir(ROOT, b"d").unwrap();
    assert_eq!(m.fs.read(f, 0, 100).unwrap()[..], b"still here"[..]);
    assert_eq!((m.links(f), m.links(d)), (0, 0));
    fails(m.fs.link(f, ROOT, b"again", &Caller::ROOT), libc::ENOENT);
    fails(m.file(d, "x"), libc::ENOENT);
    fails(m.find(d, ".."), libc::ENOENT);
    m.fs.release(f).unwrap();
    m.fs.release(d).unwrap();
    m.fs.drain_inactivation();
    assert_eq!(m.fs.allocator.free_inodes(), free);
    m.end();
}

#[test]
fn data_is_on_its_way_before_its_name_replaces_another() {
    let m = Mount::new("-t ext4");
    let new = m.file(ROOT, "new").unwrap().nr;
    m.file(ROOT, "old").unwrap();
    m.fs.write(new, 0, b"the new version", &USER, false).unwrap();
    m.mv((ROOT, "new"), (ROOT, "other"), NONE).unwrap();
    assert!(m.fs.inode(new).unwrap().read().data.is_some(), "a plain rename needs no data");
    m.mv((ROOT, "other"), (ROOT, "old"), NONE).unwrap();
    assert!(m.fs.inode(new).unwrap().read().data.as_ref().is_none_or(|data| data.pages.is_empty()));
    assert_eq!(m.fs.read_record(new).unwrap().size, 15);
    m.end();
}

#[test]
fn immutable_and_append_only_count_on_every_path() {
    let m = Mount::new("-t ext4");
    let (fs, d) = (&m.fs, m.dir(ROOT, "d").unwrap().nr);
    let f = m.file(d, "f").unwrap().nr;
    m.file(d, "g").unwrap();
    let sub = m.dir(d, "sub").unwrap().nr;
    let other = m.dir(ROOT, "other").unwrap().nr;
    m.file(other, "x").unwrap();
    let set = |nr: InodeNr, flags: InodeFlags| {
        let inode = fs.inode(nr).unwrap();
        let mut state = inode.write();
        state.raw.flags.remove(InodeFlags::IMMUTABLE | InodeFlags::APPEND);
        state.raw.flags.insert(flags);
    };
    set(d, InodeFlags::IMMUTABLE);
    fails(m.file(d, "new"), libc::EPERM);
    fails(m.file(d, "f"), libc::EEXIST);
    fails(m.dir(d, "new"), libc::EPERM);
    fails(fs.symlink(d, b"new", b"t", &USER), libc::EPERM);
    fails(fs.link(f, d, b"new", &Caller::ROOT), libc::EPERM);
    fails(fs.unlink(d, b"f"), libc::EPERM);
    fails(fs.rmdir(d, b"sub"), libc::EPERM);
    fails(m.mv((d, "f"), (ROOT, "new"), NONE), libc::EPERM);
    fails(m.mv((other, "x"), (d, "new"), NONE), libc::EPERM);
    fails(m.mv((ROOT, "d"), (ROOT, "e"), NONE), libc::EPERM);
    set(d, InodeFlags::APPEND);
    m.file(d, "new").unwrap();
    m.mv((other, "x"), (d, "moved"), NONE).unwrap();
    fails(fs.unlink(d, b"new"), libc::EPERM);
    fails(m.mv((d, "new"), (d, "newer"), NONE), libc::EPERM);
    fails(m.mv((d, "new"), (d, "g"), RenameFlags::EXCHANGE), libc::EPERM);
    set(d, InodeFlags::empty());
    for flags in [InodeFlags::IMMUTABLE, InodeFlags::APPEND] {
        set(f, flags);
        set(sub, flags);
        fails(fs.unlink(d, b"f"), libc::EPERM);
        fails(fs.rmdir(d, b"sub"), libc::EPERM);
        fails(fs.link(f, ROOT, b"new", &Caller::ROOT), libc::EPERM);
        fails(m.mv((d, "f"), (ROOT, "new"), NONE), libc::EPERM);
        fails(m.mv((d, "g"), (d, "f"), NONE), libc::EPERM);
    }
    set(f, InodeFlags::empty());
    set(sub, InodeFlags::empty());
    fs.unlink(d, b"f").unwrap();
    m.end();
}

#[test]
fn link_limits() {
    for (options, most) in [("-t ext3", 65_000), ("-t ext4 -O ^dir_nlink", 65_000)] {
        let m = Mount::new(options);
        let (f, d) = (m.file(ROOT, "f").unwrap().nr, m.dir(ROOT, "d").unwrap().nr);
        for nr in [f, d] {
            m.fs.inode(nr).unwrap().write().raw.links = most;
        }
        fails(m.fs.link(f, ROOT, b"one more", &Caller::ROOT), libc::EMLINK);
        fails(m.dir(d, "one more"), libc::EMLINK);
        m.dir(ROOT, "e").unwrap();
        fails(m.mv((ROOT, "e"), (d, "e"), NONE), libc::EMLINK);
        m.file(d, "files are not counted").unwrap();
    }
    // With dir_nlink an indexed directory stops counting.
    let m = Mount::new("-t ext4 -b 1024");
    let d = m.dir(ROOT, "d").unwrap().nr;
    for i in 0..200 {
        m.file(d, &format!("a rather long name {i}")).unwrap();
    }
    m.fs.inode(d).unwrap().write().raw.links = 65_000;
    m.dir(d, "x").unwrap();
    assert_eq!(m.links(d), 1);
    m.dir(d, "y").unwrap();
    m.fs.rmdir(d, b"x").unwrap();
    assert_eq!(m.links(d), 1);
}

/// Numbers that look random and are the same each time.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

/// A tree in memory that does what the file system should.
#[derive(Default)]
struct Model {
    /// Names of each directory; the value says what it names.
    dirs: BTreeMap<InodeNr, BTreeMap<String, InodeNr>>,
    parents: BTreeMap<InodeNr, InodeNr>,
}

impl Model {
    fn is_below(&self, mut lower: InodeNr, upper: InodeNr) -> bool {
        while lower != upper && lower != ROOT {
            lower = self.parents[&lower];
        }
        lower == upper
    }

    /// Whether a rename is allowed; then it is done.
    fn mv(&mut self, from: (InodeNr, &str), to: (InodeNr, &str)) -> bool {
        let Some(source) = self.dirs[&from.0].get(from.1).copied() else { return false };
        let target = self.dirs[&to.0].get(to.1).copied();
        if target == Some(source) {
            return true;
        }
        let is_dir = self.dirs.contains_key(&source);
        if is_dir && self.is_below(to.0, source) {
            return false;
        }
        if let Some(target) = target {
            let empty = self.dirs.get(&target).map(BTreeMap::is_empty);
            if empty.is_some() != is_dir || empty == Some(false) {
                return false;
            }
            self.dirs.remove(&target);
            self.parents.remove(&target);
        }
        self.dirs.get_mut(&from.0).unwrap().remove(from.1);
        self.dirs.get_mut(&to.0).unwrap().insert(to.1.into(), source);
        if is_dir {
            self.parents.insert(source, to.0);
        }
        true
    }

    fn check(&self, m: &Mount) {
        for (dir, entries) in &self.dirs {
            let names: Vec<_> = entries.keys().cloned().collect();
            assert_eq!(m.list(*dir), names, "{dir:?}");
            let subdirectories = entries.values().filter(|nr| self.dirs.contains_key(nr)).count();
            let lost_found = u32::from(*dir == ROOT);
            assert_eq!(m.links(*dir), 2 + subdirectories as u32 + lost_found, "{dir:?}");
            assert_eq!(m.find(*dir, "..").unwrap(), *self.parents.get(dir).unwrap_or(&ROOT));
            for (name, nr) in entries {
                assert_eq!(m.find(*dir, name).unwrap(), *nr);
            }
        }
    }
}

#[test]
fn a_long_random_life_matches_a_model() {
    for (seed, options) in
        [(1, "-t ext4 -b 1024"), (2, "-t ext3 -b 1024 -I 128"), (3, "-t ext4 -O ^dir_index")]
    {
        let m = Mount::new(options);
        let mut model = Model::default();
        model.dirs.insert(ROOT, BTreeMap::new());
        let mut random = Numbers(seed);
        for _ in 0..2500 {
            let dirs: Vec<InodeNr> = model.dirs.keys().copied().collect();
            let dir = dirs[random.below(dirs.len())];
            let name = format!("{}{}", random.below(40), "-long".repeat(random.below(3) * 8));
            let there = model.dirs[&dir].get(&name).copied();
            match random.below(8) {
                0..=2 => match (m.file(dir, &name), there) {
                    (Ok(attr), None) => drop(model.dirs.get_mut(&dir).unwrap().insert(name, attr.nr)),
                    (result, _) => fails(result, libc::EEXIST),
                },
                3 => match (m.dir(dir, &name), there) {
                    (Ok(attr), None) => {
                        model.dirs.get_mut(&dir).unwrap().insert(name, attr.nr);
                        model.dirs.insert(attr.nr, BTreeMap::new());
                        model.parents.insert(attr.nr, dir);
                    }
                    (result, _) => fails(result, libc::EEXIST),
                },
                4 => {
                    let removable =
                        there.is_some_and(|nr| model.dirs.get(&nr).is_none_or(BTreeMap::is_empty));
                    let is_dir = there.is_some_and(|nr| model.dirs.contains_key(&nr));
                    let result = if is_dir {
                        m.fs.rmdir(dir, name.as_bytes())
                    } else {
                        m.fs.unlink(dir, name.as_bytes())
                    };
                    assert_eq!(result.is_ok(), removable, "{result:?}");
                    if removable {
                        model.dirs.get_mut(&dir).unwrap().remove(&name);
                        if let Some(nr) = there {
                            model.dirs.remove(&nr);
                            model.parents.remove(&nr);
                        }
                    }
                }
                _ => {
                    let to = dirs[random.below(dirs.len())];
                    let new_name = format!("{}", random.below(40));
                    let result = m.mv((dir, &name), (to, &new_name), NONE);
                    assert_eq!(result.is_ok(), model.mv((dir, &name), (to, &new_name)), "{result:?}");
                }
            }
        }
        model.check(&m);
        m.end();
    }
}

#[test]
fn threads_at_work_in_one_tree_neither_deadlock_nor_damage_it() {
    let m = Mount::new("-t ext4 -b 1024");
    let roots: Vec<InodeNr> = (0..3).map(|i| m.dir(ROOT, &format!("r{i}")).unwrap().nr).collect();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (m, roots) = (&m, &roots);
            scope.spawn(move || {
                let mut random = Numbers(thread);
                for _ in 0..600 {
                    // One or two levels down, by whatever is there now.
                    let mut dir = roots[random.below(3)];
                    let pick = |random: &mut Numbers| format!("n{}", random.below(6));
                    if random.below(2) == 0 {
                        dir = m.find(dir, &pick(&mut random)).unwrap_or(dir);
                    }
                    let to = roots[random.below(3)];
                    let (name, other) = (pick(&mut random), pick(&mut random));
                    let result = match random.below(7) {
                        0 => m.file(dir, &name).map(drop),
                        1 | 2 => m.dir(dir, &name).map(drop),
                        3 => m.fs.unlink(dir, name.as_bytes()),
                        4 => m.fs.rmdir(dir, name.as_bytes()),
                        5 => m.mv((dir, &name), (to, &other), RenameFlags::EXCHANGE),
                        _ => m.mv((dir, &name), (to, &other), NONE),
                    };
                    let allowed = [
                        libc::EEXIST,
                        libc::ENOENT,
                        libc::ENOTDIR,
                        libc::EISDIR,
                        libc::ENOTEMPTY,
                        libc::EINVAL,
                        libc::ESTALE,
                    ];
                    if let Err(error) = result {
                        assert!(allowed.contains(&error.errno()), "{error}");
                    }
                }
            });
        }
    });
    m.end();
}

#[test]
fn many_files_in_one_directory() {
    let count = if cfg!(debug_assertions) { 5000 } else { 200_000 };
    let m = Mount::sized("-t ext4 -b 4096 -N 210000", "1G");
    let (free, d) = (m.fs.allocator.free_inodes(), m.dir(ROOT, "d").unwrap().nr);
    let start = std::time::Instant::now();
    for i in 0..count {
        m.file(d, &format!("file number {i}")).unwrap();
    }
    let made = start.elapsed();
    assert_eq!(m.list(d).len(), count);
    let listed = start.elapsed();
    for i in 0..count {
        m.find(d, &format!("file number {i}")).unwrap();
    }
    let found = start.elapsed();
    for i in 0..count {
        m.fs.unlink(d, format!("file number {i}").as_bytes()).unwrap();
    }
    println!("{count} files made {made:?}, listed {listed:?}, found {found:?}, gone {:?}", start.elapsed());
    m.fs.rmdir(ROOT, b"d").unwrap();
    m.fs.drain_inactivation();
    assert_eq!(m.fs.allocator.free_inodes(), free);
    m.end();
}

#[test]
fn a_directory_that_contains_itself_is_an_error_not_a_hang() {
    let m = Mount::new("-t ext4");
    let d = m.dir(ROOT, "d").unwrap().nr;
    let inode = m.fs.inode(d).unwrap();
    let raw = inode.read().raw.clone();
    let (tid, raw) =
        m.fs.update(50, |h| {
            let mut raw = raw.clone();
            m.fs.dir_mut(h, d, &mut raw).insert(b"self", d, FileKind::Directory.dirent_type())?;
            Ok(raw)
        })
        .unwrap();
    inode.write().publish(raw, tid, true);
    assert_eq!(m.find(d, "self").unwrap(), d);
    let corrupt =
        |result: Result<()>| assert!(matches!(result, Err(Error::Corrupt { .. } | Error::Posix(_))));
    corrupt(m.fs.rmdir(d, b"self"));
    corrupt(m.mv((d, "self"), (ROOT, "x"), NONE));
    corrupt(m.mv((d, "self"), (d, "x"), NONE));
}
