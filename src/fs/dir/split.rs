//! Making room in a hash tree: leaves split at a hash, index nodes split in half, the tree grows a level.

use super::blocks::Role;
use super::index::{Fault, Path};
use super::insert::{fill_leaf, New};
use super::{Dir, DirMut};
use crate::device::Block;
use crate::error::{Error, Result};
use crate::format::dirent;
use crate::format::htree::{self, Kind};
use crate::units::{BlockNr, FileBlock, InodeNr};

/// An entry of a leaf being split.
#[derive(Copy, Clone)]
struct Hashed<'a> {
    hash: u32,
    entry: New<'a>,
}

fn bytes(entry: &New<'_>) -> usize {
    dirent::entry_bytes(entry.name.len())
}

impl DirMut<'_, '_> {
    /// Puts `new`, of hash `hash`, into a leaf without room whose index node has some: by moving together what is
    /// in the leaf if that leaves a quarter of it free, else by moving the upper half of its hashes to a new leaf.
    pub(super) fn split_leaf(
        &mut self,
        path: &Path,
        leaf: BlockNr,
        block: &Block,
        hash: u32,
        new: New<'_>,
    ) -> Result<(), Fault> {
        let dir = self.view();
        let usable = dir.usable(Role::Leaf);
        let mut entries = hashed_entries(&dir, leaf, block, path)?;
        let used: usize = entries.iter().map(|e| bytes(&e.entry)).sum();
        if entries.len() < 2 || used + bytes(&new) <= usable - usable / 4 {
            entries.push(Hashed { hash, entry: new });
            let all: Vec<_> = entries.iter().map(|e| e.entry).collect();
            return Ok(self.change(leaf, Role::Leaf, |block| fill_leaf(block, usable, &all))?);
        }
        // The order among equal hashes stays, so that a leaf's listing doesn't depend on its splits.
        entries.sort_by_key(|e| e.hash);
        let split = middle(&entries, used);
        let Some((before, first)) = entries.get(split - 1).zip(entries.get(split)) else {
            return Err(Fault::Other(Dir::bad_block(leaf)("has too few entries to be split")));
        };
        let continued = u32::from(before.hash == first.hash);
        let boundary = first.hash | continued;
        let goes_up = hash >= first.hash;
        let (low, high) = entries.split_at(split);
        let (mut low, mut high): (Vec<_>, Vec<_>) =
            (low.iter().map(|e| e.entry).collect(), high.iter().map(|e| e.entry).collect());
        if goes_up { &mut high } else { &mut low }.push(new);
        let (file_block, _) = self.append(Role::Leaf, |block| fill_leaf(block, usable, &high))?;
        self.change(leaf, Role::Leaf, |block| fill_leaf(block, usable, &low))?;
        self.insert_index_entry(path, path.frames.len() - 1, boundary, file_block)
    }

    /// Adds an entry behind the one that `path` took at `level`, where there is room.
    fn insert_index_entry(
        &mut self,
        path: &Path,
        level: usize,
        hash: u32,
        child: FileBlock,
    ) -> Result<(), Fault> {
        let Some(frame) = path.frames.get(level) else { return Ok(()) };
        self.change(frame.nr, Role::Index(frame.kind), |block| {
            htree::insert_entry(block, frame.kind, frame.at + 1, hash, child);
            Ok(())
        })?;
        Ok(())
    }

    /// Makes the way to a full index node one step nearer to having room: splits the highest full node
    /// under one with room, or, when all are full up to the root, moves the root's entries down a level.
    pub(super) fn make_room(&mut self, path: &Path) -> Result<(), Fault> {
        let has_csum = self.geometry.has_csum();
        for level in (0..path.frames.len()).rev() {
            let Some(frame) = path.frames.get(level) else { break };
            if frame.has_room(has_csum)? {
                return self.split_node(path, level);
            }
        }
        self.grow(path)
    }

    fn split_node(&mut self, path: &Path, level: usize) -> Result<(), Fault> {
        let has_csum = self.geometry.has_csum();
        let Some(full) = path.frames.get(level + 1) else { return Ok(()) };
        let entries = full.index(has_csum)?.entries(0);
        let (low, high) = entries.split_at(entries.len() / 2);
        let Some((boundary, _)) = high.first().copied() else { return Ok(()) };
        let (child, _) = self.append(Role::Index(Kind::Node), |block| {
            htree::put_node(block);
            htree::put_entries(block, Kind::Node, has_csum, high);
            Ok(())
        })?;
        self.change(full.nr, Role::Index(full.kind), |block| {
            htree::put_node(block);
            htree::put_entries(block, full.kind, has_csum, low);
            Ok(())
        })?;
        self.insert_index_entry(path, level, boundary, child)
    }

    fn grow(&mut self, path: &Path) -> Result<(), Fault> {
        let has_csum = self.geometry.has_csum();
        let mut info = path.info;
        info.levels += 1;
        let Some(root) = path.frames.first() else { return Ok(()) };
        if info.levels >= self.view().levels_max() {
            tracing::warn!(directory = %self.nr, "a directory's index is full");
            return Err(Fault::Other(Error::NoSpace));
        }
        let entries = root.index(has_csum)?.entries(0);
        let (child, _) = self.append(Role::Index(Kind::Node), |block| {
            htree::put_node(block);
            htree::put_entries(block, Kind::Node, has_csum, &entries);
            Ok(())
        })?;
        self.change(root.nr, Role::Index(Kind::Root), |block| {
            htree::set_info(block, info);
            htree::put_entries(block, Kind::Root, has_csum, &[(0, child)]);
            Ok(())
        })?;
        Ok(())
    }
}

fn hashed_entries<'b>(dir: &Dir<'_>, nr: BlockNr, block: &'b Block, path: &Path) -> Result<Vec<Hashed<'b>>> {
    let mut found = Vec::new();
    for entry in dirent::entries(block, dir.usable(Role::Leaf)) {
        let entry = entry.map_err(Dir::bad_block(nr))?;
        if entry.in_use() {
            let hash = dir.hash(path.info.version, entry.name).major;
            let entry = New { name: entry.name, target: InodeNr(entry.inode), kind: entry.kind };
            found.push(Hashed { hash, entry });
        }
    }
    Ok(found)
}

/// Where to split sorted entries of `used` bytes so that both sides have about half: 1 to len - 1.
fn middle(entries: &[Hashed<'_>], used: usize) -> usize {
    let mut low = 0;
    let mut split = 0;
    for hashed in entries {
        let size = bytes(&hashed.entry);
        if low + size / 2 > used / 2 {
            break;
        }
        low += size;
        split += 1;
    }
    split.clamp(1, entries.len().saturating_sub(1).max(1))
}
