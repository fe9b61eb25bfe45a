//! An inode in memory, and the cache of them.
//!
//! Invariants:
//! 1. There is at most one [`Inode`] per number while anyone holds it: the cache evicts only
//!    entries that nobody else holds, and loads under its shard's lock.
//! 2. `raw` is what the inode's table block holds, except for lazily written times (`touched`).
//! 3. `raw.size` is the size on disk; delayed data beyond it has its size in `data`, so that no
//!    operation can make a size durable before the data below it.

use super::data::DirtyData;
use super::xattr::Absent;
use crate::cache::clock::Clock;
use crate::format::inode::RawInode;
use crate::sync::atomic::{AtomicU8, Ordering};
use crate::sync::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use crate::units::{InodeNr, Tid};
use rustc_hash::FxHashMap;
use std::sync::Arc;

const SHARDS: usize = 64;

/// An inode in memory. Locks of several inodes are taken parent before child, else by number.
pub struct Inode {
    /// Its number.
    pub nr: InodeNr,
    state: RwLock<InodeState>,
    /// How far its end has come ([`UNLINKED`] and the others).
    end: AtomicU8,
}

/// [`Inode`]: it has no names.
const UNLINKED: u8 = 1;
/// [`Inode`]: its record and blocks are free.
const FREED: u8 = 2;
/// [`Inode`]: the kernel doesn't know it any more.
const FORGOTTEN: u8 = 4;

/// What the inode's lock protects.
pub struct InodeState {
    /// The record, as its table block has it (times may be newer: `touched`).
    pub raw: RawInode,
    /// `raw` has times that the table block doesn't have yet.
    pub touched: bool,
    /// The transaction with the inode's last change, for fsync.
    pub sync_tid: Option<Tid>,
    /// The transaction with the last change that reading the data back needs, for fdatasync.
    pub datasync_tid: Option<Tid>,
    /// File data written and not yet on its way to the disk.
    pub(crate) data: Option<Box<DirtyData>>,
    /// Open file handles.
    pub opens: u32,
    /// The inode has been freed: only its last attributes are left.
    pub dead: bool,
    /// Which kinds of extended attributes it is known not to have.
    pub(crate) absent: Absent,
    /// The flush that makes the last in-place write durable; 0: there was none.
    pub in_place_stamp: u64,
    /// On the list of inodes with something to write.
    pub listed: bool,
    /// Made without a name (O_TMPFILE): it may get a first one.
    pub(crate) linkable: bool,
}

impl InodeState {
    /// A record as its table block has it. `last`: the newest transaction that may hold a change of it, and the
    /// newest flush stamp of data that may be its own: what was known of an inode goes when it is evicted.
    pub fn loaded(raw: RawInode, last: Option<(Tid, u64)>) -> Self {
        Self {
            in_place_stamp: last.map_or(0, |(_, stamp)| stamp),
            ..Self::new(raw, last.map(|(tid, _)| tid))
        }
    }

    fn new(raw: RawInode, tid: Option<Tid>) -> Self {
        Self {
            raw,
            touched: false,
            sync_tid: tid,
            datasync_tid: tid,
            data: None,
            opens: 0,
            dead: false,
            absent: Absent::default(),
            in_place_stamp: 0,
            listed: false,
            linkable: false,
        }
    }

    /// The file's size, delayed writes included.
    pub fn size(&self) -> u64 {
        self.data.as_ref().map_or(self.raw.size, |data| data.size.max(self.raw.size))
    }

    /// The delayed data, begun if there is none.
    pub(crate) fn delayed(&mut self) -> &mut DirtyData {
        let size = self.size();
        self.data.get_or_insert_with(|| Box::new(DirtyData::new(size)))
    }

    /// Takes over a record that a handle, published in transaction `tid`, has written to the inode's
    /// table block. `data_changed`: the size or the mapping changed, so fdatasync cares.
    pub fn publish(&mut self, raw: RawInode, tid: Tid, data_changed: bool) {
        self.raw = raw;
        self.touched = false;
        self.sync_tid = Some(tid);
        if data_changed {
            self.datasync_tid = Some(tid);
        }
    }
}

impl Inode {
    /// A new inode, as a handle has just written it.
    pub fn new(nr: InodeNr, raw: RawInode) -> Self {
        Self::with_state(nr, InodeState::new(raw, None))
    }

    fn with_state(nr: InodeNr, state: InodeState) -> Self {
        Self { nr, state: RwLock::new(state), end: AtomicU8::new(0) }
    }

    /// The inode has no names any more, for good.
    pub(crate) fn set_unlinked(&self) {
        self.end.fetch_or(UNLINKED, Ordering::AcqRel);
    }

    /// The inode has been freed. Whether nobody needs its number any more: `forgotten` says so, or the kernel did.
    pub(crate) fn set_freed(&self, forgotten: bool) -> bool {
        let forgotten = if forgotten { FORGOTTEN } else { 0 };
        let before = self.end.fetch_or(FREED | forgotten, Ordering::AcqRel);
        (before | forgotten) & FORGOTTEN != 0
    }

    /// The kernel has dropped its inode; that counts once it has no names, since it may come back before. Whether
    /// nobody needs the number any more. Takes no lock: the inode may be being freed, which may take long.
    pub(crate) fn set_forgotten(&self) -> bool {
        if self.end.load(Ordering::Acquire) & UNLINKED == 0 {
            return false;
        }
        self.end.fetch_or(FORGOTTEN, Ordering::AcqRel) & (FREED | FORGOTTEN) == FREED
    }

    /// Locks the inode to look at it.
    pub fn read(&self) -> RwLockReadGuard<'_, InodeState> {
        self.state.read()
    }

    /// Locks the inode to change it.
    pub fn write(&self) -> RwLockWriteGuard<'_, InodeState> {
        self.state.write()
    }

    /// Locks the inode to look at it, if nobody changes it.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, InodeState>> {
        self.state.try_read()
    }

    /// Locks the inode to change it, if nobody has it locked.
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, InodeState>> {
        self.state.try_write()
    }
}

#[derive(Default)]
struct Shard {
    inodes: FxHashMap<InodeNr, Arc<Inode>>,
    clock: Clock<InodeNr>,
}

/// The inodes in memory, sharded by number.
pub struct InodeCache {
    shards: Vec<Mutex<Shard>>,
    inodes_per_shard: usize,
}

impl InodeCache {
    /// A cache that evicts idle inodes beyond `inodes_max`.
    pub fn new(inodes_max: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            inodes_per_shard: (inodes_max / SHARDS).max(16),
        }
    }

    fn shard(&self, nr: InodeNr) -> &Mutex<Shard> {
        &self.shards[nr.0 as usize % SHARDS]
    }

    /// The inode if it is in memory.
    pub fn get(&self, nr: InodeNr) -> Option<Arc<Inode>> {
        self.shard(nr).lock().inodes.get(&nr).cloned()
    }

    /// The inode, loaded by `load` if it isn't in memory. `load` runs under the shard's lock, so it
    /// must look at memory only; `Ok(None)` means that it couldn't.
    pub fn get_or_load<E>(
        &self,
        nr: InodeNr,
        load: impl FnOnce() -> Result<Option<InodeState>, E>,
    ) -> Result<Option<Arc<Inode>>, E> {
        let mut shard = self.shard(nr).lock();
        if let Some(inode) = shard.inodes.get(&nr) {
            return Ok(Some(inode.clone()));
        }
        let Some(state) = load()? else { return Ok(None) };
        let inode = Arc::new(Inode::with_state(nr, state));
        self.put(&mut shard, inode.clone());
        Ok(Some(inode))
    }

    /// Puts a newly created inode in, in place of whatever had its number before.
    pub fn insert(&self, inode: Arc<Inode>) {
        let mut shard = self.shard(inode.nr).lock();
        self.put(&mut shard, inode);
    }

    /// Takes a dead inode out.
    pub fn remove(&self, nr: InodeNr) {
        self.shard(nr).lock().inodes.remove(&nr);
    }

    fn put(&self, shard: &mut Shard, inode: Arc<Inode>) {
        let mut chances = shard.clock.len().min(64);
        while shard.inodes.len() >= self.inodes_per_shard && chances > 0 {
            chances -= 1;
            let Some(nr) = shard.clock.pop() else { break };
            let idle = shard.inodes.get(&nr).map(|inode| {
                Arc::strong_count(inode) == 1
                    && inode.try_write().is_some_and(|s| {
                        !s.touched && !s.dead && s.opens == 0 && s.data.is_none() && s.raw.links > 0
                    })
            });
            match idle {
                Some(true) => {
                    shard.inodes.remove(&nr);
                }
                Some(false) => shard.clock.push(nr),
                None => {}
            }
        }
        let nr = inode.nr;
        if shard.inodes.insert(nr, inode).is_none() {
            let Shard { inodes, clock } = shard;
            clock.push(nr);
            clock.tidy(inodes.len(), |name| inodes.contains_key(&name));
        }
    }

    /// How many inodes are in memory.
    pub fn count(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().inodes.len()).sum()
    }

    /// Every inode in memory, for unmount and tests; not a snapshot of one moment.
    pub fn all(&self) -> Vec<Arc<Inode>> {
        self.shards.iter().flat_map(|s| s.lock().inodes.values().cloned().collect::<Vec<_>>()).collect()
    }
}
