//! Files: open, read, write, release.

use super::attr::Caller;
use super::data::{gap, Page};
use super::inode::{Inode, InodeState};
use super::options::AtimePolicy;
use super::{map, xattr, Fs};
use crate::device::{Block, IoBuf};
use crate::error::{Error, Result};
use crate::format::inode::{FileKind, InodeFlags, RawInode};
use crate::format::xattr::INLINE_DATA;
use crate::units::{BlockRange, FileBlock, InodeNr};
use std::sync::Arc;

/// Bytes read from a file; dereferences to exactly those.
pub struct ReadBytes {
    buf: IoBuf,
    range: std::ops::Range<usize>,
}

impl std::ops::Deref for ReadBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.buf.get(self.range.clone()).unwrap_or_default()
    }
}

impl Fs {
    /// Opens a file or directory: it stays usable after its last name is gone, until [`release`](Self::release).
    /// `flags` are open(2)'s; EPERM where the inode's flags forbid what they ask for.
    pub fn open(&self, nr: InodeNr, flags: i32) -> Result<()> {
        let inode = self.inode(nr)?;
        let mut state = self.live(&inode)?;
        if flags & libc::O_ACCMODE != libc::O_RDONLY {
            if self.is_read_only() {
                return Err(Error::ReadOnly);
            }
            Self::check_mutable(&state.raw, true)?;
            if state.raw.flags.contains(InodeFlags::APPEND) && flags & libc::O_APPEND == 0 {
                return Err(Error::NotPermitted);
            }
        }
        if state.raw.flags.contains(InodeFlags::APPEND) && flags & libc::O_TRUNC != 0 {
            return Err(Error::NotPermitted);
        }
        state.opens += 1;
        Ok(())
    }

    /// Undoes one [`open`](Self::open); the last one of a file without names frees it.
    pub fn release(&self, nr: InodeNr) -> Result<()> {
        let Some(inode) = self.inodes.get(nr) else { return Ok(()) };
        let last = {
            let mut state = inode.write();
            state.opens = state.opens.saturating_sub(1);
            state.opens == 0 && state.raw.links == 0 && !state.dead
        };
        if last {
            inode.set_unlinked();
            self.inactivate(&inode)
        } else {
            Ok(())
        }
    }

    /// Reads up to `size` bytes at `offset`; fewer at the file's end.
    pub fn read(&self, nr: InodeNr, offset: u64, size: u32) -> Result<ReadBytes> {
        let inode = self.inode(nr)?;
        let state = inode.read();
        match state.raw.kind() {
            Some(FileKind::Regular) => {}
            Some(FileKind::Directory) => return Err(Error::IsDirectory),
            // What such an inode has in place of a map is none.
            _ => return Err(Error::Invalid),
        }
        // A corrupt size must not lead beyond the last block that a map can name.
        let size_max = u64::from(u32::MAX) * u64::from(self.geometry.block_bytes);
        let end = state.size().min(size_max).min(offset.saturating_add(size as u64));
        if offset >= end {
            return Ok(ReadBytes { buf: IoBuf::zeroed(0), range: 0..0 });
        }
        let bytes = self.noting(self.read_range(&inode, &state, offset, end))?;
        let touch = self.wants_atime(&state.raw);
        drop(state);
        if touch {
            self.touch_atime(&inode);
        }
        Ok(bytes)
    }

    /// The bytes `[offset, end)`, which lie within the file's size.
    pub(crate) fn read_range(
        &self,
        inode: &Inode,
        state: &InodeState,
        offset: u64,
        end: u64,
    ) -> Result<ReadBytes> {
        if state.raw.flags.contains(InodeFlags::INLINE_DATA) {
            return self.read_inline(inode.nr, &state.raw, offset, end);
        }
        let block_bytes = self.geometry.block_bytes as u64;
        let first = (offset / block_bytes) as u32;
        let last = end.div_ceil(block_bytes) as u32;
        let skip = (offset % block_bytes) as usize;
        // Filled whole: what is not delayed is read, holes among it.
        let mut buf = IoBuf::unfilled((last - first) as usize * block_bytes as usize);
        let data = state.data.as_deref();
        let mut at = first;
        while let Some((start, len)) = gap(data, at, last) {
            let to = (start - first) as usize * block_bytes as usize;
            let bytes = len as usize * block_bytes as usize;
            let slot = buf.get_mut(to..to + bytes).unwrap_or_default();
            self.read_mapped(inode.nr, &state.raw, FileBlock(start), len, slot)?;
            at = start + len;
        }
        if let Some(data) = data {
            for (nr, page) in data.pages.range(first..last) {
                let to = (nr - first) as usize * block_bytes as usize;
                if let Some(slot) = buf.get_mut(to..to + page.block.len()) {
                    slot.copy_from_slice(&page.block);
                }
            }
        }
        Ok(ReadBytes { buf, range: skip..skip + (end - offset) as usize })
    }

    /// Fills `buf` with `len` file blocks from the disk; holes are zero.
    fn read_mapped(
        &self,
        nr: InodeNr,
        raw: &RawInode,
        start: FileBlock,
        len: u32,
        buf: &mut [u8],
    ) -> Result<()> {
        let block_bytes = self.geometry.block_bytes as usize;
        let mut done = 0;
        while done < len {
            let at = start.plus(done);
            let mapping = map::lookup(&self.geometry, &*self.cache, nr, raw, at, len - done)?;
            let count = mapping.len.clamp(1, len - done);
            let from = done as usize * block_bytes;
            let slot = buf.get_mut(from..from + count as usize * block_bytes).unwrap_or_default();
            match mapping.physical.filter(|_| !mapping.unwritten) {
                Some(physical) => self.cache.read_data(BlockRange::new(physical, count), slot)?,
                None => slot.fill(0),
            }
            done += count;
        }
        Ok(())
    }

    fn read_inline(&self, nr: InodeNr, raw: &RawInode, offset: u64, end: u64) -> Result<ReadBytes> {
        let mut bytes = raw.block.to_vec();
        let more = xattr::get(&*self.cache, &self.geometry, nr, raw, INLINE_DATA)?;
        bytes.extend(more.unwrap_or_default());
        let len = (end - offset) as usize;
        let mut buf = IoBuf::zeroed(len);
        let have = bytes.iter().skip(usize::try_from(offset).unwrap_or(usize::MAX));
        for (to, from) in buf.iter_mut().zip(have) {
            *to = *from;
        }
        Ok(ReadBytes { buf, range: 0..len })
    }

    /// Writes at `offset`. The bytes are in memory, with their space held, when this returns; fsync
    /// makes them durable. `kill_priv`: the writer may not keep set-id bits (it is not privileged).
    pub fn write(
        &self,
        nr: InodeNr,
        offset: u64,
        bytes: &[u8],
        caller: &Caller,
        kill_priv: bool,
    ) -> Result<u32> {
        let inode = self.inode(nr)?;
        self.throttle(&inode)?;
        match self.write_once(&inode, offset, bytes, caller, kill_priv) {
            Err(error) if error.is(libc::ENOSPC) => {
                // Without the inode's lock, which making room may want.
                self.make_room();
                self.write_once(&inode, offset, bytes, caller, kill_priv)
            }
            result => result,
        }
    }

    fn write_once(
        &self,
        inode: &Arc<Inode>,
        offset: u64,
        bytes: &[u8],
        caller: &Caller,
        kill_priv: bool,
    ) -> Result<u32> {
        let nr = inode.nr;
        let mut state = self.live(inode)?;
        let limit = self.size_max(&state.raw);
        self.check_writable(&state)?;
        if state.raw.flags.contains(InodeFlags::APPEND) && offset < state.size() {
            return Err(Error::NotPermitted);
        }
        if offset >= limit && !bytes.is_empty() {
            return Err(Error::FileTooBig);
        }
        let bytes = &bytes[..bytes.len().min((limit - offset.min(limit)) as usize)];
        if bytes.is_empty() {
            return Ok(0);
        }
        if self.has_capability(nr, &state)? {
            self.take_capability(nr, &mut state)?;
        }
        self.noting(self.buffer(inode, &mut state, offset, bytes, self.may_use_reserve(caller)))?;
        let now = self.now();
        state.raw.mtime = now;
        state.raw.ctime = now;
        state.touched = true;
        if kill_priv || caller.uid != 0 {
            Self::kill_set_id(&mut state.raw);
        }
        self.writeback.add(inode, &mut state);
        Ok(bytes.len() as u32)
    }

    /// Whether a write might wait: for the inode, for room for delayed data, or for the old bytes of a
    /// block that it covers in part.
    pub fn write_may_wait(&self, nr: InodeNr, offset: u64, len: usize) -> bool {
        if self.writeback.bytes() + len as u64 >= self.writeback.limit_bytes {
            return true;
        }
        let Some(inode) = self.inodes.get(nr) else { return true };
        let Some(state) = inode.try_write() else { return true };
        let block_bytes = u64::from(self.geometry.block_bytes);
        let in_part = |at: u64| {
            let block = at / block_bytes;
            let delayed = state.data.as_ref().is_some_and(|d| d.pages.contains_key(&(block as u32)));
            at % block_bytes != 0 && block * block_bytes < state.raw.size && !delayed
        };
        in_part(offset) || in_part(offset.saturating_add(len as u64))
    }

    /// Whether file data may change: a regular file, not immutable, on a writable file system.
    pub(crate) fn check_writable(&self, state: &InodeState) -> Result<()> {
        if self.is_read_only() {
            return Err(Error::ReadOnly);
        }
        if self.journal.is_aborted() {
            return Err(Error::Aborted);
        }
        match state.raw.kind() {
            Some(FileKind::Regular) => {}
            Some(FileKind::Directory) => return Err(Error::IsDirectory),
            _ => return Err(Error::Invalid),
        }
        Self::check_mutable(&state.raw, true)
    }

    /// Clears the set-id bits as a write by an unprivileged program does.
    pub(crate) fn kill_set_id(raw: &mut RawInode) {
        raw.mode &= !0o4000;
        if raw.mode & 0o010 != 0 {
            raw.mode &= !0o2000;
        }
    }

    /// Puts bytes into the inode's delayed data, holding space for blocks that the file doesn't have.
    pub(crate) fn buffer(
        &self,
        inode: &Arc<Inode>,
        state: &mut InodeState,
        offset: u64,
        bytes: &[u8],
        privileged: bool,
    ) -> Result<()> {
        let block_bytes = self.geometry.block_bytes as u64;
        let end = offset + bytes.len() as u64;
        if offset > state.size() {
            self.zero_tail(inode, state)?;
        }
        let (first, last) = ((offset / block_bytes) as u32, end.div_ceil(block_bytes) as u32);
        let holes = self.unmapped(inode.nr, state, first, last)?;
        let count: u64 = holes.iter().map(|(_, len)| *len as u64).sum();
        let metadata: u64 = holes
            .iter()
            .map(|(start, len)| map::metadata_blocks_max(&self.geometry, &state.raw, FileBlock(*start), *len))
            .sum();
        // All that can fail comes first, so that a write is whole or absent.
        let partial = self.partial_blocks(inode.nr, state, offset, end, &holes)?;
        if count > 0 {
            self.allocator.hold_space(count + metadata, privileged)?;
            state.delayed().metadata_held += metadata;
        }
        self.fill_pages(state, offset, bytes, &holes, partial);
        Ok(())
    }

    /// The old contents of the first and the last block of a write that covers them only in part, unless delayed data has them.
    fn partial_blocks(
        &self,
        nr: InodeNr,
        state: &InodeState,
        offset: u64,
        end: u64,
        holes: &[(u32, u32)],
    ) -> Result<Vec<(u32, Block)>> {
        let block_bytes = self.geometry.block_bytes as u64;
        let ends = [(offset, offset / block_bytes), (end, (end - 1) / block_bytes)];
        let mut blocks: Vec<(u32, Block)> = Vec::new();
        for (at, block) in ends {
            let block = block as u32;
            let known = blocks.iter().any(|(nr, _)| *nr == block)
                || state.data.as_ref().is_some_and(|d| d.pages.contains_key(&block));
            if at % block_bytes != 0 && !known {
                let in_hole = in_runs(holes, block);
                blocks.push((block, self.old_block(nr, &state.raw, state.size(), block, in_hole)?));
            }
        }
        Ok(blocks)
    }

    fn fill_pages(
        &self,
        state: &mut InodeState,
        offset: u64,
        bytes: &[u8],
        holes: &[(u32, u32)],
        mut partial: Vec<(u32, Block)>,
    ) {
        let block_bytes = self.geometry.block_bytes as usize;
        let end = offset + bytes.len() as u64;
        let data = state.delayed();
        let mut done = 0;
        let mut added = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let nr = (at / block_bytes as u64) as u32;
            let within = (at % block_bytes as u64) as usize;
            let chunk = (block_bytes - within).min(bytes.len() - done);
            let piece = &bytes[done..done + chunk];
            if let Some(page) = data.pages.get_mut(&nr) {
                Arc::make_mut(&mut page.block)[within..within + chunk].copy_from_slice(piece);
            } else {
                let block = if let Some(old) = partial.iter().position(|(block, _)| *block == nr) {
                    let (_, mut block) = partial.swap_remove(old);
                    block[within..within + chunk].copy_from_slice(piece);
                    block
                } else {
                    Block::from_bytes(piece)
                };
                data.pages.insert(nr, Page { block: Arc::new(block), held: in_runs(holes, nr) });
                added += block_bytes as u64;
            }
            done += chunk;
        }
        data.size = data.size.max(end);
        self.writeback.grew(added);
    }

    /// A file block as the disk has it, zero behind the file's size.
    pub(crate) fn old_block(
        &self,
        nr: InodeNr,
        raw: &RawInode,
        size: u64,
        file_block: u32,
        is_hole: bool,
    ) -> Result<Block> {
        let block_bytes = self.geometry.block_bytes as usize;
        let mut block = Block::zeroed(block_bytes);
        let start = file_block as u64 * block_bytes as u64;
        if is_hole || start >= size {
            return Ok(block);
        }
        self.read_mapped(nr, raw, FileBlock(file_block), 1, &mut block)?;
        if size - start < block_bytes as u64 {
            block[(size - start) as usize..].fill(0);
        }
        Ok(block)
    }

    /// Makes sure that what lies between the file's size and its last block's end reads as zeroes once the
    /// file is longer (rule J10).
    pub(crate) fn zero_tail(&self, inode: &Arc<Inode>, state: &mut InodeState) -> Result<()> {
        let block_bytes = self.geometry.block_bytes as u64;
        let size = state.size();
        let nr = (size / block_bytes) as u32;
        if size % block_bytes == 0 || state.raw.flags.contains(InodeFlags::INLINE_DATA) {
            return Ok(());
        }
        let from = (size % block_bytes) as usize;
        if let Some(page) = state.data.as_mut().and_then(|d| d.pages.get_mut(&nr)) {
            Arc::make_mut(&mut page.block)[from..].fill(0);
            return Ok(());
        }
        let mapping = map::lookup(&self.geometry, &*self.cache, inode.nr, &state.raw, FileBlock(nr), 1)?;
        if mapping.physical.is_none() || mapping.unwritten {
            return Ok(());
        }
        let mut block = Block::zeroed(block_bytes as usize);
        self.read_mapped(inode.nr, &state.raw, FileBlock(nr), 1, &mut block)?;
        if block[from..].iter().all(|b| *b == 0) {
            return Ok(());
        }
        block[from..].fill(0);
        let data = state.delayed();
        data.pages.insert(nr, Page { block: Arc::new(block), held: false });
        self.writeback.grew(block_bytes);
        self.writeback.add(inode, state);
        Ok(())
    }

    /// The file blocks in `[first, last)` that have neither a page nor a block, as `(start, len)`.
    fn unmapped(&self, nr: InodeNr, state: &InodeState, first: u32, last: u32) -> Result<Vec<(u32, u32)>> {
        let mut holes = Vec::new();
        let mut at = first;
        while let Some((start, len)) = gap(state.data.as_deref(), at, last) {
            let mut done = 0;
            while done < len {
                let from = FileBlock(start + done);
                let mapping = map::lookup(&self.geometry, &*self.cache, nr, &state.raw, from, len - done)?;
                let count = mapping.len.clamp(1, len - done);
                if mapping.physical.is_none() {
                    holes.push((from.0, count));
                }
                done += count;
            }
            at = start + len;
        }
        Ok(holes)
    }

    /// Makes what can be had of space available: delayed data gets its place, so that what it holds too much is
    /// given back, and what has been freed becomes usable. Call it without locks.
    fn make_room(&self) {
        tracing::debug!("no space: writing delayed data and committing frees");
        for inode in self.writeback.inodes() {
            if let Err(error) = self.write_out(&inode, false) {
                tracing::debug!(inode = inode.nr.0, %error, "writing a file to make room failed");
            }
        }
        self.drain_inactivation();
        if let Err(error) = self.journal.commit(self.journal.running_tid()) {
            tracing::debug!(%error, "committing to make room failed");
        }
    }

    /// The largest size that a file with this record may have.
    pub(crate) fn size_max(&self, raw: &RawInode) -> u64 {
        map::blocks_max(&self.geometry, raw) * self.geometry.block_bytes as u64
    }

    pub(crate) fn wants_atime(&self, raw: &RawInode) -> bool {
        if self.is_read_only() || raw.flags.contains(InodeFlags::NOATIME) {
            return false;
        }
        let stale = || {
            let day = 24 * 3600;
            raw.atime <= raw.mtime
                || raw.atime <= raw.ctime
                || self.now().seconds.saturating_sub(raw.atime.seconds) >= day
        };
        match self.options.atime {
            AtimePolicy::Never => false,
            AtimePolicy::Strict => true,
            AtimePolicy::Relatime => stale(),
        }
    }

    /// Sets atime, relatime-wise; written with the inode's next change or by the next sync.
    pub(crate) fn touch_atime(&self, inode: &Arc<Inode>) {
        let mut state = inode.write();
        if !state.dead && self.wants_atime(&state.raw) {
            state.raw.atime = self.now();
            state.touched = true;
            self.writeback.add(inode, &mut state);
        }
    }
}

/// Whether a file block is in one of the runs.
fn in_runs(runs: &[(u32, u32)], block: u32) -> bool {
    runs.iter().any(|(start, len)| (*start..start + len).contains(&block))
}
