//! Replay of fast commits (`fs/ext4/fast_commit.c`): what the kernel logged as operations behind the last full transaction.
//!
//! A record says what an inode, a mapping or a directory entry was when the fast commit was written; bitmaps,
//! block counts and the directories' own records follow from that here. Replaying twice makes no difference, so a crash in the middle is
//! repaired by the next try: the log is emptied only when all of this is home.

use super::alloc::Allocator;
use super::dir::{Dir, DirMut};
use super::{inode_table, map, read_superblock};
use crate::cache::{BlockCache, Handle};
use crate::device::{Device, SharedDevice};
use crate::error::{Error, Place, Result};
use crate::format::geometry::Geometry;
use crate::format::inode::{self, InodeFlags, RawInode};
use crate::format::jbd2::fast_commit::{FcItem, FcName, FcRecord};
use crate::format::{FileKind, Timestamp};
use crate::journal::locate::{read_block, Located};
use crate::journal::recovery::Recovered;
use crate::journal::{fast_commit as log, replay, Journal};
use crate::units::{BlockRange, FileBlock, InodeNr};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

const CACHE_BYTES: u64 = 16 << 20;
/// Blocks that one record may change: a directory's split, an extent tree's growth, bitmaps and descriptors.
const CREDITS: u32 = 64;
/// Metadata blocks that one step of a removal may change.
const REMOVAL_BUDGET: u32 = 16;
/// The most subdirectories that a directory's link count can count.
const SUBDIRECTORIES_MAX: u32 = 64_998;

/// Writes a recovered log home: the transactions' blocks, then the fast commits. Durable on return; the log
/// and needs_recovery stay as they are.
pub fn replay_home(recovered: &Recovered, device: &SharedDevice, located: &Located) -> Result<()> {
    replay::apply(recovered, &**device, &located.area)?;
    let Some(fast_commit) = &recovered.fast_commit else { return Ok(()) };
    tracing::info!(records = fast_commit.records, "replaying fast commits");
    let sb = read_superblock(device)?;
    let geometry = Geometry::new(&sb);
    let journal = Arc::new(Journal::without_log(device.clone(), geometry.block_bytes));
    let cache = BlockCache::new(device.clone(), journal.clone(), geometry.block_bytes, CACHE_BYTES);
    let mut own: Vec<BlockRange> = located.area.runs(0, located.area.len()).collect();
    own.extend(located.area.nodes().iter().map(|nr| BlockRange::new(*nr, 1)));
    let allocator = Arc::new(Allocator::open(&cache, &geometry, 0, &own)?);
    journal.set_observer(allocator.clone());
    let mut replay = Replay {
        cache: &cache,
        allocator: &allocator,
        geometry,
        touched: BTreeSet::new(),
        directories: BTreeSet::new(),
    };
    // Blocks of files must not be taken for the maps and directories that grow on the way.
    for_records(&**device, located, fast_commit, &mut |record| replay.keep(record))?;
    for_records(&**device, located, fast_commit, &mut |record| replay.record(record))?;
    replay.finish()?;
    journal.commit(journal.running_tid())
}

/// Calls `f` on each valid record in order.
fn for_records(
    device: &dyn Device,
    located: &Located,
    fast_commit: &log::FastCommit,
    f: &mut dyn FnMut(&FcRecord<'_>) -> Result<()>,
) -> Result<()> {
    let mut left = fast_commit.records;
    for log_block in fast_commit.log_blocks.clone() {
        let block = read_block(device, located.superblock.block_bytes, located.area.physical(log_block)?)?;
        for item in crate::format::jbd2::fast_commit::records(&block, block.len()) {
            let FcItem::Record(record, _) = item else { break };
            if left == 0 {
                return Ok(());
            }
            left -= 1;
            f(&record)?;
        }
    }
    Ok(())
}

struct Replay<'a> {
    cache: &'a BlockCache,
    allocator: &'a Allocator,
    geometry: Geometry,
    /// Inodes that records named.
    touched: BTreeSet<InodeNr>,
    /// Directories that entries were put into or taken out of.
    directories: BTreeSet<InodeNr>,
}

impl Replay<'_> {
    fn update<R>(&self, f: impl FnMut(&mut Handle<'_>) -> Result<R>) -> Result<R> {
        self.cache.update(CREDITS, f).map(|(_, result)| result)
    }

    /// Keeps a record's blocks from being allocated.
    fn keep(&mut self, record: &FcRecord<'_>) -> Result<()> {
        match record {
            FcRecord::AddRange { physical, len, .. } => {
                let range = BlockRange::new(*physical, *len);
                self.update(|h| self.allocator.adopt(h, range))
            }
            _ => Ok(()),
        }
    }

    fn record(&mut self, record: &FcRecord<'_>) -> Result<()> {
        match record {
            FcRecord::Inode { nr, raw } => self.inode(*nr, raw),
            FcRecord::AddRange { nr, file_block, len, physical, unwritten } => {
                self.touched.insert(*nr);
                self.add_range(*nr, *file_block, BlockRange::new(*physical, *len), *unwritten)
            }
            FcRecord::DelRange { nr, file_block, len } => {
                self.touched.insert(*nr);
                let first = u64::from(file_block.0);
                self.del_range(*nr, first..first + u64::from(*len))
            }
            FcRecord::Create(name) => {
                self.make_directory(name)?;
                self.add_entry(name).map(drop)
            }
            FcRecord::Link(name) => {
                if self.add_entry(name)? {
                    self.change_links(name.nr, 1)?;
                }
                Ok(())
            }
            FcRecord::Unlink(name) => {
                if self.remove_entry(name)? {
                    self.change_links(name.nr, -1)?;
                }
                Ok(())
            }
            FcRecord::Pad | FcRecord::Tail { .. } | FcRecord::Head { .. } => Ok(()),
        }
    }

    /// An inode in use; the record that names it comes behind the one that makes it.
    fn read(&self, h: &Handle<'_>, nr: InodeNr) -> Result<RawInode> {
        let raw = inode_table::read(h, &self.geometry, nr)?;
        if raw.mode == 0 {
            return Err(Error::corrupt("fast commit", Place::Inode(nr), "the inode is not in use"));
        }
        Ok(raw)
    }

    /// Gives an inode the record it had, but for what maps and counts its blocks.
    fn inode(&mut self, nr: InodeNr, logged: &[u8]) -> Result<()> {
        self.touched.insert(nr);
        let geometry = self.geometry;
        let mode = logged.get(..2).map_or(0, |b| u16::from_le_bytes([b[0], b[1]]));
        let is_dir = FileKind::from_mode(mode) == Some(FileKind::Directory);
        // Another generation is another file: the one before it ended.
        let generation = logged.get(100..104).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        let before = self.life(nr)?;
        if before.is_some_and(|before| before.generation != generation) {
            self.end(nr)?;
        }
        self.update(|h| {
            let was_used = self.allocator.adopt_inode(h, nr, is_dir)?;
            let old = if was_used { unless_corrupt(inode_table::read(h, &geometry, nr))? } else { None };
            let old = old.filter(|old| old.mode != 0);
            let mut record = inode_table::with_bytes(h, &geometry, nr, |bytes| Ok(bytes.to_vec()))?;
            if old.is_none() {
                record.fill(0);
            }
            for (to, from) in record.iter_mut().zip(logged) {
                *to = *from;
            }
            inode::seal(&mut record, &geometry, nr);
            let mut raw = RawInode::decode(&record, &geometry, nr)?;
            match old {
                Some(old) if old.kind() == raw.kind() && old.maps_blocks() && raw.maps_blocks() => {
                    raw.block = old.block;
                    raw.blocks = old.blocks;
                    raw.flags.set(InodeFlags::EXTENTS, old.has_extents());
                    if is_dir {
                        raw.size = old.size;
                        raw.flags.set(InodeFlags::INDEX, old.flags.contains(InodeFlags::INDEX));
                    }
                }
                _ if raw.maps_blocks() => {
                    map::init(&geometry, &mut raw);
                    raw.blocks = 0;
                    if is_dir {
                        raw.size = 0;
                        raw.flags.remove(InodeFlags::INDEX);
                    }
                }
                // Its own words, not a map: they were logged with the rest.
                _ => {}
            }
            raw.encode(&mut record, &geometry, nr)?;
            inode_table::modify_bytes(h, &geometry, nr, |bytes| {
                bytes.copy_from_slice(&record);
                Ok(())
            })
        })
    }

    /// The record of an inode in use. One that is marked, but not readable, was marked by a replay that a crash ended
    /// before the record was written: it has no life yet.
    fn life(&self, nr: InodeNr) -> Result<Option<RawInode>> {
        if !self.allocator.inode_is_marked(self.cache, nr)? {
            return Ok(None);
        }
        let raw = unless_corrupt(inode_table::read(self.cache, &self.geometry, nr))?;
        Ok(raw.filter(|raw| raw.mode != 0))
    }

    fn add_range(
        &self,
        nr: InodeNr,
        file_block: FileBlock,
        range: BlockRange,
        unwritten: bool,
    ) -> Result<()> {
        let mut done = 0;
        // Each round maps at least one block.
        while done < range.len {
            let at = file_block.plus(done);
            let want = BlockRange::new(range.start.plus(u64::from(done)), range.len - done);
            done += self.update(|h| {
                let mut raw = self.read(h, nr)?;
                if !raw.maps_blocks() {
                    return Err(Error::corrupt("fast commit", Place::Inode(nr), "the inode maps no blocks"));
                }
                let found = map::lookup(&self.geometry, h, nr, &raw, at, want.len)?;
                let part = BlockRange::new(want.start, found.len.clamp(1, want.len));
                let blocks = u64::from(at.0)..u64::from(at.0) + u64::from(part.len);
                match found.physical {
                    Some(physical) if physical == part.start => {
                        if found.unwritten && !unwritten {
                            map::set_written(self.allocator, h, nr, &mut raw, blocks)?;
                        } else if !found.unwritten && unwritten {
                            map::set_unwritten(self.allocator, h, nr, &mut raw, blocks)?;
                        }
                    }
                    Some(physical) => {
                        // Mapped elsewhere: taken out now, mapped in the next round.
                        self.allocator.adopt(h, BlockRange::new(physical, part.len))?;
                        map::remove(self.allocator, h, nr, &mut raw, blocks, REMOVAL_BUDGET)?;
                        inode_table::write(h, &self.geometry, nr, &raw)?;
                        return Ok(0);
                    }
                    None => {
                        self.allocator.adopt(h, part)?;
                        map::insert(self.allocator, h, nr, &mut raw, at, part, unwritten)?;
                    }
                }
                inode_table::write(h, &self.geometry, nr, &raw)?;
                Ok(part.len)
            })?;
        }
        Ok(())
    }

    fn del_range(&self, nr: InodeNr, blocks: Range<u64>) -> Result<()> {
        let mut rest = Some(blocks);
        while let Some(blocks) = rest {
            rest = self.update(|h| {
                let mut raw = self.read(h, nr)?;
                if !raw.maps_blocks() {
                    return Ok(None);
                }
                // What is freed must be marked, even if another file's record freed it before.
                self.adopt_mapped(h, nr, &raw, blocks.clone())?;
                let removal = map::remove(self.allocator, h, nr, &mut raw, blocks.clone(), REMOVAL_BUDGET)?;
                inode_table::write(h, &self.geometry, nr, &raw)?;
                Ok(removal.rest)
            })?;
        }
        Ok(())
    }

    /// Marks the blocks that the inode maps in this part of the file.
    fn adopt_mapped(
        &self,
        h: &mut Handle<'_>,
        nr: InodeNr,
        raw: &RawInode,
        blocks: Range<u64>,
    ) -> Result<()> {
        let end = blocks.end.min(1 << 32);
        let mut at = blocks.start;
        while at < end {
            let file_block = FileBlock(at as u32);
            let len_max = u32::try_from(end - at).unwrap_or(u32::MAX);
            let found = map::lookup(&self.geometry, h, nr, raw, file_block, len_max)?;
            if let Some(range) = found.range() {
                self.allocator.adopt(h, range)?;
            }
            at += u64::from(found.len.max(1));
        }
        Ok(())
    }

    /// A directory that was created has a first block, with `.` and `..`.
    fn make_directory(&mut self, name: &FcName<'_>) -> Result<()> {
        self.touched.insert(name.nr);
        let made = self.update(|h| {
            let mut raw = self.read(h, name.nr)?;
            if !raw.is_dir() || raw.size != 0 {
                return Ok(raw.is_dir());
            }
            let (geometry, allocator) = (&self.geometry, self.allocator);
            DirMut { geometry, allocator, h, nr: name.nr, raw: &mut raw }.init(name.parent)?;
            inode_table::write(h, geometry, name.nr, &raw)?;
            Ok(true)
        })?;
        if made {
            self.directories.insert(name.nr);
        }
        Ok(())
    }

    /// Puts an entry into its directory; returns whether it was missing.
    fn add_entry(&mut self, name: &FcName<'_>) -> Result<bool> {
        self.directories.insert(name.parent);
        self.change_directory(name, |directory, target, name| {
            match directory.view().lookup(&*directory.h, name.name)? {
                Some(found) if found.inode == name.nr => return Ok(false),
                Some(_) => drop(directory.replace(name.name, name.nr, kind_byte(target))?),
                None => directory.insert(name.name, name.nr, kind_byte(target))?,
            }
            Ok(true)
        })
    }

    /// Takes an entry out of its directory; returns whether it was there.
    fn remove_entry(&mut self, name: &FcName<'_>) -> Result<bool> {
        self.directories.insert(name.parent);
        self.touched.insert(name.nr);
        self.change_directory(name, |directory, _, name| {
            match directory.view().lookup(&*directory.h, name.name)? {
                Some(found) if found.inode == name.nr => directory.remove(name.name).map(|_| true),
                _ => Ok(false),
            }
        })
    }

    fn change_directory(
        &self,
        name: &FcName<'_>,
        f: impl Fn(&mut DirMut<'_, '_>, &RawInode, &FcName<'_>) -> Result<bool>,
    ) -> Result<bool> {
        self.update(|h| {
            let mut raw = self.read(h, name.parent)?;
            let target = inode_table::read(h, &self.geometry, name.nr)?;
            if !raw.is_dir() {
                return Err(Error::corrupt("fast commit", Place::Inode(name.parent), "is no directory"));
            }
            let (geometry, allocator) = (&self.geometry, self.allocator);
            let mut directory = DirMut { geometry, allocator, h, nr: name.parent, raw: &mut raw };
            let changed = f(&mut directory, &target, name)?;
            if changed {
                inode_table::write(h, geometry, name.parent, &raw)?;
            }
            Ok(changed)
        })
    }

    fn change_links(&self, nr: InodeNr, by: i16) -> Result<()> {
        self.update(|h| {
            let mut raw = inode_table::read(h, &self.geometry, nr)?;
            // Directories' links are counted at the end.
            if raw.is_dir() && by > 0 {
                return Ok(());
            }
            raw.links = if raw.is_dir() { 0 } else { raw.links.saturating_add_signed(by) };
            inode_table::write(h, &self.geometry, nr, &raw)
        })
    }

    /// What follows from the records: bitmaps, the end of inodes without links, and link counts of directories.
    fn finish(&mut self) -> Result<()> {
        let mut ended = Vec::new();
        for nr in &self.touched {
            let raw = inode_table::read(self.cache, &self.geometry, *nr)?;
            if raw.mode == 0 {
                continue;
            }
            if raw.links == 0 {
                ended.push(*nr);
            } else if raw.maps_blocks() {
                self.update(|h| self.adopt_mapped(h, *nr, &raw, 0..1 << 32))?;
            }
        }
        for nr in ended {
            self.end(nr)?;
        }
        for nr in &self.directories {
            let raw = inode_table::read(self.cache, &self.geometry, *nr)?;
            if raw.is_dir() && raw.links != 0 {
                self.count_links(*nr, raw)?;
            }
        }
        Ok(())
    }

    fn end(&self, nr: InodeNr) -> Result<()> {
        self.del_range(nr, 0..1 << 32)?;
        self.update(|h| {
            let mut raw = inode_table::read(h, &self.geometry, nr)?;
            if raw.file_acl.0 != 0 {
                let why = "ends with an attribute block, which no fast commit does".to_string();
                return Err(Error::corrupt("fast commit", Place::Inode(nr), why));
            }
            self.allocator.free_inode(h, nr, raw.is_dir())?;
            raw.mode = 0;
            raw.size = 0;
            inode_table::clear(h, &self.geometry, nr, &raw, Timestamp::now().seconds as u32)
        })
    }

    fn count_links(&self, nr: InodeNr, mut raw: RawInode) -> Result<()> {
        let mut subdirectories: u32 = 0;
        let mut unknown = Vec::new();
        Dir::new(&self.geometry, nr, &raw).read(self.cache, 0, &mut |entry| {
            if !matches!(entry.name, b"." | b"..") {
                match entry.kind {
                    0 => unknown.push(entry.nr),
                    kind => subdirectories += u32::from(kind == FileKind::Directory.dirent_type()),
                }
            }
            true
        })?;
        for entry in unknown {
            subdirectories += u32::from(inode_table::read(self.cache, &self.geometry, entry)?.is_dir());
        }
        raw.links = if subdirectories > SUBDIRECTORIES_MAX { 1 } else { 2 + subdirectories as u16 };
        self.update(|h| inode_table::write(h, &self.geometry, nr, &raw))
    }
}

fn kind_byte(raw: &RawInode) -> u8 {
    raw.kind().map_or(0, FileKind::dirent_type)
}

fn unless_corrupt<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Error::Corrupt { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}
