//! Where everything lies: what follows from the superblock and never changes while mounted.

use super::checksum::crc32c;
use super::features::{Compat, Features, Incompat, RoCompat};
use super::superblock::{Superblock, FLAG_UNSIGNED_HASH};
use crate::units::{BlockNr, GroupNr, InodeNr};

/// The file system's fixed shape. Cheap to copy; [`Superblock::decode`] has made sure that no
/// field is absurd (nothing here divides by zero or overflows).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes in a block.
    pub block_bytes: u32,
    /// Bytes in an inode.
    pub inode_bytes: u32,
    /// Bytes in a group descriptor.
    pub desc_bytes: u32,
    /// Blocks in a full group.
    pub blocks_per_group: u32,
    /// Clusters (bits of a block bitmap) in a full group.
    pub clusters_per_group: u32,
    /// Inodes in a group.
    pub inodes_per_group: u32,
    /// Groups.
    pub group_count: u32,
    /// 1 with 1 KiB blocks (the boot block comes before), else 0.
    pub first_data_block: BlockNr,
    /// Blocks of the file system, counted from block 0.
    pub blocks_count: u64,
    /// Inodes of the file system.
    pub inodes_count: u32,
    /// The first inode for ordinary files.
    pub first_inode: u32,
    /// Feature flags. Only those that change while mounted (needs_recovery, orphan_present, large_file, ...)
    /// may be out of date here; the superblock has them.
    pub features: Features,
    /// What metadata checksums start from.
    pub csum_seed: u32,
    /// The file system's UUID.
    pub uuid: [u8; 16],
    /// The directory hashes' seed.
    pub hash_seed: [u32; 4],
    /// Whether directory hashes take name bytes as unsigned.
    pub hash_unsigned: bool,
    /// Default hash for new directories: 0 legacy, 1 half-MD4, 2 TEA.
    pub hash_version: u8,
    /// `i_extra_isize` of new inodes; 0 with 128-byte inodes.
    pub want_extra_isize: u16,
    /// Blocks reserved behind the descriptors for more of them.
    pub reserved_gdt_blocks: u32,
    /// The first meta group that is laid out as meta_bg.
    pub first_meta_bg: u32,
    /// With sparse_super2: the groups that have a superblock copy.
    pub backup_bgs: [u32; 2],
    /// A flex group is 1 << this groups.
    pub log_groups_per_flex: u8,
}

impl Geometry {
    /// The shape that a checked superblock describes.
    pub fn new(superblock: &Superblock) -> Self {
        let inode_bytes = superblock.inode_bytes();
        let extra_max = (inode_bytes - 128) as u16;
        Self {
            block_bytes: superblock.block_bytes(),
            inode_bytes,
            desc_bytes: superblock.desc_bytes(),
            blocks_per_group: superblock.blocks_per_group,
            clusters_per_group: if superblock.features.ro_compat.contains(RoCompat::BIGALLOC) {
                superblock.clusters_per_group
            } else {
                superblock.blocks_per_group
            },
            inodes_per_group: superblock.inodes_per_group,
            group_count: superblock.group_count() as u32,
            first_data_block: BlockNr(superblock.first_data_block as u64),
            blocks_count: superblock.blocks_count,
            inodes_count: superblock.inodes_count,
            first_inode: superblock.first_inode(),
            features: superblock.features,
            csum_seed: superblock.csum_seed(),
            uuid: superblock.uuid,
            hash_seed: superblock.hash_seed,
            hash_unsigned: superblock.flags & FLAG_UNSIGNED_HASH != 0,
            hash_version: superblock.def_hash_version,
            // Without the feature extra_isize the kernel still gives new inodes what its own inode has.
            want_extra_isize: match superblock.want_extra_isize.max(superblock.min_extra_isize) {
                want if want > extra_max || want % 4 != 0 => extra_max.min(32),
                0 => extra_max.min(32),
                want => want,
            },
            reserved_gdt_blocks: superblock.reserved_gdt_blocks as u32,
            first_meta_bg: superblock.first_meta_bg,
            backup_bgs: superblock.backup_bgs,
            log_groups_per_flex: if superblock.features.incompat.contains(Incompat::FLEX_BG) {
                superblock.log_groups_per_flex
            } else {
                0
            },
        }
    }

    /// Whether metadata carries CRC-32C checksums (metadata_csum).
    pub fn has_csum(&self) -> bool {
        self.features.ro_compat.contains(RoCompat::METADATA_CSUM)
    }

    /// Whether descriptors carry CRC-16 checksums (gdt_csum, which metadata_csum replaces).
    pub fn has_gdt_csum(&self) -> bool {
        self.features.ro_compat.contains(RoCompat::GDT_CSUM) && !self.has_csum()
    }

    /// Whether groups can be lazily initialised: descriptors have a checksum and uninit flags.
    pub fn has_lazy_groups(&self) -> bool {
        self.features.ro_compat.intersects(RoCompat::GDT_CSUM | RoCompat::METADATA_CSUM)
    }

    /// Whether block numbers have more than 32 bits.
    pub fn is_64bit(&self) -> bool {
        self.features.incompat.contains(Incompat::BIT64)
    }

    /// log2 of the block size.
    pub fn block_bits(&self) -> u32 {
        self.block_bytes.trailing_zeros()
    }

    /// Group descriptors in a block.
    pub fn descs_per_block(&self) -> u32 {
        self.block_bytes / self.desc_bytes
    }

    /// Inodes in a block.
    pub fn inodes_per_block(&self) -> u32 {
        self.block_bytes / self.inode_bytes
    }

    /// Blocks in a group's inode table.
    pub fn inode_table_blocks(&self) -> u32 {
        self.inodes_per_group.div_ceil(self.inodes_per_block())
    }

    /// Blocks that hold group descriptors, one copy.
    pub fn desc_blocks(&self) -> u32 {
        self.group_count.div_ceil(self.descs_per_block())
    }

    /// 512-byte units in a block.
    pub fn sectors_per_block(&self) -> u32 {
        self.block_bytes / 512
    }

    /// Whether `nr` is a block of a group (not the boot block, not behind the end).
    pub fn holds_block(&self, nr: BlockNr) -> bool {
        nr >= self.first_data_block && nr.0 < self.blocks_count
    }

    /// Whether all of `count` blocks from `start` are blocks of groups.
    pub fn holds_blocks(&self, start: BlockNr, count: u64) -> bool {
        start >= self.first_data_block
            && start.0.checked_add(count).is_some_and(|end| end <= self.blocks_count)
    }

    /// Whether `nr` is an inode number of this file system.
    pub fn holds_inode(&self, nr: InodeNr) -> bool {
        nr.0 >= 1 && nr.0 <= self.inodes_count
    }

    /// Whether `nr` can be the inode of something in the tree: the root or an ordinary file.
    pub fn holds_file(&self, nr: InodeNr) -> bool {
        nr == InodeNr::ROOT || (nr.0 >= self.first_inode && nr.0 <= self.inodes_count)
    }

    /// The group of a block; the last or first group for blocks outside all groups.
    pub fn group_of(&self, nr: BlockNr) -> GroupNr {
        let index = nr.0.saturating_sub(self.first_data_block.0) / self.blocks_per_group as u64;
        GroupNr(index.min(self.group_count.saturating_sub(1) as u64) as u32)
    }

    /// A block's place in its group, in blocks.
    pub fn index_in_group(&self, nr: BlockNr) -> u32 {
        (nr.0.saturating_sub(self.first_data_block.0) % self.blocks_per_group as u64) as u32
    }

    /// The group of an inode, and its index there, from 0.
    pub fn group_of_inode(&self, nr: InodeNr) -> (GroupNr, u32) {
        let index = nr.0.saturating_sub(1);
        (GroupNr(index / self.inodes_per_group), index % self.inodes_per_group)
    }

    /// The inode at `index` of a group.
    pub fn inode_at(&self, group: GroupNr, index: u32) -> InodeNr {
        InodeNr(group.0.saturating_mul(self.inodes_per_group).saturating_add(index).saturating_add(1))
    }

    /// A group's first block.
    pub fn group_first_block(&self, group: GroupNr) -> BlockNr {
        self.first_data_block.plus(group.0 as u64 * self.blocks_per_group as u64)
    }

    /// Blocks in a group: fewer in the last.
    pub fn blocks_in_group(&self, group: GroupNr) -> u32 {
        let left = self.blocks_count.saturating_sub(self.group_first_block(group).0);
        left.min(self.blocks_per_group as u64) as u32
    }

    /// Whether a group starts with a superblock (copy), followed by descriptors unless meta_bg puts them elsewhere.
    pub fn group_has_super(&self, group: GroupNr) -> bool {
        let nr = group.0;
        if nr == 0 {
            return true;
        }
        if self.features.compat.contains(Compat::SPARSE_SUPER2) {
            return self.backup_bgs.contains(&nr);
        }
        if nr == 1 || !self.features.ro_compat.contains(RoCompat::SPARSE_SUPER) {
            return true;
        }
        [3, 5, 7].into_iter().any(|base| is_power_of(nr, base))
    }

    /// The groups that have a copy of the superblock, after group 0.
    pub fn backup_groups(&self) -> impl Iterator<Item = GroupNr> + '_ {
        (1..self.group_count).map(GroupNr).filter(|group| self.group_has_super(*group))
    }

    /// The first meta group in meta_bg layout, or none.
    fn first_meta_group(&self) -> u32 {
        if self.features.incompat.contains(Incompat::META_BG) {
            self.first_meta_bg
        } else {
            u32::MAX
        }
    }

    /// Whether a group belongs to a meta group whose descriptors lie in that meta group itself (meta_bg).
    pub fn has_meta_layout(&self, group: GroupNr) -> bool {
        group.0 / self.descs_per_block() >= self.first_meta_group()
    }

    /// Where a group's descriptor lies: its block, and its offset there in bytes.
    pub fn descriptor_place(&self, group: GroupNr) -> (BlockNr, usize) {
        let per_block = self.descs_per_block();
        let offset = (group.0 % per_block) as usize * self.desc_bytes as usize;
        (self.descriptor_block(group.0 / per_block), offset)
    }

    /// The first copy of the descriptor block `index` (the descriptors of one meta group).
    pub fn descriptor_block(&self, index: u32) -> BlockNr {
        // Only bigalloc has 1 KiB blocks with a first data block of 0: the superblock is then in block 1.
        let boot = u64::from(self.block_bytes == 1024 && self.first_data_block.0 == 0);
        if index < self.first_meta_group() {
            return self.first_data_block.plus(boot + 1 + index as u64);
        }
        let group = GroupNr(index.saturating_mul(self.descs_per_block()));
        let behind_super = u64::from(self.group_has_super(group));
        self.group_first_block(group).plus(behind_super + if group.0 == 0 { boot } else { 0 })
    }

    /// Blocks of descriptors that lie in this group (first copy or another).
    pub fn desc_blocks_in_group(&self, group: GroupNr) -> u32 {
        let per_block = self.descs_per_block();
        if !self.has_meta_layout(group) {
            if !self.group_has_super(group) {
                return 0;
            }
            return self.desc_blocks().min(self.first_meta_group());
        }
        let place = group.0 % per_block;
        u32::from(place == 0 || place == 1 || place == per_block - 1)
    }

    /// Blocks at a group's start that hold the superblock, descriptors, and the reserve for descriptors.
    pub fn base_meta_blocks(&self, group: GroupNr) -> u32 {
        let has_super = u32::from(self.group_has_super(group));
        let reserve =
            if has_super == 1 && !self.has_meta_layout(group) { self.reserved_gdt_blocks } else { 0 };
        has_super + self.desc_blocks_in_group(group) + reserve
    }

    /// Groups in a flex group; 1 without flex_bg.
    pub fn groups_per_flex(&self) -> u32 {
        1_u32.checked_shl(self.log_groups_per_flex as u32).unwrap_or(1)
    }

    /// What the checksums of an inode's own structures (itself, extent nodes, directory blocks) start from.
    pub fn inode_csum_seed(&self, nr: InodeNr, generation: u32) -> u32 {
        crc32c(crc32c(self.csum_seed, &nr.0.to_le_bytes()), &generation.to_le_bytes())
    }
}

fn is_power_of(nr: u32, base: u32) -> bool {
    let mut power = 1_u32;
    while power < nr {
        match power.checked_mul(base) {
            Some(next) => power = next,
            None => return false,
        }
    }
    power == nr
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry(change: impl FnOnce(&mut Superblock)) -> Geometry {
        let mut superblock = Superblock::new();
        superblock.rev_level = 1;
        superblock.log_block_size = 2;
        superblock.blocks_per_group = 32768;
        superblock.inodes_per_group = 8192;
        superblock.blocks_count = 32768 * 200 + 100;
        superblock.inodes_count = 8192 * 201;
        superblock.inode_size = 256;
        superblock.first_ino = 11;
        superblock.features.ro_compat |= RoCompat::SPARSE_SUPER;
        change(&mut superblock);
        Geometry::new(&Superblock::decode(&superblock.encode()).unwrap())
    }

    #[test]
    fn groups_and_their_blocks() {
        let g = geometry(|_| ());
        assert_eq!(g.group_count, 201);
        assert_eq!(g.blocks_in_group(GroupNr(200)), 100);
        assert_eq!(g.group_of(BlockNr(32768)), GroupNr(1));
        assert_eq!(g.group_of_inode(InodeNr(8193)), (GroupNr(1), 0));
        assert_eq!(g.inode_at(GroupNr(1), 0), InodeNr(8193));
        assert_eq!(g.want_extra_isize, 32);
        assert!(g.holds_blocks(BlockNr(0), g.blocks_count) && !g.holds_blocks(BlockNr(1), g.blocks_count));
        let g = geometry(|s| {
            s.log_block_size = 0;
            s.first_data_block = 1;
            s.blocks_per_group = 8192;
            s.blocks_count = 8192 * 2 + 1;
            s.inodes_count = 8192 * 2;
            s.inode_size = 128;
        });
        assert_eq!((g.group_count, g.want_extra_isize), (2, 0));
        assert_eq!(g.group_of(BlockNr(8192)), GroupNr(0));
        assert_eq!(g.group_of(BlockNr(8193)), GroupNr(1));
        assert_eq!(g.descriptor_place(GroupNr(33)), (BlockNr(3), 32));
        assert!(!g.holds_block(BlockNr(0)));
    }

    #[test]
    fn sparse_super_copies() {
        let g = geometry(|_| ());
        let groups: Vec<u32> = g.backup_groups().map(|group| group.0).collect();
        assert_eq!(groups, [1, 3, 5, 7, 9, 25, 27, 49, 81, 125]);
        let g = geometry(|s| s.features.ro_compat = RoCompat::empty());
        assert_eq!(g.backup_groups().count(), 200);
        let g = geometry(|s| {
            s.features.compat |= Compat::SPARSE_SUPER2;
            s.backup_bgs = [1, 200];
        });
        assert_eq!(g.backup_groups().collect::<Vec<_>>(), [GroupNr(1), GroupNr(200)]);
    }

    #[test]
    fn meta_bg_descriptors() {
        let g = geometry(|s| s.features.incompat |= Incompat::META_BG);
        assert_eq!(g.descriptor_place(GroupNr(127)), (BlockNr(1), 127 * 32));
        assert_eq!(g.descriptor_place(GroupNr(129)), (BlockNr(128 * 32768), 32));
        let with: Vec<u32> = (0..201).filter(|group| g.desc_blocks_in_group(GroupNr(*group)) == 1).collect();
        assert_eq!(with, [0, 1, 127, 128, 129]);
        assert_eq!(g.base_meta_blocks(GroupNr(3)), 1);
        let g = geometry(|s| s.reserved_gdt_blocks = 100);
        assert_eq!(g.base_meta_blocks(GroupNr(3)), 1 + 2 + 100);
        assert_eq!(g.base_meta_blocks(GroupNr(2)), 0);
    }
}
