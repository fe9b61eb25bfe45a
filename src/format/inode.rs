//! Inodes (the kernel's `struct ext4_inode`): 128 bytes that every inode has, and behind them,
//! in larger inodes, `i_extra_isize` bytes of later fields; extended attributes follow.
// The flags have the names of the format and need no more words.
#![allow(missing_docs)]

use super::checksum::crc32c;
use super::features::{Incompat, RoCompat};
use super::geometry::Geometry;
use super::time::Timestamp;
use super::wire::{self, Field};
use crate::error::{Error, Place, Result};
use crate::units::{BlockNr, InodeNr};
use bincode::{Decode, Encode};
use bitflags::bitflags;

bitflags! {
    /// `i_flags`.
    #[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
    pub struct InodeFlags: u32 {
        const SECRM = 0x1;
        const UNRM = 0x2;
        const COMPR = 0x4;
        const SYNC = 0x8;
        const IMMUTABLE = 0x10;
        const APPEND = 0x20;
        const NODUMP = 0x40;
        const NOATIME = 0x80;
        const ENCRYPT = 0x800;
        /// The directory has an htree.
        const INDEX = 0x1000;
        const IMAGIC = 0x2000;
        const JOURNAL_DATA = 0x4000;
        const NOTAIL = 0x8000;
        const DIRSYNC = 0x10000;
        const TOPDIR = 0x20000;
        /// `blocks` was stored in file-system blocks; [`RawInode::blocks`] is in 512-byte units all the same.
        const HUGE_FILE = 0x40000;
        const EXTENTS = 0x80000;
        const VERITY = 0x100000;
        /// The inode holds an extended attribute's value.
        const EA_INODE = 0x200000;
        const DAX = 0x2000000;
        const INLINE_DATA = 0x10000000;
        const PROJINHERIT = 0x20000000;
        const CASEFOLD = 0x40000000;
        const _ = !0;
    }
}

/// What an inode is, from its mode.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum FileKind {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

impl FileKind {
    /// The bits of a mode that say what an inode is.
    pub const MASK: u16 = 0o170_000;

    const ALL: [(Self, u16, u8); 7] = [
        (FileKind::Regular, 0o100_000, 1),
        (FileKind::Directory, 0o040_000, 2),
        (FileKind::CharDevice, 0o020_000, 3),
        (FileKind::BlockDevice, 0o060_000, 4),
        (FileKind::Fifo, 0o010_000, 5),
        (FileKind::Socket, 0o140_000, 6),
        (FileKind::Symlink, 0o120_000, 7),
    ];

    /// The kind that a mode names, if it is one.
    pub fn from_mode(mode: u16) -> Option<Self> {
        Self::ALL.iter().find(|(_, bits, _)| *bits == mode & Self::MASK).map(|(kind, ..)| *kind)
    }

    /// The kind that a directory entry's type byte names; none for 0 (unknown) and bytes the format doesn't have.
    pub fn from_dirent_type(byte: u8) -> Option<Self> {
        Self::ALL.iter().find(|(_, _, known)| *known == byte).map(|(kind, ..)| *kind)
    }

    fn row(self) -> (u16, u8) {
        Self::ALL.iter().find(|(kind, ..)| *kind == self).map_or((0, 0), |(_, mode, byte)| (*mode, *byte))
    }

    /// The mode bits for this kind (`S_IFREG`, ...).
    pub fn mode_bits(self) -> u16 {
        self.row().0
    }

    /// The type byte for this kind in a directory entry with the filetype feature.
    pub fn dirent_type(self) -> u8 {
        self.row().1
    }
}

const STRUCTURE: &str = "inode";
const BASE_BYTES: usize = 128;
const CHECKSUM_LOW_AT: usize = 0x7c;
const EXTRA_ISIZE_AT: usize = 0x80;
const CHECKSUM_HIGH_AT: usize = 0x82;
const CTIME_EXTRA_AT: usize = 0x84;
const MTIME_EXTRA_AT: usize = 0x88;
const ATIME_EXTRA_AT: usize = 0x8c;
const CRTIME_AT: usize = 0x90;
const CRTIME_EXTRA_AT: usize = 0x94;
const VERSION_HIGH_AT: usize = 0x98;
const PROJID_AT: usize = 0x9c;

/// The first 128 bytes.
#[derive(Encode, Decode)]
struct Base {
    mode: u16,
    uid_low: u16,
    size_low: u32,
    atime: u32,
    ctime: u32,
    mtime: u32,
    dtime: u32,
    gid_low: u16,
    links: u16,
    blocks_low: u32,
    flags: u32,
    version_low: u32,
    block: [u8; 60],
    generation: u32,
    file_acl_low: u32,
    size_high: u32,
    fragment: u32,
    blocks_high: u16,
    file_acl_high: u16,
    uid_high: u16,
    gid_high: u16,
    checksum_low: u16,
    reserved: u16,
}

/// An inode's fields, with halves that lie apart joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawInode {
    /// What it is, and its permissions.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes in the file.
    pub size: u64,
    /// When it was last read.
    pub atime: Timestamp,
    /// When it was last changed in any way.
    pub ctime: Timestamp,
    /// When its data was last changed.
    pub mtime: Timestamp,
    /// When it was made; zero where the inode has no room for it.
    pub crtime: Timestamp,
    /// When it was deleted, in seconds; while on the orphan list, the next inode there.
    pub dtime: u32,
    /// Names that it has.
    pub links: u16,
    /// Space that it uses, metadata included, in 512-byte units.
    pub blocks: u64,
    /// Flags.
    pub flags: InodeFlags,
    /// Distinguishes users of the same number in time.
    pub generation: u32,
    /// The block of extended attributes, or 0.
    pub file_acl: BlockNr,
    /// Extent root, block pointers, short symlink target, device number or inline data.
    pub block: [u8; 60],
    /// Bytes of fields behind the first 128.
    pub extra_isize: u16,
    /// Changes with every change of the inode.
    pub version: u64,
    /// Project, for quotas.
    pub projid: u32,
}

impl Default for RawInode {
    /// An inode that is not in use.
    fn default() -> Self {
        Self {
            mode: 0,
            uid: 0,
            gid: 0,
            size: 0,
            atime: Timestamp::default(),
            ctime: Timestamp::default(),
            mtime: Timestamp::default(),
            crtime: Timestamp::default(),
            dtime: 0,
            links: 0,
            blocks: 0,
            flags: InodeFlags::empty(),
            generation: 0,
            file_acl: BlockNr(0),
            block: [0; 60],
            extra_isize: 0,
            version: 0,
            projid: 0,
        }
    }
}

impl RawInode {
    /// What it is; none for an inode that is not in use and for modes that the format doesn't have.
    pub fn kind(&self) -> Option<FileKind> {
        FileKind::from_mode(self.mode)
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind() == Some(FileKind::Directory)
    }

    /// Whether it is a regular file.
    pub fn is_regular(&self) -> bool {
        self.kind() == Some(FileKind::Regular)
    }

    /// Whether it is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.kind() == Some(FileKind::Symlink)
    }

    /// Whether its blocks are found through extents rather than indirect blocks.
    pub fn has_extents(&self) -> bool {
        self.flags.contains(InodeFlags::EXTENTS)
    }

    /// Whether `block` maps blocks (not a short symlink target, device number or inline data).
    pub fn maps_blocks(&self) -> bool {
        if self.flags.contains(InodeFlags::INLINE_DATA) {
            return false;
        }
        match self.kind() {
            Some(FileKind::Regular | FileKind::Directory) => true,
            Some(FileKind::Symlink) => self.has_extents() || self.size >= self.block.len() as u64,
            _ => false,
        }
    }

    /// Whether times are stored with their extra words: nanoseconds and years after 2038.
    pub fn has_wide_times(&self) -> bool {
        BASE_BYTES + self.extra_isize as usize >= ATIME_EXTRA_AT + 4
    }

    /// The device number of a device node, in the encoding of Linux's `dev_t` (32 bits: minor's low 8, 12 of
    /// major, the rest of minor).
    pub fn rdev(&self) -> u32 {
        match wire::get_u32(&self.block, 0) {
            0 => wire::get_u32(&self.block, 4),
            old => (old >> 8 & 0xff) << 8 | old & 0xff,
        }
    }

    /// Sets the device number of a device node; the old 16-bit place is used where it suffices, as the kernel does.
    pub fn set_rdev(&mut self, rdev: u32) {
        let (major, minor) = (rdev >> 8 & 0xfff, rdev & 0xff | rdev >> 12 & 0xf_ff00);
        self.block = [0; 60];
        let at = if major < 256 && minor < 256 { 0 } else { 4 };
        rdev.put(&mut self.block, at);
    }

    /// Decodes the inode at the start of `bytes` and checks its checksum. An inode whose bytes are all zero has
    /// never been used and needs none.
    pub fn decode(bytes: &[u8], geometry: &Geometry, nr: InodeNr) -> Result<Self> {
        let place = Place::Inode(nr);
        let raw = Self::decode_unsealed(bytes, geometry, nr)?;
        let bytes = bytes.get(..geometry.inode_bytes as usize).unwrap_or_default();
        if geometry.has_csum() {
            let (stored, computed) = checksums(bytes, geometry, nr);
            if stored != computed && bytes.iter().any(|&byte| byte != 0) {
                let why = format!("its checksum is {stored:#010x}, not {computed:#010x}");
                return Err(Error::corrupt(STRUCTURE, place, why));
            }
        }
        Ok(raw)
    }

    /// Decodes the inode at the start of `bytes`, whatever its checksum.
    pub fn decode_unsealed(bytes: &[u8], geometry: &Geometry, nr: InodeNr) -> Result<Self> {
        let place = Place::Inode(nr);
        let bytes = bytes
            .get(..geometry.inode_bytes as usize)
            .ok_or_else(|| Error::corrupt(STRUCTURE, place, "it is cut short"))?;
        let extra_isize = if bytes.len() > BASE_BYTES { wire::get_u16(bytes, EXTRA_ISIZE_AT) } else { 0 };
        if BASE_BYTES + extra_isize as usize > bytes.len() || extra_isize % 4 != 0 {
            return Err(Error::corrupt(STRUCTURE, place, format!("its extra size is {extra_isize}")));
        }
        let base: Base = wire::decode(STRUCTURE, place, bytes)?;
        Ok(Self::join(&base, bytes, extra_isize, geometry))
    }

    fn join(base: &Base, bytes: &[u8], extra_isize: u16, geometry: &Geometry) -> Self {
        let end = BASE_BYTES + extra_isize as usize;
        let extra = |at: usize| (at + 4 <= end).then(|| wire::get_u32(bytes, at));
        let flags = InodeFlags::from_bits_retain(base.flags);
        // Only regular files (and with large_dir directories) ever used the word for the size's upper half.
        let high_size = FileKind::from_mode(base.mode) == Some(FileKind::Regular)
            || geometry.features.incompat.contains(Incompat::LARGE_DIR);
        let size_high = if high_size { base.size_high as u64 } else { 0 };
        let huge = geometry.features.ro_compat.contains(RoCompat::HUGE_FILE);
        let blocks_high = if huge { base.blocks_high as u64 } else { 0 };
        let in_blocks = huge && flags.contains(InodeFlags::HUGE_FILE);
        let unit = if in_blocks { geometry.sectors_per_block() as u64 } else { 1 };
        Self {
            mode: base.mode,
            uid: base.uid_low as u32 | (base.uid_high as u32) << 16,
            gid: base.gid_low as u32 | (base.gid_high as u32) << 16,
            size: base.size_low as u64 | size_high << 32,
            atime: Timestamp::decode(base.atime, extra(ATIME_EXTRA_AT)),
            ctime: Timestamp::decode(base.ctime, extra(CTIME_EXTRA_AT)),
            mtime: Timestamp::decode(base.mtime, extra(MTIME_EXTRA_AT)),
            crtime: Timestamp::decode(extra(CRTIME_AT).unwrap_or(0), extra(CRTIME_EXTRA_AT)),
            dtime: base.dtime,
            links: base.links,
            blocks: (base.blocks_low as u64 | blocks_high << 32) * unit,
            flags,
            generation: base.generation,
            file_acl: BlockNr(base.file_acl_low as u64 | (base.file_acl_high as u64) << 32),
            block: base.block,
            extra_isize,
            version: base.version_low as u64 | (extra(VERSION_HIGH_AT).unwrap_or(0) as u64) << 32,
            projid: extra(PROJID_AT).unwrap_or(0),
        }
    }

    /// Encodes the inode over the `inode_bytes` at the start of `bytes`, sealed. What lies behind the
    /// extra fields (extended attributes) stays, and is in the checksum: encode last.
    pub fn encode(&self, bytes: &mut [u8], geometry: &Geometry, nr: InodeNr) -> Result<()> {
        let place = Place::Inode(nr);
        let bytes = bytes
            .get_mut(..geometry.inode_bytes as usize)
            .ok_or_else(|| Error::corrupt(STRUCTURE, place, "it is cut short"))?;
        if BASE_BYTES + self.extra_isize as usize > bytes.len() {
            return Err(Error::corrupt(STRUCTURE, place, format!("its extra size is {}", self.extra_isize)));
        }
        let end = BASE_BYTES + self.extra_isize as usize;
        // Each time has an extra word if the inode's fields reach that far.
        let short = |time: Timestamp, at| if at + 4 <= end { time.encode().0 } else { time.encode_short() };
        let (blocks, flags) = self.stored_blocks(geometry)?;
        let base = Base {
            mode: self.mode,
            uid_low: self.uid as u16,
            size_low: self.size as u32,
            atime: short(self.atime, ATIME_EXTRA_AT),
            ctime: short(self.ctime, CTIME_EXTRA_AT),
            mtime: short(self.mtime, MTIME_EXTRA_AT),
            dtime: self.dtime,
            gid_low: self.gid as u16,
            links: self.links,
            blocks_low: blocks as u32,
            flags: flags.bits(),
            version_low: self.version as u32,
            block: self.block,
            generation: self.generation,
            file_acl_low: self.file_acl.0 as u32,
            size_high: (self.size >> 32) as u32,
            fragment: wire::get_u32(bytes, 0x70),
            blocks_high: (blocks >> 32) as u16,
            file_acl_high: (self.file_acl.0 >> 32) as u16,
            uid_high: (self.uid >> 16) as u16,
            gid_high: (self.gid >> 16) as u16,
            checksum_low: 0,
            reserved: wire::get_u16(bytes, 0x7e),
        };
        wire::encode(&base, STRUCTURE, place, bytes)?;
        self.encode_extra(bytes);
        seal(bytes, geometry, nr);
        Ok(())
    }

    fn encode_extra(&self, bytes: &mut [u8]) {
        if bytes.len() <= BASE_BYTES {
            return;
        }
        let end = BASE_BYTES + self.extra_isize as usize;
        self.extra_isize.put(bytes, EXTRA_ISIZE_AT);
        let mut put = |at: usize, value: u32| {
            if at + 4 <= end {
                value.put(bytes, at);
            }
        };
        put(CTIME_EXTRA_AT, self.ctime.encode().1);
        put(MTIME_EXTRA_AT, self.mtime.encode().1);
        put(ATIME_EXTRA_AT, self.atime.encode().1);
        let wide = CRTIME_EXTRA_AT + 4 <= end;
        put(CRTIME_AT, if wide { self.crtime.encode().0 } else { self.crtime.encode_short() });
        put(CRTIME_EXTRA_AT, self.crtime.encode().1);
        put(VERSION_HIGH_AT, (self.version >> 32) as u32);
        put(PROJID_AT, self.projid);
    }

    /// What `i_blocks` holds, and the flags with the unit it is in.
    fn stored_blocks(&self, geometry: &Geometry) -> Result<(u64, InodeFlags)> {
        let small = self.flags.difference(InodeFlags::HUGE_FILE);
        let huge = geometry.features.ro_compat.contains(RoCompat::HUGE_FILE);
        if u32::try_from(self.blocks).is_ok() || huge && self.blocks < 1 << 48 {
            // The flag is meaningless without the feature: then it stays as it was found.
            return Ok((self.blocks, if huge { small } else { self.flags }));
        }
        let in_blocks = self.blocks / geometry.sectors_per_block() as u64;
        if !huge || in_blocks >= 1 << 48 {
            return Err(Error::FileTooBig);
        }
        Ok((in_blocks, self.flags | InodeFlags::HUGE_FILE))
    }
}

/// Recomputes an inode's checksum after a change of its bytes (such as its extended attributes).
pub fn seal(bytes: &mut [u8], geometry: &Geometry, nr: InodeNr) {
    if !geometry.has_csum() {
        return;
    }
    let (_, computed) = checksums(bytes, geometry, nr);
    (computed as u16).put(bytes, CHECKSUM_LOW_AT);
    if has_checksum_high(bytes) {
        ((computed >> 16) as u16).put(bytes, CHECKSUM_HIGH_AT);
    }
}

fn has_checksum_high(bytes: &[u8]) -> bool {
    bytes.len() > BASE_BYTES && wire::get_u16(bytes, EXTRA_ISIZE_AT) >= 4
}

/// The stored checksum and the right one, both cut to 16 bits where the inode has no room for 32.
fn checksums(bytes: &[u8], geometry: &Geometry, nr: InodeNr) -> (u32, u32) {
    let seed = geometry.inode_csum_seed(nr, wire::get_u32(bytes, 0x64));
    let part = |from: usize, to: usize| bytes.get(from..to.min(bytes.len())).unwrap_or_default();
    let mut sum = crc32c(seed, part(0, CHECKSUM_LOW_AT));
    sum = crc32c(sum, &[0; 2]);
    sum = crc32c(sum, part(CHECKSUM_LOW_AT + 2, BASE_BYTES));
    let mut stored = wire::get_u16(bytes, CHECKSUM_LOW_AT) as u32;
    if has_checksum_high(bytes) {
        sum = crc32c(sum, part(BASE_BYTES, CHECKSUM_HIGH_AT));
        sum = crc32c(sum, &[0; 2]);
        sum = crc32c(sum, part(CHECKSUM_HIGH_AT + 2, bytes.len()));
        stored |= (wire::get_u16(bytes, CHECKSUM_HIGH_AT) as u32) << 16;
        (stored, sum)
    } else {
        (stored, crc32c(sum, part(BASE_BYTES, bytes.len())) & 0xffff)
    }
}
