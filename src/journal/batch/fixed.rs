//! `batch=fixed`: ext3's original. A caller who is not the last one again sleeps for `batch_delay`, and again as
//! long as that brings more. Right for one device, ruinous for a faster one.

use super::{Arrival, CallerId, Hold, Moment, Policy};
use std::time::Duration;

pub(super) struct Fixed {
    delay: Duration,
    last: Option<CallerId>,
    /// The callers of this transaction are not just the last one again.
    others: bool,
    arrivals: u64,
    /// The sleep under way: its end, and the arrivals before it.
    sleep: Option<(Moment, u64)>,
}

impl Fixed {
    pub(super) fn new(delay: Duration) -> Self {
        Self { delay, last: None, others: false, arrivals: 0, sleep: None }
    }
}

impl Policy for Fixed {
    fn arrived(&mut self, arrival: Arrival) {
        self.arrivals += 1;
        self.others |= self.last.replace(arrival.caller).is_some_and(|last| last != arrival.caller);
    }

    fn commit_began(&mut self, _now: Moment) {
        self.others = false;
        self.sleep = None;
    }

    fn commit_ended(&mut self, _now: Moment) {}
    fn answered(&mut self, _caller: CallerId, _now: Moment) {}

    fn hold(&mut self, _waiting: usize, now: Moment) -> Hold {
        match self.sleep {
            _ if !self.others => Hold::Close,
            Some((end, _)) if now < end => Hold::Until(end, usize::MAX),
            Some((_, arrivals)) if arrivals == self.arrivals => Hold::Close,
            _ => {
                let end = now + self.delay;
                self.sleep = Some((end, self.arrivals));
                Hold::Until(end, usize::MAX)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;

    #[test]
    fn it_sleeps_while_that_brings_callers_and_not_for_the_same_one() {
        let policy = &mut Fixed::new(us(4000));
        arrive(policy, 1, 0);
        assert_eq!(policy.hold(1, us(0)), Hold::Close);
        commit(policy, 0, 100, &[1]);
        arrive(policy, 2, 200);
        assert_eq!(policy.hold(1, us(200)), Hold::Until(us(4200), usize::MAX));
        arrive(policy, 1, 300);
        assert_eq!(policy.hold(2, us(300)), Hold::Until(us(4200), usize::MAX));
        assert_eq!(policy.hold(2, us(4200)), Hold::Until(us(8200), usize::MAX));
        assert_eq!(policy.hold(2, us(8200)), Hold::Close);
        commit(policy, 8200, 8300, &[1, 2]);
        arrive(policy, 1, 8400);
        assert_eq!(policy.hold(1, us(8400)), Hold::Close, "the same caller again");
    }
}
