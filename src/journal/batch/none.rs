//! `batch=none`: commit at once, as ext3 with `bdelay=0`. Who comes while a commit is in flight shares the next one.

use super::{Arrival, CallerId, Hold, Moment, Policy};

pub(super) struct None;

impl Policy for None {
    fn arrived(&mut self, _arrival: Arrival) {}
    fn commit_began(&mut self, _now: Moment) {}
    fn commit_ended(&mut self, _now: Moment) {}
    fn answered(&mut self, _caller: CallerId, _now: Moment) {}

    fn hold(&mut self, _waiting: usize, _now: Moment) -> Hold {
        Hold::Close
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;

    #[test]
    fn nobody_is_waited_for() {
        let policy = &mut None;
        arrive(policy, 1, 0);
        commit(policy, 0, 100, &[1]);
        arrive(policy, 2, 110);
        assert_eq!(policy.hold(1, us(110)), Hold::Close);
    }
}
