//! How often and how the models are run.

use shuttle::scheduler::{DfsScheduler, PctScheduler, RandomScheduler};
use shuttle::{Config, MaxSteps, Runner};
use std::sync::Arc;

/// Threads of the real code need more than shuttle gives them.
const STACK_BYTES: usize = 1 << 20;

fn runs(share: usize) -> usize {
    let given = std::env::var("JOURNALFS_MODEL_RUNS").ok().and_then(|runs| runs.parse().ok());
    (given.unwrap_or(300usize) / share).max(1)
}

fn config() -> Config {
    let mut config = Config::new();
    config.stack_size = STACK_BYTES;
    config.max_steps = MaxSteps::FailAfter(2_000_000);
    config
}

/// Runs a model in random interleavings, and in such that switch threads at few places, chosen at random. A failure prints
/// the schedule that leads to it. `share`: how much longer than others this model takes.
pub(crate) fn check(share: usize, model: fn()) {
    let runs = runs(share);
    Runner::new(RandomScheduler::new(runs), config()).run(model);
    for depth in [2, 4] {
        Runner::new(PctScheduler::new(depth, runs), config()).run(model);
    }
}

/// Runs a small model in all of its interleavings, or the first so many.
pub(crate) fn check_all(share: usize, model: fn()) {
    let limit = runs(share) * 20;
    let model = Arc::new(model);
    Runner::new(DfsScheduler::new(Some(limit), false), config()).run(move || model());
}
