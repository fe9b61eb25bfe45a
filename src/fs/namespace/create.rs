//! New inodes with their first name: mknod, mkdir, symlink.

use super::{check_name, entry_kind, touch_dir, Purpose, CREDITS};
use crate::cache::Handle;
use crate::error::{Error, Result};
use crate::format::inode::{FileKind, InodeFlags, RawInode};
use crate::fs::acl::{self, Inherited};
use crate::fs::attr::{Attr, Caller};
use crate::fs::inode::Inode;
use crate::fs::{inode_table, map, xattr, Fs};
use crate::units::{FileBlock, InodeNr, Tid};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

const S_ISGID: u16 = 0o2000;
const S_IXGRP: u16 = 0o0010;

/// The longest target of a symbolic link (PATH_MAX without its NUL).
const TARGET_MAX: usize = 4095;

/// What a directory passes on to new inodes in it (`EXT4_FL_INHERITED`, as far as we know the flags).
const INHERITED: InodeFlags = InodeFlags::SECRM
    .union(InodeFlags::UNRM)
    .union(InodeFlags::COMPR)
    .union(InodeFlags::SYNC)
    .union(InodeFlags::NODUMP)
    .union(InodeFlags::NOATIME)
    .union(InodeFlags::JOURNAL_DATA)
    .union(InodeFlags::NOTAIL)
    .union(InodeFlags::DIRSYNC)
    .union(InodeFlags::PROJINHERIT)
    .union(InodeFlags::DAX);
/// Of those, the ones that only directories can have.
const DIRECTORY_ONLY: InodeFlags = InodeFlags::DIRSYNC.union(InodeFlags::PROJINHERIT);
/// Of those, what devices, pipes, sockets and symbolic links can have.
const FOR_ALL: InodeFlags = InodeFlags::NODUMP.union(InodeFlags::NOATIME);

/// A new inode, as the program asked for it.
pub(super) struct Wanted<'a> {
    pub(super) kind: FileKind,
    /// With the type's bits and the set-id bits; umask and ACL applied.
    pub(super) inherited: Inherited,
    pub(super) rdev: u32,
    pub(super) target: &'a [u8],
    pub(super) uid: u32,
    pub(super) gid: u32,
}

impl Wanted<'_> {
    /// An inode without anything inherited.
    pub(super) fn plain(kind: FileKind, mode: u16, rdev: u32, uid: u32, gid: u32) -> Self {
        Self { kind, inherited: Inherited::by_umask(mode, 0), rdev, target: b"", uid, gid }
    }
}

impl Fs {
    /// Makes a regular file (also with no type in `mode`), a device, a pipe or a socket.
    pub fn mknod(
        &self,
        parent: InodeNr,
        name: &[u8],
        mode: u32,
        rdev: u32,
        umask: u32,
        caller: &Caller,
    ) -> Result<Attr> {
        let mode = if mode & libc::S_IFMT == 0 { mode | libc::S_IFREG } else { mode };
        match FileKind::from_mode(mode as u16) {
            Some(FileKind::Directory) => Err(Error::NotPermitted),
            Some(FileKind::Symlink) | None => Err(Error::Invalid),
            Some(kind) => self.create(parent, name, kind, mode as u16, rdev, b"", umask, caller),
        }
    }

    /// Makes a directory.
    pub fn mkdir(
        &self,
        parent: InodeNr,
        name: &[u8],
        mode: u32,
        umask: u32,
        caller: &Caller,
    ) -> Result<Attr> {
        let mode = FileKind::Directory.mode_bits() | (mode as u16 & 0o1777);
        self.create(parent, name, FileKind::Directory, mode, 0, b"", umask, caller)
    }

    /// Makes a symbolic link.
    pub fn symlink(&self, parent: InodeNr, name: &[u8], target: &[u8], caller: &Caller) -> Result<Attr> {
        if target.is_empty() {
            return Err(Error::NotFound);
        }
        // With the NUL that the kernel stores, it must fit in one block.
        if target.len() > TARGET_MAX || target.len() >= self.geometry.block_bytes as usize {
            return Err(Error::NameTooLong);
        }
        if target.contains(&0) {
            return Err(Error::Invalid);
        }
        let mode = FileKind::Symlink.mode_bits() | 0o777;
        self.create(parent, name, FileKind::Symlink, mode, 0, target, 0, caller)
    }

    #[allow(clippy::too_many_arguments)]
    fn create(
        &self,
        parent: InodeNr,
        name: &[u8],
        kind: FileKind,
        mode: u16,
        rdev: u32,
        target: &[u8],
        umask: u32,
        caller: &Caller,
    ) -> Result<Attr> {
        check_name(name, Purpose::Create)?;
        let is_dir = kind == FileKind::Directory;
        let parent = self.inode(parent)?;
        let mut state = parent.write();
        Self::check_dir(&state)?;
        if self.find(&parent, &state, name)?.is_some() {
            return Err(Error::Exists);
        }
        Self::check_mutable(&state.raw, true)?;
        if is_dir {
            self.check_subdirectories(&state.raw)?;
        }
        let wanted = self.wanted(parent.nr, &state.raw, kind, mode, rdev, target, umask, caller)?;
        let (tid, (nr, raw, parent_raw)) = self.update_for(caller, CREDITS + xattr::CREDITS, |h| {
            let mut parent_raw = state.raw.clone();
            let (nr, raw) = self.new_inode(h, parent.nr, &parent_raw, &wanted)?;
            self.dir_mut(h, parent.nr, &mut parent_raw).insert(name, nr, entry_kind(&raw))?;
            if is_dir {
                self.add_subdirectory(&mut parent_raw);
            }
            touch_dir(&mut parent_raw, raw.crtime);
            inode_table::write(h, &self.geometry, parent.nr, &parent_raw)?;
            Ok((nr, raw, parent_raw))
        })?;
        let child = self.adopt(nr, raw, tid);
        let attr = Attr::of(nr, &child.read(), &self.geometry);
        let flags = parent_raw.flags;
        state.publish(parent_raw, tid, true);
        drop(state);
        self.settle_names(flags, tid)?;
        Ok(attr)
    }

    /// Makes a regular file without a name, open (O_TMPFILE): [`release`](Self::release) frees it unless
    /// [`link`](Self::link) has given it a name by then.
    pub fn tmpfile(&self, parent: InodeNr, mode: u32, umask: u32, caller: &Caller) -> Result<Attr> {
        let parent = self.inode(parent)?;
        let state = parent.read();
        Self::check_dir(&state)?;
        let kind = FileKind::Regular;
        let mode = kind.mode_bits() | (mode as u16 & 0o7777);
        let wanted = self.wanted(parent.nr, &state.raw, kind, mode, 0, b"", umask, caller)?;
        let (tid, (nr, raw)) = self.update_for(caller, CREDITS + xattr::CREDITS, |h| {
            let (nr, mut raw) = self.new_inode(h, parent.nr, &state.raw, &wanted)?;
            raw.links = 0;
            self.orphan_add(h, nr, &raw)?;
            Ok((nr, raw))
        })?;
        let inode = self.adopt(nr, raw, tid);
        let mut state = inode.write();
        (state.linkable, state.opens) = (true, 1);
        Ok(Attr::of(nr, &state, &self.geometry))
    }

    /// Owner, group and mode of a new inode, by the rules of its directory.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn wanted<'a>(
        &self,
        parent_nr: InodeNr,
        parent: &RawInode,
        kind: FileKind,
        mode: u16,
        rdev: u32,
        target: &'a [u8],
        umask: u32,
        caller: &Caller,
    ) -> Result<Wanted<'a>> {
        let inherited = if self.options.acl {
            self.noting(acl::inherit(&*self.cache, &self.geometry, parent_nr, parent, mode, umask))?
        } else {
            Inherited::by_umask(mode, umask)
        };
        let mut wanted = Wanted { kind, inherited, rdev, target, uid: caller.uid, gid: caller.gid };
        if parent.mode & S_ISGID != 0 {
            wanted.gid = parent.gid;
            if kind == FileKind::Directory {
                wanted.inherited.mode |= S_ISGID;
            } else if mode & (S_ISGID | S_IXGRP) == S_ISGID | S_IXGRP && !caller.keeps_sgid(parent.gid) {
                wanted.inherited.mode &= !S_ISGID;
            }
        }
        Ok(wanted)
    }

    /// Allocates and writes an inode, without a name yet; a directory with its dot entries.
    pub(super) fn new_inode(
        &self,
        h: &mut Handle<'_>,
        parent_nr: InodeNr,
        parent: &RawInode,
        wanted: &Wanted<'_>,
    ) -> Result<(InodeNr, RawInode)> {
        let is_dir = wanted.kind == FileKind::Directory;
        let nr = self.allocator.allocate_inode(h, parent_nr, is_dir)?;
        let now = self.now();
        let mut raw = RawInode {
            mode: wanted.inherited.mode,
            uid: wanted.uid,
            gid: wanted.gid,
            links: if is_dir { 2 } else { 1 },
            flags: inherited_flags(parent.flags, wanted.kind),
            generation: random(),
            atime: now,
            ctime: now,
            mtime: now,
            crtime: now,
            extra_isize: self.geometry.want_extra_isize,
            version: 1,
            ..RawInode::default()
        };
        match wanted.kind {
            FileKind::Regular => map::init(&self.geometry, &mut raw),
            FileKind::Directory => {
                map::init(&self.geometry, &mut raw);
                self.dir_mut(h, nr, &mut raw).init(parent_nr)?;
            }
            FileKind::Symlink => self.fill_symlink(h, nr, &mut raw, wanted.target)?,
            FileKind::CharDevice | FileKind::BlockDevice => raw.set_rdev(wanted.rdev),
            FileKind::Fifo | FileKind::Socket => {}
        }
        inode_table::create(h, &self.geometry, nr, &raw)?;
        acl::write_inherited(h, &self.allocator, nr, &mut raw, &wanted.inherited)?;
        Ok((nr, raw))
    }

    /// A short target lies in the inode, a longer one in a block, which is journaled as metadata.
    fn fill_symlink(&self, h: &mut Handle<'_>, nr: InodeNr, raw: &mut RawInode, target: &[u8]) -> Result<()> {
        raw.size = target.len() as u64;
        // One byte is for the NUL that the kernel wants behind it.
        if target.len() < raw.block.len() {
            let (text, _) = raw.block.split_at_mut(target.len());
            text.copy_from_slice(target);
            return Ok(());
        }
        map::init(&self.geometry, raw);
        let goal = map::goal(&self.geometry, &*h, nr, raw, FileBlock(0))?;
        let range = self.allocator.allocate(h, goal, 1)?;
        map::insert(&self.allocator, h, nr, raw, FileBlock(0), range, false)?;
        let block = h.create(range.start)?;
        if let Some(text) = block.get_mut(..target.len()) {
            text.copy_from_slice(target);
        }
        Ok(())
    }

    /// Takes an inode that a handle, published in `tid`, has made into memory.
    pub(super) fn adopt(&self, nr: InodeNr, raw: RawInode, tid: Tid) -> Arc<Inode> {
        let inode = Arc::new(Inode::new(nr, raw.clone()));
        inode.write().publish(raw, tid, true);
        self.inodes.insert(inode.clone());
        inode
    }
}

fn inherited_flags(parent: InodeFlags, kind: FileKind) -> InodeFlags {
    let flags = parent & INHERITED;
    match kind {
        FileKind::Directory => flags,
        FileKind::Regular => flags - DIRECTORY_ONLY,
        _ => flags & FOR_ALL,
    }
}

/// A number that nobody can guess from others of its kind: the standard library seeds its hashers so.
fn random() -> u32 {
    RandomState::new().build_hasher().finish() as u32
}
