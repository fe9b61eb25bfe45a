//! fallocate: allocating ahead, punching holes, zeroing ranges. FUSE carries no other mode.

use super::attr::Caller;
use super::inode::{Inode, InodeState};
use super::{inode_table, map, Fs};
use crate::cache::Handle;
use crate::device::Block;
use crate::error::{Error, Result};
use crate::format::inode::{InodeFlags, RawInode};
use crate::units::{BlockNr, FileBlock, InodeNr};
use std::ops::Range;
use std::sync::Arc;

/// Runs that one handle allocates at most.
const RUNS_PER_HANDLE: u32 = 16;
/// Metadata blocks that one handle changes at most while it frees or converts.
const BUDGET: u32 = 64;

/// Blocks that one handle makes unwritten at most; each may be an extent of its own.
const ZEROED_PER_HANDLE: u64 = 4096;

/// Blocks whose contents change at a range's edges: where they are, and their new bytes.
type Edges = Vec<(BlockNr, Arc<Block>)>;

impl Fs {
    /// Does what fallocate(2) says for the modes 0, KEEP_SIZE, PUNCH_HOLE and ZERO_RANGE; EOPNOTSUPP for others, and
    /// where the file has no extents and the mode needs unwritten ones.
    pub fn fallocate(&self, nr: InodeNr, mode: i32, offset: u64, len: u64, caller: &Caller) -> Result<()> {
        let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let what = mode & !libc::FALLOC_FL_KEEP_SIZE;
        if len == 0 {
            return Err(Error::Invalid);
        }
        let inode = self.inode(nr)?;
        let mut state = self.live(&inode)?;
        self.check_writable(&state)?;
        if what != 0 && state.raw.flags.contains(InodeFlags::APPEND) {
            return Err(Error::NotPermitted);
        }
        let end = offset.checked_add(len).ok_or(Error::FileTooBig)?;
        let punch = what == libc::FALLOC_FL_PUNCH_HOLE;
        if !punch && end > self.size_max(&state.raw) {
            return Err(Error::FileTooBig);
        }
        if punch && !keep_size || ![0, libc::FALLOC_FL_PUNCH_HOLE, libc::FALLOC_FL_ZERO_RANGE].contains(&what)
        {
            return Err(Error::NotSupported);
        }
        if !punch && !state.raw.has_extents() || state.raw.flags.contains(InodeFlags::INLINE_DATA) {
            return Err(Error::NotSupported);
        }
        self.flush_data(&inode, &mut state, false)?;
        let result = if punch {
            let end = end.min(self.size_max(&state.raw));
            if offset >= end {
                return Ok(());
            }
            self.punch(&inode, &mut state, offset, end)
        } else if what == 0 {
            self.allocate_ahead(&inode, &mut state, offset, end, keep_size, caller)
        } else {
            self.zero_range(&inode, &mut state, offset, end, keep_size, caller)
        };
        self.noting(result)?;
        let now = self.now();
        (state.raw.mtime, state.raw.ctime) = (now, now);
        state.touched = true;
        self.writeback.add(&inode, &mut state);
        Ok(())
    }

    /// Gives every block of the range a place; what had none reads as zeroes.
    fn allocate_ahead(
        &self,
        inode: &Arc<Inode>,
        state: &mut InodeState,
        offset: u64,
        end: u64,
        keep_size: bool,
        caller: &Caller,
    ) -> Result<()> {
        if !keep_size && end > state.size() {
            self.zero_tail(inode, state)?;
            self.flush_data(inode, state, true)?;
        }
        let block_bytes = u64::from(self.geometry.block_bytes);
        let (mut at, last) = (offset / block_bytes, end.div_ceil(block_bytes));
        // Each round gets further or ends the loop.
        loop {
            let goal = map::goal(&self.geometry, &*self.cache, inode.nr, &state.raw, FileBlock(at as u32))?;
            let credits = RUNS_PER_HANDLE * 12;
            let (tid, (raw, next)) =
                self.update_for(caller, credits.min(self.journal.credits_max()), |h| {
                    let mut raw = state.raw.clone();
                    let next = self.fill_holes(h, inode.nr, &mut raw, at..last, goal)?;
                    if !keep_size {
                        raw.size = raw.size.max(end.min(next * block_bytes));
                        self.note_large_file(h, raw.size)?;
                    }
                    inode_table::write(h, &self.geometry, inode.nr, &raw)?;
                    Ok((raw, next))
                })?;
            state.publish(raw, tid, true);
            if next >= last {
                return Ok(());
            }
            at = next;
        }
    }

    /// Allocates unwritten blocks in the holes of a range, for as many runs as a handle should. Returns how far it got.
    fn fill_holes(
        &self,
        h: &mut Handle<'_>,
        nr: InodeNr,
        raw: &mut RawInode,
        blocks: Range<u64>,
        mut goal: BlockNr,
    ) -> Result<u64> {
        let mut at = blocks.start;
        let mut runs = 0;
        while at < blocks.end && runs < RUNS_PER_HANDLE {
            let want = (blocks.end - at).min(32767) as u32;
            let file_block = FileBlock(at as u32);
            let mapping = map::lookup(&self.geometry, h, nr, raw, file_block, want)?;
            if mapping.physical.is_none() {
                let range = self.allocator.allocate(h, goal, mapping.len.min(want))?;
                map::insert(&self.allocator, h, nr, raw, file_block, range, true)?;
                goal = range.end();
                at += u64::from(range.len);
                runs += 1;
            } else {
                at += u64::from(mapping.len.clamp(1, want));
            }
        }
        Ok(at)
    }

    /// Frees the whole blocks of a range and zeroes its edges.
    fn punch(&self, inode: &Arc<Inode>, state: &mut InodeState, offset: u64, end: u64) -> Result<()> {
        let edges = self.zeroed_edges(inode.nr, state, offset, end)?;
        let mut rest = self.whole_blocks(offset, end);
        let mut edges = Some(edges);
        // Each round frees blocks or ends the loop.
        loop {
            let now = edges.take().unwrap_or_default();
            let budget = BUDGET.min(self.journal.credits_max() / 2);
            let credits = map::remove_credits(budget) + 4;
            let (tid, (raw, left)) = self.update(credits.min(self.journal.credits_max()), |h| {
                let mut raw = state.raw.clone();
                log_edges(h, &now);
                let left = match &rest {
                    Some(blocks) => {
                        map::remove(&self.allocator, h, inode.nr, &mut raw, blocks.clone(), budget)?.rest
                    }
                    None => None,
                };
                inode_table::write(h, &self.geometry, inode.nr, &raw)?;
                Ok((raw, left))
            })?;
            state.publish(raw, tid, true);
            if left.is_none() {
                return Ok(());
            }
            rest = left;
        }
    }

    /// Makes a range read as zeroes and be allocated.
    fn zero_range(
        &self,
        inode: &Arc<Inode>,
        state: &mut InodeState,
        offset: u64,
        end: u64,
        keep_size: bool,
        caller: &Caller,
    ) -> Result<()> {
        let edges = self.zeroed_edges(inode.nr, state, offset, end)?;
        let blocks = self.whole_blocks(offset, end);
        let credits = map::insert_credits(&self.geometry, &state.raw, 1, 64) + edges.len() as u32 + 4;
        let mut edges = Some(edges);
        let mut rest = blocks.unwrap_or(0..0);
        // Each round gets further or ends the loop.
        loop {
            rest = self.skip_holes(inode.nr, state, rest)?;
            let now = edges.take().unwrap_or_default();
            let piece = rest.start..rest.end.min(rest.start + ZEROED_PER_HANDLE);
            let (tid, raw) = self.update(credits.min(self.journal.credits_max()), |h| {
                let mut raw = state.raw.clone();
                log_edges(h, &now);
                if !piece.is_empty() {
                    map::set_unwritten(&self.allocator, h, inode.nr, &mut raw, piece.clone())?;
                }
                inode_table::write(h, &self.geometry, inode.nr, &raw)?;
                Ok(raw)
            })?;
            state.publish(raw, tid, true);
            rest.start = piece.end;
            if rest.is_empty() {
                break;
            }
        }
        self.allocate_ahead(inode, state, offset, end, keep_size, caller)
    }

    /// What is left of a range of file blocks from the first one with data on: a hole may be terabytes.
    fn skip_holes(&self, nr: InodeNr, state: &InodeState, mut blocks: Range<u64>) -> Result<Range<u64>> {
        while !blocks.is_empty() {
            let want = u32::try_from(blocks.end - blocks.start).unwrap_or(u32::MAX);
            let at = FileBlock(blocks.start as u32);
            let found = map::lookup(&self.geometry, &*self.cache, nr, &state.raw, at, want)?;
            if found.physical.is_some() && !found.unwritten {
                break;
            }
            blocks.start = blocks.end.min(blocks.start + u64::from(found.len.max(1)));
        }
        Ok(blocks)
    }

    /// The file blocks that lie wholly in a range of bytes.
    fn whole_blocks(&self, offset: u64, end: u64) -> Option<Range<u64>> {
        let block_bytes = u64::from(self.geometry.block_bytes);
        let blocks = offset.div_ceil(block_bytes)..end / block_bytes;
        (!blocks.is_empty()).then_some(blocks)
    }

    /// The range's first and last block, where they are only partly in it, with zeroes in that part (rule J10).
    fn zeroed_edges(&self, nr: InodeNr, state: &InodeState, offset: u64, end: u64) -> Result<Edges> {
        let block_bytes = u64::from(self.geometry.block_bytes);
        let mut edges = Edges::new();
        let (first, last) = (offset / block_bytes, (end - 1) / block_bytes);
        for file_block in [first, last] {
            let start = file_block * block_bytes;
            let zero = offset.max(start)..end.min(start + block_bytes);
            if zero.end - zero.start == block_bytes
                || file_block == last && last == first && !edges.is_empty()
            {
                continue;
            }
            let mapping =
                map::lookup(&self.geometry, &*self.cache, nr, &state.raw, FileBlock(file_block as u32), 1)?;
            let Some(physical) = mapping.physical.filter(|_| !mapping.unwritten) else { continue };
            let mut block = self.old_block(nr, &state.raw, state.size(), file_block as u32, false)?;
            block[(zero.start - start) as usize..(zero.end - start) as usize].fill(0);
            edges.push((physical, Arc::new(block)));
        }
        Ok(edges)
    }
}

fn log_edges(h: &mut Handle<'_>, edges: &Edges) {
    for (nr, block) in edges {
        h.log_data(*nr, block.clone());
    }
}
