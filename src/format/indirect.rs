//! The classic block map: 12 direct pointers and an indirect, a double and a triple indirect block in
//! `i_block`; every pointer is a little-endian `u32`, 0 a hole. No checksums, no unwritten blocks.

use crate::units::{BlockNr, FileBlock};

/// Pointers to data in the inode (`EXT2_NDIR_BLOCKS`).
pub const DIRECT: u32 = 12;
/// Slots in `i_block`.
pub const SLOTS: usize = 15;
/// Most blocks that a path visits below the inode.
pub const LEVELS_MAX: usize = 3;

/// Pointers in a block.
pub fn per_block(block_bytes: u32) -> u32 {
    block_bytes / 4
}

/// How many file blocks the format can address (`u64`: the triple indirect block alone may pass `u32`).
pub fn file_blocks_max(block_bytes: u32) -> u64 {
    let per = u64::from(per_block(block_bytes));
    u64::from(DIRECT) + per + per * per + per * per * per
}

/// Where a file block's pointer is: the slot of `i_block`, then an index into each indirect block.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Path {
    /// The slot in the inode.
    pub slot: usize,
    indices: [u32; LEVELS_MAX],
    levels: usize,
}

impl Path {
    /// The path to `block`, or `None` beyond the format's limit.
    pub fn to(block: FileBlock, block_bytes: u32) -> Option<Self> {
        if block.0 < DIRECT {
            return Some(Self { slot: block.0 as usize, indices: [0; LEVELS_MAX], levels: 0 });
        }
        let per = u64::from(per_block(block_bytes));
        let mut rest = u64::from(block.0 - DIRECT);
        let mut span = 1;
        for levels in 1..=LEVELS_MAX {
            span *= per;
            if rest < span {
                let mut indices = [0; LEVELS_MAX];
                let mut under = span;
                for index in indices.iter_mut().take(levels) {
                    under /= per;
                    *index = (rest / under) as u32;
                    rest %= under;
                }
                return Some(Self { slot: DIRECT as usize + levels - 1, indices, levels });
            }
            rest -= span;
        }
        None
    }

    /// The index into each indirect block, outermost first.
    pub fn indices(&self) -> &[u32] {
        self.indices.get(..self.levels).unwrap_or_default()
    }

    /// File blocks under one pointer that `depth` indirect blocks precede on this path.
    pub fn span(&self, depth: usize, block_bytes: u32) -> u64 {
        u64::from(per_block(block_bytes)).pow(self.levels.saturating_sub(depth) as u32)
    }

    /// The first file block under the pointer that `depth` indirect blocks precede on the path to `block`.
    pub fn first_under(&self, block: FileBlock, depth: usize, block_bytes: u32) -> u64 {
        let mut inside = 0;
        for (level, index) in self.indices().iter().enumerate().skip(depth) {
            inside += u64::from(*index) * self.span(level + 1, block_bytes);
        }
        u64::from(block.0) - inside
    }
}

/// The pointer at `index`; `None` for a hole (and beyond the block).
pub fn pointer(bytes: &[u8], index: u32) -> Option<BlockNr> {
    let at = index as usize * 4;
    let raw = bytes.get(at..at + 4)?;
    match u32::from_le_bytes([raw[0], raw[1], raw[2], raw[3]]) {
        0 => None,
        nr => Some(BlockNr(u64::from(nr))),
    }
}

/// Sets the pointer at `index`; `None` makes a hole. Blocks beyond 32 bits are the caller's mistake.
pub fn set_pointer(bytes: &mut [u8], index: u32, block: Option<BlockNr>) {
    let at = index as usize * 4;
    if let Some(to) = bytes.get_mut(at..at + 4) {
        to.copy_from_slice(&(block.map_or(0, |nr| nr.0) as u32).to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_change_level_where_the_format_says() {
        let path = |block| Path::to(FileBlock(block), 1024).unwrap();
        assert_eq!((path(11).slot, path(11).indices().len()), (11, 0));
        assert_eq!((path(12).slot, path(12).indices()), (12, &[0][..]));
        assert_eq!((path(12 + 255).slot, path(12 + 255).indices()), (12, &[255][..]));
        assert_eq!((path(12 + 256).slot, path(12 + 256).indices()), (13, &[0, 0][..]));
        let first_triple = 12 + 256 + 65536;
        assert_eq!((path(first_triple).slot, path(first_triple).indices()), (14, &[0, 0, 0][..]));
        assert_eq!(path(first_triple + 256 * 3 + 5).indices(), &[0, 3, 5]);
        let limit = file_blocks_max(1024) as u32;
        assert_eq!(path(limit - 1).indices(), &[255, 255, 255]);
        assert_eq!(Path::to(FileBlock(limit), 1024), None);
        assert!(Path::to(FileBlock(u32::MAX), 4096).is_none());
        assert!(Path::to(FileBlock(u32::MAX), 65536).is_some());
    }

    #[test]
    fn spans_say_what_lies_under_a_pointer() {
        let block = 12 + 256 + 65536 + 256 * 3 + 5;
        let path = Path::to(FileBlock(block), 1024).unwrap();
        assert_eq!(path.span(0, 1024), 1 << 24);
        assert_eq!(path.span(3, 1024), 1);
        assert_eq!(path.first_under(FileBlock(block), 0, 1024), 12 + 256 + 65536);
        assert_eq!(path.first_under(FileBlock(block), 2, 1024), u64::from(block) - 5);
        assert_eq!(path.first_under(FileBlock(block), 3, 1024), u64::from(block));
    }

    #[test]
    fn pointers_round_trip() {
        let mut bytes = [0; 8];
        set_pointer(&mut bytes, 1, Some(BlockNr(0x0102_0304)));
        assert_eq!(bytes, [0, 0, 0, 0, 4, 3, 2, 1]);
        assert_eq!((pointer(&bytes, 0), pointer(&bytes, 1)), (None, Some(BlockNr(0x0102_0304))));
        assert_eq!(pointer(&bytes, 2), None);
    }
}
