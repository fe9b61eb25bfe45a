//! Inode records in their table blocks.
//!
//! `i_dtime` of an inode in use belongs to the orphan list (it holds the next orphan's number, also of an inode
//! with links whose truncation is under way), so [`write()`] leaves it alone; [`set_next_orphan`] and [`clear`] change it.

use super::groups;
use crate::cache::{Handle, ReadBlock};
use crate::error::{Error, Place, Result};
use crate::format::geometry::Geometry;
use crate::format::inode::RawInode;
use crate::units::{BlockNr, BlockRange, InodeNr};

/// Blocks of a table that are read together.
const READAHEAD_BLOCKS: u32 = 16;

/// Where an inode's record is: its table block, and the byte in it.
pub fn place(r: &impl ReadBlock, geometry: &Geometry, nr: InodeNr) -> Result<(BlockNr, usize)> {
    if nr.0 == 0 || nr.0 > geometry.inodes_count {
        return Err(Error::corrupt("inode number", Place::Inode(nr), "beyond the last inode"));
    }
    let (group, index) = geometry.group_of_inode(nr);
    let table = groups::read(r, geometry, group)?.inode_table;
    let byte = index as u64 * geometry.inode_bytes as u64;
    let block_bytes = geometry.block_bytes as u64;
    Ok((table.plus(byte / block_bytes), (byte % block_bytes) as usize))
}

/// The blocks that are worth reading together with the inode's: its aligned neighbours in the table, as ext4's
/// `inode_readahead_blks`.
pub fn neighbourhood(r: &impl ReadBlock, geometry: &Geometry, nr: InodeNr) -> Result<BlockRange> {
    let (group, index) = geometry.group_of_inode(nr);
    let table = groups::read(r, geometry, group)?.inode_table;
    let inodes_per_block = (geometry.block_bytes / geometry.inode_bytes).max(1);
    let blocks = geometry.inodes_per_group.div_ceil(inodes_per_block);
    let first = index / inodes_per_block / READAHEAD_BLOCKS * READAHEAD_BLOCKS;
    let len = READAHEAD_BLOCKS.min(blocks.saturating_sub(first));
    Ok(BlockRange::new(table.plus(first.into()), len))
}

fn slot(block: &[u8], at: usize, geometry: &Geometry, nr: InodeNr) -> Result<std::ops::Range<usize>> {
    let range = at..at + geometry.inode_bytes as usize;
    if block.len() < range.end {
        return Err(Error::corrupt("inode table", Place::Inode(nr), "record crosses its block's end"));
    }
    Ok(range)
}

/// Reads and verifies an inode's record.
pub fn read(r: &impl ReadBlock, geometry: &Geometry, nr: InodeNr) -> Result<RawInode> {
    let (block_nr, at) = place(r, geometry, nr)?;
    let block = r.read_block(block_nr)?;
    let range = slot(&block, at, geometry, nr)?;
    RawInode::decode(&block[range], geometry, nr)
}

/// Calls `f` on the bytes of an inode's record (in-inode attributes live in them).
pub fn with_bytes<R>(
    r: &impl ReadBlock,
    geometry: &Geometry,
    nr: InodeNr,
    f: impl FnOnce(&[u8]) -> Result<R>,
) -> Result<R> {
    let (block_nr, at) = place(r, geometry, nr)?;
    let block = r.read_block(block_nr)?;
    let range = slot(&block, at, geometry, nr)?;
    f(&block[range])
}

/// Calls `f` on the bytes of an inode's record to change them; `f` leaves them sealed.
pub fn modify_bytes<R>(
    h: &mut Handle<'_>,
    geometry: &Geometry,
    nr: InodeNr,
    f: impl FnOnce(&mut [u8]) -> Result<R>,
) -> Result<R> {
    let (block_nr, at) = place(h, geometry, nr)?;
    let block = h.modify(block_nr)?;
    let range = slot(block, at, geometry, nr)?;
    f(&mut block[range])
}

/// Writes an inode's record, all but the orphan list's link.
pub fn write(h: &mut Handle<'_>, geometry: &Geometry, nr: InodeNr, raw: &RawInode) -> Result<()> {
    modify_bytes(h, geometry, nr, |bytes| {
        let mut record = raw.clone();
        record.dtime = dtime_of(bytes);
        record.encode(bytes, geometry, nr)
    })
}

/// Writes the record of an inode just allocated; nothing of its number's last life stays.
pub fn create(h: &mut Handle<'_>, geometry: &Geometry, nr: InodeNr, raw: &RawInode) -> Result<()> {
    modify_bytes(h, geometry, nr, |bytes| {
        bytes.fill(0);
        raw.encode(bytes, geometry, nr)
    })
}

/// Writes an inode's record with the next orphan's number (0: none) in `i_dtime`.
pub fn set_next_orphan(
    h: &mut Handle<'_>,
    geometry: &Geometry,
    nr: InodeNr,
    raw: &RawInode,
    next: u32,
) -> Result<()> {
    modify_bytes(h, geometry, nr, |bytes| {
        let mut record = raw.clone();
        record.dtime = next;
        record.encode(bytes, geometry, nr)
    })
}

/// Writes the record of a freed inode: mode and links 0, `i_dtime` the time of its end. The
/// generation stays, for the next life to differ from.
pub fn clear(
    h: &mut Handle<'_>,
    geometry: &Geometry,
    nr: InodeNr,
    raw: &RawInode,
    now_seconds: u32,
) -> Result<()> {
    set_next_orphan(h, geometry, nr, raw, now_seconds)
}

/// `i_dtime` of a record, at byte 0x14 of `struct ext4_inode`.
fn dtime_of(bytes: &[u8]) -> u32 {
    bytes.get(0x14..0x18).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}
