//! The places of bitmaps and inode tables: at each group's start, or with flex_bg together at the
//! start of each flex group.

use crate::space::Space;
use journalfs::format::{Geometry, GroupDescriptor};
use journalfs::units::{BlockNr, GroupNr};
use journalfs::{Error, Result};
use std::ops::Range;

/// Takes the superblock copies, descriptors and reserves of all groups.
pub(crate) fn take_base(geometry: &Geometry, space: &mut Space) {
    space.take(0, geometry.first_data_block.0);
    for group in (0..geometry.group_count).map(GroupNr) {
        space.take(geometry.group_first_block(group).0, geometry.base_meta_blocks(group) as u64);
    }
}

/// Places the tables of every group. `packed` puts those of all groups at the device's start.
pub(crate) fn place(geometry: &Geometry, space: &mut Space, packed: bool) -> Result<Vec<GroupDescriptor>> {
    let mut descriptors = vec![GroupDescriptor::default(); geometry.group_count as usize];
    let together = if packed { geometry.group_count } else { geometry.groups_per_flex() };
    let mut first = 0;
    for some in descriptors.chunks_mut(together.max(1) as usize) {
        let groups = first..first + some.len() as u32;
        place_together(geometry, space, some, groups.clone())?;
        first = groups.end;
    }
    Ok(descriptors)
}

fn place_together(
    geometry: &Geometry,
    space: &mut Space,
    descriptors: &mut [GroupDescriptor],
    groups: Range<u32>,
) -> Result<()> {
    let last = GroupNr(groups.end.saturating_sub(1));
    let start = geometry.group_first_block(GroupNr(groups.start)).0;
    let end = geometry.group_first_block(last).0 + geometry.blocks_in_group(last) as u64;
    let table = geometry.inode_table_blocks() as u64;
    let mut at = start;
    let mut next = |space: &mut Space, len: u64| -> Result<BlockNr> {
        // A flex group whose own blocks are too few spills into others, earlier ones at the device's end.
        let found = space.find(at..end, len).or_else(|| {
            (geometry.groups_per_flex() > 1).then(|| space.find(0..geometry.blocks_count, len)).flatten()
        });
        let found = found.ok_or_else(|| {
            Error::Usage(format!("the inode tables of {} inodes don't fit", geometry.inodes_count))
        })?;
        space.take(found, len);
        at = found + len;
        Ok(BlockNr(found))
    };
    for descriptor in descriptors.iter_mut() {
        descriptor.block_bitmap = next(space, 1)?;
    }
    for descriptor in descriptors.iter_mut() {
        descriptor.inode_bitmap = next(space, 1)?;
    }
    for descriptor in descriptors.iter_mut() {
        descriptor.inode_table = next(space, table)?;
    }
    Ok(())
}
