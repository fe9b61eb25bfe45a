//! The states that a power cut can leave of a recorded device, and what is demanded of each.
//!
//! A cut finds some writes durable (a flush that began after they had returned has succeeded) and some pending: each of
//! these is on the medium, or not, or in part, sector by sector. Few pending writes are taken in every
//! combination, many by samples.

use super::image::{check_with_e2fsck, check_with_kernel, recover_with_e2fsck};
use super::random::Random;
use super::workload::Workload;
use journalfs::device::memory::MemoryDevice;
use journalfs::device::recording::{Event, RecordingDevice};
use journalfs::device::Device;
use journalfs::fs::options::MountOptions;
use journalfs::fs::Fs;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// Subsets sampled of more.
const SAMPLES: u64 = 40;
/// States with torn writes, for each cut with pending writes; in half of them all that is missing is one sector.
const TORN: u64 = 6;
/// About how many states a workload has for each of its writes.
const STATES_PER_WRITE: u64 = 15;
/// Every so many states, others recover too.
const E2FSCK_EVERY: u64 = 47;
const TWICE_EVERY: u64 = 31;
const KERNEL_EVERY: u64 = 401;

/// How much to check of one workload.
#[derive(Copy, Clone)]
pub(crate) struct Effort {
    /// About how many states.
    pub(crate) states_max: u64,
    /// Up to this many pending writes, every subset is a state.
    pub(crate) exhaustive_writes: usize,
}

/// How much was checked.
#[derive(Copy, Clone, Default, Debug)]
pub(crate) struct Checked {
    pub(crate) states: u64,
    pub(crate) by_e2fsck: u64,
    pub(crate) by_kernel: u64,
    pub(crate) recovered_twice: u64,
}

impl Checked {
    pub(crate) fn add(&mut self, other: Self) {
        self.states += other.states;
        self.by_e2fsck += other.by_e2fsck;
        self.by_kernel += other.by_kernel;
        self.recovered_twice += other.recovered_twice;
    }
}

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} states, no loss; {} of them also recovered by e2fsck, {} by the kernel, {} cut again during recovery",
            self.states, self.by_e2fsck, self.by_kernel, self.recovered_twice
        )
    }
}

/// Follows a record of events: what is durable, what is pending.
struct Tracker {
    durable: MemoryDevice,
    /// Submitted and not returned, by request.
    open: HashMap<u64, usize>,
    /// Returned and not flushed, in order of return.
    returned: Vec<usize>,
    /// For each flush under way, how many writes had ever returned when it began.
    flushes: HashMap<u64, usize>,
    flushed: usize,
}

impl Tracker {
    fn new(initial: MemoryDevice) -> Self {
        Self {
            durable: initial,
            open: HashMap::new(),
            returned: Vec::new(),
            flushes: HashMap::new(),
            flushed: 0,
        }
    }

    /// Takes the next event in. Whether a cut behind it finds something else than one before it.
    fn take(&mut self, events: &[Event], at: usize) -> bool {
        match &events[at] {
            Event::Write { id, .. } => {
                self.open.insert(*id, at);
                true
            }
            Event::FlushBegun { id } => {
                self.flushes.insert(*id, self.flushed + self.returned.len());
                false
            }
            Event::Completed { id } => {
                if let Some(write) = self.open.remove(id) {
                    self.returned.push(write);
                    return false;
                }
                let Some(covered) = self.flushes.remove(id) else { return false };
                let more = covered.saturating_sub(self.flushed);
                let mut now: Vec<usize> = self.returned.drain(..more).collect();
                now.sort_unstable();
                self.flushed += more;
                for write in now {
                    put(&self.durable, &events[write], |_, _| true);
                }
                more > 0
            }
            Event::Discard { .. } | Event::Mark(_) => false,
        }
    }

    fn pending(&self) -> Vec<usize> {
        let mut pending: Vec<usize> = self.returned.iter().chain(self.open.values()).copied().collect();
        pending.sort_unstable();
        pending
    }
}

/// Puts the sectors of a write that `keep(sector, of)` wants on the device.
fn put(device: &MemoryDevice, event: &Event, mut keep: impl FnMut(usize, usize) -> bool) {
    let Event::Write { offset, data, .. } = event else { return };
    let sectors = data.len().div_ceil(512);
    let mut from = 0;
    while from < sectors {
        if !keep(from, sectors) {
            from += 1;
            continue;
        }
        let mut to = from + 1;
        while to < sectors && keep(to, sectors) {
            to += 1;
        }
        let bytes = &data[from * 512..(to * 512).min(data.len())];
        device.write_at(*offset + from as u64 * 512, bytes).unwrap();
        from = to + 1;
    }
}

/// Checks the cuts of a workload's record: every one, or as many as make about `states_max` states.
/// Counts them in `so_far`, too.
pub(crate) fn check_all(
    workload: &Workload,
    options: &MountOptions,
    seed: u64,
    effort: Effort,
    so_far: &AtomicU64,
) -> Checked {
    let events = workload.events();
    let writes = events.iter().filter(|event| matches!(event, Event::Write { .. })).count() as u64;
    let every = (writes * STATES_PER_WRITE / effort.states_max.max(1)).max(1);
    let mut random = Random::new(seed ^ 0x5eed);
    let mut tracker = Tracker::new(workload.initial());
    let mut checked = Checked::default();
    for at in 0..events.len() {
        if !tracker.take(&events, at) || at < workload.mounted_at() {
            continue;
        }
        if every > 1 && random.below(every) > 0 {
            continue;
        }
        let pending = tracker.pending();
        let position = at + 1;
        for subset in subsets(pending.len(), effort.exhaustive_writes, &mut random) {
            let device = tracker.durable.clone();
            for (write, _) in pending.iter().zip(&subset).filter(|(_, here)| **here) {
                put(&device, &events[*write], |_, _| true);
            }
            check_state(&device, workload, position, options, &mut random, so_far, &mut checked);
        }
        for i in 0..if pending.is_empty() { 0 } else { TORN } {
            let device = tracker.durable.clone();
            let one = (i % 2 == 0).then(|| pending[random.below(pending.len() as u64) as usize]);
            for write in &pending {
                match one {
                    None => tear(&device, &events[*write], &mut random),
                    Some(one) if one == *write => lose_sector(&device, &events[*write], &mut random),
                    Some(_) => put(&device, &events[*write], |_, _| true),
                }
            }
            check_state(&device, workload, position, options, &mut random, so_far, &mut checked);
        }
    }
    checked
}

/// Which of `count` pending writes are on the medium, state by state.
fn subsets(count: usize, exhaustive_writes: usize, random: &mut Random) -> Vec<Vec<bool>> {
    if count <= exhaustive_writes {
        return (0..1u32 << count).map(|bits| (0..count).map(|i| bits >> i & 1 == 1).collect()).collect();
    }
    let mut subsets = vec![vec![false; count], vec![true; count]];
    for _ in 0..SAMPLES {
        let kind = random.below(3);
        let at = random.below(count as u64) as usize;
        subsets.push(match kind {
            // A prefix; all but one; any.
            0 => (0..count).map(|i| i <= at).collect(),
            1 => (0..count).map(|i| i != at).collect(),
            _ => (0..count).map(|_| random.below(2) == 0).collect(),
        });
    }
    subsets
}

/// Puts a part of a write on the device: the first sectors, all but one, some pages, or any sectors.
fn tear(device: &MemoryDevice, event: &Event, random: &mut Random) {
    let kind = random.below(5);
    let salt = random.next();
    put(device, event, |sector, of| {
        let cut = salt as usize % of.max(1);
        match kind {
            0 => sector < cut,
            1 => sector != cut,
            2 => sector >= cut,
            3 => (salt >> (sector / 8 % 61)) & 1 == 0,
            _ => (salt ^ (sector as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)).count_ones() % 2 == 0,
        }
    });
}

/// Puts all of a write on the device but one sector; in half of the cases one of the first, which say what the rest is.
fn lose_sector(device: &MemoryDevice, event: &Event, random: &mut Random) {
    let salt = random.next() >> 8;
    let among = if random.below(2) == 0 { 8 } else { usize::MAX };
    put(device, event, |sector, of| sector as u64 != salt % of.min(among) as u64);
}

/// Recovers a state by us, and now and then by the others and in two attempts, and compares each time.
fn check_state(
    device: &MemoryDevice,
    workload: &Workload,
    position: usize,
    options: &MountOptions,
    random: &mut Random,
    so_far: &AtomicU64,
    checked: &mut Checked,
) {
    let what = format!("cut after event {position}");
    checked.states += 1;
    so_far.fetch_add(1, Ordering::Relaxed);
    if checked.states % E2FSCK_EVERY == 0 {
        checked.by_e2fsck += 1;
        let recovered = recover_with_e2fsck(device, &what);
        compare(recovered, workload, position, &format!("{what}, recovered by e2fsck"));
        full_mount(device.clone(), workload, position, options, &what);
    }
    if checked.states % KERNEL_EVERY == 0 {
        if let Some(recovered) = check_with_kernel(device, workload.profile(), &what) {
            checked.by_kernel += 1;
            compare(recovered, workload, position, &format!("{what}, recovered by the kernel"));
        }
    }
    if checked.states % TWICE_EVERY == 0 {
        checked.recovered_twice += 1;
        let half = cut_recovery(device, options, random, &what);
        compare(half, workload, position, &format!("{what}, and again during recovery"));
    }
    compare(device.clone(), workload, position, &what);
}

/// Mounts a state for reading (its log is replayed all the same) and compares.
fn compare(device: MemoryDevice, workload: &Workload, position: usize, what: &str) {
    let options = MountOptions { read_only: true, ..MountOptions::default() };
    let fs = Fs::mount(Arc::new(device), &options).unwrap_or_else(|e| panic!("{what}: mount: {e}"));
    workload.compare(&fs, position).unwrap_or_else(|why| panic!("{what}: {why}"));
    fs.unmount().unwrap_or_else(|e| panic!("{what}: unmount: {e}"));
}

/// Mounts a state for writing, which finishes orphans, and unmounts; both checkers find nothing.
fn full_mount(
    device: MemoryDevice,
    workload: &Workload,
    position: usize,
    options: &MountOptions,
    what: &str,
) {
    let device = Arc::new(device);
    let fs = Fs::mount(device.clone(), options).unwrap_or_else(|e| panic!("{what}: mount: {e}"));
    workload.compare(&fs, position).unwrap_or_else(|why| panic!("{what}: {why}"));
    fs.unmount().unwrap_or_else(|e| panic!("{what}: unmount: {e}"));
    check_with_e2fsck(&*device, what);
}

/// Recovers on a recorded device and cuts the power somewhere in that.
fn cut_recovery(
    device: &MemoryDevice,
    options: &MountOptions,
    random: &mut Random,
    what: &str,
) -> MemoryDevice {
    let recorder = Arc::new(RecordingDevice::new(Arc::new(device.clone())));
    let fs = Fs::mount(recorder.clone(), options).unwrap_or_else(|e| panic!("{what}: mount: {e}"));
    let end = recorder.position();
    fs.unmount().unwrap_or_else(|e| panic!("{what}: unmount: {e}"));
    let events = recorder.events();
    let cut = random.below(end as u64 + 1) as usize;
    let mut tracker = Tracker::new(device.clone());
    for at in 0..cut {
        tracker.take(&events, at);
    }
    for write in tracker.pending() {
        match random.below(3) {
            0 => {}
            1 => put(&tracker.durable, &events[write], |_, _| true),
            _ => tear(&tracker.durable, &events[write], random),
        }
    }
    tracker.durable
}
