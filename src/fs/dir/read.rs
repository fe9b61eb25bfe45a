//! Listing a directory, in pieces, while it changes.
//!
//! Where the file system indexes directories, a listing goes by hash: a cookie is the smallest (hash, more of
//! the hash) that has not been listed. That depends on names only, so entries that stay are listed once however
//! the tree is split, or made, meanwhile. Elsewhere, and where an index is damaged, a cookie is the offset of
//! the next entry: there entries never move.

use super::blocks::Role;
use super::index::Fault;
use super::{Dir, DirEntry};
use crate::cache::ReadBlock;
use crate::device::Block;
use crate::error::{Error, Place, Result};
use crate::format::dirent;
use crate::format::hash::HashVersion;
use crate::format::FileKind;
use crate::units::{BlockNr, FileBlock};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Cookies below it stand for the dot entries of a listing by hash; names have none so small.
const FIRST_KEY: u64 = 2;

/// How many leaves names of one hash may fill before the index is called corrupt: all of them are
/// in memory at a time, and a sound directory has a handful at most.
const CHAIN_MAX: usize = 4096;

/// An entry's place in a listing by hash: its key, the leaf (of those in memory), the offset there.
type Listed = (u64, usize, usize);

/// The leaves that continue each other's last hash.
#[derive(Default)]
struct Group {
    blocks: Vec<(BlockNr, Arc<Block>)>,
    entries: Vec<Listed>,
}

impl Dir<'_> {
    /// Calls `emit` for each entry from `cookie` on (0: all), until it returns `false`. An entry that `emit` refused
    /// comes first again when the listing goes on at the `next_cookie` of the entry before.
    pub fn read(
        &self,
        r: &impl ReadBlock,
        cookie: u64,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        if self.is_inline() {
            return self.read_inline(r, cookie, emit);
        }
        if !self.is_indexed() {
            // A directory of one block becomes indexed when it grows, so it is listed alike before.
            let will_be = self.has(crate::format::Compat::DIR_INDEX) && self.blocks() <= 1;
            return match self.default_version().filter(|_| will_be) {
                Some(version) => self.read_one_block(r, version, cookie, emit),
                None => self.read_linear(r, cookie, emit),
            };
        }
        match self.read_indexed(r, cookie, emit) {
            Ok(()) => Ok(()),
            // A cookie that is no offset comes from a listing by hash, which can't be gone on with.
            Err(Fault::Damaged(_)) if cookie <= self.raw.size => self.read_linear(r, cookie, emit),
            Err(Fault::Damaged(error) | Fault::Other(error)) => Err(error),
        }
    }

    fn read_linear(
        &self,
        r: &impl ReadBlock,
        cookie: u64,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let block_bytes = self.block_bytes() as u64;
        let Ok(from) = u32::try_from(cookie / block_bytes) else { return Ok(()) };
        self.for_each_block(r, FileBlock(from), |at, nr, block, usable| {
            for entry in dirent::entries(block, usable) {
                let entry = entry.map_err(Self::bad_block(nr))?;
                let position = at.0 as u64 * block_bytes + entry.offset as u64;
                if !entry.in_use() || position < cookie {
                    continue;
                }
                let found = self.found(nr, usable, &entry)?;
                let next_cookie = position + entry.rec_len as u64;
                let listed = DirEntry { nr: found.inode, kind: found.kind, name: entry.name, next_cookie };
                if !emit(listed) {
                    return Ok(ControlFlow::Break(()));
                }
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(())
    }

    fn read_dots(
        &self,
        r: &impl ReadBlock,
        cookie: u64,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<bool> {
        if cookie >= FIRST_KEY {
            return Ok(true);
        }
        let parent = self.parent_entry(r)?;
        let kind = if self.has_filetype() { FileKind::Directory.dirent_type() } else { 0 };
        let own = DirEntry { nr: self.nr, kind, name: b".", next_cookie: 1 };
        let above = DirEntry { nr: parent.inode, kind, name: b"..", next_cookie: FIRST_KEY };
        Ok((cookie > 0 || emit(own)) && emit(above))
    }

    fn read_one_block(
        &self,
        r: &impl ReadBlock,
        version: HashVersion,
        cookie: u64,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        if !self.read_dots(r, cookie, emit)? {
            return Ok(());
        }
        let mut group = Group::default();
        self.gather(r, version, FileBlock(0), &mut group)?;
        self.emit_group(group, &mut cookie.max(FIRST_KEY), emit)?;
        Ok(())
    }

    fn read_indexed(
        &self,
        r: &impl ReadBlock,
        cookie: u64,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<(), Fault> {
        let hash = u32::try_from(cookie >> 32).map_or(u32::MAX, |half| half << 1);
        let mut path = self.probe(r, |_| hash)?;
        if !self.read_dots(r, cookie, emit)? {
            return Ok(());
        }
        let version = path.info.version;
        // A sound tree has each block as a leaf once at most.
        let mut leaves = self.blocks();
        let mut from = cookie.max(FIRST_KEY);
        loop {
            let mut group = Group::default();
            let next = loop {
                if leaves == 0 || group.blocks.len() >= CHAIN_MAX {
                    let why = "its index has more leaves than it has blocks, or too many of one hash";
                    return Err(Error::corrupt("directory", Place::Inode(self.nr), why).into());
                }
                leaves -= 1;
                self.gather(r, version, path.leaf, &mut group)?;
                match self.next_hash(&path).map_err(Error::from)? {
                    Some((level, hash)) if hash & 1 == 1 => {
                        self.step(r, &mut path, level).map_err(Error::from)?;
                    }
                    next => break next,
                }
            };
            if !self.emit_group(group, &mut from, emit)? {
                return Ok(());
            }
            let Some((level, _)) = next else { return Ok(()) };
            self.step(r, &mut path, level).map_err(Error::from)?;
        }
    }

    /// Takes a leaf's entries into a group.
    fn gather(
        &self,
        r: &impl ReadBlock,
        version: HashVersion,
        at: FileBlock,
        group: &mut Group,
    ) -> Result<()> {
        let (nr, block) = self.leaf(r, at)?;
        for entry in dirent::entries(&block, self.usable(Role::Leaf)) {
            let entry = entry.map_err(Self::bad_block(nr))?;
            let dot = at.0 == 0 && (entry.name == b"." || entry.name == b"..");
            if entry.in_use() && !dot {
                group.entries.push((self.key(version, entry.name), group.blocks.len(), entry.offset));
            }
        }
        group.blocks.push((nr, block));
        Ok(())
    }

    /// Lists a group's entries from key `from` on, and moves it along, so that what a damaged index has in the
    /// wrong place can't make cookies go back; `false` when `emit` has refused an entry.
    fn emit_group(
        &self,
        mut group: Group,
        from: &mut u64,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<bool> {
        let usable = self.usable(Role::Leaf);
        let entry_of = |listed: &Listed| {
            let (nr, block) = group.blocks.get(listed.1)?;
            Some((*nr, dirent::entry_at(block, usable, listed.2).ok()?))
        };
        let name_of = |listed: &Listed| entry_of(listed).map(|(_, entry)| entry.name);
        group.entries.sort_unstable_by(|a, b| a.0.cmp(&b.0).then_with(|| name_of(a).cmp(&name_of(b))));
        // Two names with one key are next to impossible, unless someone looked for them: the second
        // one then takes the next key.
        let mut next_key = FIRST_KEY;
        for listed in &group.entries {
            let key = listed.0.max(next_key);
            next_key = key + 1;
            if key < *from {
                continue;
            }
            let Some((nr, entry)) = entry_of(listed) else { continue };
            let found = self.found(nr, usable, &entry)?;
            let listed =
                DirEntry { nr: found.inode, kind: found.kind, name: entry.name, next_cookie: next_key };
            if !emit(listed) {
                return Ok(false);
            }
            *from = next_key;
        }
        Ok(true)
    }

    /// A name's place in a listing by hash, below 1 << 63.
    fn key(&self, version: HashVersion, name: &[u8]) -> u64 {
        let hash = self.hash(version, name);
        // The legacy hash has 31 bits only, and a big directory many names with the same: another hash,
        // known to nobody else, tells them apart.
        let minor = match (version.to_disk(), HashVersion::from_disk(1, self.geometry.hash_unsigned)) {
            (0, Some(half_md4)) => self.hash(half_md4, name).minor,
            _ => hash.minor,
        };
        ((hash.major as u64 >> 1) << 32 | minor as u64).max(FIRST_KEY)
    }
}
