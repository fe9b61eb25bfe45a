//! Group descriptors and bitmaps as blocks that handles see and change.
//!
//! A group that mke2fs left uninitialised (BLOCK_UNINIT, INODE_UNINIT) has no bitmap on the disk yet:
//! reading computes it, the first change writes it. A bitmap's checksum lies in its descriptor, so both change
//! together (`modify_block_bitmap`, `modify_inode_bitmap`).

use super::alloc::zones::Zones;
use crate::cache::{Handle, ReadBlock};
use crate::device::Block;
use crate::error::{Error, Place, Result};
use crate::format::bitmap;
use crate::format::geometry::Geometry;
use crate::format::group::{GroupDescriptor, GroupFlags};
use crate::units::{BlockNr, GroupNr};
use std::ops::Range;
use std::sync::Arc;

/// The group's descriptor, verified.
pub fn read(r: &impl ReadBlock, geometry: &Geometry, group: GroupNr) -> Result<GroupDescriptor> {
    if group.0 >= geometry.group_count {
        return Err(Error::corrupt("group number", Place::Group(group), "beyond the last group"));
    }
    let (nr, at) = geometry.descriptor_place(group);
    let block = r.read_block(nr)?;
    let bytes = block.get(slot(at, geometry)).ok_or_else(|| short(group))?;
    GroupDescriptor::decode(bytes, geometry, group)
}

/// Changes the group's descriptor.
pub fn modify(
    h: &mut Handle<'_>,
    geometry: &Geometry,
    group: GroupNr,
    f: impl FnOnce(&mut GroupDescriptor),
) -> Result<()> {
    let mut descriptor = read(h, geometry, group)?;
    f(&mut descriptor);
    write(h, geometry, group, &descriptor)
}

fn write(
    h: &mut Handle<'_>,
    geometry: &Geometry,
    group: GroupNr,
    descriptor: &GroupDescriptor,
) -> Result<()> {
    let (nr, at) = geometry.descriptor_place(group);
    let bytes = h.modify(nr)?.get_mut(slot(at, geometry)).ok_or_else(|| short(group))?;
    descriptor.encode(bytes, geometry, group)
}

fn slot(at: usize, geometry: &Geometry) -> Range<usize> {
    at..at + geometry.desc_bytes as usize
}

fn short(group: GroupNr) -> Error {
    Error::corrupt("group descriptor", Place::Group(group), "crosses its block's end")
}

/// The group's block bitmap: one bit per block, verified, or computed while BLOCK_UNINIT is set.
pub(crate) fn block_bitmap(
    r: &impl ReadBlock,
    geometry: &Geometry,
    zones: &Zones,
    group: GroupNr,
    descriptor: &GroupDescriptor,
) -> Result<Arc<Block>> {
    if descriptor.flags.contains(GroupFlags::BLOCK_UNINIT) {
        let mut block = Block::zeroed(geometry.block_bytes as usize);
        fill_block_bitmap(&mut block, geometry, zones, group);
        return Ok(Arc::new(block));
    }
    let block = r.read_block(descriptor.block_bitmap)?;
    if !block.is_verified() {
        verify_block_bitmap(&block, geometry, zones, group, descriptor)?;
        block.set_verified();
    }
    Ok(block)
}

/// The group's inode bitmap: one bit per inode, verified, or computed while INODE_UNINIT is set.
pub(crate) fn inode_bitmap(
    r: &impl ReadBlock,
    geometry: &Geometry,
    group: GroupNr,
    descriptor: &GroupDescriptor,
) -> Result<Arc<Block>> {
    if descriptor.flags.contains(GroupFlags::INODE_UNINIT) {
        let mut block = Block::zeroed(geometry.block_bytes as usize);
        bitmap::set_range(&mut block, inode_padding(geometry));
        return Ok(Arc::new(block));
    }
    let block = r.read_block(descriptor.inode_bitmap)?;
    if !block.is_verified() {
        if geometry.has_csum() && bitmap::inode_csum(&block, geometry) != descriptor.inode_bitmap_csum {
            return Err(bad_bitmap("inode bitmap", descriptor.inode_bitmap, group, "its checksum is wrong"));
        }
        block.set_verified();
    }
    Ok(block)
}

/// Changes the group's block bitmap and descriptor together; the bitmap is made first if need be.
pub(crate) fn modify_block_bitmap(
    h: &mut Handle<'_>,
    geometry: &Geometry,
    zones: &Zones,
    group: GroupNr,
    f: impl FnOnce(&mut [u8], &mut GroupDescriptor) -> Result<()>,
) -> Result<()> {
    let mut descriptor = read(h, geometry, group)?;
    let bits = if descriptor.flags.contains(GroupFlags::BLOCK_UNINIT) {
        descriptor.flags.remove(GroupFlags::BLOCK_UNINIT);
        let bits = h.create(descriptor.block_bitmap)?;
        fill_block_bitmap(bits, geometry, zones, group);
        bits
    } else {
        block_bitmap(h, geometry, zones, group, &descriptor)?;
        h.modify(descriptor.block_bitmap)?
    };
    f(bits, &mut descriptor)?;
    if geometry.has_csum() {
        descriptor.block_bitmap_csum = bitmap::block_csum(bits, geometry);
    }
    write(h, geometry, group, &descriptor)
}

/// Changes the group's inode bitmap and descriptor together; the bitmap is made first if need be.
pub(crate) fn modify_inode_bitmap(
    h: &mut Handle<'_>,
    geometry: &Geometry,
    group: GroupNr,
    f: impl FnOnce(&mut [u8], &mut GroupDescriptor) -> Result<()>,
) -> Result<()> {
    let mut descriptor = read(h, geometry, group)?;
    let bits = if descriptor.flags.contains(GroupFlags::INODE_UNINIT) {
        descriptor.flags.remove(GroupFlags::INODE_UNINIT);
        let bits = h.create(descriptor.inode_bitmap)?;
        bitmap::set_range(bits, inode_padding(geometry));
        bits
    } else {
        inode_bitmap(h, geometry, group, &descriptor)?;
        h.modify(descriptor.inode_bitmap)?
    };
    f(bits, &mut descriptor)?;
    if geometry.has_csum() {
        descriptor.inode_bitmap_csum = bitmap::inode_csum(bits, geometry);
    }
    write(h, geometry, group, &descriptor)
}

/// The bits behind the group's last inode; the format wants them set.
fn inode_padding(geometry: &Geometry) -> Range<u32> {
    geometry.inodes_per_group..geometry.block_bytes * 8
}

/// What a fresh group's bitmap holds: its metadata, and the padding behind its last block.
fn fill_block_bitmap(bits: &mut [u8], geometry: &Geometry, zones: &Zones, group: GroupNr) {
    for range in metadata_bits(geometry, zones, group) {
        bitmap::set_range(bits, range);
    }
    bitmap::set_range(bits, geometry.blocks_in_group(group)..geometry.block_bytes * 8);
}

/// The bits of the group's bitmap that stand for metadata.
fn metadata_bits(geometry: &Geometry, zones: &Zones, group: GroupNr) -> Vec<Range<u32>> {
    let first = geometry.group_first_block(group);
    let blocks = geometry.blocks_in_group(group);
    zones
        .inside(first, blocks)
        .map(|zone| {
            let from = (zone.start.0 - first.0) as u32;
            from..from + zone.len
        })
        .collect()
}

fn verify_block_bitmap(
    block: &Block,
    geometry: &Geometry,
    zones: &Zones,
    group: GroupNr,
    descriptor: &GroupDescriptor,
) -> Result<()> {
    let bad = |why| Err(bad_bitmap("block bitmap", descriptor.block_bitmap, group, why));
    if geometry.has_csum() && bitmap::block_csum(block, geometry) != descriptor.block_bitmap_csum {
        return bad("its checksum is wrong");
    }
    let mut metadata = metadata_bits(geometry, zones, group).into_iter();
    if !metadata.all(|range| bitmap::is_set(block, range)) {
        return bad("the file system's own blocks are free in it");
    }
    Ok(())
}

fn bad_bitmap(structure: &'static str, nr: BlockNr, group: GroupNr, why: &str) -> Error {
    Error::corrupt(structure, Place::Block(nr), format!("{why} (group {group})"))
}
