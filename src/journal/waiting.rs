//! Who waits for durability, and the committer, which decides with the batching policy when their commit begins.

use super::batch::{Arrival, BatchTuning, CallerId, Hold, Moment, Policy};
use super::engine::{Journal, OnDurable};
use super::stats::Stats;
use crate::error::{Error, Result};
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::MutexGuard;
use crate::units::Tid;
use std::time::{Duration, Instant};

struct Waiter {
    tid: Tid,
    stamp: u64,
    caller: CallerId,
    since: Instant,
    then: OnDurable,
}

/// What the committer and the checkpointer are to do.
pub(super) struct Waiting {
    waiters: Vec<Waiter>,
    policy: Box<dyn Policy>,
    /// While the committer holds the transaction open: the number of waiters that ends it.
    held_for: Option<usize>,
    pub(super) checkpoint_wanted: bool,
    pub(super) stop: bool,
}

impl Default for Waiting {
    fn default() -> Self {
        Self {
            waiters: Vec::new(),
            policy: BatchTuning::default().start(),
            held_for: None,
            checkpoint_wanted: false,
            stop: false,
        }
    }
}

impl Waiting {
    /// The newest transaction and flush that anybody waits for.
    fn target(&self) -> Option<(Tid, u64)> {
        self.waiters
            .iter()
            .map(|w| (w.tid, w.stamp))
            .reduce(|a, b| (if a.0.is_after(b.0) { a.0 } else { b.0 }, a.1.max(b.1)))
    }
}

impl Journal {
    /// Changes when the commits that somebody waits for begin; nothing that was learnt of the callers is kept.
    pub fn set_batch(&self, tuning: BatchTuning) {
        let mut waiting = self.waiting.lock();
        waiting.policy = tuning.start();
        self.commit_wanted.notify_all();
    }

    /// Has `then` called, by the committer, when `tid` and in-place data with `stamp` are durable, or
    /// can't become so. `caller` is who waits.
    pub fn commit_then(&self, tid: Option<Tid>, stamp: u64, caller: CallerId, then: OnDurable) {
        let tid = tid.filter(|tid| !self.is_durable(*tid));
        if tid.is_none() && self.clock.is_done(stamp) {
            return then(self.healthy());
        }
        let tid = tid.unwrap_or_else(|| *self.durable.lock());
        let since = Instant::now();
        let opened = Duration::from_nanos(self.opened_ns.load(Relaxed));
        let mut waiting = self.waiting.lock();
        waiting.policy.arrived(Arrival { caller, at: self.moment(since), opened });
        waiting.waiters.push(Waiter { tid, stamp, caller, since, then });
        let count = waiting.waiters.len();
        if waiting.held_for.is_none_or(|wanted| count >= wanted) {
            self.commit_wanted.notify_one();
        }
    }

    fn healthy(&self) -> Result<()> {
        if self.is_aborted() {
            Err(Error::Posix(libc::EIO))
        } else {
            Ok(())
        }
    }

    /// A moment of the policy's.
    fn moment(&self, at: Instant) -> Moment {
        at.saturating_duration_since(self.began)
    }

    /// Ends a hold: a transaction has been committed by somebody else, or nothing can be any more.
    pub(super) fn end_hold(&self) {
        if self.waiting.lock().held_for.is_some() {
            self.commit_wanted.notify_all();
        }
    }

    pub(super) fn committer_loop(&self) {
        // A wait that ends late costs every caller: 1 ns in place of the 50 us that the kernel likes to round up to.
        if let Err(error) = nix::sys::prctl::set_timerslack(1) {
            tracing::warn!(%error, "the committer's waits will be late");
        }
        loop {
            let (tid, stamp) = {
                let mut waiting = self.waiting.lock();
                while waiting.waiters.is_empty() && !waiting.stop {
                    self.commit_wanted.wait(&mut waiting);
                }
                self.hold(&mut waiting);
                let Some(target) = waiting.target() else { return };
                waiting.policy.commit_began(self.moment(Instant::now()));
                target
            };
            let result = self.commit(tid).and_then(|()| self.flush(stamp));
            self.answer(result.is_ok());
        }
    }

    /// Holds the transaction open for as long as the policy says.
    fn hold(&self, waiting: &mut MutexGuard<'_, Waiting>) {
        let mut held = Duration::ZERO;
        while let Some((tid, stamp)) = waiting.target() {
            if waiting.stop || self.is_aborted() || self.is_durable(tid) && self.clock.is_done(stamp) {
                break;
            }
            let now = Instant::now();
            let count = waiting.waiters.len();
            match waiting.policy.hold(count, self.moment(now)) {
                Hold::Close => break,
                Hold::Yield => MutexGuard::unlocked(waiting, crate::sync::thread::yield_now),
                Hold::Until(end, wanted) => {
                    waiting.held_for = Some(wanted);
                    let timed_out = self.commit_wanted.wait_until(waiting, self.began + end).timed_out();
                    waiting.held_for = None;
                    held += now.elapsed();
                    Stats::count(
                        if timed_out { &self.stats.holds_timed_out } else { &self.stats.holds_joined },
                        1,
                    );
                }
            }
        }
        if !held.is_zero() {
            self.stats.hold_time_us.add_us(held);
        }
    }

    /// Answers everyone whose transaction and data are durable; everyone at all after a failure.
    fn answer(&self, good: bool) {
        let durable = *self.durable.lock();
        let answered: Vec<Waiter> = {
            let mut waiting = self.waiting.lock();
            let all = std::mem::take(&mut waiting.waiters);
            let (done, later): (Vec<_>, Vec<_>) = all.into_iter().partition(|w| {
                !good || (durable.is_at_least(w.tid) || self.nothing_in(w.tid)) && self.clock.is_done(w.stamp)
            });
            waiting.waiters = later;
            let now = self.moment(Instant::now());
            waiting.policy.commit_ended(now);
            for waiter in &done {
                waiting.policy.answered(waiter.caller, now);
            }
            done
        };
        Stats::count(&self.stats.sync_callers, answered.len() as u64);
        if !answered.is_empty() {
            self.stats.callers_per_commit.add(answered.len() as u64);
        }
        for waiter in answered {
            self.stats.sync_time_us.add_us(waiter.since.elapsed());
            (waiter.then)(if good { Ok(()) } else { Err(Error::Posix(libc::EIO)) });
        }
    }

    fn nothing_in(&self, tid: Tid) -> bool {
        let running = self.running.lock();
        running.tid == tid && running.is_empty()
    }
}
