//! Ranges of files: mapped and removed.

use super::{Early, Extent, Replay};
use crate::error::Result;
use crate::fs::{inode_table, map};
use crate::units::{BlockRange, FileBlock, InodeNr};

/// Metadata blocks that one handle may change to remove a range.
const REMOVE_BUDGET: u32 = 128;

impl Replay<'_> {
    /// Whether ranges of the inode mean anything: it has data in blocks. The blocks of directories are logged, and what
    /// is in them is brought by names.
    fn has_ranges(&self, nr: InodeNr) -> Result<bool> {
        Ok(self.existing(nr)?.is_some_and(|raw| raw.maps_blocks() && !raw.is_dir()))
    }

    /// A range of a file that is mapped so.
    pub(super) fn add_range(&mut self, nr: InodeNr, extent: Extent) -> Result<()> {
        if self.is_early(nr)? {
            return self.postpone(Early::Add { nr, extent });
        }
        self.map_range(nr, extent)
    }

    /// A range of a file that is a hole.
    pub(super) fn remove_range(&mut self, nr: InodeNr, file_block: FileBlock, len: u32) -> Result<()> {
        if self.is_early(nr)? {
            return self.postpone(Early::Remove { nr, file_block, len });
        }
        self.unmap_range(nr, file_block, len)
    }

    /// Maps a range, whatever was mapped there.
    pub(super) fn map_range(&self, nr: InodeNr, extent: Extent) -> Result<()> {
        if !self.has_ranges(nr)? {
            return Ok(());
        }
        let len = extent.blocks.len;
        if u64::from(extent.file_block.0) + u64::from(len) > 1 << 32 {
            return Err(Self::corrupt(nr, format!("has a range of {len} blocks at {}", extent.file_block.0)));
        }
        let mut done = 0;
        while done < len {
            // Each step maps at least one block, or takes away some of what is in its way.
            done += self.add_step(nr, extent, done)?;
        }
        Ok(())
    }

    /// Maps the first blocks of what is left behind `done`. Returns how many.
    fn add_step(&self, nr: InodeNr, extent: Extent, done: u32) -> Result<u32> {
        let Extent { file_block, blocks, unwritten } = extent;
        let (allocator, geometry) = (&*self.fs.allocator, &self.fs.geometry);
        let at = FileBlock(file_block.0 + done);
        let start = blocks.start.plus(u64::from(done));
        self.update(|h| {
            let mut raw = inode_table::read(h, geometry, nr)?;
            let found = map::lookup(geometry, &*h, nr, &raw, at, blocks.len - done)?;
            let len = found.len.min(blocks.len - done);
            let part = u64::from(at.0)..u64::from(at.0) + u64::from(len);
            if found.physical == Some(start) {
                match (found.unwritten, unwritten) {
                    (true, false) => map::set_written(allocator, h, nr, &mut raw, part)?,
                    (false, true) => map::set_unwritten(allocator, h, nr, &mut raw, part)?,
                    _ => {}
                }
                inode_table::write(h, &self.fs.geometry, nr, &raw)?;
                return Ok(len);
            }
            if found.physical.is_some() {
                let removal = map::remove(allocator, h, nr, &mut raw, part, REMOVE_BUDGET)?;
                if removal.rest.is_some() {
                    inode_table::write(h, &self.fs.geometry, nr, &raw)?;
                    return Ok(0);
                }
            }
            let range = BlockRange::new(start, len);
            allocator.claim(h, range)?;
            map::insert(allocator, h, nr, &mut raw, at, range, unwritten)?;
            inode_table::write(h, &self.fs.geometry, nr, &raw)?;
            Ok(len)
        })
    }

    /// Makes a range a hole.
    pub(super) fn unmap_range(&self, nr: InodeNr, file_block: FileBlock, len: u32) -> Result<()> {
        if !self.has_ranges(nr)? {
            return Ok(());
        }
        let start = u64::from(file_block.0);
        let mut rest = Some(start..start + u64::from(len));
        // Each round frees blocks or ends the loop.
        while let Some(blocks) = rest {
            rest = self.update(|h| {
                let mut raw = inode_table::read(h, &self.fs.geometry, nr)?;
                let blocks = blocks.clone();
                let removal = map::remove(&self.fs.allocator, h, nr, &mut raw, blocks, REMOVE_BUDGET)?;
                inode_table::write(h, &self.fs.geometry, nr, &raw)?;
                Ok(removal.rest)
            })?;
        }
        Ok(())
    }
}
