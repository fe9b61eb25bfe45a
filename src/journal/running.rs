//! The running transaction as the one open handle sees it.

use super::transaction::Transaction;
use super::{Effects, Journal};
use crate::device::Block;
use crate::fault::{injected, Fault};
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::MutexGuard;
use crate::units::{BlockNr, BlockRange, Tid};
use std::sync::Arc;
use std::time::Instant;

/// The update lock's guard: while it lives, nothing else changes the file system and no commit freezes.
pub struct Running<'a> {
    pub(super) journal: &'a Journal,
    pub(super) transaction: MutexGuard<'a, Transaction>,
}

impl Running<'_> {
    /// The transaction's id.
    pub fn tid(&self) -> Tid {
        self.transaction.tid
    }

    /// Puts a block's new version into the transaction; undoes its revoke (rule J6).
    pub fn log(&mut self, nr: BlockNr, block: Arc<Block>) {
        let tid = self.tid();
        if !injected(Fault::RevokeKept) {
            self.transaction.revokes.remove(&nr);
        }
        self.transaction.blocks.insert(nr, block.clone());
        self.journal.records.write().publish(nr, tid, block);
    }

    /// Drops the transaction's versions of the blocks and revokes older ones (rule J7).
    pub fn forget(&mut self, range: BlockRange) {
        let tid = self.tid();
        let transaction = &mut *self.transaction;
        let gone: Vec<BlockNr> =
            transaction.blocks.range(range.start..range.end()).map(|(nr, _)| *nr).collect();
        for nr in gone {
            transaction.blocks.remove(&nr);
        }
        transaction.revokes.extend(self.journal.records.write().forget(range, tid));
    }

    /// In-place data written before now becomes reachable by this transaction (rule J4).
    pub fn reaches_in_place_data(&mut self) {
        self.transaction.data_stamp = self.journal.clock.stamp();
    }

    /// A handle has been published: tells the observer, and keeps what was freed until it is durable.
    pub fn announce(&mut self, effects: Effects) {
        if let Some(observer) = self.journal.observer.get() {
            observer.published(&effects);
        }
        self.transaction.handles += 1;
        if self.transaction.began.is_none() {
            let now = Instant::now();
            self.transaction.began = Some(now);
            self.journal.opened_ns.store((now - self.journal.began).as_nanos() as u64, Relaxed);
        }
        self.transaction.freed.extend(effects.freed);
    }
}
