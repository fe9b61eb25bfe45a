//! Before the passes: the group descriptors, and the copies of the superblock.

use crate::check::Check;
use crate::image::Image;
use crate::report::Report;
use journalfs::format::features::{Incompat, RoCompat};
use journalfs::format::group::GroupDescriptor;
use journalfs::units::{BlockNr, BlockRange, GroupNr};
use journalfs::Result;

/// Reads every descriptor; damaged ones are reported.
pub(crate) fn descriptors(image: &Image, report: &mut Report) -> Result<Vec<Option<GroupDescriptor>>> {
    let geometry = &image.geometry;
    let mut all = Vec::with_capacity(geometry.group_count as usize);
    let mut block = None;
    for group in (0..geometry.group_count).map(GroupNr) {
        let (nr, at) = geometry.descriptor_place(group);
        if block.as_ref().is_none_or(|(have, _)| *have != nr) {
            block = Some((nr, image.read(nr)?));
        }
        let bytes = block.as_ref().and_then(|(_, block)| block.get(at..)).unwrap_or_default();
        all.push(report.take(None, GroupDescriptor::decode(bytes, geometry, group))?);
    }
    Ok(all)
}

/// Says what of the file system's features is not looked at, and marks the blocks that belong to features.
pub(crate) fn unchecked(check: &mut Check<'_>) {
    let features = check.image.geometry.features;
    for (there, what) in [
        (features.ro_compat.contains(RoCompat::QUOTA), "quota counts (quota)"),
        (features.ro_compat.contains(RoCompat::VERITY), "the trees of verified files (verity)"),
        (
            features.incompat.contains(Incompat::EA_INODE),
            "attribute values in inodes of their own (ea_inode)",
        ),
    ] {
        if there {
            check.report.skipped(what);
        }
    }
    let mmp = BlockNr(check.image.superblock.mmp_block);
    if features.incompat.contains(Incompat::MMP) && check.image.geometry.holds_block(mmp) {
        check.usage.mark(BlockRange::new(mmp, 1));
    }
}

/// Reports groups' bitmaps and tables that share blocks.
pub(crate) fn tables(check: &mut Check<'_>) {
    let twice: Vec<_> = check.usage.overlapping_tables().collect();
    for nr in twice {
        check.report.problem(format!("block {nr} belongs to two bitmaps or inode tables"));
    }
}
