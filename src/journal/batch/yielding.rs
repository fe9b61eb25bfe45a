//! `batch=yield`: give up the CPU once, then commit, as reiserfs did. Who can run gets to its fsync.

use super::{Arrival, CallerId, Hold, Moment, Policy};

#[derive(Default)]
pub(super) struct Yield {
    yielded: bool,
}

impl Policy for Yield {
    fn arrived(&mut self, _arrival: Arrival) {}

    fn commit_began(&mut self, _now: Moment) {
        self.yielded = false;
    }

    fn commit_ended(&mut self, _now: Moment) {}
    fn answered(&mut self, _caller: CallerId, _now: Moment) {}

    fn hold(&mut self, _waiting: usize, _now: Moment) -> Hold {
        if std::mem::replace(&mut self.yielded, true) {
            Hold::Close
        } else {
            Hold::Yield
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;

    #[test]
    fn each_commit_yields_once() {
        let policy = &mut Yield::default();
        for at in [0, 1000] {
            arrive(policy, 1, at);
            assert_eq!(policy.hold(1, us(at)), Hold::Yield);
            assert_eq!(policy.hold(2, us(at)), Hold::Close);
            commit(policy, at, at + 100, &[1]);
        }
    }
}
