//! Free space: which blocks and inodes a handle may take, and what of it is spoken for.
//! Called by the rest of `fs/`; calls the journal only as its [`Observer`].
//!
//! The bitmaps are the truth, seen through the handle. Memory adds what they can't say (rule J9):
//! - *pending*: freed in a transaction that is not durable yet, so not to be used again;
//! - *reserved*: free in the bitmap, but data is on its way there, in place, before its metadata;
//! - *held space*: a number of blocks promised to writes that have no place yet (delayed allocation).
//!
//! Invariant: memory changes only when a handle is published, when a transaction is durable, or outside of
//! handles; so a handle that fails or is run again has nothing to take back. The one exception is
//! [`Allocator::reserve`], which must be the last step of its handle.

mod blocks;
mod inodes;
mod named;
mod ranges;
mod search;
#[cfg(test)]
mod tests;
mod trim;
pub(crate) mod zones;

use super::groups;
use crate::cache::ReadBlock;
use crate::error::{Error, Result};
use crate::format::extent;
use crate::format::geometry::Geometry;
use crate::journal::{Effects, Observer};
use crate::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use crate::sync::Mutex;
use crate::units::{BlockRange, GroupNr, InodeNr};
use ranges::RangeSet;
use rustc_hash::FxHashSet;
use zones::Zones;

/// Blocks kept back from delayed allocation for the metadata that it may turn out to need, at most
/// (the kernel's `s_resv_clusters` is the smaller of this and 1/50 of the file system).
const MARGIN_BLOCKS_MAX: u64 = 4096;

/// What is known of a group without its bitmaps, as of the last published handle.
#[derive(Default)]
struct GroupCounts {
    free_blocks: AtomicU32,
    /// Pending, reserved or being trimmed: clear in the bitmap, but not to be taken.
    spoken_for: AtomicU32,
    free_inodes: AtomicU32,
    directories: AtomicU32,
    /// No run of free blocks is longer than this.
    longest_run: AtomicU32,
    /// A bitmap of the group was found corrupt (1: block bitmap, 2: inode bitmap).
    bad: AtomicU32,
}

impl GroupCounts {
    fn usable_blocks(&self) -> u32 {
        if self.bad.load(Ordering::Relaxed) & BAD_BLOCKS != 0 {
            return 0;
        }
        let free = self.free_blocks.load(Ordering::Relaxed);
        free.saturating_sub(self.spoken_for.load(Ordering::Relaxed))
    }

    fn usable_inodes(&self) -> u32 {
        if self.bad.load(Ordering::Relaxed) & BAD_INODES != 0 {
            return 0;
        }
        self.free_inodes.load(Ordering::Relaxed)
    }
}

const BAD_BLOCKS: u32 = 1;
const BAD_INODES: u32 = 2;

#[derive(Default)]
struct Overlay {
    pending: RangeSet,
    reserved: RangeSet,
    trimming: RangeSet,
    held_blocks: u64,
    held_inodes: FxHashSet<InodeNr>,
}

/// How much space there is, in blocks.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Space {
    /// Free, less what is promised to data not yet placed.
    pub free: u64,
    /// Of that, what programs without privilege may use.
    pub available: u64,
}

/// See the module's text.
pub struct Allocator {
    geometry: Geometry,
    zones: Zones,
    groups: Vec<GroupCounts>,
    free_blocks: AtomicU64,
    free_inodes: AtomicU64,
    directories: AtomicI64,
    /// `s_r_blocks_count`.
    root_blocks: AtomicU64,
    margin_blocks: u64,
    overlay: Mutex<Overlay>,
}

impl Allocator {
    /// Reads every group descriptor once; no bitmap. `root_blocks` is the superblock's `s_r_blocks_count`,
    /// `own` are blocks that belong to the file system itself beside what descriptors say (the journal's).
    pub fn open(
        r: &impl ReadBlock,
        geometry: &Geometry,
        root_blocks: u64,
        own: &[BlockRange],
    ) -> Result<Self> {
        let mut counts = Vec::with_capacity(geometry.group_count as usize);
        let mut totals = (0, 0, 0);
        let descriptors = (0..geometry.group_count).map(GroupNr).map(|group| {
            let descriptor = groups::read(r, geometry, group)?;
            counts.push(GroupCounts {
                free_blocks: descriptor.free_blocks_count.into(),
                free_inodes: descriptor.free_inodes_count.into(),
                directories: descriptor.used_dirs_count.into(),
                longest_run: u32::MAX.into(),
                ..GroupCounts::default()
            });
            totals.0 += u64::from(descriptor.free_blocks_count);
            totals.1 += u64::from(descriptor.free_inodes_count);
            totals.2 += i64::from(descriptor.used_dirs_count);
            Ok((group, descriptor))
        });
        let mut zones = Zones::new(geometry, descriptors)?;
        zones.add(own)?;
        Ok(Self {
            geometry: *geometry,
            zones,
            groups: counts,
            free_blocks: totals.0.into(),
            free_inodes: totals.1.into(),
            directories: totals.2.into(),
            root_blocks: root_blocks.into(),
            margin_blocks: (geometry.blocks_count / 50).min(MARGIN_BLOCKS_MAX),
            overlay: Mutex::default(),
        })
    }

    /// The file system's shape.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Blocks that are clear in the bitmaps: what the superblock counts as free.
    pub fn free_blocks(&self) -> u64 {
        self.free_blocks.load(Ordering::Relaxed)
    }

    /// Inodes that are clear in the bitmaps.
    pub fn free_inodes(&self) -> u64 {
        self.free_inodes.load(Ordering::Relaxed)
    }

    /// Blocks that a commit will give back (rule J9): with [`Error::NoSpace`] and some of these, commit and try again.
    pub fn pending_frees(&self) -> u64 {
        self.overlay.lock().pending.blocks()
    }

    /// Whether any block of `range` belongs to the file system itself, or lies outside of it: no file can have it.
    pub fn is_own(&self, range: BlockRange) -> bool {
        !self.geometry.holds_blocks(range.start, u64::from(range.len)) || self.zones.meets(range)
    }

    /// Changes the share that only privileged programs may use (`s_r_blocks_count`).
    pub fn set_root_blocks(&self, blocks: u64) {
        self.root_blocks.store(blocks, Ordering::Relaxed);
    }

    fn root_blocks(&self) -> u64 {
        self.root_blocks.load(Ordering::Relaxed)
    }

    /// What statfs shows.
    pub fn space(&self) -> Space {
        let free = self.unpromised(&self.overlay.lock());
        let kept = self.root_blocks() + self.margin_blocks;
        Space { free, available: free.saturating_sub(kept) }
    }

    /// Free blocks, uncommitted frees among them, that neither a reservation nor a hold has claimed.
    fn unpromised(&self, overlay: &Overlay) -> u64 {
        self.free_blocks().saturating_sub(overlay.reserved.blocks()).saturating_sub(overlay.held_blocks)
    }

    /// What maps of so many delayed blocks may need at most, beside what their holds say: half-full leaves of
    /// one-block extents, and a little for what is above them.
    fn kept_for_maps(&self, held_blocks: u64) -> u64 {
        if held_blocks == 0 {
            return 0;
        }
        let per_leaf = u64::from(extent::capacity(self.geometry.block_bytes as usize)) / 2;
        (held_blocks / per_leaf.max(1) + 8).min(self.margin_blocks)
    }

    /// Promises `blocks` to a write that gets its place later, metadata in the worst case included; ENOSPC
    /// belongs here, where a program still waits for the answer. `privileged` writers may use the root reserve.
    /// Give it back with [`release_space`](Self::release_space) when the blocks are placed, or not needed.
    pub fn hold_space(&self, blocks: u64, privileged: bool) -> Result<()> {
        let mut overlay = self.overlay.lock();
        let kept = if privileged { 0 } else { self.root_blocks() };
        let wanted = blocks.saturating_add(self.margin_blocks).saturating_add(kept);
        if self.unpromised(&overlay) < wanted {
            return Err(Error::NoSpace);
        }
        overlay.held_blocks += blocks;
        Ok(())
    }

    /// Ends a promise of [`hold_space`](Self::hold_space), in whole or in part.
    pub fn release_space(&self, blocks: u64) {
        let mut overlay = self.overlay.lock();
        overlay.held_blocks = overlay.held_blocks.saturating_sub(blocks);
    }

    /// Keeps an inode number from being used again while something still knows it.
    pub fn hold_inode(&self, nr: InodeNr) {
        self.overlay.lock().held_inodes.insert(nr);
    }

    /// Ends [`hold_inode`](Self::hold_inode).
    pub fn release_inode(&self, nr: InodeNr) {
        self.overlay.lock().held_inodes.remove(&nr);
    }

    fn group(&self, group: GroupNr) -> Option<&GroupCounts> {
        self.groups.get(group.0 as usize)
    }

    /// The parts of `range` in each group: its bits, and the part itself.
    fn by_group(
        &self,
        range: BlockRange,
    ) -> impl Iterator<Item = (GroupNr, std::ops::Range<u32>, BlockRange)> + '_ {
        let mut rest = range;
        std::iter::from_fn(move || {
            if rest.len == 0 {
                return None;
            }
            let group = self.geometry.group_of(rest.start);
            let from = self.geometry.index_in_group(rest.start);
            let len = rest.len.min(self.geometry.blocks_per_group.saturating_sub(from)).max(1);
            let part = BlockRange::new(rest.start, len);
            rest = BlockRange::new(part.end(), rest.len - len);
            Some((group, from..from + len, part))
        })
    }

    /// Adds to (or takes from) the counts of what is spoken for.
    fn count_spoken_for(&self, changed: &[BlockRange], more: bool) {
        for (group, bits, _) in changed.iter().flat_map(|range| self.by_group(*range)) {
            let Some(counts) = self.group(group) else { continue };
            if more {
                counts.spoken_for.fetch_add(bits.end - bits.start, Ordering::Relaxed);
            } else {
                counts.spoken_for.fetch_sub(bits.end - bits.start, Ordering::Relaxed);
            }
        }
    }

    /// Blocks that were spoken for are free for all: longer runs than were known may be among them. The caller holds the
    /// overlay's lock, as a search does while it makes the hint.
    fn usable_again(&self, usable: &[BlockRange]) {
        self.count_spoken_for(usable, false);
        for (group, _, _) in usable.iter().flat_map(|range| self.by_group(*range)) {
            if let Some(counts) = self.group(group) {
                counts.longest_run.store(u32::MAX, Ordering::Relaxed);
            }
        }
    }

    fn published_blocks(&self, ranges: &[BlockRange], freed: bool) {
        let mut blocks = 0;
        for (group, bits, part) in ranges.iter().flat_map(|range| self.by_group(*range)) {
            let Some(counts) = self.group(group) else { continue };
            blocks += u64::from(part.len);
            if freed {
                counts.free_blocks.fetch_add(bits.end - bits.start, Ordering::Relaxed);
            } else {
                counts.free_blocks.fetch_sub(bits.end - bits.start, Ordering::Relaxed);
            }
        }
        if freed {
            self.free_blocks.fetch_add(blocks, Ordering::Relaxed);
        } else {
            self.free_blocks.fetch_sub(blocks, Ordering::Relaxed);
        }
    }
}

impl Observer for Allocator {
    fn published(&self, effects: &Effects) {
        let mut overlay = self.overlay.lock();
        for range in &effects.allocated {
            let claimed = overlay.reserved.remove(*range);
            self.count_spoken_for(&claimed, false);
        }
        for range in &effects.freed {
            let pending = overlay.pending.insert(*range);
            self.count_spoken_for(&pending, true);
        }
        self.published_blocks(&effects.freed, true);
        self.published_blocks(&effects.allocated, false);
        for (group, inodes, directories) in &effects.inodes {
            let Some(counts) = self.group(*group) else { continue };
            // Counts go down by what was allocated; two's complement does the signs.
            counts.free_inodes.fetch_sub(*inodes as u32, Ordering::Relaxed);
            counts.directories.fetch_add(*directories as u32, Ordering::Relaxed);
            self.free_inodes.fetch_sub(i64::from(*inodes) as u64, Ordering::Relaxed);
            self.directories.fetch_add(i64::from(*directories), Ordering::Relaxed);
        }
    }

    fn durable(&self, freed: &[BlockRange]) {
        let mut overlay = self.overlay.lock();
        for range in freed {
            let usable = overlay.pending.remove(*range);
            self.usable_again(&usable);
        }
    }
}
