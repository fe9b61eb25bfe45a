//! States that a power cut can leave of a recorded file, and their recovery.

use super::image::RecordingFile;
use super::load::{Promise, Random};
use journalfs::device::memory::MemoryDevice;
use journalfs::device::recording::{crash_point, replay, Event};
use journalfs::device::Device;
use journalfs::fs::options::MountOptions;
use journalfs::fs::Fs;
use journalfs::units::InodeNr;
use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use tempfile::NamedTempFile;

/// Power cuts of one record, each later than the one before, so that what is durable need not be built anew.
struct Cuts<'a> {
    events: &'a [Event],
    positions: std::vec::IntoIter<usize>,
    durable: MemoryDevice,
    applied: HashSet<usize>,
    random: Random,
}

impl<'a> Cuts<'a> {
    fn new(file: &RecordingFile, events: &'a [Event], seed: u64, states: u64) -> Self {
        let mut random = Random::new(seed);
        let mut positions: Vec<usize> =
            (0..states).map(|_| 1 + random.below(events.len() as u64) as usize).collect();
        positions.sort_unstable();
        let (durable, applied) = (file.made(), HashSet::new());
        Self { events, positions: positions.into_iter(), durable, applied, random }
    }
}

impl Iterator for Cuts<'_> {
    /// After how many events the power was cut, and the device as it could be then.
    type Item = (usize, MemoryDevice);

    fn next(&mut self) -> Option<Self::Item> {
        let position = self.positions.next()?;
        let point = crash_point(self.events, position);
        let new = point.durable.into_iter().filter(|write| self.applied.insert(*write));
        replay(self.events, new, &self.durable).unwrap();
        let kind = self.random.below(4);
        let upto = self.random.below(point.pending.len() as u64 + 1) as usize;
        let random = &mut self.random;
        let kept = point.pending.iter().enumerate().filter(|(i, _)| match kind {
            0 => false,
            1 => *i < upto,
            2 => *i != upto,
            _ => random.below(2) == 0,
        });
        let kept: Vec<usize> = kept.map(|(_, write)| *write).collect();
        let device = self.durable.clone();
        replay(self.events, kept, &device).unwrap();
        if let Some(write) = point.pending.get(upto).filter(|_| self.random.below(3) == 0) {
            tear(&self.events[*write], &device, &mut self.random);
        }
        Some((position, device))
    }
}

/// Puts the first sectors of a write on the device.
fn tear(event: &Event, device: &MemoryDevice, random: &mut Random) {
    if let Event::Write { offset, data, .. } = event {
        let len = data.len().min(512 * random.below(data.len() as u64 / 512 + 1) as usize);
        device.write_at(*offset, &data[..len]).unwrap();
    }
}

/// Recovers states by a mount for writing, and some by e2fsck; each must be whole. How many there were.
pub(crate) fn all_recover(file: &RecordingFile, seed: u64, states: u64) -> u64 {
    let events = file.events();
    for (state, (position, device)) in Cuts::new(file, &events, seed, states).enumerate() {
        let what = format!("seed {seed}, state {state}, cut after event {position}");
        if state % 4 == 3 {
            let image = write_image(&device);
            assert!(e2fsck("-fy", image.path()).0 <= 1, "{what}: e2fsck repairs");
            assert_eq!(e2fsck("-fn", image.path()), (0, String::new()), "{what}: after e2fsck's recovery");
            continue;
        }
        let device = Arc::new(device);
        let fs =
            Fs::mount(device.clone(), &MountOptions::default()).unwrap_or_else(|e| panic!("{what}: {e}"));
        fs.unmount().unwrap_or_else(|e| panic!("{what}: unmount: {e}"));
        let image = write_image(&device);
        assert_eq!(e2fsck("-fn", image.path()), (0, String::new()), "{what}: after our recovery");
    }
    states
}

/// In how many states e2fsck's recovery leaves something acknowledged behind.
pub(crate) fn count_lost(file: &RecordingFile, promises: &[Promise], seed: u64, states: u64) -> u64 {
    let events = file.events();
    let mut lost = 0;
    for (position, device) in Cuts::new(file, &events, seed, states) {
        let image = write_image(&device);
        e2fsck("-fy", image.path());
        lost += u64::from(!holds(&read_image(image.path()), promises, position));
    }
    lost
}

fn holds(device: &MemoryDevice, promises: &[Promise], position: usize) -> bool {
    let options = MountOptions { read_only: true, ..MountOptions::default() };
    let Ok(fs) = Fs::mount(Arc::new(device.clone()), &options) else { return false };
    promises.iter().filter(|p| p.position <= position && position <= p.ends).all(|promise| {
        let Ok(attr) = fs.lookup(InodeNr::ROOT, promise.name.as_bytes()) else { return false };
        let len = promise.content.len() as u32 + 1;
        fs.read(attr.nr, 0, len).is_ok_and(|content| content[..] == promise.content[..])
    })
}

/// Exit status, and what it found if that isn't 0.
fn e2fsck(how: &str, image: &Path) -> (i32, String) {
    let output = Command::new("e2fsck").arg(how).arg(image).output().expect("e2fsck");
    let status = output.status.code().unwrap_or(-1);
    let text = if status == 0 { String::new() } else { String::from_utf8_lossy(&output.stdout).into_owned() };
    (status, text)
}

const PAGE: [u8; 4096] = [0; 4096];

fn write_image(device: &MemoryDevice) -> NamedTempFile {
    let dir = if Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" };
    let image = NamedTempFile::new_in(dir).unwrap();
    image.as_file().set_len(device.size_bytes()).unwrap();
    let mut page = PAGE;
    for at in (0..device.size_bytes()).step_by(PAGE.len()) {
        device.read_at(at, &mut page).unwrap();
        if page != PAGE {
            image.as_file().write_all_at(&page, at).unwrap();
        }
    }
    image
}

fn read_image(path: &Path) -> MemoryDevice {
    let file = File::open(path).unwrap();
    let device = MemoryDevice::new(file.metadata().unwrap().len());
    let mut page = PAGE;
    for at in (0..device.size_bytes()).step_by(PAGE.len()) {
        file.read_exact_at(&mut page, at).unwrap();
        if page != PAGE {
            device.write_at(at, &page).unwrap();
        }
    }
    device
}
