//! Blocks of the orphan file (feature orphan_file): inode numbers, 0 where free, and a tail of magic and
//! checksum (the kernel's `struct ext4_orphan_block_tail`).

use super::checksum::crc32c;
use super::geometry::Geometry;
use super::wire::{self, Field};
use crate::error::{Error, Place, Result};
use crate::units::{BlockNr, InodeNr};

/// `ob_magic`.
pub const MAGIC: u32 = 0x0b10_ca04;
const TAIL_BYTES: usize = 8;

/// Inode numbers that a block holds.
pub fn entries_per_block(geometry: &Geometry) -> u32 {
    (geometry.block_bytes - TAIL_BYTES as u32) / 4
}

/// The entry at `index`, if it is in use.
pub fn entry(block: &[u8], index: u32) -> Option<InodeNr> {
    match wire::get_u32(block, index as usize * 4) {
        0 => None,
        nr => Some(InodeNr(nr)),
    }
}

/// Sets the entry at `index`; the caller seals the block afterwards.
pub fn set_entry(block: &mut [u8], index: u32, nr: Option<InodeNr>) {
    nr.map_or(0, |nr| nr.0).put(block, index as usize * 4);
}

/// `file_seed` is the [`inode_csum_seed`](Geometry::inode_csum_seed) of the orphan file itself.
fn checksum(block: &[u8], geometry: &Geometry, file_seed: u32, nr: BlockNr) -> u32 {
    let seed = crc32c(file_seed, &nr.0.to_le_bytes());
    crc32c(seed, block.get(..entries_per_block(geometry) as usize * 4).unwrap_or_default())
}

/// Checks the tail of a block of the orphan file.
pub fn verify(block: &[u8], geometry: &Geometry, file_seed: u32, nr: BlockNr) -> Result<()> {
    let bad = |why: String| Err(Error::corrupt("orphan file block", Place::Block(nr), why));
    let tail = geometry.block_bytes as usize - TAIL_BYTES;
    let magic = wire::get_u32(block, tail);
    if magic != MAGIC {
        return bad(format!("its magic number is {magic:#x}, not {MAGIC:#x}"));
    }
    let (stored, computed) = (wire::get_u32(block, tail + 4), checksum(block, geometry, file_seed, nr));
    if geometry.has_csum() && stored != computed {
        return bad(format!("its checksum is {stored:#010x}, not {computed:#010x}"));
    }
    Ok(())
}

/// Writes the tail of a block of the orphan file.
pub fn seal(block: &mut [u8], geometry: &Geometry, file_seed: u32, nr: BlockNr) {
    let tail = geometry.block_bytes as usize - TAIL_BYTES;
    MAGIC.put(block, tail);
    let sum = if geometry.has_csum() { checksum(block, geometry, file_seed, nr) } else { 0 };
    sum.put(block, tail + 4);
}
