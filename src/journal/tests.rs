//! The journal over recorded and failing devices: what a power cut or a fault leaves.

use super::batch::{BatchPolicy, BatchTuning};
use super::log_area::LogArea;
use super::recovery::recover;
use super::{replay, Journal, LogSetup};
use crate::cache::BlockCache;
use crate::device::faulty::FaultyDevice;
use crate::device::memory::MemoryDevice;
use crate::device::recording::{crash_point, replay as redo, Event, RecordingDevice};
use crate::device::{Block, Device, SharedDevice};
use crate::format::jbd2::{Compat, Incompat, JournalSuperblock, MAGIC};
use crate::units::{BlockNr, BlockRange, Tid};
use crate::Result;
use std::collections::BTreeMap;
use std::sync::Arc;

const BLOCK_BYTES: u32 = 1024;
const LOG: BlockRange = BlockRange { start: BlockNr(100), len: 1100 };
const DEVICE_BLOCKS: u64 = 4096;

fn block_bytes_of(byte: u8) -> Block {
    Block::from_bytes(&[byte; BLOCK_BYTES as usize])
}

fn superblock(async_commit: bool) -> JournalSuperblock {
    let mut superblock = JournalSuperblock::new(BLOCK_BYTES, LOG.len, [7; 16]);
    superblock.compat = Compat::CHECKSUM;
    superblock.incompat = Incompat::REVOKE;
    superblock.incompat.set(Incompat::ASYNC_COMMIT, async_commit);
    superblock.start = superblock.first;
    superblock
}

fn area() -> LogArea {
    LogArea::from_runs([LOG], DEVICE_BLOCKS).unwrap()
}

/// A cache over a journal with an empty log, already durable, on `device`.
fn open(device: SharedDevice, async_commit: bool) -> BlockCache {
    let superblock = superblock(async_commit);
    replay::write_journal_superblock(&*device, &area(), &superblock).unwrap();
    device.flush().unwrap();
    let journal = Journal::with_log(device.clone(), LogSetup { area: area(), superblock, async_commit });
    BlockCache::new(device, Arc::new(journal), BLOCK_BYTES, 1 << 20)
}

fn set(cache: &BlockCache, nr: u64, byte: u8) -> Result<Tid> {
    let (tid, ()) = cache.update(2, |h| {
        h.create(BlockNr(nr))?.fill(byte);
        Ok(())
    })?;
    Ok(tid)
}

/// The blocks as a recovery of `device` gives them.
fn recovered(device: &SharedDevice) -> Result<BTreeMap<u64, u8>> {
    let mut bytes = vec![0; 1024];
    device.read_at(LOG.start.0 * BLOCK_BYTES as u64, &mut bytes).unwrap();
    let superblock = JournalSuperblock::decode(&bytes)?;
    let recovered = recover(&**device, &area(), &superblock)?;
    replay::apply(&recovered, &**device, &area())?;
    let mut blocks = BTreeMap::new();
    for nr in 0..64 {
        let mut block = vec![0; BLOCK_BYTES as usize];
        device.read_at(nr * BLOCK_BYTES as u64, &mut block).unwrap();
        assert!(block[4..].iter().all(|b| *b == block[4]), "block {nr} is torn");
        blocks.insert(nr, block[4]);
    }
    Ok(blocks)
}

/// What a test did: after the event at `position`, `blocks` were acknowledged.
type Acknowledged = Vec<(usize, BTreeMap<u64, u8>)>;

/// Cuts the power at every event, with every pending write lost, whole, and torn after its first sectors, and compares
/// with what had been acknowledged. `states` are all the states that a commit has made, in order.
fn cut_everywhere(events: &[Event], acknowledged: &Acknowledged, states: &[BTreeMap<u64, u8>]) -> usize {
    let mut checked = 0;
    // The first four events make the empty log durable.
    for position in 4..=events.len() {
        let point = crash_point(events, position);
        let promised =
            acknowledged.iter().rev().find(|(at, _)| *at <= position).map(|(_, state)| state.clone());
        let from = promised.map_or(0, |p| states.iter().rposition(|s| *s == p).unwrap());
        for variant in 0..4 {
            let device: SharedDevice = Arc::new(MemoryDevice::new(DEVICE_BLOCKS * BLOCK_BYTES as u64));
            redo(events, point.durable.iter().copied(), &*device).unwrap();
            for at in &point.pending {
                let Event::Write { offset, data, .. } = &events[*at] else { continue };
                let sectors = data.len() / 512;
                match variant {
                    0 => {}
                    1 => device.write_at(*offset, data).unwrap(),
                    2 => device.write_at(*offset, &data[..sectors.div_ceil(2).min(sectors) * 512]).unwrap(),
                    _ => {
                        // All but one sector in the middle.
                        let middle = sectors / 2 * 512;
                        device.write_at(*offset, &data[..middle]).unwrap();
                        let rest = (middle + 512).min(data.len());
                        device.write_at(*offset + rest as u64, &data[rest..]).unwrap();
                    }
                }
            }
            let found = recovered(&device).unwrap();
            assert!(
                states[from..].contains(&found),
                "cut after {position} events, variant {variant}: state {found:?}"
            );
            checked += 1;
        }
    }
    checked
}

struct Run {
    cache: BlockCache,
    device: Arc<RecordingDevice>,
    now: BTreeMap<u64, u8>,
    states: Vec<BTreeMap<u64, u8>>,
    acknowledged: Acknowledged,
}

impl Run {
    fn new(async_commit: bool) -> Self {
        let memory = Arc::new(MemoryDevice::new(DEVICE_BLOCKS * BLOCK_BYTES as u64));
        let device = Arc::new(RecordingDevice::new(memory));
        let now: BTreeMap<u64, u8> = (0..64).map(|nr| (nr, 0)).collect();
        let cache = open(device.clone(), async_commit);
        Self { cache, device, states: vec![now.clone()], now, acknowledged: Vec::new() }
    }

    fn commit(&mut self, changes: &[(u64, u8)]) {
        for (nr, byte) in changes {
            set(&self.cache, *nr, *byte).unwrap();
            self.now.insert(*nr, *byte);
        }
        self.states.push(self.now.clone());
        self.cache.journal().commit(self.cache.journal().running_tid()).unwrap();
        self.acknowledged.push((self.device.position(), self.now.clone()));
    }
}

#[test]
fn every_power_cut_leaves_what_was_acknowledged() {
    for async_commit in [true, false] {
        let mut run = Run::new(async_commit);
        for round in 1..=12u8 {
            run.commit(&[(round as u64 % 5, round), (10 + round as u64 % 3, round), (30, round)]);
            if round % 4 == 0 {
                run.cache.journal().checkpoint().unwrap();
            }
        }
        let checked = cut_everywhere(&run.device.events(), &run.acknowledged, &run.states);
        assert!(checked > 200, "{checked}");
    }
}

#[test]
fn a_commit_costs_one_flush_and_two_with_new_data_in_place() {
    let run = Run::new(true);
    let journal = run.cache.journal();
    let flushes = |f: &dyn Fn()| {
        let before = run.device.events().iter().filter(|e| matches!(e, Event::FlushBegun { .. })).count();
        f();
        let after = run.device.events().iter().filter(|e| matches!(e, Event::FlushBegun { .. })).count();
        after - before
    };
    let commit = || journal.commit(journal.running_tid()).unwrap();
    set(&run.cache, 3, 3).unwrap();
    assert_eq!(flushes(&commit), 1);
    assert_eq!(flushes(&commit), 0, "nothing to commit, nothing to flush");
    let in_place = || {
        run.cache.update(1, |h| {
            h.create(BlockNr(4))?.fill(4);
            h.reaches_in_place_data();
            Ok(())
        })
    };
    in_place().unwrap();
    assert_eq!(flushes(&commit), 2, "J4: the data first");
    in_place().unwrap();
    journal.flush(journal.flush_stamp()).unwrap();
    assert_eq!(flushes(&commit), 1, "J4: a flush since has covered the data");
    let classic = Run::new(false);
    set(&classic.cache, 3, 3).unwrap();
    let journal = classic.cache.journal();
    journal.commit(journal.running_tid()).unwrap();
    assert_eq!(journal.flushes(), 2);
}

#[test]
fn nothing_of_a_transaction_is_written_before_the_one_before_it_is_durable() {
    let mut run = Run::new(true);
    for round in 1..=5 {
        run.commit(&[(1, round)]);
    }
    // J1: between two writes to the log there is a completed flush.
    let log = LOG.start.plus(1).0 * 1024..LOG.end().0 * 1024;
    let mut open_write = false;
    for event in run.device.events() {
        match event {
            Event::Write { offset, .. } if log.contains(&offset) => {
                assert!(!open_write, "two transactions without a flush between them");
                open_write = true;
            }
            Event::FlushBegun { .. } => open_write = false,
            _ => {}
        }
    }
}

#[test]
fn a_block_that_begins_with_the_magic_comes_back_whole() {
    let run = Run::new(true);
    let magic = MAGIC.to_be_bytes();
    run.cache
        .update(1, |h| {
            let block = h.create(BlockNr(9))?;
            block.fill(5);
            block[..4].copy_from_slice(&magic);
            Ok(())
        })
        .unwrap();
    run.cache.journal().commit(Tid(1)).unwrap();
    let device: SharedDevice = run.device.clone();
    recovered(&device).unwrap();
    let mut block = vec![0; BLOCK_BYTES as usize];
    device.read_at(9 * 1024, &mut block).unwrap();
    assert_eq!(block[..4], magic);
    assert_eq!(block[4], 5);
}

#[test]
fn a_freed_block_is_not_replayed_over_its_new_contents() {
    let run = Run::new(true);
    let journal = run.cache.journal();
    set(&run.cache, 20, 1).unwrap();
    journal.commit(journal.running_tid()).unwrap();
    let range = BlockRange::new(BlockNr(20), 1);
    assert!(journal.is_live(range));
    run.cache
        .update(2, |h| {
            h.forget(range);
            h.create(BlockNr(21))?.fill(2);
            Ok(())
        })
        .unwrap();
    journal.commit(journal.running_tid()).unwrap();
    assert!(!journal.is_live(range), "J7");
    run.device.write_at(20 * 1024, &block_bytes_of(9)).unwrap();
    let device: SharedDevice = run.device.clone();
    let blocks = recovered(&device).unwrap();
    assert_eq!((blocks[&20], blocks[&21]), (9, 2));
}

#[test]
fn a_checkpoint_flushes_before_it_moves_the_tail() {
    let mut run = Run::new(true);
    run.commit(&[(5, 5), (6, 6)]);
    let begin = run.device.position();
    run.cache.journal().checkpoint().unwrap();
    let superblock_at = LOG.start.0 * 1024;
    let steps: Vec<&str> = run.device.events()[begin..]
        .iter()
        .filter_map(|event| match event {
            Event::Write { offset, .. } if *offset == superblock_at => Some("tail"),
            Event::Write { .. } => Some("home"),
            Event::FlushBegun { .. } => Some("flush"),
            _ => None,
        })
        .collect();
    assert_eq!(steps, ["home", "flush", "tail", "flush"], "J8");
    let mut block = [0; 1024];
    run.device.read_at(5 * 1024, &mut block).unwrap();
    assert_eq!(block, [5; 1024]);
}

#[test]
fn the_log_wraps_many_times_and_always_recovers() {
    let mut run = Run::new(true);
    run.device.clear();
    for round in 0..600u32 {
        let byte = (round % 250) as u8 + 1;
        let changes: Vec<(u64, u8)> = (0..9).map(|i| ((u64::from(round) * 7 + i * 5) % 64, byte)).collect();
        run.commit(&changes);
        run.states.clear();
        run.acknowledged.clear();
        run.device.clear();
        if round % 37 == 0 {
            let copy = Arc::new(MemoryDevice::new(DEVICE_BLOCKS * u64::from(BLOCK_BYTES)));
            let mut image = vec![0; (DEVICE_BLOCKS * u64::from(BLOCK_BYTES)) as usize];
            run.device.read_at(0, &mut image).unwrap();
            copy.write_at(0, &image).unwrap();
            assert_eq!(recovered(&(copy as SharedDevice)).unwrap(), run.now);
        }
    }
    let stats = &run.cache.journal().stats;
    let written = stats.log_blocks_written.load(std::sync::atomic::Ordering::Relaxed);
    assert!(written > 5 * u64::from(LOG.len), "{written}");
}

#[test]
fn after_a_failed_flush_nothing_is_acknowledged() {
    let memory = Arc::new(MemoryDevice::new(DEVICE_BLOCKS * BLOCK_BYTES as u64));
    let device = Arc::new(FaultyDevice::new(memory));
    let cache = open(device.clone(), true);
    let journal = cache.journal();
    set(&cache, 1, 1).unwrap();
    journal.commit(Tid(1)).unwrap();
    device.fail_once(|request| *request == crate::device::faulty::Request::Flush);
    set(&cache, 2, 2).unwrap();
    assert_eq!(journal.commit(Tid(2)).unwrap_err().errno(), libc::EIO);
    assert!(journal.is_aborted());
    assert_eq!(journal.commit(Tid(2)).unwrap_err().errno(), libc::EIO, "a failed fsync stays failed");
    assert_eq!(set(&cache, 3, 3).unwrap_err().errno(), libc::EROFS);
    assert!(journal.commit(Tid(1)).is_ok(), "what was durable stays acknowledged");
    assert_eq!(cache.read(BlockNr(1)).unwrap()[0], 1, "reads go on");
}

#[test]
fn a_failed_handle_leaves_nothing() {
    let run = Run::new(true);
    set(&run.cache, 1, 1).unwrap();
    let failed = run.cache.update(2, |h| {
        h.modify(BlockNr(1))?.fill(9);
        h.create(BlockNr(2))?.fill(9);
        Err::<(), _>(crate::Error::NoSpace)
    });
    assert!(failed.unwrap_err().is(libc::ENOSPC));
    assert_eq!(run.cache.read(BlockNr(1)).unwrap()[0], 1);
    assert_eq!(run.cache.read(BlockNr(2)).unwrap()[0], 0);
}

#[test]
fn waiters_are_answered_by_the_committer() {
    let run = Run::new(true);
    let journal = run.cache.journal().clone();
    journal.start_threads().unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    for round in 1..=50u8 {
        let tid = set(&run.cache, 1, round).unwrap();
        let sender = sender.clone();
        journal.commit_then(
            Some(tid),
            0,
            1,
            Box::new(move |result| sender.send((tid, result.is_ok())).unwrap()),
        );
    }
    for _ in 0..50 {
        let (tid, good) = receiver.recv_timeout(std::time::Duration::from_secs(10)).unwrap();
        assert!(good && journal.is_durable(tid));
    }
    journal.stop_threads();
}

/// A journal whose `fixed` policy holds the transaction open for a minute once callers alternate; caller 1 has been
/// answered.
fn holding(run: &Run) -> (Arc<Journal>, std::sync::mpsc::Receiver<u32>, impl Fn(u32) + '_) {
    let journal = run.cache.journal().clone();
    let delay = std::time::Duration::from_secs(60);
    journal.set_batch(BatchTuning { policy: BatchPolicy::Fixed, delay, ..BatchTuning::default() });
    journal.start_threads().unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    let by = journal.clone();
    let sync = move |caller: u32| {
        let tid = set(&run.cache, 1, caller as u8).unwrap();
        let sender = sender.clone();
        by.commit_then(
            Some(tid),
            0,
            caller,
            Box::new(move |result| {
                result.unwrap();
                sender.send(caller).unwrap();
            }),
        );
    };
    sync(1);
    assert_eq!(receiver.recv().unwrap(), 1);
    (journal, receiver, sync)
}

#[test]
fn callers_who_come_while_the_transaction_is_held_open_share_its_commit() {
    let run = Run::new(true);
    let (journal, answers, sync) = holding(&run);
    for caller in 2..=9 {
        sync(caller);
    }
    assert!(answers.recv_timeout(std::time::Duration::from_millis(50)).is_err(), "held open");
    // Another policy begins with what waits already.
    journal.set_batch(BatchTuning { policy: BatchPolicy::None, ..BatchTuning::default() });
    for caller in 2..=9 {
        assert_eq!(answers.recv().unwrap(), caller);
    }
    journal.stop_threads();
    assert_eq!(journal.stats.commits.load(std::sync::atomic::Ordering::Relaxed), 2);
    assert_eq!(journal.stats.callers_per_commit.quantiles().max, 8);
}

#[test]
fn who_waits_in_a_held_transaction_is_answered_when_somebody_else_commits_it_or_it_ends() {
    let run = Run::new(true);
    let (journal, answers, sync) = holding(&run);
    sync(2);
    journal.commit(journal.running_tid()).unwrap();
    assert_eq!(answers.recv_timeout(std::time::Duration::from_secs(10)).unwrap(), 2);
    sync(1);
    journal.stop_threads();
    assert_eq!(answers.try_recv().unwrap(), 1);
}

#[test]
fn more_revokes_than_the_log_has_room_for_make_room() {
    let run = Run::new(true);
    let journal = run.cache.journal();
    let range = BlockRange::new(BlockNr(1300), 1000);
    // A log that is nearly full of blocks that nobody has written home.
    let free = || journal.log.as_ref().unwrap().ring.lock().free;
    let mut next = range.start.0;
    while free() > 8 {
        let count = if free() > 250 { 200 } else { 1 };
        for nr in next..next + count {
            set(&run.cache, nr, 1).unwrap();
        }
        next += count;
        journal.commit(journal.running_tid()).unwrap();
    }
    let left = free();
    run.cache
        .update(2, |h| {
            h.forget(range);
            Ok(())
        })
        .unwrap();
    let need = journal.log_blocks_for(0, (next - range.start.0) as u32);
    assert!(need > left && free() == left, "the test wants a full log: {need} of {left}");
    journal.commit(journal.running_tid()).unwrap();
    assert!(!journal.is_live(range));
    set(&run.cache, 1, 1).unwrap();
    journal.commit(journal.running_tid()).unwrap();
}

/// Runs a step once, after a read has fetched its bytes and before they reach the reader.
struct Interrupted {
    inner: SharedDevice,
    step: parking_lot::Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Device for Interrupted {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        self.inner.read_at(offset, buf)?;
        if let Some(step) = self.step.lock().take() {
            step();
        }
        Ok(())
    }
    fn write_at(&self, offset: u64, buf: &[u8]) -> std::io::Result<()> {
        self.inner.write_at(offset, buf)
    }
    fn flush(&self) -> std::io::Result<()> {
        self.inner.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> std::io::Result<()> {
        self.inner.discard(offset, len)
    }
    fn read_only(&self) -> bool {
        false
    }
}

#[test]
fn a_block_that_goes_home_while_it_is_read_is_not_read_stale() {
    let inner = Arc::new(MemoryDevice::new(DEVICE_BLOCKS * u64::from(BLOCK_BYTES)));
    let device = Arc::new(Interrupted { inner, step: parking_lot::Mutex::new(None) });
    let cache = open(device.clone(), true);
    let journal = cache.journal().clone();
    let logged = Arc::new(block_bytes_of(7));
    cache
        .update(1, |h| {
            h.log_data(BlockNr(40), logged.clone());
            Ok(())
        })
        .unwrap();
    journal.commit(journal.running_tid()).unwrap();
    *device.step.lock() = Some(Box::new(move || journal.checkpoint().unwrap()));
    let mut read = vec![0; 1024];
    cache.read_data(BlockRange::new(BlockNr(40), 1), &mut read).unwrap();
    assert_eq!(read, [7; 1024]);
}

#[test]
fn without_barriers_the_device_is_not_flushed() {
    let run = Run::new(true);
    let journal = run.cache.journal();
    run.device.clear();
    journal.set_barrier(false);
    set(&run.cache, 1, 1).unwrap();
    journal.commit(journal.running_tid()).unwrap();
    journal.checkpoint().unwrap();
    journal.flush(journal.flush_stamp()).unwrap();
    assert!(!run.device.events().iter().any(|e| matches!(e, Event::FlushBegun { .. })));
}
