//! `batch=pipeline`: wait for the commit in flight, then commit, as XFS forces its log and as the first patch for
//! ext3 did. One commit is in flight at a time anyway, so what is left to differ from `none` is that its waiters
//! are woken by its end and run before they commit: the CPU is given up once then.

use super::{Arrival, CallerId, Hold, Moment, Policy};

#[derive(Default)]
pub(super) struct Pipeline {
    in_flight: bool,
    /// Somebody has waited for the commit in flight.
    woken: bool,
}

impl Policy for Pipeline {
    fn arrived(&mut self, _arrival: Arrival) {
        self.woken |= self.in_flight;
    }

    fn commit_began(&mut self, _now: Moment) {
        self.in_flight = true;
        self.woken = false;
    }

    fn commit_ended(&mut self, _now: Moment) {
        self.in_flight = false;
    }

    fn answered(&mut self, _caller: CallerId, _now: Moment) {}

    fn hold(&mut self, _waiting: usize, _now: Moment) -> Hold {
        if std::mem::take(&mut self.woken) {
            Hold::Yield
        } else {
            Hold::Close
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;

    #[test]
    fn only_who_found_a_commit_in_flight_is_woken_by_it() {
        let policy = &mut Pipeline::default();
        arrive(policy, 1, 0);
        assert_eq!(policy.hold(1, us(0)), Hold::Close);
        policy.commit_began(us(0));
        arrive(policy, 2, 50);
        policy.commit_ended(us(100));
        assert_eq!(policy.hold(1, us(100)), Hold::Yield);
        assert_eq!(policy.hold(1, us(101)), Hold::Close);
    }
}
