//! The numbers of the format, each its own type, so that one cannot be passed for another.

use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty), $shown:literal) => {
        $(#[$doc])*
        #[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($shown, " {}"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

number!(
    /// A block of the device, counted in file-system blocks from the file system's first byte.
    BlockNr(u64), "block"
);
number!(
    /// A block of a file, counted from the file's first byte (`ee_block` in an extent).
    FileBlock(u32), "file block"
);
number!(
    /// An inode number; 1 is the first (bad blocks), 2 the root directory.
    InodeNr(u32), "inode"
);
number!(
    /// A block group's number.
    GroupNr(u32), "group"
);
number!(
    /// A transaction's id: the 32-bit sequence number of its log blocks. Wraps.
    Tid(u32), "transaction"
);

impl BlockNr {
    /// The block `count` blocks further on.
    #[must_use]
    pub fn plus(self, count: u64) -> Self {
        Self(self.0.saturating_add(count))
    }
}

impl FileBlock {
    /// The block `count` blocks further on; saturates at the format's limit.
    #[must_use]
    pub fn plus(self, count: u32) -> Self {
        Self(self.0.saturating_add(count))
    }
}

impl InodeNr {
    /// The root directory.
    pub const ROOT: Self = Self(2);
    /// The resize inode.
    pub const RESIZE: Self = Self(7);
    /// The journal.
    pub const JOURNAL: Self = Self(8);
}

impl Tid {
    /// The next transaction.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// Whether `self` is a later transaction than `other`, in the wrapping order of jbd2's `tid_gt`.
    #[must_use]
    pub fn is_after(self, other: Self) -> bool {
        (self.0.wrapping_sub(other.0) as i32) > 0
    }

    /// Whether `self` is `other` or later.
    #[must_use]
    pub fn is_at_least(self, other: Self) -> bool {
        !other.is_after(self)
    }
}

/// A run of device blocks; never empty in what the allocator hands out.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockRange {
    /// The first block.
    pub start: BlockNr,
    /// How many blocks.
    pub len: u32,
}

impl BlockRange {
    /// A run of `len` blocks from `start`.
    pub fn new(start: BlockNr, len: u32) -> Self {
        Self { start, len }
    }

    /// The block behind the last one.
    pub fn end(self) -> BlockNr {
        self.start.plus(self.len as u64)
    }

    /// Whether `block` is in the run.
    pub fn contains(self, block: BlockNr) -> bool {
        block >= self.start && block < self.end()
    }

    /// The blocks, in order.
    pub fn iter(self) -> impl Iterator<Item = BlockNr> {
        (self.start.0..self.end().0).map(BlockNr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transaction_ids_wrap() {
        assert!(Tid(0).is_after(Tid(u32::MAX)));
        assert!(!Tid(u32::MAX).is_after(Tid(0)));
        assert!(!Tid(7).is_after(Tid(7)));
        assert!(Tid(7).is_at_least(Tid(7)));
        assert_eq!(Tid(u32::MAX).next(), Tid(0));
    }

    #[test]
    fn a_range_holds_its_ends() {
        let range = BlockRange::new(BlockNr(10), 3);
        assert!(range.contains(BlockNr(10)) && range.contains(BlockNr(12)));
        assert!(!range.contains(BlockNr(13)) && !range.contains(BlockNr(9)));
        assert_eq!(range.iter().count(), 3);
    }
}
