//! The log: a ring of blocks, written at the head, freed at the tail.

use super::log_area::LogArea;
use crate::device::{Block, SharedDevice};
use crate::error::{Error, Result};
use crate::format::jbd2::{JournalSuperblock, LogFormat};
use crate::units::Tid;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;

/// A durable transaction's place in the log.
pub(super) struct Span {
    pub(super) tid: Tid,
    pub(super) start: u32,
    pub(super) blocks: u32,
}

/// The ring's state. Block numbers count from the journal's first block (its superblock).
pub(super) struct Ring {
    first: u32,
    last: u32,
    pub(super) head: u32,
    /// Blocks neither in a durable span nor promised to the committing transaction.
    pub(super) free: u32,
    /// Blocks promised to the committing transaction.
    pub(super) promised: u32,
    /// Durable transactions, oldest first.
    pub(super) spans: VecDeque<Span>,
}

impl Ring {
    pub(super) fn new(superblock: &JournalSuperblock) -> Self {
        Self {
            first: superblock.first,
            last: superblock.last(),
            head: superblock.first,
            free: superblock.log_blocks(),
            promised: 0,
            spans: VecDeque::new(),
        }
    }

    /// Blocks in the whole ring.
    pub(super) fn len(&self) -> u32 {
        self.last - self.first
    }

    /// The block `count` further round the ring.
    pub(super) fn advance(&self, from: u32, count: u32) -> u32 {
        let at = from - self.first + count;
        self.first + at % self.len()
    }

    /// The `count` blocks from the head, as at most two runs.
    pub(super) fn runs_from_head(&self, count: u32) -> [(u32, u32); 2] {
        let straight = count.min(self.last - self.head);
        [(self.head, straight), (self.first, count - straight)]
    }
}

/// Where the log lies, and how its blocks look.
pub(super) struct Medium {
    pub(super) device: SharedDevice,
    pub(super) area: LogArea,
    pub(super) format: LogFormat,
}

impl Medium {
    /// Writes blocks from log block `start` on, in as few requests as the journal's layout allows.
    pub(super) fn write(&self, start: u32, blocks: &[Arc<Block>]) -> Result<()> {
        let mut rest = blocks;
        for run in self.area.runs(start, blocks.len() as u32) {
            let (now, later) = rest.split_at((run.len as usize).min(rest.len()));
            let slices: Vec<IoSlice<'_>> = now.iter().map(|b| IoSlice::new(b)).collect();
            let offset = run.start.0 * self.format.block_bytes as u64;
            self.device
                .write_vectored_at(offset, &slices)
                .map_err(|source| Error::io(format!("writing the log at block {}", run.start), source))?;
            rest = later;
        }
        if rest.is_empty() {
            Ok(())
        } else {
            Err(Error::io("writing the log", std::io::ErrorKind::UnexpectedEof.into()))
        }
    }

    /// Writes the journal superblock; not durable before the next flush.
    pub(super) fn write_superblock(&self, superblock: &JournalSuperblock) -> Result<()> {
        let offset = self.area.physical(0)?.0 * self.format.block_bytes as u64;
        self.device
            .write_at(offset, &superblock.encode())
            .map_err(|source| Error::io("writing the journal superblock", source))
    }
}
