//! The attribute block: found, verified, shared, copied when a sharer changes it, freed with the last.
//!
//! Each inode that refers to a block counts it in its `i_blocks`, shared or not, as the kernel does.

use super::ea_inode;
use crate::cache::{Handle, ReadBlock};
use crate::device::Block;
use crate::error::{Error, Place, Result};
use crate::format::geometry::Geometry;
use crate::format::inode::RawInode;
use crate::format::xattr::{self, Area, AttributeRef};
use crate::fs::alloc::Allocator;
use crate::units::{BlockNr, BlockRange, InodeNr};
use std::sync::Arc;

fn seed(geometry: &Geometry) -> Option<u32> {
    geometry.has_csum().then_some(geometry.csum_seed)
}

/// An inode's attribute block, verified; `None` if it has none.
pub(super) fn read(
    r: &impl ReadBlock,
    geometry: &Geometry,
    nr: InodeNr,
    raw: &RawInode,
) -> Result<Option<Arc<Block>>> {
    let block_nr = raw.file_acl;
    if block_nr.0 == 0 {
        return Ok(None);
    }
    if block_nr.0 <= geometry.first_data_block.0 || block_nr.0 >= geometry.blocks_count {
        return Err(Error::corrupt(
            "inode",
            Place::Inode(nr),
            "its attribute block is outside the file system",
        ));
    }
    let block = r.read_block(block_nr)?;
    if !block.is_verified() {
        xattr::verify_block(&block, block_nr, seed(geometry))?;
        block.set_verified();
    }
    Ok(Some(block))
}

/// Makes `list` what the inode's block holds: allocates, rewrites, copies or frees the block. The record
/// (`raw`) follows in memory; the caller writes it.
pub(super) fn write(
    h: &mut Handle<'_>,
    allocator: &Allocator,
    nr: InodeNr,
    raw: &mut RawInode,
    mut list: Vec<AttributeRef<'_>>,
) -> Result<()> {
    let old = read(h, allocator.geometry(), nr, raw)?;
    let units = u64::from(allocator.geometry().block_bytes / 512);
    let alone = old.as_ref().is_some_and(|block| xattr::refcount(block) == 1);
    let entries = match &old {
        Some(block) => xattr::parse(block, Area::Block, Place::Block(raw.file_acl))?,
        None => Vec::new(),
    };
    ea_inode::release_missing(h, allocator, raw, &entries, &list, alone)?;
    if !alone && !entries.is_empty() {
        // The entries that stay are in two blocks from now on.
        ea_inode::hold_all(h, allocator, &list)?;
    }
    if alone && !list.is_empty() {
        let block = h.modify(raw.file_acl)?;
        xattr::write_block(block, &mut list)?;
        xattr::seal_block(block, raw.file_acl, seed(allocator.geometry()));
        return Ok(());
    }
    if let Some(block) = &old {
        release(h, allocator, raw.file_acl, block)?;
        raw.file_acl = BlockNr(0);
        raw.blocks = raw.blocks.saturating_sub(units);
    }
    if !list.is_empty() {
        let (group, _) = allocator.geometry().group_of_inode(nr);
        let goal = allocator.geometry().group_first_block(group);
        let block_nr = allocator.allocate(h, goal, 1)?.start;
        let block = h.create(block_nr)?;
        xattr::write_block(block, &mut list)?;
        xattr::seal_block(block, block_nr, seed(allocator.geometry()));
        raw.file_acl = block_nr;
        raw.blocks += units;
    }
    Ok(())
}

/// One reference less; the last one frees the block.
fn release(h: &mut Handle<'_>, allocator: &Allocator, nr: BlockNr, block: &Block) -> Result<()> {
    let count = xattr::refcount(block);
    if count > 1 {
        let block = h.modify(nr)?;
        xattr::set_refcount(block, count - 1);
        xattr::seal_block(block, nr, seed(allocator.geometry()));
        return Ok(());
    }
    let range = BlockRange::new(nr, 1);
    allocator.free(h, range)?;
    h.forget(range);
    Ok(())
}
