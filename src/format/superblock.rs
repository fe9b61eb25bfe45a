//! The superblock: 1024 bytes at byte 1024 of the file system, with copies in some groups
//! (the kernel's `struct ext4_super_block`).

use super::checksum::{crc32c, START};
use super::features::{Compat, Features, Incompat, RoCompat};
use super::wire::{self, Field};
use crate::error::{Error, Place, Result};

/// Where the first superblock lies, in bytes from the file system's start.
pub const SUPERBLOCK_OFFSET: u64 = 1024;
/// A superblock's bytes.
pub const SUPERBLOCK_BYTES: usize = 1024;
/// `s_magic`.
pub const MAGIC: u16 = 0xef53;
/// `s_state`: unmounted cleanly (for a journaled file system: it always is).
pub const STATE_VALID: u16 = 1;
/// `s_state`: errors were found.
pub const STATE_ERROR: u16 = 2;
/// `s_state`: orphans are being recovered.
pub const STATE_ORPHANS: u16 = 4;
/// `s_state`: a fast-commit replay is under way.
pub const STATE_FC_REPLAY: u16 = 0x20;
/// `s_flags`: directory hashes take name bytes as signed.
pub const FLAG_SIGNED_HASH: u32 = 1;
/// `s_flags`: directory hashes take name bytes as unsigned.
pub const FLAG_UNSIGNED_HASH: u32 = 2;
/// `s_checksum_type`: the only one there is.
pub const CHECKSUM_CRC32C: u8 = 1;

const CHECKSUM_AT: usize = 0x3fc;

/// `s_snapshot_id`: of a feature that was never merged, and read by nobody while `s_snapshot_inum` is 0.
const FREE_WORD_AT: usize = 0x184;

/// The little-endian word that, in place of zero at `bytes_to_end` bytes before the end of what is checksummed, changes the
/// CRC-32C by `difference`. The CRC is linear and each step can be undone, so: run it backwards over that many bytes.
fn word_that_changes_crc_by(difference: u32, bytes_to_end: usize) -> u32 {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    (0..bytes_to_end * 8).fold(difference, |state, _| {
        if state & 0x8000_0000 == 0 {
            state << 1
        } else {
            (state ^ POLYNOMIAL) << 1 | 1
        }
    })
}

macro_rules! superblock {
    (
        plain { $( $(#[$doc:meta])* $name:ident: $type:ty = $at:literal; )* }
        wide { $( $(#[$wdoc:meta])* $wname:ident: $lotype:ty = $lo:literal, $hitype:ty = $hi:literal; )* }
    ) => {
        /// The superblock's fields, with halves that lie apart joined. Fields are named as the kernel
        /// names them, without the `s_`. Bytes that have no field here keep their values.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Superblock {
            bytes: [u8; SUPERBLOCK_BYTES],
            /// The three feature sets.
            pub features: Features,
            $( $(#[$doc])* pub $name: $type, )*
            $( $(#[$wdoc])* pub $wname: u64, )*
        }

        impl Superblock {
            fn from_bytes(bytes: [u8; SUPERBLOCK_BYTES]) -> Self {
                let word = |at| wire::get_u32(&bytes, at);
                Self {
                    features: Features {
                        compat: Compat::from_bits_retain(word(0x5c)),
                        incompat: Incompat::from_bits_retain(word(0x60)),
                        ro_compat: RoCompat::from_bits_retain(word(0x64)),
                    },
                    $( $name: Field::get(&bytes, $at), )*
                    $( $wname: {
                        let low: $lotype = Field::get(&bytes, $lo);
                        let high: $hitype = Field::get(&bytes, $hi);
                        low as u64 | (high as u64) << <$lotype>::BITS
                    }, )*
                    bytes,
                }
            }

            fn to_bytes(&self) -> [u8; SUPERBLOCK_BYTES] {
                let mut bytes = self.bytes;
                self.features.compat.bits().put(&mut bytes, 0x5c);
                self.features.incompat.bits().put(&mut bytes, 0x60);
                self.features.ro_compat.bits().put(&mut bytes, 0x64);
                $( self.$name.put(&mut bytes, $at); )*
                $(
                    (self.$wname as $lotype).put(&mut bytes, $lo);
                    ((self.$wname >> <$lotype>::BITS) as $hitype).put(&mut bytes, $hi);
                )*
                bytes
            }
        }
    };
}

superblock! {
    plain {
        /// Inodes in all groups.
        inodes_count: u32 = 0x00;
        /// Free inodes; brought up to date at unmount only.
        free_inodes_count: u32 = 0x10;
        /// 1 with 1 KiB blocks, else 0.
        first_data_block: u32 = 0x14;
        /// Block size is 1024 << this.
        log_block_size: u32 = 0x18;
        /// Cluster size is 1024 << this; the block size's without bigalloc.
        log_cluster_size: u32 = 0x1c;
        /// Blocks in a group.
        blocks_per_group: u32 = 0x20;
        /// Clusters in a group.
        clusters_per_group: u32 = 0x24;
        /// Inodes in a group.
        inodes_per_group: u32 = 0x28;
        /// Mounts since the last check.
        mnt_count: u16 = 0x34;
        /// A check is due after this many mounts (negative: never).
        max_mnt_count: u16 = 0x36;
        /// `0xef53`.
        magic: u16 = 0x38;
        /// `STATE_` flags.
        state: u16 = 0x3a;
        /// On errors: 1 continue, 2 remount read-only, 3 panic.
        errors: u16 = 0x3c;
        /// Minor revision.
        minor_rev_level: u16 = 0x3e;
        /// Seconds between checks.
        checkinterval: u32 = 0x44;
        /// 0: Linux.
        creator_os: u32 = 0x48;
        /// 0: no feature flags and 128-byte inodes; 1 otherwise.
        rev_level: u32 = 0x4c;
        /// Who may use reserved blocks.
        def_resuid: u16 = 0x50;
        /// Which group may use reserved blocks.
        def_resgid: u16 = 0x52;
        /// First inode for ordinary files; see [`Superblock::first_inode`].
        first_ino: u32 = 0x54;
        /// Bytes in an inode; see [`Superblock::inode_bytes`].
        inode_size: u16 = 0x58;
        /// The group that this copy lies in.
        block_group_nr: u16 = 0x5a;
        /// The file system's UUID.
        uuid: [u8; 16] = 0x68;
        /// The label, NUL-padded.
        volume_name: [u8; 16] = 0x78;
        /// Where it was last mounted, NUL-padded.
        last_mounted: [u8; 64] = 0x88;
        /// Reserved blocks for descriptors of later groups.
        reserved_gdt_blocks: u16 = 0xce;
        /// UUID of an external journal.
        journal_uuid: [u8; 16] = 0xd0;
        /// The journal's inode.
        journal_inum: u32 = 0xe0;
        /// Device number of an external journal.
        journal_dev: u32 = 0xe4;
        /// Head of the list of inodes to delete or truncate.
        last_orphan: u32 = 0xe8;
        /// The directory hashes' seed.
        hash_seed: [u32; 4] = 0xec;
        /// Default hash for new directories: 0 legacy, 1 half-MD4, 2 TEA.
        def_hash_version: u8 = 0xfc;
        /// 1: `jnl_blocks` copies the journal inode.
        jnl_backup_type: u8 = 0xfd;
        /// Bytes in a descriptor with 64bit.
        desc_size: u16 = 0xfe;
        /// Default mount options.
        default_mount_opts: u32 = 0x100;
        /// First meta group with meta_bg.
        first_meta_bg: u32 = 0x104;
        /// `i_block` of the journal inode, then its size, high word first.
        jnl_blocks: [u32; 17] = 0x10c;
        /// Every inode has at least this many extra bytes.
        min_extra_isize: u16 = 0x15c;
        /// New inodes get this many extra bytes.
        want_extra_isize: u16 = 0x15e;
        /// `FLAG_` flags.
        flags: u32 = 0x160;
        /// RAID stride, in blocks.
        raid_stride: u16 = 0x164;
        /// Seconds between the checks of multi-mount protection.
        mmp_update_interval: u16 = 0x166;
        /// The block of multi-mount protection.
        mmp_block: u64 = 0x168;
        /// RAID stripe width, in blocks.
        raid_stripe_width: u32 = 0x170;
        /// A flex group is 1 << this groups.
        log_groups_per_flex: u8 = 0x174;
        /// 1: CRC-32C.
        checksum_type: u8 = 0x175;
        /// KiB written in the file system's life.
        kbytes_written: u64 = 0x178;
        /// Errors seen.
        error_count: u32 = 0x194;
        /// Inode of the first error.
        first_error_ino: u32 = 0x19c;
        /// Block of the first error.
        first_error_block: u64 = 0x1a0;
        /// Function of the first error.
        first_error_func: [u8; 32] = 0x1a8;
        /// Line of the first error.
        first_error_line: u32 = 0x1c8;
        /// Inode of the last error.
        last_error_ino: u32 = 0x1d0;
        /// Line of the last error.
        last_error_line: u32 = 0x1d4;
        /// Block of the last error.
        last_error_block: u64 = 0x1d8;
        /// Function of the last error.
        last_error_func: [u8; 32] = 0x1e0;
        /// Default mount options as text.
        mount_opts: [u8; 64] = 0x200;
        /// User quota inode.
        usr_quota_inum: u32 = 0x240;
        /// Group quota inode.
        grp_quota_inum: u32 = 0x244;
        /// Clusters of overhead, 0: to be computed.
        overhead_clusters: u32 = 0x248;
        /// Groups with a superblock copy with sparse_super2.
        backup_bgs: [u32; 2] = 0x24c;
        /// lost+found's inode.
        lpf_ino: u32 = 0x268;
        /// Project quota inode.
        prj_quota_inum: u32 = 0x26c;
        /// Checksum seed with metadata_csum_seed; see [`Superblock::csum_seed`].
        checksum_seed: u32 = 0x270;
        /// errno of the first error, in the kernel's own numbering.
        first_error_errcode: u8 = 0x27a;
        /// errno of the last error, in the kernel's own numbering.
        last_error_errcode: u8 = 0x27b;
        /// Inode of the orphan file.
        orphan_file_inum: u32 = 0x280;
    }
    wide {
        /// Blocks of the file system.
        blocks_count: u32 = 0x04, u32 = 0x150;
        /// Blocks that only root may use.
        r_blocks_count: u32 = 0x08, u32 = 0x154;
        /// Free blocks; brought up to date at unmount only.
        free_blocks_count: u32 = 0x0c, u32 = 0x158;
        /// When it was last mounted, in seconds from 1970, as all times here.
        mtime: u32 = 0x2c, u8 = 0x275;
        /// When it was last written.
        wtime: u32 = 0x30, u8 = 0x274;
        /// When it was last checked.
        lastcheck: u32 = 0x40, u8 = 0x277;
        /// When it was made.
        mkfs_time: u32 = 0x108, u8 = 0x276;
        /// When the first error was seen.
        first_error_time: u32 = 0x198, u8 = 0x278;
        /// When the last error was seen.
        last_error_time: u32 = 0x1cc, u8 = 0x279;
    }
}

impl Superblock {
    /// An empty superblock, for mkfs to fill.
    pub fn new() -> Self {
        Self { magic: MAGIC, ..Self::from_bytes([0; SUPERBLOCK_BYTES]) }
    }

    /// Decodes and checks a superblock; `bytes` starts with it.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let bytes: &[u8; SUPERBLOCK_BYTES] = bytes.first_chunk().ok_or_else(|| bad("it is cut short"))?;
        let superblock = Self::from_bytes(*bytes);
        if superblock.magic != MAGIC {
            return Err(bad(format!("its magic number is {:#x}, not {MAGIC:#x}", superblock.magic)));
        }
        // A journal device has no groups, so its other fields make no sense as a file system's.
        if superblock.features.incompat.contains(Incompat::JOURNAL_DEV) {
            return Err(Error::Unsupported(
                "the device has feature journal_dev: it is a journal for another device's file system".into(),
            ));
        }
        superblock.verify_checksum()?;
        superblock.verify_sizes()?;
        superblock.verify_counts()?;
        Ok(superblock)
    }

    /// The 1024 bytes, sealed with the checksum if metadata_csum is on.
    ///
    /// The record is two sectors long and its checksum is at the end of the second, so writing it in place could be
    /// torn into something that nobody accepts. Nearly every change is to the first sector. Then the old checksum is
    /// kept, by choosing four bytes of the first sector that mean nothing (`s_snapshot_id`): only one sector changes.
    pub fn encode(&self) -> [u8; SUPERBLOCK_BYTES] {
        let mut bytes = self.to_bytes();
        if !self.has_csum() {
            return bytes;
        }
        let old: u32 = Field::get(&self.bytes, CHECKSUM_AT);
        let second_sector_stays = bytes[512..] == self.bytes[512..];
        if second_sector_stays && checksum(&self.bytes) == old {
            0u32.put(&mut bytes, FREE_WORD_AT);
            let difference = checksum(&bytes) ^ old;
            word_that_changes_crc_by(difference, CHECKSUM_AT - FREE_WORD_AT).put(&mut bytes, FREE_WORD_AT);
            debug_assert_eq!(checksum(&bytes), old);
        } else {
            checksum(&bytes).put(&mut bytes, CHECKSUM_AT);
        }
        bytes
    }

    /// Whether metadata_csum is on.
    pub fn has_csum(&self) -> bool {
        self.features.ro_compat.contains(RoCompat::METADATA_CSUM)
    }

    /// Bytes in a block.
    pub fn block_bytes(&self) -> u32 {
        1024_u32.checked_shl(self.log_block_size).unwrap_or(0)
    }

    /// Bytes in an inode.
    pub fn inode_bytes(&self) -> u32 {
        if self.rev_level == 0 {
            128
        } else {
            self.inode_size as u32
        }
    }

    /// The first inode for ordinary files.
    pub fn first_inode(&self) -> u32 {
        if self.rev_level == 0 {
            11
        } else {
            self.first_ino
        }
    }

    /// Bytes in a group descriptor.
    pub fn desc_bytes(&self) -> u32 {
        if self.features.incompat.contains(Incompat::BIT64) {
            self.desc_size as u32
        } else {
            32
        }
    }

    /// Block groups. 0 only for superblocks that [`decode`](Self::decode) refuses.
    pub fn group_count(&self) -> u64 {
        match self.blocks_per_group {
            0 => 0,
            per_group => {
                self.blocks_count.saturating_sub(self.first_data_block as u64).div_ceil(per_group as u64)
            }
        }
    }

    /// What metadata checksums start from.
    pub fn csum_seed(&self) -> u32 {
        if self.features.incompat.contains(Incompat::METADATA_CSUM_SEED) {
            self.checksum_seed
        } else {
            crc32c(START, &self.uuid)
        }
    }

    /// The label as text, without its padding.
    pub fn label(&self) -> String {
        let end = self.volume_name.iter().position(|&byte| byte == 0).unwrap_or(self.volume_name.len());
        String::from_utf8_lossy(self.volume_name.get(..end).unwrap_or_default()).into_owned()
    }

    fn verify_checksum(&self) -> Result<()> {
        if !self.has_csum() {
            return Ok(());
        }
        if self.checksum_type != CHECKSUM_CRC32C {
            return Err(bad(format!("its checksum type {} is unknown", self.checksum_type)));
        }
        let (stored, computed) = (wire::get_u32(&self.bytes, CHECKSUM_AT), checksum(&self.bytes));
        if stored != computed {
            return Err(bad(format!("its checksum is {stored:#010x}, not {computed:#010x}")));
        }
        Ok(())
    }

    fn verify_sizes(&self) -> Result<()> {
        if self.rev_level > 1 {
            return Err(Error::Unsupported(format!("revision {} is not supported", self.rev_level)));
        }
        if self.log_block_size > 6 {
            return Err(bad(format!("its block size is 1024 << {}", self.log_block_size)));
        }
        let block = self.block_bytes();
        let bigalloc = self.features.ro_compat.contains(RoCompat::BIGALLOC);
        if bigalloc && !(self.log_block_size..=self.log_block_size + 15).contains(&self.log_cluster_size) {
            return Err(bad(format!("its cluster size is 1024 << {}", self.log_cluster_size)));
        }
        let inode = self.inode_bytes();
        if inode < 128 || inode > block || !inode.is_power_of_two() {
            return Err(bad(format!("its inode size is {inode}")));
        }
        let desc = self.desc_bytes();
        let desc_min = if self.features.incompat.contains(Incompat::BIT64) { 64 } else { 32 };
        if desc < desc_min || desc > block.min(1024) || !desc.is_power_of_two() {
            return Err(bad(format!("its descriptor size is {desc}")));
        }
        if self.first_inode() < 11 {
            return Err(bad(format!("its first inode is {}", self.first_ino)));
        }
        if self.log_groups_per_flex > 31 {
            return Err(bad(format!("its flex group is 1 << {} groups", self.log_groups_per_flex)));
        }
        Ok(())
    }

    fn verify_counts(&self) -> Result<()> {
        let block = self.block_bytes();
        let bits = block * 8;
        let bigalloc = self.features.ro_compat.contains(RoCompat::BIGALLOC);
        let first = u32::from(block == 1024);
        if self.first_data_block != first && !(bigalloc && self.first_data_block == 0) {
            return Err(bad(format!("its first data block is {}", self.first_data_block)));
        }
        let ratio = if bigalloc { 1_u64 << (self.log_cluster_size - self.log_block_size) } else { 1 };
        let clusters = self.blocks_per_group as u64 / ratio;
        if clusters == 0 || clusters > bits as u64 || self.blocks_per_group % 8 != 0 {
            return Err(bad(format!("its groups have {} blocks", self.blocks_per_group)));
        }
        if bigalloc && clusters != self.clusters_per_group as u64 {
            return Err(bad(format!("its groups have {} clusters", self.clusters_per_group)));
        }
        let inodes_per_block = block / self.inode_bytes();
        if self.inodes_per_group < inodes_per_block || self.inodes_per_group > bits {
            return Err(bad(format!("its groups have {} inodes", self.inodes_per_group)));
        }
        let blocks = self.blocks_count;
        if blocks <= self.first_data_block as u64 || blocks > 1 << 48 {
            return Err(bad(format!("it counts {blocks} blocks")));
        }
        let groups = self.group_count();
        if groups > u32::MAX as u64 / 2 || groups * self.inodes_per_group as u64 != self.inodes_count as u64 {
            return Err(bad(format!(
                "{} inodes do not make {groups} groups of {}",
                self.inodes_count, self.inodes_per_group
            )));
        }
        // Overfull counters are wrong but harmless (they are recounted); a reserve beyond the device is not.
        if self.r_blocks_count > blocks {
            return Err(bad(format!("it reserves {} of {blocks} blocks", self.r_blocks_count)));
        }
        if self.reserved_gdt_blocks as u32 > block / 4 {
            return Err(bad(format!("it reserves {} descriptor blocks", self.reserved_gdt_blocks)));
        }
        let table = (self.inodes_per_group as u64 * self.inode_bytes() as u64).div_ceil(block as u64);
        if table >= self.blocks_per_group as u64 && !self.features.incompat.contains(Incompat::FLEX_BG) {
            return Err(bad("its inode tables don't fit into its groups"));
        }
        Ok(())
    }
}

impl Default for Superblock {
    fn default() -> Self {
        Self::new()
    }
}

fn bad(why: impl Into<String>) -> Error {
    Error::corrupt("superblock", Place::FileSystem, why)
}

/// Puts the right checksum on a superblock's bytes after a change of them, if their features ask for one.
pub fn seal(bytes: &mut [u8; SUPERBLOCK_BYTES]) {
    if Superblock::from_bytes(*bytes).has_csum() {
        checksum(bytes).put(bytes, CHECKSUM_AT);
    }
}

fn checksum(bytes: &[u8; SUPERBLOCK_BYTES]) -> u32 {
    crc32c(START, bytes.get(..CHECKSUM_AT).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::features::Feature;

    fn small() -> Superblock {
        let mut superblock = Superblock::new();
        superblock.rev_level = 1;
        superblock.inodes_count = 2048;
        superblock.blocks_count = 8192;
        superblock.free_blocks_count = 8000;
        superblock.log_block_size = 2;
        superblock.log_cluster_size = 2;
        superblock.blocks_per_group = 32768;
        superblock.clusters_per_group = 32768;
        superblock.inodes_per_group = 2048;
        superblock.inode_size = 256;
        superblock.first_ino = 11;
        superblock.checksum_type = CHECKSUM_CRC32C;
        superblock.features.ro_compat |= RoCompat::METADATA_CSUM;
        superblock.uuid = *b"0123456789abcdef";
        superblock
    }

    #[test]
    fn a_change_in_the_first_sector_leaves_the_second_alone() {
        let mut made = Superblock::new();
        made.features.ro_compat |= RoCompat::METADATA_CSUM;
        made.log_block_size = 2;
        let old = made.encode();
        for i in 0..200u32 {
            let mut superblock = Superblock::from_bytes(old);
            superblock.free_inodes_count = i.wrapping_mul(0x9e37_79b9);
            superblock.features.incompat |= Incompat::NEEDS_RECOVERY;
            let new = superblock.encode();
            assert_eq!(new[512..], old[512..]);
            assert_ne!(new[..512], old[..512]);
            assert_eq!(checksum(&new), wire::get_u32(&new, CHECKSUM_AT));
            // Again from there.
            let mut superblock = Superblock::from_bytes(new);
            superblock.last_orphan = i;
            let third = superblock.encode();
            assert_eq!(checksum(&third), wire::get_u32(&third, CHECKSUM_AT));
        }
        let mut superblock = Superblock::from_bytes(old);
        superblock.checksum_seed = 7;
        let new = superblock.encode();
        assert_eq!(checksum(&new), wire::get_u32(&new, CHECKSUM_AT), "a change in the second sector");
    }

    #[test]
    fn round_trip_keeps_unknown_bytes() {
        let mut superblock = small();
        superblock.bytes[0x300] = 77;
        superblock.wtime = 0x5_1234_5678;
        superblock.r_blocks_count = 7;
        let bytes = superblock.encode();
        assert_eq!(bytes[0x300], 77);
        assert_eq!((bytes[0x30], bytes[0x274]), (0x78, 5));
        let again = Superblock::decode(&bytes).unwrap();
        assert_eq!(again.wtime, superblock.wtime);
        assert_eq!(again.encode(), bytes);
    }

    #[test]
    fn a_flipped_bit_is_found() {
        let mut bytes = small().encode();
        bytes[0x88] ^= 1;
        assert!(Superblock::decode(&bytes).unwrap_err().to_string().contains("checksum"));
    }

    #[test]
    fn hostile_values_are_refused() {
        let hostile: &[fn(&mut Superblock)] = &[
            |s| s.magic = 0,
            |s| s.log_block_size = 7,
            |s| s.log_block_size = u32::MAX,
            |s| s.blocks_per_group = 0,
            |s| s.blocks_per_group = 40000,
            |s| s.blocks_per_group = 32767,
            |s| s.inodes_per_group = 0,
            |s| s.inodes_per_group = 40000,
            |s| s.inodes_count = 2047,
            |s| s.inode_size = 0,
            |s| s.inode_size = 300,
            |s| s.inode_size = 8192,
            |s| s.blocks_count = 0,
            |s| s.blocks_count = u64::MAX,
            |s| s.first_data_block = 1,
            |s| s.first_data_block = 9000,
            |s| s.r_blocks_count = 9000,
            |s| s.features.set(Feature::Incompat(Incompat::BIT64), true),
            |s| s.reserved_gdt_blocks = 2000,
            |s| s.first_ino = 0,
            |s| s.rev_level = 9,
            |s| s.checksum_type = 2,
            |s| s.log_groups_per_flex = 200,
            |s| {
                s.features.ro_compat |= RoCompat::BIGALLOC;
                s.log_cluster_size = 77;
            },
        ];
        assert!(Superblock::decode(&small().encode()).is_ok());
        for (i, spoil) in hostile.iter().enumerate() {
            let mut superblock = small();
            spoil(&mut superblock);
            assert!(Superblock::decode(&superblock.encode()).is_err(), "hostile value {i} was accepted");
        }
        assert!(Superblock::decode(&[0; 100]).is_err());
    }
}
