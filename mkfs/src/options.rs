//! What can be chosen about a new file system.

use journalfs::format::features::Feature;
use journalfs::{Error, Result};

/// A set of defaults.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum Profile {
    /// ext4's usual features, 4 KiB blocks but for very small devices, and a journal sized for journalfs.
    #[default]
    Journalfs,
    /// Classic ext3, which `mount -t ext3` accepts.
    Ext3,
    /// What mke2fs 1.47 makes with `-t ext4`.
    Ext4,
}

/// The journal's size.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum JournalSize {
    /// By the profile and the file system's size.
    #[default]
    Auto,
    /// In MiB.
    MiB(u32),
}

/// One element of a feature list.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum FeatureEdit {
    /// All features off.
    Clear,
    /// One feature on or off.
    Set(Feature, bool),
}

/// Parses a comma-separated feature list: `extent,^resize_inode`; `none` or `clear` turns all off.
pub fn parse_features(list: &str) -> Result<Vec<FeatureEdit>> {
    list.split([',', ' '])
        .map(str::trim)
        .filter(|item| !item.is_empty())
        .map(|item| {
            if matches!(item, "none" | "clear") {
                return Ok(FeatureEdit::Clear);
            }
            let (name, on) = item.strip_prefix(['^', '-']).map_or((item, true), |name| (name, false));
            let name = name.to_ascii_lowercase();
            let feature =
                Feature::from_name(&name).ok_or_else(|| Error::Usage(format!("unknown feature '{name}'")))?;
            Ok(FeatureEdit::Set(feature, on))
        })
        .collect()
}

/// Everything that can be chosen. The default makes a journalfs-profile file system that fills its device.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Where the defaults come from.
    pub profile: Profile,
    /// Bytes in a block: a power of two from 1024 to 65536.
    pub block_bytes: Option<u32>,
    /// Bytes in an inode: a power of two from 128 to the block size.
    pub inode_bytes: Option<u32>,
    /// How many inodes, at least.
    pub inodes: Option<u64>,
    /// One inode for this many bytes of the device.
    pub bytes_per_inode: Option<u64>,
    /// Percent of the blocks that only root may use; 5 if not given.
    pub reserved_percent: Option<f64>,
    /// The file system's size in bytes; the device's if not given.
    pub size_bytes: Option<u64>,
    /// Blocks in a group, a multiple of 8.
    pub blocks_per_group: Option<u32>,
    /// Groups in a flex group, a power of two; 16 if not given.
    pub groups_per_flex: Option<u32>,
    /// The journal's size.
    pub journal: JournalSize,
    /// Changes to the profile's features, in order.
    pub features: Vec<FeatureEdit>,
    /// The label, at most 16 bytes.
    pub label: String,
    /// The UUID; random if not given.
    pub uuid: Option<[u8; 16]>,
    /// The seed of directory hashes; random if not given.
    pub hash_seed: Option<[u8; 16]>,
    /// On errors: 1 continue, 2 remount read-only, 3 panic.
    pub errors: Option<u16>,
    /// RAID stride in blocks.
    pub raid_stride: u16,
    /// RAID stripe width in blocks.
    pub raid_stripe_width: u32,
    /// Reserve descriptor blocks so that the file system can grow to this many blocks.
    pub resize_blocks: Option<u64>,
    /// Leave unused inode tables unwritten, where descriptors have checksums to say so.
    pub lazy_itable_init: bool,
    /// Leave the log unwritten but for its first block; the sequence then starts at a random number, so that
    /// no transaction of an earlier journal there is taken for one of ours.
    pub lazy_journal_init: bool,
    /// Owner and group of the root directory.
    pub root_owner: (u32, u32),
    /// All bitmaps, inode tables and the journal at the device's start.
    pub packed_meta_blocks: bool,
    /// With sparse_super2: superblock copies besides the first, 0 to 2; 2 if not given.
    pub backup_superblocks: Option<u8>,
    /// With mmp: seconds between two updates; 5 if not given.
    pub mmp_update_interval: Option<u16>,
    /// With orphan_file: its size in bytes.
    pub orphan_file_bytes: Option<u64>,
    /// The device reads as zeroes already (a new or discarded image file).
    pub prezeroed: bool,
    /// The time of creation in seconds from 1970; the system clock's if not given.
    pub now: Option<i64>,
}

impl Options {
    /// The defaults of a profile.
    pub fn new(profile: Profile) -> Self {
        Self { profile, ..Self::default() }
    }

    /// Whether the feature list turns `feature` on by name.
    pub fn asks_for(&self, feature: Feature) -> bool {
        self.features.iter().rev().find_map(|edit| match edit {
            FeatureEdit::Clear => Some(false),
            FeatureEdit::Set(known, on) if *known == feature => Some(*on),
            FeatureEdit::Set(..) => None,
        }) == Some(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use journalfs::format::{Compat, Incompat};

    #[test]
    fn feature_lists() {
        let edits = parse_features("none,extents,^dir_index").unwrap();
        assert_eq!(
            edits,
            [
                FeatureEdit::Clear,
                FeatureEdit::Set(Feature::Incompat(Incompat::EXTENT), true),
                FeatureEdit::Set(Feature::Compat(Compat::DIR_INDEX), false),
            ]
        );
        assert!(parse_features("extends").unwrap_err().to_string().contains("'extends'"));
        let options = Options { features: edits, ..Options::default() };
        assert!(options.asks_for(Feature::Incompat(Incompat::EXTENT)));
        assert!(!options.asks_for(Feature::Compat(Compat::DIR_INDEX)));
        assert!(!options.asks_for(Feature::Compat(Compat::HAS_JOURNAL)));
    }
}
