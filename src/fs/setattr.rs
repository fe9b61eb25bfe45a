//! `getattr` and `setattr` on a mounted file system. Called by `fuse/`; calls [`acl`](super::acl),
//! `xattr` (capabilities) and `inode_table`.

use super::attr::{Attr, Caller, SetAttr};
use super::{acl, inode_table, Fs, InodeState};
use crate::cache::Handle;
use crate::error::Result;
use crate::format::geometry::Geometry;
use crate::format::inode::{FileKind, InodeFlags, RawInode};
use crate::units::InodeNr;

impl Attr {
    /// The attributes of an inode that the caller has locked.
    pub fn of(nr: InodeNr, state: &InodeState, geometry: &Geometry) -> Self {
        let raw = &state.raw;
        let held = state.data.as_ref().map_or(0, |data| data.held());
        // What lies in the inode itself counts as the sectors it would fill, as ext4 counts it.
        let inline = if raw.is_regular() && raw.flags.contains(InodeFlags::INLINE_DATA) {
            raw.size.div_ceil(512)
        } else {
            0
        };
        let device = matches!(raw.kind(), Some(FileKind::CharDevice | FileKind::BlockDevice));
        Self {
            nr,
            generation: raw.generation,
            size: state.size(),
            blocks: raw.blocks + held * u64::from(geometry.sectors_per_block()) + inline,
            atime: raw.atime,
            mtime: raw.mtime,
            ctime: raw.ctime,
            crtime: raw.crtime,
            mode: raw.mode,
            links: u32::from(raw.links),
            uid: raw.uid,
            gid: raw.gid,
            rdev: if device { raw.rdev() } else { 0 },
            block_bytes: geometry.block_bytes,
        }
    }
}

impl Fs {
    /// The inode's attributes.
    pub fn getattr(&self, nr: InodeNr) -> Result<Attr> {
        let inode = self.inode(nr)?;
        let state = inode.read();
        Ok(Attr::of(nr, &state, &self.geometry))
    }

    /// Changes attributes; returns what they are then. The caller's right to it is checked before, by the
    /// VFS; here are the inode flags, which it doesn't know.
    pub fn setattr(&self, nr: InodeNr, set: &SetAttr, caller: &Caller) -> Result<Attr> {
        let inode = self.inode(nr)?;
        Self::check_mutable(&inode.read().raw, !set.needs_mutable())?;
        if let Some(size) = set.size {
            self.truncate(nr, size)?;
        }
        let mut state = self.live(&inode)?;
        let strips = (set.size.is_some() || set.kill_suid_sgid || set.changes_owner()) && !state.raw.is_dir();
        let strips = strips && self.has_capability(nr, &state)?;
        if strips || !set.is_only_size() {
            Self::check_mutable(&state.raw, !set.needs_mutable())?;
            let now = self.now();
            let (tid, raw) = self.update(super::xattr::CREDITS, |h| {
                let mut raw = state.raw.clone();
                set.apply(&mut raw, now, caller);
                if strips {
                    self.drop_capability(h, nr, &mut raw)?;
                }
                self.write_attributes(h, nr, &mut raw, set.mode.is_some())?;
                Ok(raw)
            })?;
            state.publish(raw, tid, false);
        }
        Ok(Attr::of(nr, &state, &self.geometry))
    }

    /// Writes a changed record; after a chmod the access ACL follows.
    fn write_attributes(
        &self,
        h: &mut Handle<'_>,
        nr: InodeNr,
        raw: &mut RawInode,
        chmod: bool,
    ) -> Result<()> {
        if chmod && !raw.is_symlink() {
            acl::chmod(h, &self.allocator, nr, raw)
        } else {
            inode_table::write(h, &self.geometry, nr, raw)
        }
    }
}
