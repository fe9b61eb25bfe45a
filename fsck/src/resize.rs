//! The resize inode: its double indirect block lists the blocks behind the descriptors that are kept for more of
//! them, and each of those lists its copies in the groups that have one. All but the first are the groups' own.

use crate::check::Check;
use journalfs::format::{indirect, Geometry};
use journalfs::units::{BlockNr, BlockRange, GroupNr, InodeNr};
use journalfs::Result;

const DOUBLE_INDIRECT: u32 = 13;

pub(crate) fn reserve(check: &mut Check<'_>, i_block: &[u8]) -> Result<()> {
    let nr = InodeNr::RESIZE;
    let geometry = check.image.geometry;
    let Some(place) = indirect::pointer(i_block, DOUBLE_INDIRECT) else { return Ok(()) };
    if !geometry.holds_block(place) {
        check.report.inode(nr, format!("has its double indirect block at block {place}"));
        return Ok(());
    }
    if check.usage.mark(BlockRange::new(place, 1)).is_some() {
        check
            .report
            .inode(nr, format!("has its double indirect block at block {place}, which is in use already"));
    }
    let node = check.image.read(place)?;
    let first = geometry.group_first_block(GroupNr(0));
    let end = geometry.base_meta_blocks(GroupNr(0));
    let reserve = end.saturating_sub(geometry.reserved_gdt_blocks)..end;
    for index in 0..indirect::per_block(geometry.block_bytes) {
        let Some(kept) = indirect::pointer(&node, index) else { continue };
        let offset = kept.0.wrapping_sub(first.0);
        if !(reserve.start as u64..reserve.end as u64).contains(&offset) {
            check.report.inode(nr, format!("keeps block {kept} for descriptors, where none can be"));
            continue;
        }
        let copies = check.image.read(kept)?;
        for index in 0..indirect::per_block(geometry.block_bytes) {
            let copy = indirect::pointer(&copies, index);
            if let Some(copy) = copy.filter(|copy| !is_copy(&geometry, *copy, offset)) {
                check.report.inode(nr, format!("keeps block {copy} for a copy of block {kept}"));
            }
        }
    }
    Ok(())
}

/// Whether a block is where a group with a superblock has its copy of the block `offset` blocks into group 0.
fn is_copy(geometry: &Geometry, nr: BlockNr, offset: u64) -> bool {
    let group = geometry.group_of(nr);
    geometry.holds_block(nr)
        && geometry.group_has_super(group)
        && geometry.index_in_group(nr) as u64 == offset
}
