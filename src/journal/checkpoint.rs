//! Checkpoint: durable blocks go home, sorted and merged; then the tail moves and log space is free again.
//!
//! Rule J8 in order: home writes, flush, the tail (journal superblock) written and flushed, then the
//! space is reused. What goes home is the last *committed* version, never one that the running
//! transaction has changed, and only after its commit's flush: [`Records`](super::records) knows no other.

use super::engine::{Journal, Log};
use super::stats::Stats;
use crate::device::Block;
use crate::error::{Error, Result};
use crate::fault::{injected, Fault};
use crate::units::{BlockNr, Tid};
use std::io::IoSlice;
use std::sync::Arc;

/// Blocks per batch: how much is written between looks at whether a block was freed meanwhile.
const BATCH_BLOCKS: usize = 256;

/// What becomes of durable blocks that the running transaction revokes.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(super) enum Revoked {
    /// They stay, and hold the tail until the revoke is durable: most need never be written.
    Kept,
    /// They go home too. That is right, since nobody can have got them before the revoke is durable (rule J9).
    Written,
}

impl Journal {
    /// Writes every durable block home and moves the log's tail as far as that allows.
    pub fn checkpoint(&self) -> Result<()> {
        self.checkpoint_with(Revoked::Kept)
    }

    pub(super) fn checkpoint_with(&self, revoked: Revoked) -> Result<()> {
        let Some(log) = &self.log else { return Ok(()) };
        let _one_at_a_time = self.checkpoint_lock.lock();
        if self.is_aborted() {
            return Err(Error::Posix(libc::EIO));
        }
        let result = self.checkpoint_round(log, revoked == Revoked::Written);
        if result.is_err() {
            self.abort();
        }
        result
    }

    fn checkpoint_round(&self, log: &Log, revoked: bool) -> Result<()> {
        let wanted = self.records.read().to_checkpoint(revoked);
        let mut written = Vec::with_capacity(wanted.len());
        for batch in wanted.chunks(BATCH_BLOCKS) {
            self.write_batch(batch, revoked, &mut written)?;
        }
        if !written.is_empty() {
            if !injected(Fault::TailBeforeFlush) {
                self.clock.flush()?;
            }
            let mut records = self.records.write();
            for (nr, tid) in written {
                records.home(nr, tid);
            }
        }
        self.move_tail(log)
    }

    /// Writes the blocks of a batch that are still to go home. They are on record as going home before
    /// they are looked up, so that an in-place write that follows a free can wait for them.
    fn write_batch(
        &self,
        batch: &[(BlockNr, Tid)],
        revoked: bool,
        written: &mut Vec<(BlockNr, Tid)>,
    ) -> Result<()> {
        self.going_home.lock().extend(batch.iter().map(|(nr, _)| *nr));
        let mut blocks = Vec::with_capacity(batch.len());
        {
            let records = self.records.read();
            for (nr, tid) in batch {
                if let Some(block) = records.checkpoint_data(*nr, *tid, revoked) {
                    let uncommitted =
                        injected(Fault::UncommittedGoesHome).then(|| records.newest(*nr)).flatten();
                    let block = uncommitted.unwrap_or(block);
                    blocks.push((*nr, block));
                    written.push((*nr, *tid));
                }
            }
        }
        let result = self.write_home(&blocks);
        let mut going = self.going_home.lock();
        for (nr, _) in batch {
            going.remove(nr);
        }
        self.went_home.notify_all();
        Stats::count(&self.stats.blocks_checkpointed, blocks.len() as u64);
        result
    }

    /// Writes blocks, given in order, to their places; neighbours in one request.
    pub(super) fn write_home(&self, blocks: &[(BlockNr, Arc<Block>)]) -> Result<()> {
        for run in blocks.chunk_by(|a, b| a.0.plus(1) == b.0) {
            let Some((first, _)) = run.first() else { continue };
            let slices: Vec<IoSlice<'_>> = run.iter().map(|(_, b)| IoSlice::new(b)).collect();
            self.device
                .write_vectored_at(first.0 * self.block_bytes as u64, &slices)
                .map_err(|source| Error::io(format!("writing block {first} home"), source))?;
        }
        Ok(())
    }

    /// Makes the log begin with the oldest transaction that is still needed.
    fn move_tail(&self, log: &Log) -> Result<()> {
        let (tail_tid, tail_start, spans) = {
            // In this order: a transaction that becomes durable meanwhile is at least as late as `durable.next()`. And
            // not under the ring's lock, which every handle takes: the search is long.
            let durable = *self.durable.lock();
            let oldest = self.records.read().oldest_not_home();
            let keep_from = oldest.unwrap_or(durable.next());
            let ring = log.ring.lock();
            let gone = ring.spans.iter().take_while(|s| keep_from.is_after(s.tid)).count();
            match ring.spans.get(gone) {
                Some(span) => (span.tid, span.start, gone),
                // An idle log keeps a start that is not zero (rule J11).
                None => match ring.spans.back() {
                    Some(last) => (last.tid.next(), ring.advance(last.start, last.blocks), gone),
                    None => return Ok(()),
                },
            }
        };
        if spans == 0 {
            return Ok(());
        }
        {
            let mut superblock = log.superblock.lock();
            superblock.sequence = tail_tid;
            superblock.start = tail_start;
            log.medium.write_superblock(&superblock)?;
        }
        self.clock.flush()?;
        self.records.write().tail_moved(tail_tid);
        let mut ring = log.ring.lock();
        for _ in 0..spans {
            if let Some(span) = ring.spans.pop_front() {
                ring.free += span.blocks;
            }
        }
        Stats::count(&self.stats.checkpoints, 1);
        Ok(())
    }

    /// Frees log space until `need` blocks are free: by checkpointing, and where revokes that are not durable
    /// hold the tail, by committing them first.
    pub(super) fn make_space(&self, need: u32) -> Result<()> {
        let Some(log) = &self.log else { return Ok(()) };
        if need > log.ring.lock().len() {
            return Err(Error::io(
                "a handle that the log can't hold",
                std::io::ErrorKind::StorageFull.into(),
            ));
        }
        self.checkpoint()?;
        if log.ring.lock().free >= need {
            return Ok(());
        }
        self.commit(self.running_tid())?;
        self.checkpoint()
    }

    /// Writes everything home: commit, checkpoint, until nothing is left. For unmount.
    pub fn drain(&self) -> Result<()> {
        self.commit(self.running_tid())?;
        self.checkpoint()?;
        match self.records.read().len() {
            0 => Ok(()),
            left => Err(Error::io(
                format!("{left} blocks that would not go home"),
                std::io::ErrorKind::Other.into(),
            )),
        }
    }

    /// Marks the drained log empty, with the features that it had before it was mounted. Durable on return.
    pub fn mark_clean(
        &self,
        restore: impl FnOnce(&mut crate::format::jbd2::JournalSuperblock),
    ) -> Result<()> {
        let Some(log) = &self.log else { return Ok(()) };
        let next = self.running_tid();
        let mut superblock = log.superblock.lock();
        superblock.start = 0;
        superblock.sequence = next;
        restore(&mut superblock);
        log.medium.write_superblock(&superblock)?;
        self.clock.flush()
    }
}
