//! The metadata block cache: sharded, bounded, and never the owner of the only copy of anything.
//!
//! Invariants:
//! 1. A `Ready` slot holds the newest published version of its block.
//! 2. A block that may be dropped can be had again: the journal holds every version that is not
//!    home yet, the device the rest. So any slot may be evicted at any time.
//! 3. Who loads a block fills only the slot it opened itself (its ticket): a version published
//!    meanwhile stays.

use super::clock::Clock;
use super::{Handle, ReadBlock};
use crate::device::{Block, SharedDevice};
use crate::error::{Error, Result};
use crate::journal::Journal;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Condvar, Mutex};
use crate::units::{BlockNr, BlockRange, Tid};
use rustc_hash::FxHashMap;
use std::sync::Arc;

const SHARDS: usize = 32;

/// How often [`BlockCache::update`] reads a missing block and tries again before it gives up: more
/// than any operation's blocks, so only a cache far too small for one operation gets there.
const ATTEMPTS_MAX: u32 = 100_000;

/// A longer range is removed by a walk over the cache, not block by block.
const RANGE_BY_BLOCK_MAX: u32 = 1024;

enum Slot {
    Loading(u64),
    Ready { block: Arc<Block>, referenced: bool },
}

#[derive(Default)]
struct Shard {
    slots: FxHashMap<BlockNr, Slot>,
    clock: Clock<BlockNr>,
}

/// The metadata blocks in memory, over the journal and the device.
pub struct BlockCache {
    device: SharedDevice,
    journal: Arc<Journal>,
    block_bytes: u32,
    blocks_per_shard: usize,
    shards: Vec<(Mutex<Shard>, Condvar)>,
    ticket: AtomicU64,
}

impl BlockCache {
    /// A cache of at most `cache_bytes` over a device and its journal.
    pub fn new(device: SharedDevice, journal: Arc<Journal>, block_bytes: u32, cache_bytes: u64) -> Self {
        let blocks = (cache_bytes / block_bytes as u64) as usize;
        Self {
            device,
            journal,
            block_bytes,
            blocks_per_shard: (blocks / SHARDS).max(64),
            shards: (0..SHARDS).map(|_| Default::default()).collect(),
            ticket: AtomicU64::new(0),
        }
    }

    /// Bytes in a block.
    pub fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// The journal that changes go to.
    pub fn journal(&self) -> &Arc<Journal> {
        &self.journal
    }

    /// The device below.
    pub fn device(&self) -> &SharedDevice {
        &self.device
    }

    fn shard(&self, nr: BlockNr) -> &(Mutex<Shard>, Condvar) {
        // Neighbours often belong to one operation; spread them by a multiplicative hash.
        let hash = nr.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 59;
        &self.shards[hash as usize % SHARDS]
    }

    /// The block if it is in memory.
    pub fn cached(&self, nr: BlockNr) -> Option<Arc<Block>> {
        let mut shard = self.shard(nr).0.lock();
        match shard.slots.get_mut(&nr) {
            Some(Slot::Ready { block, referenced }) => {
                *referenced = true;
                Some(block.clone())
            }
            _ => None,
        }
    }

    /// The newest version of a block, read from the journal's memory or the device on a miss
    /// (unless this thread is [not to wait](super::without_waiting)).
    pub fn read(&self, nr: BlockNr) -> Result<Arc<Block>> {
        let (lock, loaded) = self.shard(nr);
        let ticket = {
            let mut shard = lock.lock();
            loop {
                match shard.slots.get_mut(&nr) {
                    Some(Slot::Ready { block, referenced }) => {
                        *referenced = true;
                        return Ok(block.clone());
                    }
                    _ if !super::patience::may_wait() => return Err(Error::NotCached(nr)),
                    Some(Slot::Loading(_)) => loaded.wait(&mut shard),
                    None => break,
                }
            }
            let ticket = self.ticket.fetch_add(1, Ordering::Relaxed);
            shard.slots.insert(nr, Slot::Loading(ticket));
            ticket
        };
        let result = self.load(nr);
        if !self.close_slot(nr, ticket, result.as_ref().ok().cloned()) {
            if let Some(Slot::Ready { block, .. }) = lock.lock().slots.get(&nr) {
                return Ok(block.clone());
            }
        }
        result
    }

    /// Says that the block is being loaded, unless it is in memory or somebody has said so.
    fn open_slot(&self, nr: BlockNr) -> Option<u64> {
        let mut shard = self.shard(nr).0.lock();
        if shard.slots.contains_key(&nr) {
            return None;
        }
        let ticket = self.ticket.fetch_add(1, Ordering::Relaxed);
        shard.slots.insert(nr, Slot::Loading(ticket));
        Some(ticket)
    }

    /// Loads blocks that lie one behind the other, whose slots the caller has opened.
    fn fill_run(&self, run: &[(BlockNr, u64)]) {
        let Some((first, _)) = run.first() else { return };
        let block_bytes = self.block_bytes as usize;
        let mut bytes = vec![0; run.len() * block_bytes];
        // Before the device is read, as in `read_data`.
        let newer: Vec<_> = run.iter().map(|(nr, _)| self.journal.newest(*nr)).collect();
        let read = self.device.read_at(first.0.saturating_mul(self.block_bytes.into()), &mut bytes);
        for (((nr, ticket), newer), bytes) in run.iter().zip(newer).zip(bytes.chunks(block_bytes)) {
            let block = match (newer, &read) {
                (Some(block), _) => Some(block),
                (None, Ok(())) => Some(Arc::new(Block::from_bytes(bytes))),
                (None, Err(_)) => None,
            };
            self.close_slot(*nr, *ticket, block);
        }
    }

    /// Ends a load: fills the slot if it is still the loader's (invariant 3). Whether it was.
    fn close_slot(&self, nr: BlockNr, ticket: u64, block: Option<Arc<Block>>) -> bool {
        let (lock, loaded) = self.shard(nr);
        let mut shard = lock.lock();
        let ours = matches!(shard.slots.get(&nr), Some(Slot::Loading(t)) if *t == ticket);
        if ours {
            shard.slots.remove(&nr);
            if let Some(block) = block {
                Self::insert(&mut shard, nr, block, self.blocks_per_shard);
            }
        }
        loaded.notify_all();
        ours
    }

    fn load(&self, nr: BlockNr) -> Result<Arc<Block>> {
        if let Some(block) = self.journal.newest(nr) {
            return Ok(block);
        }
        let mut block = Block::zeroed(self.block_bytes as usize);
        let offset = nr.0.saturating_mul(self.block_bytes as u64);
        self.device
            .read_at(offset, &mut block)
            .map_err(|source| Error::io(format!("reading block {nr}"), source))?;
        Ok(Arc::new(block))
    }

    fn insert(shard: &mut Shard, nr: BlockNr, block: Arc<Block>, limit: usize) {
        let mut chances = 2 * shard.clock.len();
        while shard.slots.len() >= limit && chances > 0 {
            chances -= 1;
            let Some(victim) = shard.clock.pop() else { break };
            match shard.slots.get_mut(&victim) {
                Some(Slot::Ready { referenced, .. }) if *referenced => {
                    *referenced = false;
                    shard.clock.push(victim);
                }
                Some(Slot::Ready { .. }) => {
                    shard.slots.remove(&victim);
                }
                _ => {}
            }
        }
        if shard.slots.insert(nr, Slot::Ready { block, referenced: false }).is_none() {
            let Shard { slots, clock } = shard;
            clock.push(nr);
            clock.tidy(slots.len(), |name| slots.contains_key(&name));
        }
    }

    /// Replaces whatever is known of a block by a version just published.
    pub(super) fn publish(&self, nr: BlockNr, block: Arc<Block>) {
        let (lock, loaded) = self.shard(nr);
        let mut shard = lock.lock();
        if let Some(Slot::Ready { block: old, referenced }) = shard.slots.get_mut(&nr) {
            *old = block;
            *referenced = true;
        } else {
            shard.slots.remove(&nr);
            Self::insert(&mut shard, nr, block, self.blocks_per_shard);
        }
        loaded.notify_all();
    }

    /// Drops what is known of blocks that are no longer metadata.
    pub(super) fn remove(&self, range: BlockRange) {
        if range.len > RANGE_BY_BLOCK_MAX {
            for (lock, loaded) in &self.shards {
                lock.lock().slots.retain(|nr, _| !range.contains(*nr));
                loaded.notify_all();
            }
            return;
        }
        for nr in range.iter() {
            let (lock, loaded) = self.shard(nr);
            lock.lock().slots.remove(&nr);
            loaded.notify_all();
        }
    }

    /// Runs one operation's changes: `f` gets a handle with room for `credits` blocks, and what it
    /// changed is in the running transaction when it returns `Ok`, and nowhere when it returns `Err`.
    ///
    /// `f` is called again after a miss ([`Error::NotCached`]), so it must have no effect but through its
    /// handle. Returns the transaction the changes are in, with `f`'s result.
    pub fn update<R>(
        &self,
        credits: u32,
        mut f: impl FnMut(&mut Handle<'_>) -> Result<R>,
    ) -> Result<(Tid, R)> {
        for _ in 0..ATTEMPTS_MAX {
            let running = self.journal.start(credits)?;
            let mut handle = Handle::new(self, running, credits);
            match f(&mut handle) {
                Ok(result) => return Ok((handle.publish(), result)),
                Err(Error::NotCached(nr)) => {
                    drop(handle);
                    self.read(nr)?;
                }
                Err(error) => return Err(error),
            }
        }
        Err(Error::io(
            "an operation that never found its blocks in memory",
            std::io::ErrorKind::OutOfMemory.into(),
        ))
    }

    /// Reads data (not metadata) blocks from the device, with the journal's newer copies on top.
    pub fn read_data(&self, range: BlockRange, buf: &mut [u8]) -> Result<()> {
        // Before the device is read: a block that goes home and leaves the journal in between was not yet home
        // when the device was read.
        let newer = self.journal.newest_in(range);
        let offset = range.start.0.saturating_mul(self.block_bytes as u64);
        self.device
            .read_at(offset, buf)
            .map_err(|source| Error::io(format!("reading data at block {}", range.start), source))?;
        for (nr, block) in newer {
            let at = (nr.0 - range.start.0) as usize * self.block_bytes as usize;
            if let Some(to) = buf.get_mut(at..at + self.block_bytes as usize) {
                to.copy_from_slice(&block);
            }
        }
        Ok(())
    }
}

impl ReadBlock for BlockCache {
    fn read_block(&self, nr: BlockNr) -> Result<Arc<Block>> {
        self.read(nr)
    }

    /// Reads those that are not in memory, neighbours in one request. What can't be read is left to who needs it.
    fn prefetch(&self, blocks: &[BlockNr]) {
        if !super::patience::may_wait() {
            return;
        }
        let mut run: Vec<(BlockNr, u64)> = Vec::new();
        for nr in blocks {
            let Some(ticket) = self.open_slot(*nr) else { continue };
            if run.last().is_some_and(|(last, _)| last.plus(1) != *nr) {
                self.fill_run(&run);
                run.clear();
            }
            run.push((*nr, ticket));
        }
        self.fill_run(&run);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::memory::MemoryDevice;
    use crate::device::recording::RecordingDevice;
    use crate::device::Device;

    fn cache(blocks: u64) -> (Arc<MemoryDevice>, BlockCache) {
        let device = Arc::new(MemoryDevice::new(blocks * 1024));
        for nr in 0..blocks {
            device.write_at(nr * 1024, &[nr as u8; 1024]).unwrap();
        }
        let shared: SharedDevice = Arc::new(RecordingDevice::new(device.clone()));
        let journal = Arc::new(Journal::without_log(shared.clone(), 1024));
        (device, BlockCache::new(shared, journal, 1024, 1 << 20))
    }

    #[test]
    fn what_was_asked_for_ahead_is_in_memory_and_newer_versions_stay() {
        let (device, cache) = cache(64);
        cache.update(1, |h| h.create(BlockNr(5)).map(|block| block.fill(99))).unwrap();
        let wanted: Vec<_> = [3, 4, 5, 6, 20, 21].map(BlockNr).to_vec();
        cache.prefetch(&wanted);
        // What is asked of the device from now on would read as something else.
        device.write_at(0, &vec![0xee; 64 * 1024]).unwrap();
        for nr in wanted {
            let expected = if nr.0 == 5 { 99 } else { nr.0 as u8 };
            assert_eq!(cache.read(nr).unwrap()[0], expected, "{nr}");
        }
        assert!(cache.cached(BlockNr(7)).is_none());
        // Beyond the device: nothing happens, and nobody waits for it.
        cache.prefetch(&[BlockNr(63), BlockNr(64)]);
        assert!(cache.read(BlockNr(64)).is_err());
        assert_eq!(cache.read(BlockNr(63)).unwrap()[0], 0xee);
    }
}
