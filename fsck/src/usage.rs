//! Which blocks are in use, as far as the check has seen: a bitmap per group, made when its first block is used.

use journalfs::format::bitmap;
use journalfs::format::geometry::Geometry;
use journalfs::format::group::GroupDescriptor;
use journalfs::units::{BlockNr, BlockRange, GroupNr};
use std::collections::HashMap;

/// The blocks in use.
pub(crate) struct Usage {
    geometry: Geometry,
    /// Bitmaps and inode tables of all groups, by place; the groups' starts are computed.
    tables: Vec<BlockRange>,
    groups: HashMap<GroupNr, Box<[u8]>>,
}

impl Usage {
    /// Only the groups' own metadata is in use.
    pub(crate) fn new(geometry: &Geometry, descriptors: &[Option<GroupDescriptor>]) -> Self {
        let mut tables = Vec::with_capacity(descriptors.len() * 3);
        for descriptor in descriptors.iter().flatten() {
            tables.push(BlockRange::new(descriptor.block_bitmap, 1));
            tables.push(BlockRange::new(descriptor.inode_bitmap, 1));
            tables.push(BlockRange::new(descriptor.inode_table, geometry.inode_table_blocks()));
        }
        tables.sort_unstable();
        Self { geometry: *geometry, tables, groups: HashMap::new() }
    }

    /// Pairs of groups' bitmaps and inode tables that share blocks.
    pub(crate) fn overlapping_tables(&self) -> impl Iterator<Item = BlockNr> + '_ {
        self.tables.windows(2).filter_map(|pair| match pair {
            [a, b] if a.end() > b.start => Some(b.start),
            _ => None,
        })
    }

    /// Whether any block of the group is used by an inode.
    pub(crate) fn is_touched(&self, group: GroupNr) -> bool {
        self.groups.contains_key(&group)
    }

    /// The group's bitmap as it should be.
    pub(crate) fn bitmap(&self, group: GroupNr) -> Box<[u8]> {
        self.groups.get(&group).cloned().unwrap_or_else(|| self.own_metadata(group))
    }

    /// The group's bitmap while no inode uses its blocks.
    fn own_metadata(&self, group: GroupNr) -> Box<[u8]> {
        let geometry = &self.geometry;
        let mut bits = vec![0; (geometry.blocks_per_group as usize).div_ceil(8)].into_boxed_slice();
        let first = geometry.group_first_block(group);
        let blocks = geometry.blocks_in_group(group);
        // A boot block that is counted, with 1 KiB blocks and bigalloc only, is not told apart here.
        bitmap::set_range(&mut bits, 0..geometry.base_meta_blocks(group).min(blocks));
        let end = first.plus(blocks as u64);
        let from = self.tables.partition_point(|table| table.start < first);
        // A table of the group before may reach into this one.
        for table in self.tables.iter().skip(from.saturating_sub(1)).take_while(|table| table.start < end) {
            let start = table.start.0.max(first.0);
            let stop = table.end().0.min(end.0);
            if start < stop {
                bitmap::set_range(&mut bits, (start - first.0) as u32..(stop - first.0) as u32);
            }
        }
        bits
    }

    /// Marks blocks as used. Returns how many of them were used already, and the first such.
    pub(crate) fn mark(&mut self, range: BlockRange) -> Option<(BlockNr, u32)> {
        let mut clash: Option<(BlockNr, u32)> = None;
        for nr in range.iter() {
            let group = self.geometry.group_of(nr);
            let index = self.geometry.index_in_group(nr);
            if !self.groups.contains_key(&group) {
                let bits = self.own_metadata(group);
                self.groups.insert(group, bits);
            }
            let Some(bits) = self.groups.get_mut(&group) else { continue };
            if bitmap::test(bits, index) {
                clash = Some(clash.map_or((nr, 1), |(first, count)| (first, count + 1)));
            } else {
                bitmap::set(bits, index);
            }
        }
        clash
    }
}
