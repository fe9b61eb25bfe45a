//! Which device blocks hold a file's blocks: extents or, in older files, indirect blocks.
//! Called by files, directories and the journal's set-up; works on a copy of the inode's record, which the caller
//! writes when it is done. `i_blocks` is kept right here, the map's own blocks included.
//!
//! What is read from the disk is checked before it is used: a map's depth, the order of its entries and the
//! blocks that it names; every loop is bounded by the format's limits.

mod edit;
mod extents;
mod indirect;
mod size;
#[cfg(test)]
mod tests;

pub use size::{blocks_max, insert_credits, metadata_blocks_max, remove_credits};

use super::alloc::Allocator;
use crate::cache::{Handle, ReadBlock};
use crate::error::{Error, Place, Result};
use crate::format::extent::{Node, ROOT_BYTES};
use crate::format::features::Incompat;
use crate::format::geometry::Geometry;
use crate::format::inode::{InodeFlags, RawInode};
use crate::units::{BlockNr, BlockRange, FileBlock, GroupNr, InodeNr};
use std::ops::Range;

/// Part of a file as the map sees it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// The first block's place; `None` in a hole.
    pub physical: Option<BlockNr>,
    /// Blocks of which all this is true, in one run; at least 1.
    pub len: u32,
    /// Allocated, but reads as zeroes.
    pub unwritten: bool,
}

impl Mapping {
    fn hole(len: u64, len_max: u32) -> Self {
        Self { physical: None, len: len.clamp(1, u64::from(len_max.max(1))) as u32, unwritten: false }
    }

    /// The blocks, if there are any.
    pub fn range(&self) -> Option<BlockRange> {
        self.physical.map(|start| BlockRange::new(start, self.len))
    }

    /// Whether there is data: blocks that have been written.
    pub fn is_data(&self) -> bool {
        self.physical.is_some() && !self.unwritten
    }
}

/// Gives a new inode an empty map: of extents where the file system has them.
pub fn init(geometry: &Geometry, raw: &mut RawInode) {
    raw.block = [0; ROOT_BYTES];
    let extents = geometry.features.incompat.contains(Incompat::EXTENT);
    raw.flags.set(InodeFlags::EXTENTS, extents);
    if extents {
        Node::empty(ROOT_BYTES, 0).encode(&mut raw.block);
    }
}

/// What is mapped at `block`: a run of at most `len_max` blocks, or a hole of at least one.
pub fn lookup(
    geometry: &Geometry,
    r: &impl ReadBlock,
    nr: InodeNr,
    raw: &RawInode,
    block: FileBlock,
    len_max: u32,
) -> Result<Mapping> {
    if raw.has_extents() {
        extents::lookup(geometry, r, nr, raw, block, len_max)
    } else {
        indirect::lookup(geometry, r, nr, raw, block, len_max)
    }
}

/// Maps the hole at `block` to blocks that the caller has allocated (or claimed). Only extents can be unwritten.
pub fn insert(
    allocator: &Allocator,
    h: &mut Handle<'_>,
    nr: InodeNr,
    raw: &mut RawInode,
    block: FileBlock,
    range: BlockRange,
    unwritten: bool,
) -> Result<()> {
    let geometry = allocator.geometry();
    if u64::from(block.0) + u64::from(range.len) > blocks_max(geometry, raw) {
        return Err(Error::FileTooBig);
    }
    if allocator.is_own(range) {
        let why = format!("{range:?} was to be mapped, but is the file system's own");
        return Err(Error::corrupt("block map", Place::Inode(nr), why));
    }
    if raw.has_extents() {
        edit::Editor::new(allocator, h, nr, raw).insert(block, range, unwritten)?;
    } else if unwritten {
        return Err(Error::NotSupported);
    } else {
        indirect::insert(allocator, h, nr, raw, block, range)?;
    }
    raw.blocks += u64::from(range.len) * u64::from(geometry.sectors_per_block());
    Ok(())
}

/// Makes what is allocated in `blocks` written; holes stay.
pub fn set_written(
    allocator: &Allocator,
    h: &mut Handle<'_>,
    nr: InodeNr,
    raw: &mut RawInode,
    blocks: Range<u64>,
) -> Result<()> {
    if raw.has_extents() {
        edit::Editor::new(allocator, h, nr, raw).set_state(blocks, false)?;
    }
    Ok(())
}

/// Makes what is allocated in `blocks` read as zeroes; holes stay. Only extents can do that.
pub fn set_unwritten(
    allocator: &Allocator,
    h: &mut Handle<'_>,
    nr: InodeNr,
    raw: &mut RawInode,
    blocks: Range<u64>,
) -> Result<()> {
    if !raw.has_extents() {
        return Err(Error::NotSupported);
    }
    edit::Editor::new(allocator, h, nr, raw).set_state(blocks, true)
}

/// How far [`remove`] got.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Removal {
    /// Data blocks freed by this call.
    pub freed: u64,
    /// What is still to be removed, in another transaction.
    pub rest: Option<Range<u64>>,
}

/// Frees what is allocated in `blocks` (to the file's end: up to `1 << 32`), from the last on, until about `budget` metadata
/// blocks have changed or 8 times as many runs of blocks are freed: call it again, in another handle, with what is left. The blocks are forgotten by the
/// journal (rule J7) and come back when the transaction is durable (rule J9).
pub fn remove(
    allocator: &Allocator,
    h: &mut Handle<'_>,
    nr: InodeNr,
    raw: &mut RawInode,
    blocks: Range<u64>,
    budget: u32,
) -> Result<Removal> {
    let blocks = blocks.start..blocks.end.min(size::addressable(allocator.geometry(), raw));
    if blocks.is_empty() {
        return Ok(Removal { freed: 0, rest: None });
    }
    let mut budget = Budget { stop_at: h.blocks_changed().saturating_add(budget), pieces: 0 };
    if raw.has_extents() {
        edit::Editor::new(allocator, h, nr, raw).remove(blocks, &mut budget)
    } else {
        indirect::remove(allocator, h, nr, raw, blocks, &mut budget)
    }
}

/// What one call of [`remove`] may do.
struct Budget {
    /// How many blocks the handle may have changed.
    stop_at: u32,
    /// Runs of blocks freed so far.
    pieces: u32,
}

impl Budget {
    /// Freed runs that count as one changed block: they take time, and what is freed of the map itself is no
    /// longer among the handle's changed blocks but may need a revoke record.
    const PIECES_PER_BLOCK: u32 = 8;

    /// Whether it is used up. It never is before the first run is freed, so that every call gets on.
    fn is_spent(&self, h: &Handle<'_>) -> bool {
        let changed = h.blocks_changed().saturating_add(self.pieces / Self::PIECES_PER_BLOCK);
        self.pieces > 0 && changed >= self.stop_at
    }
}

/// Frees a run of the file's data blocks, and takes it off `i_blocks`.
fn free_data(allocator: &Allocator, h: &mut Handle<'_>, raw: &mut RawInode, range: BlockRange) -> Result<()> {
    allocator.free(h, range)?;
    let sectors = u64::from(range.len) * u64::from(allocator.geometry().sectors_per_block());
    raw.blocks = raw.blocks.saturating_sub(sectors);
    Ok(())
}

/// Where the file's next block, `block`, had best be: behind the one before it, else where its neighbours would put
/// it, else where the inode's files begin.
pub fn goal(
    geometry: &Geometry,
    r: &impl ReadBlock,
    nr: InodeNr,
    raw: &RawInode,
    block: FileBlock,
) -> Result<BlockNr> {
    let near = if raw.has_extents() {
        extents::nearest(geometry, r, nr, raw, block)?
    } else if let Some(before) = block.0.checked_sub(1) {
        indirect::lookup(geometry, r, nr, raw, FileBlock(before), 1)?.physical.map(|nr| nr.plus(1))
    } else {
        None
    };
    let near = near.filter(|near| geometry.holds_block(*near));
    Ok(near.unwrap_or_else(|| first_goal(geometry, nr, raw)))
}

/// Where an inode's first block had best be: in its group; in a large flex group, where the first group is mostly
/// metadata, directories there and files in the groups behind it.
fn first_goal(geometry: &Geometry, nr: InodeNr, raw: &RawInode) -> BlockNr {
    let (group, _) = geometry.group_of_inode(nr);
    let per_flex = geometry.groups_per_flex();
    let group = if per_flex >= 4 {
        let first = group.0 / per_flex * per_flex;
        let skip = u32::from(raw.is_regular());
        GroupNr((first + skip).min(geometry.group_count.saturating_sub(1)))
    } else {
        group
    };
    geometry.group_first_block(group)
}

/// The first file block at or behind `from` and before `end` that holds data; unwritten blocks are none.
pub fn next_data(
    geometry: &Geometry,
    r: &impl ReadBlock,
    nr: InodeNr,
    raw: &RawInode,
    blocks: Range<u64>,
) -> Result<Option<u64>> {
    seek(geometry, r, nr, raw, blocks, true)
}

/// The first file block at or behind `from` and before `end` that holds no data.
pub fn next_hole(
    geometry: &Geometry,
    r: &impl ReadBlock,
    nr: InodeNr,
    raw: &RawInode,
    blocks: Range<u64>,
) -> Result<Option<u64>> {
    seek(geometry, r, nr, raw, blocks, false)
}

fn seek(
    geometry: &Geometry,
    r: &impl ReadBlock,
    nr: InodeNr,
    raw: &RawInode,
    blocks: Range<u64>,
    data: bool,
) -> Result<Option<u64>> {
    let limit = blocks.end.min(size::addressable(geometry, raw));
    let mut at = blocks.start;
    while at < limit {
        let len_max = (limit - at).min(u64::from(u32::MAX)) as u32;
        let mapping = lookup(geometry, r, nr, raw, FileBlock(at as u32), len_max)?;
        if mapping.is_data() == data {
            return Ok(Some(at));
        }
        at += u64::from(mapping.len);
    }
    // What the map can't address is a hole.
    Ok(Some(at).filter(|at| !data && *at < blocks.end))
}
