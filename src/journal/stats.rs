//! What a mount's journal has done, counted as it happens.

use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Buckets of a [`Histogram`]: powers of two.
const BUCKETS: usize = 40;

/// Values by their power of two; adding is one atomic add.
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    max: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: [const { AtomicU64::new(0) }; BUCKETS], max: AtomicU64::new(0) }
    }
}

/// A histogram's summary, in the histogram's own unit.
#[derive(Serialize, Clone, Copy, Debug, Default)]
pub struct Quantiles {
    /// How many values.
    pub count: u64,
    /// An upper bound of the median, within a factor of two.
    pub p50: u64,
    /// An upper bound of the 99th percentile, within a factor of two.
    pub p99: u64,
    /// The largest value.
    pub max: u64,
}

impl Histogram {
    /// Counts a value.
    pub fn add(&self, value: u64) {
        let bucket = (64 - value.leading_zeros() as usize).min(BUCKETS - 1);
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.max.fetch_max(value, Relaxed);
    }

    /// Counts a duration in microseconds.
    pub fn add_us(&self, duration: Duration) {
        self.add(duration.as_micros() as u64);
    }

    /// The summary of what was counted.
    pub fn quantiles(&self) -> Quantiles {
        let counts: Vec<u64> = self.buckets.iter().map(|b| b.load(Relaxed)).collect();
        let count: u64 = counts.iter().sum();
        let max = self.max.load(Relaxed);
        let at = |per_mille: u64| {
            let wanted = (count * per_mille).div_ceil(1000);
            let mut seen = 0;
            for (bucket, n) in counts.iter().enumerate() {
                seen += n;
                if seen >= wanted && wanted > 0 {
                    return ((1u64 << bucket) - 1).min(max);
                }
            }
            0
        };
        Quantiles { count, p50: at(500), p99: at(990), max }
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counters and histograms of one journal; all only grow.
        #[derive(Default)]
        pub struct Stats {
            $($(#[$doc])* pub $name: AtomicU64,)*
            /// Commit time in microseconds, from freezing to durable.
            pub commit_time_us: Histogram,
            /// Time from a caller's request to durable, in microseconds.
            pub sync_time_us: Histogram,
            /// Sync callers that one commit answered.
            pub callers_per_commit: Histogram,
            /// Time that a transaction was held open for callers expected, in microseconds; only where it was.
            pub hold_time_us: Histogram,
        }

        impl Stats {
            /// The counters by name.
            pub fn counters(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.load(Relaxed)),)*]
            }
        }
    };
}

counters! {
    /// Transactions made durable.
    commits,
    /// Commits that flushed before they wrote to the log, because of in-place data (rule J4).
    two_flush_commits,
    /// Handles published.
    handles,
    /// Blocks logged, copies of file-system blocks only.
    blocks_logged,
    /// Their bytes.
    bytes_logged,
    /// Blocks written to the log, with descriptors, revokes and commit blocks.
    log_blocks_written,
    /// Revoke records written.
    revokes,
    /// Checkpoints that moved the tail.
    checkpoints,
    /// Blocks written home.
    blocks_checkpointed,
    /// Times a handle had to wait for log space.
    waits_for_space,
    /// Times a handle had to wait for a full transaction's commit.
    waits_for_commit,
    /// Callers of fsync and sync that were answered by the committer.
    sync_callers,
    /// Waits for more callers that ended with enough of them.
    holds_joined,
    /// Waits for more callers that ended by time.
    holds_timed_out,
}

impl Stats {
    pub(super) fn count(counter: &AtomicU64, by: u64) {
        counter.fetch_add(by, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_bound_the_values_from_above() {
        let histogram = Histogram::default();
        for value in 1..=100 {
            histogram.add(value);
        }
        let q = histogram.quantiles();
        assert_eq!((q.count, q.max), (100, 100));
        assert!((50..128).contains(&q.p50) && (99..=100).contains(&q.p99));
        assert_eq!(Histogram::default().quantiles().p99, 0);
    }
}
