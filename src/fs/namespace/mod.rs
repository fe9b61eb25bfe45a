//! Names: what the VFS asks of directories, with the rules of Linux for who may do what to which kind of
//! inode as far as only a file system knows them (inode flags, link limits). Permissions by mode and ACL
//! are checked before, by the VFS. Called by `fuse/`, `mkfs -d` and tests; calls `fs/dir`.
//!
//! Locks: a directory's before those of what is in it; two directories ancestor first, else by number;
//! then other inodes by number. Whether one directory is above another is known only while `rename_lock` is
//! held, so every rename between two directories takes it.

mod create;
mod link;
mod remove;
mod rename;
#[cfg(test)]
mod tests;

use super::attr::Attr;
use super::dir::{Dir, DirEntry, DirMut, Found};
use super::inode::{Inode, InodeState};
use super::Fs;
use crate::cache::Handle;
use crate::error::{Error, Place, Result};
use crate::format::dirent::NAME_MAX;
use crate::format::features::RoCompat;
use crate::format::inode::{FileKind, InodeFlags, RawInode};
use crate::format::time::Timestamp;
use crate::units::{InodeNr, Tid};
use bitflags::bitflags;
use std::sync::Arc;

bitflags! {
    /// The flags of renameat2(2).
    #[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
    pub struct RenameFlags: u32 {
        /// EEXIST rather than replacing.
        const NOREPLACE = 1;
        /// Exchange the two names.
        const EXCHANGE = 2;
        /// Leave a whiteout (character device 0:0) behind.
        const WHITEOUT = 4;
        const _ = !0;
    }
}

/// The most names that an inode may have (`EXT4_LINK_MAX`).
const LINK_MAX: u16 = 65_000;

/// Blocks that an operation on names may change, at most, beside what an inode's end frees: two directories
/// growing by three blocks each, with bitmaps, descriptors and mapping, and the inodes.
const CREDITS: u32 = 80;

/// Entries that a listing takes from a directory at a time.
const LIST_BATCH: usize = 128;

/// An entry of a listing: inode, type, name, next cookie.
type Listed = (InodeNr, u8, Vec<u8>, u64);

/// What a name is to be used for, which decides how `.` and `..` are refused.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Purpose {
    Create,
    Unlink,
    Rmdir,
    Rename,
}

fn check_name(name: &[u8], purpose: Purpose) -> Result<()> {
    if name.is_empty() {
        return Err(Error::NotFound);
    }
    if name.len() > NAME_MAX {
        return Err(Error::NameTooLong);
    }
    if name.iter().any(|byte| matches!(byte, b'/' | 0)) {
        return Err(Error::Invalid);
    }
    if name != b"." && name != b".." {
        return Ok(());
    }
    Err(match purpose {
        Purpose::Create => Error::Exists,
        Purpose::Unlink => Error::IsDirectory,
        Purpose::Rmdir if name == b"." => Error::Invalid,
        Purpose::Rmdir => Error::NotEmpty,
        Purpose::Rename => Error::Busy,
    })
}

/// The type byte of an inode's entries.
fn entry_kind(raw: &RawInode) -> u8 {
    raw.kind().map_or(0, FileKind::dirent_type)
}

/// A record whose names changed: ctime, and for directories what was in them.
fn touch(raw: &mut RawInode, now: Timestamp) {
    raw.ctime = now;
    raw.version = raw.version.wrapping_add(1);
}

pub(super) fn touch_dir(raw: &mut RawInode, now: Timestamp) {
    raw.mtime = now;
    touch(raw, now);
}

impl Fs {
    /// Finds a name in a directory.
    pub fn lookup(&self, parent: InodeNr, name: &[u8]) -> Result<Attr> {
        if name.len() > NAME_MAX {
            return Err(Error::NameTooLong);
        }
        let parent = self.inode(parent)?;
        let state = parent.read();
        Self::check_dir(&state)?;
        let found = self.find(&parent, &state, name)?.ok_or(Error::NotFound)?;
        if found.inode == parent.nr {
            return Ok(Attr::of(parent.nr, &state, &self.geometry));
        }
        if name == b".." {
            // A parent is never locked under its child.
            drop(state);
            return self.getattr(found.inode);
        }
        let child = self.child(&parent, found)?;
        let child_state = child.read();
        Ok(Attr::of(child.nr, &child_state, &self.geometry))
    }

    /// Calls `emit` for each entry from `cookie` on (0: from the start), until it returns `false` (the entry is
    /// then not taken) or there are no more. The directory is not locked while `emit` runs.
    pub fn readdir(
        &self,
        nr: InodeNr,
        mut cookie: u64,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let inode = self.inode(nr)?;
        loop {
            let batch = self.list(&inode, cookie)?;
            for (target, kind, name, next_cookie) in &batch {
                if !emit(DirEntry { nr: *target, kind: *kind, name, next_cookie: *next_cookie }) {
                    return Ok(());
                }
            }
            match batch.last() {
                Some((.., next_cookie)) if batch.len() == LIST_BATCH => cookie = *next_cookie,
                _ => return Ok(()),
            }
        }
    }

    fn list(&self, inode: &Arc<Inode>, cookie: u64) -> Result<Vec<Listed>> {
        let state = inode.read();
        Self::check_dir(&state)?;
        let mut batch = Vec::new();
        let dir = Dir::new(&self.geometry, inode.nr, &state.raw);
        self.noting(dir.read(&*self.cache, cookie, &mut |entry| {
            if batch.len() < LIST_BATCH {
                batch.push((entry.nr, entry.kind, entry.name.to_vec(), entry.next_cookie));
            }
            batch.len() < LIST_BATCH
        }))?;
        let touch = cookie == 0 && !self.options.nodiratime && self.wants_atime(&state.raw);
        drop(state);
        if touch {
            self.touch_atime(inode);
        }
        Ok(batch)
    }

    /// ENOTDIR for what is no directory, ENOENT for one that has been removed.
    fn check_dir(state: &InodeState) -> Result<()> {
        if !state.raw.is_dir() {
            return Err(Error::NotDirectory);
        }
        if state.dead || state.raw.links == 0 {
            return Err(Error::NotFound);
        }
        Ok(())
    }

    /// The entry of a name, outside of a handle: reads what isn't in memory.
    fn find(&self, dir: &Inode, state: &InodeState, name: &[u8]) -> Result<Option<Found>> {
        self.noting(Dir::new(&self.geometry, dir.nr, &state.raw).lookup(&*self.cache, name))
    }

    /// The inode of an entry, which must be in use.
    fn child(&self, parent: &Inode, found: Found) -> Result<Arc<Inode>> {
        let corrupt = |why: String| Error::corrupt("directory", Place::Inode(parent.nr), why);
        if !self.geometry.holds_file(found.inode) {
            let why = format!("an entry names inode {}, which is the file system's own", found.inode);
            return self.noting(Err(corrupt(why)));
        }
        match self.inode(found.inode) {
            Err(error) if error.is(libc::ESTALE) => {
                let why = format!("an entry names inode {}, which is not in use", found.inode);
                self.noting(Err(corrupt(why)))
            }
            result => result,
        }
    }

    /// A directory to be changed in a handle.
    fn dir_mut<'a, 'h>(
        &'a self,
        h: &'a mut Handle<'h>,
        nr: InodeNr,
        raw: &'a mut RawInode,
    ) -> DirMut<'a, 'h> {
        DirMut { geometry: &self.geometry, allocator: &self.allocator, h, nr, raw }
    }

    /// EMLINK if a directory can't have one more directory in it.
    fn check_subdirectories(&self, raw: &RawInode) -> Result<()> {
        let uncounted = self.has_uncounted_links(raw);
        if raw.links >= LINK_MAX && !uncounted {
            return Err(Error::TooManyLinks);
        }
        Ok(())
    }

    /// With dir_nlink, an indexed directory may have more subdirectories than it can count: its link count
    /// is then 1, for "many".
    fn has_uncounted_links(&self, raw: &RawInode) -> bool {
        self.geometry.features.ro_compat.contains(RoCompat::DIR_NLINK)
            && raw.flags.contains(InodeFlags::INDEX)
    }

    pub(super) fn add_subdirectory(&self, raw: &mut RawInode) {
        let links = raw.links.saturating_add(1);
        raw.links = if self.has_uncounted_links(raw) && (links > LINK_MAX || links == 2) { 1 } else { links };
    }

    fn drop_subdirectory(raw: &mut RawInode) {
        if raw.links > 2 {
            raw.links -= 1;
        }
    }

    /// What dirsync asks for, once the locks are released: the transaction is durable before the call returns.
    fn settle_names(&self, flags: InodeFlags, tid: Tid) -> Result<()> {
        let wanted = self.options.sync || self.options.dirsync;
        if wanted || flags.intersects(InodeFlags::SYNC | InodeFlags::DIRSYNC) {
            self.journal.commit(tid)?;
        }
        Ok(())
    }
}
