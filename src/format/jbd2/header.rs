//! The twelve bytes that begin every log block which is not a copy (`journal_header_t`).

use super::{u32_at, MAGIC};
use crate::units::Tid;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 12;

/// What kind of log block it is.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum BlockType {
    /// Tags that say where the blocks behind it belong.
    Descriptor = 1,
    /// The end of a transaction.
    Commit = 2,
    /// The journal superblock, version 1 (no features).
    SuperblockV1 = 3,
    /// The journal superblock, version 2.
    SuperblockV2 = 4,
    /// Blocks whose older copies must not be replayed.
    Revoke = 5,
}

impl BlockType {
    fn from_raw(raw: u32) -> Option<Self> {
        Some(match raw {
            1 => Self::Descriptor,
            2 => Self::Commit,
            3 => Self::SuperblockV1,
            4 => Self::SuperblockV2,
            5 => Self::Revoke,
            _ => return None,
        })
    }
}

/// A log block's header.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// The kind of block.
    pub block_type: BlockType,
    /// The transaction that it belongs to; 0 in a superblock.
    pub tid: Tid,
}

impl Header {
    /// The header of a block, or `None` when it has none (a copy, garbage, or a kind that jbd2
    /// doesn't know, which ends a log as garbage does).
    pub fn decode(block: &[u8]) -> Option<Self> {
        if u32_at(block, 0)? != MAGIC {
            return None;
        }
        Some(Self { block_type: BlockType::from_raw(u32_at(block, 4)?)?, tid: Tid(u32_at(block, 8)?) })
    }

    /// The header's bytes.
    pub fn encode(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&MAGIC.to_be_bytes());
        bytes[4..8].copy_from_slice(&(self.block_type as u32).to_be_bytes());
        bytes[8..].copy_from_slice(&self.tid.0.to_be_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_garbage() {
        let header = Header { block_type: BlockType::Revoke, tid: Tid(0xfeed_0001) };
        let bytes = header.encode();
        assert_eq!(bytes, [0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 5, 0xfe, 0xed, 0, 1]);
        assert_eq!(Header::decode(&bytes), Some(header));
        assert_eq!(Header::decode(&bytes[..11]), None);
        let mut other = bytes;
        other[7] = 6;
        assert_eq!(Header::decode(&other), None);
        other = bytes;
        other[0] = 0;
        assert_eq!(Header::decode(&other), None);
    }
}
