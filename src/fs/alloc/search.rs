//! Looking for runs of clear bits in a bitmap.

use crate::format::bitmap;
use std::ops::Range;

/// How many bits from `range`'s start on are clear.
pub(crate) fn clear_from(bits: &[u8], range: Range<u32>) -> u32 {
    let start = range.start;
    let end = range.end.max(start);
    bitmap::find_set(bits, range).unwrap_or(end) - start
}

/// What a search over part of a bitmap found.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Found {
    /// Where the best run starts.
    pub(crate) at: u32,
    /// Its length; 0 when no bit is clear.
    pub(crate) len: u32,
}

/// The first run of at least `want` clear bits in `range`, or else the longest run there.
pub(crate) fn best_run(bits: &[u8], range: Range<u32>, want: u32) -> Found {
    let mut best = Found::default();
    let mut rest = range;
    while let Some(run) = bitmap::find_clear_run(bits, rest.clone(), u32::MAX) {
        let len = run.end - run.start;
        if len > best.len {
            best = Found { at: run.start, len };
        }
        if len >= want {
            break;
        }
        rest.start = run.end;
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_long_enough_run_wins_else_the_longest() {
        let mut bits = vec![0xff; 128];
        for run in [3..5, 60..70, 200..220, 900..1024] {
            bitmap::clear_range(&mut bits, run);
        }
        assert_eq!(best_run(&bits, 0..1024, 2), Found { at: 3, len: 2 });
        assert_eq!(best_run(&bits, 0..1024, 10), Found { at: 60, len: 10 });
        assert_eq!(best_run(&bits, 65..1024, 10), Found { at: 200, len: 20 });
        assert_eq!(best_run(&bits, 0..1024, 500), Found { at: 900, len: 124 });
        assert_eq!(best_run(&bits, 220..900, 1), Found::default());
        assert_eq!(clear_from(&bits, 62..1024), 8);
        assert_eq!(clear_from(&bits, 1020..1024), 4);
        assert_eq!(clear_from(&bits, 5..1024), 0);
    }
}
