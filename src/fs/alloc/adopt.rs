//! Marking what is known to be in use, whatever the bitmaps say: for the replay of fast commits, which name blocks and
//! inodes but leave the bitmaps to the reader.

use super::Allocator;
use crate::cache::{Handle, ReadBlock};
use crate::error::{Error, Place, Result};
use crate::format::bitmap;
use crate::fs::groups;
use crate::units::{BlockNr, BlockRange, InodeNr};

impl Allocator {
    /// Marks those of the blocks that are not marked yet.
    pub(crate) fn adopt(&self, h: &mut Handle<'_>, range: BlockRange) -> Result<()> {
        if !self.geometry.holds_blocks(range.start, u64::from(range.len)) || self.is_own(range) {
            let why = format!("{} blocks from here can't be a file's", range.len);
            return Err(Error::corrupt("block pointer", Place::Block(range.start), why));
        }
        let mut missing: Vec<BlockRange> = Vec::new();
        for (group, bits, part) in self.by_group(range) {
            let descriptor = groups::read(h, &self.geometry, group)?;
            let bitmap = groups::block_bitmap(h, &self.geometry, &self.zones, group, &descriptor)?;
            for index in bits.clone().filter(|index| !bitmap::test(&bitmap, *index)) {
                let nr = BlockNr(part.start.0 + u64::from(index - bits.start));
                match missing.last_mut() {
                    Some(last) if last.end() == nr => last.len += 1,
                    _ => missing.push(BlockRange::new(nr, 1)),
                }
            }
        }
        missing.into_iter().try_for_each(|range| self.claim(h, range))
    }

    /// Whether an inode is marked in use.
    pub(crate) fn inode_is_marked(&self, r: &impl ReadBlock, nr: InodeNr) -> Result<bool> {
        if !self.geometry.holds_file(nr) {
            return Err(Error::corrupt("inode number", Place::Inode(nr), "not one that a file can have"));
        }
        let (group, index) = self.geometry.group_of_inode(nr);
        let descriptor = groups::read(r, &self.geometry, group)?;
        let bits = groups::inode_bitmap(r, &self.geometry, group, &descriptor)?;
        Ok(bitmap::test(&bits, index))
    }

    /// Marks an inode if it is not marked yet; returns whether it was.
    pub(crate) fn adopt_inode(&self, h: &mut Handle<'_>, nr: InodeNr, is_dir: bool) -> Result<bool> {
        if self.inode_is_marked(h, nr)? {
            return Ok(true);
        }
        let (group, index) = self.geometry.group_of_inode(nr);
        let descriptor = groups::read(h, &self.geometry, group)?;
        self.take_inode(h, group, &descriptor, index, is_dir)?;
        Ok(false)
    }
}
