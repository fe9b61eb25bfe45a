//! File systems in memory, on a device that records or fails, and the states that a power cut leaves.

use journalfs::device::memory::MemoryDevice;
use journalfs::device::recording::{crash_point, Event, RecordingDevice};
use journalfs::device::{Device, SharedDevice};
use journalfs::fs::attr::Caller;
use journalfs::fs::options::MountOptions;
use journalfs::fs::Fs;
use journalfs::units::{BlockRange, InodeNr};
use std::io::Write;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

pub(crate) const ROOT: Caller = Caller::ROOT;
/// Where nothing but what the test asks for is committed.
const NEVER: Duration = Duration::from_secs(3600);

/// A new file system, and where its journal lies.
pub(crate) struct Made {
    pub(crate) memory: MemoryDevice,
    pub(crate) journal: Vec<BlockRange>,
    pub(crate) block_bytes: u64,
}

/// Makes a file system; `features` as for `mkfs -O`.
pub(crate) fn make(profile: mkfs::Profile, block_bytes: u32, mib: u64, features: &str) -> Made {
    let memory = MemoryDevice::new(mib << 20);
    let mut options = mkfs::Options::new(profile);
    options.block_bytes = Some(block_bytes);
    if block_bytes == 1024 {
        // As small as a journal can be.
        options.journal = mkfs::JournalSize::MiB(1);
    }
    options.features = mkfs::options::parse_features(features).unwrap();
    let layout = mkfs::format(&memory, &options).unwrap();
    Made { memory, journal: layout.journal, block_bytes: block_bytes.into() }
}

/// The two ways in which files are mapped: extents, and (with small blocks) indirect blocks.
pub(crate) fn both_kinds() -> [Made; 2] {
    [make(mkfs::Profile::Journalfs, 4096, 32, ""), make(mkfs::Profile::Ext3, 1024, 16, "")]
}

/// Mount options, from words as on the command line.
pub(crate) fn options(words: &[&str]) -> MountOptions {
    let mut options = MountOptions::default();
    options.tuning.commit = NEVER;
    for word in words {
        let (name, value) = word.split_once('=').map_or((*word, None), |(name, value)| (name, Some(value)));
        assert!(options.set(name, value).unwrap(), "{word}");
    }
    options
}

/// A mounted file system whose device records.
pub(crate) struct Mounted {
    pub(crate) fs: Arc<Fs>,
    pub(crate) device: Arc<RecordingDevice>,
    initial: MemoryDevice,
}

impl Made {
    pub(crate) fn mount(&self, words: &[&str]) -> Mounted {
        let device = Arc::new(RecordingDevice::new(Arc::new(self.memory.clone())));
        let fs = Fs::mount(device.clone(), &options(words)).unwrap();
        Mounted { fs, device, initial: self.memory.clone() }
    }
}

impl Mounted {
    pub(crate) fn file(&self, name: &str) -> InodeNr {
        self.fs.mknod(InodeNr::ROOT, name.as_bytes(), 0o100_644, 0, 0, &ROOT).unwrap().nr
    }

    pub(crate) fn write(&self, nr: InodeNr, at: u64, byte: u8, len: usize) {
        let written = self.fs.write(nr, at, &vec![byte; len], &ROOT, false).unwrap();
        assert_eq!(written as usize, len);
    }

    pub(crate) fn unlink(&self, name: &str) {
        self.fs.unlink(InodeNr::ROOT, name.as_bytes()).unwrap();
    }

    pub(crate) fn free(&self) -> u64 {
        self.fs.statfs().unwrap().free
    }

    /// Flushes that the device got while `f` ran.
    pub(crate) fn flushes(&self, f: impl FnOnce()) -> usize {
        let count = || self.device.events().iter().filter(|e| matches!(e, Event::FlushBegun { .. })).count();
        let before = count();
        f();
        count() - before
    }

    /// The device as a power cut now leaves it, with all that was written.
    pub(crate) fn cut_now(&self) -> MemoryDevice {
        let events = self.device.events();
        let device = self.initial.clone();
        apply(&device, &events, 0..events.len());
        device
    }

    /// Unmounts, and has e2fsck look at it.
    pub(crate) fn end(self, what: &str) {
        self.fs.unmount().unwrap();
        e2fsck(&*self.device, what);
    }

    /// Cuts the power after every `step`th event from `from` on: pending writes are lost, whole, have every other
    /// sector, or only the newest half of them is there. Each state is mounted and passed to `check` with the position; some go to e2fsck as well.
    pub(crate) fn cut(&self, from: usize, step: usize, mut check: impl FnMut(&Fs, usize)) {
        let events = self.device.events();
        let mut checked = 0;
        for position in (from..=events.len()).step_by(step.max(1)) {
            let point = crash_point(&events, position);
            for variant in 0..4 {
                let device = self.initial.clone();
                apply(&device, &events, point.durable.iter().copied());
                let lost = if variant == 3 { point.pending.len().div_ceil(2) } else { 0 };
                for at in &point.pending[lost..] {
                    let Event::Write { offset, data, .. } = &events[*at] else { continue };
                    match variant {
                        0 => {}
                        1 | 3 => device.write_at(*offset, data).unwrap(),
                        _ => {
                            for (i, sector) in data.chunks(512).enumerate().step_by(2) {
                                device.write_at(offset + 512 * i as u64, sector).unwrap();
                            }
                        }
                    }
                }
                let device: SharedDevice = Arc::new(device);
                let fs = Fs::mount(device.clone(), &options(&[])).unwrap();
                check(&fs, position);
                fs.unmount().unwrap();
                checked += 1;
                if checked % 24 == 1 {
                    e2fsck(&*device, &format!("cut at {position}, variant {variant}"));
                }
                if point.pending.is_empty() {
                    break;
                }
            }
        }
        assert!(checked > 3, "only {checked} states");
    }
}

/// Does the writes among these events again.
fn apply(device: &MemoryDevice, events: &[Event], which: impl IntoIterator<Item = usize>) {
    for at in which {
        if let Some(Event::Write { offset, data, .. }) = events.get(at) {
            device.write_at(*offset, data).unwrap();
        }
    }
}

/// Everything in the file.
pub(crate) fn content(fs: &Fs, nr: InodeNr) -> Vec<u8> {
    let size = fs.getattr(nr).unwrap().size;
    fs.read(nr, 0, size as u32).unwrap().to_vec()
}

/// `e2fsck -fn` finds nothing to complain about.
pub(crate) fn e2fsck(device: &dyn Device, what: &str) {
    let mut image = tempfile::NamedTempFile::new().unwrap();
    let mut bytes = vec![0; device.size_bytes() as usize];
    device.read_at(0, &mut bytes).unwrap();
    image.write_all(&bytes).unwrap();
    let output = Command::new("e2fsck").arg("-fn").arg(image.path()).output().expect("e2fsck is installed");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{what}: e2fsck -fn says {:?}:\n{said}", output.status.code());
}
