//! Blocks and inodes that somebody else has chosen: the kernel, in fast commits, which name them but leave the
//! bitmaps to the reader.

use super::Allocator;
use crate::cache::{Handle, ReadBlock};
use crate::error::Result;
use crate::format::bitmap;
use crate::fs::groups;
use crate::units::{BlockRange, InodeNr};

impl Allocator {
    /// Keeps what is free of these blocks from being taken by [`allocate`](Self::allocate): a fast commit names
    /// them, and will [`claim`](Self::claim) them. Outside of handles.
    pub(crate) fn reserve_named(&self, r: &impl ReadBlock, range: BlockRange) -> Result<()> {
        for (group, bits, _) in self.by_group(range) {
            let descriptor = groups::read(r, &self.geometry, group)?;
            let bitmap = groups::block_bitmap(r, &self.geometry, &self.zones, group, &descriptor)?;
            let first = self.geometry.group_first_block(group);
            let mut overlay = self.overlay.lock();
            let mut rest = bits;
            while let Some(run) = bitmap::find_clear_run(&bitmap, rest.clone(), u32::MAX) {
                rest.start = run.end;
                let free = BlockRange::new(first.plus(u64::from(run.start)), run.end - run.start);
                let reserved = overlay.reserved.insert(free);
                self.count_spoken_for(&reserved, true);
            }
        }
        Ok(())
    }

    /// Whether the inode's bit is set.
    pub(crate) fn inode_in_use(&self, r: &impl ReadBlock, nr: InodeNr) -> Result<bool> {
        let (group, index) = self.geometry.group_of_inode(nr);
        let descriptor = groups::read(r, &self.geometry, group)?;
        Ok(bitmap::test(&groups::inode_bitmap(r, &self.geometry, group, &descriptor)?, index))
    }

    /// Takes an inode, which is free.
    pub(crate) fn claim_inode(&self, h: &mut Handle<'_>, nr: InodeNr, is_dir: bool) -> Result<()> {
        let (group, index) = self.geometry.group_of_inode(nr);
        let descriptor = groups::read(h, &self.geometry, group)?;
        self.take_inode(h, group, &descriptor, index, is_dir)
    }
}
