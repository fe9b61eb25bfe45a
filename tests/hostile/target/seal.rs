//! Puts the right checksums on what a patch has changed; otherwise they would keep a fuzzer out of everything behind them.
//! Follows the image as it is, whatever it says, as far as the bounds go.

use journalfs::device::memory::MemoryDevice;
use journalfs::device::Device;
use journalfs::format::{bitmap, dirent, extent, group, htree, inode, orphan_file, superblock, xattr};
use journalfs::format::{Compat, Geometry, InodeFlags, RawInode, Superblock};
use journalfs::units::{BlockNr, GroupNr, InodeNr};
use journalfs::Place;

const GROUPS_MAX: u32 = 16;
const INODES_MAX: u32 = 64;
const BLOCKS_MAX: u32 = 600;

struct Seal<'a> {
    device: &'a MemoryDevice,
    geometry: Geometry,
    /// Blocks that may still be looked at.
    left: u32,
}

/// Seals all that can be found.
pub(crate) fn seal(device: &MemoryDevice) {
    let mut bytes = [0; superblock::SUPERBLOCK_BYTES];
    device.read_at(superblock::SUPERBLOCK_OFFSET, &mut bytes).unwrap();
    superblock::seal(&mut bytes);
    device.write_at(superblock::SUPERBLOCK_OFFSET, &bytes).unwrap();
    let Ok(sb) = Superblock::decode(&bytes) else { return };
    let geometry = Geometry::new(&sb);
    if !geometry.has_csum() && !geometry.has_gdt_csum() {
        return;
    }
    let mut seal = Seal { device, geometry, left: BLOCKS_MAX };
    for group in 0..geometry.group_count.min(GROUPS_MAX) {
        seal.group(GroupNr(group));
    }
    if sb.features.compat.contains(Compat::ORPHAN_FILE) {
        seal.orphan_file(InodeNr(sb.orphan_file_inum));
    }
}

fn field(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 4).map_or(0, |word| u32::from_le_bytes(word.try_into().unwrap()).into())
}

impl Seal<'_> {
    /// A block, if it is on the device and the bounds allow it.
    fn block(&mut self, nr: u64) -> Option<Vec<u8>> {
        self.left = self.left.checked_sub(1)?;
        let mut block = vec![0; self.geometry.block_bytes as usize];
        self.device.read_at(nr.checked_mul(block.len() as u64)?, &mut block).ok()?;
        Some(block)
    }

    fn put(&self, nr: u64, block: &[u8]) {
        self.device.write_at(nr * u64::from(self.geometry.block_bytes), block).unwrap();
    }

    fn group(&mut self, nr: GroupNr) {
        let (at, offset) = self.geometry.descriptor_place(nr);
        let end = offset + self.geometry.desc_bytes as usize;
        let Some(mut block) = self.block(at.0) else { return };
        let descriptor = &mut block[offset..end];
        let wide = |low: usize, high: usize, descriptor: &[u8], wide: bool| {
            field(descriptor, low) | if wide { field(descriptor, high) << 32 } else { 0 }
        };
        let is_wide = self.geometry.is_64bit();
        let bitmaps = [wide(0, 0x20, descriptor, is_wide), wide(4, 0x24, descriptor, is_wide)];
        let table = wide(8, 0x28, descriptor, is_wide);
        if self.geometry.has_csum() {
            for (which, bitmap_nr) in bitmaps.into_iter().enumerate() {
                let Some(bits) = self.block(bitmap_nr) else { continue };
                let sum = if which == 0 {
                    bitmap::block_csum(&bits, &self.geometry)
                } else {
                    bitmap::inode_csum(&bits, &self.geometry)
                };
                let (low, high) = ([0x18, 0x1a][which], [0x38, 0x3a][which]);
                descriptor[low..low + 2].copy_from_slice(&(sum as u16).to_le_bytes());
                if is_wide {
                    descriptor[high..high + 2].copy_from_slice(&((sum >> 16) as u16).to_le_bytes());
                }
            }
        }
        group::seal(descriptor, &self.geometry, nr);
        self.put(at.0, &block);
        if self.geometry.has_csum() {
            self.inodes(nr, table);
        }
    }

    fn inodes(&mut self, group: GroupNr, table: u64) {
        let per_block = self.geometry.inodes_per_block();
        let count = self.geometry.inodes_per_group.min(INODES_MAX);
        for first in (0..count).step_by(per_block as usize) {
            let nr = table.saturating_add(u64::from(first / per_block));
            let Some(mut block) = self.block(nr) else { return };
            let mut used = Vec::new();
            for (i, bytes) in block.chunks_exact_mut(self.geometry.inode_bytes as usize).enumerate() {
                if bytes.iter().all(|byte| *byte == 0) {
                    continue;
                }
                let nr = self.geometry.inode_at(group, first + i as u32);
                inode::seal(bytes, &self.geometry, nr);
                used.extend(RawInode::decode(bytes, &self.geometry, nr).ok().map(|raw| (nr, raw)));
            }
            self.put(nr, &block);
            for (nr, raw) in used {
                self.inode(nr, &raw);
            }
        }
    }

    fn inode(&mut self, nr: InodeNr, raw: &RawInode) {
        if raw.file_acl.0 != 0 {
            if let Some(mut block) = self.block(raw.file_acl.0) {
                xattr::seal_block(&mut block, raw.file_acl, Some(self.geometry.csum_seed));
                self.put(raw.file_acl.0, &block);
            }
        }
        if nr == InodeNr::JOURNAL || !raw.has_extents() || !raw.maps_blocks() {
            return;
        }
        let seed = self.geometry.inode_csum_seed(nr, raw.generation);
        for leaf in self.nodes(&raw.block, seed, extent::DEPTH_MAX) {
            for i in 0..u64::from(leaf.len.min(64)) {
                if raw.is_dir() {
                    self.directory(leaf.physical.0.saturating_add(i), raw, seed, leaf.block.0 == 0 && i == 0);
                }
            }
        }
    }

    /// Seals the nodes below a node, and returns its extents.
    fn nodes(&mut self, bytes: &[u8], seed: u32, levels: u16) -> Vec<extent::Entry> {
        let Ok(view) = extent::View::new(bytes, Place::FileSystem, None) else { return Vec::new() };
        let entries: Vec<_> = (0..view.len()).filter_map(|at| view.get(at)).collect();
        if view.depth() == 0 || levels == 0 {
            return entries;
        }
        let mut leaves = Vec::new();
        for entry in entries {
            let Some(mut block) = self.block(entry.physical.0) else { continue };
            // Where max leaves no room for a tail there is none.
            if usize::from(u16::from_le_bytes([block[4], block[5]]))
                <= usize::from(extent::capacity(block.len()))
            {
                extent::seal(&mut block, seed);
                self.put(entry.physical.0, &block);
            }
            leaves.extend(self.nodes(&block, seed, levels - 1));
        }
        leaves
    }

    fn directory(&mut self, nr: u64, raw: &RawInode, seed: u32, first: bool) {
        let Some(mut block) = self.block(nr) else { return };
        let indexed = raw.flags.contains(InodeFlags::INDEX);
        let whole = field(&block, 0) == 0 && field(&block, 4) & 0xffff == block.len() as u64;
        if indexed && first {
            htree::seal(&mut block, htree::Kind::Root, seed);
        } else if indexed && whole {
            htree::seal(&mut block, htree::Kind::Node, seed);
        } else {
            dirent::seal(&mut block, seed);
        }
        self.put(nr, &block);
    }

    fn orphan_file(&mut self, nr: InodeNr) {
        if !self.geometry.has_csum() || !self.geometry.holds_inode(nr) {
            return;
        }
        let (group, index) = self.geometry.group_of_inode(nr);
        let (at, offset) = self.geometry.descriptor_place(group);
        let Some(block) = self.block(at.0) else { return };
        let table = field(&block, offset + 8);
        let per_block = self.geometry.inodes_per_block();
        let Some(block) = self.block(table + u64::from(index / per_block)) else { return };
        let from = (index % per_block * self.geometry.inode_bytes) as usize;
        let Ok(raw) = RawInode::decode(&block[from..], &self.geometry, nr) else { return };
        let seed = self.geometry.inode_csum_seed(nr, raw.generation);
        for leaf in self.nodes(&raw.block, seed, extent::DEPTH_MAX) {
            for i in 0..u64::from(leaf.len.min(8)) {
                let nr = leaf.physical.0.saturating_add(i);
                if let Some(mut block) = self.block(nr) {
                    orphan_file::seal(&mut block, &self.geometry, seed, BlockNr(nr));
                    self.put(nr, &block);
                }
            }
        }
    }
}
