//! Finding a name, `..`, and whether a directory is empty.

use super::index::Fault;
use super::{Dir, Found};
use crate::cache::ReadBlock;
use crate::device::Block;
use crate::error::{Error, Place, Result};
use crate::format::dirent::{self, Entry};
use crate::units::{BlockNr, FileBlock, InodeNr};
use std::ops::ControlFlow;

impl Dir<'_> {
    /// The entry of `name` (which may be `.` or `..`).
    pub fn lookup(&self, r: &impl ReadBlock, name: &[u8]) -> Result<Option<Found>> {
        if name.is_empty() || name.len() > dirent::NAME_MAX {
            return Ok(None);
        }
        if self.is_inline() {
            return self.lookup_inline(r, name);
        }
        // The dot entries are in block 0, which has no hash of theirs.
        if self.is_indexed() && name != b"." && name != b".." {
            match self.lookup_indexed(r, name) {
                Ok(found) => return Ok(found),
                Err(Fault::Other(error)) => return Err(error),
                Err(Fault::Damaged(error)) => {
                    tracing::warn!(%error, "searching a directory without its index");
                }
            }
        }
        self.for_each_block(r, FileBlock(0), |_, nr, block, usable| {
            Ok(match self.find_in(nr, block, usable, name)? {
                Some(found) => ControlFlow::Break(found),
                None => ControlFlow::Continue(()),
            })
        })
    }

    fn lookup_indexed(&self, r: &impl ReadBlock, name: &[u8]) -> Result<Option<Found>, Fault> {
        let mut hash = 0;
        let mut path = self.probe(r, |version| {
            hash = self.hash(version, name).major;
            hash
        })?;
        // Names with one hash may go on in the next leaves. A sound tree has each leaf once.
        for _ in 0..self.blocks() {
            let (nr, block) = self.leaf(r, path.leaf)?;
            if let Some(found) = self.find_in(nr, &block, self.usable(super::blocks::Role::Leaf), name)? {
                return Ok(Some(found));
            }
            match self.next_hash(&path)? {
                Some((level, next)) if next & !1 == hash => self.step(r, &mut path, level)?,
                _ => return Ok(None),
            }
        }
        let why = "the tree has more leaves than the directory has blocks";
        Err(Fault::Damaged(Error::corrupt("directory", Place::Inode(self.nr), why)))
    }

    fn find_in(&self, nr: BlockNr, block: &Block, usable: usize, name: &[u8]) -> Result<Option<Found>> {
        let found = dirent::find(block, usable, name).map_err(Self::bad_block(nr))?;
        found.map(|entry| self.found(nr, usable, &entry)).transpose()
    }

    pub(super) fn found(&self, nr: BlockNr, usable: usize, entry: &Entry<'_>) -> Result<Found> {
        if entry.inode > self.geometry.inodes_count {
            let why = format!("an entry names inode {}, beyond the last one", entry.inode);
            return Err(Error::corrupt("directory block", Place::Block(nr), why));
        }
        let kind = if self.has_filetype() { entry.kind & 0xf } else { 0 };
        Ok(Found { inode: InodeNr(entry.inode), kind, block: nr, offset: entry.offset, usable })
    }

    /// What `..` names.
    pub fn parent(&self, r: &impl ReadBlock) -> Result<InodeNr> {
        Ok(self.parent_entry(r)?.inode)
    }

    pub(super) fn parent_entry(&self, r: &impl ReadBlock) -> Result<Found> {
        if self.is_inline() {
            return self.inline_parent();
        }
        // `..` is the second entry of block 0: looked at directly, a big linear directory is not searched.
        let found = self.for_each_block(r, FileBlock(0), |_, nr, block, usable| {
            let mut dots = dirent::entries(block, usable).take(2);
            let (own, parent) = (dots.next(), dots.next());
            Ok(match (own, parent) {
                (Some(Ok(own)), Some(Ok(parent)))
                    if own.name == b"." && parent.name == b".." && parent.in_use() =>
                {
                    ControlFlow::Break(Some(self.found(nr, usable, &parent)?))
                }
                _ => ControlFlow::Break(None),
            })
        })?;
        found
            .flatten()
            .ok_or_else(|| Error::corrupt("directory", Place::Inode(self.nr), "does not begin with . and .."))
    }

    /// Whether there is nothing but `.` and `..`.
    pub fn is_empty(&self, r: &impl ReadBlock) -> Result<bool> {
        if self.is_inline() {
            return self.inline_is_empty(r);
        }
        let found = self.for_each_block(r, FileBlock(0), |_, nr, block, usable| {
            for entry in dirent::entries(block, usable) {
                let entry = entry.map_err(Self::bad_block(nr))?;
                if entry.in_use() && entry.name != b"." && entry.name != b".." {
                    return Ok(ControlFlow::Break(()));
                }
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(found.is_none())
    }
}
