//! Makes ext3 and ext4 file systems: what mkfs.journalfs does, as a library that writes to any
//! [`Device`].
//!
//! A run is four steps, each of which needs the one before: the shape of the file system
//! ([`mod@shape`], from the options and the device's size), the places of the groups' bitmaps and inode tables
//! (`tables`), the first files (`files`: root, lost+found, journal, ...), and the writing (`write`).
//! Nothing is written before everything has been decided.
#![forbid(unsafe_code)]

mod features;
mod files;
mod journal;
pub mod options;
mod populate;
pub mod probe;
pub mod shape;
mod space;
mod tables;
mod write;

pub use options::{FeatureEdit, JournalSize, Options, Profile};
pub use populate::{populate, Failure, Populated};

use journalfs::device::Device;
use journalfs::format::{Geometry, GroupDescriptor, Superblock};
use journalfs::units::BlockRange;
use journalfs::Result;

/// The file system that was made, or that would be made.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The superblock, as written to block group 0.
    pub superblock: Superblock,
    /// What follows from it.
    pub geometry: Geometry,
    /// The descriptors of all groups.
    pub descriptors: Vec<GroupDescriptor>,
    /// Where the journal lies; empty if there is none.
    pub journal: Vec<BlockRange>,
    /// What differs from what the user may expect, a sentence each.
    pub notes: Vec<String>,
}

/// Works out the file system for a device of `device_bytes` without writing anything.
pub fn plan(device_bytes: u64, options: &Options) -> Result<Layout> {
    Ok(files::build(device_bytes, options)?.layout)
}

/// Makes a file system on `device`, over whatever was there. When this returns, it is durable.
pub fn format(device: &dyn Device, options: &Options) -> Result<Layout> {
    let built = files::build(device.size_bytes(), options)?;
    write::write(device, options, &built)?;
    Ok(built.layout)
}
