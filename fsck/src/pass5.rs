//! Pass 5: bitmaps and free counts against what is in use.

use crate::check::Check;
use journalfs::format::bitmap;
use journalfs::format::features::RoCompat;
use journalfs::format::group::{GroupDescriptor, GroupFlags};
use journalfs::units::GroupNr;
use journalfs::Result;

pub(crate) fn bitmaps(check: &mut Check<'_>) -> Result<()> {
    let geometry = check.image.geometry;
    let clusters = geometry.features.ro_compat.contains(RoCompat::BIGALLOC);
    if clusters {
        check.report.skipped("block bitmaps and block counts (bigalloc)");
    }
    let inodes = inodes_by_group(check);
    for group in (0..geometry.group_count).map(GroupNr) {
        check.progress.step(5, group.0 as u64, geometry.group_count as u64);
        let Some(descriptor) = check.descriptors.get(group.0 as usize).cloned().flatten() else { continue };
        if !clusters {
            blocks(check, group, &descriptor)?;
        }
        let (used, directories) = inodes.get(group.0 as usize).copied().unwrap_or_default();
        let marked = inode_bits(check, &descriptor)?;
        let free = geometry.inodes_per_group.saturating_sub(marked);
        check.totals.free_inodes += free as u64;
        let per_cluster = crate::check::blocks_per_cluster(&check.image.superblock);
        check.totals.free_blocks += descriptor.free_blocks_count as u64 * per_cluster;
        if descriptor.free_inodes_count != free {
            let said = descriptor.free_inodes_count;
            check
                .report
                .problem(format!("group {group} counts {said} free inodes, but its bitmap has {free}"));
        }
        if descriptor.used_dirs_count != directories && used > 0 {
            let said = descriptor.used_dirs_count;
            check.report.problem(format!("group {group} counts {said} directories, but has {directories}"));
        }
    }
    Ok(())
}

/// Per group: inodes in use, and directories.
fn inodes_by_group(check: &Check<'_>) -> Vec<(u32, u32)> {
    let geometry = &check.image.geometry;
    let mut counts = vec![(0, 0); geometry.group_count as usize];
    for nr in check.inodes.keys() {
        if let Some(count) = counts.get_mut(geometry.group_of_inode(*nr).0 .0 as usize) {
            count.0 += 1;
            count.1 += u32::from(check.directories.contains_key(nr));
        }
    }
    counts
}

/// How many inodes of a group its bitmap says are in use.
fn inode_bits(check: &Check<'_>, descriptor: &GroupDescriptor) -> Result<u32> {
    let count = check.image.geometry.inodes_per_group;
    if descriptor.flags.contains(GroupFlags::INODE_UNINIT) {
        return Ok(0);
    }
    let bits = check.image.read(descriptor.inode_bitmap)?;
    Ok(count - bitmap::count_clear(&bits, count))
}

/// Compares one group's block bitmap with the blocks that are in use.
fn blocks(check: &mut Check<'_>, group: GroupNr, descriptor: &GroupDescriptor) -> Result<()> {
    let geometry = check.image.geometry;
    let count = geometry.blocks_in_group(group);
    let expected = check.usage.bitmap(group);
    if descriptor.flags.contains(GroupFlags::BLOCK_UNINIT) {
        if check.usage.is_touched(group) {
            let text =
                format!("group {group} has blocks in use, but says that its block bitmap was never used");
            check.report.problem(text);
        }
    } else {
        let bits = check.image.read(descriptor.block_bitmap)?;
        if geometry.has_csum() && bitmap::block_csum(&bits, &geometry) != descriptor.block_bitmap_csum {
            let place = descriptor.block_bitmap;
            let text = format!("the block bitmap of group {group} (block {place}) has a wrong checksum");
            check.report.problem(text);
        }
        differences(check, group, &bits, &expected, count);
    }
    let free = bitmap::count_clear(&expected, count);
    if descriptor.free_blocks_count != free {
        let said = descriptor.free_blocks_count;
        check.report.problem(format!("group {group} counts {said} free blocks, but {free} are not in use"));
    }
    Ok(())
}

fn differences(check: &mut Check<'_>, group: GroupNr, bits: &[u8], expected: &[u8], count: u32) {
    let first = check.image.geometry.group_first_block(group);
    let mut at = 0;
    while at < count {
        let is = bitmap::test(bits, at);
        if is == bitmap::test(expected, at) {
            // Whole bytes that agree are passed at once.
            let byte = at as usize / 8;
            at = if at % 8 == 0 && bits.get(byte) == expected.get(byte) { at + 8 } else { at + 1 };
            continue;
        }
        let from = at;
        while at < count && bitmap::test(bits, at) == is && bitmap::test(expected, at) != is {
            at += 1;
        }
        let (a, b) = (first.plus(from as u64), first.plus(at as u64 - 1));
        let what =
            if is { "are marked in use, but nothing uses them" } else { "are in use, but marked free" };
        check.report.problem(format!("blocks {a} to {b} (group {group}) {what}"));
    }
    // The bits behind a short group's blocks must be set.
    let size = (bits.len() as u32 * 8).min(check.image.geometry.blocks_per_group.next_multiple_of(8));
    if count < size && !bitmap::is_set(bits, count..size) {
        check
            .report
            .problem(format!("the block bitmap of group {group} has free bits behind the last block"));
    }
}
