//! Transactions: what the file system changes, made durable in order, in jbd2's format.
//! Called by `cache/` (handles, reads) and `fs/` (commit, sync, mount); calls `format/` and `device/`.
//!
//! One transaction runs and one commits; durable ones wait for their blocks to be written home
//! (checkpoint). docs/DESIGN.md has rules J1 to J14 and says which line here keeps each.
//!
//! Lock order: `commit_lock` (one leader) -> `running` (the update lock) -> `log` -> `records` -> the
//! state of waiters. No I/O happens under `running`, `log` or `records`.

pub mod batch;
pub mod fast_commit;
pub mod locate;
pub mod log_area;
mod log_reader;
pub mod recovery;
#[cfg(test)]
mod recovery_tests;
pub mod replay;
#[cfg(test)]
mod test_log;

mod checkpoint;
mod commit;
mod engine;
mod flush;
mod log;
mod records;
mod running;
mod stats;
#[cfg(test)]
mod tests;
mod transaction;
mod waiting;

pub use engine::{Journal, LogSetup, OnDurable};
pub use running::Running;
pub use stats::{Histogram, Quantiles, Stats};

use crate::units::{BlockRange, GroupNr};

/// What a handle did to the bitmaps, told to the [`Observer`] when it is published and (the frees) again when
/// they are durable.
#[derive(Default, Debug, Clone)]
pub struct Effects {
    /// Blocks whose bits were set.
    pub allocated: Vec<BlockRange>,
    /// Blocks whose bits were cleared.
    pub freed: Vec<BlockRange>,
    /// Per group: inodes allocated (> 0) or freed (< 0), and how many of them directories.
    pub inodes: Vec<(GroupNr, i32, i32)>,
}

/// Who keeps count of free space, above the journal.
pub trait Observer: Send + Sync {
    /// A handle was published; called under the update lock.
    fn published(&self, effects: &Effects);
    /// The transaction that freed these blocks is durable: they may be used again (rule J9).
    fn durable(&self, freed: &[BlockRange]);
}
