//! The file system as a whole, as programs see it: `statfs(2)`, the label, FITRIM.
//! Called by `fuse/`; calls the allocator, the superblock and the device.

use super::attr::Caller;
use super::{superblock, Fs};
use crate::error::{Error, Result};
use crate::format::geometry::Geometry;
use crate::format::{Compat, Superblock};
use crate::units::{BlockNr, BlockRange, GroupNr, InodeNr};

/// The longest name, in bytes (`EXT4_NAME_LEN`).
pub const NAME_MAX: u32 = 255;
/// The longest label, in bytes.
pub const LABEL_MAX: usize = 16;

/// What `statfs(2)` shows; blocks of `block_bytes`.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct StatFs {
    /// Bytes in a block.
    pub block_bytes: u32,
    /// Blocks that files can have, free ones among them: without the format's own (bsddf).
    pub blocks: u64,
    /// Free blocks, less those that delayed writes will take, and those of files that wait to be freed.
    pub free: u64,
    /// Of these, what programs without privilege may use.
    pub available: u64,
    /// Inodes.
    pub inodes: u64,
    /// Free inodes.
    pub free_inodes: u64,
    /// Bytes in the longest name.
    pub name_max: u32,
}

/// Blocks that the format needs for itself (`ext4_calculate_overhead`): superblocks, descriptors and their
/// reserve, bitmaps, inode tables, and the journal's `journal_bytes`.
pub(crate) fn overhead_blocks(geometry: &Geometry, journal_bytes: u64) -> u64 {
    let own = u64::from(geometry.inode_table_blocks()) + 2;
    let groups = (0..geometry.group_count).map(|g| own + u64::from(geometry.base_meta_blocks(GroupNr(g))));
    geometry.first_data_block.0 + groups.sum::<u64>() + journal_bytes / u64::from(geometry.block_bytes)
}

impl Fs {
    /// `statfs(2)`.
    pub fn statfs(&self) -> Result<StatFs> {
        let overhead = if let Some(blocks) = self.overhead_blocks.get() {
            *blocks
        } else {
            let journaled = self.geometry.features.compat.contains(Compat::HAS_JOURNAL);
            let journal = if journaled { self.inode(InodeNr::JOURNAL)?.read().raw.size } else { 0 };
            *self.overhead_blocks.get_or_init(|| overhead_blocks(&self.geometry, journal))
        };
        let space = self.allocator.space();
        // What an unlink has given up is free to programs, whoever still has to clear its bits. (For the moment between the
        // publication of such a free and the note of it, both count.)
        let queued = self.inactivation.units() / u64::from(self.geometry.sectors_per_block());
        let blocks = self.geometry.blocks_count.saturating_sub(overhead);
        Ok(StatFs {
            block_bytes: self.geometry.block_bytes,
            blocks,
            free: (space.free + queued).min(blocks),
            available: (space.available + queued).min(blocks),
            inodes: u64::from(self.geometry.inodes_count),
            free_inodes: self.allocator.free_inodes(),
            name_max: NAME_MAX,
        })
    }

    /// The label, at most [`LABEL_MAX`] bytes.
    pub fn label(&self) -> Result<Vec<u8>> {
        let superblock = self.noting(superblock::read(&*self.cache, &self.geometry))?;
        Ok(label_of(&superblock).to_vec())
    }

    /// Sets the label (FS_IOC_SETFSLABEL).
    pub fn set_label(&self, label: &[u8], caller: &Caller) -> Result<()> {
        if !caller.is_root() {
            return Err(Error::NotPermitted);
        }
        let mut padded = [0; LABEL_MAX];
        padded.get_mut(..label.len()).ok_or(Error::Invalid)?.copy_from_slice(label);
        self.update(1, |h| superblock::modify(h, self, |sb| sb.volume_name = padded))?;
        Ok(())
    }

    /// FITRIM: tells the device of the free runs of at least `min_len` bytes between `start` and `start + len`
    /// (bytes). Returns how many bytes it told of.
    pub fn trim(&self, start: u64, len: u64, min_len: u64) -> Result<u64> {
        let block_bytes = u64::from(self.geometry.block_bytes);
        let (first, least) = (start / block_bytes, min_len.div_ceil(block_bytes));
        if least > u64::from(self.geometry.blocks_per_group)
            || first >= self.geometry.blocks_count
            || len < block_bytes
        {
            return Err(Error::Invalid);
        }
        let end = first.saturating_add(len / block_bytes).min(self.geometry.blocks_count);
        let mut at = first.max(self.geometry.first_data_block.0);
        let mut trimmed = 0;
        while at < end {
            let range = BlockRange::new(BlockNr(at), (end - at).min(u64::from(u32::MAX)) as u32);
            let (_, next) = self.update(1, |h| self.allocator.trim_next(h, range, least as u32))?;
            let Some(run) = next else { break };
            if run.len > 0 {
                let discarded = self.discard(run);
                self.allocator.trimmed(run);
                discarded?;
                trimmed += u64::from(run.len);
            }
            // Always forwards, whatever the allocator says, so that the loop ends.
            at = run.end().0.max(at + 1);
        }
        Ok(trimmed * block_bytes)
    }

    fn discard(&self, run: BlockRange) -> Result<()> {
        let block_bytes = u64::from(self.geometry.block_bytes);
        let result = self.cache.device().discard(run.start.0 * block_bytes, u64::from(run.len) * block_bytes);
        result.map_err(|error| match error.raw_os_error() {
            Some(libc::EOPNOTSUPP) => Error::NotSupported,
            _ => Error::io(format!("discarding {} blocks at block {}", run.len, run.start), error),
        })
    }
}

fn label_of(superblock: &Superblock) -> &[u8] {
    let name = &superblock.volume_name;
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    name.get(..end).unwrap_or_default()
}
