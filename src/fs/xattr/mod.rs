//! Extended attributes of an inode: behind its record's fields first, then in one block that several
//! inodes may share. Called by [`acl`](super::acl), [`attr`](super::attr), creation and inactivation;
//! calls `inode_table` and the allocator.
//!
//! Everything here works on an inode whose lock the caller holds, with a copy of its record that the
//! caller publishes. What changes an area has written the record too when it returns, so the table block is sealed.

mod absent;
mod block;
mod ea_inode;
#[cfg(test)]
mod tests;

pub(crate) use absent::Absent;

use super::alloc::Allocator;
use super::inode_table;
use crate::cache::{Handle, ReadBlock};
use crate::device::Block;
use crate::error::{Error, Place, Result};
use crate::format::features::Incompat;
use crate::format::geometry::Geometry;
use crate::format::inode::RawInode;
use crate::format::xattr::{self, Area, AttributeRef, Name, ValueRef};
use crate::units::InodeNr;
use std::sync::Arc;

/// Bytes of the record that every ext2 inode has; what is beyond them counts from here.
const OLD_RECORD_BYTES: usize = 128;

/// Blocks that one change of an inode's attributes may touch: its table block, the old and the new attribute
/// block, a bitmap and a descriptor for each, the superblock.
pub(crate) const CREDITS: u32 = 8;

/// What `setxattr(2)` may ask.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Create or replace.
    Any,
    /// EEXIST if it is there (XATTR_CREATE).
    Create,
    /// ENODATA if it isn't (XATTR_REPLACE).
    Replace,
}

/// The bytes of an inode's two areas, from which attributes are parsed.
pub struct Areas {
    nr: InodeNr,
    /// The bytes behind the inode's fields; empty if the record has no room for any.
    inode: Vec<u8>,
    block: Option<Arc<Block>>,
    raw_block: Place,
}

/// Where the area behind the inode's fields begins in its record. `None`: it has none.
fn area_start(raw: &RawInode, geometry: &Geometry) -> Option<usize> {
    let start = OLD_RECORD_BYTES + usize::from(raw.extra_isize);
    (raw.extra_isize > 0 && start < geometry.inode_bytes as usize).then_some(start)
}

impl Areas {
    /// Reads both areas; the block is verified on its first use.
    pub fn read(r: &impl ReadBlock, geometry: &Geometry, nr: InodeNr, raw: &RawInode) -> Result<Self> {
        let inode = match area_start(raw, geometry) {
            Some(start) => inode_table::with_bytes(r, geometry, nr, |bytes| {
                Ok(bytes.get(start..).unwrap_or_default().to_vec())
            })?,
            None => Vec::new(),
        };
        let block = block::read(r, geometry, nr, raw)?;
        Ok(Self { nr, inode, block, raw_block: Place::Block(raw.file_acl) })
    }

    /// The attributes behind the inode's fields.
    pub fn in_inode(&self) -> Result<Vec<AttributeRef<'_>>> {
        if !xattr::inode_area_in_use(&self.inode) {
            return Ok(Vec::new());
        }
        xattr::parse(&self.inode, Area::Inode, Place::Inode(self.nr))
    }

    /// The attributes in the block.
    pub fn in_block(&self) -> Result<Vec<AttributeRef<'_>>> {
        match &self.block {
            Some(block) => xattr::parse(block, Area::Block, self.raw_block),
            None => Ok(Vec::new()),
        }
    }

    /// All of them.
    pub fn all(&self) -> Result<Vec<AttributeRef<'_>>> {
        let mut all = self.in_inode()?;
        all.extend(self.in_block()?);
        Ok(all)
    }

    /// The attribute of a name.
    pub fn find(&self, name: Name<'_>) -> Result<Option<AttributeRef<'_>>> {
        Ok(self.all()?.into_iter().find(|a| a.name == name))
    }
}

/// The value of an attribute; `None` if there is no such attribute.
pub fn get(
    r: &impl ReadBlock,
    geometry: &Geometry,
    nr: InodeNr,
    raw: &RawInode,
    name: Name<'_>,
) -> Result<Option<Vec<u8>>> {
    let areas = Areas::read(r, geometry, nr, raw)?;
    areas.find(name)?.map(|attribute| value(r, geometry, nr, &attribute)).transpose()
}

/// An attribute's value, wherever it is; `nr` is the inode that has it.
pub fn value(
    r: &impl ReadBlock,
    geometry: &Geometry,
    nr: InodeNr,
    attribute: &AttributeRef<'_>,
) -> Result<Vec<u8>> {
    match attribute.value {
        ValueRef::Bytes(bytes) => Ok(bytes.to_vec()),
        ValueRef::Inode { .. } => ea_inode::read(r, geometry, nr, attribute),
    }
}

/// Sets an attribute. [`Error::NoSpace`] if it fits neither behind the inode's fields nor into a block.
pub fn set(
    h: &mut Handle<'_>,
    allocator: &Allocator,
    nr: InodeNr,
    raw: &mut RawInode,
    name: Name<'_>,
    value: &[u8],
    mode: Mode,
) -> Result<()> {
    if name.suffix.len() > xattr::NAME_MAX {
        return Err(Error::Range);
    }
    let areas = Areas::read(h, allocator.geometry(), nr, raw)?;
    match (areas.find(name)?, mode) {
        (Some(_), Mode::Create) => return Err(Error::Exists),
        (None, Mode::Replace) => return Err(Error::NoData),
        (Some(old), _) if old.value == ValueRef::Bytes(value) => {
            return inode_table::write(h, allocator.geometry(), nr, raw);
        }
        _ => {}
    }
    let new = AttributeRef { name, value: ValueRef::Bytes(value) };
    let (in_inode, in_block) = (without(areas.in_inode()?, name), without(areas.in_block()?, name));
    if Area::Inode.holds(areas.inode.len(), &with(&in_inode.0, new)) {
        write_inode(h, allocator, &areas, raw, &with(&in_inode.0, new))?;
        if in_block.1 {
            block::write(h, allocator, nr, raw, in_block.0)?;
        }
    } else if Area::Block.holds(h.block_bytes(), &with(&in_block.0, new)) {
        block::write(h, allocator, nr, raw, with(&in_block.0, new))?;
        if in_inode.1 {
            write_inode(h, allocator, &areas, raw, &in_inode.0)?;
        }
    } else {
        return Err(Error::NoSpace);
    }
    inode_table::write(h, allocator.geometry(), nr, raw)
}

/// The list without a name, and whether the name was in it.
fn without<'a>(list: Vec<AttributeRef<'a>>, name: Name<'_>) -> (Vec<AttributeRef<'a>>, bool) {
    let before = list.len();
    let rest: Vec<_> = list.into_iter().filter(|a| a.name != name).collect();
    let found = rest.len() < before;
    (rest, found)
}

fn with<'a>(list: &[AttributeRef<'a>], new: AttributeRef<'a>) -> Vec<AttributeRef<'a>> {
    list.iter().copied().chain([new]).collect()
}

/// Removes an attribute; `false` if it wasn't there.
pub fn remove(
    h: &mut Handle<'_>,
    allocator: &Allocator,
    nr: InodeNr,
    raw: &mut RawInode,
    name: Name<'_>,
) -> Result<bool> {
    let areas = Areas::read(h, allocator.geometry(), nr, raw)?;
    let (in_inode, in_block) = (without(areas.in_inode()?, name), without(areas.in_block()?, name));
    if !in_inode.1 && !in_block.1 {
        return Ok(false);
    }
    if in_inode.1 {
        write_inode(h, allocator, &areas, raw, &in_inode.0)?;
    }
    if in_block.1 {
        block::write(h, allocator, nr, raw, in_block.0)?;
    }
    inode_table::write(h, allocator.geometry(), nr, raw)?;
    Ok(true)
}

/// Lets go of everything an inode's attributes hold, for an inode that is being freed: its block is freed or has
/// one reference less, and so do value inodes. The record is changed (`raw`), and left for the caller to write.
pub fn drop_all(h: &mut Handle<'_>, allocator: &Allocator, nr: InodeNr, raw: &mut RawInode) -> Result<()> {
    if allocator.geometry().features.incompat.contains(Incompat::EA_INODE) {
        let areas = Areas::read(h, allocator.geometry(), nr, raw)?;
        ea_inode::release_missing(h, allocator, raw, &areas.in_inode()?, &[], true)?;
    }
    block::write(h, allocator, nr, raw, Vec::new())
}

/// Replaces what is behind the inode's fields.
fn write_inode(
    h: &mut Handle<'_>,
    allocator: &Allocator,
    old: &Areas,
    raw: &mut RawInode,
    list: &[AttributeRef<'_>],
) -> Result<()> {
    let Some(start) = area_start(raw, allocator.geometry()) else { return Ok(()) };
    ea_inode::release_missing(h, allocator, raw, &old.in_inode()?, list, true)?;
    inode_table::modify_bytes(h, allocator.geometry(), old.nr, |bytes| {
        xattr::write_inode(bytes.get_mut(start..).unwrap_or_default(), list)
    })
}
