//! What a request means, apart from how it arrives and how its answer is encoded.
//!
//! A transport decodes a request, calls one method here (directly, or on a worker if it [may wait](Lane)), and
//! encodes what comes back. Everything about node ids, reference counts, set-user-ID bits and attribute
//! visibility is here, so that a second transport cannot get it differently.

use super::ioctl;
use super::node::{inode_of, References};
use super::operations::{Done, Operations};
use super::options::FuseOptions;
use super::types::{Attr, Caller, RenameFlags, SetAttr, StatFs};
use crate::error::{Error, Result};
use crate::units::InodeNr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Whether a request is answered where it was read, or handed to a worker.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Lane {
    /// It needs memory only.
    Inline,
    /// It may wait for the device.
    Worker,
}

impl Lane {
    pub(super) fn of(may_wait: bool) -> Self {
        if may_wait {
            Self::Worker
        } else {
            Self::Inline
        }
    }

    /// Where IOCTL belongs: reading flags is quick, the rest need not be.
    pub(super) fn of_ioctl(input_bytes: usize) -> Self {
        Self::of(input_bytes > 0)
    }
}

/// A directory entry on its way to the kernel.
pub(super) struct ListedEntry {
    /// The inode's number, as `d_ino` shows it.
    pub nr: InodeNr,
    /// The type, as the upper bits of a mode.
    pub mode: u32,
    /// Its name.
    pub name: Vec<u8>,
    /// Where reading goes on behind it.
    pub next_cookie: u64,
    /// The inode's attributes, if they were asked for and could be read.
    pub attr: Option<Attr>,
}

impl ListedEntry {
    fn gives_reference(&self) -> bool {
        self.attr.is_some() && self.name != b"." && self.name != b".."
    }
}

/// A value whose size the caller may only be asking for.
pub(super) enum Sized {
    /// How long the value is.
    Size(u32),
    /// The value.
    Value(Vec<u8>),
}

impl Sized {
    /// The answer to a caller with room for `room` bytes (0: asks for the size).
    fn new(value: Vec<u8>, room: u32) -> Result<Self> {
        match room {
            0 => Ok(Sized::Size(value.len() as u32)),
            room if value.len() > room as usize => Err(Error::Range),
            _ => Ok(Sized::Value(value)),
        }
    }
}

/// A file above this size may take long to truncate.
const QUICK_TRUNCATE_BYTES: u64 = 16 << 20;
/// A read up to this size may be done in place.
const QUICK_READ_BYTES: u32 = 128 << 10;
/// As long as such reads take less than this on average: less than handing them over costs others.
const QUICK_READ_TIME: Duration = Duration::from_micros(50);

/// A running average of how long something takes, over its last dozen times or so.
struct Average(AtomicU64);

impl Average {
    /// Slow until shown otherwise.
    fn new() -> Self {
        Self(AtomicU64::new(1_000_000))
    }

    fn add(&self, time: Duration) {
        // Two threads may overwrite each other's sample: it is an estimate.
        let average = self.0.load(Ordering::Relaxed);
        // A single hiccup counts as a slow read, not as a hundred.
        let sample = (time.as_nanos() as u64).min(1_000_000);
        self.0.store(average - average / 8 + sample / 8, Ordering::Relaxed);
    }

    fn is_below(&self, limit: Duration) -> bool {
        u128::from(self.0.load(Ordering::Relaxed)) < limit.as_nanos()
    }
}

/// Directory entries taken from the file system at a time.
const LISTING_BATCH: usize = 64;

/// A mounted file system, as requests see it.
pub(super) struct Service<O> {
    ops: Arc<O>,
    references: References,
    options: FuseOptions,
    info: super::control::Info,
    read_time: Average,
}

impl<O: Operations> Service<O> {
    /// Serves `ops`.
    pub(super) fn new(ops: Arc<O>, options: FuseOptions) -> Self {
        let device = std::path::Path::new(&options.source);
        let info = super::control::Info::of_this_process(device, options.read_only);
        Self { ops, references: References::new(), options, info, read_time: Average::new() }
    }

    /// The options of the mount.
    pub(super) fn options(&self) -> &FuseOptions {
        &self.options
    }

    /// Counts the reference that the kernel gets with an entry.
    fn give(&self, attr: Attr) -> Result<Attr> {
        super::node::node_of(attr.nr)?;
        self.references.add(attr.nr);
        Ok(attr)
    }

    /// LOOKUP; `None` if there is no such name. "." and ".." come only from file handles.
    pub(super) fn lookup(&self, parent: u64, name: &[u8]) -> Result<Option<Attr>> {
        let parent = inode_of(parent)?;
        let found = if name == b"." { self.live(parent) } else { self.ops.lookup(parent, name) };
        match found {
            Ok(attr) => self.give(attr).map(Some),
            Err(error) if error.is(libc::ENOENT) && name != b"." => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The attributes of an inode that has a name.
    fn live(&self, nr: InodeNr) -> Result<Attr> {
        let attr = self.ops.getattr(nr)?;
        if attr.links == 0 {
            return Err(Error::Stale);
        }
        Ok(attr)
    }

    /// FORGET: `count` entries that the kernel had been given.
    pub(super) fn forget(&self, node: u64, count: u64) {
        if let Ok(nr) = inode_of(node) {
            self.drop_references(nr, count);
        }
    }

    fn drop_references(&self, nr: InodeNr, count: u64) {
        if self.references.drop_some(nr, count) {
            self.ops.forget(nr);
        }
    }

    /// The kernel has let go of everything: the mount is gone.
    pub(super) fn forget_all(&self) {
        for nr in self.references.drain() {
            self.ops.forget(nr);
        }
    }

    /// GETATTR.
    pub(super) fn getattr(&self, node: u64) -> Result<Attr> {
        self.ops.getattr(inode_of(node)?)
    }

    /// Where a request belongs that changes this inode, or looks at it.
    pub(super) fn lane(&self, node: u64) -> Lane {
        Lane::of(inode_of(node).is_ok_and(|nr| self.ops.is_busy(nr)))
    }

    /// Does what only looks at things, if no waiting for the device is needed.
    pub(super) fn at_once<R>(&self, look: impl FnOnce(&Self) -> Result<R>) -> Option<Result<R>> {
        self.ops.at_once(|| look(self))
    }

    /// Where SETATTR belongs: a truncation of a large file may take long.
    pub(super) fn setattr_lane(&self, node: u64, size: Option<u64>) -> Lane {
        match size {
            Some(size) => self.truncate_lane(node, size),
            None => self.lane(node),
        }
    }

    fn truncate_lane(&self, node: u64, size: u64) -> Lane {
        if self.lane(node) == Lane::Worker {
            return Lane::Worker;
        }
        match self.getattr(node) {
            Ok(attr) if attr.size.saturating_sub(size) > QUICK_TRUNCATE_BYTES => Lane::Worker,
            // The tail of the last block may have to be read to be zeroed.
            Ok(_) if size == 0 => Lane::Inline,
            Ok(_) => Lane::Worker,
            Err(_) => Lane::Inline,
        }
    }

    /// SETATTR.
    pub(super) fn setattr(&self, node: u64, changes: SetAttr, caller: &Caller) -> Result<Attr> {
        let nr = inode_of(node)?;
        match self.ops.setattr(nr, &changes, caller) {
            // With the writeback cache the kernel keeps times itself and writes them back later, perhaps to a file
            // that has lost its last name meanwhile. Nobody can see them any more, and an error would fail the next syncfs(2).
            Err(error) if error.is(libc::ESTALE) && changes.is_writeback_of_times() => self.ops.getattr(nr),
            result => result,
        }
    }

    /// READLINK.
    pub(super) fn readlink(&self, node: u64) -> Result<Vec<u8>> {
        self.ops.readlink(inode_of(node)?)
    }

    /// MKNOD.
    pub(super) fn mknod(
        &self,
        parent: u64,
        name: &[u8],
        mode: u32,
        rdev: u32,
        umask: u32,
        caller: &Caller,
    ) -> Result<Attr> {
        let attr = self.ops.mknod(inode_of(parent)?, name, mode, rdev, umask, caller)?;
        self.give(attr)
    }

    /// MKDIR.
    pub(super) fn mkdir(
        &self,
        parent: u64,
        name: &[u8],
        mode: u32,
        umask: u32,
        caller: &Caller,
    ) -> Result<Attr> {
        let attr = self.ops.mkdir(inode_of(parent)?, name, mode, umask, caller)?;
        self.give(attr)
    }

    /// SYMLINK.
    pub(super) fn symlink(&self, parent: u64, name: &[u8], target: &[u8], caller: &Caller) -> Result<Attr> {
        let attr = self.ops.symlink(inode_of(parent)?, name, target, caller)?;
        self.give(attr)
    }

    /// LINK.
    pub(super) fn link(&self, node: u64, parent: u64, name: &[u8], caller: &Caller) -> Result<Attr> {
        let attr = self.ops.link(inode_of(node)?, inode_of(parent)?, name, caller)?;
        self.give(attr)
    }

    /// CREATE: a new file, or (without `O_EXCL`) the one that has appeared meanwhile, opened.
    pub(super) fn create(
        &self,
        parent: u64,
        name: &[u8],
        mode: u32,
        umask: u32,
        flags: i32,
        caller: &Caller,
    ) -> Result<Attr> {
        let parent = inode_of(parent)?;
        let mode = (mode & !libc::S_IFMT) | libc::S_IFREG;
        let attr = match self.ops.mknod(parent, name, mode, 0, umask, caller) {
            Ok(attr) => {
                // What a new file forbids (it inherits append-only from its directory) does not count at its creation.
                self.ops.open(attr.nr, (flags & !libc::O_TRUNC) | libc::O_APPEND)?;
                attr
            }
            Err(error) if error.is(libc::EEXIST) && flags & libc::O_EXCL == 0 => {
                let attr = self.ops.lookup(parent, name)?;
                self.open_inode(attr.nr, flags, caller)?;
                self.ops.getattr(attr.nr)?
            }
            Err(error) => return Err(error),
        };
        let attr = self.give(attr)?;
        self.references.add(attr.nr);
        Ok(attr)
    }

    /// TMPFILE.
    pub(super) fn tmpfile(&self, parent: u64, mode: u32, umask: u32, caller: &Caller) -> Result<Attr> {
        let attr = self.give(self.ops.tmpfile(inode_of(parent)?, mode, umask, caller)?)?;
        self.references.add(attr.nr);
        Ok(attr)
    }

    /// UNLINK.
    pub(super) fn unlink(&self, parent: u64, name: &[u8]) -> Result<()> {
        self.ops.unlink(inode_of(parent)?, name)
    }

    /// RMDIR.
    pub(super) fn rmdir(&self, parent: u64, name: &[u8]) -> Result<()> {
        self.ops.rmdir(inode_of(parent)?, name)
    }

    /// RENAME2; an unknown flag is EINVAL, as in the kernel's own file systems.
    pub(super) fn rename(
        &self,
        parent: u64,
        name: &[u8],
        new_parent: u64,
        new_name: &[u8],
        flags: u32,
        caller: &Caller,
    ) -> Result<()> {
        let flags = RenameFlags::from_bits(flags).ok_or(Error::Invalid)?;
        self.ops.rename(inode_of(parent)?, name, inode_of(new_parent)?, new_name, flags, caller)
    }

    /// OPEN of a file. The kernel truncates by SETATTR.
    pub(super) fn open(&self, node: u64, flags: i32, caller: &Caller) -> Result<()> {
        let nr = inode_of(node)?;
        self.open_inode(nr, flags, caller)?;
        self.references.add(nr);
        Ok(())
    }

    fn open_inode(&self, nr: InodeNr, flags: i32, caller: &Caller) -> Result<()> {
        self.ops.open(nr, flags)?;
        if flags & libc::O_TRUNC == 0 {
            return Ok(());
        }
        let changes = SetAttr { size: Some(0), kill_suid_sgid: caller.uid != 0, ..SetAttr::default() };
        if let Err(error) = self.ops.setattr(nr, &changes, caller) {
            self.ops.release(nr)?;
            return Err(error);
        }
        Ok(())
    }

    /// RELEASE: the last descriptor of one open is closed.
    pub(super) fn release(&self, node: u64) -> Result<()> {
        let nr = inode_of(node)?;
        let released = self.ops.release(nr);
        self.drop_references(nr, 1);
        released
    }

    /// READ.
    pub(super) fn read(&self, node: u64, offset: u64, size: u32) -> Result<O::Data> {
        let began = Instant::now();
        let data = self.ops.read(inode_of(node)?, offset, size);
        if size <= QUICK_READ_BYTES {
            self.read_time.add(began.elapsed());
        }
        data
    }

    /// Where READ belongs: a small one is done in place as long as the device is about as fast as memory.
    pub(super) fn read_lane(&self, node: u64, offset: u64, size: u32) -> Lane {
        let quick = size <= QUICK_READ_BYTES && self.read_time.is_below(QUICK_READ_TIME);
        let waits = |nr| self.ops.is_busy(nr) || (!quick && self.ops.read_may_wait(nr, offset, size));
        Lane::of(inode_of(node).is_ok_and(waits))
    }

    /// Where WRITE belongs.
    pub(super) fn write_lane(&self, node: u64, offset: u64, len: usize) -> Lane {
        Lane::of(inode_of(node).is_ok_and(|nr| self.ops.write_may_wait(nr, offset, len)))
    }

    /// Where RELEASE belongs.
    pub(super) fn release_lane(&self, node: u64) -> Lane {
        Lane::of(inode_of(node).is_ok_and(|nr| self.ops.release_may_wait(nr)))
    }

    /// WRITE.
    pub(super) fn write(
        &self,
        node: u64,
        offset: u64,
        data: &[u8],
        caller: &Caller,
        kill_priv: bool,
    ) -> Result<u32> {
        self.ops.write(inode_of(node)?, offset, data, caller, kill_priv)
    }

    /// SYNCFS.
    pub(super) fn sync(&self) -> Result<()> {
        self.ops.sync()
    }

    /// Where FSYNC belongs.
    pub(super) fn fsync_lane(&self, node: u64, datasync: bool) -> Lane {
        Lane::of(inode_of(node).is_ok_and(|nr| self.ops.fsync_may_wait(nr, datasync)))
    }

    /// FSYNC and FSYNCDIR. A directory's commits everything that the daemon holds.
    pub(super) fn fsync_then(&self, node: u64, datasync: bool, pid: u32, done: Done) {
        match inode_of(node) {
            Ok(nr) => self.ops.fsync_then(nr, datasync, pid, done),
            Err(error) => done(Err(error)),
        }
    }

    /// READDIR and READDIRPLUS: gives `add` the entries behind `cookie` until it says that there is no room.
    pub(super) fn readdir(
        &self,
        node: u64,
        mut cookie: u64,
        with_attributes: bool,
        add: &mut dyn FnMut(&ListedEntry) -> bool,
    ) -> Result<()> {
        let directory = inode_of(node)?;
        loop {
            let mut batch = Vec::new();
            self.ops.readdir(directory, cookie, &mut |entry| {
                batch.push(ListedEntry {
                    nr: entry.nr,
                    mode: mode_of_kind(entry.kind),
                    name: entry.name.to_vec(),
                    next_cookie: entry.next_cookie,
                    attr: None,
                });
                batch.len() < LISTING_BATCH
            })?;
            for entry in &mut batch {
                // Outside the directory's lock. An entry that has gone meanwhile, or whose inode can't be
                // read, is listed without attributes: who wants them asks and gets the error.
                if with_attributes || entry.mode == 0 {
                    entry.attr = self.ops.getattr(entry.nr).ok().filter(|attr| attr.links > 0);
                    entry.mode = entry.attr.as_ref().map_or(entry.mode, |attr| attr.mode.into());
                }
                cookie = entry.next_cookie;
                if add(entry) {
                    return Ok(());
                }
            }
            if batch.len() < LISTING_BATCH {
                return Ok(());
            }
        }
    }

    /// READDIRPLUS gives a reference with each entry that has attributes, "." and ".." apart.
    pub(super) fn given_by_readdir(&self, entry: &ListedEntry) {
        if entry.gives_reference() {
            self.references.add(entry.nr);
        }
    }

    /// The entry did not fit after all.
    pub(super) fn taken_back(&self, entry: &ListedEntry) {
        if entry.gives_reference() {
            self.drop_references(entry.nr, 1);
        }
    }

    /// STATFS.
    pub(super) fn statfs(&self) -> Result<StatFs> {
        self.ops.statfs()
    }

    /// GETXATTR.
    pub(super) fn getxattr(&self, node: u64, name: &[u8], room: u32) -> Result<Sized> {
        Sized::new(self.ops.getxattr(inode_of(node)?, name)?, room)
    }

    /// LISTXATTR. As ext4 does, `trusted.` names are shown to root only.
    pub(super) fn listxattr(&self, node: u64, room: u32, caller: &Caller) -> Result<Sized> {
        let mut names = self.ops.listxattr(inode_of(node)?)?;
        if caller.uid != 0 {
            let seen = names.split_inclusive(|&b| b == 0).filter(|name| !name.starts_with(b"trusted."));
            names = seen.flatten().copied().collect();
        }
        Sized::new(names, room)
    }

    /// SETXATTR.
    pub(super) fn setxattr(
        &self,
        node: u64,
        name: &[u8],
        value: &[u8],
        flags: i32,
        caller: &Caller,
    ) -> Result<()> {
        self.ops.setxattr(inode_of(node)?, name, value, flags, caller)
    }

    /// REMOVEXATTR.
    pub(super) fn removexattr(&self, node: u64, name: &[u8], caller: &Caller) -> Result<()> {
        self.ops.removexattr(inode_of(node)?, name, caller)
    }

    /// FALLOCATE.
    pub(super) fn fallocate(
        &self,
        node: u64,
        mode: i32,
        offset: u64,
        len: u64,
        caller: &Caller,
    ) -> Result<()> {
        self.ops.fallocate(inode_of(node)?, mode, offset, len, caller)
    }

    /// LSEEK, which only `SEEK_DATA` and `SEEK_HOLE` send.
    pub(super) fn seek(&self, node: u64, offset: i64, whence: i32) -> Result<i64> {
        let offset = u64::try_from(offset).map_err(|_| Error::NoSuchAddress)?;
        let found = self.ops.seek(inode_of(node)?, offset, whence)?;
        i64::try_from(found).map_err(|_| Error::Overflow)
    }

    /// COPY_FILE_RANGE; the answer's field is 32 bits wide.
    pub(super) fn copy_range(
        &self,
        from: u64,
        from_offset: u64,
        to: u64,
        to_offset: u64,
        len: u64,
        caller: &Caller,
    ) -> Result<u32> {
        let len = len.min(1 << 30);
        let copied =
            self.ops.copy_range(inode_of(from)?, from_offset, inode_of(to)?, to_offset, len, caller)?;
        u32::try_from(copied).map_err(|_| Error::Overflow)
    }

    /// IOCTL; at most `room` bytes come back.
    pub(super) fn ioctl(
        &self,
        node: u64,
        cmd: u32,
        input: &[u8],
        room: u32,
        caller: &Caller,
    ) -> Result<Vec<u8>> {
        let mut answer = ioctl::ioctl(&*self.ops, &self.info, inode_of(node)?, cmd, input, caller)?;
        answer.truncate(room as usize);
        Ok(answer)
    }
}

/// The upper bits of the mode for a directory entry's type byte (`EXT4_FT_*`); 0 where the file system has none.
fn mode_of_kind(kind: u8) -> u32 {
    match kind {
        1 => libc::S_IFREG,
        2 => libc::S_IFDIR,
        3 => libc::S_IFCHR,
        4 => libc::S_IFBLK,
        5 => libc::S_IFIFO,
        6 => libc::S_IFSOCK,
        7 => libc::S_IFLNK,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_average_follows_slowly_both_ways() {
        let average = Average::new();
        let (quick, slow) = (Duration::from_micros(5), Duration::from_secs(5));
        assert!(!average.is_below(QUICK_READ_TIME));
        (0..40).for_each(|_| average.add(quick));
        assert!(average.is_below(QUICK_READ_TIME));
        average.add(slow);
        assert!(!average.is_below(QUICK_READ_TIME), "a second of waiting for everybody is enough");
        (0..40).for_each(|_| average.add(quick));
        assert!(average.is_below(QUICK_READ_TIME));
    }
}
