//! The journal: its state, who waits for what, and its two threads (committer and checkpointer).

use super::flush::FlushClock;
use super::log::{Medium, Ring};
use super::log_area::LogArea;
use super::records::Records;
use super::running::Running;
use super::stats::Stats;
use super::transaction::Transaction;
use super::waiting::Waiting;
use super::Observer;
use crate::device::{Block, SharedDevice};
use crate::error::{Error, Result};
use crate::format::jbd2::JournalSuperblock;
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::sync::thread::JoinHandle;
use crate::sync::{Condvar, Mutex, RwLock};
use crate::units::{BlockNr, BlockRange, Tid};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// Blocks that a transaction without a log may have before it is written home.
const BLOCKS_MAX_WITHOUT_LOG: u32 = 8192;

/// What a journal with a log is made of: an empty log, its place and its superblock, already durable with a
/// start that is not zero (rule J11).
pub struct LogSetup {
    /// Where the log lies.
    pub area: LogArea,
    /// The journal superblock in force; `sequence` is the first transaction's id.
    pub superblock: JournalSuperblock,
    /// One flush per commit (COMPAT_CHECKSUM and ASYNC_COMMIT are set in `superblock`); else the classic two.
    pub async_commit: bool,
}

/// The part of a journal that only one with a log has.
pub(super) struct Log {
    pub(super) medium: Medium,
    pub(super) ring: Mutex<Ring>,
    pub(super) superblock: Mutex<JournalSuperblock>,
    pub(super) async_commit: bool,
}

/// Told whether a transaction became durable.
pub type OnDurable = Box<dyn FnOnce(Result<()>) + Send>;

/// See the module's text.
pub struct Journal {
    pub(super) device: SharedDevice,
    pub(super) block_bytes: u32,
    pub(super) log: Option<Log>,
    /// Nothing is ever written: see [`in_memory`](Journal::in_memory).
    in_memory: bool,
    /// The update lock.
    pub(super) running: Mutex<Transaction>,
    /// Its tid, for those who can't wait for the update lock; at least that of any handle published by now.
    pub(super) running_tid: AtomicU32,
    pub(super) records: RwLock<Records>,
    pub(super) clock: FlushClock,
    /// When this began; moments and `opened_ns` count from here.
    pub(super) began: Instant,
    /// When the running transaction, or the last one that was not empty, got its first handle.
    pub(super) opened_ns: AtomicU64,
    /// Held by the leader: one commit at a time (rule J1).
    pub(super) commit_lock: Mutex<()>,
    /// Held by whoever checkpoints.
    pub(super) checkpoint_lock: Mutex<()>,
    /// Blocks whose checkpoint write is under way (rule J5).
    pub(super) going_home: Mutex<BTreeSet<BlockNr>>,
    pub(super) went_home: Condvar,
    pub(super) durable: Mutex<Tid>,
    pub(super) waiting: Mutex<Waiting>,
    pub(super) commit_wanted: Condvar,
    checkpoint_wanted: Condvar,
    pub(super) observer: OnceLock<Arc<dyn Observer>>,
    pub(super) aborted: AtomicBool,
    /// Tell the device of what has been freed.
    pub(super) discard: AtomicBool,
    /// What it has done.
    pub stats: Stats,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Journal {
    /// A journal without a log: a commit writes the blocks home and flushes, with no crash promise.
    pub fn without_log(device: SharedDevice, block_bytes: u32) -> Self {
        Self::new(device, block_bytes, None, Tid(1))
    }

    /// A journal that never commits: what handles change stays in its one transaction, for
    /// [`take_changes`](Self::take_changes), and the device is only read.
    pub fn in_memory(device: SharedDevice, block_bytes: u32) -> Self {
        Self { in_memory: true, ..Self::new(device, block_bytes, None, Tid(1)) }
    }

    /// How many blocks the running transaction has changed so far.
    pub fn blocks_changed(&self) -> usize {
        self.running.lock().blocks.len()
    }

    /// The newest version of every block that handles have changed in a journal [`in_memory`](Self::in_memory).
    pub fn take_changes(&self) -> BTreeMap<BlockNr, Arc<Block>> {
        std::mem::take(&mut self.running.lock().blocks)
    }

    /// A journal on its empty log.
    pub fn with_log(device: SharedDevice, setup: LogSetup) -> Self {
        let first_tid = setup.superblock.sequence;
        let format = setup.superblock.log_format();
        let log = Log {
            medium: Medium { device: device.clone(), area: setup.area, format },
            ring: Mutex::new(Ring::new(&setup.superblock)),
            superblock: Mutex::new(setup.superblock),
            async_commit: setup.async_commit,
        };
        Self::new(device, format.block_bytes, Some(log), first_tid)
    }

    fn new(device: SharedDevice, block_bytes: u32, log: Option<Log>, first_tid: Tid) -> Self {
        Self {
            clock: FlushClock::new(device.clone()),
            device,
            block_bytes,
            log,
            in_memory: false,
            running: Mutex::new(Transaction::new(first_tid)),
            running_tid: AtomicU32::new(first_tid.0),
            records: RwLock::default(),
            began: Instant::now(),
            opened_ns: AtomicU64::new(0),
            commit_lock: Mutex::default(),
            checkpoint_lock: Mutex::default(),
            going_home: Mutex::default(),
            went_home: Condvar::new(),
            durable: Mutex::new(Tid(first_tid.0.wrapping_sub(1))),
            waiting: Mutex::default(),
            commit_wanted: Condvar::new(),
            checkpoint_wanted: Condvar::new(),
            observer: OnceLock::new(),
            aborted: AtomicBool::new(false),
            discard: AtomicBool::new(false),
            stats: Stats::default(),
            threads: Mutex::default(),
        }
    }

    /// Starts the committer and the checkpointer. Without them everything still works, in the callers' threads,
    /// but for [`commit_then`](Self::commit_then).
    pub fn start_threads(self: &Arc<Self>) -> std::io::Result<()> {
        let mut threads = self.threads.lock();
        let journal = self.clone();
        threads.push(
            crate::sync::thread::Builder::new()
                .name("committer".into())
                .spawn(move || journal.committer_loop())?,
        );
        let journal = self.clone();
        threads.push(
            crate::sync::thread::Builder::new()
                .name("checkpointer".into())
                .spawn(move || journal.checkpointer_loop())?,
        );
        Ok(())
    }

    /// Stops the threads; who still waits is answered first.
    pub fn stop_threads(&self) {
        self.waiting.lock().stop = true;
        self.commit_wanted.notify_all();
        self.checkpoint_wanted.notify_all();
        for thread in self.threads.lock().drain(..) {
            if thread.join().is_err() {
                tracing::error!("a journal thread had panicked");
            }
        }
    }

    /// Sets who is told of allocations and frees. Once, before the first handle.
    pub fn set_observer(&self, observer: Arc<dyn Observer>) {
        let _ = self.observer.set(observer);
    }

    /// Whether a failure has stopped the journal.
    pub fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Acquire)
    }

    /// Stops the journal for good: nothing is acknowledged and nothing more is accepted.
    pub fn abort(&self) {
        if !self.aborted.swap(true, Ordering::AcqRel) {
            tracing::error!("the journal is aborted: nothing can be written any more");
        }
        self.commit_wanted.notify_all();
        self.checkpoint_wanted.notify_all();
    }

    /// The most blocks that a transaction may have.
    pub(super) fn blocks_max(&self) -> u32 {
        match &self.log {
            Some(log) => log.ring.lock().len() / 4,
            None if self.in_memory => u32::MAX,
            None => BLOCKS_MAX_WITHOUT_LOG,
        }
    }

    /// The most credits that a handle may ask for.
    pub fn credits_max(&self) -> u32 {
        self.blocks_max() / 2
    }

    /// Opens the one handle: waits for room in the transaction and in the log first, then takes the update lock.
    pub fn start(&self, credits: u32) -> Result<Running<'_>> {
        let blocks_max = self.blocks_max();
        loop {
            if self.is_aborted() {
                return Err(Error::Aborted);
            }
            let transaction = self.running.lock();
            let blocks = (transaction.blocks.len() as u32).saturating_add(credits);
            if blocks > blocks_max && !transaction.is_empty() {
                let tid = transaction.tid;
                drop(transaction);
                Stats::count(&self.stats.waits_for_commit, 1);
                self.commit(tid)?;
                continue;
            }
            let need = self.log_blocks_for(blocks, transaction.revokes.len() as u32);
            if !self.has_space(need) {
                drop(transaction);
                Stats::count(&self.stats.waits_for_space, 1);
                self.make_space(need)?;
                continue;
            }
            return Ok(Running { journal: self, transaction });
        }
    }

    fn has_space(&self, need: u32) -> bool {
        self.log.as_ref().is_none_or(|log| log.ring.lock().free >= need)
    }

    /// The newest version of a block that is not home yet.
    pub fn newest(&self, nr: BlockNr) -> Option<Arc<Block>> {
        self.records.read().newest(nr)
    }

    /// The newest versions in a range of blocks that are not home yet.
    pub fn newest_in(&self, range: BlockRange) -> Vec<(BlockNr, Arc<Block>)> {
        self.records.read().newest_in(range)
    }

    /// Gives a block of a read-only device a newer version, from its log.
    pub fn overlay(&self, nr: BlockNr, block: Arc<Block>) {
        let tid = self.running_tid();
        self.records.write().publish(nr, tid, block);
    }

    /// Whether a recovery could write over a block of `range`: such a block is logged again rather than
    /// written in place (rule J5).
    pub fn is_live(&self, range: BlockRange) -> bool {
        self.records.read().is_live(range)
    }

    /// The running transaction.
    pub fn running_tid(&self) -> Tid {
        Tid(self.running_tid.load(Ordering::Acquire))
    }

    /// Whether the device is told of freed blocks as soon as their transaction is durable (`discard`).
    pub fn set_discard(&self, discard: bool) {
        self.discard.store(discard, Ordering::Relaxed);
    }

    /// Whether the device is told to flush its cache (`barrier=`); it is unless this says otherwise.
    pub fn set_barrier(&self, barrier: bool) {
        self.clock.set_barrier(barrier);
    }

    /// When the running transaction's first handle came; `None` while it is empty.
    pub fn running_since(&self) -> Option<Instant> {
        let running = self.running.lock();
        if running.is_empty() {
            None
        } else {
            running.began
        }
    }

    /// Whether `tid` is durable.
    pub fn is_durable(&self, tid: Tid) -> bool {
        self.durable.lock().is_at_least(tid)
    }

    /// A stamp for in-place data whose write has just returned; see [`flushed`](Self::flushed).
    pub fn flush_stamp(&self) -> u64 {
        self.clock.stamp_in_place()
    }

    /// The newest stamp that [`flush_stamp`](Self::flush_stamp) has given to anyone.
    pub fn newest_flush_stamp(&self) -> u64 {
        self.clock.newest_in_place()
    }

    /// Whether in-place data with this stamp is durable.
    pub fn flushed(&self, stamp: u64) -> bool {
        self.clock.is_done(stamp)
    }

    /// How many flushes the device has been given by this journal.
    pub fn flushes(&self) -> u64 {
        self.clock.count()
    }

    /// Makes in-place data with this stamp durable.
    pub fn flush(&self, stamp: u64) -> Result<()> {
        if self.is_aborted() {
            return Err(Error::Posix(libc::EIO));
        }
        self.clock.wait(stamp).inspect_err(|_| self.abort())
    }

    /// Makes everything up to `tid` durable, and waits for it.
    pub fn commit(&self, tid: Tid) -> Result<()> {
        if self.in_memory {
            return Err(Error::ReadOnly);
        }
        loop {
            if self.is_durable(tid) {
                return Ok(());
            }
            if self.is_aborted() {
                return Err(Error::Posix(libc::EIO));
            }
            let leader = self.commit_lock.lock();
            if self.is_durable(tid) {
                return Ok(());
            }
            if !self.commit_running(&leader)? {
                // Nothing was in it, so there is nothing of `tid` that could be lost.
                return Ok(());
            }
        }
    }

    /// Asks the checkpointer for a round.
    pub(super) fn want_checkpoint(&self) {
        self.waiting.lock().checkpoint_wanted = true;
        self.checkpoint_wanted.notify_one();
    }

    fn checkpointer_loop(&self) {
        loop {
            {
                let mut waiting = self.waiting.lock();
                while !waiting.checkpoint_wanted && !waiting.stop {
                    self.checkpoint_wanted.wait(&mut waiting);
                }
                if waiting.stop {
                    return;
                }
                waiting.checkpoint_wanted = false;
            }
            if let Err(error) = self.checkpoint() {
                tracing::error!(%error, "checkpoint failed");
            }
        }
    }

    /// Returns when no checkpoint write to a block of `range` is under way; the caller has made sure that
    /// none begins (rule J5). Call it before an in-place write.
    pub fn wait_for_checkpoint_of(&self, range: BlockRange) {
        let mut going = self.going_home.lock();
        while going.range(range.start..range.end()).next().is_some() {
            self.went_home.wait(&mut going);
        }
    }
}
