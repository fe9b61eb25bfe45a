//! The journal: replayed before anything else is looked at.

use crate::options::Options;
use crate::report::Report;
use journalfs::device::SharedDevice;
use journalfs::format::features::Incompat;
use journalfs::format::superblock::Superblock;
use journalfs::fs::fast_commit::replay_home;
use journalfs::journal::locate::{locate, Located};
use journalfs::journal::log_area::LogArea;
use journalfs::journal::recovery::{recover, Recovered};
use journalfs::journal::replay::{finish, write_journal_superblock};
use journalfs::units::Tid;
use journalfs::{Error, Result};

/// What became of the journal.
pub(crate) enum Journal {
    /// There is none, or it is empty.
    Empty,
    /// It was replayed, and the file system's blocks are what they should be.
    Replayed,
    /// Nothing may be written: read its blocks from here.
    Overlay(Box<(Recovered, LogArea)>),
    /// It is damaged; what is said of the file system without it would mean nothing.
    Damaged,
}

/// Looks at the journal and replays it, unless nothing may be written.
pub(crate) fn settle(
    device: &SharedDevice,
    superblock: &Superblock,
    options: &Options,
    report: &mut Report,
) -> Result<Journal> {
    let Some(located) = report.take(None, locate(&**device, superblock))? else {
        return Ok(Journal::Damaged);
    };
    let Some(mut located) = located else { return Ok(Journal::Empty) };
    if let Some(error) = &located.inode_error {
        report.problem(format!("{error} (the journal was found by the superblock's copy of its inode)"));
    }
    let needs_recovery = superblock.features.incompat.contains(Incompat::NEEDS_RECOVERY);
    if !needs_recovery {
        if located.superblock.start != 0 {
            unwanted(device, &mut located, options, report)?;
        }
        return Ok(Journal::Empty);
    }
    let recovered = recover(&**device, &located.area, &located.superblock);
    let Some(recovered) = report.take(None, recovered)? else { return Ok(Journal::Damaged) };
    if !options.quiet && located.superblock.start != 0 {
        let (transactions, blocks) = (recovered.transactions, recovered.blocks.len());
        let done = if options.reads_only() { "holds" } else { "replaying" };
        println!("{}: journal: {done} {transactions} transactions, {blocks} blocks", options.name());
    }
    if options.reads_only() {
        if let Some(fast_commit) = &recovered.fast_commit {
            report.skipped(format!("what {} fast-commit records would change", fast_commit.records));
        }
        return Ok(Journal::Overlay(Box::new((recovered, located.area))));
    }
    replay(device, &recovered, &mut located)?;
    Ok(Journal::Replayed)
}

fn replay(device: &SharedDevice, recovered: &Recovered, located: &mut Located) -> Result<()> {
    replay_home(recovered, device, located)?;
    finish(recovered, &**device, &located.area, &mut located.superblock)
}

/// A log that the superblock says is not needed: everything was home when it was written, so the kernel drops it, and so do we.
fn unwanted(
    device: &SharedDevice,
    located: &mut Located,
    options: &Options,
    report: &mut Report,
) -> Result<()> {
    let text = "the journal is not empty, but the superblock says that it needs no recovery";
    if options.reads_only() {
        report.problem(text);
        return Ok(());
    }
    let sequence = located.superblock.sequence;
    // A log that can't be read is no reason to keep it; its blocks must only not be taken for new ones.
    let next = recover(&**device, &located.area, &located.superblock).map(|recovered| recovered.next_tid);
    located.superblock.sequence = next.unwrap_or(Tid(sequence.0.wrapping_add(located.area.len())));
    located.superblock.start = 0;
    write_journal_superblock(&**device, &located.area, &located.superblock)?;
    device.flush().map_err(|e| Error::io("flushing the journal superblock", e))?;
    println!("{}: {text}: emptied", options.name());
    report.corrected += 1;
    Ok(())
}
