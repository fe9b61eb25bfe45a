//! A handle: one operation's part of the running transaction.
//!
//! Blocks are changed in private copies (the write set). [`publish`](Handle::publish) moves them into the
//! running transaction and the cache in one step under the journal's update lock; a handle that is
//! dropped leaves no trace. That is what makes an operation whole or absent, for other
//! operations and for a commit alike, with no undo code anywhere above.

use super::{BlockCache, ReadBlock};
use crate::device::Block;
use crate::error::{Error, Result};
use crate::journal::{Effects, Running};
use crate::units::{BlockNr, BlockRange, GroupNr, Tid};
use std::collections::BTreeMap;
use std::sync::Arc;

struct Dirty {
    block: Arc<Block>,
    /// File data, which the metadata cache doesn't hold.
    data: bool,
}

/// See the module's text. Made by [`BlockCache::update`] only.
pub struct Handle<'a> {
    cache: &'a BlockCache,
    running: Running<'a>,
    write_set: BTreeMap<BlockNr, Dirty>,
    forgotten: Vec<BlockRange>,
    effects: Effects,
    credits: u32,
    after_data: bool,
    spares_reserve: bool,
    hooks: Vec<Box<dyn FnOnce() + 'a>>,
}

impl<'a> Handle<'a> {
    pub(super) fn new(cache: &'a BlockCache, running: Running<'a>, credits: u32) -> Self {
        Self {
            cache,
            running,
            write_set: BTreeMap::new(),
            forgotten: Vec::new(),
            effects: Effects::default(),
            credits,
            after_data: false,
            spares_reserve: false,
            hooks: Vec::new(),
        }
    }

    /// The transaction that this handle's changes will be in.
    pub fn tid(&self) -> Tid {
        self.running.tid()
    }

    /// Bytes in a block.
    pub fn block_bytes(&self) -> usize {
        self.cache.block_bytes() as usize
    }

    fn newest(&self, nr: BlockNr) -> Result<Arc<Block>> {
        self.cache.cached(nr).ok_or(Error::NotCached(nr))
    }

    /// The block's bytes, to be changed. The caller leaves the block sealed (its checksum right).
    pub fn modify(&mut self, nr: BlockNr) -> Result<&mut Block> {
        if !self.write_set.contains_key(&nr) {
            let block = self.newest(nr)?;
            self.write_set.insert(nr, Dirty { block, data: false });
        }
        self.entry(nr)
    }

    /// A newly allocated metadata block: all zero, whatever was there before, to be filled and sealed.
    pub fn create(&mut self, nr: BlockNr) -> Result<&mut Block> {
        let block = Block::zeroed(self.block_bytes());
        block.set_verified();
        self.write_set.insert(nr, Dirty { block: Arc::new(block), data: false });
        self.entry(nr)
    }

    fn entry(&mut self, nr: BlockNr) -> Result<&mut Block> {
        let dirty = self.write_set.get_mut(&nr).ok_or(Error::NotCached(nr))?;
        Ok(Arc::make_mut(&mut dirty.block))
    }

    /// Logs a whole block of file data, as data=journal does.
    pub fn log_data(&mut self, nr: BlockNr, block: Arc<Block>) {
        self.write_set.insert(nr, Dirty { block, data: true });
    }

    /// How many blocks this handle has changed so far.
    pub fn blocks_changed(&self) -> u32 {
        self.write_set.len() as u32
    }

    /// Says that `range` no longer holds what this journal may have logged of it (metadata, or logged
    /// data): drops this transaction's copies and revokes older ones (rule J7). Call it for every freed
    /// block that was or may have been logged, and before an in-place overwrite of such a block (J5).
    pub fn forget(&mut self, range: BlockRange) {
        let gone: Vec<BlockNr> = self.write_set.range(range.start..range.end()).map(|(nr, _)| *nr).collect();
        for nr in gone {
            self.write_set.remove(&nr);
        }
        self.forgotten.push(range);
    }

    /// Says that in-place data written before now becomes reachable by this handle's changes: the
    /// commit flushes the device before it writes to the log (rule J4).
    pub fn reaches_in_place_data(&mut self) {
        self.after_data = true;
    }

    /// Says that this handle works for a program that may not use the superuser's share of the space.
    pub fn spare_reserve(&mut self) {
        self.spares_reserve = true;
    }

    /// Whether [`spare_reserve`](Self::spare_reserve) was called.
    pub fn spares_reserve(&self) -> bool {
        self.spares_reserve
    }

    /// Block ranges whose bits this handle has set in a bitmap.
    pub fn note_allocated(&mut self, range: BlockRange) {
        self.effects.allocated.push(range);
    }

    /// Block ranges whose bits this handle has cleared: not to be allocated before this transaction
    /// is durable (rule J9).
    pub fn note_freed(&mut self, range: BlockRange) {
        self.effects.freed.push(range);
    }

    /// Inodes (and directories among them) that this handle has allocated (> 0) or freed (< 0) in a group.
    pub fn note_inodes(&mut self, group: GroupNr, inodes: i32, directories: i32) {
        self.effects.inodes.push((group, inodes, directories));
    }

    /// What the `note_` calls of this handle have gathered.
    pub fn effects(&self) -> &Effects {
        &self.effects
    }

    /// Has `hook` called when this handle is published, under the update lock: for memory that mirrors
    /// what handles see. It must not open a handle.
    pub fn on_publish(&mut self, hook: impl FnOnce() + 'a) {
        self.hooks.push(Box::new(hook));
    }

    /// Publishes everything. Infallible: whatever can fail has been done by now.
    pub(super) fn publish(mut self) -> Tid {
        if self.write_set.len() as u32 > self.credits {
            tracing::debug!(
                used = self.write_set.len(),
                credits = self.credits,
                "an operation changed more blocks than it had reserved"
            );
        }
        for range in self.forgotten.drain(..) {
            self.running.forget(range);
            self.cache.remove(range);
        }
        for (nr, dirty) in std::mem::take(&mut self.write_set) {
            self.running.log(nr, dirty.block.clone());
            if !dirty.data {
                self.cache.publish(nr, dirty.block);
            }
        }
        if self.after_data {
            self.running.reaches_in_place_data();
        }
        let tid = self.running.tid();
        self.running.announce(std::mem::take(&mut self.effects));
        for hook in self.hooks.drain(..) {
            hook();
        }
        tid
    }
}

impl ReadBlock for Handle<'_> {
    fn read_block(&self, nr: BlockNr) -> Result<Arc<Block>> {
        match self.write_set.get(&nr) {
            Some(dirty) => Ok(dirty.block.clone()),
            None => self.newest(nr),
        }
    }
}
