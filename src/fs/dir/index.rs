//! The way through a hash tree: from the root to the leaf of a hash, and on to the next leaf.

use super::blocks::Role;
use super::Dir;
use crate::cache::ReadBlock;
use crate::device::Block;
use crate::error::{Error, Place, Result};
use crate::format::hash::HashVersion;
use crate::format::htree::{self, Index, Kind, RootInfo};
use crate::units::{BlockNr, FileBlock};
use std::sync::Arc;

/// Why a tree could not be followed.
pub(super) enum Fault {
    /// The index makes no sense. Without checksums the blocks can still be searched one by one.
    Damaged(Error),
    /// Anything else.
    Other(Error),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Fault::Other(error)
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Damaged(error) | Fault::Other(error) => error,
        }
    }
}

/// An index block on the way, and the entry that was taken.
pub(super) struct Frame {
    pub(super) file_block: FileBlock,
    pub(super) nr: BlockNr,
    pub(super) kind: Kind,
    pub(super) at: usize,
    block: Arc<Block>,
}

/// A way from the root to a leaf.
pub(super) struct Path {
    pub(super) info: RootInfo,
    /// One for the root and one for each level below it.
    pub(super) frames: Vec<Frame>,
    pub(super) leaf: FileBlock,
}

impl Frame {
    /// The block's array. Its bounds were checked when the frame was made.
    pub(super) fn index(&self, has_csum: bool) -> Result<Index<'_>, Fault> {
        Index::new(&self.block, self.kind, has_csum).map_err(damaged(self.nr))
    }

    /// Whether another entry fits.
    pub(super) fn has_room(&self, has_csum: bool) -> Result<bool, Fault> {
        Ok(self.index(has_csum)?.count() < self.kind.limit(self.block.len(), has_csum))
    }
}

fn damaged(nr: BlockNr) -> impl Fn(&'static str) -> Fault {
    move |why| Fault::Damaged(Error::corrupt("directory index block", Place::Block(nr), why))
}

impl Dir<'_> {
    /// How many levels of index nodes may be below the root, and one more.
    pub(super) fn levels_max(&self) -> u8 {
        if self.has_large_dir() {
            3
        } else {
            2
        }
    }

    /// The way to the (first) leaf for a hash, which `hash` makes with the tree's function.
    pub(super) fn probe(
        &self,
        r: &impl ReadBlock,
        hash: impl FnOnce(HashVersion) -> u32,
    ) -> Result<Path, Fault> {
        let (nr, block) = self.index_block(r, FileBlock(0), Kind::Root)?;
        let info = htree::root_info(&block, self.geometry.hash_unsigned).map_err(damaged(nr))?;
        if info.levels >= self.levels_max() {
            return Err(damaged(nr)("the tree has too many levels"));
        }
        let hash = hash(info.version);
        let mut path = Path { info, frames: Vec::with_capacity(3), leaf: FileBlock(0) };
        self.descend(r, &mut path, FileBlock(0), |index| index.position(hash))?;
        Ok(path)
    }

    /// The entry behind a path's leaf: the level of the index block that has it, and its hash.
    pub(super) fn next_hash(&self, path: &Path) -> Result<Option<(usize, u32)>, Fault> {
        for (level, frame) in path.frames.iter().enumerate().rev() {
            let index = frame.index(self.geometry.has_csum())?;
            if frame.at + 1 < index.count() {
                return Ok(Some((level, index.hash(frame.at + 1))));
            }
        }
        Ok(None)
    }

    /// Moves a path to the next leaf, where [`next_hash`](Self::next_hash) has said that it turns at `level`.
    pub(super) fn step(&self, r: &impl ReadBlock, path: &mut Path, level: usize) -> Result<(), Fault> {
        path.frames.truncate(level + 1);
        let Some(frame) = path.frames.last_mut() else { return Ok(()) };
        frame.at += 1;
        let child = frame.index(self.geometry.has_csum())?.child(frame.at);
        self.descend(r, path, child, |_| 0)
    }

    /// Goes on from `at` down to a leaf, taking in each index block the entry that `choose` picks.
    fn descend(
        &self,
        r: &impl ReadBlock,
        path: &mut Path,
        mut at: FileBlock,
        choose: impl Fn(&Index<'_>) -> usize,
    ) -> Result<(), Fault> {
        loop {
            if let Some(above) = path.frames.last() {
                let circle = path.frames.iter().any(|frame| frame.file_block == at);
                if circle || at.0 >= self.blocks() {
                    return Err(damaged(above.nr)("an index points outside the directory or back at itself"));
                }
            }
            if path.frames.len() > path.info.levels as usize {
                path.leaf = at;
                return Ok(());
            }
            let kind = if path.frames.is_empty() { Kind::Root } else { Kind::Node };
            let (nr, block) = self.index_block(r, at, kind)?;
            let mut frame = Frame { file_block: at, nr, kind, at: 0, block };
            let index = frame.index(self.geometry.has_csum())?;
            let chosen = choose(&index);
            at = index.child(chosen);
            frame.at = chosen;
            path.frames.push(frame);
        }
    }

    fn index_block(
        &self,
        r: &impl ReadBlock,
        at: FileBlock,
        kind: Kind,
    ) -> Result<(BlockNr, Arc<Block>), Fault> {
        let Some(nr) = self.physical(r, at)? else {
            let why = format!("has a hole at index block {at}");
            return Err(Fault::Damaged(Error::corrupt("directory", Place::Inode(self.nr), why)));
        };
        Ok((nr, self.verified(r, nr, Role::Index(kind))?))
    }
}
