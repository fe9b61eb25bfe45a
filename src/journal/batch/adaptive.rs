//! `batch=adaptive`: wait for writers, not for time.
//!
//! A writer is expected while it usually comes back sooner than a commit takes (C). Holding the transaction for W, so
//! that k more writers join it, saves each of them what it would wait longer for the next commit, C - W, and costs all
//! others W: those who wait already, and those who come later and find the log busy for longer. With T writers
//! about it pays if k C > T W, and the k with the largest difference is waited for (a long wait must gain more, since
//! those who are late once are often late for long). So one writer never waits,
//! nor does anybody for writers who think longer than C or whose coming takes as long as a commit in all: those do
//! better in two groups, one thinking while the other commits. In all a hold takes at most C, and `max_batch_time`.
//!
//! What is learnt of a writer is the mean of its think times and their mean deviation. A writer who doesn't come when
//! due is taken to think twice as long; the second time it is forgotten, until it comes back by itself.

use super::{averaged, Arrival, CallerId, Hold, Moment, Policy, ANONYMOUS};
use rustc_hash::FxHashMap;
use std::time::Duration;

/// Writers remembered; beyond it the one unseen for longest is dropped.
const WRITERS_MAX: usize = 1024;
/// Misses after which a writer is forgotten.
const MISSES_MAX: u32 = 2;
/// Times in a row that the CPU is given up, as long as each brings a caller.
const YIELDS_MAX: u32 = 32;
/// A think time counts as at most so many commits, lest one pause is remembered for long; who hasn't come for longer is gone.
const THINK_COMMITS_MAX: u32 = 4;

/// Evenly spread values lie within so many mean deviations of their mean.
const SPREAD_DEVIATIONS: u32 = 2;
/// Mean deviations beyond the mean after which a writer is late.
const LATE_DEVIATIONS: u32 = 3;

/// A writer's coming: evenly likely from `from` to `to`, as far as one can tell.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Due {
    to: Moment,
    from: Moment,
    late: Moment,
}

#[derive(Default)]
struct Writer {
    /// Mean think time; `None` before the first and after it was forgotten.
    think: Option<Duration>,
    /// Mean deviation from it.
    deviation: Duration,
    /// When it got its last answer, if it is not waiting again.
    answered: Option<Moment>,
    misses: u32,
    seen: Moment,
}

impl Writer {
    fn thought(&mut self, time: Duration) {
        self.misses = 0;
        let Some(think) = self.think else {
            self.think = Some(time);
            self.deviation = time / 2;
            return;
        };
        self.deviation = (self.deviation * 3 + think.abs_diff(time)) / 4;
        self.think = Some(averaged(think, time));
    }

    /// When it is expected, if it is within `horizon` of its last answer.
    fn due(&self, horizon: Duration) -> Option<Due> {
        let (think, answered) = (self.think? * (self.misses + 1), self.answered?);
        let mean = answered + think;
        (think < horizon).then(|| Due {
            from: mean.saturating_sub(SPREAD_DEVIATIONS * self.deviation),
            to: mean + SPREAD_DEVIATIONS * self.deviation,
            late: mean + LATE_DEVIATIONS * self.deviation,
        })
    }

    fn missed(&mut self) {
        self.misses += 1;
        if self.misses >= MISSES_MAX {
            self.think = None;
        }
    }
}

pub(super) struct Adaptive {
    hold_max: Duration,
    /// The average commit time, C.
    commit: Duration,
    began: Moment,
    writers: FxHashMap<CallerId, Writer>,
    /// When this transaction was first held.
    held_since: Option<Moment>,
    /// Writers about who don't wait.
    active: usize,
    yields: u32,
    /// How many waited when the CPU was last given up.
    yielded_with: usize,
    /// Who is expected: kept for its memory.
    expected: Vec<Due>,
}

impl Adaptive {
    pub(super) fn new(hold_max: Duration) -> Self {
        Self {
            hold_max,
            commit: Duration::ZERO,
            began: Moment::ZERO,
            writers: FxHashMap::default(),
            held_since: None,
            active: 0,
            yields: 0,
            yielded_with: 0,
            expected: Vec::new(),
        }
    }

    fn make_room(&mut self) {
        if self.writers.len() < WRITERS_MAX {
            return;
        }
        if let Some(oldest) = self.writers.iter().min_by_key(|(_, writer)| writer.seen).map(|(id, _)| *id) {
            self.writers.remove(&oldest);
        }
    }

    /// How many writers who don't wait have been seen lately.
    fn count_active(&self, now: Moment) -> usize {
        let lately = now.saturating_sub(self.commit * THINK_COMMITS_MAX);
        self.writers.values().filter(|w| w.answered.is_some_and(|answered| answered >= lately)).count()
    }

    /// Notes who is late, and collects who is still expected, in the order of their coming.
    fn look(&mut self, now: Moment) {
        self.expected.clear();
        for writer in self.writers.values_mut() {
            let Some(due) = writer.due(self.commit) else { continue };
            if due.late <= now {
                writer.missed();
            } else {
                self.expected.push(Due { from: due.from.max(now), to: due.to.max(now), ..due });
            }
        }
        self.expected.sort_unstable();
    }

    /// How many of the expected to wait for, and until when at most.
    fn worth(&self, waiting: usize, held: Duration, now: Moment) -> Option<(usize, Moment)> {
        let all = (waiting + self.active) as f64;
        let commit = self.commit.as_secs_f64();
        let mut best = (0.0, None);
        let mut latest = now;
        for (joined, due) in (1usize..).zip(&self.expected) {
            latest = latest.max(due.late);
            // Of many who come evenly spread the last comes late.
            let share = joined as f64 / (self.expected.len() + 1) as f64;
            let wait = due.from.saturating_sub(now) + due.to.saturating_sub(due.from).mul_f64(share);
            // Next to a whole commit, what is left to gain is less than what can go wrong.
            let strain = (held + wait).as_secs_f64() / commit.max(f64::MIN_POSITIVE);
            let gain = joined as f64 * commit - all * wait.as_secs_f64() * (1.0 + strain * strain);
            if gain > best.0 {
                best = (gain, Some((joined, latest)));
            }
        }
        best.1
    }
}

impl Policy for Adaptive {
    fn arrived(&mut self, arrival: Arrival) {
        if arrival.caller == ANONYMOUS {
            return;
        }
        if !self.writers.contains_key(&arrival.caller) {
            self.make_room();
        }
        let writer = self.writers.entry(arrival.caller).or_default();
        writer.seen = arrival.at;
        if let Some(answered) = writer.answered.take() {
            let think = arrival.at.saturating_sub(answered);
            writer.thought(think.min(self.commit * THINK_COMMITS_MAX));
        }
    }

    fn commit_began(&mut self, now: Moment) {
        self.began = now;
        self.held_since = None;
        self.yields = 0;
        self.yielded_with = 0;
    }

    fn commit_ended(&mut self, now: Moment) {
        self.commit = averaged(self.commit, now.saturating_sub(self.began));
    }

    fn answered(&mut self, caller: CallerId, now: Moment) {
        if let Some(writer) = self.writers.get_mut(&caller) {
            writer.answered = Some(now);
        }
    }

    fn hold(&mut self, waiting: usize, now: Moment) -> Hold {
        let since = *self.held_since.get_or_insert(now);
        self.active = self.count_active(now);
        if self.active == 0 {
            return Hold::Close;
        }
        if waiting > self.yielded_with && self.yields < YIELDS_MAX {
            self.yields += 1;
            self.yielded_with = waiting;
            return Hold::Yield;
        }
        self.look(now);
        let end = since + self.commit.min(self.hold_max);
        match self.worth(waiting, now.saturating_sub(since), now) {
            Some((more, late)) if now < end => Hold::Until(late.min(end), waiting + more),
            _ => Hold::Close,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;

    const MAX: Duration = Duration::from_millis(15);

    /// What it says once giving up the CPU brings nothing more.
    fn hold(policy: &mut Adaptive, waiting: usize, at: u64) -> Hold {
        loop {
            match policy.hold(waiting, us(at)) {
                Hold::Yield => {}
                hold => return hold,
            }
        }
    }

    /// After some rounds of commits of 1 ms by writers who come back after so many microseconds, the next round's
    /// answers come at the returned time.
    fn taught(policy: &mut Adaptive, thinks: &[u64]) -> u64 {
        let callers: Vec<CallerId> = (1..=thinks.len() as u32).collect();
        let mut at = 0;
        for _ in 0..8 {
            for (caller, think) in callers.iter().zip(thinks) {
                arrive(policy, *caller, at + think);
            }
            let begin = at + thinks.iter().max().unwrap();
            commit(policy, begin, begin + 1000, &callers);
            at = begin + 1000;
        }
        at
    }

    #[test]
    fn one_writer_never_waits() {
        let policy = &mut Adaptive::new(MAX);
        let at = taught(policy, &[50]);
        arrive(policy, 1, at + 50);
        assert_eq!(policy.hold(1, us(at + 50)), Hold::Close);
    }

    #[test]
    fn a_writer_who_comes_back_soon_is_waited_for_and_then_forgotten() {
        let policy = &mut Adaptive::new(MAX);
        let at = taught(policy, &[50, 200]);
        arrive(policy, 1, at + 50);
        let Hold::Until(end, 2) = hold(policy, 1, at + 50) else { panic!("writer 2 is expected") };
        assert!(end >= us(at + 200) && end <= us(at + 1050), "{end:?}");
        let mut at = end.as_micros() as u64 + 1;
        for _ in 0..MISSES_MAX {
            assert_eq!(hold(policy, 1, at), Hold::Close, "late");
            commit(policy, at, at + 1000, &[1]);
            at += 1050;
            arrive(policy, 1, at);
        }
        assert_eq!(policy.writers[&2].think, None);
    }

    #[test]
    fn nobody_waits_for_a_writer_who_thinks_longer_than_a_commit_takes() {
        let policy = &mut Adaptive::new(MAX);
        let at = taught(policy, &[50, 3000]);
        arrive(policy, 1, at + 50);
        assert_eq!(hold(policy, 1, at + 50), Hold::Close);
    }

    #[test]
    fn nineteen_do_not_wait_long_for_the_twentieth() {
        let policy = &mut Adaptive::new(MAX);
        let mut thinks = [50; 20];
        thinks[19] = 600;
        let at = taught(policy, &thinks);
        for caller in 1..=19 {
            arrive(policy, caller, at + 50);
        }
        assert_eq!(hold(policy, 19, at + 50), Hold::Close);
    }

    #[test]
    fn anonymous_callers_are_counted_but_not_waited_for() {
        let policy = &mut Adaptive::new(MAX);
        for round in 0..50 {
            arrive(policy, ANONYMOUS, round * 1000);
            assert_eq!(policy.hold(1, us(round * 1000)), Hold::Close);
            commit(policy, round * 1000, round * 1000 + 900, &[ANONYMOUS]);
        }
        assert!(policy.writers.is_empty());
    }

    #[test]
    fn memory_is_bounded() {
        let policy = &mut Adaptive::new(MAX);
        for caller in 1..10_000 {
            arrive(policy, caller, caller.into());
        }
        assert_eq!(policy.writers.len(), WRITERS_MAX);
        assert!(policy.writers.contains_key(&9_999), "the newest stay");
    }
}
