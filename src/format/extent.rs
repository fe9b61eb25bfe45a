//! Extent tree nodes: `ext4_extent_header`, `ext4_extent`, `ext4_extent_idx`, `ext4_extent_tail`.
//!
//! A node is a header and up to `max` entries of 12 bytes, sorted by file block. The root lies in the
//! inode's `i_block` (60 bytes, no checksum of its own); every other node fills a block and ends, with
//! metadata_csum, in a CRC-32C under the inode's seed.

use super::checksum::crc32c;
use super::wire::{self, get_u16 as le16, get_u32 as le32};
use crate::error::{Error, Place, Result};
use crate::units::{BlockNr, FileBlock};
use std::ops::Range;

/// `eh_magic`.
pub const MAGIC: u16 = 0xF30A;
/// The deepest tree that the format allows (`EXT4_MAX_EXTENT_DEPTH`).
pub const DEPTH_MAX: u16 = 5;
/// Most blocks in a written extent.
pub const WRITTEN_LEN_MAX: u32 = 32768;
/// Most blocks in an unwritten extent (`ee_len` above 32768 says unwritten).
pub const UNWRITTEN_LEN_MAX: u32 = 32767;
/// Bytes of the root, in the inode.
pub const ROOT_BYTES: usize = 60;

/// The root's room for entries, and the least that any node has.
const ENTRIES_MIN: u16 = 4;
const HEADER_BYTES: usize = 12;
const ENTRY_BYTES: usize = 12;
const STRUCTURE: &str = "extent node";

fn put16(bytes: &mut [u8], at: usize, value: u16) {
    wire::put(bytes, at, &value.to_le_bytes());
}

fn put32(bytes: &mut [u8], at: usize, value: u32) {
    wire::put(bytes, at, &value.to_le_bytes());
}

/// An entry of a node: an extent in a leaf, an index above. An index has `len` 0.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The first file block that the entry covers (`ee_block`, `ei_block`).
    pub block: FileBlock,
    /// The first data block, or the child node's block.
    pub physical: BlockNr,
    /// File blocks in the extent; 0 in an index.
    pub len: u32,
    /// Allocated, but reads as zeroes.
    pub unwritten: bool,
}

impl Entry {
    /// An extent.
    pub fn extent(block: FileBlock, physical: BlockNr, len: u32, unwritten: bool) -> Self {
        Self { block, physical, len, unwritten }
    }

    /// An index entry for the child at `physical`.
    pub fn index(block: FileBlock, physical: BlockNr) -> Self {
        Self { block, physical, len: 0, unwritten: false }
    }

    /// The file block behind the extent.
    pub fn end(&self) -> u64 {
        u64::from(self.block.0) + u64::from(self.len)
    }

    /// The most blocks that an extent of this kind can have.
    pub fn len_max(&self) -> u32 {
        if self.unwritten {
            UNWRITTEN_LEN_MAX
        } else {
            WRITTEN_LEN_MAX
        }
    }

    /// The extent's part in the file blocks `range`, which must meet it.
    #[must_use]
    pub fn part(&self, range: Range<u64>) -> Self {
        let start = range.start.max(u64::from(self.block.0));
        let end = range.end.min(self.end()).max(start);
        Self {
            block: FileBlock(start as u32),
            physical: self.physical.plus(start - u64::from(self.block.0)),
            len: (end - start) as u32,
            unwritten: self.unwritten,
        }
    }

    /// Whether `next` goes on where this extent ends, in the file and on the device, in the same state,
    /// and both fit into one extent.
    pub fn joins(&self, next: &Self) -> bool {
        self.unwritten == next.unwritten
            && self.end() == u64::from(next.block.0)
            && self.physical.plus(u64::from(self.len)) == next.physical
            && self.len + next.len <= self.len_max()
    }

    fn decode(bytes: &[u8], leaf: bool) -> Self {
        let block = FileBlock(le32(bytes, 0));
        if leaf {
            let raw = u32::from(le16(bytes, 4));
            let unwritten = raw > WRITTEN_LEN_MAX;
            Self {
                block,
                physical: BlockNr(u64::from(le16(bytes, 6)) << 32 | u64::from(le32(bytes, 8))),
                len: if unwritten { raw - WRITTEN_LEN_MAX } else { raw },
                unwritten,
            }
        } else {
            let physical = u64::from(le16(bytes, 8)) << 32 | u64::from(le32(bytes, 4));
            Self::index(block, BlockNr(physical))
        }
    }

    fn encode(&self, bytes: &mut [u8], leaf: bool) {
        put32(bytes, 0, self.block.0);
        let high = (self.physical.0 >> 32) as u16;
        if leaf {
            let raw = self.len + if self.unwritten { WRITTEN_LEN_MAX } else { 0 };
            put16(bytes, 4, raw as u16);
            put16(bytes, 6, high);
            put32(bytes, 8, self.physical.0 as u32);
        } else {
            put32(bytes, 4, self.physical.0 as u32);
            put16(bytes, 8, high);
            put16(bytes, 10, 0);
        }
    }
}

/// How many entries a node of `bytes` bytes has room for.
pub fn capacity(bytes: usize) -> u16 {
    (bytes.saturating_sub(HEADER_BYTES) / ENTRY_BYTES).min(usize::from(u16::MAX)) as u16
}

/// A node's bytes, header checked: enough to search in it without decoding all of it.
#[derive(Copy, Clone)]
pub struct View<'a> {
    bytes: &'a [u8],
    depth: u16,
    entries: u16,
}

impl<'a> View<'a> {
    /// Checks the header against the node's size and the depth that its parent says
    /// (for the root: at most [`DEPTH_MAX`]).
    pub fn new(bytes: &'a [u8], place: Place, depth: Option<u16>) -> Result<Self> {
        let bad = |why: String| Err(Error::corrupt(STRUCTURE, place, why));
        let (magic, entries, max, found) = (le16(bytes, 0), le16(bytes, 2), le16(bytes, 4), le16(bytes, 6));
        if magic != MAGIC {
            return bad(format!("magic {magic:#06x}"));
        }
        if max < ENTRIES_MIN || max > capacity(bytes.len()) || entries > max {
            return bad(format!("{entries} entries of {max} in {} bytes", bytes.len()));
        }
        match depth {
            Some(want) if found != want => return bad(format!("depth {found}, its parent says {want}")),
            _ if found > DEPTH_MAX => return bad(format!("depth {found}")),
            _ => {}
        }
        if entries == 0 && (depth.is_some() || found > 0) {
            return bad("no entries".into());
        }
        Ok(Self { bytes, depth: found, entries })
    }

    /// 0 for a leaf.
    pub fn depth(&self) -> u16 {
        self.depth
    }

    /// How many entries are in use.
    pub fn len(&self) -> usize {
        usize::from(self.entries)
    }

    /// Whether no entry is in use (only an empty root may be so).
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// The entry at `at`.
    pub fn get(&self, at: usize) -> Option<Entry> {
        if at >= self.len() {
            return None;
        }
        let from = HEADER_BYTES + at * ENTRY_BYTES;
        self.bytes.get(from..from + ENTRY_BYTES).map(|bytes| Entry::decode(bytes, self.depth == 0))
    }

    /// The last entry that starts at or before `block`.
    pub fn search(&self, block: FileBlock) -> Option<usize> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = usize::midpoint(low, high);
            if le32(self.bytes, HEADER_BYTES + middle * ENTRY_BYTES) <= block.0 {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low.checked_sub(1)
    }

    /// Checks every entry: sorted, without overlap, inside the file blocks `keys` that the parent gives
    /// this node, and with blocks inside the file system's `area`.
    pub fn check_entries(&self, place: Place, keys: &Range<u64>, area: &Range<u64>) -> Result<()> {
        let mut free_from = keys.start;
        for at in 0..self.len() {
            let Some(entry) = self.get(at) else { break };
            let bad =
                |why: &str| Err(Error::corrupt(STRUCTURE, place, format!("entry {at}: {why} ({entry:?})")));
            if self.depth == 0 && entry.len == 0 {
                return bad("empty extent");
            }
            if u64::from(entry.block.0) < free_from {
                return bad("out of order");
            }
            free_from = u64::from(entry.block.0) + u64::from(entry.len.max(1));
            if free_from > keys.end {
                return bad("beyond its node's part of the file");
            }
            let behind = entry.physical.0.saturating_add(u64::from(entry.len.max(1)));
            if entry.physical.0 < area.start || behind > area.end {
                return bad("blocks outside the file system");
            }
        }
        Ok(())
    }
}

/// A node taken apart, to be changed and encoded again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// 0 for a leaf.
    pub depth: u16,
    /// Most entries.
    pub max: u16,
    /// `eh_generation`, kept.
    pub generation: u32,
    /// The entries in use, by file block.
    pub entries: Vec<Entry>,
}

impl Node {
    /// An empty node that fills `bytes` bytes.
    pub fn empty(bytes: usize, depth: u16) -> Self {
        Self { depth, max: capacity(bytes), generation: 0, entries: Vec::new() }
    }

    /// Takes a checked node apart.
    pub fn decode(view: &View<'_>) -> Self {
        Self {
            depth: view.depth,
            max: le16(view.bytes, 4),
            generation: le32(view.bytes, 8),
            entries: (0..view.len()).filter_map(|at| view.get(at)).collect(),
        }
    }

    /// Writes header and entries; bytes behind the last entry stay. The caller seals.
    pub fn encode(&self, bytes: &mut [u8]) {
        put16(bytes, 0, MAGIC);
        put16(bytes, 2, self.entries.len() as u16);
        put16(bytes, 4, self.max);
        put16(bytes, 6, self.depth);
        put32(bytes, 8, self.generation);
        let places = bytes.get_mut(HEADER_BYTES..).unwrap_or_default().chunks_exact_mut(ENTRY_BYTES);
        for (entry, to) in self.entries.iter().zip(places) {
            entry.encode(to, self.depth == 0);
        }
    }
}

/// Where the tail is: behind the room for `max` entries, not behind the entries in use.
fn tail_at(bytes: &[u8]) -> usize {
    HEADER_BYTES + usize::from(le16(bytes, 4)) * ENTRY_BYTES
}

fn checksum(bytes: &[u8], seed: u32) -> u32 {
    crc32c(seed, bytes.get(..tail_at(bytes)).unwrap_or(bytes))
}

/// Puts the checksum of a node that fills a block into its tail (metadata_csum only).
pub fn seal(bytes: &mut [u8], seed: u32) {
    let sum = checksum(bytes, seed);
    let at = tail_at(bytes);
    put32(bytes, at, sum);
}

/// Whether the tail's checksum fits the block; `seed` is the inode's.
pub fn is_sealed(bytes: &[u8], seed: u32) -> bool {
    let at = tail_at(bytes);
    at + 4 <= bytes.len() && le32(bytes, at) == checksum(bytes, seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: Place = Place::Block(BlockNr(99));

    fn leaf() -> Node {
        Node {
            entries: vec![
                Entry::extent(FileBlock(0), BlockNr(1 << 40 | 5), 32768, false),
                Entry::extent(FileBlock(40000), BlockNr(77), 32767, true),
            ],
            ..Node::empty(1024, 0)
        }
    }

    fn check(bytes: &[u8], keys: Range<u64>) -> Result<()> {
        View::new(bytes, PLACE, Some(0))?.check_entries(PLACE, &keys, &(1..1 << 41))
    }

    #[test]
    fn nodes_round_trip_and_keep_their_limits() {
        assert_eq!(capacity(ROOT_BYTES), 4);
        assert_eq!((capacity(1024), capacity(4096)), (84, 340));
        let mut bytes = vec![0; 1024];
        leaf().encode(&mut bytes);
        let view = View::new(&bytes, PLACE, Some(0)).unwrap();
        assert_eq!(Node::decode(&view), leaf());
        assert_eq!(view.search(FileBlock(39999)), Some(0));
        assert_eq!(view.search(FileBlock(40000)), Some(1));
        let index = Node {
            entries: vec![Entry::index(FileBlock(7), BlockNr(3 << 33 | 9))],
            ..Node::empty(ROOT_BYTES, 2)
        };
        let mut root = [0; ROOT_BYTES];
        index.encode(&mut root);
        let view = View::new(&root, PLACE, None).unwrap();
        assert_eq!((Node::decode(&view), view.search(FileBlock(6))), (index, None));
    }

    #[test]
    fn a_seal_covers_the_room_for_all_entries() {
        let mut bytes = vec![0; 1024];
        leaf().encode(&mut bytes);
        seal(&mut bytes, 0x1234);
        assert!(is_sealed(&bytes, 0x1234) && !is_sealed(&bytes, 0x1235));
        bytes[1000] ^= 1;
        assert!(!is_sealed(&bytes, 0x1234));
    }

    #[test]
    fn hostile_headers_and_entries_are_refused() {
        let mut good = vec![0; 1024];
        leaf().encode(&mut good);
        assert!(check(&good, 0..1 << 32).is_ok());
        assert!(check(&good, 0..72766).is_err(), "runs into the next node");
        assert!(check(&good, 1..1 << 32).is_err(), "starts before its parent's key");
        for (at, value) in [(0, 0), (2, 85), (4, 85), (4, 3), (6, 1), (6, 6), (2, 0)] {
            let mut bytes = good.clone();
            put16(&mut bytes, at, value);
            assert!(check(&bytes, 0..1 << 32).is_err(), "{value} at {at}");
        }
        for change in [
            |n: &mut Node| n.entries.reverse(),
            |n: &mut Node| n.entries[1].block = FileBlock(32767),
            |n: &mut Node| n.entries[1].block = FileBlock(u32::MAX),
            |n: &mut Node| n.entries[1].physical = BlockNr(0),
            |n: &mut Node| n.entries[0].physical = BlockNr((1 << 41) - 1),
            |n: &mut Node| n.entries[0].len = 0,
        ] {
            let mut node = leaf();
            change(&mut node);
            let mut bytes = good.clone();
            node.encode(&mut bytes);
            assert!(check(&bytes, 0..1 << 32).is_err(), "{node:?}");
        }
    }

    #[test]
    fn extents_join_up_to_their_limit_only() {
        let a = Entry::extent(FileBlock(0), BlockNr(10), 32767, false);
        let one = |unwritten| Entry::extent(FileBlock(32767), BlockNr(32777), 1, unwritten);
        assert!(a.joins(&one(false)) && !a.joins(&one(true)));
        let full = Entry { unwritten: true, ..a };
        assert!(!full.joins(&one(true)));
        assert_eq!(a.part(5..9), Entry::extent(FileBlock(5), BlockNr(15), 4, false));
    }
}
