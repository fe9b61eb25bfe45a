//! The on-disk records of ext3, ext4 and jbd2: decoding, encoding and checksums, with no I/O.
//! Everything above may call it; it calls nothing of the project's but `units` and `error`.
//!
//! A decoder refuses what the format doesn't allow, so what it returns can be used without further
//! checks of the record itself; checks across records are the caller's. An encoder leaves its record sealed: with the
//! checksum that the file system's features ask for.

pub mod acl;
pub mod bitmap;
pub mod checksum;
pub mod dirent;
pub mod extent;
pub mod features;
pub mod geometry;
pub mod group;
pub mod hash;
pub mod htree;
pub mod indirect;
pub mod inode;
pub mod jbd2;
pub mod mmp;
pub mod orphan_file;
pub mod superblock;
pub mod time;
mod wire;
pub mod xattr;

#[cfg(test)]
mod oracle;

pub use features::{Compat, Features, Incompat, RoCompat};
pub use geometry::Geometry;
pub use group::GroupDescriptor;
pub use inode::{FileKind, InodeFlags, RawInode};
pub use superblock::Superblock;
pub use time::Timestamp;
