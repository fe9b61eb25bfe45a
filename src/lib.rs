//! journalfs mounts ext3 and ext4 file systems in user space, with a real jbd2-compatible journal.
//!
//! The layers, from the top; calls go downwards only (docs/DESIGN.md has the reasons):
//! `fuse` (VFS requests) → [`fs`] (the file system) → [`cache`] (blocks, inodes, handles) →
//! [`journal`] (transactions, commit, checkpoint, recovery) → [`mod@format`] (records, no I/O) and
//! [`device`] (where the bytes live).
#![deny(unsafe_code)]

#[macro_use]
mod words;

pub mod cache;
#[allow(unsafe_code)]
pub mod device;
pub mod error;
pub mod fault;
pub mod format;
pub mod fs;
#[allow(unsafe_code)]
pub mod fuse;
pub mod journal;
pub mod sync;
pub mod units;

pub use error::{Error, Place, Result};
