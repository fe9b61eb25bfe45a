//! Orphans: inodes without a name that are still open, or whose truncation is under way. They are on
//! disk (in the orphan file's slots, else on the list through `s_last_orphan` and `i_dtime`), so that a
//! crash can't leak them: the next mount finishes what was begun.
//!
//! The disk's list is the truth; memory keeps only what a removal must find quickly: who stands before
//! an inode on the list, and in which slot an inode is. Memory changes when a handle is published
//! ([`Handle::on_publish`]), under the update lock, so it never differs from what handles see.

use super::{inode_table, map, superblock, Fs};
use crate::cache::{BlockCache, Handle, ReadBlock};
use crate::error::{Error, Place, Result};
use crate::fault::{injected, Fault};
use crate::format::geometry::Geometry;
use crate::format::inode::RawInode;
use crate::format::orphan_file;
use crate::sync::Mutex;
use crate::units::{BlockNr, FileBlock, InodeNr};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Where an orphan is recorded.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Spot {
    /// On the list; a higher number stands nearer to the head.
    List(u64),
    /// In the orphan file: its block there, and the slot.
    Slot(usize, u32),
}

#[derive(Default)]
struct Memory {
    spots: FxHashMap<InodeNr, Spot>,
    list: BTreeMap<u64, InodeNr>,
    next_order: u64,
    /// Where to look first for a free slot.
    slot_hint: usize,
}

/// The orphans known in memory.
#[derive(Default)]
pub(crate) struct Orphans {
    memory: Arc<Mutex<Memory>>,
    /// The orphan file's blocks; empty without that feature.
    pub(super) file_blocks: Vec<BlockNr>,
    /// Seed of the orphan file's block checksums.
    pub(super) file_seed: u32,
}

impl Orphans {
    /// Orphans of a file system with an orphan file.
    pub(crate) fn with_file(cache: &BlockCache, geometry: &Geometry, nr: InodeNr) -> Result<Self> {
        let raw = inode_table::read(cache, geometry, nr)?;
        let count = raw.size / geometry.block_bytes as u64;
        // The kernel makes it of at most 512 blocks.
        if count > 4096 {
            return Err(Error::corrupt("orphan file", Place::Inode(nr), format!("it has {count} blocks")));
        }
        let mut file_blocks = Vec::new();
        for block in 0..count as u32 {
            let mapping = map::lookup(geometry, cache, nr, &raw, FileBlock(block), 1)?;
            file_blocks.push(mapping.physical.filter(|_| !mapping.unwritten).ok_or_else(|| {
                Error::corrupt("orphan file", Place::Inode(nr), format!("its block {block} is a hole"))
            })?);
        }
        let file_seed = geometry.inode_csum_seed(nr, raw.generation);
        Ok(Self { memory: Arc::default(), file_blocks, file_seed })
    }

    /// Whether the inode is recorded as an orphan.
    pub(crate) fn contains(&self, nr: InodeNr) -> bool {
        self.memory.lock().spots.contains_key(&nr)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.memory.lock().spots.len()
    }
}

impl Fs {
    /// Records an orphan, in the handle that makes it one. `raw` is the record as the handle has it.
    pub(crate) fn orphan_add(&self, h: &mut Handle<'_>, nr: InodeNr, raw: &RawInode) -> Result<()> {
        if injected(Fault::OrphanNotRecorded) {
            return inode_table::write(h, &self.geometry, nr, raw);
        }
        if self.orphans.contains(nr) {
            return inode_table::write(h, &self.geometry, nr, raw);
        }
        if let Some((index, slot)) = self.free_slot(h)? {
            self.set_slot(h, index, slot, Some(nr))?;
            inode_table::set_next_orphan(h, &self.geometry, nr, raw, 0)?;
            let memory = self.orphans.memory.clone();
            h.on_publish(move || {
                let mut memory = memory.lock();
                memory.slot_hint = index;
                memory.spots.insert(nr, Spot::Slot(index, slot));
            });
            return Ok(());
        }
        let head = superblock::read(h, &self.geometry)?.last_orphan;
        inode_table::set_next_orphan(h, &self.geometry, nr, raw, head)?;
        superblock::modify(h, self, |sb| sb.last_orphan = nr.0)?;
        let memory = self.orphans.memory.clone();
        h.on_publish(move || {
            let mut memory = memory.lock();
            let order = memory.next_order;
            memory.next_order += 1;
            memory.list.insert(order, nr);
            memory.spots.insert(nr, Spot::List(order));
        });
        Ok(())
    }

    /// Takes an orphan off the record, in the handle that finishes it (frees it, or ends its truncation).
    /// The caller writes or clears the inode's record after this.
    pub(crate) fn orphan_remove(&self, h: &mut Handle<'_>, nr: InodeNr) -> Result<()> {
        let (spot, before) = {
            let memory = self.orphans.memory.lock();
            let Some(spot) = memory.spots.get(&nr).copied() else { return Ok(()) };
            let before = match spot {
                Spot::List(order) => memory.list.range(order + 1..).next().map(|(_, nr)| *nr),
                Spot::Slot(..) => None,
            };
            (spot, before)
        };
        match spot {
            Spot::Slot(index, slot) => self.set_slot(h, index, slot, None)?,
            Spot::List(_) => {
                let next = inode_table::read(h, &self.geometry, nr)?.dtime;
                match before {
                    None => superblock::modify(h, self, |sb| sb.last_orphan = next)?,
                    Some(before) => {
                        let raw = inode_table::read(h, &self.geometry, before)?;
                        inode_table::set_next_orphan(h, &self.geometry, before, &raw, next)?;
                    }
                }
                let mut raw = inode_table::read(h, &self.geometry, nr)?;
                raw.dtime = 0;
                inode_table::set_next_orphan(h, &self.geometry, nr, &raw, 0)?;
            }
        }
        let memory = self.orphans.memory.clone();
        h.on_publish(move || {
            let mut memory = memory.lock();
            memory.spots.remove(&nr);
            if let Spot::List(order) = spot {
                memory.list.remove(&order);
            }
        });
        Ok(())
    }

    fn orphan_block(&self, r: &impl ReadBlock, index: usize) -> Result<Arc<crate::device::Block>> {
        let nr = self.orphan_block_nr(index)?;
        let block = r.read_block(nr)?;
        if !block.is_verified() {
            orphan_file::verify(&block, &self.geometry, self.orphans.file_seed, nr)?;
            block.set_verified();
        }
        Ok(block)
    }

    fn orphan_block_nr(&self, index: usize) -> Result<BlockNr> {
        self.orphans
            .file_blocks
            .get(index)
            .copied()
            .ok_or_else(|| Error::corrupt("orphan file", Place::FileSystem, format!("has no block {index}")))
    }

    fn free_slot(&self, h: &Handle<'_>) -> Result<Option<(usize, u32)>> {
        let blocks = self.orphans.file_blocks.len();
        let hint = self.orphans.memory.lock().slot_hint;
        for i in 0..blocks {
            let index = (hint + i) % blocks;
            let block = self.orphan_block(h, index)?;
            let free = (0..orphan_file::entries_per_block(&self.geometry))
                .find(|slot| orphan_file::entry(&block, *slot).is_none());
            if let Some(slot) = free {
                return Ok(Some((index, slot)));
            }
        }
        Ok(None)
    }

    fn set_slot(&self, h: &mut Handle<'_>, index: usize, slot: u32, value: Option<InodeNr>) -> Result<()> {
        self.orphan_block(h, index)?;
        let nr = self.orphan_block_nr(index)?;
        let block = h.modify(nr)?;
        orphan_file::set_entry(block, slot, value);
        orphan_file::seal(block, &self.geometry, self.orphans.file_seed, nr);
        Ok(())
    }

    /// Finds the orphans that the disk records, into memory; for mount, before the first handle.
    /// The newest comes first. The list ends where it makes no sense.
    pub(crate) fn load_orphans(&self) -> Result<Loaded> {
        let mut loaded = self.read_orphan_list()?;
        let count = loaded.orphans.len() as u64;
        let mut memory = self.orphans.memory.lock();
        memory.next_order = count;
        for (i, nr) in loaded.orphans.iter().enumerate() {
            let order = count - 1 - i as u64;
            memory.list.insert(order, *nr);
            memory.spots.insert(*nr, Spot::List(order));
        }
        for index in 0..self.orphans.file_blocks.len() {
            let block = self.orphan_block(&*self.cache, index)?;
            for slot in 0..orphan_file::entries_per_block(&self.geometry) {
                let Some(nr) = orphan_file::entry(&block, slot) else { continue };
                if memory.spots.contains_key(&nr) {
                    tracing::warn!(inode = nr.0, "an orphan is recorded twice");
                    continue;
                }
                memory.spots.insert(nr, Spot::Slot(index, slot));
                loaded.orphans.push(nr);
            }
        }
        Ok(loaded)
    }

    /// The list, newest first, as far as it makes sense.
    fn read_orphan_list(&self) -> Result<Loaded> {
        let mut loaded = Loaded { orphans: Vec::new(), broken: None };
        let mut seen = FxHashSet::default();
        let mut next = superblock::read(&*self.cache, &self.geometry)?.last_orphan;
        while next != 0 {
            let nr = InodeNr(next);
            let follow = if !self.geometry.holds_file(nr) || nr == InodeNr::ROOT {
                Err(Error::corrupt("orphan list", Place::Inode(nr), "no such file"))
            } else if !seen.insert(nr) {
                Err(Error::corrupt("orphan list", Place::Inode(nr), "runs in a circle"))
            } else {
                inode_table::read(&*self.cache, &self.geometry, nr)
            };
            match follow {
                Ok(raw) => {
                    loaded.orphans.push(nr);
                    next = raw.dtime;
                }
                Err(why @ Error::Corrupt { .. }) => {
                    loaded.broken = Some(Broken { after: loaded.orphans.last().copied(), why });
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(loaded)
    }

    /// Ends the list on disk behind an inode, or makes it empty.
    pub(crate) fn cut_orphan_list(&self, after: Option<InodeNr>) -> Result<()> {
        // Not for what `errors=` says: nothing else has been changed yet, and a broken list must not be added to.
        let cut = self.cache.update(8, |h| match after {
            None => superblock::modify(h, self, |sb| sb.last_orphan = 0),
            Some(nr) => {
                let raw = inode_table::read(h, &self.geometry, nr)?;
                inode_table::set_next_orphan(h, &self.geometry, nr, &raw, 0)
            }
        });
        cut.map(|_| ())
    }
}

/// The orphans that were found at mount.
pub(crate) struct Loaded {
    /// The newest first.
    pub(crate) orphans: Vec<InodeNr>,
    /// The list didn't end as it should.
    pub(crate) broken: Option<Broken>,
}

/// Where the list makes no sense any more.
pub(crate) struct Broken {
    /// The last inode that does; none if already the head doesn't.
    pub(crate) after: Option<InodeNr>,
    pub(crate) why: Error,
}
