//! Finds and reads the journal of a file system before anything of it has been recovered.
//!
//! What a crash can leave half written (a group descriptor, a block of the inode table) is in the log, whole. So nothing
//! here insists on their checksums: who says that a place is the journal's inode must lead to a valid journal superblock.

use super::log_area::{LogArea, LogInode};
use crate::device::{Block, Device};
use crate::error::{Error, Place, Result};
use crate::format::features::Compat;
use crate::format::geometry::Geometry;
use crate::format::inode::{InodeFlags, RawInode};
use crate::format::jbd2::JournalSuperblock;
use crate::format::superblock::Superblock;
use crate::units::{BlockNr, BlockRange, GroupNr, InodeNr};

/// A journal that was found.
#[derive(Clone, Debug)]
pub struct Located {
    /// Where its blocks are.
    pub area: LogArea,
    /// Its superblock.
    pub superblock: JournalSuperblock,
    /// Why the journal's inode could not be used, when it was found by the superblock's backup of it.
    pub inode_error: Option<String>,
}

impl Located {
    /// The journal's blocks and those of its map: the file system's own.
    pub fn own_blocks(&self) -> Vec<BlockRange> {
        let mut own: Vec<BlockRange> = self.area.runs(0, self.area.len()).collect();
        own.extend(self.area.nodes().iter().map(|nr| BlockRange::new(*nr, 1)));
        own
    }
}

/// Reads one block of the file system.
pub fn read_block(device: &dyn Device, block_bytes: u32, nr: BlockNr) -> Result<Block> {
    let mut block = Block::zeroed(block_bytes as usize);
    device
        .read_at(nr.0.saturating_mul(block_bytes as u64), &mut block)
        .map_err(|e| Error::io(format!("reading block {nr}"), e))?;
    Ok(block)
}

/// The file system's journal, or `None` when it has none. A journal on another device is refused.
pub fn locate(device: &dyn Device, superblock: &Superblock) -> Result<Option<Located>> {
    if !superblock.features.compat.contains(Compat::HAS_JOURNAL) {
        return Ok(None);
    }
    if superblock.journal_inum == 0 {
        return Err(Error::Unsupported("the journal is on another device (external journal)".into()));
    }
    let geometry = Geometry::new(superblock);
    let error = match journal_inode(device, &geometry, InodeNr(superblock.journal_inum))
        .and_then(|inode| open(device, &geometry, &inode))
    {
        Ok((area, superblock)) => return Ok(Some(Located { area, superblock, inode_error: None })),
        // A journal that is there but needs more than we do is not looked for elsewhere.
        Err(error @ Error::Unsupported(_)) => return Err(error),
        Err(error) => error,
    };
    let backup =
        (superblock.jnl_backup_type == 1).then(|| LogInode::from_backup(&superblock.jnl_blocks)).flatten();
    if let Some((area, superblock)) = backup.and_then(|inode| open(device, &geometry, &inode).ok()) {
        return Ok(Some(Located { area, superblock, inode_error: Some(error.to_string()) }));
    }
    Err(error)
}

fn open(device: &dyn Device, geometry: &Geometry, inode: &LogInode) -> Result<(LogArea, JournalSuperblock)> {
    let mut read = |nr| read_block(device, geometry.block_bytes, nr);
    let area = LogArea::from_inode(inode, geometry.block_bytes, geometry.blocks_count, &mut read)?;
    let superblock = JournalSuperblock::decode(&read(area.physical(0)?)?)?;
    superblock.check(geometry.block_bytes, area.len())?;
    Ok((area, superblock))
}

/// The journal's inode, its checksum not looked at.
fn journal_inode(device: &dyn Device, geometry: &Geometry, nr: InodeNr) -> Result<LogInode> {
    let corrupt = |why: String| Error::corrupt("journal inode", Place::Inode(nr), why);
    if !geometry.holds_inode(nr) {
        return Err(corrupt("there is no such inode".into()));
    }
    let (group, index) = geometry.group_of_inode(nr);
    let table = inode_table(device, geometry, group)?;
    let at = index as u64 * geometry.inode_bytes as u64;
    let block_nr = table.plus(at / geometry.block_bytes as u64);
    if !geometry.holds_block(block_nr) {
        return Err(corrupt(format!("it would be in block {block_nr}")));
    }
    let block = read_block(device, geometry.block_bytes, block_nr)?;
    let unchecked = unchecked(geometry);
    let bytes = block.get((at % geometry.block_bytes as u64) as usize..).unwrap_or_default();
    let raw = RawInode::decode(bytes, &unchecked, nr)?;
    if !raw.is_regular() || raw.links == 0 {
        return Err(corrupt(format!("it is no file in use (mode {:o}, {} links)", raw.mode, raw.links)));
    }
    Ok(LogInode { block: raw.block, size: raw.size, extents: raw.flags.contains(InodeFlags::EXTENTS) })
}

/// The same shape without checksums.
fn unchecked(geometry: &Geometry) -> Geometry {
    let mut unchecked = *geometry;
    unchecked.features.ro_compat.remove(crate::format::features::RoCompat::METADATA_CSUM);
    unchecked
}

/// Where a group's inode table begins, its descriptor's checksum not looked at.
fn inode_table(device: &dyn Device, geometry: &Geometry, group: GroupNr) -> Result<BlockNr> {
    let (nr, at) = geometry.descriptor_place(group);
    let block = read_block(device, geometry.block_bytes, nr)?;
    let field = |at: usize| {
        let bytes = block.get(at..at.saturating_add(4)).and_then(|b| b.try_into().ok());
        bytes.map_or(0, u32::from_le_bytes) as u64
    };
    let high = if geometry.is_64bit() { field(at + 0x28) } else { 0 };
    Ok(BlockNr(high << 32 | field(at + 8)))
}
