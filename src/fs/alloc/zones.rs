//! Where the file system's own blocks are: superblock and descriptor copies, bitmaps, inode tables.
//! No file's block may be there, whatever a bitmap or an extent says.

use crate::error::{Error, Place, Result};
use crate::format::geometry::Geometry;
use crate::format::group::GroupDescriptor;
use crate::units::{BlockNr, BlockRange, GroupNr};

/// Sorted, disjoint runs of the file system's own blocks.
#[derive(Default)]
pub(crate) struct Zones(Vec<BlockRange>);

impl Zones {
    /// From every group's descriptor. Refuses what lies outside the file system and what overlaps.
    pub(crate) fn new(
        geometry: &Geometry,
        descriptors: impl Iterator<Item = Result<(GroupNr, GroupDescriptor)>>,
    ) -> Result<Self> {
        let mut zones = Vec::new();
        for item in descriptors {
            let (group, descriptor) = item?;
            let own = [
                BlockRange::new(geometry.group_first_block(group), geometry.base_meta_blocks(group)),
                BlockRange::new(descriptor.block_bitmap, 1),
                BlockRange::new(descriptor.inode_bitmap, 1),
                BlockRange::new(descriptor.inode_table, geometry.inode_table_blocks()),
            ];
            for zone in own {
                if !geometry.holds_blocks(zone.start, u64::from(zone.len)) {
                    let why = format!("{zone:?} lies outside the file system");
                    return Err(Error::corrupt("group descriptor", Place::Group(group), why));
                }
            }
            zones.extend(own.into_iter().filter(|zone| zone.len > 0));
        }
        zones.sort_unstable();
        Self::merge(zones)
    }

    fn merge(sorted: Vec<BlockRange>) -> Result<Self> {
        let mut merged: Vec<BlockRange> = Vec::new();
        for zone in sorted {
            match merged.last_mut() {
                Some(last) if last.end() > zone.start => {
                    let why = format!("two structures share {}", zone.start);
                    return Err(Error::corrupt("group descriptors", Place::Block(zone.start), why));
                }
                Some(last) if last.end() == zone.start => match last.len.checked_add(zone.len) {
                    Some(len) => last.len = len,
                    None => merged.push(zone),
                },
                _ => merged.push(zone),
            }
        }
        merged.shrink_to_fit();
        Ok(Self(merged))
    }

    /// Adds blocks that only the file system itself may change (the journal's).
    pub(crate) fn add(&mut self, ranges: &[BlockRange]) -> Result<()> {
        let mut zones = std::mem::take(&mut self.0);
        zones.extend(ranges);
        zones.sort_unstable();
        *self = Self::merge(zones)?;
        Ok(())
    }

    /// The parts of zones among `blocks` blocks from `first`.
    pub(crate) fn inside(&self, first: BlockNr, blocks: u32) -> impl Iterator<Item = BlockRange> + '_ {
        let end = first.plus(u64::from(blocks));
        let from = self.0.partition_point(move |zone| zone.end() <= first);
        self.0.iter().skip(from).take_while(move |zone| zone.start < end).map(move |zone| {
            let (start, end) = (zone.start.max(first), zone.end().min(end));
            BlockRange::new(start, (end.0 - start.0) as u32)
        })
    }

    /// Whether any block of `range` is in a zone.
    pub(crate) fn meets(&self, range: BlockRange) -> bool {
        self.inside(range.start, range.len).next().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zone(start: u64, len: u32) -> BlockRange {
        BlockRange::new(BlockNr(start), len)
    }

    #[test]
    fn zones_are_found_by_their_parts_and_may_not_overlap() {
        let mut zones = Zones::merge(vec![zone(0, 10), zone(10, 5), zone(100, 1)]).unwrap();
        assert_eq!(zones.0.len(), 2);
        assert_eq!(zones.inside(BlockNr(12), 89).collect::<Vec<_>>(), [zone(12, 3), zone(100, 1)]);
        assert!(!zones.meets(zone(15, 85)) && zones.meets(zone(99, 2)));
        zones.add(&[zone(50, 2)]).unwrap();
        assert!(zones.meets(zone(51, 1)));
        assert!(zones.add(&[zone(51, 1)]).is_err());
    }
}
