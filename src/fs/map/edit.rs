//! Changing extent trees.
//!
//! Every change edits one leaf, taken apart, and [`Editor::store`] puts it back: it splits what has become too large,
//! removes what has become empty and corrects the keys above. A key is always its child's first
//! block, as e2fsck demands.

use super::extents::{Checker, ALL};
use super::{free_data, Budget, Removal};
use crate::cache::Handle;
use crate::device::Block;
use crate::error::{Error, Place, Result};
use crate::format::extent::{self, Entry, Node, View, DEPTH_MAX, UNWRITTEN_LEN_MAX};
use crate::format::inode::RawInode;
use crate::fs::alloc::Allocator;
use crate::units::{BlockNr, BlockRange, FileBlock, InodeNr};
use std::ops::Range;

/// A node on the way from the root to a leaf.
struct Level {
    /// `None`: the root, in the inode.
    place: Option<BlockNr>,
    node: Node,
    /// In an index: the entry that the way goes through. In a leaf: how many entries start at or before the block.
    at: usize,
    /// The file blocks that the parent gives this node.
    keys: Range<u64>,
    /// The node has grown at its end, so a split leaves it full: files are mostly written forwards.
    appended: bool,
}

/// One file's extent tree, to be changed.
pub(super) struct Editor<'a, 'h> {
    allocator: &'a Allocator,
    h: &'a mut Handle<'h>,
    nr: InodeNr,
    raw: &'a mut RawInode,
    checker: Checker,
}

impl<'a, 'h> Editor<'a, 'h> {
    pub(super) fn new(
        allocator: &'a Allocator,
        h: &'a mut Handle<'h>,
        nr: InodeNr,
        raw: &'a mut RawInode,
    ) -> Self {
        let checker = Checker::new(allocator.geometry(), nr, raw);
        Self { allocator, h, nr, raw, checker }
    }

    fn corrupt(&self, why: impl Into<String>) -> Error {
        Error::corrupt("extent tree", Place::Inode(self.nr), why)
    }

    /// The nodes from the root to the leaf where `block` is or would be; never empty.
    fn path(&self, block: u64) -> Result<Vec<Level>> {
        let root = self.checker.root(self.raw)?;
        let mut levels = Vec::with_capacity(usize::from(root.depth()) + 1);
        levels.push(Self::level(None, &root, block, ALL));
        for depth in (0..root.depth()).rev() {
            let Some(parent) = levels.last() else { break };
            let entry = |at: usize| parent.node.entries.get(at).copied();
            let index = entry(parent.at).ok_or_else(|| self.corrupt("an index node without entries"))?;
            let next = entry(parent.at + 1).map_or(parent.keys.end, |e| u64::from(e.block.0));
            let keys = u64::from(index.block.0)..next;
            let bytes = self.checker.child(&*self.h, &index, depth, &keys, true)?;
            let view = View::new(&bytes, Place::Block(index.physical), Some(depth))?;
            levels.push(Self::level(Some(index.physical), &view, block, keys));
        }
        Ok(levels)
    }

    fn level(place: Option<BlockNr>, view: &View<'_>, block: u64, keys: Range<u64>) -> Level {
        let found = view.search(FileBlock(block.min(u64::from(u32::MAX)) as u32));
        let at = match found {
            Some(at) if view.depth() == 0 => at + 1,
            Some(at) => at,
            None => 0,
        };
        Level { place, node: Node::decode(view), at, keys, appended: false }
    }

    /// A path's leaf, apart from it.
    fn split_leaf(&self, mut path: Vec<Level>) -> Result<(Vec<Level>, Level)> {
        let leaf = path.pop().ok_or_else(|| self.corrupt("no root"))?;
        Ok((path, leaf))
    }

    /// Maps a hole to `range`.
    pub(super) fn insert(&mut self, block: FileBlock, range: BlockRange, unwritten: bool) -> Result<()> {
        let mut rest = Entry::extent(block, range.start, range.len, unwritten);
        while rest.len > 0 {
            let end = u64::from(rest.block.0) + u64::from(rest.len.min(rest.len_max()));
            self.insert_extent(rest.part(u64::from(rest.block.0)..end))?;
            rest = rest.part(end..rest.end());
        }
        Ok(())
    }

    fn insert_extent(&mut self, new: Entry) -> Result<()> {
        let (path, mut leaf) = self.split_leaf(self.path(u64::from(new.block.0))?)?;
        let entries = &mut leaf.node.entries;
        let before = leaf.at.checked_sub(1).and_then(|at| entries.get(at));
        let after = entries.get(leaf.at);
        let limit = after.map_or(leaf.keys.end, |e| u64::from(e.block.0));
        if before.is_some_and(|e| e.end() > u64::from(new.block.0)) || new.end() > limit {
            return Err(self.corrupt(format!("{new:?} was to be inserted where something is mapped")));
        }
        entries.insert(leaf.at, new);
        leaf.appended = leaf.at + 1 == entries.len();
        Self::join(entries, leaf.at..leaf.at + 1);
        self.store(path, leaf)
    }

    /// Joins what can be joined among the entries in `changed` and their neighbours.
    fn join(entries: &mut Vec<Entry>, changed: Range<usize>) {
        let mut at = changed.start.saturating_sub(1);
        let mut end = (changed.end + 1).min(entries.len());
        while at + 1 < end {
            match entries.get(at..at + 2) {
                Some([a, b]) if a.joins(b) => {
                    let len = a.len + b.len;
                    entries.remove(at + 1);
                    if let Some(entry) = entries.get_mut(at) {
                        entry.len = len;
                    }
                    end -= 1;
                }
                _ => at += 1,
            }
        }
    }

    /// Makes what is allocated in `blocks` written or unwritten.
    pub(super) fn set_state(&mut self, blocks: Range<u64>, unwritten: bool) -> Result<()> {
        let mut at = blocks.start;
        let end = blocks.end.min(ALL.end);
        while at < end {
            let (path, mut leaf) = self.split_leaf(self.path(at)?)?;
            let entries = &mut leaf.node.entries;
            // The extent around `at`, else the one behind it.
            let inside = leaf.at.checked_sub(1).filter(|i| entries.get(*i).is_some_and(|e| e.end() > at));
            let index = inside.unwrap_or(leaf.at);
            let Some(extent) = entries.get(index).copied() else {
                at = leaf.keys.end.max(at + 1);
                continue;
            };
            if u64::from(extent.block.0) >= end {
                break;
            }
            let part = extent.part(at..end);
            at = part.end();
            if extent.unwritten == unwritten {
                continue;
            }
            let mut pieces = Vec::with_capacity(4);
            pieces.push(extent.part(0..u64::from(part.block.0)));
            let middle = u64::from(part.block.0) + u64::from(UNWRITTEN_LEN_MAX);
            for piece in [part.part(0..middle), part.part(middle..ALL.end)] {
                pieces.push(Entry { unwritten, ..piece });
            }
            pieces.push(extent.part(part.end()..ALL.end));
            pieces.retain(|piece| piece.len > 0);
            let changed = index..index + pieces.len();
            entries.splice(index..=index, pieces);
            Self::join(entries, changed);
            self.store(path, leaf)?;
        }
        Ok(())
    }

    /// See [`super::remove`].
    pub(super) fn remove(&mut self, blocks: Range<u64>, budget: &mut Budget) -> Result<Removal> {
        let mut end = blocks.end;
        let mut freed = 0;
        while end > blocks.start {
            if budget.is_spent(self.h) {
                self.collapse()?;
                return Ok(Removal { freed, rest: Some(blocks.start..end) });
            }
            let (path, mut leaf) = self.split_leaf(self.path(end - 1)?)?;
            let Some(extent) = leaf.at.checked_sub(1).and_then(|at| leaf.node.entries.get(at)) else {
                // Nothing in this leaf is so early; if there is an earlier leaf, it ends at this one's key.
                if leaf.keys.start >= end {
                    break;
                }
                end = leaf.keys.start;
                continue;
            };
            if extent.end() <= blocks.start {
                break;
            }
            end = self.remove_in(&mut leaf, blocks.start..end, budget, &mut freed)?;
            self.store(path, leaf)?;
        }
        self.collapse()?;
        Ok(Removal { freed, rest: None })
    }

    /// Frees extents of one leaf, from the last in `blocks` on; returns where it stopped. At least one piece is freed; a piece
    /// lies in one group, so that it changes one bitmap.
    fn remove_in(
        &mut self,
        leaf: &mut Level,
        blocks: Range<u64>,
        budget: &mut Budget,
        freed: &mut u64,
    ) -> Result<u64> {
        let mut end = blocks.end;
        while let Some(index) = leaf.at.checked_sub(1) {
            let Some(extent) = leaf.node.entries.get(index).copied() else { break };
            if extent.end() <= blocks.start {
                end = blocks.start;
                break;
            }
            if extent.end().min(end) <= u64::from(extent.block.0) {
                break;
            }
            let mut part = extent.part(blocks.start..end);
            let geometry = self.allocator.geometry();
            let last = part.physical.plus(u64::from(part.len) - 1);
            let group_start = geometry.group_first_block(geometry.group_of(last));
            if let Some(before) = group_start.0.checked_sub(part.physical.0).filter(|n| *n > 0) {
                part = part.part(u64::from(part.block.0) + before..ALL.end);
            }
            free_data(self.allocator, self.h, self.raw, BlockRange::new(part.physical, part.len))?;
            *freed += u64::from(part.len);
            budget.pieces += 1;
            end = u64::from(part.block.0);
            let mut pieces = vec![extent.part(0..end), extent.part(part.end()..ALL.end)];
            pieces.retain(|piece| piece.len > 0);
            if end == u64::from(extent.block.0) {
                leaf.at = index;
            }
            leaf.node.entries.splice(index..=index, pieces);
            if budget.is_spent(self.h) || leaf.node.entries.len() > usize::from(leaf.node.max) {
                break;
            }
        }
        Ok(end)
    }

    /// Puts a changed leaf back, and whatever has to change above it.
    fn store(&mut self, mut path: Vec<Level>, leaf: Level) -> Result<()> {
        let mut level = leaf;
        // Each round goes one level up.
        loop {
            let parent = path.pop();
            let Some(mut parent) = parent else { return self.store_root(level) };
            let Some(first) = level.node.entries.first().map(|e| e.block) else {
                self.free_node(&level)?;
                if parent.at < parent.node.entries.len() {
                    parent.node.entries.remove(parent.at);
                }
                level = parent;
                continue;
            };
            let right = self.split(&mut level)?;
            self.write(&level)?;
            let Some(key) = parent.node.entries.get_mut(parent.at) else {
                return Err(self.corrupt("an index entry has gone"));
            };
            let moved = key.block != first;
            key.block = first;
            match right {
                Some(index) => {
                    parent.node.entries.insert(parent.at + 1, index);
                    parent.appended = parent.at + 2 == parent.node.entries.len();
                }
                None if !moved => return Ok(()),
                None => {}
            }
            level = parent;
        }
    }

    /// Stores the root; one that has become too large moves to a block of its own, one level down.
    fn store_root(&mut self, mut level: Level) -> Result<()> {
        let root = &mut level.node;
        if root.entries.is_empty() {
            root.depth = 0;
        }
        if root.entries.len() > usize::from(root.max) {
            if root.depth >= DEPTH_MAX {
                return Err(Error::FileTooBig);
            }
            let mut child = Node::empty(self.h.block_bytes(), root.depth);
            child.entries = std::mem::take(&mut root.entries);
            root.depth += 1;
            let index = self.write_new(&child)?;
            root.entries.push(index);
        }
        level.node.encode(&mut self.raw.block);
        Ok(())
    }

    /// Moves a part of a node that has become too large to a new node, and returns the index entry for that.
    fn split(&mut self, level: &mut Level) -> Result<Option<Entry>> {
        let (len, max) = (level.node.entries.len(), usize::from(level.node.max));
        if len <= max {
            return Ok(None);
        }
        let keep = if level.appended { max } else { len / 2 };
        let mut right = Node::empty(self.h.block_bytes(), level.node.depth);
        right.entries = level.node.entries.split_off(keep);
        self.write_new(&right).map(Some)
    }

    /// Allocates and writes a node; returns the index entry for it.
    fn write_new(&mut self, node: &Node) -> Result<Entry> {
        let first = node.entries.first().copied().ok_or_else(|| self.corrupt("an empty node"))?;
        let nr = self.allocator.allocate_held(self.h, first.physical, 1)?.start;
        let seed = self.checker.seed;
        Self::encode(node, self.h.create(nr)?, seed);
        self.raw.blocks += u64::from(self.allocator.geometry().sectors_per_block());
        Ok(Entry::index(first.block, nr))
    }

    fn write(&mut self, level: &Level) -> Result<()> {
        match level.place {
            Some(nr) => {
                let seed = self.checker.seed;
                Self::encode(&level.node, self.h.modify(nr)?, seed);
            }
            None => level.node.encode(&mut self.raw.block),
        }
        Ok(())
    }

    fn encode(node: &Node, block: &mut Block, seed: Option<u32>) {
        node.encode(block);
        if let Some(seed) = seed {
            extent::seal(block, seed);
        }
    }

    fn free_node(&mut self, level: &Level) -> Result<()> {
        match level.place {
            Some(nr) => free_data(self.allocator, self.h, self.raw, BlockRange::new(nr, 1)),
            None => Ok(()),
        }
    }

    /// Pulls an only child's entries into the root as long as they fit there.
    fn collapse(&mut self) -> Result<()> {
        for _ in 0..DEPTH_MAX {
            let root = self.checker.root(self.raw)?;
            if root.depth() == 0 || root.len() != 1 {
                break;
            }
            let Some(index) = root.get(0) else { break };
            let (depth, mut node) = (root.depth() - 1, Node::decode(&root));
            let keys = u64::from(index.block.0)..ALL.end;
            let bytes = self.checker.child(&*self.h, &index, depth, &keys, true)?;
            let child = Node::decode(&View::new(&bytes, Place::Block(index.physical), Some(depth))?);
            if child.entries.len() > usize::from(node.max) {
                break;
            }
            node.depth = depth;
            node.entries = child.entries;
            node.encode(&mut self.raw.block);
            free_data(self.allocator, self.h, self.raw, BlockRange::new(index.physical, 1))?;
        }
        Ok(())
    }
}
