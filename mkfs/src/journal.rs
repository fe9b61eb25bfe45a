//! How large the journal of a new file system is, and its superblock.

use crate::options::{JournalSize, Options, Profile};
use journalfs::format::jbd2::{JournalSuperblock, LOG_BLOCKS_MIN};
use journalfs::format::{Compat, Superblock};
use journalfs::units::Tid;
use journalfs::{Error, Result};

/// jbd2's own limit.
const LOG_BLOCKS_MAX: u64 = 10_240_000;
/// A fast-commit area has this part of the log's blocks.
const FAST_COMMIT_PART: u32 = 64;

/// A journal's blocks.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct LogSize {
    pub(crate) log: u32,
    pub(crate) fast_commit: u32,
}

impl LogSize {
    pub(crate) fn blocks(self) -> u64 {
        self.log as u64 + self.fast_commit as u64
    }
}

/// By the size of the file system, as mke2fs has it.
fn classic(blocks: u64) -> u64 {
    match blocks / 1024 {
        0..32 => 1024,
        32..256 => 4096,
        256..512 => 8192,
        512..4096 => 16384,
        4096..8192 => 32768,
        8192..16384 => 65536,
        16384..32768 => 131_072,
        _ => 262_144,
    }
}

/// Larger than the classic sizes: file data of small synchronous writes goes through our log, and the
/// longer a log is the more of what is rewritten never has to be checkpointed.
fn roomy(blocks: u64) -> u64 {
    (blocks / 32).max((blocks / 16).min(4096)).clamp(LOG_BLOCKS_MIN as u64, 262_144)
}

/// The journal's size, or `None` if the file system is too small to have one by default.
pub(crate) fn size(superblock: &Superblock, options: &Options) -> Result<Option<LogSize>> {
    let blocks = superblock.blocks_count;
    let log = match options.journal {
        JournalSize::Auto if blocks < 2 * LOG_BLOCKS_MIN as u64 => return Ok(None),
        JournalSize::Auto if options.profile == Profile::Journalfs => roomy(blocks),
        JournalSize::Auto => classic(blocks),
        JournalSize::MiB(mib) => {
            let log = ((mib as u64) << 20) / superblock.block_bytes() as u64;
            if !(LOG_BLOCKS_MIN as u64..=LOG_BLOCKS_MAX).contains(&log) {
                return Err(Error::Usage(format!(
                    "a journal of {mib} MiB has {log} blocks; {LOG_BLOCKS_MIN} to {LOG_BLOCKS_MAX} are possible"
                )));
            }
            log
        }
    };
    let log = log as u32;
    let fast_commit =
        if superblock.features.compat.contains(Compat::FAST_COMMIT) { log / FAST_COMMIT_PART } else { 0 };
    Ok(Some(LogSize { log, fast_commit }))
}

/// The first block's record of an empty log. The log behind it is either all zero, or starts at a
/// sequence that no older transaction there is likely to have.
pub(crate) fn superblock(of: &Superblock, size: LogSize, lazy: bool) -> JournalSuperblock {
    let mut journal = JournalSuperblock::new(of.block_bytes(), size.blocks() as u32, of.uuid);
    journal.num_fc_blks = size.fast_commit;
    if lazy {
        let random = uuid::Uuid::new_v4().as_u128() as u32;
        journal.sequence = Tid(random.max(1));
    }
    journal
}
