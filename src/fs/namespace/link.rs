//! More names for an inode, and what a symbolic link says.

use super::{check_name, entry_kind, touch, touch_dir, Purpose, CREDITS};
use crate::error::{Error, Result};
use crate::format::inode::{FileKind, InodeFlags, RawInode};
use crate::format::xattr::INLINE_DATA;
use crate::fs::attr::{Attr, Caller};
use crate::fs::{inode_table, map, xattr, Fs};
use crate::units::{FileBlock, InodeNr};

impl Fs {
    /// Gives an inode that is no directory another name, or one made [without](Self::tmpfile) its first.
    pub fn link(&self, nr: InodeNr, new_parent: InodeNr, new_name: &[u8], caller: &Caller) -> Result<Attr> {
        check_name(new_name, Purpose::Create)?;
        let parent = self.inode(new_parent)?;
        let inode = self.inode(nr)?;
        // Nothing can be linked into itself; the check comes first because both are locked below.
        if inode.read().raw.is_dir() {
            return Err(Error::NotPermitted);
        }
        let mut parent_state = parent.write();
        Self::check_dir(&parent_state)?;
        if self.find(&parent, &parent_state, new_name)?.is_some() {
            return Err(Error::Exists);
        }
        Self::check_mutable(&parent_state.raw, true)?;
        let mut state = inode.write();
        let first = state.raw.links == 0;
        if state.dead || first && (!state.linkable || state.opens == 0) {
            return Err(Error::NotFound);
        }
        Self::check_mutable(&state.raw, false)?;
        if state.raw.links >= super::LINK_MAX {
            return Err(Error::TooManyLinks);
        }
        let now = self.now();
        let (tid, (raw, parent_raw)) = self.update_for(caller, CREDITS, |h| {
            let (mut raw, mut parent_raw) = (state.raw.clone(), parent_state.raw.clone());
            self.dir_mut(h, parent.nr, &mut parent_raw).insert(new_name, nr, entry_kind(&raw))?;
            if first {
                self.orphan_remove(h, nr)?;
            }
            raw.links += 1;
            touch(&mut raw, now);
            touch_dir(&mut parent_raw, now);
            inode_table::write(h, &self.geometry, nr, &raw)?;
            inode_table::write(h, &self.geometry, parent.nr, &parent_raw)?;
            Ok((raw, parent_raw))
        })?;
        let flags = parent_raw.flags;
        parent_state.publish(parent_raw, tid, true);
        state.publish(raw, tid, first);
        if first {
            state.linkable = false;
        }
        let attr = Attr::of(nr, &state, &self.geometry);
        drop((state, parent_state));
        self.settle_names(flags, tid)?;
        Ok(attr)
    }

    /// What a symbolic link points to.
    pub fn readlink(&self, nr: InodeNr) -> Result<Vec<u8>> {
        let inode = self.inode(nr)?;
        let state = inode.read();
        if state.raw.kind() != Some(FileKind::Symlink) {
            return Err(Error::Invalid);
        }
        let target = self.noting(self.target(nr, &state.raw))?;
        let touch = self.wants_atime(&state.raw);
        drop(state);
        if touch {
            self.touch_atime(&inode);
        }
        Ok(target)
    }

    fn target(&self, nr: InodeNr, raw: &RawInode) -> Result<Vec<u8>> {
        let corrupt = |why: &str| Self::corrupt_inode(nr, why);
        let len = usize::try_from(raw.size).unwrap_or(usize::MAX);
        if len == 0 || len > self.geometry.block_bytes as usize {
            return Err(corrupt("a symbolic link's length is impossible"));
        }
        let mut bytes = if raw.flags.contains(InodeFlags::INLINE_DATA) {
            let mut bytes = raw.block.to_vec();
            bytes.extend(xattr::get(&*self.cache, &self.geometry, nr, raw, INLINE_DATA)?.unwrap_or_default());
            bytes
        } else if self.is_fast_symlink(raw) {
            raw.block.to_vec()
        } else {
            let mapping = map::lookup(&self.geometry, &*self.cache, nr, raw, FileBlock(0), 1)?;
            let block = mapping.physical.filter(|_| !mapping.unwritten);
            let block = block.ok_or_else(|| corrupt("a symbolic link has lost its block"))?;
            self.cache.read(block)?.to_vec()
        };
        if bytes.len() < len {
            return Err(corrupt("a symbolic link is longer than where it is kept"));
        }
        bytes.truncate(len);
        if bytes.contains(&0) {
            return Err(corrupt("a symbolic link's target has a NUL"));
        }
        Ok(bytes)
    }

    /// Whether the target lies in the inode: it has no blocks but perhaps one of attributes.
    fn is_fast_symlink(&self, raw: &RawInode) -> bool {
        let attributes = if raw.file_acl.0 == 0 { 0 } else { u64::from(self.geometry.sectors_per_block()) };
        raw.blocks.saturating_sub(attributes) == 0
    }
}
