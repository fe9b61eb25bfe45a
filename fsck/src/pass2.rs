//! Pass 2: every directory's blocks and entries.

use crate::blocks::{walk, Runs};
use crate::check::Check;
use crate::index::{Hashes, Tree};
use journalfs::format::dirent::{self, Entry};
use journalfs::format::inode::InodeFlags;
use journalfs::format::{xattr, RawInode};
use journalfs::fs::inode_table;
use journalfs::units::{BlockNr, FileBlock, InodeNr};
use journalfs::{Place, Result};
use std::collections::{BTreeMap, HashSet};

pub(crate) fn directories(check: &mut Check<'_>) -> Result<()> {
    let all: Vec<InodeNr> = check.directories.keys().copied().collect();
    for (done, nr) in all.iter().enumerate() {
        check.progress.step(2, done as u64, all.len() as u64);
        directory(check, *nr)?;
    }
    Ok(())
}

fn directory(check: &mut Check<'_>, nr: InodeNr) -> Result<()> {
    let geometry = check.image.geometry;
    let raw = inode_table::read(check.image, &geometry, nr)?;
    if raw.flags.contains(InodeFlags::INLINE_DATA) {
        return inline(check, nr, &raw);
    }
    let blocks = block_map(check, nr, &raw)?;
    let mut directory = Reader {
        nr,
        seed: geometry.inode_csum_seed(nr, raw.generation),
        names: HashSet::new(),
        dots: 0,
        hashes: None,
    };
    let indexed = raw.flags.contains(InodeFlags::INDEX);
    let tree = if indexed { Tree::read(check, nr, directory.seed, &blocks)? } else { Tree::default() };
    for (file_block, place) in &blocks {
        check.totals.directory_blocks += 1;
        let block = check.image.read(*place)?;
        let where_it_is = format!("directory block {place} (its block {file_block})");
        let usable = if tree.is_index(*file_block) {
            // An index block looks like a directory block with free space in it.
            block.len()
        } else if geometry.has_csum() {
            if let Err(why) = dirent::check_seal(&block, directory.seed) {
                check.report.inode(nr, format!("{where_it_is}: {why}"));
            }
            dirent::usable_bytes(block.len(), true)
        } else {
            block.len()
        };
        directory.hashes = tree.leaf(*file_block);
        entries(check, &mut directory, *file_block, &block, usable, &where_it_is);
    }
    if directory.dots != 2 {
        check.report.inode(nr, "doesn't begin with . and ..");
    }
    Ok(())
}

/// A directory in its inode: the parent's number, entries, and more entries in the attribute system.data.
fn inline(check: &mut Check<'_>, nr: InodeNr, raw: &RawInode) -> Result<()> {
    let geometry = check.image.geometry;
    let mut directory = Reader { nr, seed: 0, names: HashSet::new(), dots: 2, hashes: None };
    let (parent, first) = raw.block.split_at(4);
    let parent = InodeNr(u32::from_le_bytes(parent.try_into().unwrap_or_default()));
    if let Some(known) = check.directories.get_mut(&nr) {
        known.dot_dot = Some(parent);
    }
    // What . and .. would count.
    for target in [nr, parent] {
        if let Some(info) = check.inodes.get_mut(&target) {
            info.entries += 1;
        }
    }
    let more = inode_table::with_bytes(check.image, &geometry, nr, |record| {
        let area = record.get(128 + raw.extra_isize as usize..).unwrap_or_default();
        if !xattr::inode_area_in_use(area) {
            return Ok(Vec::new());
        }
        let attributes = xattr::parse(area, xattr::Area::Inode, Place::Inode(nr))?;
        let data = attributes.iter().find(|a| a.name == xattr::INLINE_DATA).map(|a| a.value);
        Ok(if let Some(xattr::ValueRef::Bytes(bytes)) = data { bytes.to_vec() } else { Vec::new() })
    });
    let more = check.report.take(Some(nr), more)?.unwrap_or_default();
    for (part, usable) in [(first, first.len()), (&more, more.len())] {
        entries(check, &mut directory, FileBlock(1), part, usable, "the directory in its inode");
    }
    Ok(())
}

/// Takes note of the entries of one block.
fn entries(
    check: &mut Check<'_>,
    directory: &mut Reader,
    file_block: FileBlock,
    block: &[u8],
    usable: usize,
    place: &str,
) {
    for entry in dirent::entries(block, usable) {
        match entry {
            Ok(entry) if entry.in_use() => {
                if let Some(why) = directory.entry(check, file_block, &entry) {
                    let name = String::from_utf8_lossy(entry.name).into_owned();
                    check.report.inode(directory.nr, format!("{place}: entry {name:?} {why}"));
                }
            }
            Ok(_) => {}
            Err(why) => check.report.inode(directory.nr, format!("{place}: {why}")),
        }
    }
}

/// The directory's blocks by file block; holes are reported.
fn block_map(check: &mut Check<'_>, nr: InodeNr, raw: &RawInode) -> Result<BTreeMap<FileBlock, BlockNr>> {
    let mut runs = Runs::default();
    walk(check.image, nr, raw, &mut runs)?;
    let mut blocks = BTreeMap::new();
    for (file_block, range) in runs.0 {
        for (offset, place) in range.iter().enumerate() {
            blocks.insert(file_block.plus(offset as u32), place);
        }
    }
    let want = raw.size / check.image.geometry.block_bytes as u64;
    if blocks.len() as u64 != want {
        check
            .report
            .inode(nr, format!("is a directory of {want} blocks, of which {} are there", blocks.len()));
    }
    Ok(blocks)
}

/// One directory while its entries are read.
struct Reader {
    nr: InodeNr,
    seed: u32,
    names: HashSet<Box<[u8]>>,
    /// How many of `.` and `..` came first.
    dots: u32,
    /// What the index says of the names in the block being read.
    hashes: Option<Hashes>,
}

impl Reader {
    /// Takes note of an entry; returns what is wrong with it.
    fn entry(&mut self, check: &mut Check<'_>, file_block: FileBlock, entry: &Entry<'_>) -> Option<String> {
        let target = InodeNr(entry.inode);
        let first = file_block.0 == 0 && (self.dots == 0 && entry.offset == 0 || self.dots == 1);
        match entry.name {
            b"." | b".." if !first => return Some("is not where it should be".into()),
            b"." => {
                self.dots = 1;
                if target != self.nr {
                    return Some(format!("names inode {target}"));
                }
            }
            b".." => {
                self.dots = 2;
                if let Some(directory) = check.directories.get_mut(&self.nr) {
                    directory.dot_dot = Some(target);
                }
            }
            name => {
                if name.is_empty() || name.iter().any(|b| matches!(b, 0 | b'/')) {
                    return Some("has a name that no file can have".into());
                }
                if !self.names.insert(name.into()) {
                    return Some("is there twice".into());
                }
                let hash_seed = &check.image.geometry.hash_seed;
                if self.hashes.is_some_and(|hashes| !hashes.contain(hash_seed, name)) {
                    check.report.inode(
                        self.nr,
                        format!("its index doesn't lead to {:?}", String::from_utf8_lossy(name)),
                    );
                }
            }
        }
        let Some(info) = check
            .inodes
            .get_mut(&target)
            .filter(|_| target.0 >= check.image.geometry.first_inode || target == InodeNr::ROOT)
        else {
            return Some(format!("names inode {target}, which is not in use"));
        };
        info.entries = info.entries.saturating_add(1);
        let kind = info.kind;
        let wrong_kind = check.types_count() && kind.is_some_and(|kind| kind.dirent_type() != entry.kind);
        if !matches!(entry.name, b"." | b"..") {
            if let Some(directory) = check.directories.get_mut(&target) {
                if target == InodeNr::ROOT || directory.parent.is_some() {
                    return Some(format!("is another name of directory {target}"));
                }
                directory.parent = Some(self.nr);
            }
        }
        wrong_kind.then(|| format!("says file type {}, but inode {target} is something else", entry.kind))
    }
}
