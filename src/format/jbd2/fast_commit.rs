//! The fast-commit area's records (`struct ext4_fc_tl`): little-endian tag, length and value, one
//! behind the other. Each block of the area is walked by itself; a record never crosses blocks.

use super::crc32c;
use crate::units::{BlockNr, FileBlock, InodeNr, Tid};

/// Bytes of a record's tag and length.
pub const RECORD_HEADER_BYTES: usize = 4;
const NAME_BYTES_MAX: usize = 255;

/// One record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FcRecord<'a> {
    /// These blocks of the file are mapped so.
    AddRange {
        /// The file.
        nr: InodeNr,
        /// Its first block.
        file_block: FileBlock,
        /// How many blocks.
        len: u32,
        /// Where they are.
        physical: BlockNr,
        /// Allocated, but reads as zeroes.
        unwritten: bool,
    },
    /// These blocks of the file are not mapped.
    DelRange {
        /// The file.
        nr: InodeNr,
        /// Its first block.
        file_block: FileBlock,
        /// How many blocks.
        len: u32,
    },
    /// A directory entry was made with its inode.
    Create(FcName<'a>),
    /// A directory entry was added to an inode that was there.
    Link(FcName<'a>),
    /// A directory entry was removed.
    Unlink(FcName<'a>),
    /// An inode's bytes.
    Inode {
        /// The inode.
        nr: InodeNr,
        /// The on-disk inode, without its block map.
        raw: &'a [u8],
    },
    /// Fills a block.
    Pad,
    /// The end of one fast commit.
    Tail {
        /// The transaction that it belongs behind.
        tid: Tid,
        /// crc32c of the commit's records up to this field.
        crc: u32,
    },
    /// The beginning of the area.
    Head {
        /// Features that the reader must know; none is defined.
        features: u32,
        /// The transaction that the area belongs behind.
        tid: Tid,
    },
}

/// A directory entry in a record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FcName<'a> {
    /// The directory.
    pub parent: InodeNr,
    /// What the entry names.
    pub nr: InodeNr,
    /// The name.
    pub name: &'a [u8],
}

fn u32_le(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn u16_le(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

/// Extents longer than this are unwritten, and the length is what is above it (`EXT_INIT_MAX_LEN`).
const WRITTEN_BLOCKS_MAX: u32 = 32768;

impl<'a> FcRecord<'a> {
    fn decode(tag: u16, value: &'a [u8], inode_bytes: usize) -> Option<Self> {
        let inode = |at| u32_le(value, at).map(InodeNr);
        let name = || {
            let name = value.get(8..)?;
            (1..=NAME_BYTES_MAX).contains(&name.len()).then_some(())?;
            Some(FcName { parent: inode(0)?, nr: inode(4)?, name })
        };
        Some(match (tag, value.len()) {
            (1, 16) => {
                let len = u16_le(value, 8)? as u32;
                let unwritten = len > WRITTEN_BLOCKS_MAX;
                let high = u16_le(value, 10)? as u64;
                Self::AddRange {
                    nr: inode(0)?,
                    file_block: FileBlock(u32_le(value, 4)?),
                    len: if unwritten { len - WRITTEN_BLOCKS_MAX } else { len },
                    physical: BlockNr(high << 32 | u32_le(value, 12)? as u64),
                    unwritten,
                }
            }
            (2, 12) => Self::DelRange {
                nr: inode(0)?,
                file_block: FileBlock(u32_le(value, 4)?),
                len: u32_le(value, 8)?,
            },
            (3, _) => Self::Create(name()?),
            (4, _) => Self::Link(name()?),
            (5, _) => Self::Unlink(name()?),
            (6, len) if (132..=inode_bytes + 4).contains(&len) => {
                Self::Inode { nr: inode(0)?, raw: value.get(4..)? }
            }
            (7, _) => Self::Pad,
            (8, 8..) => Self::Tail { tid: Tid(u32_le(value, 0)?), crc: u32_le(value, 4)? },
            (9, 8) => Self::Head { features: u32_le(value, 0)?, tid: Tid(u32_le(value, 4)?) },
            _ => return None,
        })
    }
}

/// What the walk finds at a place in a fast-commit block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FcItem<'a> {
    /// A record, with its own bytes as the checksum covers them (a tail's without its CRC).
    Record(FcRecord<'a>, &'a [u8]),
    /// A record that is none: unknown tag, or a length that its tag doesn't allow.
    Bad,
}

/// The records of one block of the fast-commit area; ends with the block or behind a bad record.
pub fn records(block: &[u8], inode_bytes: usize) -> impl Iterator<Item = FcItem<'_>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let tag = u16_le(block, at)?;
        let len = u16_le(block, at + 2)? as usize;
        let value_at = at + RECORD_HEADER_BYTES;
        let begin = at;
        at = block.len();
        let Some(value) = block.get(value_at..value_at + len) else { return Some(FcItem::Bad) };
        let Some(record) = FcRecord::decode(tag, value, inode_bytes) else { return Some(FcItem::Bad) };
        at = value_at + len;
        let covered = if matches!(record, FcRecord::Tail { .. }) { value_at + 4 } else { at };
        Some(FcItem::Record(record, block.get(begin..covered).unwrap_or_default()))
    })
}

/// The running checksum of a fast commit's records; begins at 0 for each commit.
pub fn checksum(running: u32, covered: &[u8]) -> u32 {
    crc32c(running, covered)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tlv(tag: u16, value: &[u8]) -> Vec<u8> {
        [&tag.to_le_bytes()[..], &(value.len() as u16).to_le_bytes(), value].concat()
    }

    fn decoded(block: &[u8]) -> Vec<FcItem<'_>> {
        records(block, 256).collect()
    }

    #[test]
    fn records_of_each_kind() {
        let mut range = 12u32.to_le_bytes().to_vec();
        range.extend(3u32.to_le_bytes());
        range.extend(32770u16.to_le_bytes());
        range.extend(1u16.to_le_bytes());
        range.extend(9u32.to_le_bytes());
        let name = [&2u32.to_le_bytes()[..], &12u32.to_le_bytes(), b"file"].concat();
        let tail = [&7u32.to_le_bytes()[..], &0xabcd_u32.to_le_bytes()].concat();
        let block =
            [tlv(9, &[0, 0, 0, 0, 7, 0, 0, 0]), tlv(1, &range), tlv(3, &name), tlv(8, &tail)].concat();
        let items = decoded(&block);
        let only: Vec<_> = items
            .iter()
            .map(|i| if let FcItem::Record(r, _) = i { r.clone() } else { FcRecord::Pad })
            .collect();
        assert_eq!(only[0], FcRecord::Head { features: 0, tid: Tid(7) });
        assert_eq!(
            only[1],
            FcRecord::AddRange {
                nr: InodeNr(12),
                file_block: FileBlock(3),
                len: 2,
                physical: BlockNr(1 << 32 | 9),
                unwritten: true
            }
        );
        assert_eq!(only[2], FcRecord::Create(FcName { parent: InodeNr(2), nr: InodeNr(12), name: b"file" }));
        assert_eq!(only[3], FcRecord::Tail { tid: Tid(7), crc: 0xabcd });
        let FcItem::Record(_, covered) = &items[3] else { panic!("{:?}", items[3]) };
        assert_eq!(*covered, &block[block.len() - 12..block.len() - 4]);
        assert_eq!(items.len(), 4);
    }

    #[test]
    fn a_wrong_length_ends_the_walk() {
        assert_eq!(decoded(&tlv(1, &[0; 15])), [FcItem::Bad]);
        assert_eq!(decoded(&tlv(3, &[0; 8])), [FcItem::Bad]);
        assert_eq!(decoded(&tlv(6, &[0; 300])), [FcItem::Bad]);
        assert_eq!(decoded(&[7, 0, 9, 0, 1, 2]), [FcItem::Bad]);
        assert_eq!(decoded(&[0; 64]), [FcItem::Bad]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_walked_within_bounds(bytes in proptest::collection::vec(any::<u8>(), 0..1024)) {
            prop_assert!(decoded(&bytes).len() <= 256);
        }
    }
}
