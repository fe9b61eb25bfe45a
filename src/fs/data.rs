//! File data that has been written and is not on its way to the disk yet (delayed allocation).

use crate::device::Block;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A whole block of a file, newer than what the disk has.
pub(crate) struct Page {
    pub(crate) block: Arc<Block>,
    /// Space is held for it: the file has no block there yet.
    pub(crate) held: bool,
}

/// An inode's delayed writes. The inode's lock protects it.
pub(crate) struct DirtyData {
    /// The file's size with these writes; at least the size on disk.
    pub(crate) size: u64,
    /// By file block.
    pub(crate) pages: BTreeMap<u32, Page>,
    /// Blocks held for the map's own blocks.
    pub(crate) metadata_held: u64,
}

impl DirtyData {
    pub(crate) fn new(size: u64) -> Self {
        Self { size, pages: BTreeMap::new(), metadata_held: 0 }
    }

    /// Blocks for which space is held.
    pub(crate) fn held(&self) -> u64 {
        self.pages.values().filter(|p| p.held).count() as u64 + self.metadata_held
    }
}

/// The first run of file blocks in `[from, to)` that have no page, as `(start, len)`.
pub(crate) fn gap(data: Option<&DirtyData>, from: u32, to: u32) -> Option<(u32, u32)> {
    let mut start = from;
    let Some(data) = data else { return (from < to).then(|| (from, to - from)) };
    for (nr, _) in data.pages.range(from..to) {
        if *nr > start {
            return Some((start, *nr - start));
        }
        start = *nr + 1;
    }
    (start < to).then(|| (start, to - start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_found_between_pages() {
        let mut data = DirtyData::new(0);
        for nr in [2, 3, 6] {
            data.pages.insert(nr, Page { block: Arc::new(Block::zeroed(512)), held: false });
        }
        assert_eq!(gap(Some(&data), 0, 10), Some((0, 2)));
        assert_eq!(gap(Some(&data), 2, 10), Some((4, 2)));
        assert_eq!(gap(Some(&data), 6, 10), Some((7, 3)));
        assert_eq!(gap(Some(&data), 2, 4), None);
        assert_eq!(gap(None, 1, 4), Some((1, 3)));
    }
}
