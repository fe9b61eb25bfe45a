//! `batch=jbd2`: what ext4 does. A caller who is not the last one again sleeps for the average commit time, within
//! `min_batch_time` and `max_batch_time`, unless the transaction has been open for longer than that already.

use super::{averaged, Arrival, CallerId, Hold, Moment, Policy};
use std::time::Duration;

pub(super) struct Jbd2 {
    min: Duration,
    max: Duration,
    average: Duration,
    began: Moment,
    last: Option<CallerId>,
    /// When the first of those who sleep for this transaction wakes up and asks for its commit.
    wakes: Option<Moment>,
}

impl Jbd2 {
    pub(super) fn new(min: Duration, max: Duration) -> Self {
        Self { min, max, average: Duration::ZERO, began: Moment::ZERO, last: None, wakes: None }
    }
}

impl Policy for Jbd2 {
    fn arrived(&mut self, arrival: Arrival) {
        let sleep = self.average.max(self.min).min(self.max);
        let same = self.last.replace(arrival.caller).is_none_or(|last| last == arrival.caller);
        let old = arrival.at.saturating_sub(arrival.opened) >= sleep;
        let wakes = if same || old { arrival.at } else { arrival.at + sleep };
        self.wakes = Some(self.wakes.map_or(wakes, |first| first.min(wakes)));
    }

    fn commit_began(&mut self, now: Moment) {
        self.began = now;
        self.wakes = None;
    }

    fn commit_ended(&mut self, now: Moment) {
        self.average = averaged(self.average, now.saturating_sub(self.began));
    }

    fn answered(&mut self, _caller: CallerId, _now: Moment) {}

    fn hold(&mut self, waiting: usize, now: Moment) -> Hold {
        match self.wakes {
            // Another caller may wake up sooner, so each arrival is looked at.
            Some(wakes) if now < wakes => Hold::Until(wakes, waiting + 1),
            _ => Hold::Close,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;

    #[test]
    fn it_sleeps_for_the_average_commit_but_not_in_an_old_transaction() {
        let policy = &mut Jbd2::new(us(0), us(15000));
        arrive(policy, 1, 0);
        assert_eq!(policy.hold(1, us(0)), Hold::Close);
        commit(policy, 0, 1000, &[1]);
        arrive(policy, 2, 1100);
        assert_eq!(policy.hold(1, us(1100)), Hold::Until(us(2100), 2));
        arrive(policy, 2, 1200);
        assert_eq!(policy.hold(1, us(1200)), Hold::Close, "the same caller twice wakes it");
        commit(policy, 1200, 2200, &[2, 2]);
        policy.arrived(Arrival { caller: 1, at: us(3300), opened: us(2200) });
        assert_eq!(policy.hold(1, us(3300)), Hold::Close, "open for longer than a commit takes");
    }

    #[test]
    fn the_sleep_keeps_within_its_bounds() {
        for (average, sleep) in [(10, 200), (90000, 15000)] {
            let policy = &mut Jbd2::new(us(200), us(15000));
            arrive(policy, 1, 0);
            commit(policy, 0, average, &[1]);
            arrive(policy, 2, 100_000);
            assert_eq!(policy.hold(1, us(100_000)), Hold::Until(us(100_000 + sleep), 2));
        }
    }
}
