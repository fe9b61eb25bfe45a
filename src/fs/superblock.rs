//! The superblock as a block that handles change, and as bytes that mount and unmount write in place.

use super::Fs;
use crate::cache::{Handle, ReadBlock};
use crate::error::{Error, Place, Result};
use crate::format::geometry::Geometry;
use crate::format::superblock::Superblock;
use crate::units::BlockNr;

/// Bytes of the superblock's record.
pub const SUPERBLOCK_BYTES: usize = 1024;

/// The block that holds the primary superblock, and the byte in it.
pub fn place(geometry: &Geometry) -> (BlockNr, usize) {
    let block_bytes = geometry.block_bytes as u64;
    (BlockNr(1024 / block_bytes), (1024 % block_bytes) as usize)
}

fn slot(len: usize, geometry: &Geometry) -> Result<std::ops::Range<usize>> {
    let (nr, at) = place(geometry);
    if len < at + SUPERBLOCK_BYTES {
        return Err(Error::corrupt("superblock", Place::Block(nr), "its block is too short"));
    }
    Ok(at..at + SUPERBLOCK_BYTES)
}

/// The superblock as `r` sees it.
pub fn read(r: &impl ReadBlock, geometry: &Geometry) -> Result<Superblock> {
    let block = r.read_block(place(geometry).0)?;
    Superblock::decode(&block[slot(block.len(), geometry)?])
}

/// Changes the superblock in a handle; its free counts are brought up to date on the way.
pub(crate) fn modify(h: &mut Handle<'_>, fs: &Fs, f: impl FnOnce(&mut Superblock)) -> Result<()> {
    let mut sb = read(h, &fs.geometry)?;
    f(&mut sb);
    sb.free_blocks_count = fs.allocator.free_blocks();
    sb.free_inodes_count = fs.allocator.free_inodes() as u32;
    let block = h.modify(place(&fs.geometry).0)?;
    let range = slot(block.len(), &fs.geometry)?;
    block[range].copy_from_slice(&sb.encode());
    Ok(())
}
