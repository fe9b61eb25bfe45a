//! A workload on a file system, with a record of what was acknowledged when.

use super::image::Profile;
use journalfs::device::memory::MemoryDevice;
use journalfs::device::recording::{Event, RecordingDevice};
use journalfs::fs::attr::Caller;
use journalfs::fs::options::MountOptions;
use journalfs::fs::{Fs, RenameFlags};
use journalfs::units::InodeNr;
use std::collections::BTreeMap;
use std::sync::Arc;

/// xorshift64*: the same numbers everywhere.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 33) % limit.max(1)
    }
}

/// What a file is filled with: one byte, or, now and then, the log's magic number over and over.
type Pattern = [u8; 4];

const MAGIC: Pattern = [0xc0, 0x3b, 0x39, 0x98];

fn filled(pattern: Pattern, at: usize, len: usize) -> impl Iterator<Item = u8> {
    (at..at + len).map(move |i| pattern[i % 4])
}

/// A regular file that the workload made.
#[derive(Clone)]
struct File {
    nr: InodeNr,
    /// Every byte that was ever written to it is this one's, by its place, or zero.
    pattern: Pattern,
    content: Vec<u8>,
}

/// After the event at `position`, file `id` is durable as it is here, until the event at `ends`.
struct Promise {
    position: usize,
    ends: usize,
    nr: InodeNr,
    content: Vec<u8>,
    /// Where it must be found, as long as no operation has touched that name.
    path: (usize, String),
    path_ends: usize,
}

pub(crate) struct World {
    fs: Arc<Fs>,
    device: Arc<RecordingDevice>,
    initial: MemoryDevice,
    random: Random,
    dirs: Vec<InodeNr>,
    /// By directory and name.
    files: BTreeMap<(usize, String), usize>,
    objects: Vec<File>,
    promises: Vec<Promise>,
    next_byte: u8,
    profile: Profile,
    mounted_at: usize,
    /// Unlinked and still open.
    open: Vec<InodeNr>,
}

const ROOT: Caller = Caller::ROOT;

impl World {
    pub(crate) fn new(profile: Profile, options: &MountOptions, seed: u64) -> Self {
        let made = profile.make();
        let device = Arc::new(RecordingDevice::new(Arc::new(made.clone())));
        let fs = Fs::mount(device.clone(), options).unwrap();
        let mut dirs = vec![InodeNr::ROOT];
        for name in [&b"a"[..], b"b"] {
            dirs.push(fs.mkdir(InodeNr::ROOT, name, 0o755, 0, &ROOT).unwrap().nr);
        }
        fs.sync().unwrap();
        let files = BTreeMap::new();
        let random = Random::new(seed);
        Self {
            mounted_at: device.position(),
            fs,
            device,
            initial: made,
            random,
            dirs,
            files,
            objects: Vec::new(),
            promises: Vec::new(),
            next_byte: 1,
            profile,
            open: Vec::new(),
        }
    }

    pub(crate) fn profile(&self) -> Profile {
        self.profile
    }

    /// The first event behind the preparations.
    pub(crate) fn mounted_at(&self) -> usize {
        self.mounted_at
    }

    pub(crate) fn initial(&self) -> MemoryDevice {
        self.initial.clone()
    }

    pub(crate) fn events(&self) -> Vec<Event> {
        self.device.events()
    }

    pub(crate) fn run(&mut self, operations: usize) {
        for _ in 0..operations {
            self.step();
        }
        self.fs.sync().unwrap();
        self.promise_all();
        self.fs.unmount().unwrap();
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..=24 => self.create(),
            25..=44 => self.write(),
            45..=52 => self.truncate(),
            53..=62 => self.rename(),
            63..=74 => self.unlink(),
            75..=79 => self.link(),
            80..=89 => self.fsync(),
            90..=91 => self.punch(),
            92..=93 => self.replace_atomically(),
            94..=96 => {
                self.fs.sync().unwrap();
                self.promise_all();
            }
            97 => self.make_and_remove_directory(),
            98 => self.fill_and_empty_directory(),
            _ => self.unlink_open(),
        }
    }

    fn pattern(&mut self) -> Pattern {
        if self.random.below(8) == 0 {
            return MAGIC;
        }
        self.next_byte = self.next_byte % 180 + 1;
        [self.next_byte; 4]
    }

    fn name(&mut self) -> (usize, String) {
        let dir = self.random.below(self.dirs.len() as u64) as usize;
        (dir, format!("file-{}", self.random.below(24)))
    }

    fn any_file(&mut self) -> Option<((usize, String), usize)> {
        let at = self.random.below(self.files.len() as u64) as usize;
        self.files.iter().nth(at).map(|(path, id)| (path.clone(), *id))
    }

    /// The promises about this name end: an operation is about to change it.
    fn touch_path(&mut self, path: &(usize, String)) {
        let now = self.device.position();
        for promise in &mut self.promises {
            if promise.path == *path {
                promise.path_ends = promise.path_ends.min(now);
            }
        }
    }

    /// The promises about this inode's content end.
    fn touch_content(&mut self, nr: InodeNr) {
        let now = self.device.position();
        for promise in &mut self.promises {
            if promise.nr == nr {
                promise.ends = promise.ends.min(now);
            }
        }
    }

    fn create(&mut self) {
        let path = self.name();
        if self.files.contains_key(&path) {
            return;
        }
        self.touch_path(&path);
        match self.fs.mknod(self.dirs[path.0], path.1.as_bytes(), 0o100_644, 0, 0, &ROOT) {
            Ok(attr) => {
                self.touch_content(attr.nr);
                let pattern = self.pattern();
                self.objects.push(File { nr: attr.nr, pattern, content: Vec::new() });
                self.files.insert(path, self.objects.len() - 1);
                self.write_to(self.objects.len() - 1);
            }
            Err(error) => assert_eq!(error.errno(), libc::ENOSPC, "{error}"),
        }
    }

    fn write(&mut self) {
        if let Some((_, id)) = self.any_file() {
            self.write_to(id);
        }
    }

    fn write_to(&mut self, id: usize) {
        let big = self.random.below(6) == 0;
        let len = 1 + self.random.below(if big { 200_000 } else { 9000 }) as usize;
        let size = self.objects[id].content.len() as u64;
        let at = if self.random.below(2) == 0 { size } else { self.random.below(size + 5000) } as usize;
        let File { nr, pattern, .. } = self.objects[id];
        self.touch_content(nr);
        let bytes: Vec<u8> = filled(pattern, at, len).collect();
        match self.fs.write(nr, at as u64, &bytes, &ROOT, false) {
            Ok(written) => {
                let content = &mut self.objects[id].content;
                let end = at + written as usize;
                if content.len() < end {
                    content.resize(end, 0);
                }
                content[at..end].copy_from_slice(&bytes[..end - at]);
            }
            Err(error) => assert_eq!(error.errno(), libc::ENOSPC, "{error}"),
        }
    }

    fn truncate(&mut self) {
        let Some((_, id)) = self.any_file() else { return };
        let size = self.random.below(2 * self.objects[id].content.len() as u64 + 1);
        let nr = self.objects[id].nr;
        self.touch_content(nr);
        if let Err(error) = self.fs.truncate(nr, size) {
            assert_eq!(error.errno(), libc::ENOSPC, "{error}");
            return;
        }
        self.objects[id].content.resize(size as usize, 0);
    }

    fn rename(&mut self) {
        let Some((from, id)) = self.any_file() else { return };
        let to = self.name();
        self.touch_path(&from);
        self.touch_path(&to);
        if let Some(other) = self.files.get(&to) {
            let nr = self.objects[*other].nr;
            if nr == self.objects[id].nr {
                return;
            }
            self.touch_content(nr);
        }
        let (a, b) = (self.dirs[from.0], self.dirs[to.0]);
        let flags = RenameFlags::empty();
        match self.fs.rename(a, from.1.as_bytes(), b, to.1.as_bytes(), flags, &ROOT) {
            Ok(()) => {
                self.files.remove(&from);
                self.files.insert(to, id);
            }
            Err(error) => assert_eq!(error.errno(), libc::ENOSPC, "{error}"),
        }
    }

    fn unlink(&mut self) {
        let Some((path, id)) = self.any_file() else { return };
        self.touch_path(&path);
        self.touch_content(self.objects[id].nr);
        self.fs.unlink(self.dirs[path.0], path.1.as_bytes()).unwrap();
        self.files.remove(&path);
    }

    fn link(&mut self) {
        let Some((_, id)) = self.any_file() else { return };
        let to = self.name();
        if self.files.contains_key(&to) {
            return;
        }
        self.touch_path(&to);
        match self.fs.link(self.objects[id].nr, self.dirs[to.0], to.1.as_bytes(), &ROOT) {
            Ok(_) => {
                self.files.insert(to, id);
            }
            Err(error) => assert_eq!(error.errno(), libc::ENOSPC, "{error}"),
        }
    }

    fn make_and_remove_directory(&mut self) {
        let name = format!("dir-{}", self.random.below(4));
        match self.fs.mkdir(InodeNr::ROOT, name.as_bytes(), 0o755, 0, &ROOT) {
            Ok(_) => {}
            Err(error) if error.is(libc::EEXIST) => self.fs.rmdir(InodeNr::ROOT, name.as_bytes()).unwrap(),
            Err(error) => assert_eq!(error.errno(), libc::ENOSPC, "{error}"),
        }
    }

    /// Directory blocks come and go, and are used for data afterwards.
    fn fill_and_empty_directory(&mut self) {
        let Ok(dir) = self.fs.mkdir(InodeNr::ROOT, b"wide", 0o755, 0, &ROOT) else { return };
        let count = 20 + self.random.below(60);
        let name = |i: u64| format!("{i:03}-{}", "x".repeat(120)).into_bytes();
        for i in 0..count {
            if self.fs.mknod(dir.nr, &name(i), 0o100_644, 0, 0, &ROOT).is_err() {
                break;
            }
        }
        if self.random.below(2) == 0 {
            self.fs.fsync(dir.nr, false, 0).unwrap();
            self.promise_all();
        }
        for i in 0..count {
            let _ = self.fs.unlink(dir.nr, &name(i));
        }
        self.fs.rmdir(InodeNr::ROOT, b"wide").unwrap();
    }

    /// An orphan: its last name goes while it is open; some stay open to the end.
    fn unlink_open(&mut self) {
        let Some((path, id)) = self.any_file() else { return };
        let nr = self.objects[id].nr;
        if self.files.values().filter(|other| self.objects[**other].nr == nr).count() > 1 {
            return;
        }
        self.touch_path(&path);
        self.touch_content(nr);
        self.fs.open(nr, libc::O_RDWR).unwrap();
        self.fs.unlink(self.dirs[path.0], path.1.as_bytes()).unwrap();
        self.files.remove(&path);
        self.open.push(nr);
        if self.open.len() > 2 {
            let nr = self.open.remove(0);
            self.fs.release(nr).unwrap();
        }
    }

    fn punch(&mut self) {
        let Some((_, id)) = self.any_file() else { return };
        let size = self.objects[id].content.len() as u64;
        if size < 2 {
            return;
        }
        let at = self.random.below(size - 1);
        let len = 1 + self.random.below(size - at);
        let nr = self.objects[id].nr;
        self.touch_content(nr);
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        match self.fs.fallocate(nr, mode, at, len, &ROOT) {
            Ok(()) => {
                let end = (at + len).min(size) as usize;
                self.objects[id].content[at as usize..end].fill(0);
            }
            Err(error) => assert_eq!(error.errno(), libc::ENOSPC, "{error}"),
        }
    }

    /// Write a new file, fsync it, rename it over the old one, fsync the directory: old or new, never neither.
    fn replace_atomically(&mut self) {
        let Some((path, _)) = self.any_file() else { return };
        let temporary = (path.0, "replacement".to_string());
        let made = self.fs.mknod(self.dirs[path.0], temporary.1.as_bytes(), 0o100_644, 0, 0, &ROOT);
        let Ok(attr) = made else { return };
        self.touch_content(attr.nr);
        let pattern = self.pattern();
        self.objects.push(File { nr: attr.nr, pattern, content: Vec::new() });
        let id = self.objects.len() - 1;
        self.files.insert(temporary.clone(), id);
        self.write_to(id);
        self.fs.fsync(attr.nr, false, 0).unwrap();
        self.promise(temporary.clone(), id);
        self.touch_path(&temporary);
        self.touch_path(&path);
        if let Some(old) = self.files.get(&path) {
            self.touch_content(self.objects[*old].nr);
        }
        let (dir, flags) = (self.dirs[path.0], RenameFlags::empty());
        self.fs.rename(dir, temporary.1.as_bytes(), dir, path.1.as_bytes(), flags, &ROOT).unwrap();
        self.files.remove(&temporary);
        self.files.insert(path, id);
        self.fs.fsync(dir, false, 0).unwrap();
        self.promise_all();
    }

    fn fsync(&mut self) {
        let Some((path, id)) = self.any_file() else { return };
        match self.fs.fsync(self.objects[id].nr, false, 0) {
            Ok(()) => self.promise(path, id),
            Err(error) => panic!("fsync: {error}"),
        }
    }

    fn promise(&mut self, path: (usize, String), id: usize) {
        let position = self.device.position();
        let File { nr, content, .. } = self.objects[id].clone();
        let (ends, path_ends) = (usize::MAX, usize::MAX);
        self.promises.push(Promise { position, ends, nr, content, path, path_ends });
    }

    fn promise_all(&mut self) {
        let files: Vec<_> = self.files.iter().map(|(path, id)| (path.clone(), *id)).collect();
        for (path, id) in files {
            self.promise(path, id);
        }
    }

    /// Compares a recovered file system with the promises that hold when the power is cut at `position`.
    pub(crate) fn compare(&self, fs: &Fs, position: usize, state: &str) {
        for promise in self.promises.iter().filter(|p| p.position <= position) {
            let what = || format!("{state}: {:?} of {:?}", promise.path, promise.nr);
            if position <= promise.path_ends {
                let dir = self.dirs[promise.path.0];
                let found = fs.lookup(dir, promise.path.1.as_bytes());
                let found = found.unwrap_or_else(|e| panic!("{}: {e}", what()));
                assert_eq!(found.nr, promise.nr, "{}", what());
            }
            if position <= promise.ends {
                let len = promise.content.len() as u32 + 1;
                let content = fs.read(promise.nr, 0, len).unwrap_or_else(|e| panic!("{}: {e}", what()));
                assert_eq!(content.len(), promise.content.len(), "{}: size", what());
                let wrong = content.iter().zip(&promise.content).position(|(a, b)| a != b);
                assert_eq!(wrong, None, "{}: content differs", what());
            }
        }
        for dir in &self.dirs {
            no_stale_bytes(fs, *dir, state);
        }
    }
}

/// A file holds zeroes and bytes of one writer only.
fn no_stale_bytes(fs: &Fs, dir: InodeNr, state: &str) {
    let Ok(_) = fs.getattr(dir) else { return };
    let mut entries = Vec::new();
    fs.readdir(dir, 0, &mut |entry| {
        entries.push((entry.nr, entry.name.to_vec()));
        true
    })
    .unwrap_or_else(|e| panic!("{state}: readdir: {e}"));
    for (nr, name) in entries {
        let attr = fs.getattr(nr).unwrap_or_else(|e| panic!("{state}: {name:?}: {e}"));
        if attr.mode & 0o170_000 != 0o100_000 {
            continue;
        }
        let content = fs.read(nr, 0, attr.size.min(1 << 24) as u32).unwrap();
        let first = content.iter().position(|b| *b != 0).unwrap_or(0);
        let pattern = match content.get(first) {
            Some(byte) if *byte == MAGIC[first % 4] => MAGIC,
            Some(byte) => [*byte; 4],
            None => [0; 4],
        };
        let stale = content.iter().enumerate().position(|(i, b)| *b != 0 && *b != pattern[i % 4]);
        assert_eq!(stale, None, "{state}: {name:?} shows bytes of another file");
    }
}
