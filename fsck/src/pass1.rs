//! Pass 1: every inode in use, and the blocks that it uses.

use crate::blocks::{walk, Mapped, Runs, Visitor};
use crate::check::{Check, Directory, InodeInfo};
use crate::report::Report;
use crate::resize;
use crate::usage::Usage;
use journalfs::format::bitmap;
use journalfs::format::features::{Compat, Incompat, RoCompat};
use journalfs::format::group::GroupFlags;
use journalfs::format::inode::InodeFlags;
use journalfs::format::{xattr, FileKind, Geometry, RawInode};
use journalfs::units::{BlockNr, BlockRange, GroupNr, InodeNr};
use journalfs::{Error, Place, Result};

/// Table blocks read at once.
const TABLE_BLOCKS: u32 = 64;

const BAD_BLOCKS: InodeNr = InodeNr(1);

pub(crate) fn inodes(check: &mut Check<'_>) -> Result<()> {
    let groups = check.image.geometry.group_count;
    for group in (0..groups).map(GroupNr) {
        check.progress.step(1, group.0 as u64, groups as u64);
        table(check, group)?;
    }
    for (nr, (said, seen)) in &check.attribute_blocks {
        if said != seen {
            check.report.problem(format!("attribute block {nr} counts {said} references, but has {seen}"));
        }
    }
    Ok(())
}

/// The inodes of one group.
fn table(check: &mut Check<'_>, group: GroupNr) -> Result<()> {
    let geometry = check.image.geometry;
    let Some(descriptor) = check.descriptors.get(group.0 as usize).cloned().flatten() else { return Ok(()) };
    if descriptor.flags.contains(GroupFlags::INODE_UNINIT) {
        return Ok(());
    }
    let bits = check.image.read(descriptor.inode_bitmap)?;
    if geometry.has_csum() && bitmap::inode_csum(&bits, &geometry) != descriptor.inode_bitmap_csum {
        let place = descriptor.inode_bitmap;
        check
            .report
            .problem(format!("the inode bitmap of group {group} (block {place}) has a wrong checksum"));
    }
    let count = geometry.inodes_per_group - descriptor.itable_unused;
    if let Some(index) = bitmap::find_set(&bits, count..geometry.inodes_per_group) {
        let nr = geometry.inode_at(group, index);
        check.report.inode(nr, "is marked in use, but lies in the part of the table that was never used");
    }
    let per_block = geometry.inodes_per_block();
    let blocks = count.div_ceil(per_block);
    for first in (0..blocks).step_by(TABLE_BLOCKS as usize) {
        let range =
            BlockRange::new(descriptor.inode_table.plus(first as u64), TABLE_BLOCKS.min(blocks - first));
        let bytes = check.image.read_run(range)?;
        let indices = first * per_block..count.min((first + range.len) * per_block);
        for (index, record) in indices.zip(bytes.chunks_exact(geometry.inode_bytes as usize)) {
            inode(check, geometry.inode_at(group, index), record, bitmap::test(&bits, index))?;
        }
    }
    Ok(())
}

fn inode(check: &mut Check<'_>, nr: InodeNr, record: &[u8], marked: bool) -> Result<()> {
    let geometry = check.image.geometry;
    let reserved = nr.0 < geometry.first_inode && nr != InodeNr::ROOT;
    let links = record.get(26..28).map_or(0, |b| u16::from_le_bytes([b[0], b[1]]));
    if !marked {
        if links > 0 {
            check.report.inode(nr, format!("has {links} links, but is marked free"));
        } else if geometry.has_csum() {
            check.report.take(Some(nr), RawInode::decode(record, &geometry, nr))?;
        }
        return Ok(());
    }
    check.totals.inodes += 1;
    let Some(raw) = check.report.take(Some(nr), RawInode::decode(record, &geometry, nr))? else {
        // It is in use all the same: names that lead to it are no further problem.
        check.inodes.insert(nr, InodeInfo { kind: None, links, entries: 0, hidden: true });
        return Ok(());
    };
    let orphan = check.orphans.contains(&nr);
    if links == 0 && !reserved && !orphan {
        check.report.inode(nr, "is marked in use, but has no links and waits for no deletion");
        return Ok(());
    }
    let hidden = reserved || orphan && links == 0 || is_hidden(check, nr, &raw);
    check.inodes.insert(nr, InodeInfo { kind: raw.kind(), links, entries: 0, hidden });
    if reserved && raw.mode == 0 && (nr != BAD_BLOCKS || raw.block == [0; 60]) {
        return Ok(());
    }
    if raw.kind().is_none() && nr != BAD_BLOCKS {
        check.report.inode(nr, format!("has mode {:o}, which says no kind of file", raw.mode));
        return Ok(());
    }
    if raw.is_dir() {
        check.directories.insert(nr, Directory::default());
        check.totals.directories += 1;
    }
    if raw.dtime != 0 && links > 0 && !orphan {
        check.report.inode(nr, "is in use, but has a time of deletion");
    }
    let features = &geometry.features;
    if raw.flags.contains(InodeFlags::INLINE_DATA) && !features.incompat.contains(Incompat::INLINE_DATA) {
        check.report.inode(nr, "has its data inline, but the file system has no inline_data");
    }
    if raw.file_acl.0 != 0 && !features.compat.contains(Compat::EXT_ATTR) {
        check.report.inode(nr, "has attributes, but the file system has no ext_attr");
    }
    attributes(check, nr, &raw, record)?;
    blocks(check, nr, &raw)?;
    symlink(check, nr, &raw)
}

/// The target of a symbolic link: as long as its size says, in the inode or in one block.
fn symlink(check: &mut Check<'_>, nr: InodeNr, raw: &RawInode) -> Result<()> {
    if !raw.is_symlink() || raw.flags.intersects(InodeFlags::INLINE_DATA | InodeFlags::ENCRYPT) {
        return Ok(());
    }
    let mut runs = Runs::default();
    let target = if raw.maps_blocks() {
        walk(check.image, nr, raw, &mut runs)?;
        match runs.0.first() {
            Some((_, range)) => check.image.read(range.start)?.to_vec(),
            None => Vec::new(),
        }
    } else {
        raw.block.to_vec()
    };
    let len = target.iter().position(|b| *b == 0);
    if raw.size == 0 || len.map(|len| len as u64) != Some(raw.size) {
        check.report.inode(nr, "is a symbolic link whose target doesn't have its size");
    }
    Ok(())
}

/// Inodes that no directory entry names.
fn is_hidden(check: &Check<'_>, nr: InodeNr, raw: &RawInode) -> bool {
    let sb = &check.image.superblock;
    let own = [sb.orphan_file_inum, sb.usr_quota_inum, sb.grp_quota_inum, sb.prj_quota_inum, sb.journal_inum];
    own.contains(&nr.0) || raw.flags.contains(InodeFlags::EA_INODE)
}

/// What a walk over an inode's map adds up to.
struct Owner<'a> {
    nr: InodeNr,
    usage: &'a mut Usage,
    report: &'a mut Report,
    /// Blocks of the map and the file.
    count: u64,
    /// One behind the last file block that has a block, and that has been written.
    end: u64,
    written_end: u64,
    shares: bool,
    damaged: bool,
}

impl Owner<'_> {
    fn mark(&mut self, range: BlockRange) -> bool {
        self.count += range.len as u64;
        match self.usage.mark(range) {
            Some((first, count)) if !self.shares => {
                self.report.inode(
                    self.nr,
                    format!("uses {count} blocks that are in use already, from block {first}"),
                );
                false
            }
            _ => true,
        }
    }
}

impl Visitor for Owner<'_> {
    fn mapped(&mut self, mapped: Mapped) -> bool {
        match mapped {
            Mapped::Node(nr) => self.mark(BlockRange::new(nr, 1)),
            Mapped::Data { file_block, range, unwritten } => {
                let end = file_block.0 as u64 + range.len as u64;
                self.end = self.end.max(end);
                if !unwritten {
                    self.written_end = self.written_end.max(end);
                }
                self.mark(range)
            }
        }
    }

    fn damaged(&mut self, error: Error) {
        self.damaged = true;
        self.report.inode(self.nr, error.to_string());
    }
}

fn blocks(check: &mut Check<'_>, nr: InodeNr, raw: &RawInode) -> Result<()> {
    let geometry = check.image.geometry;
    let features = geometry.features;
    let maps = if nr == BAD_BLOCKS { raw.block != [0; 60] } else { raw.maps_blocks() };
    if nr == InodeNr::RESIZE {
        return resize::reserve(check, &raw.block);
    }
    let mut owner = Owner {
        nr,
        usage: &mut check.usage,
        report: check.report,
        count: 0,
        end: 0,
        written_end: 0,
        shares: features.ro_compat.contains(RoCompat::SHARED_BLOCKS),
        damaged: false,
    };
    if maps {
        walk(check.image, nr, raw, &mut owner)?;
    }
    if raw.file_acl.0 != 0 && geometry.holds_block(raw.file_acl) {
        owner.count += 1;
    }
    let (count, end, written_end, damaged) = (owner.count, owner.end, owner.written_end, owner.damaged);
    check.totals.blocks += count;
    if damaged || nr == BAD_BLOCKS {
        return Ok(());
    }
    sizes(check, nr, raw, end, written_end);
    if features.ro_compat.contains(RoCompat::BIGALLOC) {
        return Ok(());
    }
    let said = raw.blocks;
    let sectors = count * geometry.sectors_per_block() as u64;
    // A value in another inode is counted in the owner's blocks, too.
    if said != sectors && !features.incompat.contains(Incompat::EA_INODE) {
        check.report.inode(nr, format!("counts {said} sectors, but uses {sectors}"));
    }
    Ok(())
}

/// Compares an inode's size with its blocks.
fn sizes(check: &mut Check<'_>, nr: InodeNr, raw: &RawInode, end: u64, written_end: u64) {
    if raw.flags.contains(InodeFlags::INLINE_DATA) || !raw.maps_blocks() {
        return;
    }
    let block_bytes = check.image.geometry.block_bytes as u64;
    let blocks = raw.size.div_ceil(block_bytes);
    let wrong = match raw.kind() {
        Some(FileKind::Directory) => raw.size % block_bytes != 0 || blocks == 0 || blocks < end,
        // verity keeps its data behind the end.
        // One block more is tolerated, as e2fsck does.
        Some(FileKind::Regular) => blocks + 1 < written_end && !raw.flags.contains(InodeFlags::VERITY),
        _ => false,
    };
    if wrong {
        check
            .report
            .inode(nr, format!("has a size of {} bytes, but blocks up to file block {end}", raw.size));
    }
}

/// The attributes in the inode, and its attribute block.
fn attributes(check: &mut Check<'_>, nr: InodeNr, raw: &RawInode, record: &[u8]) -> Result<()> {
    let geometry = check.image.geometry;
    let area = record.get(128 + raw.extra_isize as usize..).unwrap_or_default();
    if geometry.inode_bytes > 128 && xattr::inode_area_in_use(area) {
        let parsed = xattr::parse(area, xattr::Area::Inode, Place::Inode(nr)).map(drop);
        check.report.take(Some(nr), parsed)?;
    }
    let block_nr = raw.file_acl;
    if block_nr.0 == 0 {
        return Ok(());
    }
    if !geometry.holds_block(block_nr) {
        check
            .report
            .inode(nr, format!("has its attribute block at block {block_nr}, outside the file system"));
        return Ok(());
    }
    if let Some((_, seen)) = check.attribute_blocks.get_mut(&block_nr) {
        *seen += 1;
        return Ok(());
    }
    if let Some((first, _)) = check.usage.mark(BlockRange::new(block_nr, 1)) {
        check.report.inode(nr, format!("has its attributes in block {first}, which is in use already"));
        return Ok(());
    }
    let block = check.image.read(block_nr)?;
    let verified = attribute_block(&geometry, &block, block_nr);
    check.report.take(Some(nr), verified)?;
    check.attribute_blocks.insert(block_nr, (xattr::refcount(&block), 1));
    Ok(())
}

fn attribute_block(geometry: &Geometry, block: &[u8], nr: BlockNr) -> Result<()> {
    xattr::verify_block(block, nr, geometry.has_csum().then_some(geometry.csum_seed))?;
    xattr::parse(block, xattr::Area::Block, Place::Block(nr)).map(drop)
}
