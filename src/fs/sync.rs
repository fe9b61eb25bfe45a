//! fsync, sync and the timer: making what was acknowledged durable.

use super::inode::Inode;
use super::Fs;
use crate::error::{Error, Result};
use crate::fault::{injected, Fault};
use crate::journal::batch::ANONYMOUS;
use crate::journal::OnDurable;
use crate::sync::atomic::Ordering;
use crate::units::{InodeNr, Tid};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often the background looks whether something is due.
const TICK: Duration = Duration::from_millis(500);

impl Fs {
    /// Makes a file durable: its data, and the transaction with its last change (`datasync`: the last
    /// change that reading the data back needs). A directory makes everything durable, as [`sync`](Self::sync) does.
    pub fn fsync(&self, nr: InodeNr, datasync: bool, _pid: u32) -> Result<()> {
        let (tid, stamp) = self.prepare_sync(nr, datasync)?;
        if let Some(tid) = tid.filter(|tid| !injected(Fault::SyncBeforeCommit) || tid.0 % 2 == 1) {
            self.journal.commit(tid)?;
        }
        self.journal.flush(stamp)
    }

    /// As [`fsync`](Self::fsync), but for the wait: `then` is called, perhaps by another thread, when all is durable or
    /// can't become so. `pid` is the calling thread, 0 if nobody knows.
    pub fn fsync_then(&self, nr: InodeNr, datasync: bool, pid: u32, then: OnDurable) {
        match self.prepare_sync(nr, datasync) {
            Ok((tid, stamp)) => self.journal.commit_then(tid, stamp, pid, then),
            Err(error) => then(Err(error)),
        }
    }

    /// Whether [`fsync_then`](Self::fsync_then) will only touch memory before it leaves the rest to the committer.
    pub fn sync_is_quick(&self, nr: InodeNr, datasync: bool) -> bool {
        let Some(inode) = self.inodes.get(nr) else { return false };
        let Some(state) = inode.try_read() else { return false };
        let bytes =
            state.data.as_ref().map_or(0, |d| d.pages.len() as u64 * self.geometry.block_bytes as u64);
        let logged = bytes <= super::writeback::LOGGED_BYTES_MAX;
        !state.raw.is_dir() && logged && !(datasync && self.only_rewrites(nr, &state))
    }

    /// Puts a file's changes on their way. Returns the transaction and the flush to wait for.
    fn prepare_sync(&self, nr: InodeNr, datasync: bool) -> Result<(Option<Tid>, u64)> {
        if self.journal.is_aborted() {
            return Err(Error::Posix(libc::EIO));
        }
        let inode = self.inode(nr)?;
        if inode.read().raw.is_dir() {
            let (tid, stamp, result) = self.prepare_sync_all()?;
            return result.map(|()| (tid, stamp));
        }
        let mut state = inode.write();
        if state.dead || self.options.read_only {
            return Ok((None, 0));
        }
        // A database's log, used again: with nothing to change in the metadata, its flush is all that it takes.
        let in_place = datasync && self.only_rewrites(nr, &state);
        self.flush_data(&inode, &mut state, !in_place)?;
        if !datasync {
            self.flush_times(&inode, &mut state)?;
        }
        self.writeback.settle(&inode, &mut state);
        let tid = if datasync { state.datasync_tid } else { state.sync_tid };
        Ok((tid, state.in_place_stamp))
    }

    /// Puts all changes on their way, as far as that goes. Returns besides what [`prepare_sync`](Self::prepare_sync) does
    /// the first failure.
    fn prepare_sync_all(&self) -> Result<(Option<Tid>, u64, Result<()>)> {
        if self.journal.is_aborted() {
            return Err(Error::Posix(libc::EIO));
        }
        // Not where an error has made it read-only since: what is not written then is not acknowledged.
        if self.options.read_only {
            return Ok((None, 0, Ok(())));
        }
        let (mut stamp, mut result) = (0, Ok(()));
        for inode in self.writeback.inodes() {
            // One file that can't be written doesn't keep the others from it.
            match self.write_out(&inode, true) {
                Ok(of_inode) => stamp = stamp.max(of_inode),
                Err(error) => {
                    tracing::warn!(inode = inode.nr.0, %error, "writing a file failed");
                    if result.is_ok() {
                        result = Err(error);
                    }
                }
            }
        }
        Ok((Some(self.journal.running_tid()), stamp, result))
    }

    /// Writes an inode's delayed data and times. Returns the flush that makes in-place data durable.
    pub(crate) fn write_out(&self, inode: &Arc<Inode>, times: bool) -> Result<u64> {
        let mut state = inode.write();
        self.flush_data(inode, &mut state, false)?;
        if times {
            self.flush_times(inode, &mut state)?;
        }
        self.writeback.settle(inode, &mut state);
        Ok(state.in_place_stamp)
    }

    /// Makes everything durable that has been written so far; what can be, when not all can.
    pub fn sync(&self) -> Result<()> {
        let (tid, stamp, result) = self.prepare_sync_all()?;
        if let Some(tid) = tid {
            self.journal.commit(tid)?;
        }
        self.journal.flush(stamp)?;
        result
    }

    /// As [`sync`](Self::sync), but for the wait.
    pub fn sync_then(&self, then: OnDurable) {
        match self.prepare_sync_all() {
            Ok((tid, stamp, Ok(()))) => self.journal.commit_then(tid, stamp, ANONYMOUS, then),
            Ok((tid, stamp, Err(error))) => {
                let then = Box::new(move |result: Result<()>| then(result.and(Err(error))));
                self.journal.commit_then(tid, stamp, ANONYMOUS, then);
            }
            Err(error) => then(Err(error)),
        }
    }

    /// The background: writes delayed data when there is much of it, and commits what is older than `commit=`.
    pub(crate) fn writeback_loop(&self) {
        let mut last_sync = Instant::now();
        loop {
            {
                let mut sleeping = self.writeback.sleeping.lock();
                if self.writeback.stop.load(Ordering::Acquire) {
                    return;
                }
                self.writeback.wanted.wait_for(&mut sleeping, TICK);
            }
            if self.writeback.stop.load(Ordering::Acquire) {
                return;
            }
            self.note_abort();
            self.record_errors();
            if self.journal.is_aborted() {
                continue;
            }
            let interval = self.tuning.read().commit;
            let due = last_sync.elapsed() >= interval;
            let old = self.journal.running_since().is_some_and(|since| since.elapsed() >= interval);
            if due || old {
                last_sync = Instant::now();
                if let Err(error) = self.sync() {
                    tracing::warn!(%error, "writing in the background failed");
                }
            } else if self.writeback.bytes() >= self.writeback.background_bytes {
                self.write_some();
            }
        }
    }

    fn write_some(&self) {
        for inode in self.writeback.inodes() {
            if self.writeback.bytes() < self.writeback.background_bytes / 2 {
                return;
            }
            if let Err(error) = self.write_out(&inode, false) {
                tracing::warn!(inode = inode.nr.0, %error, "writing a file in the background failed");
            }
        }
    }
}
