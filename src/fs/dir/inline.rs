//! Directories inside their inode (inline_data): read only.
//!
//! `i_block` begins with the parent's number; entries fill the rest of it, and go on in the value of the
//! attribute `system.data` in the inode. There are no dot entries, and no checksums beside the inode's own.

use super::{Dir, DirEntry, Found};
use crate::cache::ReadBlock;
use crate::error::{Error, Place, Result};
use crate::format::dirent::{self, Entry};
use crate::format::xattr::INLINE_DATA;
use crate::format::FileKind;
use crate::fs::xattr;
use crate::units::{BlockNr, InodeNr};

/// Bytes before the first entry: the parent's number.
const PARENT_BYTES: usize = 4;

impl Dir<'_> {
    fn bad_inline(&self, why: &'static str) -> Error {
        Error::corrupt("inline directory", Place::Inode(self.nr), why)
    }

    /// Calls `f` with each entry in use and its offset in the whole, until it returns `false`.
    fn for_each_inline(
        &self,
        r: &impl ReadBlock,
        f: &mut dyn FnMut(usize, Entry<'_>) -> Result<bool>,
    ) -> Result<()> {
        let rest = xattr::get(r, self.geometry, self.nr, self.raw, INLINE_DATA)?.unwrap_or_default();
        let regions = [self.raw.block.get(PARENT_BYTES..).unwrap_or_default(), &rest];
        let mut start = 0;
        for region in regions {
            for entry in dirent::entries(region, region.len()) {
                let entry = entry.map_err(|why| self.bad_inline(why))?;
                if entry.in_use() && !f(start + entry.offset, entry)? {
                    return Ok(());
                }
            }
            start += region.len();
        }
        Ok(())
    }

    pub(super) fn lookup_inline(&self, r: &impl ReadBlock, name: &[u8]) -> Result<Option<Found>> {
        match name {
            b"." => return Ok(Some(self.inline_dot(self.nr))),
            b".." => return self.inline_parent().map(Some),
            _ => {}
        }
        let mut found = None;
        self.for_each_inline(r, &mut |_, entry| {
            if entry.name == name {
                found = Some(self.found(BlockNr(0), 0, &entry)?);
            }
            Ok(found.is_none())
        })?;
        Ok(found)
    }

    fn inline_dot(&self, inode: InodeNr) -> Found {
        let kind = if self.has_filetype() { FileKind::Directory.dirent_type() } else { 0 };
        Found { inode, kind, block: BlockNr(0), offset: 0, usable: 0 }
    }

    pub(super) fn inline_parent(&self) -> Result<Found> {
        let parent = InodeNr(self.raw.block.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes)));
        if !self.geometry.holds_inode(parent) {
            return Err(self.bad_inline("its parent is no inode"));
        }
        Ok(self.inline_dot(parent))
    }

    pub(super) fn inline_is_empty(&self, r: &impl ReadBlock) -> Result<bool> {
        let mut empty = true;
        self.for_each_inline(r, &mut |_, _| {
            empty = false;
            Ok(false)
        })?;
        Ok(empty)
    }

    /// Cookies are offsets, moved by 2 for the dot entries.
    pub(super) fn read_inline(
        &self,
        r: &impl ReadBlock,
        cookie: u64,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let parent = self.inline_parent()?;
        for (at, inode, name) in [(0, self.nr, &b"."[..]), (1, parent.inode, b"..")] {
            let entry = DirEntry { nr: inode, kind: parent.kind, name, next_cookie: at + 1 };
            if cookie <= at && !emit(entry) {
                return Ok(());
            }
        }
        self.for_each_inline(r, &mut |offset, entry| {
            let position = offset as u64 + 2;
            if position < cookie {
                return Ok(true);
            }
            let found = self.found(BlockNr(0), 0, &entry)?;
            let next_cookie = position + entry.rec_len as u64;
            Ok(emit(DirEntry { nr: found.inode, kind: found.kind, name: entry.name, next_cookie }))
        })
    }
}
