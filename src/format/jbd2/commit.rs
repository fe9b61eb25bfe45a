//! Commit blocks (`struct commit_header`): a transaction ends here, and with v1 checksums its CRC.

use super::header::{BlockType, Header, HEADER_BYTES};
use super::{crc32c, u32_at, u64_at, LogChecksum, LogFormat};
use crate::device::Block;
use crate::units::Tid;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// `h_chksum_type` of a v1 CRC-32.
pub const CHECKSUM_CRC32: u8 = 1;
/// `h_chksum_type` (and the journal superblock's `s_checksum_type`) of crc32c.
pub const CHECKSUM_CRC32C: u8 = 4;
const CRC_BYTES: u8 = 4;
const SUM_AT: usize = 16;
const SECONDS_AT: usize = 48;
const NANOSECONDS_AT: usize = 56;

/// A commit block.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct CommitBlock {
    /// The transaction that it ends.
    pub tid: Tid,
    /// v1: what the block says of its transaction's checksum. v2 and v3 seal the block itself instead.
    pub checksum: CommitChecksum,
    /// When it was written; recovery tells stale blocks by it.
    pub time: Duration,
}

/// The three `h_chksum` fields, as v1 reads them.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum CommitChecksum {
    /// Type, size and value all zero: accepted unverified.
    Absent,
    /// The big-endian CRC-32 of the transaction's descriptors and logged blocks (seed ~0, no final xor).
    Crc32(u32),
    /// Anything else, which verifies never.
    Other,
}

impl CommitBlock {
    /// A commit block of `tid` now, with the transaction's CRC where the format has one (v1).
    pub fn new(tid: Tid, crc: Option<u32>, time: SystemTime) -> Self {
        Self {
            tid,
            checksum: crc.map_or(CommitChecksum::Absent, CommitChecksum::Crc32),
            time: time.duration_since(UNIX_EPOCH).unwrap_or_default(),
        }
    }

    /// The block's bytes, sealed as the format wants.
    pub fn encode(&self, format: &LogFormat) -> Block {
        let mut block = Block::zeroed(format.block_bytes as usize);
        let header = Header { block_type: BlockType::Commit, tid: self.tid };
        block[..HEADER_BYTES].copy_from_slice(&header.encode());
        block[SECONDS_AT..SECONDS_AT + 8].copy_from_slice(&self.time.as_secs().to_be_bytes());
        block[NANOSECONDS_AT..NANOSECONDS_AT + 4].copy_from_slice(&self.time.subsec_nanos().to_be_bytes());
        match (format.seed(), format.checksum, self.checksum) {
            (Some(seed), ..) => {
                let sum = crc32c(seed, &block);
                block[SUM_AT..SUM_AT + 4].copy_from_slice(&sum.to_be_bytes());
            }
            (None, LogChecksum::V1, CommitChecksum::Crc32(crc)) => {
                block[12] = CHECKSUM_CRC32;
                block[13] = CRC_BYTES;
                block[SUM_AT..SUM_AT + 4].copy_from_slice(&crc.to_be_bytes());
            }
            _ => {}
        }
        block
    }

    /// Reads a block whose header says that it is a commit block.
    pub fn decode(tid: Tid, block: &[u8]) -> Self {
        let kind = block.get(12).copied().unwrap_or(0);
        let size = block.get(13).copied().unwrap_or(0);
        let value = u32_at(block, SUM_AT).unwrap_or(0);
        let checksum = match (kind, size, value) {
            (0, 0, 0) => CommitChecksum::Absent,
            (CHECKSUM_CRC32, CRC_BYTES, crc) => CommitChecksum::Crc32(crc),
            _ => CommitChecksum::Other,
        };
        let seconds = u64_at(block, SECONDS_AT).unwrap_or(0);
        let nanoseconds = u32_at(block, NANOSECONDS_AT).unwrap_or(0).min(999_999_999);
        Self { tid, checksum, time: Duration::new(seconds, nanoseconds) }
    }

    /// Whether the v2 or v3 checksum over the commit block itself is right (or the format has none).
    pub fn is_sealed(format: &LogFormat, block: &[u8]) -> bool {
        let Some(seed) = format.seed() else { return true };
        let (Some(before), Some(sum), Some(after)) =
            (block.get(..SUM_AT), u32_at(block, SUM_AT), block.get(SUM_AT + 4..))
        else {
            return false;
        };
        crc32c(crc32c(crc32c(seed, before), &[0; 4]), after) == sum
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::all_formats;
    use super::*;

    #[test]
    fn round_trip_in_every_format() {
        let now = UNIX_EPOCH + Duration::new(1 << 33, 5);
        for format in all_formats(1024) {
            let block = CommitBlock::new(Tid(7), Some(0xdead_beef), now).encode(&format);
            assert!(CommitBlock::is_sealed(&format, &block));
            let header = Header::decode(&block).unwrap();
            assert_eq!(header.block_type, BlockType::Commit);
            let read = CommitBlock::decode(header.tid, &block);
            assert_eq!((read.tid, read.time), (Tid(7), Duration::new(1 << 33, 5)));
            let expected = match format.checksum {
                LogChecksum::V1 => CommitChecksum::Crc32(0xdead_beef),
                LogChecksum::None => CommitChecksum::Absent,
                _ => CommitChecksum::Other,
            };
            assert_eq!(read.checksum, expected);
            let mut torn = block.clone();
            torn[50] ^= 1;
            assert_eq!(CommitBlock::is_sealed(&format, &torn), format.seed().is_none());
        }
    }

    #[test]
    fn all_zero_is_absent_and_half_a_checksum_is_not() {
        let format = all_formats(1024)[2];
        let mut block = CommitBlock::new(Tid(7), None, UNIX_EPOCH).encode(&format);
        assert_eq!(CommitBlock::decode(Tid(7), &block).checksum, CommitChecksum::Absent);
        block[12] = CHECKSUM_CRC32;
        assert_eq!(CommitBlock::decode(Tid(7), &block).checksum, CommitChecksum::Other);
    }
}
