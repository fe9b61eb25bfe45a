//! Where the log lies on the device: the journal inode's blocks, as runs.
//!
//! This is found before anything else of the file system is trusted, so the walk reads through a
//! callback, checks what it meets, and is bounded by the number of blocks that the journal may have.

use crate::device::Block;
use crate::error::{Error, Place, Result};
use crate::format::jbd2::LOG_BLOCKS_MIN;
use crate::units::{BlockNr, BlockRange, InodeNr};

/// More blocks than any journal has (`JBD2_MAX_JOURNAL_BLOCKS`): bounds the walk.
const LOG_BLOCKS_MAX: u64 = 1024 * 10_000;

const EXTENT_MAGIC: u16 = 0xf30a;
const EXTENT_BYTES: usize = 12;
const EXTENT_DEPTH_MAX: u16 = 5;
/// An extent longer than this is an unwritten one.
const EXTENT_WRITTEN_MAX: u16 = 32768;

/// What the walk needs of the journal's inode, or of its backup in the superblock.
#[derive(Copy, Clone, Debug)]
pub struct LogInode {
    /// `i_block`.
    pub block: [u8; 60],
    /// The file's size in bytes.
    pub size: u64,
    /// Whether `i_block` holds an extent tree (EXTENTS_FL).
    pub extents: bool,
}

impl LogInode {
    /// The backup in the superblock (`s_jnl_blocks`: `i_block`, then the size's high and low half), or
    /// `None` when there is none. Only the root's magic tells an extent tree there.
    pub fn from_backup(jnl_blocks: &[u32; 17]) -> Option<Self> {
        let mut block = [0; 60];
        for (to, word) in block.chunks_exact_mut(4).zip(jnl_blocks) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        let size = (jnl_blocks[15] as u64) << 32 | jnl_blocks[16] as u64;
        let extents = u16_le(&block, 0) == Some(EXTENT_MAGIC) && u16_le(&block, 4) == Some(4);
        (size != 0).then_some(Self { block, size, extents })
    }
}

/// The log's blocks in order: log block 0 is the journal superblock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogArea {
    /// First log block of each run, and where it is; sorted, without gaps.
    runs: Vec<(u32, BlockRange)>,
    len: u32,
    /// The inode's own extent or indirect blocks.
    nodes: Vec<BlockNr>,
    /// The runs by place on the device.
    by_place: Vec<BlockRange>,
    fs_blocks: u64,
}

fn corrupt(why: impl Into<String>) -> Error {
    Error::corrupt("journal inode", Place::Inode(InodeNr::JOURNAL), why)
}

fn u16_le(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

fn u32_le(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

impl LogArea {
    /// Finds the log's blocks from its inode. `fs_blocks` is the file system's size; `read` reads one
    /// of its blocks.
    pub fn from_inode(
        inode: &LogInode,
        block_bytes: u32,
        fs_blocks: u64,
        read: &mut dyn FnMut(BlockNr) -> Result<Block>,
    ) -> Result<Self> {
        let blocks = inode.size / (block_bytes.max(1) as u64);
        if blocks < LOG_BLOCKS_MIN as u64 {
            return Err(corrupt(format!("its {blocks} blocks are too few for a log")));
        }
        if blocks > LOG_BLOCKS_MAX || blocks > fs_blocks {
            return Err(corrupt(format!("its size of {} bytes is more than a log may have", inode.size)));
        }
        let mut walk =
            Walk { read, fs_blocks, want: blocks as u32, have: 0, runs: Vec::new(), nodes: Vec::new() };
        if inode.extents {
            walk.extent_node(&inode.block, None, &mut 0)?;
        } else {
            walk.indirect(&inode.block)?;
        }
        if walk.have < walk.want {
            return Err(corrupt(format!("only {} of its {blocks} blocks are mapped", walk.have)));
        }
        let (runs, nodes) = (walk.runs, walk.nodes);
        Self::assemble(runs, nodes, fs_blocks)
    }

    /// A log at these places, in order (mkfs and tests, which know).
    pub fn from_runs(runs: impl IntoIterator<Item = BlockRange>, fs_blocks: u64) -> Result<Self> {
        Self::assemble(runs.into_iter().collect(), Vec::new(), fs_blocks)
    }

    fn assemble(ranges: Vec<BlockRange>, nodes: Vec<BlockNr>, fs_blocks: u64) -> Result<Self> {
        let mut runs = Vec::with_capacity(ranges.len());
        let mut len = 0u32;
        for range in &ranges {
            if range.len == 0 || range.start.0 == 0 || range.end().0 > fs_blocks {
                return Err(corrupt(format!(
                    "{} blocks at block {} are no place for a log",
                    range.len, range.start
                )));
            }
            runs.push((len, *range));
            len = len.checked_add(range.len).ok_or_else(|| corrupt("it has too many blocks"))?;
        }
        let mut by_place = ranges;
        by_place.sort_unstable();
        for pair in by_place.windows(2) {
            if let [a, b] = pair {
                if a.end() > b.start {
                    return Err(corrupt(format!("block {} is in it twice", b.start)));
                }
            }
        }
        let area = Self { runs, len, nodes, by_place, fs_blocks };
        if let Some(node) = area.nodes.iter().find(|nr| area.contains(**nr)) {
            return Err(corrupt(format!("block {node} is both a node of its map and mapped")));
        }
        Ok(area)
    }

    /// Blocks in the log.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Blocks of the file system that the log lies in.
    pub fn fs_blocks(&self) -> u64 {
        self.fs_blocks
    }

    /// The extent or indirect blocks that map the log.
    pub fn nodes(&self) -> &[BlockNr] {
        &self.nodes
    }

    /// Whether a block of the file system is one of the log's.
    pub fn contains(&self, nr: BlockNr) -> bool {
        let at = self.by_place.partition_point(|range| range.start <= nr);
        at.checked_sub(1).and_then(|at| self.by_place.get(at)).is_some_and(|range| range.contains(nr))
    }

    /// Where a log block is.
    pub fn physical(&self, log_block: u32) -> Result<BlockNr> {
        self.runs(log_block, 1)
            .next()
            .map(|range| range.start)
            .ok_or_else(|| Error::corrupt("log", Place::LogBlock(log_block), "it is behind the log's end"))
    }

    /// The contiguous pieces of the device that hold `count` log blocks from `log_block`, in order. It does not
    /// wrap: the pieces end with the log.
    pub fn runs(&self, log_block: u32, count: u32) -> impl Iterator<Item = BlockRange> + '_ {
        let first = self.runs.partition_point(|(start, _)| *start <= log_block).saturating_sub(1);
        let end = log_block.saturating_add(count);
        self.runs.get(first..).unwrap_or_default().iter().map_while(move |(start, range)| {
            let from = log_block.max(*start);
            let to = end.min(start.saturating_add(range.len));
            (from < to).then(|| BlockRange::new(range.start.plus((from - start) as u64), to - from))
        })
    }
}

/// The walk over the journal inode's map, in the order of its blocks.
struct Walk<'a> {
    read: &'a mut dyn FnMut(BlockNr) -> Result<Block>,
    fs_blocks: u64,
    want: u32,
    have: u32,
    runs: Vec<BlockRange>,
    nodes: Vec<BlockNr>,
}

impl Walk<'_> {
    /// The log's next blocks.
    fn add(&mut self, start: BlockNr, len: u32) -> Result<()> {
        // Blocks behind the file's size are not the log's.
        let len = len.min(self.want - self.have);
        if start.0 == 0 || start.plus(len as u64).0 > self.fs_blocks {
            return Err(corrupt(format!("its block {} would be at block {start}", self.have)));
        }
        self.have += len;
        match self.runs.last_mut() {
            Some(last) if last.end() == start && last.len.checked_add(len).is_some() => last.len += len,
            _ if len > 0 => self.runs.push(BlockRange::new(start, len)),
            _ => {}
        }
        Ok(())
    }

    fn node(&mut self, nr: BlockNr) -> Result<Block> {
        // Every node maps at least one block, so a longer list is a loop.
        if nr.0 == 0 || nr.0 >= self.fs_blocks || self.nodes.len() as u64 > self.want as u64 {
            return Err(corrupt(format!("a node of its map would be at block {nr}")));
        }
        self.nodes.push(nr);
        (self.read)(nr)
    }

    /// One extent node: `above` is the depth that its parent says it has. `next` is the file block
    /// that must come next: the log has no holes.
    fn extent_node(&mut self, node: &[u8], above: Option<u16>, next: &mut u64) -> Result<()> {
        let bad = |why: &str| corrupt(format!("its extent tree is damaged: {why}"));
        let field = |at| u16_le(node, at).unwrap_or(0);
        let (entries, depth) = (field(2), field(6));
        if field(0) != EXTENT_MAGIC {
            return Err(bad("wrong magic"));
        }
        if above.map_or(depth > EXTENT_DEPTH_MAX, |above| depth != above) {
            return Err(bad("wrong depth"));
        }
        let records = node.get(EXTENT_BYTES..EXTENT_BYTES * (1 + entries as usize));
        let records = records.filter(|r| !r.is_empty()).ok_or_else(|| bad("wrong number of entries"))?;
        for record in records.chunks_exact(EXTENT_BYTES) {
            if self.have >= self.want {
                return Ok(());
            }
            let first = u32_le(record, 0).unwrap_or(0);
            if first as u64 != *next {
                return Err(bad("it has a hole or an overlap"));
            }
            if depth == 0 {
                let len = u16_le(record, 4).unwrap_or(0);
                let high = u16_le(record, 6).unwrap_or(0) as u64;
                let low = u32_le(record, 8).unwrap_or(0) as u64;
                if len == 0 || len > EXTENT_WRITTEN_MAX {
                    return Err(bad("an extent is empty or unwritten"));
                }
                self.add(BlockNr(high << 32 | low), len as u32)?;
                *next += len as u64;
            } else {
                let low = u32_le(record, 4).unwrap_or(0) as u64;
                let high = u16_le(record, 8).unwrap_or(0) as u64;
                let child = self.node(BlockNr(high << 32 | low))?;
                self.extent_node(&child, Some(depth - 1), next)?;
            }
        }
        Ok(())
    }

    fn indirect(&mut self, i_block: &[u8; 60]) -> Result<()> {
        for (index, pointer) in i_block.chunks_exact(4).enumerate() {
            if self.have >= self.want {
                return Ok(());
            }
            let nr = BlockNr(u32_le(pointer, 0).unwrap_or(0) as u64);
            // Twelve direct pointers, then one each of depth 1, 2 and 3.
            self.pointer(nr, index.saturating_sub(11))?;
        }
        Ok(())
    }

    fn pointer(&mut self, nr: BlockNr, depth: usize) -> Result<()> {
        if depth == 0 {
            return self.add(nr, 1);
        }
        let node = self.node(nr)?;
        for pointer in node.chunks_exact(4) {
            if self.have >= self.want {
                return Ok(());
            }
            self.pointer(BlockNr(u32_le(pointer, 0).unwrap_or(0) as u64), depth - 1)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const FS_BLOCKS: u64 = 100_000;

    fn extent_node(depth: u16, records: &[(u32, u64, u16)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for field in [EXTENT_MAGIC, records.len() as u16, 4, depth] {
            bytes.extend(field.to_le_bytes());
        }
        bytes.extend([0; 4]);
        for (first, at, len) in records {
            bytes.extend(first.to_le_bytes());
            if depth == 0 {
                bytes.extend(len.to_le_bytes());
                bytes.extend(((at >> 32) as u16).to_le_bytes());
                bytes.extend((*at as u32).to_le_bytes());
            } else {
                bytes.extend((*at as u32).to_le_bytes());
                bytes.extend(((at >> 32) as u16).to_le_bytes());
                bytes.extend([0; 2]);
            }
        }
        bytes
    }

    fn inode(root: &[u8], blocks: u64, extents: bool) -> LogInode {
        let mut block = [0; 60];
        block[..root.len()].copy_from_slice(root);
        LogInode { block, size: blocks * 1024, extents }
    }

    fn area(inode: &LogInode, nodes: &BTreeMap<u64, Vec<u8>>) -> Result<LogArea> {
        LogArea::from_inode(inode, 1024, FS_BLOCKS, &mut |nr| {
            let mut block = Block::zeroed(1024);
            let bytes = nodes.get(&nr.0).ok_or_else(|| corrupt("no such node"))?;
            block[..bytes.len()].copy_from_slice(bytes);
            Ok(block)
        })
    }

    #[test]
    fn extents_two_levels_deep() {
        let nodes = BTreeMap::from([
            (50, extent_node(0, &[(0, 1000, 600), (600, 1600, 24)])),
            (51, extent_node(0, &[(624, 5000, 500)])),
        ]);
        let root = extent_node(1, &[(0, 50, 0), (624, 51, 0)]);
        let area = area(&inode(&root, 1100, true), &nodes).unwrap();
        assert_eq!(area.len(), 1100);
        assert_eq!(area.nodes(), [BlockNr(50), BlockNr(51)]);
        assert_eq!(area.physical(0).unwrap(), BlockNr(1000));
        assert_eq!(area.physical(623).unwrap(), BlockNr(1623));
        assert_eq!(area.physical(624).unwrap(), BlockNr(5000));
        assert_eq!(area.physical(1099).unwrap(), BlockNr(5475));
        assert!(area.physical(1100).is_err());
        let runs: Vec<_> = area.runs(620, 10).collect();
        assert_eq!(runs, [BlockRange::new(BlockNr(1620), 4), BlockRange::new(BlockNr(5000), 6)]);
        assert_eq!(area.runs(1090, 100).map(|r| r.len).sum::<u32>(), 10);
        assert!(area.contains(BlockNr(1000)) && area.contains(BlockNr(5475)));
        assert!(
            !area.contains(BlockNr(999)) && !area.contains(BlockNr(1624)) && !area.contains(BlockNr(5476))
        );
    }

    #[test]
    fn indirect_blocks_to_depth_two() {
        // Log block n lies at 2000 + n + (n / 1000) * 10; 12 direct, 256 indirect, the rest double.
        let place = |n: u64| 2000 + n + n / 1000 * 10;
        let pointers = |range: std::ops::Range<u64>| {
            range.flat_map(|n| (place(n) as u32).to_le_bytes()).collect::<Vec<u8>>()
        };
        let mut root = pointers(0..12);
        root.extend(60u32.to_le_bytes());
        root.extend(61u32.to_le_bytes());
        let mut nodes = BTreeMap::from([(60, pointers(12..268))]);
        let mut double = Vec::new();
        for leaf in 0..4u64 {
            double.extend((70 + leaf as u32).to_le_bytes());
            nodes.insert(70 + leaf, pointers(268 + leaf * 256..(268 + (leaf + 1) * 256).min(1200)));
        }
        nodes.insert(61, double);
        let area = area(&inode(&root, 1200, false), &nodes).unwrap();
        assert_eq!(area.len(), 1200);
        assert_eq!(area.runs(0, 1200).count(), 2);
        for n in [0, 11, 12, 267, 268, 999, 1000, 1199] {
            assert_eq!(area.physical(n as u32).unwrap(), BlockNr(place(n)));
        }
    }

    #[test]
    fn hostile_maps_are_refused() {
        let nodes = BTreeMap::from([(50, extent_node(1, &[(0, 50, 0)]))]);
        let refused = |root: &[u8], blocks, extents| area(&inode(root, blocks, extents), &nodes).is_err();
        let good = extent_node(0, &[(0, 1000, 2000)]);
        assert!(!refused(&good, 2000, true));
        assert!(refused(&good, 1000, true), "too short for a log");
        assert!(refused(&good, 2001, true), "not all mapped");
        assert!(refused(&good, FS_BLOCKS + 1, true), "larger than the file system");
        assert!(refused(&extent_node(0, &[(0, FS_BLOCKS - 5, 2000)]), 2000, true), "behind the end");
        assert!(refused(&extent_node(0, &[(0, 1000, 1000), (1000, 1500, 1000)]), 2000, true), "overlap");
        assert!(refused(&extent_node(0, &[(0, 1000, 1000), (1001, 5000, 1000)]), 2000, true), "hole");
        assert!(refused(&extent_node(0, &[(0, 1000, 40000)]), 2000, true), "unwritten");
        assert!(refused(&extent_node(1, &[(0, 50, 0)]), 2000, true), "a node that is its own child");
        assert!(refused(&extent_node(9, &[(0, 50, 0)]), 2000, true), "too deep");
        assert!(refused(&extent_node(0, &[]), 2000, true), "empty");
        assert!(refused(&[0; 60], 2000, false), "no blocks");
    }

    #[test]
    fn the_backup_reads_as_the_inode_does() {
        let root = extent_node(0, &[(0, 1000, 2000)]);
        let mut words = [0u32; 17];
        for (word, bytes) in words.iter_mut().zip(root.chunks_exact(4)) {
            *word = u32::from_le_bytes(bytes.try_into().unwrap());
        }
        words[16] = 2000 * 1024;
        let backup = LogInode::from_backup(&words).unwrap();
        let none = BTreeMap::new();
        assert_eq!(area(&backup, &none).unwrap(), area(&inode(&root, 2000, true), &none).unwrap());
        assert!(LogInode::from_backup(&[0; 17]).is_none());
    }
}
