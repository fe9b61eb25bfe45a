//! A file system in memory, mounted through the same transport as the real one: what it reaches is the
//! limit that FUSE itself sets on this machine, with no storage behind it.
//!
//! `journalfs-bench nothing DIR [THREADS]` serves until DIR is unmounted.

use journalfs::format::time::Timestamp;
use journalfs::fuse::types::{Attr, Caller, DirEntry, FsXattr, RenameFlags, SetAttr, StatFs, TimeOrNow};
use journalfs::fuse::{serve, Done, FuseOptions, Operations};
use journalfs::units::InodeNr;
use journalfs::{Error, Result};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

const BLOCK_BYTES: u64 = 4096;

struct Node {
    attr: Attr,
    data: Vec<u8>,
    names: BTreeMap<Vec<u8>, (InodeNr, u64)>,
    parent: InodeNr,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    opens: u32,
}

#[derive(Default)]
struct Tree {
    nodes: HashMap<InodeNr, Node>,
    last: u32,
    cookie: u64,
}

/// Files, directories and links in memory. FORGET frees what has no names left.
pub(crate) struct Nothing(Mutex<Tree>);

fn attr(nr: InodeNr, mode: u32, caller: Caller, rdev: u32) -> Attr {
    let now = Timestamp::now();
    Attr {
        nr,
        generation: 1,
        size: 0,
        blocks: 0,
        atime: now,
        mtime: now,
        ctime: now,
        crtime: now,
        mode: mode as u16,
        links: if mode & libc::S_IFMT == libc::S_IFDIR { 2 } else { 1 },
        uid: caller.uid,
        gid: caller.gid,
        rdev,
        block_bytes: BLOCK_BYTES as u32,
    }
}

impl Node {
    fn new(attr: Attr, parent: InodeNr) -> Self {
        Self { attr, data: Vec::new(), names: BTreeMap::new(), parent, xattrs: BTreeMap::new(), opens: 0 }
    }

    fn is_dir(&self) -> bool {
        u32::from(self.attr.mode) & libc::S_IFMT == libc::S_IFDIR
    }

    fn resize(&mut self, size: u64) -> Result<()> {
        if size > 1 << 32 {
            return Err(Error::FileTooBig);
        }
        self.data.resize(size as usize, 0);
        self.attr.size = size;
        self.attr.blocks = size.div_ceil(BLOCK_BYTES) * (BLOCK_BYTES / 512);
        Ok(())
    }
}

impl Tree {
    fn node(&mut self, nr: InodeNr) -> Result<&mut Node> {
        self.nodes.get_mut(&nr).ok_or(Error::Stale)
    }

    fn find(&mut self, parent: InodeNr, name: &[u8]) -> Result<InodeNr> {
        let parent = self.node(parent)?;
        if name == b".." {
            return Ok(parent.parent);
        }
        parent.names.get(name).map(|(nr, _)| *nr).ok_or(Error::NotFound)
    }

    fn add(
        &mut self,
        parent: InodeNr,
        name: &[u8],
        mode: u32,
        caller: &Caller,
        rdev: u32,
    ) -> Result<&mut Node> {
        if name.len() > 255 {
            return Err(Error::NameTooLong);
        }
        if self.node(parent)?.names.contains_key(name) {
            return Err(Error::Exists);
        }
        self.last += 1;
        let nr = InodeNr(self.last);
        let node = Node::new(attr(nr, mode, *caller, rdev), parent);
        let is_dir = node.is_dir();
        self.nodes.insert(nr, node);
        self.put(parent, name, nr)?;
        if is_dir {
            self.node(parent)?.attr.links += 1;
        }
        self.node(nr)
    }

    fn put(&mut self, parent: InodeNr, name: &[u8], nr: InodeNr) -> Result<()> {
        self.cookie += 1;
        let cookie = self.cookie + 2;
        let parent = self.node(parent)?;
        parent.names.insert(name.to_vec(), (nr, cookie));
        parent.attr.mtime = Timestamp::now();
        Ok(())
    }

    fn take(&mut self, parent: InodeNr, name: &[u8], dir: bool) -> Result<()> {
        let nr = self.find(parent, name)?;
        let node = self.node(nr)?;
        match (node.is_dir(), dir) {
            (true, false) => return Err(Error::IsDirectory),
            (false, true) => return Err(Error::NotDirectory),
            (true, true) if !node.names.is_empty() => return Err(Error::NotEmpty),
            _ => node.attr.links -= if dir { 2 } else { 1 },
        }
        let parent = self.node(parent)?;
        parent.names.remove(name);
        parent.attr.mtime = Timestamp::now();
        if dir {
            parent.attr.links -= 1;
        }
        Ok(())
    }

    fn drop_unused(&mut self, nr: InodeNr) {
        if self.nodes.get(&nr).is_some_and(|node| node.attr.links == 0 && node.opens == 0) {
            self.nodes.remove(&nr);
        }
    }
}

impl Nothing {
    /// An empty file system whose root belongs to this process's user.
    pub(crate) fn new() -> Self {
        let mut tree = Tree { last: 10, ..Tree::default() };
        let uid = nix::unistd::getuid().as_raw();
        let owner = Caller { uid, gid: nix::unistd::getgid().as_raw(), pid: 0 };
        let root = Node::new(attr(InodeNr::ROOT, libc::S_IFDIR | 0o755, owner, 0), InodeNr::ROOT);
        tree.nodes.insert(InodeNr::ROOT, root);
        Self(Mutex::new(tree))
    }

    fn tree(&self) -> MutexGuard<'_, Tree> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Default for Nothing {
    fn default() -> Self {
        Self::new()
    }
}

impl Operations for Nothing {
    type Data = Vec<u8>;

    fn lookup(&self, parent: InodeNr, name: &[u8]) -> Result<Attr> {
        let mut tree = self.tree();
        let nr = tree.find(parent, name)?;
        Ok(tree.node(nr)?.attr)
    }

    fn getattr(&self, nr: InodeNr) -> Result<Attr> {
        Ok(self.tree().node(nr)?.attr)
    }

    fn setattr(&self, nr: InodeNr, set: &SetAttr, _caller: &Caller) -> Result<Attr> {
        let mut tree = self.tree();
        let node = tree.node(nr)?;
        if let Some(size) = set.size {
            node.resize(size)?;
        }
        let attr = &mut node.attr;
        if set.kill_suid_sgid && attr.mode & 0o40000 == 0 {
            attr.mode &= !0o4000;
        }
        if let Some(mode) = set.mode {
            attr.mode = attr.mode & !0o7777 | mode as u16 & 0o7777;
        }
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        let pick = |time: Option<TimeOrNow>, old| match time {
            Some(TimeOrNow::Now) => Timestamp::now(),
            Some(TimeOrNow::Time(time)) => time,
            None => old,
        };
        attr.atime = pick(set.atime, attr.atime);
        attr.mtime = pick(set.mtime, attr.mtime);
        Ok(*attr)
    }

    fn readlink(&self, nr: InodeNr) -> Result<Vec<u8>> {
        Ok(self.tree().node(nr)?.data.clone())
    }

    fn mknod(
        &self,
        parent: InodeNr,
        name: &[u8],
        mode: u32,
        rdev: u32,
        umask: u32,
        caller: &Caller,
    ) -> Result<Attr> {
        Ok(self.tree().add(parent, name, mode & !umask, caller, rdev)?.attr)
    }

    fn mkdir(&self, parent: InodeNr, name: &[u8], mode: u32, umask: u32, caller: &Caller) -> Result<Attr> {
        let mode = mode & !libc::S_IFMT & !umask | libc::S_IFDIR;
        Ok(self.tree().add(parent, name, mode, caller, 0)?.attr)
    }

    fn symlink(&self, parent: InodeNr, name: &[u8], target: &[u8], caller: &Caller) -> Result<Attr> {
        let mut tree = self.tree();
        let node = tree.add(parent, name, libc::S_IFLNK | 0o777, caller, 0)?;
        node.data = target.to_vec();
        node.attr.size = target.len() as u64;
        Ok(node.attr)
    }

    fn link(&self, nr: InodeNr, new_parent: InodeNr, new_name: &[u8], _caller: &Caller) -> Result<Attr> {
        let mut tree = self.tree();
        if tree.node(new_parent)?.names.contains_key(new_name) {
            return Err(Error::Exists);
        }
        tree.node(nr)?.attr.links += 1;
        tree.put(new_parent, new_name, nr)?;
        Ok(tree.node(nr)?.attr)
    }

    fn unlink(&self, parent: InodeNr, name: &[u8]) -> Result<()> {
        self.tree().take(parent, name, false)
    }

    fn rmdir(&self, parent: InodeNr, name: &[u8]) -> Result<()> {
        self.tree().take(parent, name, true)
    }

    fn rename(
        &self,
        parent: InodeNr,
        name: &[u8],
        new_parent: InodeNr,
        new_name: &[u8],
        flags: RenameFlags,
        _caller: &Caller,
    ) -> Result<()> {
        let mut tree = self.tree();
        let nr = tree.find(parent, name)?;
        let is_dir = tree.node(nr)?.is_dir();
        if let Ok(target) = tree.find(new_parent, new_name) {
            if flags == RenameFlags::NOREPLACE {
                return Err(Error::Exists);
            }
            if target == nr {
                return Ok(());
            }
            tree.take(new_parent, new_name, is_dir)?;
        }
        tree.node(parent)?.names.remove(name);
        tree.put(new_parent, new_name, nr)?;
        if is_dir {
            tree.node(parent)?.attr.links -= 1;
            tree.node(new_parent)?.attr.links += 1;
            tree.node(nr)?.parent = new_parent;
        }
        Ok(())
    }

    fn tmpfile(&self, _parent: InodeNr, _mode: u32, _umask: u32, _caller: &Caller) -> Result<Attr> {
        Err(Error::NotSupported)
    }

    fn open(&self, nr: InodeNr, _flags: i32) -> Result<()> {
        self.tree().node(nr)?.opens += 1;
        Ok(())
    }

    fn release(&self, nr: InodeNr) -> Result<()> {
        self.tree().node(nr)?.opens -= 1;
        Ok(())
    }

    fn read(&self, nr: InodeNr, offset: u64, size: u32) -> Result<Vec<u8>> {
        let mut tree = self.tree();
        let data = &tree.node(nr)?.data;
        let start = (offset as usize).min(data.len());
        Ok(data[start..start.saturating_add(size as usize).min(data.len())].to_vec())
    }

    fn write(&self, nr: InodeNr, offset: u64, data: &[u8], _caller: &Caller, kill_priv: bool) -> Result<u32> {
        let mut tree = self.tree();
        let node = tree.node(nr)?;
        let end = offset + data.len() as u64;
        if end > node.attr.size {
            node.resize(end)?;
        }
        node.data[offset as usize..end as usize].copy_from_slice(data);
        node.attr.mtime = Timestamp::now();
        if kill_priv {
            node.attr.mode &= !0o4000;
        }
        Ok(data.len() as u32)
    }

    fn fsync_then(&self, _nr: InodeNr, _datasync: bool, _pid: u32, done: Done) {
        done(Ok(()));
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn readdir(&self, nr: InodeNr, cookie: u64, emit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        let mut tree = self.tree();
        let parent = tree.node(nr)?.parent;
        let mut entries = vec![(1, b".".to_vec(), nr), (2, b"..".to_vec(), parent)];
        entries.extend(tree.node(nr)?.names.iter().map(|(name, (nr, cookie))| (*cookie, name.clone(), *nr)));
        entries.sort_unstable();
        for (at, name, nr) in entries.into_iter().filter(|(at, ..)| *at > cookie) {
            if !emit(DirEntry { nr, kind: 0, name: &name, next_cookie: at }) {
                break;
            }
        }
        Ok(())
    }

    fn fallocate(&self, _nr: InodeNr, _mode: i32, _offset: u64, _len: u64, _caller: &Caller) -> Result<()> {
        Err(Error::NotSupported)
    }

    fn seek(&self, nr: InodeNr, offset: u64, whence: i32) -> Result<u64> {
        let size = self.getattr(nr)?.size;
        match whence {
            _ if offset >= size => Err(Error::NoSuchAddress),
            libc::SEEK_DATA => Ok(offset),
            _ => Ok(size),
        }
    }

    fn copy_range(
        &self,
        from: InodeNr,
        from_offset: u64,
        to: InodeNr,
        to_offset: u64,
        len: u64,
        _caller: &Caller,
    ) -> Result<u64> {
        let data = self.read(from, from_offset, len.min(1 << 20) as u32)?;
        let caller = Caller { uid: 0, gid: 0, pid: 0 };
        Ok(self.write(to, to_offset, &data, &caller, false)?.into())
    }

    fn getxattr(&self, nr: InodeNr, name: &[u8]) -> Result<Vec<u8>> {
        self.tree().node(nr)?.xattrs.get(name).cloned().ok_or(Error::NoData)
    }

    fn setxattr(&self, nr: InodeNr, name: &[u8], value: &[u8], _flags: i32, _caller: &Caller) -> Result<()> {
        self.tree().node(nr)?.xattrs.insert(name.to_vec(), value.to_vec());
        Ok(())
    }

    fn listxattr(&self, nr: InodeNr) -> Result<Vec<u8>> {
        let mut tree = self.tree();
        let names = tree.node(nr)?.xattrs.keys();
        Ok(names.flat_map(|name| name.iter().copied().chain([0])).collect())
    }

    fn removexattr(&self, nr: InodeNr, name: &[u8], _caller: &Caller) -> Result<()> {
        self.tree().node(nr)?.xattrs.remove(name).map(drop).ok_or(Error::NoData)
    }

    fn get_flags(&self, _nr: InodeNr) -> Result<u32> {
        Ok(0)
    }

    fn set_flags(&self, _nr: InodeNr, _flags: u32, _caller: &Caller) -> Result<()> {
        Err(Error::NotSupported)
    }

    fn get_fsxattr(&self, _nr: InodeNr) -> Result<FsXattr> {
        Ok(FsXattr { xflags: 0, projid: 0 })
    }

    fn set_fsxattr(&self, _nr: InodeNr, _set: FsXattr, _caller: &Caller) -> Result<()> {
        Err(Error::NotSupported)
    }

    fn trim(&self, _start: u64, _len: u64, _min_len: u64) -> Result<u64> {
        Err(Error::NotSupported)
    }

    fn statfs(&self) -> Result<StatFs> {
        Ok(StatFs {
            block_bytes: BLOCK_BYTES as u32,
            blocks: 1 << 24,
            free: 1 << 23,
            available: 1 << 23,
            inodes: self.tree().nodes.len() as u64 + (1 << 23),
            free_inodes: 1 << 23,
            name_max: 255,
        })
    }

    fn forget(&self, nr: InodeNr) {
        self.tree().drop_unused(nr);
    }

    fn read_may_wait(&self, _nr: InodeNr, _offset: u64, _size: u32) -> bool {
        false
    }
}

/// Serves one at `dir` until that is unmounted.
#[allow(dead_code)] // The tests include this file as a module.
pub(crate) fn run(dir: &Path, threads: usize) -> Result<()> {
    let root = nix::unistd::geteuid().is_root();
    let options =
        FuseOptions { threads, allow_other: root, default_permissions: true, ..FuseOptions::default() };
    serve(Arc::new(Nothing::new()), dir, &options, || {})
}
