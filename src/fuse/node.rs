//! Node ids: the kernel's numbers for inodes, and how many references it holds to each.
//!
//! A node id is the inode number, but for the root directory: FUSE fixes its id at 1, ext4 its inode at 2.
//! Inode 1 (the bad blocks) is never shown, so the two don't collide.

use crate::error::{Error, Result};
use crate::units::InodeNr;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// FUSE's id of the root directory (`FUSE_ROOT_ID`).
const ROOT_ID: u64 = 1;
/// The first inode that a directory entry may name, the root apart (`EXT4_GOOD_OLD_FIRST_INO`).
const FIRST_INODE: u32 = 11;
const SHARDS: usize = 64;

/// The inode behind a node id; ESTALE for an id that we never gave out.
pub(super) fn inode_of(node: u64) -> Result<InodeNr> {
    match u32::try_from(node) {
        Ok(nr) if u64::from(nr) == ROOT_ID => Ok(InodeNr::ROOT),
        Ok(nr) if nr >= FIRST_INODE => Ok(InodeNr(nr)),
        _ => Err(Error::Stale),
    }
}

/// The node id of an inode; ESTALE for the reserved ones, which no name may lead to.
pub(super) fn node_of(nr: InodeNr) -> Result<u64> {
    match nr {
        InodeNr::ROOT => Ok(ROOT_ID),
        InodeNr(nr) if nr >= FIRST_INODE => Ok(u64::from(nr)),
        _ => Err(Error::Stale),
    }
}

/// How many references the kernel holds to each inode: one per entry it was given, until FORGET, and one
/// per open file, until RELEASE.
///
/// An unlinked inode may be freed only when this falls to zero. FORGETs are delayed in the kernel: one may arrive after
/// a later LOOKUP of the same inode, or before the RELEASE that preceded it, so counting is the only way to know. Costs at most 21 bytes per inode.
pub(super) struct References {
    shards: Vec<Mutex<FxHashMap<InodeNr, u32>>>,
}

impl References {
    /// No references.
    pub(super) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }

    fn shard(&self, nr: InodeNr) -> &Mutex<FxHashMap<InodeNr, u32>> {
        &self.shards[nr.0 as usize % SHARDS]
    }

    /// The kernel is about to be given an entry for `nr`.
    pub(super) fn add(&self, nr: InodeNr) {
        let mut shard = self.shard(nr).lock();
        let count = shard.entry(nr).or_insert(0);
        *count = count.saturating_add(1);
    }

    /// The kernel gave back `count` references; true if those were the last.
    pub(super) fn drop_some(&self, nr: InodeNr, count: u64) -> bool {
        let mut shard = self.shard(nr).lock();
        let Some(held) = shard.get_mut(&nr) else { return false };
        *held = held.saturating_sub(u32::try_from(count).unwrap_or(u32::MAX));
        let last = *held == 0;
        if last {
            shard.remove(&nr);
            // A map only shrinks when told to: after a scan of millions of files most are forgotten.
            if shard.capacity() > 1024 && shard.len() < shard.capacity() / 8 {
                shard.shrink_to_fit();
            }
        }
        last
    }

    /// Forgets everything: the mount is gone. Yields what the kernel still held.
    pub(super) fn drain(&self) -> Vec<InodeNr> {
        self.shards.iter().flat_map(|shard| std::mem::take(&mut *shard.lock()).into_keys()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_the_only_number_that_differs() {
        assert_eq!(inode_of(1).unwrap(), InodeNr::ROOT);
        assert_eq!(node_of(InodeNr::ROOT).unwrap(), 1);
        for nr in [11, 12, u32::MAX] {
            assert_eq!(node_of(inode_of(nr.into()).unwrap()).unwrap(), u64::from(nr));
        }
        for node in [0, 2, 8, 10, 1 << 32, u64::MAX] {
            assert!(inode_of(node).unwrap_err().is(libc::ESTALE), "{node}");
        }
        for nr in [0, 1, 7, 8] {
            assert!(node_of(InodeNr(nr)).is_err(), "{nr}");
        }
    }

    #[test]
    fn only_the_last_forget_counts() {
        let references = References::new();
        references.add(InodeNr(12));
        references.add(InodeNr(12));
        assert!(!references.drop_some(InodeNr(12), 1));
        references.add(InodeNr(12));
        assert!(references.drop_some(InodeNr(12), 2));
        assert!(!references.drop_some(InodeNr(12), 1), "nothing was held");
        references.add(InodeNr(13));
        assert_eq!(references.drain(), [InodeNr(13)]);
    }
}
