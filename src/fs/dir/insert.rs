//! Putting an entry in.

use super::blocks::Role;
use super::index::Fault;
use super::DirMut;
use crate::error::{Error, Place, Result};
use crate::format::dirent::{self, NAME_MAX};
use crate::format::htree::{self, Kind, RootInfo};
use crate::format::inode::InodeFlags;
use crate::units::{FileBlock, InodeNr};
use std::ops::ControlFlow;

/// An entry to be put in.
#[derive(Copy, Clone)]
pub(super) struct New<'a> {
    pub(super) name: &'a [u8],
    pub(super) target: InodeNr,
    pub(super) kind: u8,
}

/// More rounds than a tree of three levels can need to make room: one per level to grow or split.
const ROUNDS_MAX: usize = 8;

impl DirMut<'_, '_> {
    /// Puts in an entry for `name`, which must not be there yet. `kind` is the entry's type byte; it is left out
    /// where entries have none. ENOSPC also when the index can't grow any further.
    pub fn insert(&mut self, name: &[u8], target: InodeNr, kind: u8) -> Result<()> {
        if name.is_empty() || name.len() > NAME_MAX {
            return Err(Error::Invalid);
        }
        self.refuse_inline()?;
        self.drop_stale_index_flag();
        let kind = if self.view().has_filetype() { kind } else { 0 };
        let new = New { name, target, kind };
        if self.view().is_indexed() {
            match self.insert_indexed(new) {
                Ok(()) => return Ok(()),
                Err(Fault::Other(error)) => return Err(error),
                Err(Fault::Damaged(error)) => {
                    // As the kernel: where checksums vouch for the index, its damage is not to be
                    // built upon; else the directory goes on without an index.
                    if self.geometry.has_csum() {
                        return Err(error);
                    }
                    tracing::warn!(%error, "giving up a directory's index");
                    self.raw.flags.remove(InodeFlags::INDEX);
                }
            }
        }
        self.insert_linear(new)
    }

    pub(super) fn refuse_inline(&self) -> Result<()> {
        if self.view().is_inline() {
            return Err(Error::Unsupported("changing a directory with inline_data is not supported".into()));
        }
        Ok(())
    }

    /// A file system that lost dir_index keeps the flag on its directories; a change ends their index.
    pub(super) fn drop_stale_index_flag(&mut self) {
        if !self.view().is_indexed() {
            self.raw.flags.remove(InodeFlags::INDEX);
        }
    }

    fn insert_linear(&mut self, new: New<'_>) -> Result<()> {
        let mut place = None;
        {
            let (dir, r) = (self.view(), &*self.h);
            dir.for_each_block(r, FileBlock(0), |_, nr, block, usable| {
                // Without its flag, the blocks of a former index are free entries like others.
                let room = dirent::find_room(block, usable, new.name.len());
                place = room.map_err(super::Dir::bad_block(nr))?.map(|room| (nr, room));
                Ok(if place.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            })?;
        }
        if let Some((nr, room)) = place {
            return self.change(nr, Role::Leaf, |block| put_in(block, room, new));
        }
        let dir = self.view();
        if dir.blocks() == 1 && dir.has(crate::format::Compat::DIR_INDEX) && dir.default_version().is_some() {
            self.make_index()?;
            return self.insert_indexed(new).map_err(Error::from);
        }
        let usable = dir.usable(Role::Leaf);
        self.append(Role::Leaf, |block| {
            dirent::clear(block, usable);
            put(block, 0, usable, new)
        })?;
        Ok(())
    }

    /// Makes an indexed directory of one block a tree: its entries move to a first leaf, the block becomes the root.
    fn make_index(&mut self) -> Result<()> {
        let dir = self.view();
        let parent = dir.parent_entry(&*self.h)?;
        let version =
            dir.default_version().ok_or_else(|| Error::Unsupported("unknown directory hash".into()))?;
        let (usable, dot_kind) = (dir.usable(Role::Leaf), parent.kind);
        let (root, old) = dir.leaf(&*self.h, FileBlock(0))?;
        let entries: Vec<_> = dirent::entries(&old, usable)
            .skip(2)
            .filter(|entry| !entry.as_ref().is_ok_and(|e| !e.in_use()))
            .collect::<Result<_, _>>()
            .map_err(super::Dir::bad_block(root))?;
        let moved: Vec<New<'_>> =
            entries.iter().map(|e| New { name: e.name, target: InodeNr(e.inode), kind: e.kind }).collect();
        let (leaf, _) = self.append(Role::Leaf, |block| fill_leaf(block, usable, &moved))?;
        let (own, has_csum) = (self.nr, self.geometry.has_csum());
        self.change(root, Role::Index(Kind::Root), |block| {
            let info = RootInfo { version, levels: 0 };
            if !htree::put_root(block, own, parent.inode, dot_kind, info) {
                return Err("the root has no room for its dot entries");
            }
            htree::put_entries(block, Kind::Root, has_csum, &[(0, leaf)]);
            Ok(())
        })?;
        self.raw.flags.insert(InodeFlags::INDEX);
        Ok(())
    }

    fn insert_indexed(&mut self, new: New<'_>) -> Result<(), Fault> {
        let has_csum = self.geometry.has_csum();
        for round in 0..ROUNDS_MAX {
            let (dir, r) = (self.view(), &*self.h);
            let mut hash = 0;
            let path = dir.probe(r, |version| {
                hash = dir.hash(version, new.name).major;
                hash
            });
            // Only what was found on the disk can be given up for a linear search, not what we have changed.
            let path = match path {
                Err(Fault::Damaged(error)) if round > 0 => return Err(Fault::Other(error)),
                path => path?,
            };
            let (leaf, block) = dir.leaf(r, path.leaf)?;
            let room = dirent::find_room(&block, dir.usable(Role::Leaf), new.name.len());
            if let Some(room) = room.map_err(super::Dir::bad_block(leaf))? {
                self.change(leaf, Role::Leaf, |block| put_in(block, room, new))?;
                return Ok(());
            }
            let frame = path.frames.last();
            if frame.is_some_and(|frame| frame.has_room(has_csum).is_ok_and(|room| room)) {
                self.split_leaf(&path, leaf, &block, hash, new)?;
                return Ok(());
            }
            self.make_room(&path)?;
        }
        let why = "its index never had room";
        Err(Fault::Other(Error::corrupt("directory", Place::Inode(self.nr), why)))
    }
}

fn put_in(block: &mut [u8], room: dirent::Room, new: New<'_>) -> Result<(), &'static str> {
    if dirent::put_in(block, room, new.target, new.kind, new.name) {
        Ok(())
    } else {
        Err("an entry does not fit where it should")
    }
}

fn put(block: &mut [u8], offset: usize, rec_len: usize, new: New<'_>) -> Result<(), &'static str> {
    if dirent::put(block, offset, rec_len, new.target, new.kind, new.name) {
        Ok(())
    } else {
        Err("an entry does not fit where it should")
    }
}

/// Makes a block a leaf of just these entries, without gaps, the last one reaching to the end.
pub(super) fn fill_leaf(block: &mut [u8], usable: usize, entries: &[New<'_>]) -> Result<(), &'static str> {
    dirent::clear(block, usable);
    let mut offset = 0;
    for (i, entry) in entries.iter().enumerate() {
        let last = i + 1 == entries.len();
        let len = if last { usable.saturating_sub(offset) } else { dirent::entry_bytes(entry.name.len()) };
        put(block, offset, len, *entry)?;
        offset += len;
    }
    Ok(())
}
