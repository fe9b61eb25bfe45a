//! From a request to its answer: which thread does it, and how the result is encoded.

use super::super::node::node_of;
use super::super::operations::Operations;
use super::super::service::{Lane, ListedEntry, Service, Sized};
use super::super::types::{Attr, Caller, SetAttr, TimeOrNow};
use super::super::workers::Workers;
use super::reply::{Listing, Reply};
use super::request::{decode, Operation};
use super::wire::{
    AttrOut, CreateOut, EntryOut, InHeader, IoctlIn, IoctlOut, LseekOut, OpenOut, ReadIn, SetattrIn, SizeOut,
    StatfsOut, StatxOut, WriteIn, WriteOut,
};
use crate::error::{Error, Result};
use crate::format::time::Timestamp;
use std::os::fd::OwnedFd;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

/// `FOPEN_KEEP_CACHE`: nobody else changes the file, so what the kernel has cached of it stays right.
const KEEP_CACHE: u32 = 1 << 1;
/// `FUSE_WRITE_KILL_SUIDGID`.
const WRITE_KILLS: u32 = 1 << 2;
/// `FUSE_FSYNC_FDATASYNC`.
const DATASYNC: u32 = 1;

/// What a thread that reads requests needs.
pub(super) struct Dispatcher<'a, O: Operations> {
    device: &'a Arc<OwnedFd>,
    service: &'a Arc<Service<O>>,
    workers: &'a Workers,
}

/// Answers with what `work` returned. A bug that panics costs the caller an I/O error (the dropped reply), not everybody
/// the mount.
fn answer<T>(reply: Reply, work: impl FnOnce() -> Result<T>, send: impl FnOnce(Reply, T)) {
    guarded(|| match work() {
        Ok(value) => send(reply, value),
        Err(error) => {
            tracing::trace!("answered with: {error}");
            reply.error(&error);
        }
    });
}

fn guarded(work: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(work)).is_err() {
        tracing::error!("a request failed by a bug; its caller gets an I/O error");
    }
}

impl<'a, O: Operations> Dispatcher<'a, O> {
    pub(super) fn new(device: &'a Arc<OwnedFd>, service: &'a Arc<Service<O>>, workers: &'a Workers) -> Self {
        Self { device, service, workers }
    }

    /// Does `work` here or on a worker, and answers.
    fn on<T>(
        &self,
        lane: Lane,
        reply: Reply,
        work: impl FnOnce(&Service<O>) -> Result<T> + Send + 'static,
        send: impl FnOnce(Reply, T) + Send + 'static,
    ) {
        match lane {
            Lane::Inline => answer(reply, || work(self.service), send),
            Lane::Worker => {
                let service = self.service.clone();
                self.workers.submit(Box::new(move || answer(reply, || work(&service), send)));
            }
        }
    }

    /// Answers what only looks, from memory if all of it is there.
    fn look<T>(
        &self,
        node: u64,
        reply: Reply,
        work: impl Fn(&Service<O>) -> Result<T> + Send + 'static,
        send: impl FnOnce(Reply, T) + Send + 'static,
    ) {
        if self.service.lane(node) == Lane::Inline {
            match catch_unwind(AssertUnwindSafe(|| self.service.at_once(&work))) {
                Ok(Some(result)) => return answer(reply, || result, send),
                Ok(None) => {}
                Err(_) => return tracing::error!("a request failed by a bug; its caller gets an I/O error"),
            }
        }
        self.on(Lane::Worker, reply, work, send);
    }

    /// Answers a change of a directory; with `sync` and `dirsync` it waits until it is durable.
    fn change<T>(
        &self,
        parent: u64,
        reply: Reply,
        work: impl FnOnce(&Service<O>) -> Result<T> + Send + 'static,
        send: impl FnOnce(Reply, T) + Send + 'static,
    ) {
        let waits = self.service.options().dirsync || self.service.options().sync;
        let lane = if waits { Lane::Worker } else { self.service.lane(parent) };
        self.on(lane, reply, work, send);
    }

    fn send_entry(&self) -> impl FnOnce(Reply, Attr) + Send + 'static {
        let (entry, attr) = (self.service.options().entry_timeout, self.service.options().attr_timeout);
        move |reply, found| match EntryOut::of(&found, entry, attr) {
            Ok(out) => reply.send(&out),
            Err(error) => reply.error(&error),
        }
    }

    fn send_created(&self) -> impl FnOnce(Reply, Attr) + Send + 'static {
        let (entry, attr) = (self.service.options().entry_timeout, self.service.options().attr_timeout);
        move |reply, made| match EntryOut::of(&made, entry, attr) {
            Ok(entry) => reply.send(&CreateOut { entry, open: opened() }),
            Err(error) => reply.error(&error),
        }
    }

    fn send_attr(&self) -> impl FnOnce(Reply, Attr) + Send + 'static {
        let valid = self.service.options().attr_timeout;
        move |reply, attr| reply.send(&AttrOut::of(&attr, valid))
    }

    /// Handles the request in the first `len` bytes of `buffer`, which is another one afterwards if a worker needs
    /// it; false when the connection ends.
    pub(super) fn handle(&self, buffer: &mut Vec<u8>, len: usize) -> bool {
        let Some((header, operation)) = buffer.get(..len).and_then(decode) else {
            tracing::error!("a request of {len} bytes makes no sense");
            // The header is enough to say so.
            if let Ok((header, _)) = InHeader::read_from_prefix(buffer.get(..len).unwrap_or_default()) {
                Reply::new(self.device.clone(), header.unique).errno(libc::EINVAL);
            }
            return true;
        };
        match operation {
            Operation::Forget { count } => guarded(|| self.service.forget(header.node, count)),
            Operation::BatchForget(all) => {
                guarded(|| all.iter().for_each(|one| self.service.forget(one.node, one.count)));
            }
            Operation::Interrupt => {}
            Operation::Write(write) => self.write(&header, write, buffer, len),
            Operation::Destroy => {
                Reply::new(self.device.clone(), header.unique).ok();
                return false;
            }
            operation => {
                let reply = Reply::new(self.device.clone(), header.unique);
                let caller = Caller { uid: header.uid, gid: header.gid, pid: header.pid };
                self.names(&header, operation, caller, reply);
            }
        }
        true
    }

    /// Requests about names; the rest goes on to [`files`](Self::files).
    fn names(&self, header: &InHeader, operation: Operation<'_>, caller: Caller, reply: Reply) {
        let node = header.node;
        match operation {
            Operation::Lookup { name } => {
                let (name, send) = (name.to_vec(), self.send_entry());
                let negative = self.service.options().negative_timeout;
                self.look(
                    node,
                    reply,
                    move |s| s.lookup(node, &name),
                    move |reply, found| match found {
                        Some(attr) => send(reply, attr),
                        None => reply.send(&EntryOut::none(negative)),
                    },
                );
            }
            Operation::Mknod(args, name) => {
                let name = name.to_vec();
                let make =
                    move |s: &Service<O>| s.mknod(node, &name, args.mode, args.rdev, args.umask, &caller);
                self.change(node, reply, make, self.send_entry());
            }
            Operation::Mkdir(args, name) => {
                let name = name.to_vec();
                let make = move |s: &Service<O>| s.mkdir(node, &name, args.mode, args.umask, &caller);
                self.change(node, reply, make, self.send_entry());
            }
            Operation::Symlink { name, target } => {
                let (name, target) = (name.to_vec(), target.to_vec());
                let make = move |s: &Service<O>| s.symlink(node, &name, &target, &caller);
                self.change(node, reply, make, self.send_entry());
            }
            Operation::Link(args, name) => {
                let name = name.to_vec();
                let link = move |s: &Service<O>| s.link(args.node, node, &name, &caller);
                self.change(node, reply, link, self.send_entry());
            }
            Operation::Unlink { name } => {
                let name = name.to_vec();
                self.change(node, reply, move |s| s.unlink(node, &name), |reply, ()| reply.ok());
            }
            Operation::Rmdir { name } => {
                let name = name.to_vec();
                self.change(node, reply, move |s| s.rmdir(node, &name), |reply, ()| reply.ok());
            }
            Operation::Rename { new_parent, flags, name, new_name } => {
                let (name, new_name) = (name.to_vec(), new_name.to_vec());
                let rename =
                    move |s: &Service<O>| s.rename(node, &name, new_parent, &new_name, flags, &caller);
                self.change(new_parent, reply, rename, |reply, ()| reply.ok());
            }
            Operation::Create(args, name) => {
                let (name, flags) = (name.to_vec(), args.flags as i32);
                let create =
                    move |s: &Service<O>| s.create(node, &name, args.mode, args.umask, flags, &caller);
                self.change(node, reply, create, self.send_created());
            }
            Operation::Tmpfile(args) => {
                let create = move |s: &Service<O>| s.tmpfile(node, args.mode, args.umask, &caller);
                self.change(node, reply, create, self.send_created());
            }
            Operation::Readlink => {
                self.look(node, reply, move |s| s.readlink(node), |reply, target| reply.data(&target));
            }
            Operation::Readdir(args) => self.list(node, args, false, reply),
            Operation::Readdirplus(args) => self.list(node, args, true, reply),
            // Reading goes by cookie: there is nothing to remember of an open directory.
            Operation::Opendir => reply.send(&OpenOut::default()),
            Operation::Releasedir => reply.ok(),
            operation => self.files(node, operation, caller, reply),
        }
    }

    /// Requests about inodes and files.
    fn files(&self, node: u64, operation: Operation<'_>, caller: Caller, reply: Reply) {
        match operation {
            Operation::Getattr => self.look(node, reply, move |s| s.getattr(node), self.send_attr()),
            Operation::Statx => {
                let valid = self.service.options().attr_timeout;
                let send = move |reply: Reply, attr| reply.send(&StatxOut::of(&attr, valid));
                self.look(node, reply, move |s| s.getattr(node), send);
            }
            Operation::Setattr(args) => {
                let changes = changes(&args);
                let set = move |s: &Service<O>| s.setattr(node, changes, &caller);
                self.on(self.service.setattr_lane(node, changes.size), reply, set, self.send_attr());
            }
            Operation::Open(args) => {
                let flags = args.flags as i32;
                let open = move |s: &Service<O>| s.open(node, flags, &caller);
                self.on(self.service.lane(node), reply, open, |reply, ()| reply.send(&opened()));
            }
            Operation::Read(args) => {
                let size = args.size.min(super::REQUEST_BYTES_MAX);
                let read = move |s: &Service<O>| s.read(node, args.offset, size);
                let lane = self.service.read_lane(node, args.offset, size);
                self.on(lane, reply, read, |reply, data| reply.data(data.as_ref()));
            }
            Operation::Release => {
                let lane = self.service.release_lane(node);
                self.on(lane, reply, move |s| s.release(node), |reply, ()| reply.ok());
            }
            Operation::Fsync(args) => self.fsync(node, args.flags & DATASYNC != 0, caller.pid, reply),
            Operation::Syncfs => self.on(Lane::Worker, reply, Service::sync, |reply, ()| reply.ok()),
            Operation::Fallocate(args) => {
                let mode = args.mode as i32;
                let allocate = move |s: &Service<O>| s.fallocate(node, mode, args.offset, args.len, &caller);
                self.on(Lane::Worker, reply, allocate, |reply, ()| reply.ok());
            }
            Operation::Lseek(args) => {
                let seek = move |s: &Service<O>| s.seek(node, args.offset as i64, args.whence as i32);
                let send = |reply: Reply, at: i64| reply.send(&LseekOut { offset: at as u64 });
                self.on(Lane::Worker, reply, seek, send);
            }
            Operation::CopyFileRange(args) => {
                let copy = move |s: &Service<O>| {
                    s.copy_range(node, args.offset, args.to_node, args.to_offset, args.len, &caller)
                };
                let send = |reply: Reply, size| reply.send(&WriteOut { size, pad: 0 });
                self.on(Lane::Worker, reply, copy, send);
            }
            operation => self.attributes(node, &operation, caller, reply),
        }
    }

    /// Extended attributes, ioctls, and what concerns the file system as a whole.
    fn attributes(&self, node: u64, operation: &Operation<'_>, caller: Caller, reply: Reply) {
        match *operation {
            Operation::Getxattr { room, name } => {
                let name = name.to_vec();
                self.look(node, reply, move |s| s.getxattr(node, &name, room), send_sized);
            }
            Operation::Listxattr { room } => {
                self.look(node, reply, move |s| s.listxattr(node, room, &caller), send_sized);
            }
            Operation::Setxattr { flags, name, value } => {
                let (name, value, flags) = (name.to_vec(), value.to_vec(), flags as i32);
                let set = move |s: &Service<O>| s.setxattr(node, &name, &value, flags, &caller);
                self.on(self.service.lane(node), reply, set, |reply, ()| reply.ok());
            }
            Operation::Removexattr { name } => {
                let name = name.to_vec();
                let remove = move |s: &Service<O>| s.removexattr(node, &name, &caller);
                self.on(self.service.lane(node), reply, remove, |reply, ()| reply.ok());
            }
            Operation::Ioctl(args, input) => self.ioctl(node, args, input, caller, reply),
            Operation::Statfs => answer(
                reply,
                || self.service.statfs(),
                |reply, s| {
                    reply.send(&StatfsOut {
                        blocks: s.blocks,
                        free: s.free,
                        available: s.available,
                        files: s.inodes,
                        free_files: s.free_inodes,
                        block_bytes: s.block_bytes,
                        name_max: s.name_max,
                        fragment_bytes: s.block_bytes,
                        ..StatfsOut::default()
                    });
                },
            ),
            // FLUSH among others: said once, the kernel never asks again, and close(2) has nothing to write.
            _ => reply.errno(libc::ENOSYS),
        }
    }

    /// WRITE: the data is where it was read, so a worker takes the whole buffer.
    fn write(&self, header: &InHeader, write: WriteIn, buffer: &mut Vec<u8>, len: usize) {
        let reply = Reply::new(self.device.clone(), header.unique);
        let caller = Caller { uid: header.uid, gid: header.gid, pid: header.pid };
        let kill_priv = write.write_flags & WRITE_KILLS != 0;
        let (node, offset, size) = (header.node, write.offset, write.size as usize);
        let start = size_of::<InHeader>() + size_of::<WriteIn>();
        let send = |reply: Reply, size| reply.send(&WriteOut { size, pad: 0 });
        let work = move |service: &Service<O>, buffer: &[u8]| {
            let data = buffer.get(start..start + size).ok_or(Error::Invalid)?;
            service.write(node, offset, data, &caller, kill_priv)
        };
        match self.service.write_lane(node, offset, size) {
            Lane::Inline => answer(reply, || work(self.service, buffer), send),
            Lane::Worker => {
                let fresh = if len > super::BUFFER_BYTES / 2 {
                    std::mem::replace(buffer, vec![0; super::BUFFER_BYTES])
                } else {
                    buffer.get(..len).unwrap_or_default().to_vec()
                };
                self.on(Lane::Worker, reply, move |service| work(service, &fresh), send);
            }
        }
    }

    fn fsync(&self, node: u64, datasync: bool, pid: u32, reply: Reply) {
        let service = self.service.clone();
        let start = move || {
            let done = Box::new(move |result: Result<()>| answer(reply, || result, |reply, ()| reply.ok()));
            service.fsync_then(node, datasync, pid, done);
        };
        match self.service.fsync_lane(node, datasync) {
            Lane::Worker => self.workers.submit(Box::new(start)),
            Lane::Inline => guarded(start),
        }
    }

    fn ioctl(&self, node: u64, args: IoctlIn, input: &[u8], caller: Caller, reply: Reply) {
        /// `FUSE_IOCTL_UNRESTRICTED`: only character devices in user space send it.
        const UNRESTRICTED: u32 = 1 << 1;
        if args.flags & UNRESTRICTED != 0 {
            return reply.errno(libc::ENOTTY);
        }
        let input = input.to_vec();
        let work = move |s: &Service<O>| s.ioctl(node, args.cmd, &input, args.out_size, &caller);
        self.on(Lane::of_ioctl(args.in_size as usize), reply, work, |reply, answer: Vec<u8>| {
            reply.parts(&[IoctlOut::default().as_bytes(), &answer]);
        });
    }

    /// READDIR and READDIRPLUS, on a worker. An error after the first entries is left for the next request to meet.
    fn list(&self, node: u64, args: ReadIn, plus: bool, reply: Reply) {
        let list = move |service: &Service<O>| {
            let mut listing = Listing::new(args.size);
            let add = &mut |entry: &ListedEntry| !add(service, &mut listing, entry, plus);
            match service.readdir(node, args.offset, plus, add) {
                Err(error) if listing.bytes().is_empty() => Err(error),
                _ => Ok(listing),
            }
        };
        self.on(Lane::Worker, reply, list, |reply, listing| reply.data(listing.bytes()));
    }
}

/// Adds an entry to a listing; false if there was no room for it.
fn add<O: Operations>(service: &Service<O>, listing: &mut Listing, entry: &ListedEntry, plus: bool) -> bool {
    let dirent = (u64::from(entry.nr.0), entry.next_cookie, entry.mode);
    if !plus {
        return listing.add(None, dirent, &entry.name);
    }
    let options = service.options();
    // A zero node id gives the kernel the name only.
    let known = entry.attr.as_ref().filter(|attr| node_of(attr.nr).is_ok());
    let out = known.and_then(|attr| EntryOut::of(attr, options.entry_timeout, options.attr_timeout).ok());
    // Counted before it is sent: the kernel may give the reference back at once.
    if out.is_some() {
        service.given_by_readdir(entry);
    }
    let added = listing.add(Some(&out.unwrap_or_default()), dirent, &entry.name);
    if !added && out.is_some() {
        service.taken_back(entry);
    }
    added
}

fn opened() -> OpenOut {
    OpenOut { flags: KEEP_CACHE, ..OpenOut::default() }
}

fn send_sized(reply: Reply, sized: Sized) {
    match sized {
        Sized::Size(size) => reply.send(&SizeOut { size, pad: 0 }),
        Sized::Value(value) => reply.data(&value),
    }
}

/// What SETATTR asks for (`FATTR_*`).
fn changes(args: &SetattrIn) -> SetAttr {
    let has = |bit: u32| args.valid & 1 << bit != 0;
    let time = |given: u32, now: u32, seconds: i64, nanoseconds: u32| match (has(given), has(now)) {
        (false, _) => None,
        (true, true) => Some(TimeOrNow::Now),
        (true, false) => Some(TimeOrNow::Time(Timestamp { seconds, nanoseconds })),
    };
    SetAttr {
        mode: has(0).then_some(args.mode),
        uid: has(1).then_some(args.uid),
        gid: has(2).then_some(args.gid),
        size: has(3).then_some(args.size),
        atime: time(4, 7, args.atime, args.atime_ns),
        mtime: time(5, 8, args.mtime, args.mtime_ns),
        ctime: has(10).then_some(Timestamp { seconds: args.ctime, nanoseconds: args.ctime_ns }),
        kill_suid_sgid: has(11),
    }
}
