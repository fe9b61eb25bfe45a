//! Devices that fail at random under a random load. Whatever fails and however: nobody is told that something is durable
//! which isn't, each call returns, and what is left can be mounted. Below the failing device is one that records, so that
//! what a power cut would have left at any moment is known.

use crate::support::{content, e2fsck, make, options, Made, ROOT};
use journalfs::device::faulty::{Failure, FaultyDevice, Request};
use journalfs::device::memory::MemoryDevice;
use journalfs::device::recording::{crash_point, replay, Event, RecordingDevice};
use journalfs::device::SharedDevice;
use journalfs::fs::{Fs, RenameFlags};
use journalfs::units::InodeNr;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Small random numbers (xorshift64*).
#[derive(Clone)]
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % limit
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

/// The byte at a place of a file: so what belongs to another file or place is told from it.
fn byte(file: u64, at: u64) -> u8 {
    ((file + 1).wrapping_mul(0x9e37_79b9) ^ at.wrapping_mul(0x85eb_ca6b) ^ at >> 9) as u8 | 1
}

fn bytes(file: u64, at: u64, len: u64) -> Vec<u8> {
    (at..at + len).map(|at| byte(file, at)).collect()
}

/// A file that only grows, and is synced now and then.
struct Log {
    name: String,
    id: u64,
    /// Bytes that a write may have put there.
    tried: u64,
    /// When a sync was acknowledged (events by then), and the size that it covered.
    acknowledged: Vec<(usize, u64)>,
}

/// A name that is replaced by new versions, each written and synced before.
struct Replaced {
    name: String,
    /// Ids and sizes of the versions; a rename to each was at least tried.
    versions: Vec<(u64, u64)>,
    /// When the directory was synced, and the newest version by then.
    acknowledged: Vec<(usize, usize)>,
}

struct Worker {
    fs: Arc<Fs>,
    device: Arc<RecordingDevice>,
    random: Random,
    dir: InodeNr,
    log: Log,
    replaced: Replaced,
    next_id: u64,
}

impl Worker {
    fn run(mut self, steps: u64) -> (Log, Replaced) {
        for _ in 0..steps {
            match self.random.below(10) {
                0..=5 => self.append(),
                6..=7 => self.replace(),
                8 => self.churn(),
                _ => {
                    let _ = self.fs.sync();
                }
            }
        }
        (self.log, self.replaced)
    }

    fn file(&self, name: &str) -> Option<InodeNr> {
        match self.fs.lookup(self.dir, name.as_bytes()) {
            Ok(attr) => Some(attr.nr),
            Err(_) => {
                self.fs.mknod(self.dir, name.as_bytes(), 0o100_644, 0, 0, &ROOT).ok().map(|attr| attr.nr)
            }
        }
    }

    fn append(&mut self) {
        let Some(nr) = self.file(&self.log.name) else { return };
        let Ok(size) = self.fs.getattr(nr).map(|attr| attr.size) else { return };
        let len = self.random.pick(&[10, 700, 4096, 9000, 100_000]);
        self.log.tried = self.log.tried.max(size + len);
        let written = self.fs.write(nr, size, &bytes(self.log.id, size, len), &ROOT, false);
        if let Ok(attr) = self.fs.getattr(nr) {
            let expected = if written.is_ok() { size + len } else { size };
            assert_eq!(attr.size, expected, "a write is whole or absent");
        }
        if self.random.below(2) == 0 {
            let size = self.fs.getattr(nr).map_or(0, |attr| attr.size);
            if self.fs.fsync(nr, self.random.below(2) == 0, 0).is_ok() {
                self.log.acknowledged.push((self.device.position(), size));
            }
        }
    }

    fn replace(&mut self) {
        self.next_id += 1;
        let (id, len) = (self.next_id, self.random.pick(&[1, 3000, 20_000, 70_000]));
        let temporary = format!("{}.new", self.replaced.name);
        let _ = self.fs.unlink(self.dir, temporary.as_bytes());
        let made = self.fs.mknod(self.dir, temporary.as_bytes(), 0o100_644, 0, 0, &ROOT);
        let Ok(nr) = made.map(|attr| attr.nr) else { return };
        if self.fs.write(nr, 0, &bytes(id, 0, len), &ROOT, false).is_err()
            || self.fs.fsync(nr, false, 0).is_err()
        {
            return;
        }
        self.replaced.versions.push((id, len));
        let name = self.replaced.name.as_bytes();
        let renamed =
            self.fs.rename(self.dir, temporary.as_bytes(), self.dir, name, RenameFlags::empty(), &ROOT);
        if renamed.is_err() {
            self.replaced.versions.pop();
        } else if self.fs.fsync(self.dir, false, 0).is_ok() {
            self.replaced.acknowledged.push((self.device.position(), self.replaced.versions.len() - 1));
        }
    }

    /// Other work, of which nothing is remembered.
    fn churn(&mut self) {
        let name = format!("other{}", self.random.below(3));
        let Some(nr) = self.file(&name) else { return };
        match self.random.below(4) {
            0 => drop(self.fs.write(nr, self.random.below(1 << 20), &vec![0xee; 30_000], &ROOT, false)),
            1 => drop(self.fs.truncate(nr, self.random.below(100_000))),
            2 => drop(self.fs.unlink(self.dir, name.as_bytes())),
            _ => drop(self.fs.setxattr(nr, b"user.x", &[0xee; 600], 0, &ROOT)),
        }
    }
}

/// What is to fail, how and when.
fn plan(random: &mut Random) -> impl FnMut(&Request) -> Option<Failure> + Send + 'static {
    let which = random.below(5);
    let failure = match random.below(6) {
        0..=2 => Failure::Errno(libc::EIO),
        3 => Failure::Errno(libc::ENOSPC),
        4 => Failure::Short(512 * random.below(20)),
        _ => Failure::Delay(Duration::from_micros(random.below(3000))),
    };
    let (after, mode, percent) = (random.below(120), random.below(3), 1 + random.below(30));
    let mut own = random.clone();
    let mut seen = 0;
    move |request| {
        let meant = match which {
            0 => request.is_read(),
            1 => request.is_write(),
            2 => *request == Request::Flush,
            3 => !request.is_read(),
            _ => true,
        };
        seen += u64::from(meant);
        let fails = meant
            && match mode {
                0 => seen == after + 1,
                1 => seen > after,
                _ => seen > after && own.below(100) < percent,
            };
        fails.then_some(failure)
    }
}

struct Scenario {
    made: Made,
    random: Random,
    words: Vec<&'static str>,
    what: String,
}

impl Scenario {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let made = match random.below(3) {
            0 => make(mkfs::Profile::Journalfs, 4096, 24, ""),
            1 => make(mkfs::Profile::Journalfs, 1024, 8, ""),
            _ => make(mkfs::Profile::Ext3, 1024, 8, ""),
        };
        let words = vec![
            random.pick(&["data=ordered", "data=ordered", "data=journal"]),
            random.pick(&["journal_async_commit", "nojournal_async_commit"]),
            random.pick(&["inactivate=inline", "inactivate=deferred"]),
            random.pick(&["errors=continue", "errors=remount-ro"]),
        ];
        let what = format!("seed {seed}, {words:?}, {} byte blocks", made.block_bytes);
        Self { made, random, words, what }
    }

    fn run(mut self) {
        let recording = Arc::new(RecordingDevice::new(Arc::new(self.made.memory.clone())));
        let faulty = Arc::new(FaultyDevice::new(recording.clone()));
        let fs = Fs::mount(faulty.clone(), &options(&self.words)).unwrap();
        let workers: Vec<Worker> = (0..2).map(|which| self.worker(&fs, &recording, which)).collect();
        fs.sync().unwrap();
        faulty.plan(plan(&mut self.random));
        let steps = 15 + self.random.below(30);
        let threads: Vec<_> =
            workers.into_iter().map(|worker| std::thread::spawn(move || worker.run(steps))).collect();
        let results: Vec<_> = threads.into_iter().map(|thread| thread.join().expect("a worker")).collect();
        let aborted = fs.stats()["journal"]["aborted"] == true;
        if self.random.below(2) == 0 {
            faulty.heal();
        }
        if std::env::var_os("FAULT_SEEDS").is_some() {
            let count: Vec<_> = results
                .iter()
                .map(|(log, replaced)| (log.acknowledged.len(), replaced.acknowledged.len()))
                .collect();
            println!("{}: aborted {aborted}, acknowledged {count:?}", self.what);
        }
        if aborted {
            self.assert_sticky(&fs);
        }
        let unmounted = fs.unmount();
        assert!(!aborted || unmounted.is_err(), "{}: an aborted journal, and a clean unmount", self.what);
        assert!(fs.unmount().is_ok(), "a second unmount has nothing to do");
        let events = recording.events();
        for _ in 0..5 {
            let position = self.random.below(events.len() as u64 + 1) as usize;
            self.check_cut(&events, position, &results);
        }
        let last = self.check_cut(&events, events.len(), &results);
        self.recover_badly(&last, events.len(), &results);
    }

    fn worker(&self, fs: &Arc<Fs>, device: &Arc<RecordingDevice>, which: u64) -> Worker {
        let dir = fs.mkdir(InodeNr::ROOT, format!("w{which}").as_bytes(), 0o755, 0, &ROOT).unwrap().nr;
        let id = which * 1000;
        Worker {
            fs: fs.clone(),
            device: device.clone(),
            random: Random::new(self.random.0 ^ which << 7),
            dir,
            log: Log { name: "log".into(), id, tried: 0, acknowledged: Vec::new() },
            replaced: Replaced { name: "replaced".into(), versions: Vec::new(), acknowledged: Vec::new() },
            next_id: id,
        }
    }

    fn assert_sticky(&self, fs: &Fs) {
        let what = &self.what;
        assert_eq!(fs.sync().unwrap_err().errno(), libc::EIO, "{what}");
        let made = fs.mkdir(InodeNr::ROOT, b"late", 0o755, 0, &ROOT);
        assert!(matches!(made.unwrap_err().errno(), libc::EROFS | libc::EIO), "{what}");
        let (sender, receiver) = channel();
        fs.sync_then(Box::new(move |result| sender.send(result.is_err()).unwrap()));
        assert!(receiver.recv_timeout(Duration::from_secs(20)).unwrap(), "{what}");
    }

    /// What a power cut after so many events leaves, with some of what no flush covered.
    fn check_cut(&mut self, events: &[Event], position: usize, results: &[(Log, Replaced)]) -> MemoryDevice {
        let point = crash_point(events, position);
        let device = self.made.memory.clone();
        replay(events, point.durable.iter().copied(), &device).unwrap();
        let keep = self.random.below(101);
        let mut random = self.random.clone();
        replay(events, point.pending.iter().copied().filter(|_| random.below(100) < keep), &device).unwrap();
        self.random = random;
        self.check(device.clone(), position, results, &format!("cut at {position} of {}", events.len()));
        device
    }

    /// Recovers on a device that fails, and then on one that doesn't.
    fn recover_badly(&mut self, device: &MemoryDevice, position: usize, results: &[(Log, Replaced)]) {
        for _ in 0..2 {
            let recording = Arc::new(RecordingDevice::new(Arc::new(device.clone())));
            let faulty = Arc::new(FaultyDevice::new(recording.clone()));
            faulty.plan(plan(&mut self.random));
            if let Ok(fs) = Fs::mount(faulty, &options(&self.words)) {
                let _ = fs.sync();
                let _ = fs.unmount();
            }
            let events = recording.events();
            let point = crash_point(&events, events.len());
            let left = device.clone();
            replay(&events, point.durable.iter().copied(), &left).unwrap();
            self.check(left, position, results, "after a recovery that failed");
        }
    }

    fn check(&mut self, device: MemoryDevice, position: usize, results: &[(Log, Replaced)], when: &str) {
        let what = format!("{}, {when}", self.what);
        let device: SharedDevice = Arc::new(device);
        let fs = Fs::mount(device.clone(), &options(&[])).unwrap_or_else(|error| panic!("{what}: {error}"));
        for (which, (log, replaced)) in results.iter().enumerate() {
            let what = format!("{what}, worker {which}");
            let dir = fs.lookup(InodeNr::ROOT, format!("w{which}").as_bytes());
            let Ok(dir) = dir.map(|attr| attr.nr) else {
                assert!(log.acknowledged.iter().all(|(at, _)| *at > position), "{what}: no directory");
                continue;
            };
            log.check(&fs, dir, position, &what);
            replaced.check(&fs, dir, position, &what);
        }
        fs.unmount().unwrap_or_else(|error| panic!("{what}: unmount: {error}"));
        if self.random.below(8) == 0 {
            e2fsck(&*device, &what);
        }
    }
}

impl Log {
    fn check(&self, fs: &Fs, dir: InodeNr, position: usize, what: &str) {
        let acknowledged =
            self.acknowledged.iter().filter(|(at, _)| *at <= position).map(|(_, size)| *size).max();
        let Ok(attr) = fs.lookup(dir, self.name.as_bytes()) else {
            assert_eq!(acknowledged, None, "{what}: the log is gone");
            return;
        };
        let found = content(fs, attr.nr);
        assert!(
            found.len() as u64 >= acknowledged.unwrap_or(0),
            "{what}: {} bytes of {acknowledged:?}",
            found.len()
        );
        assert!(found.len() as u64 <= self.tried, "{what}: {} bytes of {}", found.len(), self.tried);
        let wrong = found.iter().zip(0..).position(|(found, at)| *found != byte(self.id, at));
        assert_eq!(wrong, None, "{what}: a wrong byte of {}, acknowledged {acknowledged:?}", found.len());
    }
}

impl Replaced {
    fn check(&self, fs: &Fs, dir: InodeNr, position: usize, what: &str) {
        let oldest =
            self.acknowledged.iter().filter(|(at, _)| *at <= position).map(|(_, which)| *which).max();
        let Ok(attr) = fs.lookup(dir, self.name.as_bytes()) else {
            assert_eq!(oldest, None, "{what}: the name is gone");
            return;
        };
        let found = content(fs, attr.nr);
        let allowed = &self.versions[oldest.unwrap_or(0)..];
        let known =
            allowed.iter().any(|(id, len)| found.len() as u64 == *len && found == bytes(*id, 0, *len));
        assert!(known, "{what}: {} bytes that are no version from {oldest:?} on", found.len());
    }
}

/// Runs a scenario; one that doesn't end is a failure too.
fn guarded(seed: u64) {
    let (sender, receiver) = channel();
    let failure = Arc::new(Mutex::new(None));
    let shared = failure.clone();
    std::thread::Builder::new()
        .name(format!("seed {seed}"))
        .spawn(move || {
            let result = std::panic::catch_unwind(|| Scenario::new(seed).run());
            *shared.lock().unwrap() = result.err();
            sender.send(()).unwrap();
        })
        .unwrap();
    assert!(receiver.recv_timeout(Duration::from_secs(120)).is_ok(), "seed {seed} hangs");
    let failed = failure.lock().unwrap().take();
    if let Some(panic) = failed {
        println!("failed with FAULT_SEED={seed} FAULT_SEEDS=1");
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn nothing_is_acknowledged_that_a_failing_device_has_not_kept() {
    let number = |name, default| std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default);
    let (first, count): (u64, u64) = (number("FAULT_SEED", 1), number("FAULT_SEEDS", 12));
    println!("seeds {first} to {}", first + count - 1);
    for seed in first..first + count {
        guarded(seed);
    }
}
