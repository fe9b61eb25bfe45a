//! The index of an htree directory: which blocks it is, and which names belong into which leaf.

use crate::check::Check;
use journalfs::format::hash::HashVersion;
use journalfs::format::htree::{self, Index, Kind};
use journalfs::format::Geometry;
use journalfs::units::{BlockNr, FileBlock, InodeNr};
use journalfs::Result;
use std::collections::{BTreeMap, BTreeSet};

/// Index levels below the root at most (3 with large_dir).
const LEVELS_MAX: u8 = 3;

/// The hashes that the names of one leaf may have.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Hashes {
    version: HashVersion,
    min: u32,
    /// Exclusive. Its lowest bit, which no name's hash has, lets names in that hash like the next leaf's first ones.
    end: u64,
}

impl Hashes {
    /// Whether a lookup of the name would come to this leaf.
    pub(crate) fn contain(self, seed: &[u32; 4], name: &[u8]) -> bool {
        let hash = self.version.hash(seed, name).major;
        (self.min as u64 & !1..self.end).contains(&(hash as u64))
    }
}

/// The index of one directory.
#[derive(Default)]
pub(crate) struct Tree {
    index: BTreeSet<FileBlock>,
    leaves: BTreeMap<FileBlock, Hashes>,
}

/// An index block to be read, and the hashes below it.
struct Branch {
    file_block: FileBlock,
    min: u32,
    end: u64,
}

impl Tree {
    /// Whether the block belongs to the index.
    pub(crate) fn is_index(&self, file_block: FileBlock) -> bool {
        self.index.contains(&file_block)
    }

    /// What the index says of a leaf.
    pub(crate) fn leaf(&self, file_block: FileBlock) -> Option<Hashes> {
        self.leaves.get(&file_block).copied()
    }

    /// Reads the index of directory `nr`; damage is reported. Each block is read once, so the
    /// directory's size bounds the walk.
    pub(crate) fn read(
        check: &mut Check<'_>,
        nr: InodeNr,
        seed: u32,
        blocks: &BTreeMap<FileBlock, BlockNr>,
    ) -> Result<Self> {
        let geometry = check.image.geometry;
        let mut tree = Self::default();
        let mut level = vec![Branch { file_block: FileBlock(0), min: 0, end: 1 << 32 }];
        let mut root = None;
        for depth in 0..=LEVELS_MAX {
            let kind = if depth == 0 { Kind::Root } else { Kind::Node };
            let mut below = Vec::new();
            for branch in level {
                let file_block = branch.file_block;
                let Some(place) = blocks.get(&file_block).filter(|_| tree.index.insert(file_block)) else {
                    check.report.inode(
                        nr,
                        format!("its index names its block {file_block}, which is no index block of its own"),
                    );
                    continue;
                };
                let block = check.image.read(*place)?;
                match node(&geometry, seed, &block, kind, &branch) {
                    Ok((children, info)) => {
                        root = root.or(info);
                        below.extend(children);
                    }
                    Err(why) => {
                        check
                            .report
                            .inode(nr, format!("index block {place} (its block {file_block}): {why}"));
                    }
                }
            }
            let Some(info) = root else { return Ok(tree) };
            if depth == info.levels.min(LEVELS_MAX) {
                tree.add_leaves(check, nr, below, info.version, blocks);
                return Ok(tree);
            }
            level = below;
        }
        Ok(tree)
    }

    fn add_leaves(
        &mut self,
        check: &mut Check<'_>,
        nr: InodeNr,
        leaves: Vec<Branch>,
        version: HashVersion,
        blocks: &BTreeMap<FileBlock, BlockNr>,
    ) {
        for Branch { file_block, min, end } in leaves {
            let known = self.index.contains(&file_block) || !blocks.contains_key(&file_block);
            if known || self.leaves.insert(file_block, Hashes { version, min, end }).is_some() {
                check.report.inode(
                    nr,
                    format!("its index names its block {file_block}, which is no leaf of its own"),
                );
            }
        }
        let lost = blocks.keys().filter(|b| !self.index.contains(b) && !self.leaves.contains_key(b)).count();
        if lost > 0 {
            check.report.inode(nr, format!("its index leaves out {lost} of its blocks"));
        }
    }
}

/// What is below one index block, and (from the root) how names are hashed.
fn node(
    geometry: &Geometry,
    seed: u32,
    block: &[u8],
    kind: Kind,
    branch: &Branch,
) -> Result<(Vec<Branch>, Option<htree::RootInfo>), &'static str> {
    let info = match kind {
        Kind::Root => Some(htree::root_info(block, geometry.hash_unsigned)?),
        Kind::Node => None,
    };
    if geometry.has_csum() {
        htree::check_seal(block, kind, seed)?;
    }
    let index = Index::new(block, kind, geometry.has_csum())?;
    if !index.is_sorted() {
        return Err("its hashes are not in order");
    }
    let count = index.count();
    let children = (0..count).map(|at| Branch {
        file_block: index.child(at),
        min: if at == 0 { branch.min } else { index.hash(at) },
        end: if at + 1 < count { index.hash(at + 1) as u64 } else { branch.end },
    });
    Ok((children.collect(), info))
}
