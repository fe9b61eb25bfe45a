//! Inodes: made, changed and freed.

use super::Replay;
use crate::error::Result;
use crate::format::extent::{Node, ROOT_BYTES};
use crate::format::inode::{InodeFlags, RawInode};
use crate::fs::dir::Dir;
use crate::fs::inode_table;
use crate::units::{BlockNr, InodeNr};

/// Flags that say how an inode's blocks are found: they belong to the map, which no record brings.
const STRUCTURAL: InodeFlags = InodeFlags::EXTENTS.union(InodeFlags::INDEX);

impl Replay<'_> {
    /// Makes the inode what its record says, but for its map.
    pub(super) fn inode(&mut self, nr: InodeNr, bytes: &[u8]) -> Result<()> {
        let wanted = self.decode(nr, bytes)?;
        let mut old = self.existing(nr)?;
        // The number has been given to another inode since; the first one's end needed no record.
        if old.as_ref().is_some_and(|old| old.generation != wanted.generation || old.kind() != wanted.kind())
        {
            self.free(nr)?;
            old = None;
        }
        self.touched.insert(nr);
        let attributes = old.as_ref().map_or(BlockNr(0), |old| old.file_acl);
        if wanted.file_acl != attributes {
            let why = format!("has attributes in block {}, which no fast commit can bring", wanted.file_acl);
            return Err(Self::corrupt(nr, why));
        }
        if let Some(old) = old {
            let raw = changed(&wanted, &old);
            return self.update(|h| {
                self.fs.note_large_file(h, raw.size)?;
                inode_table::write(h, &self.fs.geometry, nr, &raw)
            });
        }
        let raw = made(&wanted);
        self.update(|h| {
            self.fs.allocator.claim_inode(h, nr, raw.is_dir())?;
            self.fs.note_large_file(h, raw.size)?;
            inode_table::create(h, &self.fs.geometry, nr, &raw)
        })
    }

    fn decode(&self, nr: InodeNr, bytes: &[u8]) -> Result<RawInode> {
        let mut whole = vec![0; self.fs.geometry.inode_bytes as usize];
        let Some(part) = whole.get_mut(..bytes.len()) else {
            return Err(Self::corrupt(nr, format!("has a record of {} bytes", bytes.len())));
        };
        part.copy_from_slice(bytes);
        // The checksum in it is that of the whole inode with its map, which the record hasn't got.
        let raw = RawInode::decode_unsealed(&whole, &self.fs.geometry, nr)?;
        if raw.kind().is_none() {
            return Err(Self::corrupt(nr, format!("has the mode {:#o}", raw.mode)));
        }
        if raw.flags.contains(InodeFlags::INLINE_DATA) {
            return Err(Self::inline(nr));
        }
        Ok(raw)
    }

    /// Frees an inode with all that it holds.
    pub(super) fn free(&mut self, nr: InodeNr) -> Result<()> {
        let Some(raw) = self.existing(nr)? else { return Ok(()) };
        if raw.is_dir() && raw.size > 0 && !Dir::new(&self.fs.geometry, nr, &raw).is_empty(&*self.fs.cache)? {
            return Err(Self::corrupt(nr, "is a directory that was removed, but is not empty"));
        }
        // Each round frees blocks or ends the loop.
        loop {
            let done = self.update(|h| {
                let mut raw = inode_table::read(h, &self.fs.geometry, nr)?;
                raw.links = 0;
                let done = self.fs.remove_step(h, nr, &mut raw, 0)?;
                if done {
                    self.fs.free_record(h, nr, &mut raw)?;
                } else {
                    inode_table::write(h, &self.fs.geometry, nr, &raw)?;
                }
                Ok(done)
            })?;
            if done {
                return Ok(());
            }
        }
    }
}

/// An inode that was in use and is now as `wanted` says.
fn changed(wanted: &RawInode, old: &RawInode) -> RawInode {
    let mut raw = RawInode { blocks: old.blocks, ..wanted.clone() };
    raw.flags = wanted.flags.difference(STRUCTURAL) | (old.flags & STRUCTURAL);
    if raw.maps_blocks() || old.maps_blocks() {
        raw.block = old.block;
    }
    if raw.is_dir() {
        (raw.size, raw.links) = (old.size, old.links);
    }
    raw
}

/// An inode that is new: without blocks, and a directory without entries and links until its name comes.
fn made(wanted: &RawInode) -> RawInode {
    let mut raw = RawInode { blocks: 0, dtime: 0, ..wanted.clone() };
    if raw.maps_blocks() {
        raw.block = [0; ROOT_BYTES];
        if raw.has_extents() {
            Node::empty(ROOT_BYTES, 0).encode(&mut raw.block);
        }
    }
    if raw.is_dir() {
        raw.flags.remove(InodeFlags::INDEX);
        (raw.size, raw.links) = (0, 0);
    }
    raw
}
