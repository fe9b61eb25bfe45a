//! What the front-end asks of a file system: [`crate::fs::Fs`], or anything else that should be
//! mounted through the same transport (a do-nothing file system to measure the transport itself).

use super::types::{Attr, Caller, DirEntry, FsXattr, RenameFlags, SetAttr, StatFs};
use crate::error::{Error, Result};
use crate::units::InodeNr;

/// What a finished [`Operations::fsync_then`] calls.
pub type Done = Box<dyn FnOnce(Result<()>) + Send>;

/// The operations of a mounted file system. All may be called from any thread at any time; names
/// are without NUL and slash, and a name too long is the implementation's to refuse.
pub trait Operations: Send + Sync + 'static {
    /// What [`Operations::read`] returns.
    type Data: AsRef<[u8]> + Send;

    /// Called once the kernel has accepted the mount: from now on it keeps inodes, and says when it forgets one.
    fn mounted(&self) {}
    /// The inode that `name` leads to.
    fn lookup(&self, parent: InodeNr, name: &[u8]) -> Result<Attr>;
    /// The attributes.
    fn getattr(&self, nr: InodeNr) -> Result<Attr>;
    /// Changes attributes, the size among them.
    fn setattr(&self, nr: InodeNr, changes: &SetAttr, caller: &Caller) -> Result<Attr>;
    /// A symbolic link's target.
    fn readlink(&self, nr: InodeNr) -> Result<Vec<u8>>;
    /// Makes anything but a directory or symbolic link.
    fn mknod(
        &self,
        parent: InodeNr,
        name: &[u8],
        mode: u32,
        rdev: u32,
        umask: u32,
        caller: &Caller,
    ) -> Result<Attr>;
    /// Makes a directory.
    fn mkdir(&self, parent: InodeNr, name: &[u8], mode: u32, umask: u32, caller: &Caller) -> Result<Attr>;
    /// Makes a symbolic link.
    fn symlink(&self, parent: InodeNr, name: &[u8], target: &[u8], caller: &Caller) -> Result<Attr>;
    /// Gives an inode another name.
    fn link(&self, nr: InodeNr, new_parent: InodeNr, new_name: &[u8], caller: &Caller) -> Result<Attr>;
    /// Removes a name that is not a directory's.
    fn unlink(&self, parent: InodeNr, name: &[u8]) -> Result<()>;
    /// Removes an empty directory.
    fn rmdir(&self, parent: InodeNr, name: &[u8]) -> Result<()>;
    /// Moves a name.
    fn rename(
        &self,
        parent: InodeNr,
        name: &[u8],
        new_parent: InodeNr,
        new_name: &[u8],
        flags: RenameFlags,
        caller: &Caller,
    ) -> Result<()>;
    /// Makes a regular file without a name, open.
    fn tmpfile(&self, parent: InodeNr, mode: u32, umask: u32, caller: &Caller) -> Result<Attr>;
    /// Notes an open file; refuses what the inode's flags forbid.
    fn open(&self, nr: InodeNr, flags: i32) -> Result<()>;
    /// Undoes one [`Operations::open`].
    fn release(&self, nr: InodeNr) -> Result<()>;
    /// Reads up to `size` bytes; fewer only at the end of the file.
    fn read(&self, nr: InodeNr, offset: u64, size: u32) -> Result<Self::Data>;
    /// Writes all of `data`; with `kill_priv` the set-user-ID and set-group-ID bits go.
    fn write(&self, nr: InodeNr, offset: u64, data: &[u8], caller: &Caller, kill_priv: bool) -> Result<u32>;
    /// Makes the inode's changes durable, then calls `done`, perhaps from another thread.
    fn fsync_then(&self, nr: InodeNr, datasync: bool, pid: u32, done: Done);
    /// Makes everything durable.
    fn sync(&self) -> Result<()>;
    /// Calls `emit` for each entry behind `cookie` (0: from the start) until it returns false.
    fn readdir(&self, nr: InodeNr, cookie: u64, emit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()>;
    /// `fallocate(2)`.
    fn fallocate(&self, nr: InodeNr, mode: i32, offset: u64, len: u64, caller: &Caller) -> Result<()>;
    /// `SEEK_DATA` and `SEEK_HOLE`.
    fn seek(&self, nr: InodeNr, offset: u64, whence: i32) -> Result<u64>;
    /// `copy_file_range(2)`.
    fn copy_range(
        &self,
        from: InodeNr,
        from_offset: u64,
        to: InodeNr,
        to_offset: u64,
        len: u64,
        caller: &Caller,
    ) -> Result<u64>;
    /// An extended attribute's value.
    fn getxattr(&self, nr: InodeNr, name: &[u8]) -> Result<Vec<u8>>;
    /// Sets an extended attribute.
    fn setxattr(&self, nr: InodeNr, name: &[u8], value: &[u8], flags: i32, caller: &Caller) -> Result<()>;
    /// The names of the extended attributes, each with a NUL behind it.
    fn listxattr(&self, nr: InodeNr) -> Result<Vec<u8>>;
    /// Removes an extended attribute.
    fn removexattr(&self, nr: InodeNr, name: &[u8], caller: &Caller) -> Result<()>;
    /// The inode flags, as `FS_IOC_GETFLAGS` has them.
    fn get_flags(&self, nr: InodeNr) -> Result<u32>;
    /// Sets the inode flags.
    fn set_flags(&self, nr: InodeNr, flags: u32, caller: &Caller) -> Result<()>;
    /// The flags as `FS_IOC_FSGETXATTR` has them.
    fn get_fsxattr(&self, nr: InodeNr) -> Result<FsXattr>;
    /// Sets them.
    fn set_fsxattr(&self, nr: InodeNr, set: FsXattr, caller: &Caller) -> Result<()>;
    /// FITRIM; returns the bytes discarded.
    fn trim(&self, start: u64, len: u64, min_len: u64) -> Result<u64>;
    /// `statfs(2)`.
    fn statfs(&self) -> Result<StatFs>;
    /// The kernel holds no reference to the inode any more.
    fn forget(&self, nr: InodeNr);

    /// Whether such a read might wait for the device: only a hint for which thread does it.
    fn read_may_wait(&self, _nr: InodeNr, _offset: u64, _size: u32) -> bool {
        true
    }
    /// Whether such a write might wait for the device.
    fn write_may_wait(&self, _nr: InodeNr, _offset: u64, _len: usize) -> bool {
        false
    }
    /// Whether [`Operations::fsync_then`] might wait itself, before it leaves the rest to others.
    fn fsync_may_wait(&self, _nr: InodeNr, _datasync: bool) -> bool {
        true
    }
    /// Whether anything with this inode might wait: it is not in memory, or locked by somebody at work on it.
    fn is_busy(&self, _nr: InodeNr) -> bool {
        false
    }
    /// Runs `f`, which only looks, if that needs no waiting for the device.
    fn at_once<R>(&self, f: impl FnOnce() -> Result<R>) -> Option<Result<R>> {
        Some(f())
    }
    /// Whether a release might wait for the device.
    fn release_may_wait(&self, _nr: InodeNr) -> bool {
        false
    }
    /// The volume label, at most 16 bytes.
    fn label(&self) -> Result<Vec<u8>> {
        Err(Error::NotTty)
    }
    /// Sets the volume label.
    fn set_label(&self, _label: &[u8], _caller: &Caller) -> Result<()> {
        Err(Error::NotTty)
    }
    /// What `journalfs sync`, `stats` and the like act on, if anything.
    fn target(&self) -> Option<&dyn super::control::Target> {
        None
    }
}
