//! The index blocks of an htree directory (`dx_root`, `dx_node`): arrays of (hash, block), sorted.
//! Called by `fs/dir` and fsck; calls `checksum`, `hash`, `wire`.
//!
//! An entry says that names with its hash and above, up to the next entry's, are in (or below) its block.
//! The first entry's hash is 0 and not stored: count and limit are in its place. Bit 0 of a hash says that
//! the block before may hold names with the same hash too. Both kinds of block begin with directory
//! entries that cover the rest, so that who doesn't know the index sees an ordinary directory.

use super::checksum::crc32c;
use super::dirent;
use super::hash::HashVersion;
use super::wire;
use crate::units::{FileBlock, InodeNr};

/// Where the array begins in an interior node.
const NODE_START: usize = 8;
/// Where `dx_root_info` lies in the root: behind `.` and `..`.
const INFO: usize = 24;
/// `dx_root_info.info_length`.
const INFO_BYTES: usize = 8;
/// Where the array begins in the root.
const ROOT_START: usize = INFO + INFO_BYTES;
const ENTRY_BYTES: usize = 8;
/// `dx_tail`: reserved, checksum.
const TAIL_BYTES: usize = 8;
/// The bits of an entry's block that count (`dx_get_block`).
const BLOCK_MASK: u32 = 0x0fff_ffff;

/// Which kind of index block.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Block 0 of the directory.
    Root,
    /// A block between the root and the leaves.
    Node,
}

impl Kind {
    fn start(self) -> usize {
        match self {
            Kind::Root => ROOT_START,
            Kind::Node => NODE_START,
        }
    }

    /// How many entries fit.
    pub fn limit(self, block_bytes: usize, has_csum: bool) -> usize {
        let tail = if has_csum { TAIL_BYTES } else { 0 };
        block_bytes.saturating_sub(self.start() + tail) / ENTRY_BYTES
    }
}

/// What the root says of the tree.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct RootInfo {
    /// How names are hashed.
    pub version: HashVersion,
    /// Levels of index nodes between the root and the leaves.
    pub levels: u8,
}

/// The root's header; `unsigned` is the superblock's word on how names are hashed.
pub fn root_info(block: &[u8], unsigned: bool) -> Result<RootInfo, &'static str> {
    let info = block.get(INFO..ROOT_START).ok_or("the root is too short")?;
    let [r0, r1, r2, r3, version, length, levels, flags] =
        *info.first_chunk().ok_or("the root is too short")?;
    if [r0, r1, r2, r3] != [0; 4] {
        return Err("the root's reserved bytes are not zero");
    }
    if length as usize != INFO_BYTES {
        return Err("the root's header has an unknown length");
    }
    if flags & 1 != 0 {
        return Err("the root has unknown flags");
    }
    // On disk are the plain versions only; 3 to 5 are how programs call the unsigned ones.
    let version = (version < 3).then(|| HashVersion::from_disk(version, unsigned)).flatten();
    Ok(RootInfo { version: version.ok_or("the root has an unknown hash version")?, levels })
}

/// An index block being read.
#[derive(Copy, Clone)]
pub struct Index<'a> {
    block: &'a [u8],
    kind: Kind,
    count: usize,
}

impl<'a> Index<'a> {
    /// The array of an index block, its bounds checked.
    pub fn new(block: &'a [u8], kind: Kind, has_csum: bool) -> Result<Self, &'static str> {
        let start = kind.start();
        let limit = wire::get_u16(block, start) as usize;
        let count = wire::get_u16(block, start + 2) as usize;
        if limit != kind.limit(block.len(), has_csum) {
            return Err("an index block has the wrong limit");
        }
        if count == 0 || count > limit {
            return Err("an index block has an impossible count");
        }
        Ok(Self { block, kind, count })
    }

    /// How many entries there are; at least 1.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Where entry `at` begins hashing; 0 for the first.
    pub fn hash(&self, at: usize) -> u32 {
        if at == 0 {
            return 0;
        }
        wire::get_u32(self.block, self.kind.start() + at * ENTRY_BYTES)
    }

    /// The block that entry `at` points to.
    pub fn child(&self, at: usize) -> FileBlock {
        FileBlock(wire::get_u32(self.block, self.kind.start() + at * ENTRY_BYTES + 4) & BLOCK_MASK)
    }

    /// The last entry whose hash is not above `hash`.
    pub fn position(&self, hash: u32) -> usize {
        let (mut low, mut high) = (1, self.count);
        while low < high {
            let middle = low.midpoint(high);
            if self.hash(middle) > hash {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        low - 1
    }

    /// Whether the hashes ascend, as a sound index's do.
    pub fn is_sorted(&self) -> bool {
        (1..self.count).all(|at| self.hash(at - 1) <= self.hash(at))
    }

    /// The entries from `from` on, to be written elsewhere.
    pub fn entries(&self, from: usize) -> Vec<(u32, FileBlock)> {
        (from..self.count).map(|at| (self.hash(at), self.child(at))).collect()
    }
}

/// Writes the array of an index block. `entries` must not be empty nor more than fit; the first one's hash is
/// not stored.
pub fn put_entries(block: &mut [u8], kind: Kind, has_csum: bool, entries: &[(u32, FileBlock)]) {
    let start = kind.start();
    for (at, (hash, child)) in entries.iter().enumerate() {
        wire::put(block, start + at * ENTRY_BYTES, &hash.to_le_bytes());
        wire::put(block, start + at * ENTRY_BYTES + 4, &child.0.to_le_bytes());
    }
    let limit = kind.limit(block.len(), has_csum) as u16;
    wire::put(block, start, &limit.to_le_bytes());
    wire::put(block, start + 2, &(entries.len() as u16).to_le_bytes());
}

/// Inserts an entry at position `at` (1 or more) of an array that has room.
pub fn insert_entry(block: &mut [u8], kind: Kind, at: usize, hash: u32, child: FileBlock) {
    let start = kind.start();
    let count = wire::get_u16(block, start + 2) as usize;
    let from = start + at * ENTRY_BYTES;
    let end = start + count * ENTRY_BYTES;
    if at > count || end + ENTRY_BYTES > block.len() {
        return;
    }
    block.copy_within(from..end, from + ENTRY_BYTES);
    wire::put(block, from, &hash.to_le_bytes());
    wire::put(block, from + 4, &child.0.to_le_bytes());
    wire::put(block, start + 2, &(count as u16 + 1).to_le_bytes());
}

/// Makes a block an empty root: the dot entries and the header. The array is to be written next.
pub fn put_root(block: &mut [u8], own: InodeNr, parent: InodeNr, dot_kind: u8, info: RootInfo) -> bool {
    block.fill(0);
    let whole = block.len();
    let done = dirent::put_dots(block, whole, own, parent, dot_kind);
    set_info(block, info);
    done
}

/// Rewrites the root's header.
pub fn set_info(block: &mut [u8], info: RootInfo) {
    if let Some(to) = block.get_mut(INFO..ROOT_START) {
        to.copy_from_slice(&[0, 0, 0, 0, info.version.to_disk(), INFO_BYTES as u8, info.levels, 0]);
    }
}

/// Makes a block an empty interior node. The array is to be written next.
pub fn put_node(block: &mut [u8]) {
    let whole = block.len();
    dirent::clear(block, whole);
}

/// The checksum covers the block up to the last entry in use, and the tail with the checksum taken as zero.
fn checksum(block: &[u8], kind: Kind, seed: u32) -> Option<(u32, usize)> {
    let start = kind.start();
    let limit = wire::get_u16(block, start) as usize;
    let count = wire::get_u16(block, start + 2) as usize;
    let tail = start + limit * ENTRY_BYTES;
    let sum = crc32c(seed, block.get(..start + count.min(limit) * ENTRY_BYTES)?);
    let sum = crc32c(sum, block.get(tail..tail + 4)?);
    (tail + TAIL_BYTES <= block.len()).then(|| (crc32c(sum, &[0; 4]), tail + 4))
}

/// Writes the checksum of an index block.
pub fn seal(block: &mut [u8], kind: Kind, seed: u32) {
    if let Some((sum, at)) = checksum(block, kind, seed) {
        wire::put(block, at, &sum.to_le_bytes());
    }
}

/// Checks the checksum of an index block.
pub fn check_seal(block: &[u8], kind: Kind, seed: u32) -> Result<(), &'static str> {
    match checksum(block, kind, seed) {
        Some((sum, at)) if wire::get_u32(block, at) == sum => Ok(()),
        Some(_) => Err("the checksum does not match"),
        None => Err("the checksum's tail is missing"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(entries: &[(u32, FileBlock)]) -> Vec<u8> {
        let version = HashVersion::from_disk(1, false).unwrap();
        let mut block = vec![0xaa; 1024];
        assert!(put_root(&mut block, InodeNr(12), InodeNr(2), 2, RootInfo { version, levels: 1 }));
        put_entries(&mut block, Kind::Root, true, entries);
        seal(&mut block, Kind::Root, 77);
        block
    }

    #[test]
    fn a_root_is_read_as_written() {
        let mut block = root(&[(0, FileBlock(1)), (100, FileBlock(2)), (200, FileBlock(3))]);
        let info = root_info(&block, true).unwrap();
        assert_eq!((info.levels, info.version.to_disk()), (1, 1));
        assert_eq!(info.version, HashVersion::from_disk(4, false).unwrap());
        let index = Index::new(&block, Kind::Root, true).unwrap();
        assert_eq!([0, 99, 100, 101, 200, u32::MAX].map(|h| index.position(h)), [0, 0, 1, 1, 2, 2]);
        assert!(index.is_sorted());
        check_seal(&block, Kind::Root, 77).unwrap();
        insert_entry(&mut block, Kind::Root, 2, 150, FileBlock(4));
        assert!(check_seal(&block, Kind::Root, 77).is_err());
        let index = Index::new(&block, Kind::Root, true).unwrap();
        assert_eq!(index.entries(1), [(100, FileBlock(2)), (150, FileBlock(4)), (200, FileBlock(3))]);
        let dots: Vec<_> = dirent::entries(&block, 1024).map(Result::unwrap).collect();
        assert_eq!((dots.len(), dots[1].rec_len), (2, 1012));
    }

    #[test]
    fn limits_are_the_kernels() {
        assert_eq!(Kind::Root.limit(4096, false), 508);
        assert_eq!(Kind::Root.limit(4096, true), 507);
        assert_eq!(Kind::Node.limit(4096, false), 511);
        assert_eq!(Kind::Node.limit(4096, true), 510);
    }

    #[test]
    fn impossible_arrays_are_refused() {
        let sound = root(&[(0, FileBlock(1))]);
        for (at, value) in [(32, 9), (34, 0), (34, 200), (29, 12), (28, 6), (24, 1)] {
            let mut block = sound.clone();
            block[at] = value;
            let both =
                root_info(&block, false).map(|_| ()).and(Index::new(&block, Kind::Root, true).map(|_| ()));
            assert!(both.is_err(), "byte {at}");
        }
        assert!(Index::new(&[], Kind::Node, false).is_err());
        assert!(root_info(&[0; 20], false).is_err());
    }
}
