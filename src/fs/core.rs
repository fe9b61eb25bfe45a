//! [`Fs`] itself: what a mounted file system holds, and what every operation needs of it.

use super::alloc::Allocator;
use super::attr::Caller;
use super::inode::{Inode, InodeCache, InodeState};
use super::inode_table;
use super::orphan::Orphans;
use crate::cache::{BlockCache, Handle, ReadBlock};
use crate::error::{Error, Place, Result};
use crate::format::geometry::Geometry;
use crate::format::inode::{InodeFlags, RawInode};
use crate::format::superblock::Superblock;
use crate::format::time::Timestamp;
use crate::fs::options::{MountOptions, Tuning};
use crate::journal::Journal;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, RwLock, RwLockWriteGuard};
use crate::units::{InodeNr, Tid};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How often an operation without space waits for inactivation, and how long each time at most.
const ROOM_ROUNDS_MAX: u32 = 20;
const ROOM_ROUND: Duration = Duration::from_millis(50);

/// A mounted file system.
pub struct Fs {
    pub(crate) cache: Arc<BlockCache>,
    pub(crate) journal: Arc<Journal>,
    pub(crate) geometry: Geometry,
    pub(crate) allocator: Arc<Allocator>,
    pub(crate) inodes: InodeCache,
    pub(crate) orphans: Orphans,
    pub(crate) options: MountOptions,
    /// The options that can change while mounted.
    pub(crate) tuning: RwLock<Tuning>,
    /// The superblock as it was at mount, with the fields that change since.
    pub(crate) superblock: Mutex<Superblock>,
    /// Held by a rename that moves a directory, so that the tree it checks for loops stands still.
    pub(crate) rename_lock: Mutex<()>,
    pub(crate) read_only: AtomicBool,
    pub(crate) errors: super::errors::Errors,
    pub(crate) writeback: super::writeback::Writeback,
    pub(crate) inactivation: super::inactivate::Queue,
    /// The kernel keeps inodes of its own and says when it forgets one.
    pub(crate) kernel_holds_inodes: AtomicBool,
    pub(crate) threads: Mutex<Vec<crate::sync::thread::JoinHandle<()>>>,
    pub(crate) unmounted: AtomicBool,
    /// Blocks of the format's own, for statfs; counted when first asked for.
    pub(crate) overhead_blocks: OnceLock<u64>,
}

impl Fs {
    /// Whether nothing may be written (mounted so, or after an error).
    pub fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Acquire)
    }

    /// From now on a freed inode's number is kept from use until [`forget`](Self::forget) is called for it.
    pub fn expect_forgets(&self) {
        self.kernel_holds_inodes.store(true, Ordering::Release);
    }

    pub(crate) fn kernel_holds_inodes(&self) -> bool {
        self.kernel_holds_inodes.load(Ordering::Acquire)
    }

    /// The file system's shape.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The mount options in force.
    pub fn options(&self) -> &MountOptions {
        &self.options
    }

    /// The inode, in memory; ESTALE when it isn't in use (or has been freed: see `InodeState::dead`).
    pub fn inode(&self, nr: InodeNr) -> Result<Arc<Inode>> {
        if let Some(inode) = self.inodes.get(nr) {
            return Ok(inode);
        }
        if nr.0 == 0 || nr.0 > self.geometry.inodes_count {
            return Err(Error::Stale);
        }
        // Bounded: each round reads what the last one missed, and other tasks can evict it only by
        // filling the cache in between.
        for _ in 0..1000 {
            let (block, _) = self.noting(inode_table::place(&*self.cache, &self.geometry, nr))?;
            if self.cache.cached(block).is_none() {
                let around = inode_table::neighbourhood(&*self.cache, &self.geometry, nr)?;
                self.cache.prefetch(&around.iter().collect::<Vec<_>>());
            }
            self.cache.read(block)?;
            let loaded = self.inodes.get_or_load(nr, || {
                match inode_table::read(&InMemory(&self.cache), &self.geometry, nr) {
                    // Freed, whatever is left in the record: only an orphan has no links and is in use.
                    Ok(raw) if raw.links == 0 && !self.orphans.contains(nr) => Err(Error::Stale),
                    Ok(raw) => Ok(Some(InodeState::loaded(raw, self.last_changes()))),
                    Err(Error::NotCached(_)) => Ok(None),
                    Err(error) => Err(error),
                }
            });
            if let Some(inode) = self.noting(loaded)? {
                return Ok(inode);
            }
        }
        Err(Error::io(
            "an inode table block that never stayed in memory",
            std::io::ErrorKind::OutOfMemory.into(),
        ))
    }

    /// Whether an operation on the inode would wait: it has to be read, or somebody is at work on it.
    pub fn is_busy(&self, nr: InodeNr) -> bool {
        self.inodes.get(nr).is_none_or(|inode| inode.try_read().is_none())
    }

    /// Runs `f`, which only looks, if what it looks at is in memory.
    pub fn at_once<R>(&self, f: impl FnOnce() -> Result<R>) -> Option<Result<R>> {
        match crate::cache::without_waiting(f) {
            Err(Error::NotCached(_)) => None,
            result => Some(result),
        }
    }

    /// The newest transaction and flush stamp that an inode's last change can have: what fsync waits for when
    /// the inode has been out of memory since.
    fn last_changes(&self) -> Option<(Tid, u64)> {
        let changes = !self.options.read_only;
        changes.then(|| (self.journal.running_tid(), self.journal.newest_flush_stamp()))
    }

    /// The inode, locked to be changed, and alive.
    pub fn live<'a>(&self, inode: &'a Inode) -> Result<RwLockWriteGuard<'a, InodeState>> {
        let state = inode.write();
        if state.dead {
            return Err(Error::Stale);
        }
        Ok(state)
    }

    /// Locks two inodes (perhaps the same) by number; the guards come back in the order asked for.
    pub fn lock_two<'a>(
        &self,
        a: &'a Inode,
        b: &'a Inode,
    ) -> (RwLockWriteGuard<'a, InodeState>, Option<RwLockWriteGuard<'a, InodeState>>) {
        match a.nr.cmp(&b.nr) {
            std::cmp::Ordering::Equal => (a.write(), None),
            std::cmp::Ordering::Less => {
                let first = a.write();
                (first, Some(b.write()))
            }
            std::cmp::Ordering::Greater => {
                let second = b.write();
                (a.write(), Some(second))
            }
        }
    }

    /// Runs one operation's changes as [`BlockCache::update`] does; on ENOSPC with frees that are not durable
    /// yet (rule J9), or still to be made by inactivation, commits and tries again, a bounded number of times.
    pub fn update<R>(
        &self,
        credits: u32,
        mut f: impl FnMut(&mut Handle<'_>) -> Result<R>,
    ) -> Result<(Tid, R)> {
        if self.is_read_only() {
            return Err(Error::ReadOnly);
        }
        let mut result = self.cache.update(credits, &mut f);
        for _ in 0..ROOM_ROUNDS_MAX {
            let inactivating = self.inactivation.units() > 0;
            if !result.as_ref().is_err_and(|e| e.is(libc::ENOSPC))
                || self.allocator.pending_frees() == 0 && !inactivating
            {
                break;
            }
            self.journal.commit(self.journal.running_tid())?;
            if inactivating {
                // Not for its end: it may want an inode that the caller has locked.
                self.wait_for_inactivation(ROOM_ROUND);
                self.journal.commit(self.journal.running_tid())?;
            }
            result = self.cache.update(credits, &mut f);
        }
        self.noting(result)
    }

    /// As [`update`](Self::update), for a caller who may not be allowed to use the superuser's share of the space.
    pub(crate) fn update_for<R>(
        &self,
        caller: &Caller,
        credits: u32,
        mut f: impl FnMut(&mut Handle<'_>) -> Result<R>,
    ) -> Result<(Tid, R)> {
        let privileged = self.may_use_reserve(caller);
        self.update(credits, |h| {
            if !privileged {
                h.spare_reserve();
            }
            f(h)
        })
    }

    /// Whether the superuser's share of the space (`s_r_blocks_count`) is for this caller too: the superuser, and
    /// whom the superblock names.
    pub(crate) fn may_use_reserve(&self, caller: &Caller) -> bool {
        let (uid, gid) = {
            let sb = self.superblock.lock();
            (u32::from(sb.def_resuid), u32::from(sb.def_resgid))
        };
        caller.is_root() || caller.uid == uid || gid != 0 && caller.is_in_group(gid)
    }

    /// The time now, cut to what an inode of this file system can hold.
    pub fn now(&self) -> Timestamp {
        let now = Timestamp::now();
        if self.geometry.inode_bytes > 128 {
            now
        } else {
            Timestamp { nanoseconds: 0, ..now }
        }
    }

    /// EPERM for an inode that must not change (immutable), or only grow (`append_allowed` false).
    pub fn check_mutable(raw: &RawInode, append_allowed: bool) -> Result<()> {
        let forbidden =
            if append_allowed { InodeFlags::IMMUTABLE } else { InodeFlags::IMMUTABLE | InodeFlags::APPEND };
        if raw.flags.intersects(forbidden) {
            return Err(Error::NotPermitted);
        }
        Ok(())
    }

    /// A corrupt inode, as an error.
    pub(crate) fn corrupt_inode(nr: InodeNr, why: &str) -> Error {
        Error::corrupt("inode", Place::Inode(nr), why)
    }
}

/// Looks only at what is in the cache; a miss is [`Error::NotCached`].
pub(crate) struct InMemory<'a>(pub &'a BlockCache);

impl crate::cache::ReadBlock for InMemory<'_> {
    fn read_block(&self, nr: crate::units::BlockNr) -> Result<Arc<crate::device::Block>> {
        self.0.cached(nr).ok_or(Error::NotCached(nr))
    }
}
