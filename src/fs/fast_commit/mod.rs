//! Fast-commit replay: what ext4 wrote behind the last full transaction, done again on the file system as that
//! transaction left it. Called by mount and fsck; calls the structures of `fs/` (maps, directories, allocator) through
//! handles.
//!
//! ext4's own replay changes the file system in place, step by step, and must be able to start again from any half-way
//! state. Here everything happens in memory, in the one transaction of a journal that never commits
//! ([`Journal::in_memory`]); what comes out is a set of blocks, which becomes an ordinary transaction of the log
//! (`replay::replace`) or, on a read-only device, is read instead of those at home.
//!
//! Invariants:
//! 1. Blocks that the fast commits give to files are reserved before the first record is done, so that
//!    directories and map nodes made on the way can't take them.
//! 2. Bitmaps, counts and `i_blocks` follow from what is done, never from a record. A file's block map is the one it
//!    had, changed by the ranges; the record of an inode brings the rest.
//! 3. Records of one inode come in the order in which it changed, but a link or a range may come before the inode's
//!    own record, and until then its number may be that of one that is gone. Such are kept until the fast commit's tail.
//! 4. An inode without links at the end is freed, and a directory's links are counted at the end.

mod home;
mod inode;
mod names;
mod ranges;

use super::core::Fs;
use super::features;
use super::mount::Opened;
use super::options::MountOptions;
use super::superblock;
use crate::cache::Handle;
use crate::device::{Block, SharedDevice};
use crate::error::{Error, Place, Result};
use crate::format::inode::RawInode;
use crate::format::jbd2::fast_commit::FcRecord;
use crate::format::superblock::Superblock;
use crate::journal::fast_commit::FastCommit;
use crate::journal::locate::Located;
use crate::journal::replay::too_many_changes;
use crate::journal::Journal;
use crate::units::{BlockNr, BlockRange, FileBlock, InodeNr};
use names::Name;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use home::{overlay, replay_home};

const STRUCTURE: &str = "fast commit";

/// Credits of a handle here. The transaction can't be too small for it; more is only noted.
const CREDITS: u32 = 256;

/// `s_state`: a fast-commit replay by ext4 or e2fsck was cut short.
const STATE_FC_REPLAY: u16 = 0x20;

/// Records that wait for their inode at most; more is no fast commit that ext4 would write.
const EARLY_MAX: usize = 1 << 16;

/// Refuses a file system whose fast commits can't be replayed; before anything is written.
pub(super) fn check(sb: &Superblock) -> Result<()> {
    features::check(&sb.features, false).map_err(|error| {
        Error::Unsupported(format!("the journal holds fast commits (fast_commit), but {error}"))
    })?;
    if sb.state & STATE_FC_REPLAY != 0 {
        return Err(Error::Unsupported(
            "an earlier replay of the journal's fast commits was cut short (fast_commit): run e2fsck".into(),
        ));
    }
    Ok(())
}

/// The blocks that the fast commits change, as they are to be. `overlay` is what the log has for a device where it can't be
/// written home.
pub(super) fn changes(
    device: &SharedDevice,
    sb: &Superblock,
    located: &Located,
    fast_commit: &FastCommit,
    overlay: Vec<(BlockNr, Arc<Block>)>,
) -> Result<BTreeMap<BlockNr, Arc<Block>>> {
    let journal = Arc::new(Journal::in_memory(device.clone(), sb.block_bytes()));
    let opened = Opened { journal: journal.clone(), overlay, own: located.own_blocks() };
    let options = MountOptions { read_only: false, ..MountOptions::default() };
    let fs = Fs::assemble(device.clone(), sb.clone(), opened, options)?;
    fs.load_orphans()?;
    let log_blocks = located.superblock.log_blocks() as usize;
    let mut replay =
        Replay { fs: &fs, log_blocks, touched: BTreeSet::new(), parents: BTreeSet::new(), early: Vec::new() };
    let block_bytes = located.superblock.block_bytes;
    fast_commit.for_each(&**device, &located.area, block_bytes, |record| replay.reserve(record))?;
    fast_commit.for_each(&**device, &located.area, block_bytes, |record| replay.record(record))?;
    replay.finish()?;
    Ok(journal.take_changes())
}

/// A record about an inode that is not in use, or has no links (invariant 3).
enum Early {
    Add { nr: InodeNr, extent: Extent },
    Remove { nr: InodeNr, file_block: FileBlock, len: u32 },
    Name(Name),
}

impl Early {
    fn nr(&self) -> InodeNr {
        match self {
            Early::Add { nr, .. } | Early::Remove { nr, .. } | Early::Name(Name { nr, .. }) => *nr,
        }
    }
}

/// A range of a file, as a record gives it.
#[derive(Copy, Clone)]
struct Extent {
    file_block: FileBlock,
    blocks: BlockRange,
    unwritten: bool,
}

struct Replay<'a> {
    fs: &'a Fs,
    /// The changes must fit into the log.
    log_blocks: usize,
    /// Inodes that may have no links at the end.
    touched: BTreeSet<InodeNr>,
    /// Directories whose subdirectories may have changed.
    parents: BTreeSet<InodeNr>,
    early: Vec<Early>,
}

impl Replay<'_> {
    /// The first pass (invariant 1).
    fn reserve(&self, record: &FcRecord<'_>) -> Result<()> {
        let FcRecord::AddRange { nr, physical, len, .. } = *record else { return Ok(()) };
        let range = BlockRange::new(physical, len);
        if self.fs.allocator.is_own(range) {
            return Err(Self::corrupt(nr, format!("is given {range:?}, which no file can have")));
        }
        self.fs.allocator.reserve_named(&*self.fs.cache, range)
    }

    /// The second pass.
    fn record(&mut self, record: &FcRecord<'_>) -> Result<()> {
        match *record {
            FcRecord::AddRange { nr, file_block, len, physical, unwritten } => {
                let extent = Extent { file_block, blocks: BlockRange::new(physical, len), unwritten };
                self.add_range(nr, extent)?;
            }
            FcRecord::DelRange { nr, file_block, len } => self.remove_range(nr, file_block, len)?,
            FcRecord::Create(ref name) => self.link(Name::new(name, false)?)?,
            FcRecord::Link(ref name) => self.link(Name::new(name, true)?)?,
            FcRecord::Unlink(ref name) => self.unlink(&Name::new(name, true)?)?,
            FcRecord::Inode { nr, raw } => self.inode(nr, raw)?,
            FcRecord::Tail { .. } => self.settle_early()?,
            FcRecord::Pad | FcRecord::Head { .. } => {}
        }
        if self.fs.journal.blocks_changed() > self.log_blocks {
            return Err(too_many_changes());
        }
        Ok(())
    }

    fn postpone(&mut self, record: Early) -> Result<()> {
        if self.early.len() >= EARLY_MAX {
            let why = "too many records are about inodes that are not in use";
            return Err(Error::corrupt(STRUCTURE, Place::FileSystem, why));
        }
        self.early.push(record);
        Ok(())
    }

    /// At a tail: what was about inodes that came later is done; what is about none was about inodes that are gone.
    fn settle_early(&mut self) -> Result<()> {
        for record in std::mem::take(&mut self.early) {
            if self.existing(record.nr())?.is_none() {
                tracing::debug!(inode = record.nr().0, "a fast-commit record is about an inode that is gone");
                continue;
            }
            match record {
                Early::Add { nr, extent } => self.map_range(nr, extent)?,
                Early::Remove { nr, file_block, len } => self.unmap_range(nr, file_block, len)?,
                // The inode's record, which came since, has counted this link.
                Early::Name(name) => self.put_name(&Name { counted: false, ..name })?,
            }
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        self.settle_early()?;
        for nr in std::mem::take(&mut self.touched) {
            if self.existing(nr)?.is_some_and(|raw| raw.links == 0) {
                self.free(nr)?;
            }
        }
        for nr in std::mem::take(&mut self.parents) {
            self.count_links(nr)?;
        }
        // Its counts of what is free.
        self.update(|h| superblock::modify(h, self.fs, |_| ()))
    }

    /// The inode's record, if the inode is in use.
    fn existing(&self, nr: InodeNr) -> Result<Option<RawInode>> {
        if !self.fs.geometry.holds_file(nr) {
            return Err(Self::corrupt(nr, "is named, which no file can be"));
        }
        if !self.fs.allocator.inode_in_use(&*self.fs.cache, nr)? {
            return Ok(None);
        }
        let raw = self.fs.read_record(nr)?;
        if raw.flags.contains(crate::format::inode::InodeFlags::INLINE_DATA) {
            return Err(Self::inline(nr));
        }
        Ok(Some(raw))
    }

    /// Whether records of the inode must wait for its own (invariant 3).
    fn is_early(&self, nr: InodeNr) -> Result<bool> {
        Ok(self.existing(nr)?.is_none_or(|raw| raw.links == 0))
    }

    fn update<R>(&self, f: impl FnMut(&mut Handle<'_>) -> Result<R>) -> Result<R> {
        Ok(self.fs.cache.update(CREDITS, f)?.1)
    }

    fn corrupt(nr: InodeNr, why: impl std::fmt::Display) -> Error {
        Error::corrupt(STRUCTURE, Place::Inode(nr), format!("the inode {why}"))
    }

    fn inline(nr: InodeNr) -> Error {
        Error::Unsupported(format!(
            "the journal holds a fast commit of inode {nr}, whose data is inline (fast_commit, inline_data): run e2fsck"
        ))
    }
}
