//! The order in which entries of a cache get their second chance.

use std::collections::VecDeque;
use std::hash::Hash;

/// Names that are gone may be this many, beside as many as there are entries, before they are dropped.
const GONE_MAX: usize = 64;

/// A queue of the entries' names, oldest first. Removing an entry leaves its name, which costs nothing until there are more
/// such names than entries; so memory is bounded by the entries, however often they come and go.
pub(crate) struct Clock<K>(VecDeque<K>);

impl<K> Default for Clock<K> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<K: Copy + Eq + Hash> Clock<K> {
    /// The oldest name.
    pub(crate) fn pop(&mut self) -> Option<K> {
        self.0.pop_front()
    }

    /// A new entry's name, or that of one that stays for another round.
    pub(crate) fn push(&mut self, name: K) {
        self.0.push_back(name);
    }

    /// How many names there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Drops names that are gone, and all but the first of each, if there are too many for `entries`.
    pub(crate) fn tidy(&mut self, entries: usize, is_there: impl Fn(K) -> bool) {
        if self.0.len() > 2 * entries + GONE_MAX {
            let mut seen = rustc_hash::FxHashSet::default();
            self.0.retain(|name| is_there(*name) && seen.insert(*name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_come_and_go_take_no_memory() {
        let mut clock = Clock::default();
        for round in 0..10_000 {
            clock.push(round);
            clock.push(0);
            clock.tidy(1, |name| name == 0);
        }
        assert!(clock.len() <= 2 + GONE_MAX + 2, "{}", clock.len());
        let rest: Vec<_> = std::iter::from_fn(|| clock.pop()).filter(|name| *name == 0).collect();
        assert!(!rest.is_empty(), "what is there stays");
    }
}
