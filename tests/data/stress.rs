//! Many threads on a small file system with a small log: nothing hangs, nothing is lost, e2fsck finds nothing; and
//! what was acknowledged to any of them survives a power cut at any moment.

use crate::support::{content, e2fsck, make, options, ROOT};
use journalfs::device::memory::MemoryDevice;
use journalfs::device::SharedDevice;
use journalfs::fs::Fs;
use journalfs::units::InodeNr;
use std::sync::Arc;
use std::time::{Duration, Instant};

const THREADS: u64 = 4;
const FILES: u64 = 6;

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) % limit
    }
}

/// ENOSPC may come at any time; nothing else may.
fn tolerate<T>(result: Result<T, journalfs::Error>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) if error.errno() == libc::ENOSPC => None,
        Err(error) => panic!("{error}"),
    }
}

/// From the event at `from` on, until the one at `to`, a power cut leaves this file so.
struct Promise {
    from: usize,
    to: usize,
    dir: InodeNr,
    name: String,
    nr: InodeNr,
    content: Vec<u8>,
}

/// What one program leaves: its files, and what was promised of them.
type Left = (Vec<(InodeNr, Vec<u8>)>, Vec<Promise>);

/// One program: files of its own in a directory of its own, each with one byte over and over (or zeroes).
fn program(fs: &Fs, which: u64, operations: u64, until: Instant, position: &dyn Fn() -> usize) -> Left {
    let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ (which + 1));
    let name = format!("dir-{which}");
    let dir = fs.mkdir(InodeNr::ROOT, name.as_bytes(), 0o755, 0, &ROOT).unwrap().nr;
    let mut files: Vec<Option<(InodeNr, Vec<u8>)>> = (0..FILES).map(|_| None).collect();
    let mut promises: Vec<Promise> = Vec::new();
    for _ in 0..operations {
        if Instant::now() >= until {
            break;
        }
        let slot = random.below(FILES);
        let name = format!("file-{slot}");
        let byte = (1 + which * FILES + slot) as u8;
        let Some((nr, model)) = &mut files[slot as usize] else {
            let made = tolerate(fs.mknod(dir, name.as_bytes(), 0o100_644, 0, 0, &ROOT));
            files[slot as usize] = made.map(|attr| (attr.nr, Vec::new()));
            continue;
        };
        let nr = *nr;
        let what = random.below(20);
        if what <= 13 {
            // Whatever was promised may change from here on.
            let now = position();
            for promise in promises.iter_mut().filter(|p| p.nr == nr) {
                promise.to = promise.to.min(now);
            }
        }
        match what {
            0..=8 => {
                let limit = if random.below(5) == 0 { 400_000 } else { 6000 };
                let len = 1 + random.below(limit) as usize;
                let at = random.below(model.len() as u64 + 20_000) as usize;
                if tolerate(fs.write(nr, at as u64, &vec![byte; len], &ROOT, false)).is_some() {
                    model.resize(model.len().max(at + len), 0);
                    model[at..at + len].fill(byte);
                }
            }
            9..=10 => {
                let size = random.below(model.len() as u64 * 2 + 1);
                if tolerate(fs.truncate(nr, size)).is_some() {
                    model.resize(size as usize, 0);
                }
            }
            11..=12 => {
                let (at, len) =
                    (random.below(model.len() as u64 + 1) as usize, 1 + random.below(50_000) as usize);
                if tolerate(fs.fallocate(nr, 3, at as u64, len as u64, &ROOT)).is_some() {
                    let end = model.len().min(at + len);
                    model[at.min(end)..end].fill(0);
                }
            }
            13 => {
                let open = random.below(2) == 0;
                if open {
                    fs.open(nr, libc::O_RDWR).unwrap();
                }
                if tolerate(fs.unlink(dir, name.as_bytes())).is_some() {
                    if open {
                        tolerate(fs.write(nr, 0, &[byte; 3000], &ROOT, false));
                        assert!(content(fs, nr).len() >= model.len());
                    }
                    files[slot as usize] = None;
                }
                if open {
                    fs.release(nr).unwrap();
                }
            }
            14..=16 => {
                if tolerate(fs.fsync(nr, random.below(2) == 0, 0)).is_some() {
                    let (from, content) = (position(), model.clone());
                    promises.push(Promise { from, to: usize::MAX, dir, name, nr, content });
                }
            }
            17 => {
                tolerate(fs.sync());
            }
            _ => {
                let found = content(fs, nr);
                assert_eq!(found.len(), model.len());
                assert!(
                    found == *model,
                    "file {slot} of {which} differs at {:?}",
                    found.iter().zip(&*model).position(|(a, b)| a != b)
                );
            }
        }
    }
    (files.into_iter().flatten().collect(), promises)
}

/// Runs the programs side by side.
fn run(fs: &Fs, operations: u64, until: Instant, position: &(dyn Fn() -> usize + Sync)) -> Left {
    let left: Vec<Left> = std::thread::scope(|scope| {
        let start = |which| scope.spawn(move || program(fs, which, operations, until, position));
        let programs: Vec<_> = (0..THREADS).map(start).collect();
        programs.into_iter().map(|program| program.join().unwrap()).collect()
    });
    let (files, promises): (Vec<_>, Vec<_>) = left.into_iter().unzip();
    (files.into_iter().flatten().collect(), promises.into_iter().flatten().collect())
}

/// How long each test runs: `JOURNALFS_STRESS_SECONDS`, or a short while.
fn seconds() -> u64 {
    std::env::var("JOURNALFS_STRESS_SECONDS").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(3)
}

fn stress(profile: mkfs::Profile, block_bytes: u32, mib: u64, words: &[&str]) {
    let memory: Arc<MemoryDevice> = Arc::new(make(profile, block_bytes, mib, "").memory);
    let mut options = options(words);
    options.tuning.commit = Duration::from_millis(300);
    let fs = Fs::mount(memory.clone() as SharedDevice, &options).unwrap();
    let until = Instant::now() + Duration::from_secs(seconds());
    let (left, _) = run(&fs, u64::MAX, until, &|| 0);
    fs.unmount().unwrap();
    e2fsck(&*memory, "stress");
    let fs = Fs::mount(memory as SharedDevice, &options).unwrap();
    for (nr, model) in left {
        assert!(content(&fs, nr) == model, "{nr:?} after a remount");
    }
    fs.unmount().unwrap();
}

#[test]
fn ext3_with_little_of_everything() {
    stress(mkfs::Profile::Ext3, 1024, 8, &["inactivate=deferred", "cache_size=1"]);
}

#[test]
fn extents_with_little_of_everything() {
    stress(mkfs::Profile::Journalfs, 1024, 8, &["cache_size=1"]);
}

#[test]
fn all_data_logged() {
    stress(mkfs::Profile::Journalfs, 1024, 16, &["data=journal", "inactivate=inline"]);
}

#[test]
fn usual_sizes() {
    stress(mkfs::Profile::Journalfs, 4096, 64, &[]);
}

/// Cuts the power under many threads at many moments.
fn cut_stress(profile: mkfs::Profile, block_bytes: u32, words: &[&str]) {
    let made = make(profile, block_bytes, 8, "");
    let m = made.mount(words);
    let until = Instant::now() + Duration::from_secs(seconds());
    let device = m.device.clone();
    let (_, promises) = run(&m.fs, 250, until, &move || device.position());
    m.fs.sync().unwrap();
    let step = m.device.position() / 40;
    let mut held = 0;
    m.cut(8, step, |fs, position| {
        for promise in promises.iter().filter(|p| p.from <= position && position <= p.to) {
            let Promise { nr, dir, name, .. } = promise;
            let found =
                fs.lookup(*dir, name.as_bytes()).unwrap_or_else(|e| panic!("cut at {position}: {name}: {e}"));
            assert_eq!(found.nr, *nr, "cut at {position}");
            assert!(content(fs, *nr) == promise.content, "cut at {position}: {name} in {dir:?} has changed");
            held += 1;
        }
    });
    assert!(held > 0, "nothing was promised");
    m.end("cut");
}

#[test]
fn cuts_with_data_in_place() {
    cut_stress(mkfs::Profile::Journalfs, 4096, &[]);
}

#[test]
fn cuts_with_indirect_blocks() {
    cut_stress(mkfs::Profile::Ext3, 1024, &["inactivate=deferred"]);
}

#[test]
fn cuts_with_two_flushes_and_logged_data() {
    cut_stress(mkfs::Profile::Journalfs, 1024, &["data=journal", "nojournal_async_commit"]);
}

#[test]
fn a_number_that_is_used_again_is_a_new_file() {
    let m = make(mkfs::Profile::Journalfs, 4096, 64, "").mount(&[]);
    let fs = &m.fs;
    std::thread::scope(|scope| {
        for which in 1..=THREADS as u8 {
            scope.spawn(move || {
                let name = [b'0' + which];
                // Much delayed data makes the end of a file long, and little makes the next one's begin early.
                let len = if which % 2 == 0 { 900_000 } else { 3000 };
                for round in 0..300 {
                    let nr = fs.mknod(InodeNr::ROOT, &name, 0o100_644, 0, 0, &ROOT).unwrap().nr;
                    fs.write(nr, 0, &vec![which; len], &ROOT, false).unwrap();
                    assert!(content(fs, nr) == vec![which; len], "round {round}");
                    if round % 3 == 0 {
                        fs.fsync(nr, false, 0).unwrap();
                        assert!(content(fs, nr) == vec![which; len], "round {round}, synced");
                    }
                    fs.unlink(InodeNr::ROOT, &name).unwrap();
                }
            });
        }
    });
    m.end("reused numbers");
}
