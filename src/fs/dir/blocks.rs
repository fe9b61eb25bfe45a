//! A directory's blocks: found, verified once, changed and sealed, appended.

use super::{Dir, DirMut};
use crate::cache::ReadBlock;
use crate::device::Block;
use crate::error::{Error, Place, Result};
use crate::format::{dirent, htree};
use crate::fs::map;
use crate::units::{BlockNr, BlockRange, FileBlock};
use std::ops::ControlFlow;
use std::sync::Arc;

/// How a block is laid out, which also says where its checksum is.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Role {
    /// Entries up to the tail.
    Leaf,
    /// An index.
    Index(htree::Kind),
}

/// How many blocks are asked for at a time when all are wanted.
const RUN_MAX: u32 = 32;

/// The directory may grow to this many bytes without large_dir (e2fsck wants it so), and with it.
const SIZE_MAX: u64 = 0x7fff_ffff;
const LARGE_SIZE_MAX: u64 = 1 << 41;

impl Dir<'_> {
    /// The bytes of a block with this role that directory entries cover.
    pub(super) fn usable(&self, role: Role) -> usize {
        dirent::usable_bytes(self.block_bytes(), self.geometry.has_csum() && role == Role::Leaf)
    }

    /// The device block of a block of the directory; `None` for a hole.
    pub(super) fn physical(&self, r: &impl ReadBlock, at: FileBlock) -> Result<Option<BlockNr>> {
        let mapping = map::lookup(self.geometry, r, self.nr, self.raw, at, 1)?;
        Ok(mapping.physical.filter(|_| !mapping.unwritten))
    }

    /// A block's contents, verified at their first use.
    pub(super) fn verified(&self, r: &impl ReadBlock, nr: BlockNr, role: Role) -> Result<Arc<Block>> {
        let block = r.read_block(nr)?;
        if !block.is_verified() {
            self.verify(&block, role)
                .map_err(|why| Error::corrupt(structure(role), Place::Block(nr), why))?;
            block.set_verified();
        }
        Ok(block)
    }

    fn verify(&self, block: &[u8], role: Role) -> Result<(), &'static str> {
        match role {
            Role::Leaf => {
                if self.geometry.has_csum() {
                    dirent::check_seal(block, self.seed())?;
                }
                dirent::entries(block, self.usable(role)).try_for_each(|entry| entry.map(drop))
            }
            Role::Index(kind) if self.geometry.has_csum() => htree::check_seal(block, kind, self.seed()),
            Role::Index(_) => Ok(()),
        }
    }

    /// A leaf that must be there, with its device block.
    pub(super) fn leaf(&self, r: &impl ReadBlock, at: FileBlock) -> Result<(BlockNr, Arc<Block>)> {
        let nr = self.physical(r, at)?.ok_or_else(|| {
            Error::corrupt("directory", Place::Inode(self.nr), format!("has a hole at its block {at}"))
        })?;
        Ok((nr, self.verified(r, nr, Role::Leaf)?))
    }

    /// What a block is, by its place and its first entry.
    fn role(&self, at: FileBlock, block: &[u8]) -> Role {
        if self.is_indexed() {
            if at.0 == 0 {
                return Role::Index(htree::Kind::Root);
            }
            // Read as entries, an interior node is one free entry that fills the whole block; no
            // leaf with a checksum looks so, and without checksums the difference doesn't matter.
            let whole = dirent::entry_at(block, self.block_bytes(), 0)
                .is_ok_and(|e| !e.in_use() && e.rec_len == self.block_bytes());
            if whole {
                return Role::Index(htree::Kind::Node);
            }
        }
        Role::Leaf
    }

    /// Calls `f` with each block from `from` on, whatever its role, and the bytes of it that entries cover.
    /// Holes are skipped.
    pub(super) fn for_each_block<T>(
        &self,
        r: &impl ReadBlock,
        from: FileBlock,
        mut f: impl FnMut(FileBlock, BlockNr, &Block, usize) -> Result<ControlFlow<T>>,
    ) -> Result<Option<T>> {
        let end = self.blocks();
        let mut at = from.0;
        while at < end {
            // A hole is passed over at once, however long: a size from the disk may be absurd.
            let mapping = map::lookup(self.geometry, r, self.nr, self.raw, FileBlock(at), end - at)?;
            let len = mapping.len.clamp(1, end - at);
            let first = mapping.physical.filter(|_| !mapping.unwritten);
            for i in 0..first.map_or(0, |_| len) {
                let Some(nr) = first.map(|first| first.plus(i as u64)) else { break };
                if i % RUN_MAX == 0 {
                    let ahead: Vec<_> = BlockRange::new(nr, RUN_MAX.min(len - i)).iter().collect();
                    r.prefetch(&ahead);
                }
                let file_block = FileBlock(at + i);
                let role = self.role(file_block, &r.read_block(nr)?);
                let block = self.verified(r, nr, role)?;
                if let ControlFlow::Break(found) = f(file_block, nr, &block, self.usable(role))? {
                    return Ok(Some(found));
                }
            }
            at += len;
        }
        Ok(None)
    }

    /// An entry's structural fault as an error.
    pub(super) fn bad_block(nr: BlockNr) -> impl Fn(&'static str) -> Error {
        move |why| Error::corrupt("directory block", Place::Block(nr), why)
    }
}

fn structure(role: Role) -> &'static str {
    match role {
        Role::Leaf => "directory block",
        Role::Index(_) => "directory index block",
    }
}

impl DirMut<'_, '_> {
    /// Changes a block that is known to be sound, and seals it.
    pub(super) fn change<T>(
        &mut self,
        nr: BlockNr,
        role: Role,
        f: impl FnOnce(&mut [u8]) -> Result<T, &'static str>,
    ) -> Result<T> {
        let block = self.h.modify(nr)?;
        let result = f(block).map_err(|why| Error::corrupt(structure(role), Place::Block(nr), why))?;
        self.seal(nr, role)?;
        Ok(result)
    }

    fn seal(&mut self, nr: BlockNr, role: Role) -> Result<()> {
        if !self.geometry.has_csum() {
            return Ok(());
        }
        let seed = self.view().seed();
        let block = self.h.modify(nr)?;
        match role {
            Role::Leaf => dirent::seal(block, seed),
            Role::Index(kind) => htree::seal(block, kind, seed),
        }
        Ok(())
    }

    /// Adds a block at the directory's end, filled by `f` and sealed.
    pub(super) fn append(
        &mut self,
        role: Role,
        f: impl FnOnce(&mut [u8]) -> Result<(), &'static str>,
    ) -> Result<(FileBlock, BlockNr)> {
        let block_bytes = self.geometry.block_bytes as u64;
        let size_max = if self.view().has_large_dir() { LARGE_SIZE_MAX } else { SIZE_MAX };
        let at = self.view().blocks();
        let size = (at as u64 + 1) * block_bytes;
        if size > size_max {
            tracing::warn!(directory = %self.nr, "a directory has reached its greatest size");
            return Err(Error::NoSpace);
        }
        let goal = map::goal(self.geometry, &*self.h, self.nr, self.raw, FileBlock(at))?;
        let range = self.allocator.allocate(self.h, goal, 1)?;
        map::insert(self.allocator, self.h, self.nr, self.raw, FileBlock(at), range, false)?;
        self.raw.size = size;
        self.h.create(range.start)?;
        self.change(range.start, role, f)?;
        Ok((FileBlock(at), range.start))
    }
}
