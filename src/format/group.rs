//! Group descriptors: where a group's bitmaps and inode table lie, and what is free in it
//! (the kernel's `struct ext4_group_desc`).

use super::checksum::{crc16, crc32c};
use super::geometry::Geometry;
use super::wire;
use crate::error::{Error, Place, Result};
use crate::units::{BlockNr, GroupNr};
use bincode::{Decode, Encode};
use bitflags::bitflags;

bitflags! {
    /// `bg_flags`; they mean something only where descriptors have checksums.
    #[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
    pub struct GroupFlags: u16 {
        /// The inode bitmap has never been written: no inode is in use.
        const INODE_UNINIT = 1;
        /// The block bitmap has never been written: only the group's own metadata is in use.
        const BLOCK_UNINIT = 2;
        /// The unused part of the inode table is zero on the disk.
        const INODE_ZEROED = 4;
        const _ = !0;
    }
}

const CHECKSUM_AT: usize = 0x1e;

/// The first 32 bytes, which every descriptor has.
#[derive(Encode, Decode)]
struct Low {
    block_bitmap: u32,
    inode_bitmap: u32,
    inode_table: u32,
    free_blocks_count: u16,
    free_inodes_count: u16,
    used_dirs_count: u16,
    flags: u16,
    exclude_bitmap: u32,
    block_bitmap_csum: u16,
    inode_bitmap_csum: u16,
    itable_unused: u16,
    checksum: u16,
}

/// The second 32 bytes, with 64bit.
#[derive(Encode, Decode, Default)]
struct High {
    block_bitmap: u32,
    inode_bitmap: u32,
    inode_table: u32,
    free_blocks_count: u16,
    free_inodes_count: u16,
    used_dirs_count: u16,
    itable_unused: u16,
    exclude_bitmap: u32,
    block_bitmap_csum: u16,
    inode_bitmap_csum: u16,
    reserved: u32,
}

/// A group descriptor, its halves joined.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct GroupDescriptor {
    /// The block bitmap's block.
    pub block_bitmap: BlockNr,
    /// The inode bitmap's block.
    pub inode_bitmap: BlockNr,
    /// The inode table's first block.
    pub inode_table: BlockNr,
    /// Free blocks (clusters with bigalloc).
    pub free_blocks_count: u32,
    /// Free inodes.
    pub free_inodes_count: u32,
    /// Inodes that are directories.
    pub used_dirs_count: u32,
    /// Inodes at the table's end that have never been used; 0 where groups are never lazy.
    pub itable_unused: u32,
    /// Flags.
    pub flags: GroupFlags,
    /// The block bitmap's checksum, with metadata_csum; its low half only in 32-byte descriptors.
    pub block_bitmap_csum: u32,
    /// The inode bitmap's checksum, likewise.
    pub inode_bitmap_csum: u32,
    /// The snapshot bitmap of an unmerged feature; kept as found.
    pub exclude_bitmap: u64,
}

impl GroupDescriptor {
    /// Decodes the descriptor at the start of `bytes`, and checks its checksum and that what it
    /// points at lies in the file system.
    pub fn decode(bytes: &[u8], geometry: &Geometry, group: GroupNr) -> Result<Self> {
        let place = Place::Group(group);
        let bytes = bytes
            .get(..geometry.desc_bytes as usize)
            .ok_or_else(|| Error::corrupt("group descriptor", place, "it is cut short"))?;
        if let Some(computed) = checksum(bytes, geometry, group) {
            let stored = wire::get_u16(bytes, CHECKSUM_AT);
            if stored != computed {
                let why = format!("its checksum is {stored:#06x}, not {computed:#06x}");
                return Err(Error::corrupt("group descriptor", place, why));
            }
        }
        let low: Low = wire::decode("group descriptor", place, bytes)?;
        let high: High = match bytes.get(32..64) {
            Some(bytes) if geometry.is_64bit() => wire::decode("group descriptor", place, bytes)?,
            _ => High::default(),
        };
        let descriptor = Self::join(&low, &high, geometry);
        descriptor.verify(geometry, group)?;
        Ok(descriptor)
    }

    fn join(low: &Low, high: &High, geometry: &Geometry) -> Self {
        let long = |low: u32, high: u32| low as u64 | (high as u64) << 32;
        let short = |low: u16, high: u16| low as u32 | (high as u32) << 16;
        let lazy = geometry.has_lazy_groups();
        Self {
            block_bitmap: BlockNr(long(low.block_bitmap, high.block_bitmap)),
            inode_bitmap: BlockNr(long(low.inode_bitmap, high.inode_bitmap)),
            inode_table: BlockNr(long(low.inode_table, high.inode_table)),
            free_blocks_count: short(low.free_blocks_count, high.free_blocks_count),
            free_inodes_count: short(low.free_inodes_count, high.free_inodes_count),
            used_dirs_count: short(low.used_dirs_count, high.used_dirs_count),
            // Without a checksum these fields were never defined, so whatever they hold means nothing.
            itable_unused: if lazy { short(low.itable_unused, high.itable_unused) } else { 0 },
            flags: if lazy { GroupFlags::from_bits_retain(low.flags) } else { GroupFlags::empty() },
            block_bitmap_csum: short(low.block_bitmap_csum, high.block_bitmap_csum),
            inode_bitmap_csum: short(low.inode_bitmap_csum, high.inode_bitmap_csum),
            exclude_bitmap: long(low.exclude_bitmap, high.exclude_bitmap),
        }
    }

    fn verify(&self, geometry: &Geometry, group: GroupNr) -> Result<()> {
        let bad = |why: String| Err(Error::corrupt("group descriptor", Place::Group(group), why));
        for (what, nr, count) in [
            ("block bitmap", self.block_bitmap, 1),
            ("inode bitmap", self.inode_bitmap, 1),
            ("inode table", self.inode_table, geometry.inode_table_blocks()),
        ] {
            if !geometry.holds_blocks(nr, count as u64) {
                return bad(format!("its {what} at block {nr} is outside the file system"));
            }
        }
        if self.free_blocks_count > geometry.clusters_per_group {
            return bad(format!("it counts {} free blocks", self.free_blocks_count));
        }
        let inodes = geometry.inodes_per_group;
        if self.free_inodes_count > inodes || self.itable_unused > inodes || self.used_dirs_count > inodes {
            return bad(format!(
                "it counts {} free inodes, {} never used and {} directories of {inodes}",
                self.free_inodes_count, self.itable_unused, self.used_dirs_count
            ));
        }
        Ok(())
    }

    /// Encodes the descriptor at the start of `bytes`, sealed; bytes that it doesn't know keep their values.
    pub fn encode(&self, bytes: &mut [u8], geometry: &Geometry, group: GroupNr) -> Result<()> {
        let place = Place::Group(group);
        let bytes = bytes
            .get_mut(..geometry.desc_bytes as usize)
            .ok_or_else(|| Error::corrupt("group descriptor", place, "it is cut short"))?;
        let low = Low {
            block_bitmap: self.block_bitmap.0 as u32,
            inode_bitmap: self.inode_bitmap.0 as u32,
            inode_table: self.inode_table.0 as u32,
            free_blocks_count: self.free_blocks_count as u16,
            free_inodes_count: self.free_inodes_count as u16,
            used_dirs_count: self.used_dirs_count as u16,
            flags: self.flags.bits(),
            exclude_bitmap: self.exclude_bitmap as u32,
            block_bitmap_csum: self.block_bitmap_csum as u16,
            inode_bitmap_csum: self.inode_bitmap_csum as u16,
            itable_unused: self.itable_unused as u16,
            checksum: 0,
        };
        wire::encode(&low, "group descriptor", place, bytes)?;
        if let Some(bytes) = bytes.get_mut(32..64).filter(|_| geometry.is_64bit()) {
            let high = High {
                block_bitmap: (self.block_bitmap.0 >> 32) as u32,
                inode_bitmap: (self.inode_bitmap.0 >> 32) as u32,
                inode_table: (self.inode_table.0 >> 32) as u32,
                free_blocks_count: (self.free_blocks_count >> 16) as u16,
                free_inodes_count: (self.free_inodes_count >> 16) as u16,
                used_dirs_count: (self.used_dirs_count >> 16) as u16,
                itable_unused: (self.itable_unused >> 16) as u16,
                exclude_bitmap: (self.exclude_bitmap >> 32) as u32,
                block_bitmap_csum: (self.block_bitmap_csum >> 16) as u16,
                inode_bitmap_csum: (self.inode_bitmap_csum >> 16) as u16,
                reserved: wire::get_u32(bytes, 28),
            };
            wire::encode(&high, "group descriptor", place, bytes)?;
        }
        seal(bytes, geometry, group);
        Ok(())
    }
}

/// Puts the right checksum on a descriptor's bytes after a change of them, if descriptors have one here.
pub fn seal(bytes: &mut [u8], geometry: &Geometry, group: GroupNr) {
    if let Some(sum) = checksum(bytes, geometry, group) {
        wire::put(bytes, CHECKSUM_AT, &sum.to_le_bytes());
    }
}

/// The checksum of a descriptor's bytes, if descriptors have one here.
fn checksum(bytes: &[u8], geometry: &Geometry, group: GroupNr) -> Option<u16> {
    let before = bytes.get(..CHECKSUM_AT).unwrap_or_default();
    let behind = bytes.get(CHECKSUM_AT + 2..).unwrap_or_default();
    let group = group.0.to_le_bytes();
    if geometry.has_csum() {
        let seed = crc32c(geometry.csum_seed, &group);
        Some(crc32c(crc32c(crc32c(seed, before), &[0; 2]), behind) as u16)
    } else if geometry.has_gdt_csum() {
        let seed = crc16(crc16(!0, &geometry.uuid), &group);
        Some(crc16(crc16(seed, before), behind))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{Incompat, RoCompat, Superblock};

    fn geometry(ro_compat: RoCompat, desc_size: u16) -> Geometry {
        let mut superblock = Superblock::new();
        superblock.rev_level = 1;
        superblock.log_block_size = 2;
        superblock.blocks_per_group = 32768;
        superblock.inodes_per_group = 8192;
        superblock.blocks_count = 1 << 33;
        superblock.inodes_per_group = 512;
        superblock.inodes_count = 512 * (1 << 18);
        superblock.inode_size = 256;
        superblock.desc_size = desc_size;
        superblock.first_ino = 11;
        superblock.checksum_type = 1;
        superblock.features.ro_compat = ro_compat;
        superblock.features.incompat.set(Incompat::BIT64, desc_size > 32);
        Geometry::new(&Superblock::decode(&superblock.encode()).unwrap())
    }

    fn sample() -> GroupDescriptor {
        GroupDescriptor {
            block_bitmap: BlockNr(100),
            inode_bitmap: BlockNr(101),
            inode_table: BlockNr(102),
            free_blocks_count: 7,
            free_inodes_count: 5,
            used_dirs_count: 3,
            itable_unused: 2,
            flags: GroupFlags::INODE_ZEROED,
            block_bitmap_csum: 0x1234,
            inode_bitmap_csum: 0x5678,
            exclude_bitmap: 0,
        }
    }

    #[test]
    fn round_trips_in_every_size_and_finds_flipped_bits() {
        for ro_compat in [RoCompat::empty(), RoCompat::GDT_CSUM, RoCompat::METADATA_CSUM] {
            for size in [32, 64, 128] {
                let geometry = geometry(ro_compat, size);
                let mut descriptor = sample();
                if size > 32 {
                    descriptor.inode_table = BlockNr(0x1_0000_0001);
                    descriptor.block_bitmap_csum = 0xdead_beef;
                }
                if ro_compat.is_empty() {
                    descriptor.flags = GroupFlags::empty();
                    descriptor.itable_unused = 0;
                }
                let mut bytes = vec![0; size as usize];
                descriptor.encode(&mut bytes, &geometry, GroupNr(9)).unwrap();
                assert_eq!(GroupDescriptor::decode(&bytes, &geometry, GroupNr(9)).unwrap(), descriptor);
                for at in [0, 12, size as usize - 1] {
                    bytes[at] ^= 1;
                    let found = GroupDescriptor::decode(&bytes, &geometry, GroupNr(9)).is_err();
                    assert_eq!(found, !ro_compat.is_empty(), "{ro_compat:?} {size} {at}");
                    bytes[at] ^= 1;
                }
            }
        }
    }

    #[test]
    fn pointers_outside_are_refused() {
        let geometry = geometry(RoCompat::METADATA_CSUM, 64);
        let spoilt: &[fn(&mut GroupDescriptor)] = &[
            |d| d.block_bitmap = BlockNr(u64::MAX),
            |d| d.inode_bitmap = BlockNr(1 << 33),
            |d| d.inode_table = BlockNr((1 << 33) - 1),
            |d| d.free_blocks_count = 32769,
            |d| d.itable_unused = 513,
        ];
        for spoil in spoilt {
            let (mut descriptor, mut bytes) = (sample(), [0; 64]);
            spoil(&mut descriptor);
            descriptor.encode(&mut bytes, &geometry, GroupNr(0)).unwrap();
            assert!(GroupDescriptor::decode(&bytes, &geometry, GroupNr(0)).is_err());
        }
        assert!(GroupDescriptor::decode(&[0; 32], &geometry, GroupNr(0)).is_err());
    }
}
