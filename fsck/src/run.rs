//! One run: open, journal, orphans, and the check if there is a reason for it.

use crate::check::{self, Totals};
use crate::image::Image;
use crate::journal::{self, Journal};
use crate::options::Options;
use crate::progress::Progress;
use crate::report::Report;
use crate::{groups, open, orphans};
use journalfs::device::SharedDevice;
use journalfs::format::features::Incompat;
use journalfs::format::group::GroupDescriptor;
use journalfs::format::superblock::{Superblock, STATE_ERROR, STATE_VALID};
use journalfs::journal::replay::update_superblock;
use journalfs::{Error, Result};
use std::time::{SystemTime, UNIX_EPOCH};

/// Does what the options say; returns the exit status.
pub(crate) fn run(options: &Options) -> Result<u8> {
    let opened = open::device(options)?;
    let device = opened.device;
    let mut report = Report::default();
    let superblock = open::superblock(&device, options)?;
    if options.superblock.is_some() {
        report.take(None, open::primary(&device).map(drop))?;
    }
    let (mut image, replayed) = match journal::settle(&device, &superblock, options, &mut report)? {
        Journal::Damaged => {
            print_problems(options, &report);
            println!("{}: the journal can't be replayed, so nothing else was checked", options.name());
            return Ok(report.exit());
        }
        Journal::Overlay(overlay) => (Image::new(device.clone(), superblock, Some(*overlay))?, false),
        Journal::Replayed => {
            let image = Image::new(device.clone(), open::primary(&device)?, None)?;
            (count_free(&device, image, &mut report)?, true)
        }
        Journal::Empty => (Image::new(device.clone(), superblock, None)?, false),
    };
    let mut waiting = orphans::find(&image, &mut report)?;
    if !waiting.is_empty() {
        let count = waiting.len();
        if !options.quiet {
            println!("{}: {count} deletions or truncations were under way", options.name());
        }
        if !options.reads_only() && report.uncorrected() == 0 {
            orphans::finish(&device, &mut report)?;
            image = Image::new(device.clone(), open::primary(&device)?, None)?;
            waiting = orphans::find(&image, &mut report)?;
            if !waiting.is_empty() {
                report.problem(format!("{} of them could not be ended", waiting.len()));
            }
        }
    }
    let Some(reason) = reason_to_check(options, &image.superblock, &report) else {
        if !options.quiet {
            let state = state(replayed, image.has_overlay());
            println!(
                "{}: {state} ({}), not checked (-f checks it)",
                options.name(),
                counts(&image.superblock)
            );
        }
        return Ok(report.exit());
    };
    if !options.quiet && reason != "forced" {
        println!("{}: {reason}, checking", options.name());
    }
    let progress = Progress::new(options.progress, options.name());
    let totals = check::run(&image, &mut report, progress, waiting)?;
    if report.uncorrected() == 0 {
        settle_superblock(options, &image, &totals, replayed, &mut report)?;
    }
    print_problems(options, &report);
    print_summary(options, &report, &totals, &image.superblock);
    Ok(report.exit())
}

fn state(replayed: bool, overlay: bool) -> &'static str {
    match (replayed, overlay) {
        (true, _) => "journal replayed",
        (false, true) => "the journal is to be replayed",
        (false, false) => "unmounted cleanly",
    }
}

/// Brings the superblock's free counts, which drivers keep at unmount only, up to date after a replay.
fn count_free(device: &SharedDevice, image: Image, report: &mut Report) -> Result<Image> {
    let mut found = Report::default();
    let descriptors = groups::descriptors(&image, &mut found)?;
    if found.uncorrected() > 0 {
        report.problems.append(&mut found.problems);
        return Ok(image);
    }
    let sum = |count: fn(&GroupDescriptor) -> u32| {
        descriptors.iter().flatten().map(|d| count(d) as u64).sum::<u64>()
    };
    let inodes = sum(|d| d.free_inodes_count);
    let blocks = sum(|d| d.free_blocks_count) * check::blocks_per_cluster(&image.superblock);
    update_superblock(&**device, |sb| {
        sb.free_blocks_count = blocks;
        sb.free_inodes_count = inodes as u32;
    })?;
    device.flush().map_err(|e| Error::io("flushing", e))?;
    Image::new(device.clone(), open::primary(device)?, None)
}

/// Why the file system is to be checked, if it is.
fn reason_to_check(options: &Options, superblock: &Superblock, report: &Report) -> Option<&'static str> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let (mounts, mounts_max) = (superblock.mnt_count, superblock.max_mnt_count as i16);
    let interval = superblock.checkinterval as u64;
    if options.force {
        Some("forced")
    } else if report.uncorrected() > 0 {
        Some("there are problems")
    } else if superblock.state & STATE_ERROR != 0 {
        Some("errors were recorded while it was mounted")
    } else if superblock.state & STATE_VALID == 0 {
        Some("it was not unmounted cleanly")
    } else if mounts_max > 0 && mounts >= mounts_max as u16 {
        Some("it has been mounted often since the last check")
    } else if interval > 0 && now >= superblock.lastcheck.saturating_add(interval) {
        Some("its last check is long ago")
    } else {
        None
    }
}

/// After a check that found nothing: the superblock's own free counts, which only an unmount keeps, and when it was checked.
fn settle_superblock(
    options: &Options,
    image: &Image,
    totals: &Totals,
    replayed: bool,
    report: &mut Report,
) -> Result<()> {
    let superblock = &image.superblock;
    if superblock.state & STATE_ERROR != 0 {
        report.problem("errors were recorded while it was mounted; nothing is wrong now that this check sees, but e2fsck -f looks closer");
    }
    // Without 64bit the upper half is not a count.
    let upper_half = superblock.features.incompat.contains(Incompat::BIT64);
    let counted = superblock.free_blocks_count & if upper_half { u64::MAX } else { 0xffff_ffff };
    let blocks_wrong = counted != totals.free_blocks;
    let inodes_wrong = superblock.free_inodes_count as u64 != totals.free_inodes;
    let kept = superblock.state & STATE_VALID != 0 && !replayed && !image.has_overlay();
    if kept && (blocks_wrong || inodes_wrong) {
        let text = format!(
            "the superblock counts {} free blocks and {} free inodes, but there are {} and {}",
            superblock.free_blocks_count,
            superblock.free_inodes_count,
            totals.free_blocks,
            totals.free_inodes
        );
        if options.reads_only() {
            report.problem(text);
        } else {
            println!("{}: {text}: corrected", options.name());
            report.corrected += 1;
        }
    }
    if options.reads_only() || report.uncorrected() > 0 {
        return Ok(());
    }
    let device = &*image.device;
    update_superblock(device, |sb| {
        sb.free_blocks_count = totals.free_blocks;
        sb.free_inodes_count = totals.free_inodes as u32;
        sb.mnt_count = 0;
        sb.lastcheck = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        sb.state |= STATE_VALID;
    })?;
    device.flush().map_err(|e| Error::io("flushing", e))
}

fn print_problems(options: &Options, report: &Report) {
    for problem in &report.problems {
        println!("{}: {}", options.name(), problem.text);
    }
    if report.more > 0 {
        println!("{}: and {} more problems", options.name(), report.more);
    }
}

fn counts(superblock: &Superblock) -> String {
    let inodes = superblock.inodes_count.saturating_sub(superblock.free_inodes_count);
    let blocks = superblock.blocks_count.saturating_sub(superblock.free_blocks_count);
    format!("{inodes}/{} files, {blocks}/{} blocks", superblock.inodes_count, superblock.blocks_count)
}

fn print_summary(options: &Options, report: &Report, totals: &Totals, superblock: &Superblock) {
    let name = options.name();
    for what in &report.unchecked {
        println!("{name}: not checked: {what}");
    }
    if report.uncorrected() > 0 {
        println!("{name}: {} problems, not repaired (e2fsck -f can)", report.uncorrected());
    } else if !options.quiet {
        println!(
            "{name}: no problems in {} inodes, {} directories, {} blocks; {}/{} inodes and {}/{} blocks free",
            totals.inodes,
            totals.directories,
            totals.blocks,
            totals.free_inodes,
            superblock.inodes_count,
            totals.free_blocks,
            superblock.blocks_count
        );
    }
    if options.verbose {
        println!("{name}: {} directory blocks", totals.directory_blocks);
    }
}
