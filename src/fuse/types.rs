//! What the operations exchange with the front-end.

pub use crate::fs::attr::{Attr, Caller, SetAttr, TimeOrNow};
use crate::units::InodeNr;

/// One entry of a directory listing.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct DirEntry<'a> {
    /// What the name stands for.
    pub nr: InodeNr,
    /// Its type (`EXT4_FT_*`); 0 where directory entries have none.
    pub kind: u8,
    /// The name.
    pub name: &'a [u8],
    /// Where a listing goes on behind it.
    pub next_cookie: u64,
}

bitflags::bitflags! {
    /// The flags of renameat2(2).
    #[derive(Copy, Clone, PartialEq, Eq, Debug)]
    pub struct RenameFlags: u32 {
        /// Fail if the target exists.
        const NOREPLACE = libc::RENAME_NOREPLACE;
        /// Both names change places.
        const EXCHANGE = libc::RENAME_EXCHANGE;
        /// Leave a whiteout where the source was.
        const WHITEOUT = libc::RENAME_WHITEOUT;
    }
}

/// What statfs(2) shows; blocks of `block_bytes`.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct StatFs {
    /// Bytes in a block.
    pub block_bytes: u32,
    /// Blocks that files can have.
    pub blocks: u64,
    /// Free blocks.
    pub free: u64,
    /// Of these, what programs without privilege may use.
    pub available: u64,
    /// Inodes.
    pub inodes: u64,
    /// Free inodes.
    pub free_inodes: u64,
    /// Bytes in the longest name.
    pub name_max: u32,
}

/// What `FS_IOC_FSGETXATTR` shows.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct FsXattr {
    /// `FS_XFLAG_*`.
    pub xflags: u32,
    /// The project.
    pub projid: u32,
}
