//! The journal's records, as jbd2 defines them: superblock, descriptor, revoke and commit blocks,
//! and the fast-commit area. Everything is big-endian but the fast-commit area.
//!
//! What a log block looks like depends on the journal superblock's features; [`LogFormat`] is what
//! follows from them, and every encoder and decoder here takes it.

pub mod commit;
pub mod descriptor;
pub mod fast_commit;
pub mod header;
pub mod revoke;
pub mod superblock;

pub use commit::CommitBlock;
pub use descriptor::{escape, needs_escape, unescape, DescriptorBuilder, Tag, TagFlags};
pub use header::{BlockType, Header};
pub use revoke::RevokeBuilder;
pub use superblock::{Compat, Incompat, JournalSuperblock};

/// The first four bytes of every log block that is not a copy of a file-system block.
pub const MAGIC: u32 = 0xc03b_3998;

/// The fewest blocks a log may have (`JBD2_MIN_JOURNAL_BLOCKS`).
pub const LOG_BLOCKS_MIN: u32 = 1024;

/// Bytes of the checksum at the end of descriptor and revoke blocks (v2 and v3).
const TAIL_BYTES: usize = 4;

/// How the log's blocks are checksummed.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum LogChecksum {
    /// Not at all.
    None,
    /// COMPAT_CHECKSUM: the commit block has the CRC-32 of the descriptors and logged blocks.
    V1,
    /// INCOMPAT_CSUM_V2: crc32c per block, 16 bits of it in the tags.
    V2 {
        /// crc32c of the journal's UUID.
        seed: u32,
    },
    /// INCOMPAT_CSUM_V3: as v2, all 32 bits in the tags.
    V3 {
        /// crc32c of the journal's UUID.
        seed: u32,
    },
}

/// What decides how log blocks are laid out.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct LogFormat {
    /// Bytes in a block.
    pub block_bytes: u32,
    /// INCOMPAT_64BIT: block numbers have 64 bits.
    pub wide: bool,
    /// How blocks are checksummed.
    pub checksum: LogChecksum,
}

impl LogFormat {
    /// The seed of v2 and v3 checksums.
    pub fn seed(&self) -> Option<u32> {
        match self.checksum {
            LogChecksum::V2 { seed } | LogChecksum::V3 { seed } => Some(seed),
            LogChecksum::None | LogChecksum::V1 => None,
        }
    }

    /// Bytes at a descriptor or revoke block's end that hold its checksum.
    pub fn tail_bytes(&self) -> usize {
        if self.seed().is_some() {
            TAIL_BYTES
        } else {
            0
        }
    }

    /// Where a descriptor or revoke block's records end at the latest.
    fn records_end(&self) -> usize {
        (self.block_bytes as usize).saturating_sub(self.tail_bytes())
    }

    /// Bytes of one tag, its UUID not counted (`journal_tag_bytes`; v2's two odd bytes are real).
    pub fn tag_bytes(&self) -> usize {
        match self.checksum {
            LogChecksum::V3 { .. } => 16,
            LogChecksum::V2 { .. } => 10 + self.wide_bytes(),
            LogChecksum::None | LogChecksum::V1 => 8 + self.wide_bytes(),
        }
    }

    fn wide_bytes(&self) -> usize {
        if self.wide {
            4
        } else {
            0
        }
    }

    /// The checksum that the tag of a logged block carries: of the transaction's id and the bytes as
    /// they are in the log (escaped). v2 keeps the low 16 bits. `None` where tags have no checksum.
    pub fn data_checksum(&self, tid: crate::units::Tid, log_bytes: &[u8]) -> Option<u32> {
        let sum = crc32c(crc32c(self.seed()?, &tid.0.to_be_bytes()), log_bytes);
        match self.checksum {
            LogChecksum::V2 { .. } => Some(sum & 0xffff),
            _ => Some(sum),
        }
    }

    /// Writes the checksum into a descriptor or revoke block's tail, where the format has one.
    fn seal_tail(&self, block: &mut [u8]) {
        let Some(seed) = self.seed() else { return };
        if let Some(at) = block.len().checked_sub(TAIL_BYTES) {
            block[at..].fill(0);
            let sum = crc32c(seed, block);
            block[at..].copy_from_slice(&sum.to_be_bytes());
        }
    }

    /// Whether a descriptor or revoke block's tail checksum is right (or the format has none).
    pub fn tail_is_right(&self, block: &[u8]) -> bool {
        let Some(seed) = self.seed() else { return true };
        let Some((body, tail)) = block.split_last_chunk::<TAIL_BYTES>() else { return false };
        crc32c(crc32c(seed, body), &[0; TAIL_BYTES]) == u32::from_be_bytes(*tail)
    }
}

/// The running crc32c that ext4 and jbd2 use (no final inversion).
fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!seed, bytes)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

#[cfg(test)]
pub(crate) mod testing {
    use super::{LogChecksum, LogFormat};

    /// Every layout of log blocks that a journal may have.
    pub(crate) fn all_formats(block_bytes: u32) -> Vec<LogFormat> {
        let sums = [
            LogChecksum::None,
            LogChecksum::V1,
            LogChecksum::V2 { seed: 0x1234_5678 },
            LogChecksum::V3 { seed: 0x9abc_def0 },
        ];
        sums.into_iter()
            .flat_map(|checksum| [false, true].map(|wide| LogFormat { block_bytes, wide, checksum }))
            .collect()
    }
}
