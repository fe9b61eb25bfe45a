//! Commit: one sequential write of a transaction into the log, and one flush.
//!
//! The order on the device (docs/DESIGN.md has the crash argument of each step):
//! 1. in-place data that the transaction makes reachable is flushed, if no flush since has covered it (J4);
//! 2. revoke blocks, descriptors with the blocks' copies, commit block: one write (two where the log wraps);
//! 3. one flush. Nothing of the next transaction is submitted before it has succeeded (J1).
//!
//! With `nojournal_async_commit` the commit block goes out alone, behind a flush of the rest.

use super::checkpoint::Revoked;
use super::engine::{Journal, Log};
use super::log::Span;
use super::stats::Stats;
use super::transaction::Transaction;
use crate::device::Block;
use crate::error::{Error, Result};
use crate::fault::{injected, Fault};
use crate::format::checksum::crc32_be;
use crate::format::jbd2::{
    self, needs_escape, CommitBlock, DescriptorBuilder, LogChecksum, LogFormat, RevokeBuilder,
};
use crate::sync::atomic::Ordering;
use crate::sync::MutexGuard;
use crate::units::BlockRange;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

impl Journal {
    /// Log blocks that a transaction of so many blocks and revokes takes.
    pub(super) fn log_blocks_for(&self, blocks: u32, revokes: u32) -> u32 {
        let Some(log) = &self.log else { return 0 };
        let format = &log.medium.format;
        let descriptors = blocks.div_ceil(format.tags_per_descriptor().max(1) as u32);
        let revoke_blocks = revokes.div_ceil(format.revokes_per_block().max(1) as u32);
        // One more revoke block for what the handle itself may revoke, and the commit block.
        blocks + descriptors + revoke_blocks + 2
    }

    /// Freezes the running transaction and makes it durable. `false`: there was nothing in it.
    pub(super) fn commit_running(&self, _leader: &MutexGuard<'_, ()>) -> Result<bool> {
        if self.is_aborted() {
            return Err(Error::Posix(libc::EIO));
        }
        let began = Instant::now();
        // What can't be committed now never can be.
        let Some(transaction) = self.freeze().inspect_err(|_| self.abort())? else { return Ok(false) };
        match self.write_transaction(&transaction) {
            Ok(span) => {
                self.finish(transaction, span, began);
                Ok(true)
            }
            Err(error) => {
                tracing::error!(%error, tid = transaction.tid.0, "commit failed");
                self.abort();
                Err(error)
            }
        }
    }

    /// Takes the running transaction, when the log has room for it, and lets the next one begin.
    fn freeze(&self) -> Result<Option<Transaction>> {
        loop {
            let mut running = self.running.lock();
            if running.is_empty() {
                return Ok(None);
            }
            let need = self.log_blocks_for(running.blocks.len() as u32, running.revokes.len() as u32);
            if let Some(log) = &self.log {
                let mut ring = log.ring.lock();
                if ring.free < need {
                    drop(ring);
                    drop(running);
                    // Handles reserve what they use, so this is rare: one went beyond its credits, or revoked
                    // much. Nothing but this commit can make those revokes durable, so they can't be waited for.
                    self.checkpoint_with(Revoked::Written)?;
                    if log.ring.lock().free < need {
                        return Err(Error::io(
                            "a transaction that the log can't hold",
                            std::io::ErrorKind::StorageFull.into(),
                        ));
                    }
                    continue;
                }
                ring.free -= need;
                ring.promised = need;
            }
            let next = running.tid.next();
            self.running_tid.store(next.0, Ordering::Release);
            return Ok(Some(std::mem::replace(&mut *running, Transaction::new(next))));
        }
    }

    fn write_transaction(&self, transaction: &Transaction) -> Result<Option<Span>> {
        let reaches = transaction.data_stamp > 0 && !injected(Fault::DataNotFlushed);
        if reaches && !self.clock.is_done(transaction.data_stamp) {
            Stats::count(&self.stats.two_flush_commits, 1);
            self.clock.wait(transaction.data_stamp)?;
        }
        if let Some(log) = &self.log {
            return self.write_to_log(log, transaction).map(Some);
        }
        let blocks: Vec<_> = transaction.blocks.iter().map(|(nr, b)| (*nr, b.clone())).collect();
        self.write_home(&blocks)?;
        self.clock.flush()?;
        Ok(None)
    }

    fn write_to_log(&self, log: &Log, transaction: &Transaction) -> Result<Span> {
        let uuid = log.superblock.lock().uuid;
        let mut image = log_image(&log.medium.format, uuid, transaction);
        let head = log.ring.lock().head;
        let span = Span { tid: transaction.tid, start: head, blocks: image.len() as u32 };
        let commit_block = if log.async_commit { None } else { image.pop() };
        write_runs(log, &image)?;
        if let Some(block) = commit_block {
            self.clock.flush()?;
            let at = log.ring.lock().advance(head, image.len() as u32);
            log.medium.write(at, &[block])?;
        }
        if !injected(Fault::NextBeforeFlush) || transaction.tid.0 % 2 == 0 {
            self.clock.flush()?;
        }
        Stats::count(&self.stats.log_blocks_written, span.blocks as u64);
        Ok(span)
    }

    /// The transaction is durable: its records are live, its frees usable, its waiters right.
    fn finish(&self, transaction: Transaction, span: Option<Span>, began: Instant) {
        let Transaction { tid, blocks, revokes, freed, handles, .. } = transaction;
        let logged = blocks.len() as u64;
        Stats::count(&self.stats.commits, 1);
        Stats::count(&self.stats.handles, handles as u64);
        Stats::count(&self.stats.blocks_logged, logged);
        Stats::count(&self.stats.bytes_logged, logged * u64::from(self.block_bytes));
        Stats::count(&self.stats.revokes, revokes.len() as u64);
        {
            let mut records = self.records.write();
            let homes: Vec<_> = if span.is_none() { blocks.keys().copied().collect() } else { Vec::new() };
            records.committed(tid, blocks, &revokes);
            for nr in homes {
                records.home(nr, tid);
            }
            if span.is_none() {
                records.tail_moved(tid.next());
            }
        }
        let mut checkpoint = false;
        if let (Some(log), Some(span)) = (&self.log, span) {
            let mut ring = log.ring.lock();
            ring.free += ring.promised - span.blocks;
            ring.promised = 0;
            ring.head = ring.advance(span.start, span.blocks);
            ring.spans.push_back(span);
            checkpoint = ring.free < ring.len() / 2;
        }
        self.discard_freed(&freed);
        // Before anybody can see that the transaction is durable: who waited for its frees tries again then.
        if let Some(observer) = self.observer.get() {
            observer.durable(&freed);
        }
        *self.durable.lock() = tid;
        self.stats.commit_time_us.add_us(began.elapsed());
        self.end_hold();
        if checkpoint {
            self.want_checkpoint();
        }
    }
}

/// Writes log blocks from the head on: in one request, in two where the log wraps.
fn write_runs(log: &Log, image: &[Arc<Block>]) -> Result<()> {
    let runs = log.ring.lock().runs_from_head(image.len() as u32);
    let mut rest = image;
    for (start, count) in runs {
        let (now, later) = rest.split_at(count as usize);
        if !now.is_empty() {
            log.medium.write(start, now)?;
        }
        rest = later;
    }
    Ok(())
}

impl Journal {
    /// Tells the device of blocks that have been freed durably, if it is to know. Nobody can have got them yet.
    fn discard_freed(&self, freed: &[BlockRange]) {
        if !self.discard.load(Ordering::Relaxed) {
            return;
        }
        let mut ranges = freed.to_vec();
        ranges.sort_unstable();
        let block_bytes = u64::from(self.block_bytes);
        for run in ranges.chunk_by(|a, b| a.end() == b.start) {
            let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
            let (start, end) = (first.start.0 * block_bytes, last.end().0 * block_bytes);
            if let Err(error) = self.device.discard(start, end - start) {
                // It is only advice, but a device that can't take it need not be asked again.
                tracing::warn!(%error, start, "discarding freed blocks failed; they are no longer discarded");
                self.set_discard(false);
                return;
            }
        }
    }
}

/// The log blocks of a transaction, in order: revokes, descriptors and copies, commit block.
pub(super) fn log_image(format: &LogFormat, uuid: [u8; 16], transaction: &Transaction) -> Vec<Arc<Block>> {
    let format = *format;
    let tid = transaction.tid;
    let mut image = Vec::with_capacity(transaction.blocks.len() + 8);
    let mut revokes = transaction.revokes.iter().copied().peekable();
    while revokes.peek().is_some() && !injected(Fault::RevokeDropped) {
        let mut builder = RevokeBuilder::new(format, tid);
        while revokes.next_if(|nr| builder.push(*nr)).is_some() {}
        image.push(Arc::new(builder.finish()));
    }
    let mut crc = !0u32;
    let mut blocks = transaction.blocks.iter().peekable();
    while blocks.peek().is_some() {
        let mut builder = DescriptorBuilder::new(format, tid, uuid);
        let mut copies = Vec::new();
        while builder.has_room() {
            let Some((nr, block)) = blocks.next() else { break };
            let (copy, escaped) = escaped(block);
            if builder.push(*nr, escaped, format.data_checksum(tid, &copy)) {
                copies.push(copy);
            }
        }
        let descriptor = Arc::new(builder.finish());
        if format.checksum == LogChecksum::V1 {
            crc = crc32_be(crc, &descriptor);
            for copy in &copies {
                crc = crc32_be(crc, copy);
            }
        }
        image.push(descriptor);
        image.append(&mut copies);
    }
    // Rule J2: every commit block carries its CRC, over the bytes as they are in the log.
    let with_crc = format.checksum == LogChecksum::V1 && !injected(Fault::CommitWithoutCrc);
    let crc = with_crc.then_some(crc);
    image.push(Arc::new(CommitBlock::new(tid, crc, SystemTime::now()).encode(&format)));
    image
}

/// A block as it goes into the log: with its first bytes escaped if they are jbd2's magic.
fn escaped(block: &Arc<Block>) -> (Arc<Block>, bool) {
    if needs_escape(block) && !injected(Fault::NotEscaped) {
        let mut copy = Block::clone(block);
        jbd2::escape(&mut copy);
        (Arc::new(copy), true)
    } else {
        (block.clone(), false)
    }
}
