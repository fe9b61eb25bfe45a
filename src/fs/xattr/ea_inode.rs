//! Values kept in inodes of their own (the ea_inode feature): read, referred to once more, let go of. Making
//! them is left to the kernel: a value that fits nowhere else is ENOSPC here.
//!
//! Such an inode has no name. Entries that refer to it are counted in it (`ext4_xattr_inode_get_ref`: the
//! low words of ctime and of the version), and the last one gone frees it.

use crate::cache::{Handle, ReadBlock};
use crate::error::{Error, Place, Result};
use crate::format::geometry::Geometry;
use crate::format::inode::{InodeFlags, RawInode};
use crate::format::time::Timestamp;
use crate::format::xattr::{inode_value_hash_matches, AttributeRef, ValueRef};
use crate::fs::alloc::Allocator;
use crate::fs::{inode_table, map};
use crate::units::{FileBlock, InodeNr};

/// The largest value that is freed: more than Linux lets anyone write (64 KiB), little enough for one handle.
const FREED_MAX: u64 = 1 << 20;

fn corrupt(nr: InodeNr, why: &str) -> Error {
    Error::corrupt("attribute value inode", Place::Inode(nr), why)
}

fn load(r: &impl ReadBlock, geometry: &Geometry, nr: InodeNr) -> Result<RawInode> {
    if !geometry.holds_file(nr) {
        return Err(corrupt(nr, "its number is none that a file can have"));
    }
    let raw = inode_table::read(r, geometry, nr)?;
    if !raw.flags.contains(InodeFlags::EA_INODE) || !raw.is_regular() || raw.links == 0 {
        return Err(corrupt(nr, "it doesn't hold a value"));
    }
    Ok(raw)
}

/// Reads a value, and checks it against the entry's hash.
pub(super) fn read(
    r: &impl ReadBlock,
    geometry: &Geometry,
    owner: InodeNr,
    attribute: &AttributeRef<'_>,
) -> Result<Vec<u8>> {
    let ValueRef::Inode { nr, size, hash } = attribute.value else {
        return Err(corrupt(owner, "the value is in place"));
    };
    let raw = load(r, geometry, nr)?;
    if raw.size != u64::from(size) {
        return Err(corrupt(nr, "its size is not the entry's"));
    }
    let mut value = Vec::new();
    let mut at = FileBlock(0);
    // Bounded by the size, which the format limits to 16 MiB: each round adds a block at least.
    while value.len() < size as usize {
        let mapping = map::lookup(geometry, r, nr, &raw, at, u32::MAX)?;
        let range = mapping.range().filter(|_| !mapping.unwritten);
        for block in range.ok_or_else(|| corrupt(nr, "it has a hole"))?.iter() {
            let left = size as usize - value.len();
            value.extend(r.read_block(block)?.iter().take(left));
            at = at.plus(1);
            if value.len() == size as usize {
                break;
            }
        }
    }
    // Inodes that Lustre made name their one owner instead of a hash.
    let lustre = raw.mtime.seconds == i64::from(owner.0);
    if !lustre && !inode_value_hash_matches(hash, attribute.name.suffix, &value, geometry.csum_seed) {
        return Err(corrupt(nr, "the value's hash is not the entry's"));
    }
    Ok(value)
}

fn references(raw: &RawInode) -> u64 {
    u64::from(raw.ctime.seconds as u32) << 32 | u64::from(raw.version as u32)
}

fn set_references(raw: &mut RawInode, count: u64) {
    raw.ctime = Timestamp { seconds: i64::from((count >> 32) as u32 as i32), ..raw.ctime };
    raw.version = raw.version >> 32 << 32 | u64::from(count as u32);
}

/// Counts one more entry for each value inode in the list: a block was copied.
pub(super) fn hold_all(h: &mut Handle<'_>, allocator: &Allocator, list: &[AttributeRef<'_>]) -> Result<()> {
    for attribute in list {
        if let ValueRef::Inode { nr, .. } = attribute.value {
            let mut raw = load(h, allocator.geometry(), nr)?;
            let count = references(&raw).checked_add(1).ok_or_else(|| corrupt(nr, "too many references"))?;
            set_references(&mut raw, count);
            inode_table::write(h, allocator.geometry(), nr, &raw)?;
        }
    }
    Ok(())
}

/// Takes the value inodes in `old` that are not in `new` off their owner's `i_blocks` (`raw`), to which each value
/// counts. With `entries_end` the entries themselves are gone, not only this owner's share in them: each inode has one
/// less, and the last one frees it.
pub(super) fn release_missing(
    h: &mut Handle<'_>,
    allocator: &Allocator,
    raw: &mut RawInode,
    old: &[AttributeRef<'_>],
    new: &[AttributeRef<'_>],
    entries_end: bool,
) -> Result<()> {
    for attribute in old {
        let ValueRef::Inode { nr, size, .. } = attribute.value else { continue };
        if new.iter().any(|a| a.name == attribute.name && a.value == attribute.value) {
            continue;
        }
        let bytes = u64::from(size).next_multiple_of(u64::from(allocator.geometry().block_bytes));
        raw.blocks = raw.blocks.saturating_sub(bytes / 512);
        if entries_end {
            release(h, allocator, nr)?;
        }
    }
    Ok(())
}

fn release(h: &mut Handle<'_>, allocator: &Allocator, nr: InodeNr) -> Result<()> {
    let geometry = allocator.geometry();
    let mut raw = load(h, geometry, nr)?;
    let count = references(&raw).checked_sub(1).ok_or_else(|| corrupt(nr, "nothing refers to it"))?;
    set_references(&mut raw, count);
    if count > 0 {
        return inode_table::write(h, geometry, nr, &raw);
    }
    if raw.size > FREED_MAX {
        return Err(Error::Unsupported(format!(
            "the attribute value in inode {nr} (ea_inode) is too large to be freed here"
        )));
    }
    let rest = map::remove(allocator, h, nr, &mut raw, 0..1 << 32, u32::MAX)?.rest;
    if rest.is_some() {
        return Err(corrupt(nr, "it has more blocks than its size needs"));
    }
    (raw.links, raw.size) = (0, 0);
    let now = Timestamp::now().seconds as u32;
    inode_table::clear(h, geometry, nr, &raw, now)?;
    allocator.free_inode(h, nr, false)
}
