//! The structures of <linux/fuse.h>, as far as we use them, in the machine's byte order.

use super::super::types::Attr;
use crate::error::Result;
use crate::format::time::Timestamp;
use std::time::Duration;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The protocol's major version.
pub(super) const VERSION: u32 = 7;
/// The newest minor version that we know.
pub(super) const MINOR_VERSION: u32 = 45;

/// Declares request structures: plain memory that the kernel fills.
macro_rules! requests {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),* $(,)? })*) => {
        $($(#[$doc])*
        #[derive(Copy, Clone, Debug, FromBytes, Immutable, KnownLayout)]
        #[repr(C)]
        #[allow(dead_code)]
        pub(super) struct $name { $(pub(super) $field: $type),* })*
    };
}

requests! {
    /// `fuse_in_header`: what every request begins with.
    InHeader { len: u32, opcode: u32, unique: u64, node: u64, uid: u32, gid: u32, pid: u32, extensions: u16, pad: u16 }
    InitIn { major: u32, minor: u32, max_readahead: u32, flags: u32 }
    ForgetIn { count: u64 }
    BatchForgetIn { count: u32, pad: u32 }
    ForgetOne { node: u64, count: u64 }
    SetattrIn {
        valid: u32, pad: u32, handle: u64, size: u64, lock_owner: u64, atime: i64, mtime: i64, ctime: i64,
        atime_ns: u32, mtime_ns: u32, ctime_ns: u32, mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }
    MknodIn { mode: u32, rdev: u32, umask: u32, pad: u32 }
    MkdirIn { mode: u32, umask: u32 }
    RenameIn { new_parent: u64 }
    Rename2In { new_parent: u64, flags: u32, pad: u32 }
    LinkIn { node: u64 }
    OpenIn { flags: u32, open_flags: u32 }
    CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    ReadIn { handle: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, pad: u32 }
    WriteIn { handle: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, pad: u32 }
    FsyncIn { handle: u64, flags: u32, pad: u32 }
    SetxattrIn { size: u32, flags: u32 }
    GetxattrIn { size: u32, pad: u32 }
    IoctlIn { handle: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32 }
    FallocateIn { handle: u64, offset: u64, len: u64, mode: u32, pad: u32 }
    LseekIn { handle: u64, offset: u64, whence: u32, pad: u32 }
    CopyIn { handle: u64, offset: u64, to_node: u64, to_handle: u64, to_offset: u64, len: u64, flags: u64 }
}

/// Declares answer structures.
macro_rules! answers {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),* $(,)? })*) => {
        $($(#[$doc])*
        #[derive(Copy, Clone, Debug, Default, IntoBytes, Immutable)]
        #[repr(C)]
        pub(super) struct $name { $(pub(super) $field: $type),* })*
    };
}

answers! {
    OutHeader { len: u32, error: i32, unique: u64 }
    InitOut {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16, congestion: u16,
        max_write: u32, time_granularity: u32, max_pages: u16, map_alignment: u16, flags2: u32, unused: [u32; 7],
    }
    AttrWire {
        ino: u64, size: u64, blocks: u64, atime: i64, mtime: i64, ctime: i64, atime_ns: u32, mtime_ns: u32,
        ctime_ns: u32, mode: u32, links: u32, uid: u32, gid: u32, rdev: u32, block_bytes: u32, flags: u32,
    }
    EntryOut {
        node: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_ns: u32, attr_valid_ns: u32,
        attr: AttrWire,
    }
    AttrOut { valid: u64, valid_ns: u32, pad: u32, attr: AttrWire }
    OpenOut { handle: u64, flags: u32, backing: u32 }
    CreateOut { entry: EntryOut, open: OpenOut }
    WriteOut { size: u32, pad: u32 }
    SizeOut { size: u32, pad: u32 }
    LseekOut { offset: u64 }
    StatfsOut {
        blocks: u64, free: u64, available: u64, files: u64, free_files: u64, block_bytes: u32, name_max: u32,
        fragment_bytes: u32, pad: u32, spare: [u32; 6],
    }
    IoctlOut { result: i32, flags: u32, in_iovs: u32, out_iovs: u32 }
    Dirent { ino: u64, offset: u64, name_len: u32, kind: u32 }
    Time { seconds: i64, nanoseconds: u32, pad: i32 }
    Statx {
        mask: u32, block_bytes: u32, attributes: u64, links: u32, uid: u32, gid: u32, mode: u16, pad: u16,
        ino: u64, size: u64, blocks: u64, attributes_mask: u64, atime: Time, btime: Time, ctime: Time, mtime: Time,
        rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, spare: [u64; 14],
    }
    StatxOut { valid: u64, valid_ns: u32, flags: u32, spare: [u64; 2], statx: Statx }
}

impl AttrWire {
    /// Attributes, with the inode's own number for stat to show.
    pub(super) fn of(attr: &Attr) -> Self {
        Self {
            ino: u64::from(attr.nr.0),
            size: attr.size,
            blocks: attr.blocks,
            atime: attr.atime.seconds,
            mtime: attr.mtime.seconds,
            ctime: attr.ctime.seconds,
            atime_ns: attr.atime.nanoseconds,
            mtime_ns: attr.mtime.nanoseconds,
            ctime_ns: attr.ctime.nanoseconds,
            mode: u32::from(attr.mode),
            links: attr.links,
            uid: attr.uid,
            gid: attr.gid,
            rdev: attr.rdev,
            block_bytes: attr.block_bytes,
            flags: 0,
        }
    }
}

impl EntryOut {
    /// An entry that leads to an inode.
    pub(super) fn of(attr: &Attr, entry_valid: Duration, attr_valid: Duration) -> Result<Self> {
        Ok(Self {
            node: super::super::node::node_of(attr.nr)?,
            generation: u64::from(attr.generation),
            entry_valid: entry_valid.as_secs(),
            attr_valid: attr_valid.as_secs(),
            entry_valid_ns: entry_valid.subsec_nanos(),
            attr_valid_ns: attr_valid.subsec_nanos(),
            attr: AttrWire::of(attr),
        })
    }

    /// What says that a name does not exist, and for how long that may be believed.
    pub(super) fn none(valid: Duration) -> Self {
        Self { entry_valid: valid.as_secs(), entry_valid_ns: valid.subsec_nanos(), ..Self::default() }
    }
}

impl AttrOut {
    /// Attributes, and how long they may be believed.
    pub(super) fn of(attr: &Attr, valid: Duration) -> Self {
        Self { valid: valid.as_secs(), valid_ns: valid.subsec_nanos(), pad: 0, attr: AttrWire::of(attr) }
    }
}

impl From<Timestamp> for Time {
    fn from(time: Timestamp) -> Self {
        Self { seconds: time.seconds, nanoseconds: time.nanoseconds, pad: 0 }
    }
}

impl StatxOut {
    /// All that statx(2) shows of an inode: the basic attributes and its birth.
    pub(super) fn of(attr: &Attr, valid: Duration) -> Self {
        const BASIC_AND_BTIME: u32 = 0x0fff;
        let statx = Statx {
            mask: BASIC_AND_BTIME,
            block_bytes: attr.block_bytes,
            links: attr.links,
            uid: attr.uid,
            gid: attr.gid,
            mode: attr.mode,
            ino: u64::from(attr.nr.0),
            size: attr.size,
            blocks: attr.blocks,
            atime: attr.atime.into(),
            btime: attr.crtime.into(),
            ctime: attr.ctime.into(),
            mtime: attr.mtime.into(),
            rdev_major: libc::major(u64::from(attr.rdev)),
            rdev_minor: libc::minor(u64::from(attr.rdev)),
            ..Statx::default()
        };
        Self { valid: valid.as_secs(), valid_ns: valid.subsec_nanos(), statx, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::size_of;

    #[test]
    fn sizes_are_the_kernels() {
        assert_eq!(size_of::<InHeader>(), 40);
        assert_eq!(size_of::<SetattrIn>(), 88);
        assert_eq!((size_of::<ReadIn>(), size_of::<WriteIn>()), (40, 40));
        assert_eq!((size_of::<IoctlIn>(), size_of::<FallocateIn>(), size_of::<CopyIn>()), (32, 32, 56));
        assert_eq!((size_of::<OutHeader>(), size_of::<InitOut>()), (16, 64));
        assert_eq!((size_of::<AttrWire>(), size_of::<EntryOut>(), size_of::<AttrOut>()), (88, 128, 104));
        assert_eq!((size_of::<CreateOut>(), size_of::<StatfsOut>(), size_of::<StatxOut>()), (144, 80, 288));
    }
}
