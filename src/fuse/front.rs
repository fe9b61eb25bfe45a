//! The first transport: fuser's threads read requests from `/dev/fuse`, and its reply objects answer them.
//!
//! Each request is decoded, sent through [`Service`] on the thread that read it or on a worker, and its
//! result encoded. Nothing is decided here but which thread works.

use super::convert::{attributes, entry, errno, file_type, no_entry, time_or_now, timestamp};
use super::init;
use super::operations::Operations;
use super::options::FuseOptions;
use super::service::{Lane, ListedEntry, Service, Sized};
use super::types::{Attr, Caller, SetAttr};
use super::workers::Workers;
use crate::error::Result;
use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, FopenFlags, Generation, INodeNo,
    IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, WriteFlags,
};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

/// Serves one mount to fuser.
pub(super) struct Front<O: Operations> {
    service: Arc<Service<O>>,
    workers: Arc<Workers>,
}

/// Every reply can say what went wrong.
trait Fail: Send + 'static {
    fn fail(self, error: Errno);
}

macro_rules! fail {
    ($($reply:ty),*) => {
        $(impl Fail for $reply {
            fn fail(self, error: Errno) {
                self.error(error);
            }
        })*
    };
}

fail!(
    ReplyAttr,
    ReplyCreate,
    ReplyData,
    ReplyDirectory,
    ReplyDirectoryPlus,
    ReplyEmpty,
    ReplyEntry,
    ReplyIoctl,
    ReplyLseek,
    ReplyOpen,
    ReplyStatfs,
    ReplyWrite,
    ReplyXattr
);

/// Answers with the result of `work`. A bug that panics costs the caller an I/O error, not everybody the mount.
fn answer<R: Fail, T>(reply: R, work: impl FnOnce() -> Result<T>, send: impl FnOnce(R, T)) {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => send(reply, value),
        Ok(Err(error)) => {
            tracing::trace!("answered with: {error}");
            reply.fail(errno(&error));
        }
        Err(_) => {
            tracing::error!("a request failed by a bug; its caller gets an I/O error");
            reply.fail(Errno::EIO);
        }
    }
}

fn caller(req: &Request) -> Caller {
    Caller { uid: req.uid(), gid: req.gid(), pid: req.pid() }
}

impl<O: Operations> Front<O> {
    /// A transport for `service`.
    pub(super) fn new(service: Arc<Service<O>>, workers: Arc<Workers>) -> Self {
        Self { service, workers }
    }

    fn options(&self) -> &FuseOptions {
        self.service.options()
    }

    /// Answers from the lane that fits.
    fn on<R: Fail, T>(
        &self,
        lane: Lane,
        reply: R,
        work: impl FnOnce(&Service<O>) -> Result<T> + Send + 'static,
        send: impl FnOnce(R, T) + Send + 'static,
    ) {
        match lane {
            Lane::Inline => answer(reply, || work(&self.service), send),
            Lane::Worker => {
                let service = self.service.clone();
                self.workers.submit(Box::new(move || answer(reply, || work(&service), send)));
            }
        }
    }

    /// Answers what only looks, from memory if all of it is there.
    fn on_look<R: Fail, T>(
        &self,
        ino: INodeNo,
        reply: R,
        work: impl Fn(&Service<O>) -> Result<T> + Send + 'static,
        send: impl FnOnce(R, T) + Send + 'static,
    ) {
        if self.service.lane(ino.0) == Lane::Inline {
            match catch_unwind(AssertUnwindSafe(|| self.service.at_once(&work))) {
                Ok(Some(result)) => return answer(reply, || result, send),
                Ok(None) => {}
                Err(panic) => return answer(reply, || std::panic::resume_unwind(panic), send),
            }
        }
        self.on(Lane::Worker, reply, work, send);
    }

    /// Answers a change of a directory: with `sync` and `dirsync` it waits until it is durable.
    fn on_change<R: Fail, T>(
        &self,
        parent: INodeNo,
        reply: R,
        work: impl FnOnce(&Service<O>) -> Result<T> + Send + 'static,
        send: impl FnOnce(R, T) + Send + 'static,
    ) {
        let waits = self.options().dirsync || self.options().sync;
        let lane = if waits { Lane::Worker } else { self.service.lane(parent.0) };
        self.on(lane, reply, work, send);
    }

    /// How an entry is sent, with how long it stays right.
    fn send_entry(&self) -> impl FnOnce(ReplyEntry, Attr) + Send + 'static {
        let (attr_timeout, entry_timeout) = (self.options().attr_timeout, self.options().entry_timeout);
        move |reply, attr| match entry(&attr) {
            Ok(file_attr) => reply.entry_with_ttls(
                &attr_timeout,
                &entry_timeout,
                &file_attr,
                Generation(attr.generation.into()),
            ),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn fsync_any(&self, req: &Request, ino: INodeNo, datasync: bool, reply: ReplyEmpty) {
        let (service, pid) = (self.service.clone(), req.pid());
        let start = move || {
            let done = Box::new(move |result: Result<()>| answer(reply, || result, |reply, ()| reply.ok()));
            service.fsync_then(ino.0, datasync, pid, done);
        };
        match self.service.fsync_lane(ino.0, datasync) {
            Lane::Worker => self.workers.submit(Box::new(start)),
            // What panics here drops the reply, which says EIO.
            Lane::Inline => {
                if catch_unwind(AssertUnwindSafe(start)).is_err() {
                    tracing::error!("an fsync failed by a bug; its caller gets an I/O error");
                }
            }
        }
    }

    /// Fills `reply` with the entries behind `cookie`, on a worker. An error after the first entries is left for the next request to meet.
    fn list<R: Fail>(
        &self,
        ino: INodeNo,
        cookie: u64,
        with_attributes: bool,
        mut reply: R,
        add: impl Fn(&Service<O>, &mut R, &ListedEntry) -> bool + Send + 'static,
        send: impl FnOnce(R) + Send + 'static,
    ) {
        let service = self.service.clone();
        self.workers.submit(Box::new(move || {
            let mut added = false;
            let listed = catch_unwind(AssertUnwindSafe(|| {
                service.readdir(ino.0, cookie, with_attributes, &mut |entry| {
                    let full = add(&service, &mut reply, entry);
                    added |= !full;
                    full
                })
            }));
            match listed {
                _ if added => send(reply),
                Ok(result) => answer(reply, || result, |reply, ()| send(reply)),
                Err(panic) => answer(reply, || std::panic::resume_unwind(panic), |reply, ()| send(reply)),
            }
        }));
    }
}

impl<O: Operations> fuser::Filesystem for Front<O> {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        init::negotiate(config, self.service.options());
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let send = self.send_entry();
        let negative = self.options().negative_timeout;
        let name = name.as_bytes().to_vec();
        self.on_look(
            parent,
            reply,
            move |service| service.lookup(parent.0, &name),
            move |reply, found| match found {
                Some(attr) => send(reply, attr),
                None => reply.entry_with_ttls(&negative, &negative, &no_entry(), Generation(0)),
            },
        );
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        let forgotten = catch_unwind(AssertUnwindSafe(|| self.service.forget(ino.0, nlookup)));
        if forgotten.is_err() {
            tracing::error!("forgetting inode {} failed by a bug", ino.0);
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        let timeout = self.options().attr_timeout;
        self.on_look(
            ino,
            reply,
            move |service| service.getattr(ino.0),
            move |reply, attr| reply.attr(&timeout, &attributes(&attr)),
        );
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<fuser::TimeOrNow>,
        mtime: Option<fuser::TimeOrNow>,
        ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let timeout = self.options().attr_timeout;
        let changes = SetAttr {
            mode,
            uid,
            gid,
            size,
            atime: atime.map(time_or_now),
            mtime: mtime.map(time_or_now),
            ctime: ctime.map(timestamp),
            // A change of owner always takes the set-user-ID and set-group-ID bits with it, a truncation when
            // the caller is not root: the kernel leaves both to us, and fuser does not pass its flag on.
            kill_suid_sgid: uid.is_some() || gid.is_some() || (size.is_some() && req.uid() != 0),
        };
        let caller = caller(req);
        self.on(
            self.service.setattr_lane(ino.0, size),
            reply,
            move |service| service.setattr(ino.0, changes, &caller),
            move |reply, attr| reply.attr(&timeout, &attributes(&attr)),
        );
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        let read = move |service: &Service<O>| service.readlink(ino.0);
        self.on_look(ino, reply, read, |reply, target| reply.data(&target));
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let (name, caller) = (name.as_bytes().to_vec(), caller(req));
        let make = move |service: &Service<O>| service.mknod(parent.0, &name, mode, rdev, umask, &caller);
        self.on_change(parent, reply, make, self.send_entry());
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let (name, caller) = (name.as_bytes().to_vec(), caller(req));
        let make = move |service: &Service<O>| service.mkdir(parent.0, &name, mode, umask, &caller);
        self.on_change(parent, reply, make, self.send_entry());
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.as_bytes().to_vec();
        let remove = move |service: &Service<O>| service.unlink(parent.0, &name);
        self.on_change(parent, reply, remove, |reply, ()| reply.ok());
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.as_bytes().to_vec();
        let remove = move |service: &Service<O>| service.rmdir(parent.0, &name);
        self.on_change(parent, reply, remove, |reply, ()| reply.ok());
    }

    fn symlink(&self, req: &Request, parent: INodeNo, link_name: &OsStr, target: &Path, reply: ReplyEntry) {
        let (name, caller) = (link_name.as_bytes().to_vec(), caller(req));
        let target = target.as_os_str().as_bytes().to_vec();
        let make = move |service: &Service<O>| service.symlink(parent.0, &name, &target, &caller);
        self.on_change(parent, reply, make, self.send_entry());
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (name, newname, caller) = (name.as_bytes().to_vec(), newname.as_bytes().to_vec(), caller(req));
        let rename = move |service: &Service<O>| {
            service.rename(parent.0, &name, newparent.0, &newname, flags.bits(), &caller)
        };
        self.on_change(newparent, reply, rename, |reply, ()| reply.ok());
    }

    fn link(&self, req: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let caller = caller(req);
        let newname = newname.as_bytes().to_vec();
        let link = move |service: &Service<O>| service.link(ino.0, newparent.0, &newname, &caller);
        self.on_change(newparent, reply, link, self.send_entry());
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let caller = caller(req);
        self.on(
            self.service.lane(ino.0),
            reply,
            move |service| service.open(ino.0, flags.0, &caller),
            // Nobody else changes the file, so what the kernel has cached of it stays right.
            |reply, ()| reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE),
        );
    }

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.on(
            self.service.read_lane(ino.0, offset, size),
            reply,
            move |service| service.read(ino.0, offset, size.min(init::REQUEST_BYTES_MAX)),
            |reply, data| reply.data(data.as_ref()),
        );
    }

    fn write(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let kill_priv = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        let caller = caller(req);
        match self.service.write_lane(ino.0, offset, data.len()) {
            Lane::Inline => answer(
                reply,
                || self.service.write(ino.0, offset, data, &caller, kill_priv),
                ReplyWrite::written,
            ),
            // The buffer is the reading thread's, which goes on to the next request.
            Lane::Worker => {
                let data = data.to_vec();
                self.on(
                    Lane::Worker,
                    reply,
                    move |service| service.write(ino.0, offset, &data, &caller, kill_priv),
                    ReplyWrite::written,
                );
            }
        }
    }

    fn flush(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        // Said once, the kernel never asks again: close(2) has nothing to write.
        reply.error(Errno::ENOSYS);
    }

    fn release(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let release = move |service: &Service<O>| service.release(ino.0);
        self.on(self.service.release_lane(ino.0), reply, release, |reply, ()| reply.ok());
    }

    fn fsync(&self, req: &Request, ino: INodeNo, _fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        self.fsync_any(req, ino, datasync, reply);
    }

    fn fsyncdir(&self, req: &Request, ino: INodeNo, _fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        self.fsync_any(req, ino, datasync, reply);
    }

    fn opendir(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        // Reading goes by cookie: there is nothing to remember of an open directory.
        reply.opened(FileHandle(0), FopenFlags::empty());
    }

    fn readdir(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, offset: u64, reply: ReplyDirectory) {
        let add = |_: &Service<O>, reply: &mut ReplyDirectory, entry: &ListedEntry| {
            let (nr, name) = (INodeNo(entry.nr.0.into()), OsStr::from_bytes(&entry.name));
            reply.add(nr, entry.next_cookie, file_type(entry.mode), name)
        };
        self.list(ino, offset, false, reply, add, ReplyDirectory::ok);
    }

    fn readdirplus(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        self.list(ino, offset, true, reply, add_plus, ReplyDirectoryPlus::ok);
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        answer(
            reply,
            || self.service.statfs(),
            |reply, s| {
                let block = s.block_bytes;
                reply.statfs(
                    s.blocks,
                    s.free,
                    s.available,
                    s.inodes,
                    s.free_inodes,
                    block,
                    s.name_max,
                    block,
                );
            },
        );
    }

    fn setxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let (name, value, caller) = (name.as_bytes().to_vec(), value.to_vec(), caller(req));
        let set = move |service: &Service<O>| service.setxattr(ino.0, &name, &value, flags, &caller);
        self.on(self.service.lane(ino.0), reply, set, |reply, ()| reply.ok());
    }

    fn getxattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let name = name.as_bytes().to_vec();
        self.on_look(ino, reply, move |service| service.getxattr(ino.0, &name, size), send_sized);
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let caller = caller(req);
        self.on_look(ino, reply, move |service| service.listxattr(ino.0, size, &caller), send_sized);
    }

    fn removexattr(&self, req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (name, caller) = (name.as_bytes().to_vec(), caller(req));
        let remove = move |service: &Service<O>| service.removexattr(ino.0, &name, &caller);
        self.on(self.service.lane(ino.0), reply, remove, |reply, ()| reply.ok());
    }

    fn access(&self, _req: &Request, _ino: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        // With default_permissions the kernel decides alone; without, everything is allowed.
        reply.error(Errno::ENOSYS);
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let timeout = self.options().attr_timeout.min(self.options().entry_timeout);
        let (name, caller) = (name.as_bytes().to_vec(), caller(req));
        let create = move |service: &Service<O>| service.create(parent.0, &name, mode, umask, flags, &caller);
        self.on_change(parent, reply, create, move |reply, attr: Attr| match entry(&attr) {
            Ok(file_attr) => reply.created(
                &timeout,
                &file_attr,
                Generation(attr.generation.into()),
                FileHandle(0),
                FopenFlags::FOPEN_KEEP_CACHE,
            ),
            Err(error) => reply.error(errno(&error)),
        });
    }

    fn ioctl(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        cmd: u32,
        in_data: &[u8],
        out_size: u32,
        reply: ReplyIoctl,
    ) {
        let (input, caller) = (in_data.to_vec(), caller(req));
        self.on(
            Lane::of_ioctl(in_data.len()),
            reply,
            move |service| service.ioctl(ino.0, cmd, &input, out_size, &caller),
            |reply, answer| reply.ioctl(0, &answer),
        );
    }

    fn fallocate(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let caller = caller(req);
        let allocate = move |service: &Service<O>| service.fallocate(ino.0, mode, offset, length, &caller);
        self.on(Lane::Worker, reply, allocate, |reply, ()| reply.ok());
    }

    fn lseek(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let seek = move |service: &Service<O>| service.seek(ino.0, offset, whence);
        self.on(Lane::Worker, reply, seek, ReplyLseek::offset);
    }

    fn copy_file_range(
        &self,
        req: &Request,
        ino_in: INodeNo,
        _fh_in: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        _fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let caller = caller(req);
        let copy = move |service: &Service<O>| {
            service.copy_range(ino_in.0, offset_in, ino_out.0, offset_out, len, &caller)
        };
        self.on(Lane::Worker, reply, copy, ReplyWrite::written);
    }
}

fn send_sized(reply: ReplyXattr, sized: Sized) {
    match sized {
        Sized::Size(size) => reply.size(size),
        Sized::Value(value) => reply.data(&value),
    }
}

/// Adds an entry; true if there was no room for it.
fn add_plus<O: Operations>(
    service: &Service<O>,
    reply: &mut ReplyDirectoryPlus,
    listed: &ListedEntry,
) -> bool {
    let name = OsStr::from_bytes(&listed.name);
    let (entry_timeout, generation, file_attr) = match &listed.attr {
        Some(attr) => {
            let Ok(file_attr) = entry(attr) else { return false };
            (service.options().entry_timeout, attr.generation, file_attr)
        }
        None => (std::time::Duration::ZERO, 0, no_entry()),
    };
    // Counted before it is sent: the kernel may give the reference back at once.
    service.given_by_readdir(listed);
    let generation = Generation(generation.into());
    let full = reply.add(file_attr.ino, listed.next_cookie, name, &entry_timeout, &file_attr, generation);
    if full {
        service.taken_back(listed);
    }
    full
}
