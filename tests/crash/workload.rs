//! Workloads on a recorded file system: named mixes of operations, each after what a crash could catch in the middle.

use super::image::Profile;
use super::oracle::{Id, Oracle, Path, Pattern, MAGIC};
use super::random::Random;
use journalfs::device::memory::MemoryDevice;
use journalfs::device::recording::{Event, RecordingDevice};
use journalfs::fs::attr::Caller;
use journalfs::fs::options::{DataMode, MountOptions};
use journalfs::fs::Fs;
use journalfs::units::InodeNr;
use std::collections::BTreeMap;
use std::sync::Arc;

/// One kind of step; `operations.rs` has a method for each.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Operation {
    Create,
    WriteSmall,
    WriteLarge,
    Append,
    Truncate,
    Punch,
    Rename,
    Exchange,
    Replace,
    Link,
    Unlink,
    UnlinkOpen,
    Directory,
    WideDirectory,
    LoggedThenInPlace,
    FillLog,
    UnlinkMany,
    LookLikeLog,
    Fsync,
    Fdatasync,
    FsyncDirectory,
    Sync,
}

/// How often each operation comes, in a workload with a name that a failure gives.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Mix {
    pub(crate) name: &'static str,
    weights: &'static [(Operation, u64)],
    pub(crate) image: Image,
}

/// What a workload begins with.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Image {
    /// A new file system.
    New,
    /// The smallest there is, soon full.
    Small,
    /// A file system made over another, whose log is still there.
    OverAnother,
}

const fn mix(name: &'static str, weights: &'static [(Operation, u64)]) -> Mix {
    Mix { name, weights, image: Image::New }
}

use Operation::*;

/// The workloads. Another joins by a line.
pub(crate) const MIXES: &[Mix] = &[
    mix(
        "a bit of everything",
        &[
            (Create, 25),
            (WriteSmall, 17),
            (WriteLarge, 4),
            (Truncate, 8),
            (Rename, 8),
            (Exchange, 2),
            (Unlink, 12),
            (Link, 5),
            (Fsync, 8),
            (Fdatasync, 2),
            (Punch, 2),
            (Replace, 2),
            (Sync, 3),
            (Directory, 1),
            (WideDirectory, 1),
            (UnlinkOpen, 1),
        ],
    ),
    mix(
        "metadata storm",
        &[
            (Create, 24),
            (Rename, 18),
            (Exchange, 6),
            (Link, 12),
            (Unlink, 15),
            (Truncate, 8),
            (Directory, 8),
            (Fsync, 4),
            (FsyncDirectory, 4),
            (Sync, 1),
        ],
    ),
    mix(
        "fsynced appends",
        &[(Create, 4), (Append, 48), (Fsync, 22), (Fdatasync, 20), (Truncate, 4), (Unlink, 2)],
    ),
    mix(
        "overwrite by rename",
        &[(Create, 10), (Replace, 60), (Exchange, 10), (Link, 5), (Unlink, 10), (Sync, 5)],
    ),
    mix(
        "logged, then in place",
        &[
            (Create, 8),
            (LoggedThenInPlace, 30),
            (WriteSmall, 12),
            (WriteLarge, 14),
            (Fsync, 14),
            (Unlink, 12),
            (Truncate, 10),
        ],
    ),
    mix(
        "directory blocks reused",
        &[
            (WideDirectory, 24),
            (Create, 20),
            (WriteLarge, 18),
            (Unlink, 14),
            (Fsync, 18),
            (FsyncDirectory, 6),
        ],
    ),
    mix("the log wraps", &[(Create, 20), (WriteSmall, 30), (Unlink, 15), (Truncate, 5), (Sync, 30)]),
    mix(
        "large beside small",
        &[(Create, 12), (WriteLarge, 34), (WriteSmall, 10), (Append, 10), (Fsync, 22), (Unlink, 12)],
    ),
    mix(
        "orphans",
        &[
            (Create, 30),
            (WriteSmall, 8),
            (WriteLarge, 8),
            (UnlinkOpen, 26),
            (Truncate, 12),
            (Fsync, 8),
            (Sync, 8),
        ],
    ),
    mix(
        "revokes by the block",
        &[(FillLog, 25), (UnlinkMany, 25), (WriteSmall, 15), (Create, 25), (Sync, 10)],
    ),
    mix("a file like the log", &[(LookLikeLog, 1)]),
    Mix {
        name: "over an old log",
        weights: &[(Create, 40), (WriteSmall, 20), (Unlink, 10), (Fsync, 20), (Sync, 10)],
        image: Image::OverAnother,
    },
    Mix {
        name: "full",
        weights: &[
            (Create, 22),
            (WriteSmall, 12),
            (WriteLarge, 22),
            (Truncate, 10),
            (Unlink, 14),
            (Rename, 6),
            (Fsync, 8),
            (Sync, 6),
        ],
        image: Image::Small,
    },
];

/// A regular file that the workload made.
pub(crate) struct File {
    pub(crate) nr: InodeNr,
    pub(crate) id: Id,
    /// Every byte that was ever written to it is this one's, by its place, or zero.
    pub(crate) pattern: Pattern,
    pub(crate) content: Arc<Vec<u8>>,
}

/// A mounted file system under work, its record, and what is known about it.
pub(crate) struct Workload {
    pub(crate) fs: Arc<Fs>,
    pub(crate) oracle: Oracle,
    pub(crate) random: Random,
    pub(crate) dirs: Vec<InodeNr>,
    pub(crate) files: BTreeMap<Path, usize>,
    pub(crate) objects: Vec<File>,
    /// Unlinked and still open.
    pub(crate) open: Vec<InodeNr>,
    /// Directories that come and go.
    pub(crate) passing: BTreeMap<String, Id>,
    pub(crate) device: Arc<RecordingDevice>,
    medium: Arc<MemoryDevice>,
    initial: MemoryDevice,
    next_byte: u8,
    profile: Profile,
    mix: &'static Mix,
    mounted_at: usize,
}

pub(crate) const ROOT: Caller = Caller::ROOT;

impl Workload {
    pub(crate) fn new(profile: Profile, options: &MountOptions, mix: &'static Mix, seed: u64) -> Self {
        let mut initial = profile.make(mix.image == Image::Small);
        if mix.image == Image::OverAnother {
            // The same operations, so that the old log's transactions are where the new one's will be.
            let mut earlier = Self::on(initial, profile, options, mix, seed);
            earlier.next_byte = 90;
            earlier.run(60);
            initial = MemoryDevice::clone(&earlier.medium);
            profile.format(&initial, true);
        }
        Self::on(initial, profile, options, mix, seed)
    }

    fn on(
        initial: MemoryDevice,
        profile: Profile,
        options: &MountOptions,
        mix: &'static Mix,
        seed: u64,
    ) -> Self {
        let medium = Arc::new(initial.clone());
        let device = Arc::new(RecordingDevice::new(medium.clone()));
        let fs = Fs::mount(device.clone(), options).unwrap();
        let mut dirs = vec![InodeNr::ROOT];
        for name in [&b"a"[..], b"b"] {
            dirs.push(fs.mkdir(InodeNr::ROOT, name, 0o755, 0, &ROOT).unwrap().nr);
        }
        fs.sync().unwrap();
        let stale_bytes_allowed = options.data == DataMode::Writeback;
        Self {
            mounted_at: device.position(),
            fs,
            oracle: Oracle::new(stale_bytes_allowed),
            random: Random::new(seed),
            dirs,
            files: BTreeMap::new(),
            objects: Vec::new(),
            open: Vec::new(),
            passing: BTreeMap::new(),
            device,
            medium,
            initial,
            next_byte: 1,
            profile,
            mix,
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

    /// Compares a recovered file system with what must hold when the power is cut behind the first `position` events.
    pub(crate) fn compare(&self, fs: &Fs, position: usize) -> Result<(), String> {
        self.oracle.compare(fs, &self.dirs, position)
    }

    pub(crate) fn run(&mut self, operations: usize) {
        let total = self.mix.weights.iter().map(|(_, weight)| weight).sum();
        for _ in 0..operations {
            let mut at = self.random.below(total);
            for (operation, weight) in self.mix.weights {
                if at < *weight {
                    self.step(*operation);
                    break;
                }
                at -= weight;
            }
        }
        self.sync();
        self.fs.unmount().unwrap();
    }

    fn step(&mut self, operation: Operation) {
        match operation {
            Create => self.create(),
            WriteSmall => self.write(9000),
            WriteLarge => self.write(200_000),
            Append => self.append(),
            Truncate => self.truncate(),
            Punch => self.punch(),
            Rename => self.rename(),
            Exchange => self.exchange(),
            Replace => self.replace_atomically(),
            Link => self.link(),
            Unlink => self.unlink(),
            UnlinkOpen => self.unlink_open(),
            Directory => self.make_or_remove_directory(),
            WideDirectory => self.fill_and_empty_directory(),
            LoggedThenInPlace => self.logged_then_in_place(),
            FillLog => self.fill_the_log(),
            UnlinkMany => self.unlink_many(),
            LookLikeLog => self.look_like_the_log(),
            Fsync => self.fsync(false),
            Fdatasync => self.fsync(true),
            FsyncDirectory => self.fsync_directory(),
            Sync => self.sync(),
        }
    }

    /// How much has happened on the device.
    pub(crate) fn position(&self) -> usize {
        self.device.position()
    }

    pub(crate) fn pattern(&mut self) -> Pattern {
        if self.random.below(8) == 0 {
            return MAGIC;
        }
        loop {
            self.next_byte = self.next_byte % 180 + 1;
            if !MAGIC.contains(&self.next_byte) {
                return [self.next_byte; 4];
            }
        }
    }

    pub(crate) fn name(&mut self) -> Path {
        let dir = self.random.below(self.dirs.len() as u64) as usize;
        (dir, format!("file-{}", self.random.below(24)))
    }

    pub(crate) fn any_file(&mut self) -> Option<(Path, usize)> {
        let at = self.random.below(self.files.len() as u64) as usize;
        self.files.iter().nth(at).map(|(path, file)| (path.clone(), *file))
    }
}
