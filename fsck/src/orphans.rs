//! Inodes whose deletion or truncation was under way at the crash: the list through the superblock, and the orphan file.

use crate::blocks::{walk, Runs};
use crate::image::Image;
use crate::report::Report;
use journalfs::device::SharedDevice;
use journalfs::format::features::Compat;
use journalfs::format::orphan_file;
use journalfs::fs::options::MountOptions;
use journalfs::fs::{inode_table, Fs};
use journalfs::units::InodeNr;
use journalfs::{Error, Result};
use std::collections::BTreeSet;

/// All of them.
pub(crate) fn find(image: &Image, report: &mut Report) -> Result<BTreeSet<InodeNr>> {
    let geometry = &image.geometry;
    let mut orphans = BTreeSet::new();
    let mut next = image.superblock.last_orphan;
    while next != 0 {
        let nr = InodeNr(next);
        if !geometry.holds_file(nr) || !orphans.insert(nr) {
            report.inode(nr, "is on the list of orphans, where it can't be");
            break;
        }
        match report.take(Some(nr), inode_table::read(image, geometry, nr))? {
            Some(raw) => next = raw.dtime,
            None => break,
        }
    }
    if geometry.features.compat.contains(Compat::ORPHAN_FILE) {
        file(image, report, &mut orphans)?;
    }
    Ok(orphans)
}

fn file(image: &Image, report: &mut Report, orphans: &mut BTreeSet<InodeNr>) -> Result<()> {
    let geometry = &image.geometry;
    let nr = InodeNr(image.superblock.orphan_file_inum);
    let Some(raw) = report.take(Some(nr), inode_table::read(image, geometry, nr))? else { return Ok(()) };
    let seed = geometry.inode_csum_seed(nr, raw.generation);
    let mut runs = Runs::default();
    if raw.maps_blocks() {
        walk(image, nr, &raw, &mut runs)?;
    }
    for place in runs.0.iter().flat_map(|(_, range)| range.iter()) {
        let block = image.read(place)?;
        if report.take(Some(nr), orphan_file::verify(&block, geometry, seed, place))?.is_none() {
            continue;
        }
        for index in 0..orphan_file::entries_per_block(geometry) {
            if let Some(orphan) = orphan_file::entry(&block, index) {
                orphans.insert(orphan);
            }
        }
    }
    Ok(())
}

/// Ends what was under way, as a mount does it: each step in a transaction.
pub(crate) fn finish(device: &SharedDevice, report: &mut Report) -> Result<()> {
    let mounted = Fs::mount(device.clone(), &MountOptions::default()).and_then(|fs| fs.unmount());
    if let Err(error) = mounted {
        match error {
            Error::Io { .. } => return Err(error),
            error => report.problem(format!("what was under way could not be ended: {error}")),
        }
    }
    Ok(())
}
