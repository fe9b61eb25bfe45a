//! The end of an inode: freeing its blocks and itself once nobody can reach it any more.
//!
//! A small file that nobody has open is freed in the transaction that removes its last name. Any other is an
//! orphan first (so a crash can't leak it) and is freed later in bounded transactions: in the call that
//! closes it, or by a thread behind a queue of bounded depth, for large ones.

use super::inode::{Inode, InodeState};
use super::options::InactivatePolicy;
use super::{inode_table, Fs};
use crate::cache::Handle;
use crate::error::Result;
use crate::format::inode::RawInode;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Condvar, Mutex};
use crate::units::{InodeNr, Tid};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Inodes that wait for the inactivation thread at most; who would add one more frees it himself.
const QUEUE_MAX: usize = 32;

/// A file up to this many 512-byte units is freed where its end happens, unless the options say otherwise.
const SMALL_UNITS: u64 = 2048;

/// What became of an inode with its last name.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It is free.
    Freed,
    /// It is on the orphan list: still open, or large.
    Orphaned,
}

#[derive(Default)]
struct QueueState {
    /// With the space that each had when it came, in 512-byte units.
    inodes: VecDeque<(Arc<Inode>, u64)>,
    /// Inodes the thread is at work on.
    at_work: usize,
    stop: bool,
}

/// The inodes that wait for inactivation.
#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
    /// What is still to be freed, in 512-byte units: statfs counts it as free.
    units: AtomicU64,
}

impl Queue {
    /// Space that waits to be freed, in 512-byte units.
    pub(crate) fn units(&self) -> u64 {
        self.units.load(Ordering::Relaxed)
    }
}

impl Fs {
    /// In the handle that removes an inode's last name: frees it, or records it as an orphan. `raw.links` is 0
    /// and `raw` is written here. The caller holds the inode's lock and calls [`name_gone`](Self::name_gone) afterwards.
    pub fn end_inode(
        &self,
        h: &mut Handle<'_>,
        nr: InodeNr,
        state: &InodeState,
        raw: &mut RawInode,
    ) -> Result<Fate> {
        let small = raw.blocks <= SMALL_UNITS && self.tuning.read().inactivate != InactivatePolicy::Deferred;
        if state.opens == 0 && small && self.remove_step(h, nr, raw, 0)? {
            self.free_record(h, nr, raw)?;
            return Ok(Fate::Freed);
        }
        self.orphan_add(h, nr, raw)?;
        Ok(Fate::Orphaned)
    }

    /// Frees an inode without blocks: its attributes, its record and its number.
    pub(super) fn free_record(&self, h: &mut Handle<'_>, nr: InodeNr, raw: &mut RawInode) -> Result<()> {
        super::xattr::drop_all(h, &self.allocator, nr, raw)?;
        let is_dir = raw.is_dir();
        raw.size = 0;
        self.orphan_remove(h, nr)?;
        inode_table::clear(h, &self.geometry, nr, raw, self.now().seconds as u32)?;
        self.allocator.free_inode(h, nr, is_dir)?;
        // Until what memory has of it is gone too, and the kernel has let go of it: `let_go`.
        let allocator = self.allocator.clone();
        h.on_publish(move || allocator.hold_inode(nr));
        Ok(())
    }

    /// Takes over what [`end_inode`](Self::end_inode) did, once its handle is published in `tid`.
    pub fn name_gone(&self, inode: &Arc<Inode>, state: &mut InodeState, raw: RawInode, tid: Tid, fate: Fate) {
        state.publish(raw, tid, true);
        inode.set_unlinked();
        match fate {
            Fate::Freed => self.bury(inode, state),
            Fate::Orphaned if state.opens > 0 => {}
            Fate::Orphaned if self.tuning.read().inactivate == InactivatePolicy::Inline => {
                if let Err(error) = self.free_locked(inode, state, |_| {}) {
                    tracing::warn!(inode = inode.nr.0, %error, "freeing an inode failed; the next mount tries again");
                }
            }
            Fate::Orphaned => self.enqueue(inode, state.raw.blocks),
        }
    }

    fn bury(&self, inode: &Arc<Inode>, state: &mut InodeState) {
        self.drop_data(state);
        state.touched = false;
        state.dead = true;
        self.writeback.settle(inode, state);
        if inode.set_freed(!self.kernel_holds_inodes()) {
            self.let_go(inode);
        }
    }

    /// The number of a freed inode may be used again.
    fn let_go(&self, inode: &Inode) {
        self.inodes.remove(inode.nr);
        self.allocator.release_inode(inode.nr);
    }

    /// The last user of an inode without names is gone: frees it, now or soon.
    pub(crate) fn inactivate(&self, inode: &Arc<Inode>) -> Result<()> {
        let units = inode.read().raw.blocks;
        let inline = match self.tuning.read().inactivate {
            InactivatePolicy::Inline => true,
            InactivatePolicy::Deferred => false,
            InactivatePolicy::Adaptive => units <= SMALL_UNITS,
        };
        if inline {
            return self.free_inode(inode);
        }
        self.enqueue(inode, units);
        Ok(())
    }

    fn enqueue(&self, inode: &Arc<Inode>, units: u64) {
        let mut queue = self.inactivation.state.lock();
        self.inactivation.units.fetch_add(units, Ordering::Relaxed);
        queue.inodes.push_back((inode.clone(), units));
        self.inactivation.changed.notify_all();
    }

    /// Waits while too many inodes wait for inactivation. Call it without locks, before an unlink.
    pub fn inactivation_backpressure(&self) {
        let mut queue = self.inactivation.state.lock();
        while queue.inodes.len() > QUEUE_MAX && !queue.stop {
            self.inactivation.changed.wait(&mut queue);
        }
    }

    /// Frees an orphan that nobody uses, in as many handles as it takes.
    pub(crate) fn free_inode(&self, inode: &Arc<Inode>) -> Result<()> {
        self.free_inode_telling(inode, |_| {})
    }

    /// As [`free_inode`](Self::free_inode); calls `freed` with the 512-byte units that each handle gave back.
    fn free_inode_telling(&self, inode: &Arc<Inode>, freed: impl FnMut(u64)) -> Result<()> {
        let mut state = inode.write();
        if state.dead || state.opens > 0 || state.raw.links > 0 {
            return Ok(());
        }
        self.free_locked(inode, &mut state, freed)
    }

    fn free_locked(
        &self,
        inode: &Arc<Inode>,
        state: &mut InodeState,
        mut freed: impl FnMut(u64),
    ) -> Result<()> {
        self.drop_data(state);
        // Each round frees blocks or ends the loop.
        loop {
            let credits = self.remove_credits();
            let (tid, (raw, done)) = self.update(credits, |h| {
                let mut raw = state.raw.clone();
                let done = self.remove_step(h, inode.nr, &mut raw, 0)?;
                if done {
                    self.free_record(h, inode.nr, &mut raw)?;
                } else {
                    inode_table::write(h, &self.geometry, inode.nr, &raw)?;
                }
                Ok((raw, done))
            })?;
            freed(state.raw.blocks.saturating_sub(raw.blocks));
            state.publish(raw, tid, true);
            if done {
                self.bury(inode, state);
                return Ok(());
            }
        }
    }

    /// The kernel has dropped its inode: the number may be used again.
    pub fn forget(&self, nr: InodeNr) {
        let Some(inode) = self.inodes.get(nr) else { return };
        if inode.set_forgotten() {
            self.let_go(&inode);
        }
    }

    /// Waits until nothing waits for inactivation. Call it without inode locks: the thread may want them.
    pub(crate) fn drain_inactivation(&self) {
        let mut queue = self.inactivation.state.lock();
        while (!queue.inodes.is_empty() || queue.at_work > 0) && !queue.stop {
            self.inactivation.changed.wait(&mut queue);
        }
    }

    /// Waits until the thread has got somewhere, at most for `limit`.
    pub(crate) fn wait_for_inactivation(&self, limit: Duration) {
        let mut queue = self.inactivation.state.lock();
        if !queue.inodes.is_empty() || queue.at_work > 0 {
            self.inactivation.changed.wait_for(&mut queue, limit);
        }
    }

    /// Inactivates what is queued, until [`stop_inactivation`](Self::stop_inactivation).
    pub(crate) fn inactivation_loop(&self) {
        loop {
            let (inode, mut units) = {
                let mut queue = self.inactivation.state.lock();
                loop {
                    if let Some(next) = queue.inodes.pop_front() {
                        queue.at_work += 1;
                        break next;
                    }
                    if queue.stop {
                        return;
                    }
                    self.inactivation.changed.wait(&mut queue);
                }
            };
            let waiting = &self.inactivation.units;
            let result = self.free_inode_telling(&inode, |freed| {
                let freed = freed.min(units);
                units -= freed;
                waiting.fetch_sub(freed, Ordering::Relaxed);
            });
            waiting.fetch_sub(units, Ordering::Relaxed);
            if let Err(error) = result {
                tracing::warn!(inode = inode.nr.0, %error, "freeing an inode failed; the next mount tries again");
            }
            self.inactivation.state.lock().at_work -= 1;
            self.inactivation.changed.notify_all();
        }
    }

    /// Ends the inactivation thread once the queue is empty.
    pub(crate) fn stop_inactivation(&self) {
        self.inactivation.state.lock().stop = true;
        self.inactivation.changed.notify_all();
    }
}
