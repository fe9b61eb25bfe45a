//! Directories as structures: entries found, put in, taken out and listed, in blocks that are linear or
//! indexed by a hash tree. Called by `fs/namespace`, mkfs and recovery; calls `fs/map` and the allocator for
//! blocks, `format` for what is in them. Permissions, link counts and times are not its business.
//!
//! [`Dir`] looks, through anything that reads blocks; [`DirMut`] changes, in a handle. Both want the
//! directory's inode locked by the caller, and work on the record that they are given: who changes writes the
//! record afterwards, since a directory that grows changes its size and mapping.
//!
//! Invariants:
//! 1. A block that this code hands back is sealed: its checksum is right (metadata_csum).
//! 2. What an index leads to is checked like everything from the disk: a damaged index is never followed in
//!    circles, and where no checksum vouches for it, the blocks are searched one by one instead.
//! 3. An entry of an indexed directory has a place in the listing that depends on its name only, so
//!    splitting blocks while a listing is under way loses and repeats nothing.

mod blocks;
mod edit;
mod index;
mod inline;
mod insert;
mod lookup;
mod read;
mod split;
#[cfg(test)]
mod tests;

use crate::cache::Handle;
use crate::format::features::{Compat, Incompat};
use crate::format::geometry::Geometry;
use crate::format::hash::{HashVersion, NameHash};
use crate::format::inode::{InodeFlags, RawInode};
use crate::fs::alloc::Allocator;
use crate::units::{BlockNr, InodeNr};

/// A directory to look at. Its inode is locked by the caller.
#[derive(Copy, Clone)]
pub struct Dir<'a> {
    /// The file system's shape.
    pub geometry: &'a Geometry,
    /// The directory.
    pub nr: InodeNr,
    /// Its record.
    pub raw: &'a RawInode,
}

/// A directory to change, in a handle. Its inode is locked for writing by the caller, who also writes `raw`
/// to the inode table afterwards.
pub struct DirMut<'a, 'h> {
    /// The file system's shape.
    pub geometry: &'a Geometry,
    /// Where new blocks come from.
    pub allocator: &'a Allocator,
    /// What the changes go into.
    pub h: &'a mut Handle<'h>,
    /// The directory.
    pub nr: InodeNr,
    /// Its record: size, flags and mapping change.
    pub raw: &'a mut RawInode,
}

/// An entry that was looked up.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// What the name stands for.
    pub inode: InodeNr,
    /// Its type (see [`FileKind::dirent_type`](crate::format::FileKind::dirent_type)); 0 where entries have none.
    pub kind: u8,
    /// The device block of the entry.
    pub(crate) block: BlockNr,
    /// Where in the block it is.
    pub(crate) offset: usize,
    /// The bytes of the block that entries may use.
    pub(crate) usable: usize,
}

/// One entry of a listing.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct DirEntry<'a> {
    /// What the name stands for.
    pub nr: InodeNr,
    /// Its type (see [`FileKind::dirent_type`](crate::format::FileKind::dirent_type)); 0 where entries have none.
    pub kind: u8,
    /// The name.
    pub name: &'a [u8],
    /// Where a listing goes on after this entry. At most 63 bits.
    pub next_cookie: u64,
}

impl<'a> Dir<'a> {
    /// A directory of the file system `geometry`.
    pub fn new(geometry: &'a Geometry, nr: InodeNr, raw: &'a RawInode) -> Self {
        Self { geometry, nr, raw }
    }

    /// Whether the directory has an index that may be used.
    fn is_indexed(&self) -> bool {
        self.has(Compat::DIR_INDEX) && self.raw.flags.contains(InodeFlags::INDEX)
    }

    /// Whether the entries are in the inode itself.
    fn is_inline(&self) -> bool {
        self.raw.flags.contains(InodeFlags::INLINE_DATA)
    }

    fn has(&self, feature: Compat) -> bool {
        self.geometry.features.compat.contains(feature)
    }

    fn has_filetype(&self) -> bool {
        self.geometry.features.incompat.contains(Incompat::FILETYPE)
    }

    fn has_large_dir(&self) -> bool {
        self.geometry.features.incompat.contains(Incompat::LARGE_DIR)
    }

    /// The hash of new indexes, if it is one that we know.
    fn default_version(&self) -> Option<HashVersion> {
        HashVersion::from_disk(self.geometry.hash_version, self.geometry.hash_unsigned)
    }

    /// Bytes in a block.
    fn block_bytes(&self) -> usize {
        self.geometry.block_bytes as usize
    }

    /// The directory's length in blocks.
    fn blocks(&self) -> u32 {
        u32::try_from(self.raw.size / self.geometry.block_bytes as u64).unwrap_or(u32::MAX)
    }

    /// The seed of this directory's checksums.
    fn seed(&self) -> u32 {
        self.geometry.inode_csum_seed(self.nr, self.raw.generation)
    }

    fn hash(&self, version: HashVersion, name: &[u8]) -> NameHash {
        version.hash(&self.geometry.hash_seed, name)
    }
}

impl DirMut<'_, '_> {
    /// The directory as it is now.
    pub fn view(&self) -> Dir<'_> {
        Dir { geometry: self.geometry, nr: self.nr, raw: self.raw }
    }
}
