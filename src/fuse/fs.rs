//! [`Fs`] as what the front-end serves.

use super::control::Target;
use super::operations::{Done, Operations};
use super::types::{Attr, Caller, DirEntry, FsXattr, RenameFlags, SetAttr, StatFs};
use crate::error::Result;
use crate::fs::{Fs, ReadBytes};
use crate::units::InodeNr;

impl AsRef<[u8]> for ReadBytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Operations for Fs {
    type Data = ReadBytes;

    fn mounted(&self) {
        self.expect_forgets();
    }

    fn lookup(&self, parent: InodeNr, name: &[u8]) -> Result<Attr> {
        Fs::lookup(self, parent, name)
    }

    fn getattr(&self, nr: InodeNr) -> Result<Attr> {
        Fs::getattr(self, nr)
    }

    fn setattr(&self, nr: InodeNr, changes: &SetAttr, caller: &Caller) -> Result<Attr> {
        Fs::setattr(self, nr, changes, caller)
    }

    fn readlink(&self, nr: InodeNr) -> Result<Vec<u8>> {
        Fs::readlink(self, nr)
    }

    fn mknod(
        &self,
        parent: InodeNr,
        name: &[u8],
        mode: u32,
        rdev: u32,
        umask: u32,
        caller: &Caller,
    ) -> Result<Attr> {
        Fs::mknod(self, parent, name, mode, rdev, umask, caller)
    }

    fn mkdir(&self, parent: InodeNr, name: &[u8], mode: u32, umask: u32, caller: &Caller) -> Result<Attr> {
        Fs::mkdir(self, parent, name, mode, umask, caller)
    }

    fn symlink(&self, parent: InodeNr, name: &[u8], target: &[u8], caller: &Caller) -> Result<Attr> {
        Fs::symlink(self, parent, name, target, caller)
    }

    fn link(&self, nr: InodeNr, new_parent: InodeNr, new_name: &[u8], caller: &Caller) -> Result<Attr> {
        Fs::link(self, nr, new_parent, new_name, caller)
    }

    fn unlink(&self, parent: InodeNr, name: &[u8]) -> Result<()> {
        Fs::unlink(self, parent, name)
    }

    fn rmdir(&self, parent: InodeNr, name: &[u8]) -> Result<()> {
        Fs::rmdir(self, parent, name)
    }

    fn rename(
        &self,
        parent: InodeNr,
        name: &[u8],
        new_parent: InodeNr,
        new_name: &[u8],
        flags: RenameFlags,
        caller: &Caller,
    ) -> Result<()> {
        Fs::rename(self, parent, name, new_parent, new_name, flags, caller)
    }

    fn tmpfile(&self, parent: InodeNr, mode: u32, umask: u32, caller: &Caller) -> Result<Attr> {
        Fs::tmpfile(self, parent, mode, umask, caller)
    }

    fn open(&self, nr: InodeNr, flags: i32) -> Result<()> {
        Fs::open(self, nr, flags)
    }

    fn release(&self, nr: InodeNr) -> Result<()> {
        Fs::release(self, nr)
    }

    fn read(&self, nr: InodeNr, offset: u64, size: u32) -> Result<ReadBytes> {
        Fs::read(self, nr, offset, size)
    }

    fn write(&self, nr: InodeNr, offset: u64, data: &[u8], caller: &Caller, kill_priv: bool) -> Result<u32> {
        Fs::write(self, nr, offset, data, caller, kill_priv)
    }

    fn fsync_then(&self, nr: InodeNr, datasync: bool, pid: u32, done: Done) {
        Fs::fsync_then(self, nr, datasync, pid, done);
    }

    fn sync(&self) -> Result<()> {
        Fs::sync(self)
    }

    fn readdir(&self, nr: InodeNr, cookie: u64, emit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        Fs::readdir(self, nr, cookie, emit)
    }

    fn fallocate(&self, nr: InodeNr, mode: i32, offset: u64, len: u64, caller: &Caller) -> Result<()> {
        Fs::fallocate(self, nr, mode, offset, len, caller)
    }

    fn seek(&self, nr: InodeNr, offset: u64, whence: i32) -> Result<u64> {
        Fs::seek(self, nr, offset, whence)
    }

    fn copy_range(
        &self,
        from: InodeNr,
        from_offset: u64,
        to: InodeNr,
        to_offset: u64,
        len: u64,
        caller: &Caller,
    ) -> Result<u64> {
        Fs::copy_range(self, from, from_offset, to, to_offset, len, caller)
    }

    fn getxattr(&self, nr: InodeNr, name: &[u8]) -> Result<Vec<u8>> {
        Fs::getxattr(self, nr, name)
    }

    fn setxattr(&self, nr: InodeNr, name: &[u8], value: &[u8], flags: i32, caller: &Caller) -> Result<()> {
        Fs::setxattr(self, nr, name, value, flags, caller)
    }

    fn listxattr(&self, nr: InodeNr) -> Result<Vec<u8>> {
        Fs::listxattr(self, nr)
    }

    fn removexattr(&self, nr: InodeNr, name: &[u8], caller: &Caller) -> Result<()> {
        Fs::removexattr(self, nr, name, caller)
    }

    fn get_flags(&self, nr: InodeNr) -> Result<u32> {
        Fs::get_flags(self, nr)
    }

    fn set_flags(&self, nr: InodeNr, flags: u32, caller: &Caller) -> Result<()> {
        Fs::set_flags(self, nr, flags, caller)
    }

    fn get_fsxattr(&self, nr: InodeNr) -> Result<FsXattr> {
        Fs::get_fsxattr(self, nr)
    }

    fn set_fsxattr(&self, nr: InodeNr, set: FsXattr, caller: &Caller) -> Result<()> {
        Fs::set_fsxattr(self, nr, set, caller)
    }

    fn trim(&self, start: u64, len: u64, min_len: u64) -> Result<u64> {
        Fs::trim(self, start, len, min_len)
    }

    fn statfs(&self) -> Result<StatFs> {
        Fs::statfs(self)
    }

    fn forget(&self, nr: InodeNr) {
        Fs::forget(self, nr);
    }

    fn fsync_may_wait(&self, nr: InodeNr, datasync: bool) -> bool {
        !self.sync_is_quick(nr, datasync)
    }

    fn is_busy(&self, nr: InodeNr) -> bool {
        Fs::is_busy(self, nr)
    }

    fn at_once<R>(&self, f: impl FnOnce() -> Result<R>) -> Option<Result<R>> {
        Fs::at_once(self, f)
    }

    fn write_may_wait(&self, nr: InodeNr, offset: u64, len: usize) -> bool {
        Fs::write_may_wait(self, nr, offset, len)
    }

    fn release_may_wait(&self, nr: InodeNr) -> bool {
        Fs::is_busy(self, nr)
    }

    fn target(&self) -> Option<&dyn Target> {
        Some(self)
    }

    fn label(&self) -> Result<Vec<u8>> {
        Fs::label(self)
    }

    fn set_label(&self, label: &[u8], caller: &Caller) -> Result<()> {
        Fs::set_label(self, label, caller)
    }
}
