//! Which blocks are taken while a file system is laid out: runs, not bits, so that 16 TiB fit in
//! little memory.

use journalfs::units::{BlockNr, BlockRange};
use std::collections::BTreeMap;
use std::ops::Range;

/// The taken blocks of a file system.
#[derive(Default, Debug)]
pub(crate) struct Space {
    /// Start to end of each run; no two touch.
    taken: BTreeMap<u64, u64>,
    /// The block behind the last one.
    end: u64,
}

impl Space {
    /// A file system that ends before block `end`, all free.
    pub(crate) fn new(end: u64) -> Self {
        Self { taken: BTreeMap::new(), end }
    }

    /// Takes a run; blocks that are taken already stay so.
    pub(crate) fn take(&mut self, start: u64, len: u64) {
        let (mut start, mut end) = (start, start + len);
        if len == 0 {
            return;
        }
        while let Some((&from, &to)) = self.taken.range(..=end).next_back().filter(|(_, &to)| to >= start) {
            self.taken.remove(&from);
            start = start.min(from);
            end = end.max(to);
        }
        self.taken.insert(start, end);
    }

    /// The first free run of `len` blocks in `within`.
    pub(crate) fn find(&self, within: Range<u64>, len: u64) -> Option<u64> {
        let mut at = within.start;
        let limit = within.end.min(self.end);
        loop {
            if let Some((_, &end)) = self.taken.range(..=at).next_back().filter(|(_, &end)| end > at) {
                at = end;
            }
            let end = at.checked_add(len).filter(|end| *end <= limit)?;
            match self.taken.range(at..end).next() {
                Some((_, &next)) => at = next,
                None => return Some(at),
            }
        }
    }

    /// Takes `len` blocks: one run, from `goal` on or else before it; in pieces only if there is no such run.
    pub(crate) fn allocate(&mut self, goal: u64, len: u64) -> Option<Vec<BlockRange>> {
        if let Some(start) = self.find(goal..self.end, len).or_else(|| self.find(0..self.end, len)) {
            self.take(start, len);
            return Some(vec![BlockRange::new(BlockNr(start), u32::try_from(len).ok()?)]);
        }
        let mut pieces = Vec::new();
        let mut left = len;
        for within in [goal..self.end, 0..goal] {
            let mut at = within.start;
            while let Some(start) = self.find(at..within.end, 1).filter(|_| left > 0) {
                let free = self.taken.range(start..).next().map_or(self.end, |(&next, _)| next);
                let count = (free.min(within.end) - start).min(left);
                pieces.push(BlockRange::new(BlockNr(start), u32::try_from(count).ok()?));
                left -= count;
                at = start + count;
            }
        }
        if left > 0 {
            return None;
        }
        for piece in &pieces {
            self.take(piece.start.0, piece.len as u64);
        }
        Some(pieces)
    }

    /// The taken runs in `within`, cut to it.
    pub(crate) fn taken_in(&self, within: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let first = self.taken.range(..=within.start).next_back().map_or(within.start, |(&start, _)| start);
        self.taken
            .range(first..within.end.max(first))
            .map(move |(&start, &end)| start.max(within.start)..end.min(within.end))
            .filter(|run| !run.is_empty())
    }

    /// How many blocks of `within` are taken.
    pub(crate) fn count_in(&self, within: Range<u64>) -> u64 {
        self.taken_in(within).map(|run| run.end - run.start).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_merge_and_are_found_around() {
        let mut space = Space::new(100);
        space.take(10, 5);
        space.take(20, 5);
        space.take(15, 5);
        assert_eq!(space.taken, BTreeMap::from([(10, 25)]));
        space.take(12, 3);
        space.take(24, 2);
        assert_eq!(space.count_in(0..100), 16);
        assert_eq!(space.count_in(12..20), 8);
        assert!(space.taken_in(20..50).eq(std::iter::once(20..26)));
        assert_eq!(space.find(0..100, 10), Some(0));
        assert_eq!(space.find(5..100, 6), Some(26));
        assert_eq!(space.find(0..30, 11), None);
        assert_eq!(space.find(90..200, 11), None);
    }

    #[test]
    fn allocation_prefers_one_run() {
        let mut space = Space::new(100);
        space.take(40, 10);
        space.take(90, 1);
        assert_eq!(space.allocate(45, 40).unwrap(), [BlockRange::new(BlockNr(50), 40)]);
        assert_eq!(space.allocate(45, 40).unwrap(), [BlockRange::new(BlockNr(0), 40)]);
        assert_eq!(space.allocate(0, 10), None);
        assert_eq!(space.allocate(0, 9).unwrap(), [BlockRange::new(BlockNr(91), 9)]);
        assert_eq!(space.count_in(0..100), 100);
        assert_eq!(space.allocate(0, 1), None);
    }

    #[test]
    fn allocation_in_pieces_takes_exactly_what_is_wanted() {
        let mut space = Space::new(30);
        space.take(10, 1);
        space.take(20, 1);
        let pieces = space.allocate(12, 20).unwrap();
        assert_eq!(
            pieces,
            [(12, 8), (21, 9), (0, 3)].map(|(start, len)| BlockRange::new(BlockNr(start), len))
        );
    }
}
