//! Writing a file system that has been worked out: everything but the first superblock, a flush, then that.
//! An interrupted run so leaves something that nobody takes for a file system.

use crate::files::Built;
use crate::options::Options;
use journalfs::device::Device;
use journalfs::format::group::GroupFlags;
use journalfs::format::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET};
use journalfs::format::{bitmap, Geometry, GroupDescriptor};
use journalfs::units::{BlockNr, GroupNr, InodeNr};
use journalfs::{Error, Result};

/// Signatures of other file systems and volume managers lie in this many bytes at the start, and as many at the end.
const SIGNATURES_BYTES: u64 = 72 << 10;
/// Neighbouring blocks go out in writes of up to this size.
const BATCH_BYTES: usize = 1 << 20;

/// Gathers neighbouring blocks into large writes.
struct Batch<'a> {
    device: &'a dyn Device,
    at: u64,
    bytes: Vec<u8>,
}

impl Batch<'_> {
    fn put(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        if self.at + self.bytes.len() as u64 != offset || self.bytes.len() >= BATCH_BYTES {
            self.finish()?;
            self.at = offset;
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        if !self.bytes.is_empty() {
            self.device
                .write_at(self.at, &self.bytes)
                .map_err(|error| Error::io(format!("writing at byte {}", self.at), error))?;
            self.bytes.clear();
        }
        Ok(())
    }
}

/// Writes `built` to `device` and makes it durable.
pub(crate) fn write(device: &dyn Device, options: &Options, built: &Built) -> Result<()> {
    let flush = || device.flush().map_err(|error| Error::io("flushing", error));
    let mut descriptors = built.layout.descriptors.clone();
    wipe(device)?;
    let mut writer = Writer { built, options, batch: Batch { device, at: 0, bytes: Vec::new() } };
    writer.zero_journal()?;
    writer.block_bitmaps(&mut descriptors)?;
    writer.inode_bitmaps(&mut descriptors)?;
    writer.inode_tables(&mut descriptors)?;
    for (nr, bytes) in &built.blocks {
        writer.put(BlockNr(*nr), bytes)?;
    }
    writer.descriptors(&descriptors)?;
    writer.backup_superblocks()?;
    writer.batch.finish()?;
    flush()?;
    let first = built.layout.superblock.encode();
    device.write_at(SUPERBLOCK_OFFSET, &first).map_err(|error| Error::io("writing the superblock", error))?;
    flush()
}

fn wipe(device: &dyn Device) -> Result<()> {
    let size = device.size_bytes();
    let start = SIGNATURES_BYTES.min(size);
    let end = size.saturating_sub(SIGNATURES_BYTES).max(start);
    for (from, to) in [(0, start), (end, size)] {
        // Written, not discarded: a hole may be refused where a write is not.
        let zeroes = vec![0; (to - from) as usize];
        device.write_at(from, &zeroes).map_err(|error| Error::io("wiping old signatures", error))?;
    }
    Ok(())
}

struct Writer<'a> {
    built: &'a Built,
    options: &'a Options,
    batch: Batch<'a>,
}

impl Writer<'_> {
    fn geometry(&self) -> &Geometry {
        &self.built.layout.geometry
    }

    fn block(&self) -> Vec<u8> {
        vec![0; self.geometry().block_bytes as usize]
    }

    fn put(&mut self, nr: BlockNr, bytes: &[u8]) -> Result<()> {
        self.batch.put(nr.0 * self.geometry().block_bytes as u64, bytes)
    }

    fn zero(&mut self, start: BlockNr, count: u64) -> Result<()> {
        let block = self.geometry().block_bytes as u64;
        self.batch
            .device
            .write_zeroes(start.0 * block, count * block)
            .map_err(|error| Error::io(format!("zeroing {count} blocks from {start}"), error))
    }

    fn zero_journal(&mut self) -> Result<()> {
        for piece in self.built.layout.journal.iter().filter(|_| self.built.zero_journal) {
            self.zero(piece.start, piece.len as u64)?;
        }
        Ok(())
    }

    /// Whether nothing but the group's own tables is in it, so that its block bitmap follows from its descriptor.
    fn is_untouched(&self, group: GroupNr, descriptor: &GroupDescriptor) -> bool {
        let g = self.geometry();
        if group.0 + 1 == g.group_count || g.base_meta_blocks(group) > 0 {
            return false;
        }
        let own = [
            (descriptor.block_bitmap, 1),
            (descriptor.inode_bitmap, 1),
            (descriptor.inode_table, g.inode_table_blocks() as u64),
        ];
        let start = g.group_first_block(group).0;
        let end = start + g.blocks_per_group as u64;
        let inside = |(nr, count): &(BlockNr, u64)| nr.0 >= start && nr.0 + count <= end;
        let own: u64 = own.iter().filter(|part| inside(part)).map(|(_, count)| count).sum();
        descriptor.free_blocks_count as u64 == g.blocks_per_group as u64 - own
    }

    fn block_bitmaps(&mut self, descriptors: &mut [GroupDescriptor]) -> Result<()> {
        let g = *self.geometry();
        for (group, descriptor) in (0..).map(GroupNr).zip(descriptors) {
            if g.has_lazy_groups() && self.is_untouched(group, descriptor) {
                descriptor.flags |= GroupFlags::BLOCK_UNINIT;
                continue;
            }
            let mut bits = self.block();
            let start = g.group_first_block(group).0;
            let blocks = g.blocks_in_group(group);
            for run in self.built.space.taken_in(start..start + blocks as u64) {
                bitmap::set_range(&mut bits, (run.start - start) as u32..(run.end - start) as u32);
            }
            bitmap::set_range(&mut bits, blocks..g.block_bytes * 8);
            descriptor.block_bitmap_csum = bitmap::block_csum(&bits, &g);
            self.put(descriptor.block_bitmap, &bits)?;
        }
        Ok(())
    }

    fn inode_bitmaps(&mut self, descriptors: &mut [GroupDescriptor]) -> Result<()> {
        let g = *self.geometry();
        for (group, descriptor) in (0..).map(GroupNr).zip(descriptors) {
            let first = group.0 * g.inodes_per_group + 1;
            let used = self.built.inodes.range(first..first.saturating_add(g.inodes_per_group));
            let last = used.clone().next_back().map_or(0, |(nr, _)| nr - first + 1);
            if g.has_lazy_groups() {
                descriptor.itable_unused = g.inodes_per_group - last;
                if last == 0 {
                    descriptor.flags |= GroupFlags::INODE_UNINIT;
                    continue;
                }
            }
            let mut bits = self.block();
            for (nr, _) in used {
                bitmap::set(&mut bits, nr - first);
            }
            bitmap::set_range(&mut bits, g.inodes_per_group..g.block_bytes * 8);
            descriptor.inode_bitmap_csum = bitmap::inode_csum(&bits, &g);
            self.put(descriptor.inode_bitmap, &bits)?;
        }
        Ok(())
    }

    fn inode_tables(&mut self, descriptors: &mut [GroupDescriptor]) -> Result<()> {
        let g = *self.geometry();
        let lazy = g.has_lazy_groups() && self.options.lazy_itable_init && !self.options.prezeroed;
        let count = g.inode_table_blocks() as u64;
        if !lazy && !self.options.prezeroed {
            // Neighbouring tables are zeroed as one.
            let mut run: Option<(BlockNr, u64)> = None;
            for descriptor in descriptors.iter() {
                run = match run {
                    Some((start, len)) if start.plus(len) == descriptor.inode_table => {
                        Some((start, len + count))
                    }
                    Some((start, len)) => {
                        self.zero(start, len)?;
                        Some((descriptor.inode_table, count))
                    }
                    None => Some((descriptor.inode_table, count)),
                };
            }
            if let Some((start, len)) = run {
                self.zero(start, len)?;
            }
        }
        if !lazy && g.has_lazy_groups() {
            for descriptor in descriptors.iter_mut() {
                descriptor.flags |= GroupFlags::INODE_ZEROED;
            }
        }
        self.inodes(descriptors)
    }

    /// Writes the table blocks that have inodes in use.
    fn inodes(&mut self, descriptors: &[GroupDescriptor]) -> Result<()> {
        let g = *self.geometry();
        let mut blocks = std::collections::BTreeMap::new();
        for (nr, inode) in &self.built.inodes {
            let nr = InodeNr(*nr);
            let (group, index) = g.group_of_inode(nr);
            let Some(descriptor) = descriptors.get(group.0 as usize) else { continue };
            let block = descriptor.inode_table.plus((index / g.inodes_per_block()) as u64);
            let at = (index % g.inodes_per_block() * g.inode_bytes) as usize;
            let bytes = blocks.entry(block).or_insert_with(|| self.block());
            inode.encode(bytes.get_mut(at..).unwrap_or_default(), &g, nr)?;
        }
        for (nr, bytes) in blocks {
            self.put(nr, &bytes)?;
        }
        Ok(())
    }

    /// Writes every copy of every block of descriptors.
    fn descriptors(&mut self, descriptors: &[GroupDescriptor]) -> Result<()> {
        let g = *self.geometry();
        let per_block = g.descs_per_block();
        let mut table = vec![0; g.desc_blocks() as usize * g.block_bytes as usize];
        for (group, descriptor) in (0..).map(GroupNr).zip(descriptors) {
            let at = group.0 as usize * g.desc_bytes as usize;
            descriptor.encode(table.get_mut(at..).unwrap_or_default(), &g, group)?;
        }
        let bytes_at = |first: u32, count: u32| {
            let from = first as usize * g.block_bytes as usize;
            table.get(from..from + count as usize * g.block_bytes as usize).unwrap_or_default()
        };
        for group in (0..g.group_count).map(GroupNr) {
            let count = g.desc_blocks_in_group(group);
            if count == 0 {
                continue;
            }
            // In meta_bg layout a group holds its meta group's block only, else all of them.
            let first = if g.has_meta_layout(group) { group.0 / per_block } else { 0 };
            let behind_super = u64::from(g.group_has_super(group));
            self.put(g.group_first_block(group).plus(behind_super), bytes_at(first, count))?;
        }
        Ok(())
    }

    fn backup_superblocks(&mut self) -> Result<()> {
        let g = *self.geometry();
        for group in g.backup_groups() {
            let mut superblock = self.built.layout.superblock.clone();
            superblock.block_group_nr = group.0 as u16;
            let mut bytes = self.block();
            if let Some(to) = bytes.first_chunk_mut::<SUPERBLOCK_BYTES>() {
                *to = superblock.encode();
            }
            self.put(g.group_first_block(group), &bytes)?;
        }
        Ok(())
    }
}
