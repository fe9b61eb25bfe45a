//! Power cuts: a workload runs on a recorded device, and the states that a cut could have left are recovered and
//! compared with what had been acknowledged.
//!
//! Deterministic: a workload and its states follow from a seed, and a failure prints it, with the shortest workload
//! that still fails. `make crash` runs for long; `make test` runs a slice. Environment:
//! `JOURNALFS_SEED` (1) the first seed, `JOURNALFS_CRASH_STATES` (1000) how many states to check in all,
//! `JOURNALFS_CRASH_OPERATIONS` (150) how long a workload is, `JOURNALFS_CRASH_JOB` the only workload to run,
//! `JOURNALFS_FAULT` the only fault to try.

mod forge;
mod image;
mod journal;
mod operations;
mod oracle;
mod random;
mod states;
mod workload;

use image::Profile;
use journalfs::fs::options::{DataMode, InactivatePolicy, MountOptions};
use states::{Checked, Effort};
use std::fmt;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;
use workload::{Mix, Workload, MIXES};

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
    configuration("journalfs", 1024, DataMode::Writeback, true),
    configuration("orphan_file", 1024, DataMode::Ordered, true),
];

impl Configuration {
    fn options(&self) -> MountOptions {
        let mut options =
            MountOptions { data: self.data, async_commit: self.async_commit, ..MountOptions::default() };
        // The test alone decides when something is committed.
        options.tuning.commit = std::time::Duration::from_secs(3600);
        if self.profile.name == "orphan_file" {
            // Orphans of every size.
            options.tuning.inactivate = InactivatePolicy::Deferred;
        }
        options
    }
}

/// One workload in one configuration.
#[derive(Copy, Clone)]
struct Job {
    number: u64,
    configuration: &'static Configuration,
    mix: &'static Mix,
    seed: u64,
    operations: usize,
    effort: Effort,
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, configuration, mix, seed, operations, .. } = self;
        write!(f, "job {number} ({:?}, {configuration:?}), seed {seed}, {operations} operations", mix.name)
    }
}

impl Job {
    /// All configurations and mixes come together in time. Every fourth workload is small, and each state of it is looked at.
    fn new(number: u64, first_seed: u64, operations: usize, wanted: u64) -> Self {
        let (configurations, mixes) = (CONFIGURATIONS.len() as u64, MIXES.len() as u64);
        let small = number % 4 == 3;
        Self {
            number,
            configuration: &CONFIGURATIONS[(number % configurations) as usize],
            mix: &MIXES[((number + number / (configurations * mixes)) % mixes) as usize],
            seed: first_seed + number,
            operations: if small { operations / 6 } else { operations },
            effort: Effort {
                states_max: wanted.div_ceil(mixes).min(4000),
                exhaustive_writes: if small { 12 } else { 6 },
            },
        }
    }

    /// Runs the workload and checks its states. `Err`: what was found.
    fn run(&self, so_far: &AtomicU64) -> Result<Checked, String> {
        let options = self.configuration.options();
        catch_unwind(AssertUnwindSafe(|| {
            let mut workload = Workload::new(self.configuration.profile, &options, self.mix, self.seed);
            workload.run(self.operations);
            states::check_all(&workload, &options, self.seed, self.effort, so_far)
        }))
        .map_err(|panic| match panic.downcast_ref::<String>() {
            Some(text) => text.clone(),
            None => panic.downcast_ref::<&str>().map_or("a panic".into(), ToString::to_string),
        })
    }

    #[cfg(not(feature = "fault-injection"))]
    /// The fewest operations, by halving, with which the job still fails.
    fn shrink(&self) -> (usize, String) {
        let (mut good, mut bad) = (0, self.operations);
        let mut found = String::new();
        while bad - good > 1 {
            let middle = good + (bad - good) / 2;
            match (Self { operations: middle, ..*self }).run(&AtomicU64::new(0)) {
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

/// What was found, by which job, and how many states had been checked by then.
struct Found {
    what: String,
    job: Job,
    states: u64,
}

/// Checks workloads, in parallel, until there are as many states as wanted; each mix at least once.
fn check(wanted: u64) -> Result<Checked, Found> {
    let first_seed = number("JOURNALFS_SEED", 1);
    let operations = number("JOURNALFS_CRASH_OPERATIONS", 150) as usize;
    let only = std::env::var("JOURNALFS_CRASH_JOB").ok().and_then(|v| v.parse().ok());
    let next = AtomicU64::new(only.unwrap_or(0));
    let so_far = AtomicU64::new(0);
    let total = Mutex::new(Checked::default());
    let failure = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let enough = match only {
                    Some(only) => number > only,
                    None => number >= MIXES.len() as u64 && total.lock().unwrap().states >= wanted,
                };
                if enough || failure.lock().unwrap().is_some() {
                    return;
                }
                let job = Job::new(number, first_seed, operations, wanted);
                match job.run(&so_far) {
                    Ok(checked) => progress(&mut total.lock().unwrap(), checked),
                    Err(what) => {
                        let states = so_far.load(Ordering::Relaxed);
                        failure.lock().unwrap().get_or_insert(Found { what, job, states });
                    }
                }
            });
        }
    });
    let total = match failure.into_inner().unwrap() {
        Some(found) => return Err(found),
        None => total.into_inner().unwrap(),
    };
    journal::freed_and_logged_again().map(|()| total).map_err(|what| Found {
        what: format!("the journal alone: {what}"),
        job: Job::new(0, first_seed, 0, wanted),
        states: total.states,
    })
}

/// Adds what a job has checked, and says so every 10,000 states.
fn progress(total: &mut Checked, more: Checked) {
    let before = total.states;
    total.add(more);
    if cfg!(not(feature = "fault-injection")) && total.states / 10_000 > before / 10_000 {
        println!("{total}");
    }
}

#[cfg(not(feature = "fault-injection"))]
#[test]
fn nothing_acknowledged_is_lost() {
    match check(number("JOURNALFS_CRASH_STATES", 1000)) {
        Ok(checked) => println!("from seed {}: {checked}", number("JOURNALFS_SEED", 1)),
        Err(Found { what, job, states }) => {
            println!("{job}: {what}; {states} states had been right");
            let (operations, shorter) = job.shrink();
            panic!(
                "{job}: {what}\nshrunk to {operations} operations: {shorter}\nagain: JOURNALFS_SEED={} \
                 JOURNALFS_CRASH_JOB={} (JOURNALFS_CRASH_OPERATIONS and JOURNALFS_CRASH_STATES as here)",
                job.seed - job.number,
                job.number
            );
        }
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
    // Nothing is found where nothing is wrong.
    if let Err(Found { what, job, .. }) = check(wanted.min(2000)) {
        let _ = std::panic::take_hook();
        panic!("without a fault: {job}: {what}");
    }
    println!("{:24} {:5} {:>8} {:>5}  found", "fault", "rule", "states", "seed");
    let only = std::env::var("JOURNALFS_FAULT").ok();
    for fault in Fault::ALL.iter().copied() {
        if only.as_ref().is_some_and(|only| *only != format!("{fault:?}")) {
            continue;
        }
        inject(Some(fault));
        let result = check(wanted);
        inject(None);
        let name = format!("{fault:?}");
        match result {
            Err(Found { what, job, states }) => {
                let what = what.lines().next().unwrap_or_default();
                println!(
                    "{name:24} {:5} {states:>8} {:>5}  {:?}: {what}",
                    fault.rule(),
                    job.seed,
                    job.mix.name
                );
            }
            Ok(checked) => {
                println!("{name:24} {:5} {:>8}        NOT CAUGHT", fault.rule(), checked.states);
                missed.push(fault);
            }
        }
    }
    let _ = std::panic::take_hook();
    assert!(missed.is_empty(), "not caught: {missed:?}");
}
