//! Transactions: what the file system changes, made durable in order.
//! Called by `cache/` (handles, reads) and `fs/` (commit, sync, mount); calls `format/` and `device/`.

pub mod log_area;

use crate::device::{Block, SharedDevice};
use crate::error::{Error, Result};
use crate::units::{BlockNr, BlockRange, GroupNr, Tid};
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

/// What a handle did to the bitmaps, told to the allocator when it is published and again when it is durable.
#[derive(Default, Debug, Clone)]
pub struct Effects {
    /// Blocks whose bits were set.
    pub allocated: Vec<BlockRange>,
    /// Blocks whose bits were cleared.
    pub freed: Vec<BlockRange>,
    /// Per group: inodes allocated (> 0) or freed (< 0), and how many of them directories.
    pub inodes: Vec<(GroupNr, i32, i32)>,
}

/// Who keeps count of free space, above the journal.
pub trait Observer: Send + Sync {
    /// A handle was published; called under the update lock.
    fn published(&self, effects: &Effects);
    /// The transaction that freed these blocks is durable: they may be used again.
    fn durable(&self, freed: &[BlockRange]);
}

struct State {
    running: Tid,
    blocks: BTreeMap<BlockNr, Arc<Block>>,
    freed: Vec<BlockRange>,
}

/// The journal (for now: without a log; blocks go home at commit).
pub struct Journal {
    device: SharedDevice,
    block_bytes: u32,
    state: Mutex<State>,
    observer: OnceLock<Arc<dyn Observer>>,
}

impl Journal {
    /// A journal without a log: a commit writes the blocks home and flushes, with no crash promise.
    pub fn without_log(device: SharedDevice, block_bytes: u32) -> Self {
        Self {
            device,
            block_bytes,
            state: Mutex::new(State { running: Tid(1), blocks: BTreeMap::new(), freed: Vec::new() }),
            observer: OnceLock::new(),
        }
    }

    /// Sets who is told of allocations and frees. Once, before the first handle.
    pub fn set_observer(&self, observer: Arc<dyn Observer>) {
        let _ = self.observer.set(observer);
    }

    /// Opens the one handle: waits for log space first, then takes the update lock.
    pub fn start(&self, _credits: u32) -> Result<Running<'_>> {
        Ok(Running { journal: self, state: self.state.lock() })
    }

    /// The newest version of a block that is not home yet.
    pub fn newest(&self, nr: BlockNr) -> Option<Arc<Block>> {
        self.state.lock().blocks.get(&nr).cloned()
    }

    /// The newest versions in a range of blocks that are not home yet.
    pub fn newest_in(&self, range: BlockRange) -> Vec<(BlockNr, Arc<Block>)> {
        let state = self.state.lock();
        state.blocks.range(range.start..range.end()).map(|(nr, b)| (*nr, b.clone())).collect()
    }

    /// Makes everything up to `tid` durable, and waits for it.
    pub fn commit(&self, _tid: Tid) -> Result<()> {
        let (blocks, freed) = {
            let mut state = self.state.lock();
            state.running = state.running.next();
            (std::mem::take(&mut state.blocks), std::mem::take(&mut state.freed))
        };
        for (nr, block) in blocks {
            self.device
                .write_at(nr.0 * self.block_bytes as u64, &block)
                .map_err(|e| Error::io(format!("writing block {nr}"), e))?;
        }
        self.device.flush().map_err(|e| Error::io("flushing", e))?;
        if let Some(observer) = self.observer.get() {
            observer.durable(&freed);
        }
        Ok(())
    }

    /// The running transaction.
    pub fn running_tid(&self) -> Tid {
        self.state.lock().running
    }
}

/// The running transaction, held by the one open handle.
pub struct Running<'a> {
    journal: &'a Journal,
    state: MutexGuard<'a, State>,
}

impl Running<'_> {
    /// The transaction's id.
    pub fn tid(&self) -> Tid {
        self.state.running
    }

    /// Puts a block's new version into the transaction.
    pub fn log(&mut self, nr: BlockNr, block: Arc<Block>) {
        self.state.blocks.insert(nr, block);
    }

    /// Drops this transaction's copies and revokes older ones.
    pub fn forget(&mut self, range: BlockRange) {
        let gone: Vec<_> = self.state.blocks.range(range.start..range.end()).map(|(nr, _)| *nr).collect();
        for nr in gone {
            self.state.blocks.remove(&nr);
        }
    }

    /// See [`crate::cache::Handle::reaches_in_place_data`].
    pub fn reaches_in_place_data(&mut self) {}

    /// Tells the observer.
    pub fn announce(&mut self, effects: Effects) {
        if let Some(observer) = self.journal.observer.get() {
            observer.published(&effects);
        }
        self.state.freed.extend(effects.freed);
    }
}
