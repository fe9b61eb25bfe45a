//! Taking and giving back inodes. Directories are spread so that each has room around it for its files
//! (Orlov); files go beside their directory.

use super::{Allocator, BAD_INODES};
use crate::cache::Handle;
use crate::error::{Error, Place, Result};
use crate::format::bitmap;
use crate::format::group::{GroupDescriptor, GroupFlags};
use crate::fs::groups;
use crate::sync::atomic::Ordering;
use crate::units::{GroupNr, InodeNr};

/// What a set of groups has, for comparing sets.
#[derive(Default, Clone, Copy)]
struct Sum {
    inodes: u64,
    blocks: u64,
    directories: u64,
}

impl Allocator {
    /// Takes a free inode number, marks it in the bitmap and makes the part of the inode table it lies in usable; the
    /// caller writes the record. Directories right under the root are spread over the whole
    /// file system, other directories stay near their parent while it has room, files in their parent's group.
    pub fn allocate_inode(&self, h: &mut Handle<'_>, parent: InodeNr, is_dir: bool) -> Result<InodeNr> {
        let (home, _) = self.geometry.group_of_inode(parent);
        let first_choice = match (is_dir, parent) {
            (true, InodeNr::ROOT) => self.spread(home),
            (true, _) => self.near(home),
            (false, _) => self.beside(home),
        };
        let mut group = first_choice;
        for _ in 0..self.geometry.group_count {
            if self.group(group).is_some_and(|counts| counts.usable_inodes() > 0) {
                if let Some(nr) = self.allocate_inode_in(h, group, is_dir)? {
                    return Ok(nr);
                }
            }
            group = GroupNr((group.0 + 1) % self.geometry.group_count);
        }
        Err(Error::NoSpace)
    }

    /// Gives an inode number back; the caller has cleared the record.
    pub fn free_inode(&self, h: &mut Handle<'_>, nr: InodeNr, is_dir: bool) -> Result<()> {
        if !self.geometry.holds_inode(nr) || nr.0 < self.geometry.first_inode {
            return Err(Error::corrupt("inode number", Place::Inode(nr), "not one that a file can have"));
        }
        let (group, index) = self.geometry.group_of_inode(nr);
        groups::modify_inode_bitmap(h, &self.geometry, group, |bits, descriptor| {
            if !bitmap::test(bits, index) {
                return Err(Error::corrupt("inode bitmap", Place::Inode(nr), "it is free already"));
            }
            bitmap::clear(bits, index);
            descriptor.free_inodes_count += 1;
            if is_dir {
                let Some(directories) = descriptor.used_dirs_count.checked_sub(1) else {
                    let why = "it counts no directory, but one was removed";
                    return Err(Error::corrupt("group descriptor", Place::Group(group), why));
                };
                descriptor.used_dirs_count = directories;
            }
            Ok(())
        })?;
        h.note_inodes(group, -1, -i32::from(is_dir));
        Ok(())
    }

    fn allocate_inode_in(&self, h: &mut Handle<'_>, group: GroupNr, is_dir: bool) -> Result<Option<InodeNr>> {
        let descriptor = groups::read(h, &self.geometry, group)?;
        if descriptor.free_inodes_count == 0 {
            return Ok(None);
        }
        let bits = groups::inode_bitmap(h, &self.geometry, group, &descriptor).inspect_err(|error| {
            if let (Error::Corrupt { .. }, Some(counts)) = (error, self.group(group)) {
                counts.bad.fetch_or(BAD_INODES, Ordering::Relaxed);
            }
        })?;
        let Some(index) = self.free_index(&bits, group) else { return Ok(None) };
        self.take_inode(h, group, &descriptor, index, is_dir)?;
        Ok(Some(self.geometry.inode_at(group, index)))
    }

    /// Marks a free inode; its part of the table is made usable first.
    pub(super) fn take_inode(
        &self,
        h: &mut Handle<'_>,
        group: GroupNr,
        descriptor: &GroupDescriptor,
        index: u32,
        is_dir: bool,
    ) -> Result<()> {
        self.prepare_table(h, descriptor, index)?;
        groups::modify_inode_bitmap(h, &self.geometry, group, |bits, descriptor| {
            bitmap::set(bits, index);
            descriptor.free_inodes_count = descriptor.free_inodes_count.saturating_sub(1);
            descriptor.used_dirs_count += u32::from(is_dir);
            if self.geometry.has_lazy_groups() {
                let behind = self.geometry.inodes_per_group.saturating_sub(index + 1);
                descriptor.itable_unused = descriptor.itable_unused.min(behind);
            }
            Ok(())
        })?;
        if descriptor.flags.contains(GroupFlags::BLOCK_UNINIT) && self.geometry.has_lazy_groups() {
            // As the kernel does: a group in use has both of its bitmaps on the disk.
            groups::modify_block_bitmap(h, &self.geometry, &self.zones, group, |_, _| Ok(()))?;
        }
        h.note_inodes(group, 1, i32::from(is_dir));
        Ok(())
    }

    /// The first inode of the group that is free and that nothing still knows.
    fn free_index(&self, bits: &[u8], group: GroupNr) -> Option<u32> {
        let reserved = self.geometry.first_inode.saturating_sub(1);
        let mut from = if group.0 == 0 { reserved } else { 0 };
        let overlay = self.overlay.lock();
        loop {
            let index = bitmap::find_clear(bits, from..self.geometry.inodes_per_group)?;
            if !overlay.held_inodes.contains(&self.geometry.inode_at(group, index)) {
                return Some(index);
            }
            from = index + 1;
        }
    }

    /// Zeroes the table's blocks up to `index` that have never been in use: mke2fs may have left anything there.
    fn prepare_table(&self, h: &mut Handle<'_>, descriptor: &GroupDescriptor, index: u32) -> Result<()> {
        if !self.geometry.has_lazy_groups() || descriptor.flags.contains(GroupFlags::INODE_ZEROED) {
            return Ok(());
        }
        let per_block = self.geometry.inodes_per_block();
        // With INODE_UNINIT none is in use, whatever itable_unused says.
        let used = if descriptor.flags.contains(GroupFlags::INODE_UNINIT) {
            0
        } else {
            self.geometry.inodes_per_group.saturating_sub(descriptor.itable_unused)
        };
        for block in used.div_ceil(per_block)..=index / per_block {
            h.create(descriptor.inode_table.plus(u64::from(block)))?;
        }
        Ok(())
    }

    /// The group for a directory under the root: in the flex group with the fewest directories among those that have
    /// not much less than the average of free inodes and blocks.
    fn spread(&self, home: GroupNr) -> GroupNr {
        let flexes = self.flex_count();
        let least_inodes = (self.free_inodes() / flexes * 3 / 4).max(1);
        let least_blocks = self.free_blocks() / flexes * 3 / 4;
        // Equal ones are taken in turn: the start moves with the number of directories there are.
        let turn = self.directories.load(Ordering::Relaxed).unsigned_abs() % flexes;
        let candidates = (0..flexes).map(|i| (turn + i) % flexes);
        let best = candidates
            .map(|flex| (flex, self.sum(flex)))
            .filter(|(_, sum)| sum.inodes >= least_inodes && sum.blocks >= least_blocks)
            .min_by_key(|(_, sum)| sum.directories);
        match best {
            Some((flex, _)) => self.first_in(flex).unwrap_or(home),
            None => self.near(home),
        }
    }

    /// The group for any other directory: in the parent's flex group or the next one that is not crowded.
    fn near(&self, home: GroupNr) -> GroupNr {
        let flexes = self.flex_count();
        let per_flex = u64::from(self.geometry.groups_per_flex());
        let inodes_per_flex = u64::from(self.geometry.inodes_per_group) * per_flex;
        let least_inodes = (self.free_inodes() / flexes).saturating_sub(inodes_per_flex / 4).max(1);
        let blocks_per_flex = u64::from(self.geometry.blocks_per_group) * per_flex;
        let least_blocks = (self.free_blocks() / flexes).saturating_sub(blocks_per_flex / 4);
        let directories = self.directories.load(Ordering::Relaxed).unsigned_abs();
        let most_directories = directories / flexes + inodes_per_flex / 16;
        let own = u64::from(home.0) / per_flex;
        (0..flexes)
            .map(|i| (own + i) % flexes)
            .find(|flex| {
                let sum = self.sum(*flex);
                sum.inodes >= least_inodes
                    && sum.blocks >= least_blocks
                    && sum.directories <= most_directories
            })
            .and_then(|flex| self.first_in(flex))
            .unwrap_or(home)
    }

    /// The group for a file: its directory's, else one of that flex group, else the nearest by doubling steps that has
    /// inodes and blocks.
    fn beside(&self, home: GroupNr) -> GroupNr {
        let both = |group: GroupNr| {
            self.group(group).is_some_and(|counts| counts.usable_inodes() > 0 && counts.usable_blocks() > 0)
        };
        if both(home) {
            return home;
        }
        let per_flex = self.geometry.groups_per_flex();
        if per_flex > 1 {
            if let Some(group) = self.first_in(u64::from(home.0 / per_flex)) {
                return group;
            }
        }
        let count = u64::from(self.geometry.group_count);
        let mut step = 1;
        let mut group = u64::from(home.0);
        while step < count {
            group = (group + step) % count;
            if both(GroupNr(group as u32)) {
                return GroupNr(group as u32);
            }
            step *= 2;
        }
        home
    }

    fn flex_count(&self) -> u64 {
        u64::from(self.geometry.group_count.div_ceil(self.geometry.groups_per_flex())).max(1)
    }

    fn groups_of_flex(&self, flex: u64) -> impl Iterator<Item = GroupNr> {
        let per_flex = u64::from(self.geometry.groups_per_flex());
        let end = (flex + 1).saturating_mul(per_flex).min(u64::from(self.geometry.group_count));
        (flex.saturating_mul(per_flex)..end).map(|group| GroupNr(group as u32))
    }

    fn sum(&self, flex: u64) -> Sum {
        let mut sum = Sum::default();
        for counts in self.groups_of_flex(flex).filter_map(|group| self.group(group)) {
            sum.inodes += u64::from(counts.usable_inodes());
            sum.blocks += u64::from(counts.usable_blocks());
            sum.directories += u64::from(counts.directories.load(Ordering::Relaxed));
        }
        sum
    }

    /// The first group of a flex group that has a free inode: tables of a flex group lie side by side.
    fn first_in(&self, flex: u64) -> Option<GroupNr> {
        self.groups_of_flex(flex)
            .find(|group| self.group(*group).is_some_and(|counts| counts.usable_inodes() > 0))
    }
}
