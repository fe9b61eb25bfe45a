//! Delayed data on its way to the disk, and the list of inodes that have some.
//!
//! Data goes one of two ways (docs/DESIGN.md, "Data"):
//! - *logged*, as data=journal does: into the running transaction, with the metadata that reaches it;
//! - *in place*: into blocks reserved in memory, and when that write has returned, its metadata joins a
//!   transaction, which flushes before it writes to the log (rule J4).
//!
//! A block with a live log record is always logged again (rule J5).

use super::inode::{Inode, InodeState};
use super::options::DataMode;
use super::{inode_table, map, Fs};
use crate::cache::Handle;
use crate::device::Block;
use crate::error::{Error, Result};
use crate::fault::{injected, Fault};
use crate::format::inode::{InodeFlags, RawInode};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Condvar, Mutex};
use crate::units::{BlockNr, BlockRange, FileBlock, InodeNr};
use rustc_hash::FxHashMap;
use std::io::IoSlice;
use std::sync::Arc;

/// Data of a file that somebody syncs is logged up to this many bytes, and written in place beyond.
pub(super) const LOGGED_BYTES_MAX: u64 = 64 << 10;

/// Blocks that are logged at once.
const LOGGED_BLOCKS: usize = 256;

/// Blocks that go in place before their metadata joins a transaction.
const IN_PLACE_BLOCKS: usize = 2048;

/// The inodes with something to write, and how much data that is.
pub(crate) struct Writeback {
    dirty: Mutex<FxHashMap<InodeNr, Arc<Inode>>>,
    bytes: AtomicU64,
    /// Beyond this, the background writes.
    pub(crate) background_bytes: u64,
    /// Beyond this, writers write.
    pub(crate) limit_bytes: u64,
    pub(crate) wanted: Condvar,
    pub(crate) stop: AtomicBool,
    pub(crate) sleeping: Mutex<()>,
}

impl Writeback {
    pub(crate) fn new(limit_bytes: u64) -> Self {
        Self {
            dirty: Mutex::default(),
            bytes: AtomicU64::new(0),
            background_bytes: limit_bytes / 4,
            limit_bytes,
            wanted: Condvar::new(),
            stop: AtomicBool::new(false),
            sleeping: Mutex::new(()),
        }
    }

    /// Puts an inode, whose lock the caller holds, on the list.
    pub(crate) fn add(&self, inode: &Arc<Inode>, state: &mut InodeState) {
        if !state.listed {
            state.listed = true;
            self.dirty.lock().insert(inode.nr, inode.clone());
        }
    }

    /// Takes an inode, whose lock the caller holds, off the list when it has nothing left to write.
    pub(crate) fn settle(&self, inode: &Inode, state: &mut InodeState) {
        if state.listed && !state.touched && state.data.is_none() {
            state.listed = false;
            self.dirty.lock().remove(&inode.nr);
        }
    }

    /// The inodes on the list now.
    pub(crate) fn inodes(&self) -> Vec<Arc<Inode>> {
        let mut inodes: Vec<_> = self.dirty.lock().values().cloned().collect();
        inodes.sort_unstable_by_key(|inode| inode.nr);
        inodes
    }

    /// Bytes of delayed data.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn grew(&self, by: u64) {
        let before = self.bytes.fetch_add(by, Ordering::Relaxed);
        if before < self.background_bytes && before + by >= self.background_bytes {
            self.wanted.notify_one();
        }
    }

    pub(crate) fn shrank(&self, by: u64) {
        self.bytes.fetch_sub(by, Ordering::Relaxed);
    }
}

/// A run of pages and where it goes.
struct Piece {
    start: u32,
    range: BlockRange,
    kind: Target,
    pages: Vec<Arc<Block>>,
}

#[derive(Copy, Clone, PartialEq, Eq)]
enum Target {
    /// Blocks that the file has, written.
    Overwrite,
    /// Blocks that the file has, with a live log record: logged again (rule J5).
    LogAgain,
    /// Blocks that the file has, unwritten so far.
    Unwritten,
    /// Blocks reserved for a hole.
    Reserved,
}

impl Fs {
    /// Writes the inode's delayed data; the inode's lock is the caller's `state`. `sync`: somebody waits for it.
    pub(crate) fn flush_data(&self, inode: &Inode, state: &mut InodeState, sync: bool) -> Result<()> {
        let bytes = match &state.data {
            None => return Ok(()),
            Some(data) => data.pages.len() as u64 * self.geometry.block_bytes as u64,
        };
        let logged = match self.options.data {
            DataMode::Journal => true,
            _ if state.raw.flags.contains(InodeFlags::JOURNAL_DATA) => true,
            DataMode::Ordered | DataMode::Writeback => sync && bytes <= LOGGED_BYTES_MAX,
        };
        let batch = if logged { LOGGED_BLOCKS } else { IN_PLACE_BLOCKS };
        // Each round writes at least one page or ends the loop.
        while state.data.as_ref().is_some_and(|d| !d.pages.is_empty()) {
            let mut pages: Vec<(u32, Arc<Block>)> = match &state.data {
                Some(data) => data.pages.iter().take(batch).map(|(n, p)| (*n, p.block.clone())).collect(),
                None => Vec::new(),
            };
            pages.truncate(self.fitting(&state.raw, &pages, logged));
            if logged {
                self.flush_logged(inode, state, &pages)?;
            } else {
                self.flush_in_place(inode, state, &pages)?;
            }
        }
        self.flush_size(inode, state)
    }

    /// Whether the delayed pages are one run that goes over written blocks, in one piece and with no live record: no
    /// handle is needed to write them in place, and one request does it.
    pub(super) fn only_rewrites(&self, nr: InodeNr, state: &InodeState) -> bool {
        let Some(data) = &state.data else { return false };
        let (Some(first), Some(last)) = (data.pages.keys().next(), data.pages.keys().next_back()) else {
            return false;
        };
        let count = data.pages.len() as u32;
        if last - first + 1 != count || state.size() != state.raw.size {
            return false;
        }
        let cached = super::core::InMemory(&self.cache);
        map::lookup(&self.geometry, &cached, nr, &state.raw, FileBlock(*first), count).is_ok_and(|mapping| {
            let whole = mapping.len >= count && !mapping.unwritten;
            whole
                && mapping.physical.is_some_and(|start| !self.journal.is_live(BlockRange::new(start, count)))
        })
    }

    /// How many of the pages, in runs of neighbours, one handle can map (and log): pages that lie far apart may each
    /// need map blocks of their own.
    fn fitting(&self, raw: &RawInode, pages: &[(u32, Arc<Block>)], logged: bool) -> usize {
        let limit = self.journal.credits_max();
        let (mut count, mut credits) = (0, 0);
        for run in pages.chunk_by(|a, b| a.0 + 1 == b.0) {
            let len = run.len() as u32;
            let cost = map::insert_credits(&self.geometry, raw, len, 1) + if logged { len } else { 0 };
            if credits + cost <= limit {
                credits += cost;
                count += run.len();
                continue;
            }
            if count == 0 {
                // Its own blocks are what is too much; the map's are few.
                count = run.len().min((limit / 2).max(1) as usize);
            }
            break;
        }
        count
    }

    /// Takes over a record in which `pages` are mapped and whose size reaches over them.
    fn flushed(
        &self,
        state: &mut InodeState,
        raw: RawInode,
        tid: crate::units::Tid,
        pages: &[(u32, Arc<Block>)],
    ) {
        let block_bytes = self.geometry.block_bytes as u64;
        if let Some(data) = &mut state.data {
            let mut held = 0;
            for (nr, _) in pages {
                if data.pages.remove(nr).is_some_and(|p| p.held) {
                    held += 1;
                }
            }
            self.allocator.release_space(held);
            self.writeback.shrank(pages.len() as u64 * block_bytes);
        }
        state.publish(raw, tid, true);
    }

    /// The size on disk once the pages up to `end_block` are there, others still waiting.
    fn size_with(&self, state: &InodeState, end_block: u32) -> u64 {
        let reached = end_block as u64 * self.geometry.block_bytes as u64;
        state.raw.size.max(state.size().min(reached))
    }

    fn flush_logged(&self, inode: &Inode, state: &mut InodeState, pages: &[(u32, Arc<Block>)]) -> Result<()> {
        let Some(last) = pages.last() else { return Ok(()) };
        let size = self.size_with(state, last.0 + 1);
        let goal = self.goal(inode.nr, &state.raw, pages)?;
        let count = pages.len() as u32;
        let of_runs = pages.chunk_by(|a, b| a.0 + 1 == b.0);
        let of_runs = of_runs.map(|run| map::insert_credits(&self.geometry, &state.raw, run.len() as u32, 1));
        let credits = of_runs.sum::<u32>() + count + 3;
        let (tid, raw) = self.update(credits, |h| {
            let mut raw = state.raw.clone();
            raw.size = size;
            self.note_large_file(h, size)?;
            let mut goal = goal;
            let mut at = 0;
            while let Some((start, _)) = pages.get(at) {
                let run = run_length(&pages[at..]);
                let len = self.log_run(h, inode.nr, &mut raw, *start, &pages[at..at + run], &mut goal)?;
                at += len.max(1) as usize;
            }
            inode_table::write(h, &self.geometry, inode.nr, &raw)?;
            Ok(raw)
        })?;
        self.flushed(state, raw, tid, pages);
        Ok(())
    }

    /// Logs the first blocks of a run of pages, mapping them first where need be. Returns how many.
    fn log_run(
        &self,
        h: &mut Handle<'_>,
        nr: InodeNr,
        raw: &mut RawInode,
        start: u32,
        pages: &[(u32, Arc<Block>)],
        goal: &mut BlockNr,
    ) -> Result<u32> {
        let want = pages.len() as u32;
        let at = FileBlock(start);
        let mapping = map::lookup(&self.geometry, h, nr, raw, at, want)?;
        let range = if let Some(physical) = mapping.physical {
            BlockRange::new(physical, mapping.len.min(want))
        } else {
            let range = self.allocator.allocate_held(h, *goal, mapping.len.min(want))?;
            map::insert(&self.allocator, h, nr, raw, at, range, false)?;
            range
        };
        if mapping.physical.is_some() && mapping.unwritten {
            map::set_written(&self.allocator, h, nr, raw, blocks(at, range.len))?;
        }
        *goal = range.end();
        for (block, (_, page)) in range.iter().zip(pages) {
            h.log_data(block, page.clone());
        }
        Ok(range.len)
    }

    fn flush_in_place(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        pages: &[(u32, Arc<Block>)],
    ) -> Result<()> {
        let pieces = self.place(inode.nr, &state.raw, pages)?;
        // What it took a handle for: perhaps not all.
        let placed: usize = pieces.iter().map(|p| p.pages.len()).sum();
        let pages = &pages[..placed.min(pages.len())];
        let Some(last) = pages.last() else { return Ok(()) };
        let result = self.write_in_place(&pieces).and_then(|()| {
            let size = self.size_with(state, last.0 + 1);
            self.map_pieces(inode.nr, state, &pieces, size)
        });
        match result {
            Ok(Some((tid, raw))) => {
                state.in_place_stamp = self.journal.flush_stamp();
                self.flushed(state, raw, tid, pages);
                Ok(())
            }
            Ok(None) => {
                state.in_place_stamp = self.journal.flush_stamp();
                let (raw, sync, data) = (state.raw.clone(), state.sync_tid, state.datasync_tid);
                let touched = state.touched;
                self.flushed(state, raw, crate::units::Tid(0), pages);
                (state.sync_tid, state.datasync_tid, state.touched) = (sync, data, touched);
                Ok(())
            }
            Err(error) => {
                for piece in pieces.iter().filter(|p| p.kind == Target::Reserved) {
                    self.allocator.unreserve(piece.range);
                }
                Err(error)
            }
        }
    }

    /// Decides where each page goes, reserving blocks for holes; stops early, but never before the first, when the
    /// pieces are as much as one handle can take.
    fn place(&self, nr: InodeNr, raw: &RawInode, pages: &[(u32, Arc<Block>)]) -> Result<Vec<Piece>> {
        let mut pieces = Vec::new();
        let mut goal = self.goal(nr, raw, pages)?;
        let limit = self.journal.credits_max();
        let (mut at, mut credits) = (0, 0);
        while let Some((start, _)) = pages.get(at) {
            if credits > limit {
                break;
            }
            let run = run_length(&pages[at..]) as u32;
            let placed = self.place_run(nr, raw, *start, run, &mut goal);
            let (range, kind) = match placed {
                Ok(placed) => placed,
                Err(error) => {
                    for piece in pieces.iter().filter(|p: &&Piece| p.kind == Target::Reserved) {
                        self.allocator.unreserve(piece.range);
                    }
                    return Err(error);
                }
            };
            let taken = &pages[at..at + range.len as usize];
            at += range.len as usize;
            credits += match kind {
                Target::Overwrite => 0,
                Target::LogAgain => 1 + range.len,
                // A bitmap and its descriptor, and the map's leaf now and then.
                Target::Unwritten | Target::Reserved => 4,
            };
            pieces.push(Piece {
                start: *start,
                range,
                kind,
                pages: taken.iter().map(|(_, block)| block.clone()).collect(),
            });
        }
        Ok(pieces)
    }

    fn place_run(
        &self,
        nr: InodeNr,
        raw: &RawInode,
        start: u32,
        run: u32,
        goal: &mut BlockNr,
    ) -> Result<(BlockRange, Target)> {
        let mapping = map::lookup(&self.geometry, &*self.cache, nr, raw, FileBlock(start), run)?;
        let len = mapping.len.clamp(1, run);
        let (range, kind) = match mapping.physical {
            None => {
                let (_, range) = self.update(0, |h| self.allocator.reserve(h, *goal, len))?;
                (range, Target::Reserved)
            }
            Some(physical) => {
                let range = BlockRange::new(physical, len);
                if self.journal.is_live(range) && !injected(Fault::InPlaceOverRecord) {
                    // One block at a time: neighbours may not be live.
                    let one = BlockRange::new(physical, 1);
                    let kind = match (self.journal.is_live(one), mapping.unwritten) {
                        (true, _) => Target::LogAgain,
                        (false, true) => Target::Unwritten,
                        (false, false) => Target::Overwrite,
                    };
                    (one, kind)
                } else if mapping.unwritten {
                    (range, Target::Unwritten)
                } else {
                    (range, Target::Overwrite)
                }
            }
        };
        *goal = range.end();
        Ok((range, kind))
    }

    /// Writes the pieces that go in place; neighbours on the device in one request.
    fn write_in_place(&self, pieces: &[Piece]) -> Result<()> {
        let block_bytes = self.geometry.block_bytes as u64;
        let in_place: Vec<&Piece> = pieces.iter().filter(|p| p.kind != Target::LogAgain).collect();
        for run in in_place.chunk_by(|a, b| a.range.end() == b.range.start) {
            let Some(first) = run.first() else { continue };
            for piece in run {
                self.journal.wait_for_checkpoint_of(piece.range);
            }
            let slices: Vec<IoSlice<'_>> =
                run.iter().flat_map(|p| &p.pages).map(|b| IoSlice::new(b)).collect();
            self.cache.device().write_vectored_at(first.range.start.0 * block_bytes, &slices).map_err(
                |source| Error::io(format!("writing data at block {}", first.range.start), source),
            )?;
        }
        Ok(())
    }

    /// Lets the file reach the pieces, in one handle. `None`: it did already, and nothing else changed.
    fn map_pieces(
        &self,
        nr: InodeNr,
        state: &InodeState,
        pieces: &[Piece],
        size: u64,
    ) -> Result<Option<(crate::units::Tid, RawInode)>> {
        if size == state.raw.size && pieces.iter().all(|p| p.kind == Target::Overwrite) {
            return Ok(None);
        }
        let logged: u32 = pieces.iter().filter(|p| p.kind == Target::LogAgain).map(|p| p.range.len).sum();
        let of_runs = pieces.chunk_by(|a, b| a.start + a.range.len == b.start).map(|run| {
            let changed = || run.iter().filter(|p| p.kind != Target::Overwrite);
            let blocks = changed().map(|p| p.range.len).sum();
            match changed().count() as u32 {
                0 => 0,
                pieces => map::insert_credits(&self.geometry, &state.raw, blocks, pieces),
            }
        });
        let credits = of_runs.sum::<u32>() + logged + 3;
        let ordered = self.options.data != DataMode::Writeback;
        let result = self.update(credits, |h| {
            let mut raw = state.raw.clone();
            raw.size = size;
            self.note_large_file(h, size)?;
            for piece in pieces {
                let at = FileBlock(piece.start);
                match piece.kind {
                    Target::Overwrite => {}
                    Target::LogAgain => {
                        map::set_written(&self.allocator, h, nr, &mut raw, blocks(at, piece.range.len))?;
                        for (block, page) in piece.range.iter().zip(&piece.pages) {
                            h.log_data(block, page.clone());
                        }
                    }
                    Target::Unwritten => {
                        map::set_written(&self.allocator, h, nr, &mut raw, blocks(at, piece.range.len))?;
                    }
                    Target::Reserved => {
                        self.allocator.claim(h, piece.range)?;
                        map::insert(&self.allocator, h, nr, &mut raw, at, piece.range, false)?;
                    }
                }
            }
            if ordered && pieces.iter().any(|p| p.kind != Target::LogAgain) {
                h.reaches_in_place_data();
            }
            inode_table::write(h, &self.geometry, nr, &raw)?;
            Ok(raw)
        })?;
        Ok(Some(result))
    }

    /// Makes the size on disk what it is in memory, when no delayed page is left.
    pub(crate) fn flush_size(&self, inode: &Inode, state: &mut InodeState) -> Result<()> {
        let size = state.size();
        if size != state.raw.size {
            let (tid, raw) = self.update(4, |h| {
                let mut raw = state.raw.clone();
                raw.size = size;
                self.note_large_file(h, size)?;
                inode_table::write(h, &self.geometry, inode.nr, &raw)?;
                Ok(raw)
            })?;
            state.publish(raw, tid, true);
        }
        if let Some(data) = state.data.take() {
            self.allocator.release_space(data.metadata_held);
        }
        Ok(())
    }

    fn goal(&self, nr: InodeNr, raw: &RawInode, pages: &[(u32, Arc<Block>)]) -> Result<BlockNr> {
        let first = FileBlock(pages.first().map_or(0, |page| page.0));
        map::goal(&self.geometry, &*self.cache, nr, raw, first)
    }

    /// Drops delayed pages from `first` on, unwritten.
    pub(crate) fn drop_pages(&self, state: &mut InodeState, first: u32, end: Option<u32>) {
        let block_bytes = self.geometry.block_bytes as u64;
        let Some(data) = &mut state.data else { return };
        let end = end.unwrap_or(u32::MAX);
        let gone: Vec<u32> = data.pages.range(first..end).map(|(nr, _)| *nr).collect();
        let mut held = 0;
        for nr in &gone {
            held += u64::from(data.pages.remove(nr).is_some_and(|p| p.held));
        }
        self.allocator.release_space(held);
        self.writeback.shrank(gone.len() as u64 * block_bytes);
    }

    /// Drops all delayed data, and the space held for it.
    pub(crate) fn drop_data(&self, state: &mut InodeState) {
        self.drop_pages(state, 0, None);
        if let Some(data) = state.data.take() {
            self.allocator.release_space(data.metadata_held);
        }
    }

    /// Writes the times that are only in memory.
    pub(crate) fn flush_times(&self, inode: &Inode, state: &mut InodeState) -> Result<()> {
        if !state.touched || state.dead {
            state.touched = false;
            return Ok(());
        }
        let (tid, ()) = self.update(2, |h| inode_table::write(h, &self.geometry, inode.nr, &state.raw))?;
        let raw = state.raw.clone();
        state.publish(raw, tid, false);
        Ok(())
    }

    /// Lets a writer wait, by writing its own file's data, when too much is delayed.
    pub(crate) fn throttle(&self, inode: &Arc<Inode>) -> Result<()> {
        if self.writeback.bytes() < self.writeback.limit_bytes {
            return Ok(());
        }
        {
            let mut state = inode.write();
            self.flush_data(inode, &mut state, false)?;
            self.writeback.settle(inode, &mut state);
        }
        for other in self.writeback.inodes() {
            if self.writeback.bytes() < self.writeback.limit_bytes {
                break;
            }
            // What goes wrong there is for those who sync that file.
            if let Err(error) = self.write_out(&other, false) {
                tracing::warn!(inode = other.nr.0, %error, "writing a file to make room failed");
            }
        }
        Ok(())
    }
}

/// How many pages, from the first, are of neighbouring file blocks.
fn run_length(pages: &[(u32, Arc<Block>)]) -> usize {
    let Some((first, _)) = pages.first() else { return 0 };
    pages.iter().enumerate().take_while(|(i, (nr, _))| *nr as usize == *first as usize + i).count()
}

/// `len` file blocks from `start`, as the map takes them.
fn blocks(start: FileBlock, len: u32) -> std::ops::Range<u64> {
    u64::from(start.0)..u64::from(start.0) + u64::from(len)
}
