//! The file system: names, files, mapping, allocation, attributes, orphans.
//! Called by `fuse/`, `mkfs -d`, tests and benchmarks; everything FUSE can do works here without a mount.
//!
//! Lock order, outermost first:
//! 1. `Fs::rename_lock` (renames of directories only)
//! 2. inodes, parent before child, else by number (`Fs::lock_two`)
//! 3. the journal's update lock, inside `Fs::update`
//! 4. the allocator's, orphan list's and cache shards' own mutexes
//!
//! An operation takes its inodes' locks, works on copies of their records inside `Fs::update`, and
//! publishes the copies (`InodeState::publish`) when that has returned `Ok`.

pub mod acl;
pub mod alloc;
pub mod attr;
pub mod dir;
pub mod groups;
pub mod inode;
pub mod inode_table;
pub mod map;
pub mod namespace;
pub mod options;
pub mod superblock;
pub mod xattr;

#[cfg(test)]
mod attribute_tests;
mod control;
mod core;
mod data;
mod errors;
mod fallocate;
pub mod fast_commit;
mod features;
mod file;
mod flags;
mod inactivate;
mod memory;
mod mount;
mod orphan;
mod seek;
mod setattr;
mod statfs;
mod sync;
#[cfg(test)]
mod testing;
mod truncate;
mod writeback;
mod xattr_ops;

pub use self::control::ShutdownMode;
pub use self::core::Fs;
pub use errors::OnPanic;
pub use file::ReadBytes;
pub use flags::FsXattr;
pub use inactivate::Fate;
pub use inode::{Inode, InodeCache, InodeState};
pub use mount::read_superblock;
pub use namespace::RenameFlags;
pub use statfs::{StatFs, LABEL_MAX, NAME_MAX};
