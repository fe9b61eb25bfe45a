//! Feature flags of the superblock, and the names that mke2fs, tune2fs and dumpe2fs give them.
// The flags have the names of the format and need no more words.
#![allow(missing_docs)]

use bitflags::bitflags;
use std::fmt;

bitflags! {
    /// Features that a driver may ignore, reading and writing.
    #[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
    pub struct Compat: u32 {
        const DIR_PREALLOC = 0x1;
        const IMAGIC_INODES = 0x2;
        const HAS_JOURNAL = 0x4;
        const EXT_ATTR = 0x8;
        const RESIZE_INODE = 0x10;
        const DIR_INDEX = 0x20;
        const LAZY_BG = 0x40;
        const EXCLUDE_BITMAP = 0x100;
        const SPARSE_SUPER2 = 0x200;
        const FAST_COMMIT = 0x400;
        const STABLE_INODES = 0x800;
        const ORPHAN_FILE = 0x1000;
        const _ = !0;
    }
}

bitflags! {
    /// Features without which a driver must not touch the file system at all.
    #[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
    pub struct Incompat: u32 {
        const COMPRESSION = 0x1;
        const FILETYPE = 0x2;
        const NEEDS_RECOVERY = 0x4;
        const JOURNAL_DEV = 0x8;
        const META_BG = 0x10;
        const EXTENT = 0x40;
        const BIT64 = 0x80;
        const MMP = 0x100;
        const FLEX_BG = 0x200;
        const EA_INODE = 0x400;
        const DIRDATA = 0x1000;
        const METADATA_CSUM_SEED = 0x2000;
        const LARGE_DIR = 0x4000;
        const INLINE_DATA = 0x8000;
        const ENCRYPT = 0x10000;
        const CASEFOLD = 0x20000;
        const _ = !0;
    }
}

bitflags! {
    /// Features without which a driver may read but not write.
    #[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
    pub struct RoCompat: u32 {
        const SPARSE_SUPER = 0x1;
        const LARGE_FILE = 0x2;
        const BTREE_DIR = 0x4;
        const HUGE_FILE = 0x8;
        const GDT_CSUM = 0x10;
        const DIR_NLINK = 0x20;
        const EXTRA_ISIZE = 0x40;
        const HAS_SNAPSHOT = 0x80;
        const QUOTA = 0x100;
        const BIGALLOC = 0x200;
        const METADATA_CSUM = 0x400;
        const REPLICA = 0x800;
        const READONLY = 0x1000;
        const PROJECT = 0x2000;
        const SHARED_BLOCKS = 0x4000;
        const VERITY = 0x8000;
        const ORPHAN_PRESENT = 0x10000;
        const _ = !0;
    }
}

impl Incompat {
    /// What we can read; with any other, nothing can be relied on.
    pub const KNOWN: Self = Self::FILETYPE
        .union(Self::NEEDS_RECOVERY)
        .union(Self::META_BG)
        .union(Self::EXTENT)
        .union(Self::BIT64)
        .union(Self::MMP)
        .union(Self::FLEX_BG)
        .union(Self::EA_INODE)
        .union(Self::METADATA_CSUM_SEED)
        .union(Self::LARGE_DIR)
        .union(Self::INLINE_DATA);
}

/// One feature of any of the three sets.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Feature {
    /// May be ignored.
    Compat(Compat),
    /// Must be known.
    Incompat(Incompat),
    /// Must be known to write.
    RoCompat(RoCompat),
}

use Feature::{Compat as C, Incompat as I, RoCompat as R};

/// Every name; where a feature has two, the first is the one that is printed.
const NAMES: &[(&str, Feature)] = &[
    ("dir_prealloc", C(Compat::DIR_PREALLOC)),
    ("imagic_inodes", C(Compat::IMAGIC_INODES)),
    ("has_journal", C(Compat::HAS_JOURNAL)),
    ("ext_attr", C(Compat::EXT_ATTR)),
    ("resize_inode", C(Compat::RESIZE_INODE)),
    ("dir_index", C(Compat::DIR_INDEX)),
    ("lazy_bg", C(Compat::LAZY_BG)),
    ("snapshot_bitmap", C(Compat::EXCLUDE_BITMAP)),
    ("sparse_super2", C(Compat::SPARSE_SUPER2)),
    ("fast_commit", C(Compat::FAST_COMMIT)),
    ("stable_inodes", C(Compat::STABLE_INODES)),
    ("orphan_file", C(Compat::ORPHAN_FILE)),
    ("compression", I(Incompat::COMPRESSION)),
    ("filetype", I(Incompat::FILETYPE)),
    ("needs_recovery", I(Incompat::NEEDS_RECOVERY)),
    ("journal_dev", I(Incompat::JOURNAL_DEV)),
    ("meta_bg", I(Incompat::META_BG)),
    ("extent", I(Incompat::EXTENT)),
    ("extents", I(Incompat::EXTENT)),
    ("64bit", I(Incompat::BIT64)),
    ("mmp", I(Incompat::MMP)),
    ("flex_bg", I(Incompat::FLEX_BG)),
    ("ea_inode", I(Incompat::EA_INODE)),
    ("dirdata", I(Incompat::DIRDATA)),
    ("metadata_csum_seed", I(Incompat::METADATA_CSUM_SEED)),
    ("large_dir", I(Incompat::LARGE_DIR)),
    ("inline_data", I(Incompat::INLINE_DATA)),
    ("encrypt", I(Incompat::ENCRYPT)),
    ("casefold", I(Incompat::CASEFOLD)),
    ("fname_encoding", I(Incompat::CASEFOLD)),
    ("sparse_super", R(RoCompat::SPARSE_SUPER)),
    ("large_file", R(RoCompat::LARGE_FILE)),
    ("huge_file", R(RoCompat::HUGE_FILE)),
    ("uninit_bg", R(RoCompat::GDT_CSUM)),
    ("uninit_groups", R(RoCompat::GDT_CSUM)),
    ("gdt_csum", R(RoCompat::GDT_CSUM)),
    ("dir_nlink", R(RoCompat::DIR_NLINK)),
    ("extra_isize", R(RoCompat::EXTRA_ISIZE)),
    ("snapshot", R(RoCompat::HAS_SNAPSHOT)),
    ("quota", R(RoCompat::QUOTA)),
    ("bigalloc", R(RoCompat::BIGALLOC)),
    ("metadata_csum", R(RoCompat::METADATA_CSUM)),
    ("replica", R(RoCompat::REPLICA)),
    ("read-only", R(RoCompat::READONLY)),
    ("project", R(RoCompat::PROJECT)),
    ("shared_blocks", R(RoCompat::SHARED_BLOCKS)),
    ("verity", R(RoCompat::VERITY)),
    ("orphan_present", R(RoCompat::ORPHAN_PRESENT)),
];

impl Feature {
    /// The feature that mke2fs calls `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, feature)| *feature)
    }
}

/// The three sets of a superblock.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Features {
    /// May be ignored.
    pub compat: Compat,
    /// Must be known.
    pub incompat: Incompat,
    /// Must be known to write.
    pub ro_compat: RoCompat,
}

impl Features {
    /// Whether `feature` is on.
    pub fn has(&self, feature: Feature) -> bool {
        match feature {
            C(flag) => self.compat.contains(flag),
            I(flag) => self.incompat.contains(flag),
            R(flag) => self.ro_compat.contains(flag),
        }
    }

    /// Turns `feature` on or off.
    pub fn set(&mut self, feature: Feature, on: bool) {
        match feature {
            C(flag) => self.compat.set(flag, on),
            I(flag) => self.incompat.set(flag, on),
            R(flag) => self.ro_compat.set(flag, on),
        }
    }

    /// The names of the features that are on, an unknown one by set and bit ("FEATURE_I18", as
    /// e2fsprogs prints it).
    pub fn names(&self) -> Vec<String> {
        let mut names = Vec::new();
        for bit in 0..32 {
            let flag = Compat::from_bits_retain(1 << bit);
            if self.compat.contains(flag) {
                names.push(name_of(C(flag), 'C', bit));
            }
        }
        for bit in 0..32 {
            let flag = Incompat::from_bits_retain(1 << bit);
            if self.incompat.contains(flag) {
                names.push(name_of(I(flag), 'I', bit));
            }
        }
        for bit in 0..32 {
            let flag = RoCompat::from_bits_retain(1 << bit);
            if self.ro_compat.contains(flag) {
                names.push(name_of(R(flag), 'R', bit));
            }
        }
        names
    }
}

fn name_of(feature: Feature, set: char, bit: u32) -> String {
    NAMES
        .iter()
        .find(|(_, known)| *known == feature)
        .map_or_else(|| format!("FEATURE_{set}{bit}"), |(name, _)| (*name).to_owned())
}

impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_flags_agree() {
        let mut all = Features::default();
        for (name, feature) in NAMES {
            assert_eq!(Feature::from_name(name), Some(*feature), "{name}");
            all.set(*feature, true);
            assert!(all.has(*feature));
        }
        assert!(all.names().contains(&"extent".to_owned()) && !all.names().contains(&"extents".to_owned()));
        assert_eq!(Feature::from_name("extends"), None);
    }

    #[test]
    fn an_unknown_bit_is_kept_and_named() {
        let features =
            Features { incompat: Incompat::from_bits_retain(1 << 30 | 0x40), ..Default::default() };
        assert_eq!(features.to_string(), "extent FEATURE_I30");
        assert_eq!(features.incompat.bits(), 1 << 30 | 0x40);
    }
}
