//! Reading extent trees.

use super::Mapping;
use crate::cache::ReadBlock;
use crate::device::Block;
use crate::error::{Error, Place, Result};
use crate::format::extent::{self, Entry, View};
use crate::format::geometry::Geometry;
use crate::format::inode::RawInode;
use crate::units::{BlockNr, FileBlock, InodeNr};
use std::ops::Range;
use std::sync::Arc;

/// All file blocks that an extent tree can have.
pub(super) const ALL: Range<u64> = 0..1 << 32;

/// What checking a tree's nodes takes.
#[derive(Clone)]
pub(super) struct Checker {
    nr: InodeNr,
    /// The seed of the nodes' checksums, if they have any.
    pub(super) seed: Option<u32>,
    area: Range<u64>,
}

impl Checker {
    pub(super) fn new(geometry: &Geometry, nr: InodeNr, raw: &RawInode) -> Self {
        Self {
            nr,
            seed: geometry.has_csum().then(|| geometry.inode_csum_seed(nr, raw.generation)),
            area: geometry.first_data_block.0..geometry.blocks_count,
        }
    }

    /// The root in an inode's record; small, so checked each time.
    pub(super) fn root<'a>(&self, raw: &'a RawInode) -> Result<View<'a>> {
        let view = View::new(&raw.block, Place::Inode(self.nr), None)?;
        view.check_entries(Place::Inode(self.nr), &ALL, &self.area)?;
        Ok(view)
    }

    /// Reads the node that `index` points at. Its checksum and entries are checked when it is first seen; `fully`
    /// checks the entries again, for who changes them (a block may have been verified as something else).
    pub(super) fn child(
        &self,
        r: &impl ReadBlock,
        index: &Entry,
        depth: u16,
        keys: &Range<u64>,
        fully: bool,
    ) -> Result<Arc<Block>> {
        let nr = index.physical;
        let block = r.read_block(nr)?;
        let first = !block.is_verified();
        if first && self.seed.is_some_and(|seed| !extent::is_sealed(&block, seed)) {
            let why = format!("its checksum is wrong (inode {})", self.nr);
            return Err(Error::corrupt("extent node", Place::Block(nr), why));
        }
        let view = View::new(&block, Place::Block(nr), Some(depth))?;
        if first || fully {
            view.check_entries(Place::Block(nr), keys, &self.area)?;
            block.set_verified();
        }
        Ok(block)
    }

    /// An extent's blocks are the file system's: true of checked nodes, so this is for blocks that were checked as something else.
    fn check_extent(&self, extent: &Entry) -> Result<()> {
        let end = extent.physical.0.saturating_add(u64::from(extent.len));
        if extent.physical.0 < self.area.start || end > self.area.end {
            let why = format!("blocks outside the file system ({extent:?})");
            return Err(Error::corrupt("extent", Place::Inode(self.nr), why));
        }
        Ok(())
    }
}

/// The entries around a file block, found from the root down.
struct Around {
    /// The last extent that starts at or before the block.
    extent: Option<Entry>,
    /// Where the next extent starts, or the tree's end.
    next: u64,
}

fn around(checker: &Checker, r: &impl ReadBlock, raw: &RawInode, block: FileBlock) -> Result<Around> {
    let mut keys = ALL;
    let mut node: Option<Arc<Block>> = None;
    let mut depth = checker.root(raw)?.depth();
    // Each round goes one level down, from a root that is at most `DEPTH_MAX` deep.
    loop {
        let view = match &node {
            None => checker.root(raw)?,
            Some(block) => View::new(block, Place::Inode(checker.nr), Some(depth))?,
        };
        let Some(at) = view.search(block) else {
            let next = view.get(0).map_or(keys.end, |entry| u64::from(entry.block.0));
            return Ok(Around { extent: None, next });
        };
        let Some(entry) = view.get(at) else { return Ok(Around { extent: None, next: keys.end }) };
        let next = view.get(at + 1).map_or(keys.end, |entry| u64::from(entry.block.0));
        if depth == 0 {
            checker.check_extent(&entry)?;
            return Ok(Around { extent: Some(entry), next });
        }
        keys = u64::from(entry.block.0)..next;
        depth -= 1;
        node = Some(checker.child(r, &entry, depth, &keys, false)?);
    }
}

pub(super) fn lookup(
    geometry: &Geometry,
    r: &impl ReadBlock,
    nr: InodeNr,
    raw: &RawInode,
    block: FileBlock,
    len_max: u32,
) -> Result<Mapping> {
    let around = around(&Checker::new(geometry, nr, raw), r, raw, block)?;
    let at = u64::from(block.0);
    match around.extent {
        Some(extent) if extent.end() > at => {
            let part = extent.part(at..at + u64::from(len_max.max(1)));
            Ok(Mapping { physical: Some(part.physical), len: part.len, unwritten: part.unwritten })
        }
        _ => Ok(Mapping::hole(around.next.saturating_sub(at), len_max)),
    }
}

/// Where `block` would be if the file went on from its nearest extent.
pub(super) fn nearest(
    geometry: &Geometry,
    r: &impl ReadBlock,
    nr: InodeNr,
    raw: &RawInode,
    block: FileBlock,
) -> Result<Option<BlockNr>> {
    let checker = Checker::new(geometry, nr, raw);
    let found = around(&checker, r, raw, block)?;
    if let Some(extent) = found.extent {
        return Ok(Some(extent.physical.plus(u64::from(block.0) - u64::from(extent.block.0))));
    }
    if found.next >= ALL.end {
        return Ok(None);
    }
    let next = around_next(&checker, r, raw, found.next)?;
    Ok(next.and_then(|extent| extent.physical.0.checked_sub(found.next - u64::from(block.0))).map(BlockNr))
}

fn around_next(checker: &Checker, r: &impl ReadBlock, raw: &RawInode, block: u64) -> Result<Option<Entry>> {
    Ok(around(checker, r, raw, FileBlock(block as u32))?.extent)
}
