//! How large a map can become: the format's limits, and what a change may cost.

use crate::format::extent;
use crate::format::features::RoCompat;
use crate::format::geometry::Geometry;
use crate::format::indirect::{self, Path};
use crate::format::inode::RawInode;
use crate::units::FileBlock;

/// How many file blocks the map can address.
pub(super) fn addressable(geometry: &Geometry, raw: &RawInode) -> u64 {
    if raw.has_extents() {
        1 << 32
    } else {
        indirect::file_blocks_max(geometry.block_bytes).min(1 << 32)
    }
}

/// How many blocks a file can have: what the map addresses and what `i_blocks` can count.
pub fn blocks_max(geometry: &Geometry, raw: &RawInode) -> u64 {
    // The last file block number is not used: the one behind it must be a number too.
    let addressable = addressable(geometry, raw).min(u64::from(u32::MAX));
    let sectors = u64::from(geometry.sectors_per_block());
    if geometry.features.ro_compat.contains(RoCompat::HUGE_FILE) || raw.has_extents() {
        addressable
    } else {
        // i_blocks has 32 bits, and the indirect blocks count too.
        let countable = u64::from(u32::MAX) / sectors;
        let per = u64::from(indirect::per_block(geometry.block_bytes));
        addressable.min(countable - countable / per - countable / (per * per) - 3)
    }
}

/// The root's depth; what a corrupt root says is cut to the format's limit.
fn depth(raw: &RawInode) -> u32 {
    let depth = raw.block.get(6..8).map_or(0, |b| u16::from_le_bytes([b[0], b[1]]));
    u32::from(depth.min(extent::DEPTH_MAX))
}

/// Credits for mapping `blocks` consecutive file blocks that lie in `pieces` runs on the device, or changing their
/// state: bitmaps, descriptors and map blocks, those of the data included; not the inode's record.
pub fn insert_credits(geometry: &Geometry, raw: &RawInode, blocks: u32, pieces: u32) -> u32 {
    let pieces = pieces.min(blocks).max(1);
    // A run may lie across a group boundary, and a long one across several.
    let groups =
        pieces.saturating_add(blocks / geometry.blocks_per_group + 1).min(geometry.group_count.max(1));
    // Each new node: itself, and a bitmap and a descriptor that are not always those of the data.
    let (new, old) = if raw.has_extents() {
        let half = u32::from(extent::capacity(geometry.block_bytes as usize)) / 2;
        // Changing an extent's state can leave two more extents.
        let splits = 2 * pieces / half + depth(raw) + 2;
        (splits, depth(raw) + 1 + splits)
    } else {
        let leaves = blocks / indirect::per_block(geometry.block_bytes) + 2;
        (leaves + 4, leaves + 4)
    };
    (2 * groups).saturating_add(3 * new).saturating_add(old)
}

/// Credits for [`remove`](super::remove) with this budget: the last step may go over it by a path and its bitmaps.
pub fn remove_credits(budget: u32) -> u32 {
    budget.saturating_add(4 * (u32::from(extent::DEPTH_MAX) + 1))
}

/// How many map blocks writing `blocks` consecutive new blocks at `block` may need: what delayed allocation promises
/// beside the data. Extents need so few that the allocator's margin covers them.
pub fn metadata_blocks_max(geometry: &Geometry, raw: &RawInode, block: FileBlock, blocks: u32) -> u64 {
    if raw.has_extents() || blocks == 0 {
        return 0;
    }
    let last = block.plus(blocks - 1);
    let levels = Path::to(last, geometry.block_bytes).map_or(indirect::LEVELS_MAX, |p| p.indices().len());
    let per = u64::from(indirect::per_block(geometry.block_bytes));
    let mut under = 1;
    let mut total = 0;
    for _ in 0..levels {
        under *= per;
        total += if blocks == 1 { 1 } else { u64::from(blocks - 1) / under + 2 };
    }
    total
}
