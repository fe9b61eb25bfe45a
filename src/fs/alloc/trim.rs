//! Telling the device what is free, without handing it to a file meanwhile.

use super::search::clear_from;
use super::Allocator;
use crate::cache::Handle;
use crate::error::Result;
use crate::format::bitmap;
use crate::units::{BlockNr, BlockRange};

/// Most blocks set aside at once.
const TRIM_BLOCKS_MAX: u32 = 32768;

impl Allocator {
    /// The next free run in `range` of at least `least` blocks, set aside so that nothing is allocated there: discard it,
    /// then call [`trimmed`](Self::trimmed), and go on behind it. Pending frees and reservations are left out (rule J9).
    /// Must be the last step of its handle, as [`reserve`](Self::reserve). `None`: nothing more in `range`.
    /// Looks at one group per call: an empty answer for a group is a run of length 0 at its end.
    pub fn trim_next(&self, h: &mut Handle<'_>, range: BlockRange, least: u32) -> Result<Option<BlockRange>> {
        let start = range.start.max(self.geometry.first_data_block);
        let end = range.end().0.min(self.geometry.blocks_count);
        let rest = BlockRange::new(start, end.saturating_sub(start.0) as u32);
        let Some((group, bits, part)) = self.by_group(rest).next() else { return Ok(None) };
        let nothing = Some(BlockRange::new(part.end(), 0));
        // A small file system keeps half of its space for those who write meanwhile.
        let most = (self.space().free / 2).min(u64::from(TRIM_BLOCKS_MAX)) as u32;
        if self.group(group).is_none_or(|counts| counts.usable_blocks() < least.max(1)) || most == 0 {
            return Ok(nothing);
        }
        let found = self.with_usable(h, group, |usable, _| {
            let mut at = bits.start;
            while let Some(start) = bitmap::find_clear(usable, at..bits.end) {
                let len = clear_from(usable, start..bits.end);
                if len >= least {
                    return Some((start, len.min(most)));
                }
                at = start + len;
            }
            None
        })?;
        let Some((start, len)) = found else { return Ok(nothing) };
        let run = BlockRange::new(BlockNr(self.geometry.group_first_block(group).0 + u64::from(start)), len);
        let mut overlay = self.overlay.lock();
        let taken = overlay.trimming.insert(run);
        self.count_spoken_for(&taken, true);
        Ok(Some(run))
    }

    /// Gives a run of [`trim_next`](Self::trim_next) back.
    pub fn trimmed(&self, run: BlockRange) {
        let mut overlay = self.overlay.lock();
        let usable = overlay.trimming.remove(run);
        self.usable_again(&usable);
    }
}
