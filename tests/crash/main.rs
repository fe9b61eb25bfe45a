//! Power cuts: a workload runs on a recorded device, and the states that a cut could have left are recovered and
//! compared with what had been acknowledged.
//!
//! Deterministic: a workload and its states follow from a seed, and a failure prints it, with the shortest workload
//! that still fails. `make crash` runs for long; `make test` runs a slice. Environment:
//! `JOURNALFS_SEED` (1) the first seed, `JOURNALFS_CRASH_STATES` (1000) how many states to check in all,
//! `JOURNALFS_CRASH_OPERATIONS` (150) how long a workload is.

mod image;
mod states;
mod world;

use image::Profile;
use journalfs::fs::options::{DataMode, MountOptions};
use states::Checked;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;
use world::World;

/// What is mounted, and how. A new policy or mode joins by one line in [`CONFIGURATIONS`].
#[derive(Copy, Clone, Debug)]
struct Configuration {
    profile: Profile,
    data: DataMode,
    async_commit: bool,
}

const fn configuration(
    name: &'static str,
    block_bytes: u32,
    data: DataMode,
    async_commit: bool,
) -> Configuration {
    Configuration { profile: Profile { name, block_bytes }, data, async_commit }
}

const CONFIGURATIONS: &[Configuration] = &[
    configuration("journalfs", 4096, DataMode::Ordered, true),
    configuration("journalfs", 1024, DataMode::Ordered, true),
    configuration("journalfs", 1024, DataMode::Ordered, false),
    configuration("journalfs", 1024, DataMode::Journal, true),
    configuration("ext3", 1024, DataMode::Ordered, true),
    configuration("ext3", 4096, DataMode::Journal, true),
    configuration("ext3", 1024, DataMode::Journal, false),
];

impl Configuration {
    fn options(&self) -> MountOptions {
        let mut options =
            MountOptions { data: self.data, async_commit: self.async_commit, ..MountOptions::default() };
        // The test alone decides when something is committed.
        options.tuning.commit = std::time::Duration::from_secs(3600);
        options
    }

    /// Runs one workload and checks its states. `Err`: what was found.
    fn run(&self, seed: u64, operations: usize, states_max: u64) -> Result<Checked, String> {
        catch_unwind(AssertUnwindSafe(|| {
            let mut world = World::new(self.profile, &self.options(), seed);
            world.run(operations);
            states::check_all(&world, &self.options(), seed, states_max)
        }))
        .map_err(|panic| match panic.downcast_ref::<String>() {
            Some(text) => text.clone(),
            None => panic.downcast_ref::<&str>().map_or("a panic".into(), ToString::to_string),
        })
    }

    /// The fewest operations, by halving, with which the seed still fails.
    fn shrink(&self, seed: u64, operations: usize, states_max: u64) -> (usize, String) {
        let (mut good, mut bad) = (0, operations);
        let mut found = String::new();
        while bad - good > 1 {
            let middle = good + (bad - good) / 2;
            match self.run(seed, middle, states_max) {
                Ok(_) => good = middle,
                Err(text) => (bad, found) = (middle, text),
            }
        }
        (bad, found)
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

/// Checks workloads, each configuration in turn, in parallel, until there are as many states as wanted.
fn check(first_seed: u64, wanted: u64, operations: usize, shrink: bool) -> Result<Checked, String> {
    let next = AtomicU64::new(0);
    let states_max = wanted.div_ceil(CONFIGURATIONS.len() as u64);
    let total = Mutex::new(Checked::default());
    let failure = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| loop {
                let job = next.fetch_add(1, Ordering::Relaxed);
                let every_one = job >= CONFIGURATIONS.len() as u64;
                if every_one && total.lock().unwrap().states >= wanted || failure.lock().unwrap().is_some() {
                    return;
                }
                let configuration = &CONFIGURATIONS[job as usize % CONFIGURATIONS.len()];
                let seed = first_seed + job / CONFIGURATIONS.len() as u64;
                match configuration.run(seed, operations, states_max) {
                    Ok(checked) => total.lock().unwrap().add(checked),
                    Err(text) => {
                        if !shrink {
                            failure.lock().unwrap().get_or_insert(text);
                            return;
                        }
                        let (operations, shorter) = configuration.shrink(seed, operations, states_max);
                        *failure.lock().unwrap() = Some(format!(
                            "{configuration:?}\nJOURNALFS_SEED={seed}: {text}\n\
                             shrunk to JOURNALFS_CRASH_OPERATIONS={operations}: {shorter}"
                        ));
                        return;
                    }
                }
            });
        }
    });
    match failure.into_inner().unwrap() {
        Some(text) => Err(text),
        None => Ok(total.into_inner().unwrap()),
    }
}

#[cfg(not(feature = "fault-injection"))]
#[test]
fn nothing_acknowledged_is_lost() {
    let seed = number("JOURNALFS_SEED", 1);
    let operations = number("JOURNALFS_CRASH_OPERATIONS", 150) as usize;
    match check(seed, number("JOURNALFS_CRASH_STATES", 1000), operations, true) {
        Ok(checked) => println!("from seed {seed}: {checked}"),
        Err(text) => panic!("{text}"),
    }
}

/// The harness can fail: it catches each deliberate fault (`make faults`).
#[cfg(feature = "fault-injection")]
#[test]
fn every_fault_is_caught() {
    use journalfs::fault::{inject, Fault};
    let wanted = number("JOURNALFS_CRASH_STATES", 60_000);
    let mut missed = Vec::new();
    std::panic::set_hook(Box::new(|_| {}));
    for fault in Fault::ALL {
        inject(Some(fault));
        let result = check(number("JOURNALFS_SEED", 1), wanted, 150, false);
        inject(None);
        match result {
            Err(text) => println!("{fault:?}: caught: {}", text.lines().next().unwrap_or_default()),
            Ok(checked) => {
                println!("{fault:?}: NOT CAUGHT in {} states", checked.states);
                missed.push(fault);
            }
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
}
