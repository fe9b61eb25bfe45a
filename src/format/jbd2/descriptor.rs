//! Descriptor blocks: which file-system blocks the log blocks behind it are copies of.
//!
//! A tag is `journal_block_tag_t` (no checksum, v1, v2) or `journal_block_tag3_t` (v3); the first tag of a block
//! is followed by the journal's UUID, the others say SAME_UUID.

use super::header::{BlockType, Header, HEADER_BYTES};
use super::{u16_at, u32_at, LogChecksum, LogFormat, MAGIC};
use crate::device::Block;
use crate::units::{BlockNr, Tid};

const UUID_BYTES: usize = 16;

bitflags::bitflags! {
    /// A tag's flags.
    #[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
    pub struct TagFlags: u32 {
        /// The block begins with the log's magic; the log has zeroes there instead.
        const ESCAPE = 1;
        /// No UUID follows.
        const SAME_UUID = 2;
        /// Freed by this transaction; nobody writes or heeds it.
        const DELETED = 4;
        /// The last tag of its block.
        const LAST_TAG = 8;
    }
}

/// One logged block.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Tag {
    /// Where the block belongs.
    pub nr: BlockNr,
    /// Its flags.
    pub flags: TagFlags,
    /// Its checksum (see [`LogFormat::data_checksum`]); `None` where tags have none.
    pub checksum: Option<u32>,
}

/// Whether a block must be escaped in the log.
pub fn needs_escape(block: &[u8]) -> bool {
    u32_at(block, 0) == Some(MAGIC)
}

/// Makes a block that [`needs_escape`] what the log holds of it.
pub fn escape(block: &mut [u8]) {
    if let Some(first) = block.first_chunk_mut::<4>() {
        *first = [0; 4];
    }
}

/// Undoes [`escape`].
pub fn unescape(block: &mut [u8]) {
    if let Some(first) = block.first_chunk_mut::<4>() {
        *first = MAGIC.to_be_bytes();
    }
}

/// The tags of a descriptor block: ends at LAST_TAG or where no further tag fits, as jbd2's walk
/// does. A UUID after the last one that fits is not required to be whole.
pub fn tags<'a>(format: &LogFormat, block: &'a [u8]) -> Tags<'a> {
    let end = format.records_end().min(block.len());
    Tags { format: *format, bytes: block.get(..end).unwrap_or_default(), at: HEADER_BYTES }
}

/// Iterator over a descriptor block's tags.
pub struct Tags<'a> {
    format: LogFormat,
    bytes: &'a [u8],
    at: usize,
}

impl Iterator for Tags<'_> {
    type Item = Tag;

    fn next(&mut self) -> Option<Tag> {
        let record = self.bytes.get(self.at..self.at.checked_add(self.format.tag_bytes())?)?;
        let low = u32_at(record, 0)?;
        let high = if self.format.wide { u32_at(record, 8)? } else { 0 };
        let (flags, checksum) = match self.format.checksum {
            LogChecksum::V3 { .. } => (u32_at(record, 4)?, Some(u32_at(record, 12)?)),
            LogChecksum::V2 { .. } => (u16_at(record, 6)? as u32, Some(u16_at(record, 4)? as u32)),
            LogChecksum::None | LogChecksum::V1 => (u16_at(record, 6)? as u32, None),
        };
        let flags = TagFlags::from_bits_truncate(flags);
        self.at += record.len();
        if !flags.contains(TagFlags::SAME_UUID) {
            self.at += UUID_BYTES;
        }
        if flags.contains(TagFlags::LAST_TAG) {
            self.at = self.bytes.len();
        }
        Some(Tag { nr: BlockNr((high as u64) << 32 | low as u64), flags, checksum })
    }
}

impl LogFormat {
    /// How many tags a descriptor block holds.
    pub fn tags_per_descriptor(&self) -> usize {
        self.records_end().saturating_sub(HEADER_BYTES + UUID_BYTES) / self.tag_bytes()
    }
}

/// Fills one descriptor block.
pub struct DescriptorBuilder {
    format: LogFormat,
    block: Block,
    uuid: [u8; 16],
    at: usize,
    flags_at: Option<usize>,
}

impl DescriptorBuilder {
    /// An empty descriptor block of transaction `tid`; `uuid` is the journal superblock's.
    pub fn new(format: LogFormat, tid: Tid, uuid: [u8; 16]) -> Self {
        let mut block = Block::zeroed(format.block_bytes as usize);
        block[..HEADER_BYTES].copy_from_slice(&Header { block_type: BlockType::Descriptor, tid }.encode());
        Self { format, block, uuid, at: HEADER_BYTES, flags_at: None }
    }

    /// Whether there is room for one more tag.
    pub fn has_room(&self) -> bool {
        let uuid = if self.is_empty() { UUID_BYTES } else { 0 };
        self.at + self.format.tag_bytes() + uuid <= self.format.records_end()
    }

    /// Whether no tag was pushed.
    pub fn is_empty(&self) -> bool {
        self.flags_at.is_none()
    }

    /// Adds the next logged block. `checksum` comes from [`LogFormat::data_checksum`]. Returns whether
    /// there was room ([`has_room`](Self::has_room)); without, nothing happened.
    #[must_use]
    pub fn push(&mut self, nr: BlockNr, escaped: bool, checksum: Option<u32>) -> bool {
        if !self.has_room() {
            return false;
        }
        let mut flags = TagFlags::empty();
        flags.set(TagFlags::ESCAPE, escaped);
        flags.set(TagFlags::SAME_UUID, !self.is_empty());
        let at = self.at;
        let end = at + self.format.tag_bytes();
        let record = &mut self.block[at..end];
        record[..4].copy_from_slice(&(nr.0 as u32).to_be_bytes());
        if self.format.wide {
            record[8..12].copy_from_slice(&((nr.0 >> 32) as u32).to_be_bytes());
        }
        let checksum = checksum.unwrap_or(0);
        match self.format.checksum {
            LogChecksum::V3 { .. } => {
                record[4..8].copy_from_slice(&flags.bits().to_be_bytes());
                record[12..16].copy_from_slice(&checksum.to_be_bytes());
            }
            LogChecksum::V2 { .. } => {
                record[4..6].copy_from_slice(&(checksum as u16).to_be_bytes());
                record[6..8].copy_from_slice(&(flags.bits() as u16).to_be_bytes());
            }
            LogChecksum::None | LogChecksum::V1 => {
                record[6..8].copy_from_slice(&(flags.bits() as u16).to_be_bytes());
            }
        }
        self.at = end;
        if self.is_empty() {
            self.block[end..end + UUID_BYTES].copy_from_slice(&self.uuid);
            self.at += UUID_BYTES;
        }
        // The low byte of the flags is byte 7 in every layout.
        self.flags_at = Some(at + 7);
        true
    }

    /// The block, its last tag marked and its tail sealed. Don't finish an empty one: jbd2 would take the zeroes for tags.
    pub fn finish(mut self) -> Block {
        if let Some(at) = self.flags_at {
            self.block[at] |= TagFlags::LAST_TAG.bits() as u8;
        }
        self.format.seal_tail(&mut self.block);
        self.block
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::all_formats;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn capacity_is_jbd2s() {
        let capacity = |f: &LogFormat| f.tags_per_descriptor();
        let all: Vec<_> = all_formats(4096).iter().map(capacity).collect();
        // none 32/64, v1 32/64, v2 32/64, v3 32/64
        assert_eq!(all, [508, 339, 508, 339, 406, 290, 254, 254]);
    }

    proptest! {
        #[test]
        fn round_trip(blocks in proptest::collection::vec((any::<u64>(), any::<bool>(), any::<u32>()), 1..600)) {
            for format in all_formats(4096) {
                let mut builder = DescriptorBuilder::new(format, Tid(9), [0xab; 16]);
                let mut expected = Vec::new();
                for (nr, escaped, sum) in &blocks {
                    let nr = if format.wide { *nr } else { *nr as u32 as u64 };
                    let sum = format.data_checksum(Tid(9), &sum.to_be_bytes());
                    if !builder.push(BlockNr(nr), *escaped, sum) { break }
                    expected.push((BlockNr(nr), *escaped, sum));
                }
                prop_assert_eq!(expected.len(), blocks.len().min(format.tags_per_descriptor()));
                let block = builder.finish();
                prop_assert!(format.tail_is_right(&block));
                let got: Vec<_> = tags(&format, &block)
                    .map(|t| (t.nr, t.flags.contains(TagFlags::ESCAPE), t.checksum)).collect();
                prop_assert_eq!(got, expected);
            }
        }

        #[test]
        fn any_bytes_are_walked_within_bounds(bytes in proptest::collection::vec(any::<u8>(), 0..2048)) {
            for format in all_formats(1024) {
                prop_assert!(tags(&format, &bytes).count() <= 1024 / 8);
            }
        }
    }

    #[test]
    fn a_changed_byte_breaks_the_tail() {
        for format in all_formats(1024) {
            let mut builder = DescriptorBuilder::new(format, Tid(1), [1; 16]);
            assert!(builder.push(BlockNr(5), false, None));
            let mut block = builder.finish();
            block[200] ^= 1;
            assert_eq!(format.tail_is_right(&block), format.seed().is_none());
        }
    }
}
