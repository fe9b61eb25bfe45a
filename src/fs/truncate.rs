//! Changing a file's size, both ways.
//!
//! A shrinking file whose blocks don't fit one handle is on the orphan list until the last is freed, so
//! that a crash in between can't leave blocks behind the end: the next mount goes on.

use super::inode::{Inode, InodeState};
use super::{inode_table, map, Fs};
use crate::cache::Handle;
use crate::device::Block;
use crate::error::{Error, Result};
use crate::fault::{injected, Fault};
use crate::format::inode::{InodeFlags, RawInode};
use crate::units::{BlockNr, FileBlock, InodeNr};
use std::sync::Arc;

/// Metadata blocks that one handle changes at most while it frees a file's blocks.
const REMOVE_BUDGET: u32 = 64;

/// A file's new last block, cut.
#[derive(Default)]
struct Tail {
    /// What the delayed page of that file block is to become.
    page: Option<(u32, Arc<Block>)>,
    /// What is to be logged, where the disk has the block.
    logged: Option<(BlockNr, Arc<Block>)>,
}

impl Fs {
    /// Sets a regular file's size; what is added reads as zeroes.
    pub fn truncate(&self, nr: InodeNr, size: u64) -> Result<()> {
        let inode = self.inode(nr)?;
        let mut state = self.live(&inode)?;
        self.check_writable(&state)?;
        Self::check_mutable(&state.raw, false)?;
        if size > self.size_max(&state.raw) {
            return Err(Error::FileTooBig);
        }
        if size > state.size() {
            self.grow(&inode, &mut state, size)
        } else {
            self.shrink(&inode, &mut state, size)
        }
    }

    /// Makes the file longer, by a hole.
    pub(crate) fn grow(&self, inode: &Arc<Inode>, state: &mut InodeState, size: u64) -> Result<()> {
        self.zero_tail(inode, state)?;
        let now = self.now();
        if let Some(data) = &mut state.data {
            // Not on disk before the delayed data below it.
            data.size = size;
            (state.raw.mtime, state.raw.ctime) = (now, now);
            state.touched = true;
            self.writeback.add(inode, state);
            return Ok(());
        }
        let (tid, raw) = self.update(4, |h| {
            let mut raw = state.raw.clone();
            raw.size = size;
            (raw.mtime, raw.ctime) = (now, now);
            self.note_large_file(h, size)?;
            inode_table::write(h, &self.geometry, inode.nr, &raw)?;
            Ok(raw)
        })?;
        state.publish(raw, tid, true);
        Ok(())
    }

    /// Makes the file shorter, or frees what it has behind its end.
    pub(crate) fn shrink(&self, inode: &Arc<Inode>, state: &mut InodeState, size: u64) -> Result<()> {
        let block_bytes = self.geometry.block_bytes as u64;
        let first_gone = u32::try_from(size.div_ceil(block_bytes)).unwrap_or(u32::MAX);
        let Tail { page, logged: tail } = self.zeroed_tail(inode.nr, state, size)?;
        if let Some((nr, block)) = tail.as_ref().filter(|_| injected(Fault::TailZeroedInPlace)) {
            let _ = self.cache.device().write_at(nr.0 * u64::from(self.geometry.block_bytes), block);
        }
        let now = self.now();
        let disk_size = state.raw.size.min(size);
        let (mut done, mut first) = (false, true);
        // Each round frees blocks or ends the loop.
        while !done {
            let tail = if first { tail.clone() } else { None };
            let credits = self.remove_credits();
            let (tid, (raw, finished)) = self.update(credits, |h| {
                let mut raw = state.raw.clone();
                raw.size = disk_size;
                (raw.mtime, raw.ctime) = (now, now);
                if let Some((nr, block)) = tail.as_ref().filter(|_| !injected(Fault::TailZeroedInPlace)) {
                    h.log_data(*nr, block.clone());
                }
                let finished = self.remove_step(h, inode.nr, &mut raw, first_gone)?;
                if finished {
                    self.orphan_remove(h, inode.nr)?;
                    inode_table::write(h, &self.geometry, inode.nr, &raw)?;
                } else {
                    self.orphan_add(h, inode.nr, &raw)?;
                    inode_table::write(h, &self.geometry, inode.nr, &raw)?;
                }
                Ok((raw, finished))
            })?;
            if first {
                // From here on the file is as short as it is to be, whatever becomes of its blocks.
                self.drop_pages(state, first_gone, None);
                match (&page, &tail) {
                    // The tail's page has been logged.
                    (Some((nr, _)), Some(_)) => self.drop_pages(state, *nr, Some(nr + 1)),
                    (Some((nr, block)), None) => {
                        if let Some(page) = state.data.as_mut().and_then(|d| d.pages.get_mut(nr)) {
                            page.block = block.clone();
                        }
                    }
                    (None, _) => {}
                }
                if let Some(data) = &mut state.data {
                    data.size = size;
                }
            }
            state.publish(raw, tid, true);
            (done, first) = (finished, false);
        }
        if state.data.as_ref().is_some_and(|d| d.pages.is_empty()) {
            self.flush_size(inode, state)?;
            self.writeback.settle(inode, state);
        }
        Ok(())
    }

    /// The file's new last block with zeroes behind its end (rule J10).
    fn zeroed_tail(&self, nr: InodeNr, state: &InodeState, size: u64) -> Result<Tail> {
        let block_bytes = self.geometry.block_bytes as u64;
        let within = (size % block_bytes) as usize;
        if within == 0 || state.raw.flags.contains(InodeFlags::INLINE_DATA) {
            return Ok(Tail::default());
        }
        let Ok(file_block) = u32::try_from(size / block_bytes) else { return Ok(Tail::default()) };
        let mapping = map::lookup(&self.geometry, &*self.cache, nr, &state.raw, FileBlock(file_block), 1)?;
        let physical = mapping.physical.filter(|_| !mapping.unwritten);
        if let Some(page) = state.data.as_ref().and_then(|d| d.pages.get(&file_block)) {
            let mut block = page.block.clone();
            Arc::make_mut(&mut block)[within..].fill(0);
            let logged = physical.map(|physical| (physical, block.clone()));
            return Ok(Tail { page: Some((file_block, block)), logged });
        }
        let Some(physical) = physical else { return Ok(Tail::default()) };
        let mut block = self.old_block(nr, &state.raw, state.size(), file_block, false)?;
        block[within..].fill(0);
        Ok(Tail { page: None, logged: Some((physical, Arc::new(block))) })
    }

    /// Credits for [`remove_step`](Self::remove_step).
    pub(crate) fn remove_credits(&self) -> u32 {
        (map::remove_credits(REMOVE_BUDGET) + 8).min(self.journal.credits_max())
    }

    /// Frees blocks from file block `first` on, as many as a handle should. Whether that was all.
    pub(crate) fn remove_step(
        &self,
        h: &mut Handle<'_>,
        nr: InodeNr,
        raw: &mut RawInode,
        first: u32,
    ) -> Result<bool> {
        if !raw.maps_blocks() {
            return Ok(true);
        }
        let budget = REMOVE_BUDGET.min(self.journal.credits_max() / 2);
        let removal = map::remove(&self.allocator, h, nr, raw, u64::from(first)..1 << 32, budget)?;
        Ok(removal.rest.is_none())
    }

    /// Sets the LARGE_FILE feature when a file first grows over 2 GiB, as the format asks for.
    pub(crate) fn note_large_file(&self, h: &mut Handle<'_>, size: u64) -> Result<()> {
        use crate::format::features::RoCompat;
        if size < 1 << 31 || self.geometry.features.ro_compat.contains(RoCompat::LARGE_FILE) {
            return Ok(());
        }
        if super::superblock::read(h, &self.geometry)?.features.ro_compat.contains(RoCompat::LARGE_FILE) {
            return Ok(());
        }
        super::superblock::modify(h, self, |sb| sb.features.ro_compat |= RoCompat::LARGE_FILE)
    }
}
