//! The blocks of one inode, from its extent tree or its indirect blocks.
//!
//! Every node is visited before what is below it. The visitor may refuse a node (somebody else has its block), which
//! leaves out what is below: that, and the depth, bound the walk.

use crate::image::Image;
use journalfs::format::extent::{self, View};
use journalfs::format::indirect;
use journalfs::format::RawInode;
use journalfs::units::{BlockNr, BlockRange, FileBlock, InodeNr};
use journalfs::{Error, Place, Result};
use std::ops::Range;

/// What the walk meets.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Mapped {
    /// A block of the map itself.
    Node(BlockNr),
    /// Blocks of the file.
    Data { file_block: FileBlock, range: BlockRange, unwritten: bool },
}

/// What the walk reports to.
pub(crate) trait Visitor {
    /// Whether to go on below a node; the answer for data doesn't matter.
    fn mapped(&mut self, mapped: Mapped) -> bool;
    /// A part of the map is damaged; the walk goes on behind it.
    fn damaged(&mut self, error: Error);
}

/// A visitor that only collects data, for maps that were checked before.
#[derive(Default)]
pub(crate) struct Runs(pub(crate) Vec<(FileBlock, BlockRange)>);

impl Visitor for Runs {
    fn mapped(&mut self, mapped: Mapped) -> bool {
        if let Mapped::Data { file_block, range, .. } = mapped {
            self.0.push((file_block, range));
        }
        true
    }

    fn damaged(&mut self, _error: Error) {}
}

/// Walks the map of an inode that has one ([`RawInode::maps_blocks`]).
pub(crate) fn walk(image: &Image, nr: InodeNr, raw: &RawInode, visitor: &mut impl Visitor) -> Result<()> {
    let mut walk = Walk { image, nr, seed: image.geometry.inode_csum_seed(nr, raw.generation), visitor };
    if raw.has_extents() {
        walk.extent_node(&raw.block, Place::Inode(nr), None, &(0..1 << 32))
    } else {
        walk.indirect(&raw.block)
    }
}

struct Walk<'a, V> {
    image: &'a Image,
    nr: InodeNr,
    seed: u32,
    visitor: &'a mut V,
}

impl<V: Visitor> Walk<'_, V> {
    fn area(&self) -> Range<u64> {
        let geometry = &self.image.geometry;
        geometry.first_data_block.0.max(1)..geometry.blocks_count
    }

    fn extent_node(
        &mut self,
        bytes: &[u8],
        place: Place,
        depth: Option<u16>,
        keys: &Range<u64>,
    ) -> Result<()> {
        let view = View::new(bytes, place, depth)
            .and_then(|view| view.check_entries(place, keys, &self.area()).map(|()| view));
        let view = match view {
            Ok(view) => view,
            Err(error) => {
                self.visitor.damaged(error);
                return Ok(());
            }
        };
        if depth.is_some() && view.get(0).is_some_and(|first| first.block.0 as u64 != keys.start) {
            let why = format!("its first entry is not at file block {}, as its parent says", keys.start);
            self.visitor.damaged(Error::corrupt("extent node", place, why));
        }
        for at in 0..view.len() {
            let Some(entry) = view.get(at) else { break };
            if view.depth() == 0 {
                let range = BlockRange::new(entry.physical, entry.len);
                let unwritten = entry.unwritten;
                self.visitor.mapped(Mapped::Data { file_block: entry.block, range, unwritten });
                continue;
            }
            if !self.visitor.mapped(Mapped::Node(entry.physical)) {
                continue;
            }
            let place = Place::Block(entry.physical);
            let node = self.image.read(entry.physical)?;
            if self.image.geometry.has_csum() && !extent::is_sealed(&node, self.seed) {
                let why = format!("its checksum (of inode {}) is wrong", self.nr);
                self.visitor.damaged(Error::corrupt("extent node", place, why));
            }
            let end = view.get(at + 1).map_or(keys.end, |next| next.block.0 as u64);
            self.extent_node(&node, place, Some(view.depth() - 1), &(entry.block.0 as u64..end))?;
        }
        Ok(())
    }

    fn indirect(&mut self, i_block: &[u8]) -> Result<()> {
        let per_block = indirect::per_block(self.image.geometry.block_bytes) as u64;
        let mut next = 0u64;
        for slot in 0..indirect::SLOTS as u32 {
            let level = slot.saturating_sub(indirect::DIRECT - 1);
            let span = per_block.pow(level);
            if let Some(nr) = indirect::pointer(i_block, slot) {
                self.pointer(nr, level, next)?;
            }
            next += span;
        }
        Ok(())
    }

    /// What a pointer of `level` (0: data) leads to; `first` is the first file block below it.
    fn pointer(&mut self, nr: BlockNr, level: u32, first: u64) -> Result<()> {
        if !self.area().contains(&nr.0) || first >= 1 << 32 {
            let why = format!("file block {first} would be at block {nr}");
            self.visitor.damaged(Error::corrupt("indirect map", Place::Inode(self.nr), why));
            return Ok(());
        }
        if level == 0 {
            let range = BlockRange::new(nr, 1);
            self.visitor.mapped(Mapped::Data {
                file_block: FileBlock(first as u32),
                range,
                unwritten: false,
            });
            return Ok(());
        }
        if !self.visitor.mapped(Mapped::Node(nr)) {
            return Ok(());
        }
        let node = self.image.read(nr)?;
        let per_block = indirect::per_block(self.image.geometry.block_bytes);
        let span = (per_block as u64).pow(level - 1);
        for index in 0..per_block {
            if let Some(child) = indirect::pointer(&node, index) {
                self.pointer(child, level - 1, first + index as u64 * span)?;
            }
        }
        Ok(())
    }
}
