//! A tree with something of everything a Linux program may make, and changes to it. The same calls in
//! the same order each time; where a driver may refuse, its answer goes into a log that compares.

mod attributes;
mod data;
mod names;

use std::fs::{self, File, OpenOptions};
use std::path::Path;

use rustix::fs::{chownat, setxattr, AtFlags, Gid, Uid, XattrFlags, CWD};

/// What the file system at hand can hold.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Abilities {
    /// Extent-mapped files: preallocation works.
    pub(crate) extents: bool,
    /// Inodes of 256 bytes: nanoseconds, and times after 2038.
    pub(crate) wide_times: bool,
    /// Entries in the wide directory; enough for htree splits where there is room.
    pub(crate) wide_directory: u32,
}

impl Abilities {
    /// Extents, wide inodes, a wide directory.
    pub(crate) const FULL: Self = Self { extents: true, wide_times: true, wide_directory: 3000 };
}

/// Answers of calls that a driver may refuse, in order.
pub(crate) type Log = Vec<String>;

/// Makes the tree below `root`.
pub(crate) fn build(root: &Path, abilities: Abilities) -> Log {
    let mut log = Log::new();
    names::names(root);
    data::contents(root);
    data::mapped(root, abilities, &mut log);
    names::links(root);
    names::nodes(root);
    names::directories(root, abilities);
    attributes::owners(root);
    attributes::attributes(root, &mut log);
    attributes::acls(root);
    attributes::flags(root);
    attributes::times(root, abilities);
    log
}

/// Changes the tree that [`build`] made, in every way that it can be changed.
pub(crate) fn change(root: &Path, abilities: Abilities) -> Log {
    let mut log = Log::new();
    names::renames(root, &mut log);
    data::resizes(root, abilities, &mut log);
    names::removals(root, abilities);
    attributes::changed_attributes(root, &mut log);
    attributes::times(root, abilities);
    log
}

fn make(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).unwrap_or_else(|error| panic!("write {}: {error}", path.display()));
}

fn make_dir(path: &Path) {
    fs::create_dir(path).unwrap_or_else(|error| panic!("mkdir {}: {error}", path.display()));
}

fn edit(path: &Path) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .unwrap_or_else(|error| panic!("open {}: {error}", path.display()))
}

/// `length` bytes that no two places share.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

fn note<T>(log: &mut Log, what: &str, result: rustix::io::Result<T>) {
    let answer = result.map_or_else(|error| format!("{error:?}"), |_| "ok".to_owned());
    log.push(format!("{what}: {answer}"));
}

fn chown(path: &Path, uid: u32, gid: u32) {
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    chownat(CWD, path, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
        .unwrap_or_else(|error| panic!("chown {}: {error}", path.display()));
}

fn set_attribute(path: &Path, name: &str, value: &[u8]) -> Result<(), rustix::io::Errno> {
    setxattr(path, name, value, XattrFlags::empty())
}
