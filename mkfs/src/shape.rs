//! The shape of a new file system: block size, groups, inodes and reserves, as the superblock will say.

use crate::features;
use crate::options::{Options, Profile};
use journalfs::format::checksum::{crc32c, START};
use journalfs::format::superblock::{CHECKSUM_CRC32C, FLAG_SIGNED_HASH, STATE_VALID};
use journalfs::format::{Compat, Geometry, Incompat, Superblock, Timestamp};
use journalfs::units::GroupNr;
use journalfs::{Error, Result};

const MIB: u64 = 1 << 20;
/// `i_extra_isize` of the 160 bytes that the format defines.
const EXTRA_ISIZE: u16 = 32;
/// The last group must have this many blocks to spare, or it is left out.
const LAST_GROUP_SPARE: u64 = 50;

/// A shape, before any block has its place.
#[derive(Debug)]
pub(crate) struct Shape {
    pub(crate) superblock: Superblock,
    pub(crate) geometry: Geometry,
    pub(crate) now: Timestamp,
    pub(crate) notes: Vec<String>,
}

fn usage<T>(text: impl Into<String>) -> Result<T> {
    Err(Error::Usage(text.into()))
}

/// Works out the shape for a device of `device_bytes`.
pub(crate) fn shape(device_bytes: u64, options: &Options) -> Result<Shape> {
    let bytes = options.size_bytes.unwrap_or(device_bytes);
    let block_bytes = block_bytes(bytes, options)?;
    let mut superblock = basics(block_bytes, options)?;
    let mut notes = Vec::new();
    let blocks = blocks_count(bytes, block_bytes, options, &mut superblock)?;
    let inodes = inodes_wanted(blocks, block_bytes, options)?;
    count_groups(&mut superblock, blocks, inodes, options)?;
    set_times_and_names(&mut superblock, options)?;
    if superblock.blocks_count < blocks {
        let left = blocks - superblock.blocks_count;
        notes.push(format!("{left} blocks at the end are too few for a group and stay unused"));
    }
    let reserved = options.reserved_percent.unwrap_or(5.0);
    if !(0.0..=50.0).contains(&reserved) {
        return usage(format!("{reserved} percent can't be reserved: 0 to 50 can"));
    }
    superblock.r_blocks_count = (reserved * superblock.blocks_count as f64 / 100.0) as u64;
    // The decoder's bounds are the format's; what it refuses must not be made.
    Superblock::decode(&superblock.encode()).map_err(|error| Error::Usage(error.to_string()))?;
    let geometry = Geometry::new(&superblock);
    let now = Timestamp::from_seconds(options.now.unwrap_or_else(|| Timestamp::now().seconds));
    Ok(Shape { superblock, geometry, now, notes })
}

/// What mke2fs.conf calls the size type, by the file system's size.
fn default_ratio(bytes: u64) -> u64 {
    match bytes / MIB {
        0..3 => 8192,
        3..512 => 4096,
        512..0x40_0000 => 16384,
        0x40_0000..0x100_0000 => 32768,
        _ => 65536,
    }
}

fn block_bytes(bytes: u64, options: &Options) -> Result<u32> {
    if let Some(block) = options.block_bytes {
        if !block.is_power_of_two() || !(1024..=65536).contains(&block) {
            return usage(format!("a block size of {block} is not a power of two from 1024 to 65536"));
        }
        return Ok(block);
    }
    // Below this, a log of 1024 blocks is too large a part of the device if its blocks have 4 KiB.
    let small = if options.profile == Profile::Journalfs { 64 * MIB } else { 512 * MIB };
    Ok(if bytes < small { 1024 } else { 4096 })
}

fn basics(block_bytes: u32, options: &Options) -> Result<Superblock> {
    let mut superblock = Superblock::new();
    superblock.features = features::resolve(options)?;
    superblock.rev_level = 1;
    superblock.log_block_size = block_bytes.trailing_zeros() - 10;
    superblock.log_cluster_size = superblock.log_block_size;
    superblock.first_data_block = u32::from(block_bytes == 1024);
    let inode = options.inode_bytes.unwrap_or(256);
    if !inode.is_power_of_two() || inode < 128 || inode > block_bytes {
        return usage(format!("an inode size of {inode} is not a power of two from 128 to the block size"));
    }
    superblock.inode_size = inode as u16;
    superblock.first_ino = 11;
    if inode > 128 {
        superblock.min_extra_isize = EXTRA_ISIZE;
        superblock.want_extra_isize = EXTRA_ISIZE;
    } else if superblock.features.incompat.contains(Incompat::INLINE_DATA) {
        return usage("inline_data needs inodes of 256 bytes or more");
    }
    superblock.errors = options.errors.unwrap_or(1);
    superblock.state = STATE_VALID;
    superblock.max_mnt_count = u16::MAX;
    superblock.def_hash_version = 1;
    superblock.flags = FLAG_SIGNED_HASH;
    superblock.default_mount_opts = 0x4 | 0x8;
    superblock.raid_stride = options.raid_stride;
    superblock.raid_stripe_width = options.raid_stripe_width;
    if superblock.features.incompat.contains(Incompat::BIT64) {
        superblock.desc_size = 64;
    }
    if superblock.has_csum() {
        superblock.checksum_type = CHECKSUM_CRC32C;
    }
    if superblock.features.incompat.contains(Incompat::MMP) {
        superblock.mmp_update_interval = options.mmp_update_interval.unwrap_or(5);
    }
    set_flex(&mut superblock, options)?;
    Ok(superblock)
}

fn set_flex(superblock: &mut Superblock, options: &Options) -> Result<()> {
    let flex = superblock.features.incompat.contains(Incompat::FLEX_BG);
    if !flex {
        if options.groups_per_flex.is_some() || options.packed_meta_blocks {
            return usage("a flex group size and packed_meta_blocks need flex_bg");
        }
        return Ok(());
    }
    let groups = options.groups_per_flex.unwrap_or(16);
    if !groups.is_power_of_two() {
        return usage(format!("a flex group of {groups} groups is not a power of two"));
    }
    superblock.log_groups_per_flex = groups.trailing_zeros() as u8;
    Ok(())
}

/// The blocks that fit, and the features that so many of them rule in or out.
fn blocks_count(bytes: u64, block_bytes: u32, options: &Options, superblock: &mut Superblock) -> Result<u64> {
    let mut blocks = bytes / block_bytes as u64;
    if options.size_bytes.is_none() && block_bytes < 4096 {
        // Whole pages: a loop device over the rest of a page would lose it.
        blocks -= blocks % (4096 / block_bytes as u64);
    }
    if blocks > u32::MAX as u64 {
        let needed = Incompat::BIT64 | Incompat::EXTENT;
        if !superblock.features.incompat.contains(needed) {
            return usage(format!(
                "{blocks} blocks need the features 64bit and extent, or larger blocks than {block_bytes} bytes"
            ));
        }
        // Its block pointers have 32 bits.
        superblock.features.compat.remove(Compat::RESIZE_INODE);
    }
    if blocks >= 1 << 48 {
        return usage(format!("{blocks} blocks are more than the format can count"));
    }
    Ok(blocks)
}

fn inodes_wanted(blocks: u64, block_bytes: u32, options: &Options) -> Result<u64> {
    if let Some(inodes) = options.inodes {
        if inodes > u32::MAX as u64 {
            return usage(format!("{inodes} inodes are more than the format can number"));
        }
        return Ok(inodes);
    }
    let bytes = blocks * block_bytes as u64;
    let ratio = options.bytes_per_inode.unwrap_or_else(|| default_ratio(bytes).max(block_bytes as u64));
    if !(1024..=64 * MIB).contains(&ratio) {
        return usage(format!("one inode for {ratio} bytes is outside 1024 to {}", 64 * MIB));
    }
    Ok((bytes / ratio).clamp(1, u32::MAX as u64))
}

/// Decides on groups and inodes per group: enough inodes, whole blocks of them, and a last group that
/// is large enough for its own tables.
fn count_groups(superblock: &mut Superblock, blocks: u64, inodes: u64, options: &Options) -> Result<()> {
    let block = superblock.block_bytes();
    let mut per_group = match options.blocks_per_group {
        Some(n) if n % 8 != 0 || n < 256 || n > (block * 8).min(65528) => {
            return usage(format!("groups of {n} blocks are not a multiple of 8 from 256 to {}", block * 8));
        }
        Some(n) => n,
        None => (block * 8).min(65528),
    };
    superblock.blocks_count = blocks;
    // Each round shortens the groups or drops the last one.
    for _ in 0..20_000 {
        superblock.blocks_per_group = per_group;
        superblock.clusters_per_group = per_group;
        let groups = superblock.group_count();
        if groups == 0 {
            return usage("the device is too small for a file system");
        }
        if inodes.div_ceil(groups) > block as u64 * 8 {
            if per_group < 264 {
                return usage(format!("{inodes} inodes are too many for {blocks} blocks"));
            }
            per_group -= 8;
            superblock.blocks_count = blocks;
            continue;
        }
        set_inodes_per_group(superblock, inodes, groups)?;
        reserve_descriptors(superblock, groups, options)?;
        set_backup_groups(superblock, groups, options)?;
        let Some(short) = last_group_too_short(superblock)? else { return Ok(()) };
        superblock.blocks_count -= short;
        if superblock.blocks_count <= superblock.first_data_block as u64 {
            return usage("the device is too small for a file system");
        }
    }
    usage(format!("no group size suits {inodes} inodes on {blocks} blocks"))
}

fn set_inodes_per_group(superblock: &mut Superblock, inodes: u64, groups: u64) -> Result<()> {
    let per_block = superblock.block_bytes() / superblock.inode_bytes();
    let mut wanted = (inodes.div_ceil(groups)).min((65536 - per_block) as u64).max(1);
    loop {
        let whole = wanted.div_ceil(per_block as u64) * per_block as u64;
        let per_group = whole.max(8) & !7;
        let total = per_group * groups;
        if total > u32::MAX as u64 {
            if wanted == 1 {
                return usage(format!("{groups} groups need more inodes than the format can number"));
            }
            // Counted down by blocks of inodes, since less than that changes nothing.
            wanted = wanted.saturating_sub(per_block as u64).max(1);
        } else if total < superblock.first_ino as u64 + 1 {
            wanted += 8;
        } else {
            superblock.inodes_per_group = per_group as u32;
            superblock.inodes_count = total as u32;
            superblock.free_inodes_count = total as u32;
            return Ok(());
        }
    }
}

/// Sets the blocks reserved for the descriptors of later groups: for growth to 1024 times the size, or as asked.
fn reserve_descriptors(superblock: &mut Superblock, groups: u64, options: &Options) -> Result<()> {
    let per_block = (superblock.block_bytes() / superblock.desc_bytes()) as u64;
    let desc_blocks = groups.div_ceil(per_block);
    superblock.reserved_gdt_blocks = 0;
    if superblock.features.compat.contains(Compat::RESIZE_INODE) {
        let limit = match options.resize_blocks {
            Some(blocks) if blocks <= superblock.blocks_count => {
                return usage(format!("resize={blocks} is not more than the file system has"));
            }
            Some(blocks) if blocks > u32::MAX as u64 => {
                return usage(format!("resize={blocks} is more than {}", u32::MAX));
            }
            Some(blocks) => blocks,
            None => superblock.blocks_count.saturating_mul(1024).min(u32::MAX as u64),
        };
        let later = (limit - superblock.first_data_block as u64).div_ceil(superblock.blocks_per_group as u64);
        let reserve = later.div_ceil(per_block).saturating_sub(desc_blocks);
        superblock.reserved_gdt_blocks = reserve.min(superblock.block_bytes() as u64 / 4) as u16;
    }
    let three_quarters = superblock.blocks_per_group as u64 * 3 / 4;
    let meta_bg = superblock.features.incompat.contains(Incompat::META_BG);
    if !meta_bg && superblock.reserved_gdt_blocks as u64 + desc_blocks > three_quarters {
        // Copies of all descriptors would fill the groups they are in.
        superblock.features.incompat |= Incompat::META_BG;
        superblock.features.compat.remove(Compat::RESIZE_INODE);
        superblock.reserved_gdt_blocks = 0;
    }
    Ok(())
}

fn set_backup_groups(superblock: &mut Superblock, groups: u64, options: &Options) -> Result<()> {
    if !superblock.features.compat.contains(Compat::SPARSE_SUPER2) {
        if options.backup_superblocks.is_some() {
            return usage("num_backup_sb needs sparse_super2");
        }
        return Ok(());
    }
    let last = (groups - 1) as u32;
    superblock.backup_bgs = match options.backup_superblocks.unwrap_or(2) {
        0 => [0, 0],
        1 => [1.min(last), 0],
        2 if last > 1 => [1, last],
        2 => [last, 0],
        n => return usage(format!("num_backup_sb={n} is not 0, 1 or 2")),
    };
    Ok(())
}

/// How many blocks the last group must be cut by because its own tables would leave (nearly) nothing of it.
fn last_group_too_short(superblock: &Superblock) -> Result<Option<u64>> {
    let geometry = Geometry::new(superblock);
    let tables = 2 + geometry.inode_table_blocks() as u64;
    let meta_bg = geometry.features.incompat.contains(Incompat::META_BG);
    let desc_blocks = if meta_bg { 1 } else { geometry.desc_blocks() as u64 };
    let with_super = 1 + desc_blocks + geometry.reserved_gdt_blocks as u64;
    if tables + with_super > geometry.blocks_per_group as u64 {
        return usage(format!(
            "{} inodes in a group of {} blocks are too many",
            geometry.inodes_per_group, geometry.blocks_per_group
        ));
    }
    let last = GroupNr(geometry.group_count.saturating_sub(1));
    let blocks = geometry.blocks_in_group(last) as u64;
    let overhead = tables + geometry.base_meta_blocks(last) as u64;
    if blocks == geometry.blocks_per_group as u64 {
        return Ok(None);
    }
    if last.0 == 0 && blocks < overhead {
        return usage("the device is too small for a file system");
    }
    Ok((last.0 > 0 && blocks < overhead + LAST_GROUP_SPARE).then_some(blocks))
}

fn set_times_and_names(superblock: &mut Superblock, options: &Options) -> Result<()> {
    let now = options.now.unwrap_or_else(|| Timestamp::now().seconds).max(0) as u64;
    superblock.mkfs_time = now;
    superblock.wtime = now;
    superblock.lastcheck = now;
    let label = options.label.as_bytes();
    match superblock.volume_name.get_mut(..label.len()) {
        Some(to) => to.copy_from_slice(label),
        None => return usage(format!("the label '{}' is longer than 16 bytes", options.label)),
    }
    superblock.uuid = options.uuid.unwrap_or_else(|| *uuid::Uuid::new_v4().as_bytes());
    let seed = options.hash_seed.unwrap_or_else(|| *uuid::Uuid::new_v4().as_bytes());
    for (word, bytes) in superblock.hash_seed.iter_mut().zip(seed.chunks_exact(4)) {
        *word = bytes.try_into().map_or(0, u32::from_le_bytes);
    }
    if superblock.features.incompat.contains(Incompat::METADATA_CSUM_SEED) {
        superblock.checksum_seed = crc32c(START, &superblock.uuid);
    }
    Ok(())
}
