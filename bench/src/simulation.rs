//! Closed-loop writers on a device whose commits take a given time, under a batching policy: a model without a clock, a
//! thread or chance.

use journalfs::journal::batch::{Arrival, BatchTuning, CallerId, Hold, Moment, Policy};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// Times that a policy may give up the CPU in a row.
const YIELDS_MAX: u32 = 1000;

/// One writer: it thinks, asks for durability, waits, and thinks again.
#[derive(Clone, Debug)]
pub struct Writer {
    /// Who it is for the policy.
    pub caller: CallerId,
    /// When it begins to think for the first time.
    pub from: Moment,
    /// When it stops asking.
    pub until: Moment,
    /// How long it thinks, without waiting for the CPU.
    pub think: Duration,
    /// Each think time differs from `think` by up to this share of it, evenly.
    pub spread: f64,
}

impl Writer {
    /// A writer that goes on for ever, thinking always as long.
    pub fn new(caller: CallerId, think: Duration) -> Self {
        Self { caller, from: Moment::ZERO, until: Moment::MAX, think, spread: 0.0 }
    }
}

/// The machine.
#[derive(Copy, Clone, Debug)]
pub struct Machine {
    /// What a commit takes.
    pub commit: Duration,
    /// What each think takes besides on the one CPU that all share.
    pub cpu: Duration,
}

/// What came of it for one writer.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Its answers.
    pub answers: u64,
    /// The sum of its waits.
    pub waited: Duration,
    /// The longest.
    pub waited_max: Duration,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Outcomes {
    /// Per writer, in their order.
    pub writers: Vec<Outcome>,
    /// Commits that ended.
    pub commits: u64,
    /// For how long the log was free and the transaction held open.
    pub held: Duration,
    /// The longest of it for one commit.
    pub held_max: Duration,
}

impl Outcomes {
    /// All answers.
    pub fn answers(&self) -> u64 {
        self.writers.iter().map(|w| w.answers).sum()
    }
}

/// A small generator (xorshift): the same numbers each time.
struct Chance(u64);

impl Chance {
    fn share(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

struct Simulation<'a> {
    machine: Machine,
    writers: &'a [Writer],
    policy: Box<dyn Policy>,
    chance: Chance,
    cpu_free: Moment,
    /// When who asks next.
    coming: BinaryHeap<Reverse<(Moment, usize)>>,
    waiting: Vec<(usize, Moment)>,
    committing: Option<(Moment, Vec<(usize, Moment)>)>,
    /// The hold: its end, the callers that end it.
    hold: Option<(Moment, usize)>,
    free_since: Moment,
    outcomes: Outcomes,
}

/// Runs the writers for `time`.
pub fn run(tuning: &BatchTuning, machine: Machine, writers: &[Writer], time: Duration) -> Outcomes {
    let mut simulation = Simulation {
        machine,
        writers,
        policy: tuning.start(),
        chance: Chance(0x9e37_79b9_7f4a_7c15),
        cpu_free: Moment::ZERO,
        coming: BinaryHeap::new(),
        waiting: Vec::new(),
        committing: None,
        hold: None,
        free_since: Moment::ZERO,
        outcomes: Outcomes { writers: vec![Outcome::default(); writers.len()], ..Outcomes::default() },
    };
    for (index, writer) in writers.iter().enumerate() {
        simulation.coming.push(Reverse((writer.from + writer.think, index)));
    }
    while let Some(now) = simulation.next() {
        if now > time {
            break;
        }
        simulation.step(now);
    }
    simulation.outcomes
}

impl Simulation<'_> {
    fn think(&mut self, index: usize, now: Moment) {
        let Some(writer) = self.writers.get(index) else { return };
        self.cpu_free = self.cpu_free.max(now) + self.machine.cpu;
        let factor = 1.0 + writer.spread * (2.0 * self.chance.share() - 1.0);
        let at = self.cpu_free.max(now) + writer.think.mul_f64(factor);
        if at < writer.until {
            self.coming.push(Reverse((at, index)));
        }
    }

    /// When something happens next.
    fn next(&self) -> Option<Moment> {
        let coming = self.coming.peek().map(|Reverse((at, _))| *at);
        let end = self.committing.as_ref().map(|(end, _)| *end);
        let hold = self.hold.map(|(end, _)| end);
        [coming, end, hold].into_iter().flatten().min()
    }

    fn step(&mut self, now: Moment) {
        if self.committing.as_ref().is_some_and(|(end, _)| *end <= now) {
            self.end_commit(now);
        }
        while let Some(Reverse((_, index))) =
            self.coming.peek().copied().filter(|Reverse((at, _))| *at <= now)
        {
            self.coming.pop();
            self.waiting.push((index, now));
            let opened = self.waiting.first().map_or(now, |(_, at)| *at);
            let caller = self.writers.get(index).map_or(0, |w| w.caller);
            self.policy.arrived(Arrival { caller, at: now, opened });
        }
        let held = self.hold.is_some_and(|(end, wanted)| now < end && self.waiting.len() < wanted);
        if self.committing.is_none() && !self.waiting.is_empty() && !held {
            self.decide(now);
        }
    }

    fn end_commit(&mut self, now: Moment) {
        let Some((_, mut answered)) = self.committing.take() else { return };
        // In any order: whose turn it is next on the CPU is not for the journal to say.
        for last in (1..answered.len()).rev() {
            answered.swap(last, (self.chance.share() * (last + 1) as f64) as usize);
        }
        self.policy.commit_ended(now);
        self.free_since = now;
        self.outcomes.commits += 1;
        for (index, since) in answered {
            if let (Some(writer), Some(outcome)) =
                (self.writers.get(index), self.outcomes.writers.get_mut(index))
            {
                self.policy.answered(writer.caller, now);
                outcome.answers += 1;
                let waited = now.saturating_sub(since);
                outcome.waited += waited;
                outcome.waited_max = outcome.waited_max.max(waited);
            }
            self.think(index, now);
        }
    }

    fn decide(&mut self, now: Moment) {
        self.hold = None;
        for _ in 0..YIELDS_MAX {
            match self.policy.hold(self.waiting.len(), now) {
                // Nothing else is there to run at this moment.
                Hold::Yield => {}
                Hold::Until(end, wanted) if end > now => {
                    self.hold = Some((end, wanted));
                    return;
                }
                Hold::Close | Hold::Until(..) => break,
            }
        }
        let first = self.waiting.first().map_or(now, |(_, at)| *at);
        let held = now.saturating_sub(first.max(self.free_since));
        self.outcomes.held += held;
        self.outcomes.held_max = self.outcomes.held_max.max(held);
        self.policy.commit_began(now);
        self.committing = Some((now + self.machine.commit, std::mem::take(&mut self.waiting)));
    }
}
