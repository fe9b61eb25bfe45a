//! When a commit that somebody waits for begins: the rules behind `batch=`, each a file.
//!
//! A policy is a state machine without a clock, a thread or I/O: it is told what happens and when, and says how
//! long to hold the transaction open. `journal/waiting.rs` runs one for the committer; the simulation of the tests runs
//! the same code.

mod adaptive;
mod fixed;
mod jbd2;
mod none;
mod pipeline;
mod yielding;

use std::time::Duration;

/// A moment: the time since some start, the same for all of a policy's life.
pub type Moment = Duration;

/// Who asks for durability: a thread, or [`ANONYMOUS`].
pub type CallerId = u32;

/// The kernel itself, or a thread that nobody can name.
pub const ANONYMOUS: CallerId = 0;

/// A thread has asked for durability and waits from now on.
#[derive(Copy, Clone, Debug)]
pub struct Arrival {
    /// Who.
    pub caller: CallerId,
    /// When.
    pub at: Moment,
    /// When the transaction it waits for was opened.
    pub opened: Moment,
}

/// What to do with the open transaction now that the log is free.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Commit it.
    Close,
    /// Let other threads run, then ask again.
    Yield,
    /// Ask again at this moment, or when so many callers wait; sooner does no harm.
    Until(Moment, usize),
}

/// When to begin a commit. `Send`, for the committer's thread.
pub trait Policy: Send {
    /// A caller waits.
    fn arrived(&mut self, arrival: Arrival);
    /// A commit begins; it takes along whoever waits.
    fn commit_began(&mut self, now: Moment);
    /// It has ended; those it was for are answered next.
    fn commit_ended(&mut self, now: Moment);
    /// A caller has its answer and waits no longer.
    fn answered(&mut self, caller: CallerId, now: Moment);
    /// The log is free and `waiting` callers (at least one) wait.
    fn hold(&mut self, waiting: usize, now: Moment) -> Hold;
}

/// Which policy, and its numbers.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct BatchTuning {
    /// `batch=`
    pub policy: BatchPolicy,
    /// `batch_delay=`: the sleep of [`BatchPolicy::Fixed`].
    pub delay: Duration,
    /// `min_batch_time=`, as ext4.
    pub min_time: Duration,
    /// `max_batch_time=`, as ext4.
    pub max_time: Duration,
}

impl Default for BatchTuning {
    fn default() -> Self {
        Self {
            policy: BatchPolicy::default(),
            delay: Duration::from_millis(4),
            min_time: Duration::ZERO,
            max_time: Duration::from_millis(15),
        }
    }
}

impl BatchTuning {
    /// The policy, with nothing learnt yet.
    pub fn start(&self) -> Box<dyn Policy> {
        match self.policy {
            BatchPolicy::None => Box::new(none::None),
            BatchPolicy::Yield => Box::new(yielding::Yield::default()),
            BatchPolicy::Fixed => Box::new(fixed::Fixed::new(self.delay)),
            BatchPolicy::Pipeline => Box::new(pipeline::Pipeline::default()),
            BatchPolicy::Jbd2 => Box::new(jbd2::Jbd2::new(self.min_time, self.max_time)),
            BatchPolicy::Adaptive => Box::new(adaptive::Adaptive::new(self.max_time)),
        }
    }
}

words!(
    /// When the commit of a transaction that somebody waits for begins (`batch=`).
    BatchPolicy for "batch" {
        /// At once.
        None = "none",
        /// After giving up the CPU once.
        Yield = "yield",
        /// After `batch_delay`, while new callers arrive.
        Fixed = "fixed",
        /// When the commit in flight has ended.
        Pipeline = "pipeline",
        /// As jbd2: after the average commit time, within `min_batch_time` and `max_batch_time`.
        Jbd2 = "jbd2",
        /// When the writers that are expected have arrived.
        #[default]
        Adaptive = "adaptive",
    }
);

/// An average that forgets: each sample counts a quarter, as jbd2's average commit time.
fn averaged(average: Duration, sample: Duration) -> Duration {
    if average.is_zero() {
        sample
    } else {
        (average * 3 + sample) / 4
    }
}

#[cfg(test)]
mod testing {
    use super::*;

    pub(super) fn us(us: u64) -> Moment {
        Duration::from_micros(us)
    }

    /// `caller` arrives at `at` microseconds, in a transaction opened then.
    pub(super) fn arrive(policy: &mut dyn Policy, caller: CallerId, at: u64) {
        policy.arrived(Arrival { caller, at: us(at), opened: us(at) });
    }

    /// A commit from `from` to `to` microseconds answers the callers.
    pub(super) fn commit(policy: &mut dyn Policy, from: u64, to: u64, callers: &[CallerId]) {
        policy.commit_began(us(from));
        policy.commit_ended(us(to));
        for caller in callers {
            policy.answered(*caller, us(to));
        }
    }
}
