//! A set of blocks kept as disjoint runs.

use crate::units::{BlockNr, BlockRange};
use std::collections::BTreeMap;

/// Disjoint runs of blocks; neighbours are one run.
#[derive(Default, Debug)]
pub(crate) struct RangeSet {
    /// First block -> the block behind the last.
    runs: BTreeMap<u64, u64>,
    blocks: u64,
}

impl RangeSet {
    /// How many blocks are in the set.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Adds blocks; returns those that were not in the set.
    pub(crate) fn insert(&mut self, range: BlockRange) -> Vec<BlockRange> {
        let (mut start, mut end) = (range.start.0, range.end().0);
        let mut added = Vec::new();
        let mut gap_from = start;
        // The runs that touch the new one, neighbours included, become one with it.
        let touching: Vec<(u64, u64)> = self.touching(start, end);
        for (from, to) in touching {
            if from > gap_from {
                added.push(run(gap_from, from.min(range.end().0)));
            }
            gap_from = gap_from.max(to);
            start = start.min(from);
            end = end.max(to);
            self.runs.remove(&from);
        }
        if gap_from < range.end().0 {
            added.push(run(gap_from, range.end().0));
        }
        if start < end {
            self.runs.insert(start, end);
        }
        self.blocks += added.iter().map(|r| u64::from(r.len)).sum::<u64>();
        added
    }

    /// Takes blocks out; returns those that were in the set.
    pub(crate) fn remove(&mut self, range: BlockRange) -> Vec<BlockRange> {
        let (start, end) = (range.start.0, range.end().0);
        let mut removed = Vec::new();
        for (from, to) in self.touching(start, end) {
            let inside = (from.max(start), to.min(end));
            if inside.0 >= inside.1 {
                continue;
            }
            self.runs.remove(&from);
            if from < start {
                self.runs.insert(from, start);
            }
            if to > end {
                self.runs.insert(end, to);
            }
            removed.push(run(inside.0, inside.1));
        }
        self.blocks -= removed.iter().map(|r| u64::from(r.len)).sum::<u64>();
        removed
    }

    /// The set's blocks inside `range`, in order.
    pub(crate) fn inside(&self, range: BlockRange) -> Vec<BlockRange> {
        let (start, end) = (range.start.0, range.end().0);
        let clip = |(from, to): (u64, u64)| (from.max(start), to.min(end));
        let parts = self.touching(start, end).into_iter().map(clip);
        parts.filter(|(from, to)| from < to).map(|(from, to)| run(from, to)).collect()
    }

    /// Runs that overlap `start..end` or lie directly beside it.
    fn touching(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let before = self.runs.range(..start).next_back().filter(|(_, to)| **to >= start);
        before.into_iter().chain(self.runs.range(start..=end)).map(|(from, to)| (*from, *to)).collect()
    }
}

/// A run from its ends; runs of the set come from `BlockRange`s, so merged ones alone can be too long
/// for one, and those are never returned whole.
fn run(from: u64, to: u64) -> BlockRange {
    BlockRange::new(BlockNr(from), (to - from) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn behaves_like_a_set_of_blocks(steps in prop::collection::vec((any::<bool>(), 0u64..60, 1u32..12), 1..60)) {
            let mut runs = RangeSet::default();
            let mut model = BTreeSet::new();
            for (add, start, len) in steps {
                let range = BlockRange::new(BlockNr(start), len);
                let changed: Vec<u64> = if add { runs.insert(range) } else { runs.remove(range) }
                    .into_iter().flat_map(BlockRange::iter).map(|nr| nr.0).collect();
                let expected: Vec<u64> = range.iter().map(|nr| nr.0).filter(|nr| model.contains(nr) != add).collect();
                prop_assert_eq!(&changed, &expected);
                for nr in changed {
                    if add { model.insert(nr); } else { model.remove(&nr); }
                }
                prop_assert_eq!(runs.blocks(), model.len() as u64);
                let all = runs.inside(BlockRange::new(BlockNr(5), 40));
                let inside: Vec<u64> = all.iter().flat_map(|r| r.iter()).map(|nr| nr.0).collect();
                prop_assert_eq!(inside, model.range(5..45).copied().collect::<Vec<_>>());
                prop_assert!(all.windows(2).all(|w| w[0].end() < w[1].start), "runs touch: {:?}", all);
            }
        }
    }
}
