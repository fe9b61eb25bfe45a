//! The check: five passes over what [`Image`] shows, in the order that each needs the one before.
//! They only look; what could be repaired, and how, is a matter for later passes of their own.

use crate::image::Image;
use crate::progress::Progress;
use crate::report::Report;
use crate::usage::Usage;
use crate::{groups, pass1, pass2, pass3, pass4, pass5};
use journalfs::format::features::Incompat;
use journalfs::format::group::GroupDescriptor;
use journalfs::format::superblock::Superblock;
use journalfs::format::{FileKind, GroupDescriptor as Descriptor};
use journalfs::units::{BlockNr, InodeNr};
use journalfs::Result;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// What is remembered of an inode in use.
#[derive(Copy, Clone, Debug)]
pub(crate) struct InodeInfo {
    /// What it is; `None` if its mode says nothing that exists.
    pub(crate) kind: Option<FileKind>,
    /// `i_links_count`.
    pub(crate) links: u16,
    /// Directory entries that name it.
    pub(crate) entries: u32,
    /// Whether a directory entry is expected to name it.
    pub(crate) hidden: bool,
}

/// What is remembered of a directory.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Directory {
    /// The directory whose entry names it.
    pub(crate) parent: Option<InodeNr>,
    /// What its `..` says.
    pub(crate) dot_dot: Option<InodeNr>,
}

/// The state that the passes share.
pub(crate) struct Check<'a> {
    pub(crate) image: &'a Image,
    pub(crate) report: &'a mut Report,
    pub(crate) progress: Progress,
    /// By group; `None` where the descriptor is damaged.
    pub(crate) descriptors: Vec<Option<Descriptor>>,
    pub(crate) usage: Usage,
    /// Inodes whose deletion or truncation was under way.
    pub(crate) orphans: BTreeSet<InodeNr>,
    pub(crate) inodes: HashMap<InodeNr, InodeInfo>,
    pub(crate) directories: BTreeMap<InodeNr, Directory>,
    /// Attribute blocks: references that the block says, and those seen.
    pub(crate) attribute_blocks: BTreeMap<BlockNr, (u32, u32)>,
    pub(crate) totals: Totals,
}

/// What the check has seen, for its last line.
#[derive(Default, Debug, Clone)]
pub(crate) struct Totals {
    pub(crate) inodes: u64,
    pub(crate) directories: u64,
    pub(crate) directory_blocks: u64,
    pub(crate) blocks: u64,
    pub(crate) free_blocks: u64,
    pub(crate) free_inodes: u64,
}

/// Blocks that a count of free "blocks" in a descriptor stands for.
pub(crate) fn blocks_per_cluster(superblock: &Superblock) -> u64 {
    1 << superblock.log_cluster_size.saturating_sub(superblock.log_block_size).min(31)
}

/// Runs the passes.
pub(crate) fn run(
    image: &Image,
    report: &mut Report,
    progress: Progress,
    orphans: BTreeSet<InodeNr>,
) -> Result<Totals> {
    let descriptors: Vec<Option<GroupDescriptor>> = groups::descriptors(image, report)?;
    if descriptors.iter().any(Option::is_none) {
        // Where the bitmaps and inodes are is not known, so all else would look wrong.
        report.skipped("anything behind the group descriptors");
        return Ok(Totals::default());
    }
    let usage = Usage::new(&image.geometry, &descriptors);
    let mut check = Check {
        image,
        report,
        progress,
        descriptors,
        usage,
        orphans,
        inodes: HashMap::new(),
        directories: BTreeMap::new(),
        attribute_blocks: BTreeMap::new(),
        totals: Totals::default(),
    };
    groups::tables(&mut check);
    groups::unchecked(&mut check);
    pass1::inodes(&mut check)?;
    pass2::directories(&mut check)?;
    pass3::connections(&mut check);
    pass4::links(&mut check);
    pass5::bitmaps(&mut check)?;
    crate::paths::resolve(&mut check);
    Ok(check.totals)
}

impl Check<'_> {
    /// Whether directory entries say what they name: with filetype, but never on the Hurd.
    pub(crate) fn types_count(&self) -> bool {
        const OS_HURD: u32 = 1;
        let incompat = self.image.geometry.features.incompat;
        incompat.contains(Incompat::FILETYPE) && self.image.superblock.creator_os != OS_HURD
    }
}
