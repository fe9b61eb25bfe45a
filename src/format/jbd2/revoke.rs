//! Revoke blocks (`jbd2_journal_revoke_header_t`): block numbers whose copies in this and earlier
//! transactions must not be replayed.

use super::header::{BlockType, Header, HEADER_BYTES};
use super::{u32_at, u64_at, LogFormat};
use crate::device::{buf::SECTOR_BYTES, Block};
use crate::error::{Error, Place, Result};
use crate::fault::{injected, Fault};
use crate::units::{BlockNr, Tid};

/// Where the records begin: header and `r_count`.
const RECORDS_AT: usize = HEADER_BYTES + 4;

impl LogFormat {
    fn record_bytes(&self) -> usize {
        if self.wide {
            8
        } else {
            4
        }
    }

    /// How many records a revoke block takes when it must be whole or not there at all: what fits in
    /// its first sector, since no v1 checksum covers it (rule J3 of the design). v2 and v3 blocks are checksummed, and take all that fits.
    pub fn revokes_per_block(&self) -> usize {
        let sealed = self.seed().is_some() || injected(Fault::RevokeBlockFull);
        let end = if sealed { self.records_end() } else { SECTOR_BYTES.min(self.records_end()) };
        end.saturating_sub(RECORDS_AT) / self.record_bytes()
    }
}

/// Fills one revoke block.
pub struct RevokeBuilder {
    format: LogFormat,
    block: Block,
    count: usize,
}

impl RevokeBuilder {
    /// An empty revoke block of transaction `tid`.
    pub fn new(format: LogFormat, tid: Tid) -> Self {
        let mut block = Block::zeroed(format.block_bytes as usize);
        block[..HEADER_BYTES].copy_from_slice(&Header { block_type: BlockType::Revoke, tid }.encode());
        Self { format, block, count: 0 }
    }

    /// Adds a block. Returns whether there was room; without, nothing happened.
    #[must_use]
    pub fn push(&mut self, nr: BlockNr) -> bool {
        if self.count >= self.format.revokes_per_block() {
            return false;
        }
        let bytes = self.format.record_bytes();
        let at = RECORDS_AT + self.count * bytes;
        self.block[at..at + bytes].copy_from_slice(&nr.0.to_be_bytes()[8 - bytes..]);
        self.count += 1;
        true
    }

    /// The block, sealed.
    pub fn finish(mut self) -> Block {
        let used = (RECORDS_AT + self.count * self.format.record_bytes()) as u32;
        self.block[HEADER_BYTES..RECORDS_AT].copy_from_slice(&used.to_be_bytes());
        self.format.seal_tail(&mut self.block);
        self.block
    }
}

/// The blocks that a revoke block names. `r_count` counts bytes from the block's first; a value that
/// points behind the block is corruption, as jbd2 has it.
pub fn records<'a>(
    format: &LogFormat,
    log_block: u32,
    block: &'a [u8],
) -> Result<impl Iterator<Item = BlockNr> + 'a> {
    let used = u32_at(block, HEADER_BYTES).unwrap_or(u32::MAX) as usize;
    if used > format.records_end() || used > block.len() {
        return Err(Error::corrupt(
            "revoke block",
            Place::LogBlock(log_block),
            format!("it claims {used} bytes of records"),
        ));
    }
    let wide = format.wide;
    Ok(block.get(RECORDS_AT..used).unwrap_or_default().chunks_exact(format.record_bytes()).filter_map(
        move |record| {
            let nr = if wide { u64_at(record, 0)? } else { u32_at(record, 0)? as u64 };
            Some(BlockNr(nr))
        },
    ))
}

#[cfg(test)]
mod tests {
    use super::super::testing::all_formats;
    use super::super::LogChecksum;
    use super::*;

    #[test]
    fn fills_to_the_first_sector_and_reads_back() {
        for format in all_formats(4096) {
            let mut builder = RevokeBuilder::new(format, Tid(3));
            let mut pushed = Vec::new();
            while pushed.len() < 2000 {
                let nr = BlockNr(7 + 3 * pushed.len() as u64 + if format.wide { 1 << 33 } else { 0 });
                if !builder.push(nr) {
                    break;
                }
                pushed.push(nr);
            }
            let expected = match (format.checksum, format.wide) {
                (LogChecksum::None | LogChecksum::V1, true) => 62,
                (LogChecksum::None | LogChecksum::V1, false) => 124,
                (_, true) => 509,
                (_, false) => 1019,
            };
            assert_eq!(pushed.len(), expected);
            let block = builder.finish();
            assert!(format.tail_is_right(&block));
            if format.seed().is_none() {
                assert!(block[512..].iter().all(|b| *b == 0));
            }
            assert_eq!(records(&format, 1, &block).unwrap().collect::<Vec<_>>(), pushed);
        }
    }

    #[test]
    fn a_count_behind_the_block_is_corruption() {
        for format in all_formats(1024) {
            let mut block = RevokeBuilder::new(format, Tid(3)).finish();
            block[12..16].copy_from_slice(&1025u32.to_be_bytes());
            assert!(records(&format, 1, &block).is_err());
            block[12..16].copy_from_slice(&3u32.to_be_bytes());
            assert_eq!(records(&format, 1, &block).unwrap().count(), 0);
        }
    }
}
