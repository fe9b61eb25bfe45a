//! The commit engine: whoever waits is answered, once, and rightly.

use crate::support::{check, check_all};
use journalfs::cache::BlockCache;
use journalfs::device::faulty::{FaultyDevice, Request};
use journalfs::device::memory::MemoryDevice;
use journalfs::device::SharedDevice;
use journalfs::format::jbd2::{Compat, Incompat, JournalSuperblock};
use journalfs::journal::batch::{BatchPolicy, BatchTuning, ANONYMOUS};
use journalfs::journal::log_area::LogArea;
use journalfs::journal::{replay, Journal, LogSetup};
use journalfs::units::{BlockNr, BlockRange, Tid};
use shuttle::sync::{Condvar, Mutex};
use shuttle::thread;
use std::sync::Arc;

const BLOCK_BYTES: u32 = 1024;
const LOG: BlockRange = BlockRange { start: BlockNr(100), len: 1100 };
const DEVICE_BLOCKS: u64 = 4096;

fn open(device: SharedDevice) -> Arc<BlockCache> {
    let mut superblock = JournalSuperblock::new(BLOCK_BYTES, LOG.len, [7; 16]);
    superblock.compat = Compat::CHECKSUM;
    superblock.incompat = Incompat::REVOKE | Incompat::ASYNC_COMMIT;
    superblock.start = superblock.first;
    let area = LogArea::from_runs([LOG], DEVICE_BLOCKS).unwrap();
    replay::write_journal_superblock(&*device, &area, &superblock).unwrap();
    device.flush().unwrap();
    let journal = Journal::with_log(device.clone(), LogSetup { area, superblock, async_commit: true });
    // A hold that ends by time is nothing that can be modelled.
    journal.set_batch(BatchTuning { policy: BatchPolicy::None, ..BatchTuning::default() });
    Arc::new(BlockCache::new(device, Arc::new(journal), BLOCK_BYTES, 1 << 20))
}

fn memory() -> SharedDevice {
    Arc::new(MemoryDevice::new(DEVICE_BLOCKS * u64::from(BLOCK_BYTES)))
}

fn set(cache: &BlockCache, nr: u64, byte: u8) -> journalfs::Result<Tid> {
    let (tid, ()) = cache.update(2, |h| {
        h.create(BlockNr(nr))?.fill(byte);
        Ok(())
    })?;
    Ok(tid)
}

/// How many asked to be told, and how often they were told good news and bad.
#[derive(Default)]
struct Told {
    counts: Mutex<(usize, usize, usize)>,
    changed: Condvar,
}

impl Told {
    fn tell(&self, good: bool) {
        let mut counts = self.counts.lock().unwrap();
        if good {
            counts.1 += 1;
        } else {
            counts.2 += 1;
        }
        self.changed.notify_all();
    }

    /// Waits until everybody has been told; then how many good and bad news there were.
    fn all(&self) -> (usize, usize) {
        let mut counts = self.counts.lock().unwrap();
        while counts.1 + counts.2 < counts.0 {
            counts = self.changed.wait(counts).unwrap();
        }
        (counts.1, counts.2)
    }
}

/// Changes a block, and asks to be told when that is durable.
fn ask(cache: &Arc<BlockCache>, nr: u64, told: &Arc<Told>) {
    let journal = cache.journal().clone();
    let Ok(tid) = set(cache, nr, nr as u8) else { return };
    told.counts.lock().unwrap().0 += 1;
    let (told, asked) = (told.clone(), journal.clone());
    let then = Box::new(move |result: journalfs::Result<()>| {
        assert!(result.is_err() || asked.is_durable(tid), "told of what isn't durable");
        told.tell(result.is_ok());
    });
    journal.commit_then(Some(tid), 0, ANONYMOUS, then);
}

fn writers_and_a_committer() {
    let cache = open(memory());
    cache.journal().start_threads().unwrap();
    let told = Arc::new(Told::default());
    let asking = {
        let (cache, told) = (cache.clone(), told.clone());
        thread::spawn(move || {
            ask(&cache, 1, &told);
            ask(&cache, 2, &told);
        })
    };
    let waiting = {
        let cache = cache.clone();
        thread::spawn(move || {
            let tid = set(&cache, 3, 3).unwrap();
            cache.journal().commit(tid).unwrap();
            assert!(cache.journal().is_durable(tid));
        })
    };
    asking.join().unwrap();
    waiting.join().unwrap();
    assert_eq!(told.all(), (2, 0));
    // Who still waits is answered first.
    ask(&cache, 4, &told);
    cache.journal().stop_threads();
    assert_eq!(told.all(), (3, 0));
}

#[test]
fn every_waiter_is_answered_once() {
    check(1, writers_and_a_committer);
}

fn a_failing_flush() {
    let device = Arc::new(FaultyDevice::new(memory()));
    let cache = open(device.clone());
    let journal = cache.journal().clone();
    journal.start_threads().unwrap();
    device.fail_from(|request| *request == Request::Flush);
    let told = Arc::new(Told::default());
    let threads: Vec<_> = (1..3)
        .map(|nr| {
            let (cache, told) = (cache.clone(), told.clone());
            thread::spawn(move || ask(&cache, nr, &told))
        })
        .collect();
    let in_place = {
        let journal = journal.clone();
        thread::spawn(move || {
            let stamp = journal.flush_stamp();
            assert!(journal.flush(stamp).is_err(), "no flush succeeds");
        })
    };
    for thread in threads {
        thread.join().unwrap();
    }
    in_place.join().unwrap();
    let (good, bad) = told.all();
    journal.stop_threads();
    assert_eq!(told.all(), (good, bad), "nobody is told twice");
    assert_eq!(good, 0, "nothing is durable");
    assert!(bad <= 2 && journal.is_aborted());
    assert!(set(&cache, 9, 9).is_err(), "an abort is for good");
}

#[test]
fn a_failed_flush_tells_everybody_and_stays() {
    check(1, a_failing_flush);
}

fn one_flush_for_all() {
    let cache = open(memory());
    let journal = cache.journal().clone();
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let journal = journal.clone();
            thread::spawn(move || {
                let stamp = journal.flush_stamp();
                journal.flush(stamp).unwrap();
                assert!(journal.flushed(stamp));
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert!((1..=2).contains(&journal.flushes()));
}

#[test]
fn flushes_are_shared() {
    check_all(1, one_flush_for_all);
}

fn commits_without_threads() {
    let cache = open(memory());
    let threads: Vec<_> = (1..3)
        .map(|nr| {
            let cache = cache.clone();
            thread::spawn(move || {
                let tid = set(&cache, nr, nr as u8).unwrap();
                cache.journal().commit(tid).unwrap();
                assert!(cache.journal().is_durable(tid));
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn leaders_and_followers() {
    check_all(1, commits_without_threads);
}

fn a_checkpoint_beside_commits() {
    let cache = open(memory());
    let journal = cache.journal().clone();
    let tid = set(&cache, 1, 1).unwrap();
    journal.commit(tid).unwrap();
    let writer = {
        let cache = cache.clone();
        thread::spawn(move || {
            let tid = set(&cache, 1, 2).unwrap();
            cache.journal().commit(tid).unwrap();
        })
    };
    let reader = {
        let cache = cache.clone();
        thread::spawn(move || {
            let byte = cache.read(BlockNr(1)).unwrap()[0];
            assert!(byte == 1 || byte == 2, "a version that was never published: {byte}");
        })
    };
    journal.checkpoint().unwrap();
    writer.join().unwrap();
    reader.join().unwrap();
    assert_eq!(cache.read(BlockNr(1)).unwrap()[0], 2);
    journal.drain().unwrap();
    let mut home = [0; 4];
    cache.device().read_at(u64::from(BLOCK_BYTES), &mut home).unwrap();
    assert_eq!(home, [2; 4], "the last version is home");
}

#[test]
fn a_checkpoint_loses_no_version() {
    check(1, a_checkpoint_beside_commits);
}
