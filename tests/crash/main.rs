//! Power cuts: a workload runs on a recorded device, and every state that a cut could have left (sampled) is
//! recovered and compared with what had been acknowledged.
//!
//! Deterministic: `JOURNALFS_SEED` (default 1) decides the workload and the samples, and a failure prints it.
//! `JOURNALFS_CRASH_STATES` says how many states each configuration checks (default: a short slice).

mod image;
mod world;

use image::{check_with_e2fsck, Profile};
use journalfs::device::memory::MemoryDevice;
use journalfs::device::recording::{crash_point, Event};
use journalfs::device::Device;
use journalfs::fs::options::{DataMode, MountOptions};
use journalfs::fs::Fs;
use std::sync::Arc;
use world::{Random, World};

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

/// Puts pending writes on the device: lost, whole, or with only some of their sectors.
fn apply_pending(
    device: &MemoryDevice,
    events: &[Event],
    pending: &[usize],
    random: &mut Random,
    variant: u64,
) {
    for at in pending {
        let Event::Write { offset, data, .. } = &events[*at] else { continue };
        match variant {
            0 => {}
            1 => device.write_at(*offset, data).unwrap(),
            _ => {
                let unit = if random.below(2) == 0 { 512 } else { 4096 };
                for (i, sector) in data.chunks(unit).enumerate() {
                    if random.below(2) == 0 {
                        device.write_at(*offset + (i * unit) as u64, sector).unwrap();
                    }
                }
            }
        }
    }
}

/// Mounts the state, compares, unmounts; now and then asks e2fsck too.
fn check_state(
    device: MemoryDevice,
    world: &World,
    position: usize,
    options: &MountOptions,
    with_e2fsck: bool,
) {
    let device = Arc::new(device);
    let fs = Fs::mount(device.clone(), options).unwrap_or_else(|e| panic!("cut at {position}: mount: {e}"));
    world.compare(&fs, position);
    fs.unmount().unwrap_or_else(|e| panic!("cut at {position}: unmount: {e}"));
    if with_e2fsck {
        check_with_e2fsck(&*device, &format!("cut at {position}"));
    }
}

fn crash_test(profile: Profile, options: &MountOptions, seed: u64, states: u64) {
    let mut world = World::new(profile, options, seed);
    world.run(400);
    let events = world.events();
    let mut random = Random::new(seed ^ 0x5eed);
    let mut base = world.initial();
    let mut applied = 0;
    let step = (events.len() as u64 / states.max(1)).max(1);
    let mut position = 0;
    let mut checked = 0;
    while position <= events.len() {
        let point = crash_point(&events, position);
        for at in &point.durable[applied..] {
            if let Event::Write { offset, data, .. } = &events[*at] {
                base.write_at(*offset, data).unwrap();
            }
        }
        applied = point.durable.len();
        let variants = if point.pending.is_empty() { 1 } else { 3 };
        for variant in 0..variants {
            let device = base.clone();
            apply_pending(&device, &events, &point.pending, &mut random, variant);
            check_state(device, &world, position, options, checked % 16 == 0);
            checked += 1;
        }
        position += 1 + random.below(2 * step) as usize;
    }
    println!("{profile:?} {:?}: {checked} states of {} events", options.data, events.len());
    assert!(checked >= states / 2, "only {checked} states");
    base = world.initial();
    drop(base);
}

fn options(data: DataMode, async_commit: bool) -> MountOptions {
    let mut options = MountOptions { data, async_commit, ..MountOptions::default() };
    // The test alone decides when something is committed.
    options.tuning.commit = std::time::Duration::from_secs(3600);
    options
}

macro_rules! crash_tests {
    ($($name:ident: $profile:expr, $data:ident, $async_commit:literal;)*) => {
        $(#[test]
        fn $name() {
            let seed = number("JOURNALFS_SEED", 1);
            println!("JOURNALFS_SEED={seed}");
            crash_test($profile, &options(DataMode::$data, $async_commit), seed, number("JOURNALFS_CRASH_STATES", 120));
        })*
    };
}

crash_tests! {
    ordered_4k: Profile::new("journalfs", 4096), Ordered, true;
    ordered_1k: Profile::new("journalfs", 1024), Ordered, true;
    ordered_two_flushes: Profile::new("journalfs", 1024), Ordered, false;
    journal_1k: Profile::new("journalfs", 1024), Journal, true;
    ext3_ordered_1k: Profile::new("ext3", 1024), Ordered, true;
    ext3_journal_4k: Profile::new("ext3", 4096), Journal, true;
}
