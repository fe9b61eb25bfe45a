//! The classic block map: reading and changing it.

use super::{free_data, Budget, Mapping, Removal};
use crate::cache::{Handle, ReadBlock};
use crate::device::Block;
use crate::error::{Error, Place, Result};
use crate::format::geometry::Geometry;
use crate::format::indirect::{per_block, pointer, set_pointer, Path, DIRECT};
use crate::format::inode::RawInode;
use crate::fs::alloc::Allocator;
use crate::units::{BlockNr, BlockRange, FileBlock, InodeNr};
use std::ops::Range;
use std::sync::Arc;

/// The pointers that one indirect block (or the inode, for the first blocks) has for neighbouring file blocks.
struct Leaf {
    /// `None`: the inode's direct pointers.
    block: Option<Arc<Block>>,
    /// The index of the wanted block's pointer, and how many pointers there are.
    index: u32,
    len: u32,
}

impl Leaf {
    fn pointer(&self, raw: &RawInode, index: u32) -> Option<BlockNr> {
        match &self.block {
            Some(block) => pointer(block, index),
            None => pointer(&raw.block, index),
        }
    }
}

/// How far a walk down the map came.
enum Walk {
    Leaf(Leaf),
    /// A pointer above the leaf is a hole; it has this many indirect blocks before it.
    Hole(usize),
}

fn checked(geometry: &Geometry, nr: InodeNr, block: BlockNr) -> Result<BlockNr> {
    if geometry.holds_block(block) {
        return Ok(block);
    }
    let why = format!("block {block} lies outside the file system");
    Err(Error::corrupt("indirect block pointer", Place::Inode(nr), why))
}

/// Walks down to the leaf; `blocks` gets the indirect blocks on the way, outermost first.
fn walk(
    geometry: &Geometry,
    r: &impl ReadBlock,
    nr: InodeNr,
    raw: &RawInode,
    path: &Path,
    blocks: &mut Vec<BlockNr>,
) -> Result<Walk> {
    let mut leaf = Leaf { block: None, index: path.slot as u32, len: DIRECT };
    for (depth, index) in path.indices().iter().enumerate() {
        let Some(next) = leaf.pointer(raw, leaf.index) else { return Ok(Walk::Hole(depth)) };
        let next = checked(geometry, nr, next)?;
        blocks.push(next);
        leaf = Leaf { block: Some(r.read_block(next)?), index: *index, len: per_block(geometry.block_bytes) };
    }
    Ok(Walk::Leaf(leaf))
}

pub(super) fn lookup(
    geometry: &Geometry,
    r: &impl ReadBlock,
    nr: InodeNr,
    raw: &RawInode,
    block: FileBlock,
    len_max: u32,
) -> Result<Mapping> {
    let len_max = len_max.max(1);
    let Some(path) = Path::to(block, geometry.block_bytes) else {
        return Ok(Mapping::hole(u64::from(len_max), len_max));
    };
    let leaf = match walk(geometry, r, nr, raw, &path, &mut Vec::new())? {
        Walk::Leaf(leaf) => leaf,
        Walk::Hole(depth) => {
            let first = path.first_under(block, depth, geometry.block_bytes);
            let behind = first + path.span(depth, geometry.block_bytes);
            return Ok(Mapping::hole(behind - u64::from(block.0), len_max));
        }
    };
    let first = leaf.pointer(raw, leaf.index);
    let room = leaf.len.saturating_sub(leaf.index).min(len_max);
    let goes_on = |i: &u32| {
        let expected = first.map(|first| first.plus(u64::from(*i)));
        leaf.pointer(raw, leaf.index + i) == expected
    };
    let len = (1..room).find(|i| !goes_on(i)).unwrap_or(room).max(1);
    match first {
        None => Ok(Mapping::hole(u64::from(len), len_max)),
        Some(first) => {
            checked(geometry, nr, first)?;
            checked(geometry, nr, first.plus(u64::from(len) - 1))?;
            Ok(Mapping { physical: Some(first), len, unwritten: false })
        }
    }
}

/// Maps holes from `block` on to `range`; see [`super::insert`].
pub(super) fn insert(
    allocator: &Allocator,
    h: &mut Handle<'_>,
    nr: InodeNr,
    raw: &mut RawInode,
    block: FileBlock,
    range: BlockRange,
) -> Result<()> {
    if range.end().0 > 1 << 32 {
        // Pointers have 32 bits; the allocator looks near a goal that is below that, so this is a full lower part.
        return Err(Error::NoSpace);
    }
    let block_bytes = allocator.geometry().block_bytes;
    let mut done = 0;
    while done < range.len {
        let at = block.plus(done);
        let path = Path::to(at, block_bytes).ok_or(Error::FileTooBig)?;
        let start = range.start.plus(u64::from(done));
        let place = make_leaf(allocator, h, nr, raw, &path, start)?;
        let (index, len) = match path.indices().last() {
            Some(index) => (*index, per_block(block_bytes)),
            None => (path.slot as u32, DIRECT),
        };
        let count = (len.saturating_sub(index)).min(range.len - done).max(1);
        let bytes: &mut [u8] = match place {
            Some(leaf) => h.modify(leaf)?,
            None => &mut raw.block,
        };
        for i in 0..count {
            if pointer(bytes, index + i).is_some() {
                let why = format!("file block {} was to be mapped twice", at.plus(i));
                return Err(Error::corrupt("block map", Place::Inode(nr), why));
            }
            set_pointer(bytes, index + i, Some(start.plus(u64::from(i))));
        }
        done += count;
    }
    Ok(())
}

/// The innermost indirect block on the path, made with those above it where they are missing; `None` for direct pointers.
fn make_leaf(
    allocator: &Allocator,
    h: &mut Handle<'_>,
    nr: InodeNr,
    raw: &mut RawInode,
    path: &Path,
    goal: BlockNr,
) -> Result<Option<BlockNr>> {
    let geometry = allocator.geometry();
    let mut above: Option<BlockNr> = None;
    let mut index = path.slot as u32;
    for next_index in path.indices() {
        let found = match above {
            Some(block) => pointer(&h.read_block(block)?, index),
            None => pointer(&raw.block, index),
        };
        let next = if let Some(next) = found {
            checked(geometry, nr, next)?
        } else {
            let new = allocator.allocate_held(h, goal, 1)?.start;
            if new.0 >= 1 << 32 {
                return Err(Error::NoSpace);
            }
            h.create(new)?;
            raw.blocks += u64::from(geometry.sectors_per_block());
            match above {
                Some(block) => set_pointer(h.modify(block)?, index, Some(new)),
                None => set_pointer(&mut raw.block, index, Some(new)),
            }
            new
        };
        above = Some(next);
        index = *next_index;
    }
    Ok(above)
}

/// See [`super::remove`].
pub(super) fn remove(
    allocator: &Allocator,
    h: &mut Handle<'_>,
    nr: InodeNr,
    raw: &mut RawInode,
    blocks: Range<u64>,
    budget: &mut Budget,
) -> Result<Removal> {
    let geometry = allocator.geometry();
    let mut end = blocks.end;
    let mut freed = 0;
    while end > blocks.start {
        if budget.is_spent(h) {
            return Ok(Removal { freed, rest: Some(blocks.start..end) });
        }
        let last = FileBlock((end - 1) as u32);
        let Some(path) = Path::to(last, geometry.block_bytes) else {
            end -= 1;
            continue;
        };
        let mut above = Vec::new();
        let leaf = match walk(geometry, h, nr, raw, &path, &mut above)? {
            Walk::Leaf(leaf) => leaf,
            Walk::Hole(depth) => {
                end = path.first_under(last, depth, geometry.block_bytes).min(end - 1);
                budget.pieces += prune(allocator, h, raw, &path, &above)?;
                continue;
            }
        };
        let leaf_start = u64::from(last.0).saturating_sub(u64::from(leaf.index));
        let from = blocks.start.max(leaf_start);
        let wanted = (from - leaf_start) as u32..leaf.index + 1;
        let cleared = remove_in(allocator, h, nr, raw, &leaf, wanted, budget, &mut freed)?;
        end = leaf_start + u64::from(cleared.start);
        if !cleared.is_empty() {
            let bytes: &mut [u8] = match above.last() {
                Some(block) => h.modify(*block)?,
                None => &mut raw.block,
            };
            for index in cleared {
                set_pointer(bytes, index, None);
            }
        }
        budget.pieces += prune(allocator, h, raw, &path, &above)?;
    }
    Ok(Removal { freed, rest: None })
}

/// Frees what the leaf's pointers in `wanted` point at, from the last on; returns the part of `wanted` that is done.
#[allow(clippy::too_many_arguments)]
fn remove_in(
    allocator: &Allocator,
    h: &mut Handle<'_>,
    nr: InodeNr,
    raw: &mut RawInode,
    leaf: &Leaf,
    wanted: Range<u32>,
    budget: &mut Budget,
    freed: &mut u64,
) -> Result<Range<u32>> {
    let geometry = allocator.geometry();
    let mut at = wanted.end;
    let mut any = false;
    while at > wanted.start {
        let Some(last) = leaf.pointer(raw, at - 1) else {
            at -= 1;
            continue;
        };
        if any && budget.is_spent(h) {
            break;
        }
        checked(geometry, nr, last)?;
        // The run that ends here, in one group, so that it changes one bitmap.
        let group = geometry.group_of(last);
        let mut len = 1;
        while at - len > wanted.start {
            let Some(before) = last.0.checked_sub(u64::from(len)).map(BlockNr) else { break };
            if leaf.pointer(raw, at - len - 1) != Some(before) || geometry.group_of(before) != group {
                break;
            }
            len += 1;
        }
        let start = BlockNr(last.0 + 1 - u64::from(len));
        free_data(allocator, h, raw, BlockRange::new(start, len))?;
        *freed += u64::from(len);
        at -= len;
        any = true;
        budget.pieces += 1;
    }
    Ok(if any { at..wanted.end } else { at..at })
}

/// Frees the indirect blocks of a path that have no pointer left (or never had one), innermost first; returns how many.
fn prune(
    allocator: &Allocator,
    h: &mut Handle<'_>,
    raw: &mut RawInode,
    path: &Path,
    above: &[BlockNr],
) -> Result<u32> {
    let mut pruned = 0;
    for (depth, block) in above.iter().enumerate().rev() {
        if h.read_block(*block)?.iter().any(|byte| *byte != 0) {
            break;
        }
        free_data(allocator, h, raw, BlockRange::new(*block, 1))?;
        pruned += 1;
        let parent =
            depth.checked_sub(1).and_then(|depth| Some((above.get(depth)?, path.indices().get(depth)?)));
        match parent {
            Some((parent, index)) => set_pointer(h.modify(*parent)?, *index, None),
            None => set_pointer(&mut raw.block, path.slot as u32, None),
        }
    }
    Ok(pruned)
}
