//! Taking and giving back blocks.

use super::search::{best_run, clear_from, Found};
use super::{Allocator, BAD_BLOCKS};
use crate::cache::Handle;
use crate::error::{Error, Place, Result};
use crate::fault::{injected, Fault};
use crate::format::bitmap;
use crate::fs::groups;
use crate::sync::atomic::Ordering;
use crate::units::{BlockNr, BlockRange, GroupNr};
use std::ops::Range;

/// Bitmaps searched for a run of the wanted length before the longest run seen is good enough.
const SEARCH_GROUPS_MAX: u32 = 16;

impl Allocator {
    /// Takes up to `want` blocks in one run, as near behind `goal` as a run of that length is found, and
    /// marks them in the bitmap. Leaves alone what [`hold_space`](Self::hold_space) has promised, what mapping that
    /// may need where free space is in pieces, and the superuser's share if the handle [spares](Handle::spare_reserve) it.
    pub fn allocate(&self, h: &mut Handle<'_>, goal: BlockNr, want: u32) -> Result<BlockRange> {
        let unpromised = {
            let overlay = self.overlay.lock();
            self.unpromised(&overlay).saturating_sub(self.kept_for_maps(overlay.held_blocks))
        };
        let kept = if h.spares_reserve() { self.root_blocks() } else { 0 };
        // What this handle has taken so far is counted when it is published.
        let own: u64 = h.effects().allocated.iter().map(|range| u64::from(range.len)).sum();
        let unpromised = unpromised.saturating_sub(kept).saturating_sub(own);
        if unpromised == 0 {
            return Err(Error::NoSpace);
        }
        self.allocate_held(h, goal, u64::from(want).min(unpromised) as u32)
    }

    /// As [`allocate`](Self::allocate), for blocks (or the metadata they need) that the caller has been promised.
    pub fn allocate_held(&self, h: &mut Handle<'_>, goal: BlockNr, want: u32) -> Result<BlockRange> {
        let range = self.find(h, goal, want)?;
        self.mark(h, range)?;
        Ok(range)
    }

    /// Takes up to `want` blocks in memory only: data can be written there in place, and a crash leaves garbage in free
    /// blocks. Must be the last step of its handle, which needs no credits: a handle that ran again would reserve twice.
    /// Ends with [`claim`](Self::claim) or [`unreserve`](Self::unreserve).
    pub fn reserve(&self, h: &mut Handle<'_>, goal: BlockNr, want: u32) -> Result<BlockRange> {
        let range = self.find(h, goal, want)?;
        let mut overlay = self.overlay.lock();
        let reserved = overlay.reserved.insert(range);
        self.count_spoken_for(&reserved, true);
        Ok(range)
    }

    /// Marks reserved blocks in the bitmap; the reservation ends when the handle is published.
    pub fn claim(&self, h: &mut Handle<'_>, range: BlockRange) -> Result<()> {
        self.mark(h, range)
    }

    /// Gives up a reservation whose blocks nothing refers to.
    pub fn unreserve(&self, range: BlockRange) {
        let mut overlay = self.overlay.lock();
        let usable = overlay.reserved.remove(range);
        self.usable_again(&usable);
    }

    /// Clears the blocks' bits, and has the journal forget what it logged of them (rule J7): no free goes without.
    /// They come back when this transaction is durable (rule J9).
    pub fn free(&self, h: &mut Handle<'_>, range: BlockRange) -> Result<()> {
        if self.is_own(range) {
            let why = format!("{} blocks of the file system itself were to be freed", range.len);
            return Err(Error::corrupt("block pointer", Place::Block(range.start), why));
        }
        for (group, bits, part) in self.by_group(range) {
            groups::modify_block_bitmap(h, &self.geometry, &self.zones, group, |bitmap, descriptor| {
                if !bitmap::is_set(bitmap, bits.clone()) {
                    let why = format!("some of {} blocks from here are free already", part.len);
                    return Err(Error::corrupt("block bitmap", Place::Block(part.start), why));
                }
                bitmap::clear_range(bitmap, bits);
                descriptor.free_blocks_count += part.len;
                Ok(())
            })?;
        }
        h.note_freed(range);
        h.forget(range);
        Ok(())
    }

    fn mark(&self, h: &mut Handle<'_>, range: BlockRange) -> Result<()> {
        for (group, bits, part) in self.by_group(range) {
            groups::modify_block_bitmap(h, &self.geometry, &self.zones, group, |bitmap, descriptor| {
                if !bitmap::is_clear(bitmap, bits.clone()) {
                    let why = format!("some of {} blocks from here are in use already", part.len);
                    return Err(Error::corrupt("block bitmap", Place::Block(part.start), why));
                }
                bitmap::set_range(bitmap, bits);
                let Some(free) = descriptor.free_blocks_count.checked_sub(part.len) else {
                    let why =
                        format!("{} free blocks, but its bitmap has more", descriptor.free_blocks_count);
                    return Err(Error::corrupt("group descriptor", Place::Group(group), why));
                };
                descriptor.free_blocks_count = free;
                Ok(())
            })?;
        }
        h.note_allocated(range);
        Ok(())
    }

    /// The best free run near `goal`: at the goal, else the first run of `want` blocks from the goal's group on, else
    /// the longest run in the groups looked at, else any.
    fn find(&self, h: &Handle<'_>, goal: BlockNr, want: u32) -> Result<BlockRange> {
        let want = want.max(1);
        let goal = if self.geometry.holds_block(goal) { goal } else { self.geometry.first_data_block };
        let home = self.geometry.group_of(goal);
        let mut best: Option<(GroupNr, Found)> = None;
        let mut searched = 0;
        for group in self.groups_from(home) {
            if searched >= SEARCH_GROUPS_MAX {
                break;
            }
            let Some(counts) = self.group(group) else { continue };
            let longest = counts.longest_run.load(Ordering::Relaxed);
            let is_home = group == home && counts.usable_blocks() > 0;
            if !is_home && counts.usable_blocks().min(longest) < want {
                continue;
            }
            searched += 1;
            let from = (group == home).then(|| self.geometry.index_in_group(goal));
            let found = self.search_group(h, group, from, want)?;
            if found.len >= want || (found.len > 0 && Some(found.at) == from) {
                return Ok(self.range(group, found, want));
            }
            if found.len > best.map_or(0, |(_, found)| found.len) {
                best = Some((group, found));
            }
        }
        match best {
            Some((group, found)) => Ok(self.range(group, found, want)),
            None => self.find_any(h, home, want),
        }
    }

    /// The longest free run in the first group that has one; what `longest_run` says is not relied on.
    fn find_any(&self, h: &Handle<'_>, home: GroupNr, want: u32) -> Result<BlockRange> {
        for group in self.groups_from(home) {
            if self.group(group).is_some_and(|counts| counts.usable_blocks() > 0) {
                let found = self.search_group(h, group, None, want)?;
                if found.len > 0 {
                    return Ok(self.range(group, found, want));
                }
            }
        }
        Err(Error::NoSpace)
    }

    fn groups_from(&self, home: GroupNr) -> impl Iterator<Item = GroupNr> {
        let count = self.geometry.group_count;
        (0..count).map(move |i| GroupNr(((u64::from(home.0) + u64::from(i)) % u64::from(count)) as u32))
    }

    fn range(&self, group: GroupNr, found: Found, want: u32) -> BlockRange {
        let start = self.geometry.group_first_block(group).plus(u64::from(found.at));
        BlockRange::new(start, found.len.min(want))
    }

    /// The run at `goal` if it will do (what lies behind a file's last block need not be long to be worth
    /// taking), else the first run of `want` behind it, then before it, else the longest.
    fn search_group(&self, h: &Handle<'_>, group: GroupNr, goal: Option<u32>, want: u32) -> Result<Found> {
        let blocks = self.geometry.blocks_in_group(group);
        self.with_usable(h, group, |bits, own_view| {
            let from = goal.unwrap_or(0);
            let at_goal = clear_from(bits, from..blocks);
            if goal.is_some() && at_goal > 0 && at_goal >= want / 4 {
                return Found { at: from, len: at_goal };
            }
            let behind = best_run(bits, from..blocks, want);
            if behind.len >= want {
                return behind;
            }
            // From the group's start across `from`, so that a run around `from` is seen whole.
            let whole = best_run(bits, 0..blocks, want);
            if whole.len < want && !own_view {
                if let Some(counts) = self.group(group) {
                    counts.longest_run.store(whole.len, Ordering::Relaxed);
                }
            }
            whole
        })
    }

    /// Calls `f` on the group's bitmap with everything set that this handle may not take. `own_view` says that the handle
    /// itself has changed something in the group, so that what is seen is not yet the published state.
    pub(super) fn with_usable<R>(
        &self,
        h: &Handle<'_>,
        group: GroupNr,
        f: impl FnOnce(&[u8], bool) -> R,
    ) -> Result<R> {
        let noting = |error: &Error| {
            if let (Error::Corrupt { .. }, Some(counts)) = (error, self.group(group)) {
                counts.bad.fetch_or(BAD_BLOCKS, Ordering::Relaxed);
            }
        };
        let descriptor = groups::read(h, &self.geometry, group).inspect_err(noting)?;
        let bitmap =
            groups::block_bitmap(h, &self.geometry, &self.zones, group, &descriptor).inspect_err(noting)?;
        let first = self.geometry.group_first_block(group);
        let whole = BlockRange::new(first, self.geometry.blocks_in_group(group));
        let mut taken: Vec<BlockRange> = Vec::new();
        let meets = |range: &&BlockRange| range.start < whole.end() && range.end() > whole.start;
        taken.extend(h.effects().freed.iter().filter(meets));
        let own_view = !taken.is_empty() || h.effects().allocated.iter().any(|range| meets(&range));
        // The lock is held until the search is over: a hint stored from it must not overwrite a newer one.
        let overlay = self.overlay.lock();
        for set in [&overlay.pending, &overlay.reserved, &overlay.trimming] {
            taken.extend(set.inside(whole));
        }
        if taken.is_empty() || injected(Fault::ReusedBeforeDurable) {
            return Ok(f(&bitmap, own_view));
        }
        let mut bits = bitmap.to_vec();
        for range in taken {
            bitmap::set_range(&mut bits, clip(range, whole));
        }
        Ok(f(&bits, own_view))
    }
}

/// The bits of `range` in the group that is `whole`.
fn clip(range: BlockRange, whole: BlockRange) -> Range<u32> {
    let (start, end) = (range.start.max(whole.start), range.end().min(whole.end()));
    let bit = |nr: BlockNr| nr.0.saturating_sub(whole.start.0) as u32;
    bit(start)..bit(end).max(bit(start))
}
