//! The first files: root, lost+found, the journal, and what features ask for.

use crate::journal::{self, LogSize};
use crate::options::Options;
use crate::shape::{self, Shape};
use crate::space::Space;
use crate::{tables, Layout};
use journalfs::format::extent::{self, Entry, Node};
use journalfs::format::mmp::{self, Mmp};
use journalfs::format::{
    dirent, orphan_file, Compat, FileKind, Geometry, GroupDescriptor, Incompat, InodeFlags, RawInode,
    Superblock, Timestamp,
};
use journalfs::units::{BlockNr, BlockRange, FileBlock, GroupNr, InodeNr};
use journalfs::{Error, Result};
use std::collections::BTreeMap;

const LOST_FOUND: InodeNr = InodeNr(11);
const ORPHAN_FILE: InodeNr = InodeNr(12);
/// `s_jnl_backup_type`: the journal inode's block map is in the superblock.
const JOURNAL_BACKUP_BLOCKS: u8 = 1;
const DIRECT: usize = 12;

/// Everything that is to be written.
pub(crate) struct Built {
    pub(crate) layout: Layout,
    pub(crate) space: Space,
    pub(crate) inodes: BTreeMap<u32, RawInode>,
    /// Blocks of files, whole.
    pub(crate) blocks: BTreeMap<u64, Vec<u8>>,
    /// The journal's blocks must read as zeroes but for its superblock.
    pub(crate) zero_journal: bool,
}

struct Builder<'a> {
    superblock: Superblock,
    geometry: Geometry,
    options: &'a Options,
    now: Timestamp,
    space: Space,
    inodes: BTreeMap<u32, RawInode>,
    blocks: BTreeMap<u64, Vec<u8>>,
    /// Where files near the root go.
    goal: u64,
}

fn too_small() -> Error {
    Error::Usage("the device is too small for a file system".to_owned())
}

/// Works out everything that a new file system consists of.
pub(crate) fn build(device_bytes: u64, options: &Options) -> Result<Built> {
    let Shape { mut superblock, geometry, now, mut notes } = shape::shape(device_bytes, options)?;
    let log = plan_journal(&mut superblock, options, &mut notes)?;
    let geometry = Geometry { features: superblock.features, ..geometry };
    let mut space = Space::new(superblock.blocks_count);
    tables::take_base(&geometry, &mut space);
    let packed = options.packed_meta_blocks;
    let mut descriptors = tables::place(&geometry, &mut space, packed)?;
    let overhead = space.count_in(0..superblock.blocks_count) + log.map_or(0, LogSize::blocks);
    superblock.overhead_clusters = u32::try_from(overhead).unwrap_or(0);
    let goal = geometry.group_first_block(GroupNr(0)).0;
    let mut builder = Builder {
        superblock,
        geometry,
        options,
        now,
        space,
        inodes: (1..=10).map(|nr| (nr, RawInode::default())).collect(),
        blocks: BTreeMap::new(),
        goal,
    };
    builder.directories()?;
    builder.resize_inode()?;
    let journal = match log {
        Some(size) => builder.journal(size)?,
        None => Vec::new(),
    };
    builder.mmp()?;
    builder.orphan_file()?;
    builder.count(&mut descriptors);
    Ok(Built {
        zero_journal: !options.lazy_journal_init && !options.prezeroed,
        space: builder.space,
        inodes: builder.inodes,
        blocks: builder.blocks,
        layout: Layout {
            superblock: builder.superblock,
            geometry: builder.geometry,
            descriptors,
            journal,
            notes,
        },
    })
}

/// The journal's size; without one, what depends on it goes too.
fn plan_journal(
    superblock: &mut Superblock,
    options: &Options,
    notes: &mut Vec<String>,
) -> Result<Option<LogSize>> {
    if !superblock.features.compat.contains(Compat::HAS_JOURNAL) {
        return Ok(None);
    }
    let size = journal::size(superblock, options)?;
    if size.is_none() {
        notes.push(format!(
            "{} blocks are too few for a journal of 1024, so there is none: no crash safety (smaller blocks may help)",
            superblock.blocks_count
        ));
        superblock.features.compat -= Compat::HAS_JOURNAL | Compat::ORPHAN_FILE | Compat::FAST_COMMIT;
    }
    Ok(size)
}

impl Builder<'_> {
    fn block_bytes(&self) -> usize {
        self.geometry.block_bytes as usize
    }

    fn seed(&self, nr: InodeNr) -> u32 {
        self.geometry.inode_csum_seed(nr, 0)
    }

    fn allocate(&mut self, goal: u64, blocks: u64) -> Result<Vec<BlockRange>> {
        self.space.allocate(goal, blocks).ok_or_else(too_small)
    }

    fn allocate_one(&mut self, goal: u64) -> Result<BlockNr> {
        self.allocate(goal, 1)?.first().map(|range| range.start).ok_or_else(too_small)
    }

    fn inode(&self, kind: FileKind, permissions: u16, links: u16) -> RawInode {
        RawInode {
            mode: kind.mode_bits() | permissions,
            links,
            atime: self.now,
            ctime: self.now,
            mtime: self.now,
            crtime: self.now,
            extra_isize: self.geometry.want_extra_isize,
            ..RawInode::default()
        }
    }

    /// Gives an inode its blocks, from `pieces` in order, and counts them.
    fn map(&mut self, nr: InodeNr, inode: &mut RawInode, pieces: &[BlockRange]) -> Result<()> {
        let data: u64 = pieces.iter().map(|piece| piece.len as u64).sum();
        let before = self.space.count_in(0..self.superblock.blocks_count);
        if self.geometry.features.incompat.contains(Incompat::EXTENT) {
            inode.flags |= InodeFlags::EXTENTS;
            self.map_extents(nr, inode, pieces)?;
        } else {
            self.map_indirect(inode, pieces)?;
        }
        let map = self.space.count_in(0..self.superblock.blocks_count) - before;
        inode.size = data * self.geometry.block_bytes as u64;
        inode.blocks = (data + map) * self.geometry.sectors_per_block() as u64;
        Ok(())
    }

    fn map_extents(&mut self, nr: InodeNr, inode: &mut RawInode, pieces: &[BlockRange]) -> Result<()> {
        let mut entries = Vec::new();
        let mut at = 0;
        for piece in pieces {
            let mut done = 0;
            while done < piece.len {
                let len = (piece.len - done).min(extent::WRITTEN_LEN_MAX);
                entries.push(Entry::extent(FileBlock(at), piece.start.plus(done as u64), len, false));
                at += len;
                done += len;
            }
        }
        // From the leaves up, until what is left fits into the inode.
        let mut depth = 0;
        let root_max = extent::capacity(extent::ROOT_BYTES) as usize;
        while entries.len() > root_max {
            let mut above = Vec::new();
            let in_block = extent::capacity(self.block_bytes()) as usize;
            for some in entries.chunks(in_block) {
                let block = self.allocate_one(pieces.first().map_or(self.goal, |piece| piece.start.0))?;
                let mut bytes = vec![0; self.block_bytes()];
                let node = Node::empty(bytes.len(), depth);
                Node { entries: some.to_vec(), ..node }.encode(&mut bytes);
                if self.geometry.has_csum() {
                    extent::seal(&mut bytes, self.seed(nr));
                }
                self.blocks.insert(block.0, bytes);
                above.extend(some.first().map(|entry| Entry::index(entry.block, block)));
            }
            entries = above;
            depth += 1;
        }
        Node { entries, ..Node::empty(extent::ROOT_BYTES, depth) }.encode(&mut inode.block);
        Ok(())
    }

    fn map_indirect(&mut self, inode: &mut RawInode, pieces: &[BlockRange]) -> Result<()> {
        let data: Vec<u32> = pieces.iter().flat_map(|piece| piece.iter()).map(|nr| nr.0 as u32).collect();
        let goal = pieces.first().map_or(self.goal, |piece| piece.start.0);
        let (direct, mut rest) = data.split_at(data.len().min(DIRECT));
        let mut pointers = [0; 15];
        for (to, from) in pointers.iter_mut().zip(direct) {
            *to = *from;
        }
        let per_block = self.block_bytes() / 4;
        for (level, pointer) in pointers.iter_mut().skip(DIRECT).enumerate() {
            if rest.is_empty() {
                break;
            }
            let reach = per_block.saturating_pow(level as u32 + 1).min(rest.len());
            let (these, later) = rest.split_at(reach);
            *pointer = self.indirect(these, level, goal)?;
            rest = later;
        }
        if !rest.is_empty() {
            return Err(Error::FileTooBig);
        }
        put_words(&mut inode.block, &pointers);
        Ok(())
    }

    /// An indirect block over `data`, `level` levels above the blocks that point at it directly.
    fn indirect(&mut self, data: &[u32], level: usize, goal: u64) -> Result<u32> {
        let block = self.allocate_one(goal)?;
        let per_block = self.block_bytes() / 4;
        let mut pointers = Vec::new();
        if level == 0 {
            pointers.extend_from_slice(data);
        } else {
            for some in data.chunks(per_block.saturating_pow(level as u32)) {
                pointers.push(self.indirect(some, level - 1, goal)?);
            }
        }
        let mut bytes = vec![0; self.block_bytes()];
        put_words(&mut bytes, &pointers);
        self.blocks.insert(block.0, bytes);
        Ok(block.0 as u32)
    }

    fn directories(&mut self) -> Result<()> {
        let (uid, gid) = self.options.root_owner;
        let mut root = self.inode(FileKind::Directory, 0o755, 3);
        (root.uid, root.gid) = (uid, gid);
        let entry = Some((LOST_FOUND, &b"lost+found"[..]));
        self.directory(InodeNr::ROOT, root, 1, entry)?;
        // Room for names while fsck, which must not allocate then, reconnects files.
        let blocks = (16384 / self.block_bytes()).clamp(2, DIRECT) as u64;
        let lost_found = self.inode(FileKind::Directory, 0o700, 2);
        self.directory(LOST_FOUND, lost_found, blocks, None)
    }

    fn directory(
        &mut self,
        nr: InodeNr,
        mut inode: RawInode,
        blocks: u64,
        entry: Option<(InodeNr, &[u8])>,
    ) -> Result<()> {
        let filetype = self.geometry.features.incompat.contains(Incompat::FILETYPE);
        let kind = if filetype { FileKind::Directory.dirent_type() } else { 0 };
        let csum = self.geometry.has_csum();
        let usable = dirent::usable_bytes(self.block_bytes(), csum);
        let pieces = self.allocate(self.goal, blocks)?;
        for (i, block) in pieces.iter().flat_map(|piece| piece.iter()).enumerate() {
            let mut bytes = vec![0; self.block_bytes()];
            dirent::clear(&mut bytes, usable);
            if i == 0 {
                let mut fits = dirent::put_dots(&mut bytes, usable, nr, InodeNr::ROOT, kind);
                if let Some((target, name)) = entry {
                    let at = 2 * dirent::ENTRY_MIN;
                    dirent::set_rec_len(&mut bytes, dirent::ENTRY_MIN, dirent::ENTRY_MIN);
                    fits &= dirent::put(&mut bytes, at, usable - at, target, kind, name);
                }
                debug_assert!(fits, "three entries fit into any block");
            }
            if csum {
                dirent::seal(&mut bytes, self.seed(nr));
            }
            self.blocks.insert(block.0, bytes);
        }
        self.map(nr, &mut inode, &pieces)?;
        self.inodes.insert(nr.0, inode);
        Ok(())
    }

    /// The resize inode: its double indirect block points at the reserved descriptor blocks of group 0, and
    /// each of these at its copies in the other groups.
    fn resize_inode(&mut self) -> Result<()> {
        let g = self.geometry;
        if !g.features.compat.contains(Compat::RESIZE_INODE) {
            return Ok(());
        }
        let per_block = g.block_bytes / 4;
        let top = self.allocate_one(self.goal)?;
        let mut top_bytes = vec![0; self.block_bytes()];
        let first = g.first_data_block.0 + 1 + g.desc_blocks() as u64;
        let mut blocks = 1;
        for i in 0..g.reserved_gdt_blocks {
            let reserved = first + i as u64;
            let slot = ((g.desc_blocks() + i) % per_block) as usize * 4;
            put_words(top_bytes.get_mut(slot..).unwrap_or_default(), &[reserved as u32]);
            let copies: Vec<u32> = g
                .backup_groups()
                .map(|group| (reserved + group.0 as u64 * g.blocks_per_group as u64) as u32)
                .collect();
            blocks += 1 + copies.len() as u64;
            let mut bytes = vec![0; self.block_bytes()];
            put_words(&mut bytes, &copies);
            self.blocks.insert(reserved, bytes);
        }
        self.blocks.insert(top.0, top_bytes);
        let mut inode = self.inode(FileKind::Regular, 0o600, 1);
        put_words(inode.block.get_mut((DIRECT + 1) * 4..).unwrap_or_default(), &[top.0 as u32]);
        let reach = per_block as u64 * per_block as u64 + per_block as u64 + DIRECT as u64;
        inode.size = reach * g.block_bytes as u64;
        inode.blocks = blocks * g.sectors_per_block() as u64;
        self.inodes.insert(InodeNr::RESIZE.0, inode);
        Ok(())
    }

    fn journal(&mut self, size: LogSize) -> Result<Vec<BlockRange>> {
        let g = self.geometry;
        let count = self.superblock.blocks_count;
        let free = count - self.space.count_in(0..count);
        if size.blocks() + size.blocks() / 64 + 64 > free {
            let (wanted, what) = (size.blocks(), "too small for a journal of");
            return Err(Error::Usage(format!("{free} free blocks are {what} {wanted}")));
        }
        // In the middle, nearest to everything on a disk; a flex group's start is followed by its tables.
        let middle = g.group_count / 2 / g.groups_per_flex() * g.groups_per_flex();
        let group = if self.options.packed_meta_blocks { 0 } else { middle };
        let pieces = self.allocate(g.group_first_block(GroupNr(group)).0, size.blocks())?;
        let mut inode = self.inode(FileKind::Regular, 0o600, 1);
        self.map(InodeNr::JOURNAL, &mut inode, &pieces)?;
        let record = journal::superblock(&self.superblock, size, self.options.lazy_journal_init);
        let mut bytes = vec![0; self.block_bytes()];
        if let Some(to) = bytes.first_chunk_mut() {
            *to = record.encode();
        }
        if let Some(first) = pieces.first() {
            self.blocks.insert(first.start.0, bytes);
        }
        self.superblock.journal_inum = InodeNr::JOURNAL.0;
        self.superblock.jnl_backup_type = JOURNAL_BACKUP_BLOCKS;
        let words = inode.block.chunks_exact(4).map(|word| word.try_into().map_or(0, u32::from_le_bytes));
        let sizes = [(inode.size >> 32) as u32, inode.size as u32];
        for (to, from) in self.superblock.jnl_blocks.iter_mut().zip(words.chain(sizes)) {
            *to = from;
        }
        self.inodes.insert(InodeNr::JOURNAL.0, inode);
        Ok(pieces)
    }

    fn mmp(&mut self) -> Result<()> {
        if !self.geometry.features.incompat.contains(Incompat::MMP) {
            return Ok(());
        }
        let block = self.allocate_one(self.goal)?;
        let record = Mmp {
            seq: mmp::SEQ_CLEAN,
            time: self.now.seconds as u64,
            nodename: [0; 64],
            bdevname: [0; 32],
            check_interval: self.superblock.mmp_update_interval,
        };
        let mut bytes = vec![0; self.block_bytes()];
        record.encode(&mut bytes, &self.geometry);
        self.blocks.insert(block.0, bytes);
        self.superblock.mmp_block = block.0;
        Ok(())
    }

    fn orphan_file(&mut self) -> Result<()> {
        if !self.geometry.features.compat.contains(Compat::ORPHAN_FILE) {
            return Ok(());
        }
        let blocks = match self.options.orphan_file_bytes {
            Some(bytes) => (bytes / self.geometry.block_bytes as u64).clamp(1, 512),
            None => (self.superblock.blocks_count / 4096).clamp(32, 512),
        };
        let pieces = self.allocate(self.goal, blocks)?;
        for block in pieces.iter().flat_map(|piece| piece.iter()) {
            let mut bytes = vec![0; self.block_bytes()];
            orphan_file::seal(&mut bytes, &self.geometry, self.seed(ORPHAN_FILE), block);
            self.blocks.insert(block.0, bytes);
        }
        let mut inode = self.inode(FileKind::Regular, 0o600, 1);
        self.map(ORPHAN_FILE, &mut inode, &pieces)?;
        self.inodes.insert(ORPHAN_FILE.0, inode);
        self.superblock.orphan_file_inum = ORPHAN_FILE.0;
        Ok(())
    }

    /// Fills the counters of descriptors and superblock.
    fn count(&mut self, descriptors: &mut [GroupDescriptor]) {
        let g = self.geometry;
        let mut free = 0;
        for (group, descriptor) in (0..).map(GroupNr).zip(descriptors.iter_mut()) {
            let start = g.group_first_block(group).0;
            let blocks = g.blocks_in_group(group) as u64;
            descriptor.free_blocks_count = (blocks - self.space.count_in(start..start + blocks)) as u32;
            free += descriptor.free_blocks_count as u64;
            descriptor.free_inodes_count = g.inodes_per_group;
        }
        for (nr, inode) in &self.inodes {
            let (group, _) = g.group_of_inode(InodeNr(*nr));
            if let Some(descriptor) = descriptors.get_mut(group.0 as usize) {
                descriptor.free_inodes_count -= 1;
                descriptor.used_dirs_count += u32::from(inode.is_dir());
            }
        }
        self.superblock.free_blocks_count = free;
        self.superblock.free_inodes_count = g.inodes_count - self.inodes.len() as u32;
    }
}

/// Writes little-endian words, as many as fit.
fn put_words(bytes: &mut [u8], words: &[u32]) {
    for (to, word) in bytes.chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
}
