//! The records against images that mke2fs made (nothing here if it isn't installed).

use super::*;
use crate::units::{BlockNr, GroupNr, InodeNr};
use std::os::unix::fs::FileExt;
use std::process::Command;

struct Image {
    file: std::fs::File,
    superblock: Superblock,
    geometry: Geometry,
}

impl Image {
    fn make(options: &[&str], size: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let made = Command::new("mke2fs").args(["-q", "-F"]).args(options).arg(&path).arg(size).output();
        let Ok(made) = made else {
            println!("skipped: mke2fs is not installed");
            return None;
        };
        assert!(made.status.success(), "{options:?}: {}", String::from_utf8_lossy(&made.stderr));
        let file = std::fs::File::open(&path).unwrap();
        let mut bytes = [0; 1024];
        file.read_exact_at(&mut bytes, 1024).unwrap();
        let superblock = Superblock::decode(&bytes).unwrap();
        assert_eq!(superblock.encode(), bytes, "superblock of {options:?}");
        let geometry = Geometry::new(&superblock);
        Some(Self { file, superblock, geometry })
    }

    fn read(&self, nr: BlockNr) -> Vec<u8> {
        let mut block = vec![0; self.geometry.block_bytes as usize];
        self.file.read_exact_at(&mut block, nr.0 * self.geometry.block_bytes as u64).unwrap();
        block
    }

    fn descriptor(&self, group: GroupNr) -> GroupDescriptor {
        let g = &self.geometry;
        let (nr, at) = g.descriptor_place(group);
        let mut bytes = self.read(nr)[at..].to_vec();
        let descriptor = GroupDescriptor::decode(&bytes, g, group).unwrap();
        let before = bytes.clone();
        descriptor.encode(&mut bytes, g, group).unwrap();
        assert_eq!(bytes, before);
        descriptor
    }

    fn inode(&self, nr: InodeNr) -> RawInode {
        let g = &self.geometry;
        let (group, index) = g.group_of_inode(nr);
        let at = index as usize * g.inode_bytes as usize;
        let table = self.descriptor(group).inode_table;
        let block = self.read(table.plus((at / g.block_bytes as usize) as u64));
        let mut bytes = block[at % g.block_bytes as usize..][..g.inode_bytes as usize].to_vec();
        let inode = RawInode::decode(&bytes, g, nr).unwrap();
        let before = bytes.clone();
        inode.encode(&mut bytes, g, nr).unwrap();
        assert_eq!(bytes, before, "inode {nr}");
        if g.has_csum() {
            bytes[4] ^= 1;
            assert!(RawInode::decode(&bytes, g, nr).is_err());
        }
        inode
    }

    fn check_group(&self, group: GroupNr) -> u32 {
        let (g, descriptor) = (&self.geometry, self.descriptor(group));
        if !descriptor.flags.contains(group::GroupFlags::BLOCK_UNINIT) {
            let bits = self.read(descriptor.block_bitmap);
            let count = g.blocks_in_group(group);
            assert_eq!(bitmap::count_clear(&bits, count), descriptor.free_blocks_count, "{group:?}");
            assert_eq!(bitmap::block_csum(&bits, g), descriptor.block_bitmap_csum, "{group:?}");
            assert!(bitmap::is_set(&bits, 0..g.base_meta_blocks(group)));
        }
        if !descriptor.flags.contains(group::GroupFlags::INODE_UNINIT) {
            let bits = self.read(descriptor.inode_bitmap);
            assert_eq!(bitmap::count_clear(&bits, g.inodes_per_group), descriptor.free_inodes_count);
            assert_eq!(bitmap::inode_csum(&bits, g), descriptor.inode_bitmap_csum, "{group:?}");
        }
        descriptor.free_blocks_count
    }
}

#[test]
fn images_of_mke2fs_decode_and_encode_to_the_same_bytes() {
    for (options, size) in [
        (&["-t", "ext2"][..], "40M"),
        (&["-t", "ext3"], "100M"),
        (&["-t", "ext3", "-I", "128", "-b", "1024"], "40M"),
        (&["-t", "ext4"], "300M"),
        (&["-t", "ext4", "-b", "1024", "-I", "1024", "-O", "mmp"], "100M"),
        (&["-t", "ext4", "-b", "2048", "-I", "128", "-O", "^64bit"], "64M"),
        (&["-t", "ext4", "-b", "1024", "-O", "meta_bg,^resize_inode,^flex_bg"], "600M"),
        (&["-t", "ext4", "-O", "^metadata_csum,uninit_bg"], "64M"),
        (&["-t", "ext4", "-O", "metadata_csum_seed,orphan_file,sparse_super2,^resize_inode"], "300M"),
        (&["-t", "ext4", "-b", "65536"], "300M"),
    ] {
        let Some(image) = Image::make(options, size) else { return };
        let g = &image.geometry;
        let free: u64 = (0..g.group_count).map(|nr| image.check_group(GroupNr(nr)) as u64).sum();
        assert_eq!(free, image.superblock.free_blocks_count, "{options:?}");
        let root = image.inode(InodeNr::ROOT);
        assert_eq!((root.kind(), root.links, root.mode & 0o7777), (Some(FileKind::Directory), 3, 0o755));
        assert!(root.mtime.seconds > 1_600_000_000);
        if g.features.compat.contains(Compat::HAS_JOURNAL) {
            let journal = image.inode(InodeNr::JOURNAL);
            assert!(journal.size >= 1 << 20 && journal.blocks * 512 >= journal.size);
            assert_eq!(journal.block[..4], image.superblock.jnl_blocks[0].to_le_bytes());
        }
        if image.superblock.mmp_block != 0 {
            let nr = BlockNr(image.superblock.mmp_block);
            let mut bytes = image.read(nr);
            let record = mmp::Mmp::decode(&bytes, g, nr).unwrap();
            assert_eq!(record.seq, mmp::SEQ_CLEAN);
            let before = bytes.clone();
            record.encode(&mut bytes, g);
            assert_eq!(bytes, before);
        }
        if g.features.compat.contains(Compat::ORPHAN_FILE) {
            let nr = InodeNr(image.superblock.orphan_file_inum);
            let inode = image.inode(nr);
            // One extent is in the root: its physical block is at byte 20.
            let first = BlockNr(wire::get_u32(&inode.block, 20) as u64);
            let (seed, mut block) = (g.inode_csum_seed(nr, inode.generation), image.read(first));
            orphan_file::verify(&block, g, seed, first).unwrap();
            orphan_file::set_entry(&mut block, 3, Some(InodeNr(12)));
            assert_eq!(orphan_file::entry(&block, 3), Some(InodeNr(12)));
            assert!(orphan_file::verify(&block, g, seed, first).is_err());
            orphan_file::seal(&mut block, g, seed, first);
            orphan_file::verify(&block, g, seed, first).unwrap();
        }
    }
}

#[test]
fn large_counts_and_device_numbers() {
    let Some(image) = Image::make(&["-t", "ext4", "-b", "4096"], "64M") else { return };
    let (g, nr) = (&image.geometry, InodeNr(12));
    let mut bytes = vec![0; 256];
    let mut inode = RawInode { mode: 0o100_644, extra_isize: 32, ..RawInode::default() };
    for blocks in [0, u32::MAX as u64 + 8, (1 << 48) - 8, 1 << 48, 1 << 50] {
        inode.blocks = blocks;
        inode.size = blocks * 512;
        inode.encode(&mut bytes, g, nr).unwrap();
        let again = RawInode::decode(&bytes, g, nr).unwrap();
        assert_eq!((again.blocks, again.size), (blocks, blocks * 512));
        assert_eq!(again.flags.contains(InodeFlags::HUGE_FILE), blocks >= 1 << 48);
    }
    inode.blocks = 1 << 51;
    assert!(inode.encode(&mut bytes, g, nr).is_err());
    for rdev in [0x0103, 0xffff, 0x0010_0003, 0xffff_ffff] {
        inode.set_rdev(rdev);
        assert_eq!(inode.rdev(), rdev);
    }
    inode.set_rdev(0x0103);
    assert_eq!(inode.block[..4], [3, 1, 0, 0]);
    bytes[0x80] = 0xfc;
    assert!(RawInode::decode(&bytes, g, nr).is_err());
}
