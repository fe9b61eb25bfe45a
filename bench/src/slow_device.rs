//! A storage device of given latency: a FUSE file system with one file, `disk`, whose bytes lie in another file, which
//! should be in memory. A loop device over it gives the same device to file systems in the kernel and out of it.
//!
//! It serves one request at a time, as a disk with one head does. `counts` tells how many reads, writes and flushes
//! it has served.

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, KernelConfig,
    LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite,
    Request, SessionACL, WriteFlags,
};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, UNIX_EPOCH};

const ROOT: u64 = 1;
const DISK: u64 = 2;
const COUNTS: u64 = 3;
const COUNTS_BYTES: u64 = 256;
const TTL: Duration = Duration::from_secs(3600);
/// The last of each wait is spun: a sleep ends this late.
const SPUN: Duration = Duration::from_micros(70);

/// What the device's requests take.
#[derive(Copy, Clone, Debug)]
pub struct Latency {
    /// A read or write.
    pub transfer: Duration,
    /// A flush.
    pub flush: Duration,
}

struct SlowDevice {
    bytes: File,
    size: u64,
    latency: Latency,
    head: Mutex<()>,
    reads: AtomicU64,
    writes: AtomicU64,
    flushes: AtomicU64,
}

/// Serves `DIR/disk`, with the bytes of `file`, until DIR is unmounted.
pub fn serve(dir: &Path, file: &Path, latency: Latency) -> io::Result<()> {
    let bytes = File::options().read(true).write(true).open(file)?;
    let size = bytes.metadata()?.len();
    // Sleeps are to end on time.
    let _ = nix::sys::prctl::set_timerslack(1);
    let device = SlowDevice {
        bytes,
        size,
        latency,
        head: Mutex::default(),
        reads: AtomicU64::new(0),
        writes: AtomicU64::new(0),
        flushes: AtomicU64::new(0),
    };
    let mut config = Config::default();
    config.n_threads = Some(2);
    config.acl = SessionACL::All;
    config.mount_options = vec![MountOption::FSName("slow_device".into())];
    fuser::mount(device, dir, &config)
}

impl SlowDevice {
    /// Keeps the device busy for `time`.
    fn busy(&self, time: Duration) {
        let _head = self.head.lock().unwrap_or_else(PoisonError::into_inner);
        let end = Instant::now() + time;
        if let Some(sleep) = time.checked_sub(2 * SPUN) {
            std::thread::sleep(sleep + SPUN);
        }
        while Instant::now() < end {
            std::hint::spin_loop();
        }
    }

    fn attr(&self, ino: u64) -> FileAttr {
        let size = match ino {
            DISK => self.size,
            COUNTS => COUNTS_BYTES,
            _ => 0,
        };
        FileAttr {
            ino: INodeNo(ino),
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: if ino == ROOT { FileType::Directory } else { FileType::RegularFile },
            perm: if ino == ROOT { 0o755 } else { 0o600 },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    fn counts(&self) -> String {
        let of = |count: &AtomicU64| count.load(Relaxed);
        format!("{} {} {}\n", of(&self.reads), of(&self.writes), of(&self.flushes))
    }
}

impl Filesystem for SlowDevice {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let _ = config.set_max_background(64);
        Ok(())
    }

    fn lookup(&self, _request: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match name.to_str() {
            Some("disk") => reply.entry(&TTL, &self.attr(DISK), Generation(0)),
            Some("counts") => reply.entry(&TTL, &self.attr(COUNTS), Generation(0)),
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TTL, &self.attr(ino.0));
    }

    fn open(&self, _request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(ino.0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if ino.0 == COUNTS {
            let counts = self.counts();
            return reply.data(counts.as_bytes().get(offset as usize..).unwrap_or_default());
        }
        self.reads.fetch_add(1, Relaxed);
        self.busy(self.latency.transfer);
        let mut bytes = vec![0; u64::from(size).min(self.size.saturating_sub(offset)) as usize];
        match self.bytes.read_exact_at(&mut bytes, offset) {
            Ok(()) => reply.data(&bytes),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn write(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.writes.fetch_add(1, Relaxed);
        if offset.saturating_add(data.len() as u64) > self.size {
            return reply.error(Errno::ENOSPC);
        }
        self.busy(self.latency.transfer);
        match self.bytes.write_all_at(data, offset) {
            Ok(()) => reply.written(data.len() as u32),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn fsync(&self, _request: &Request, _ino: INodeNo, _handle: FileHandle, _data: bool, reply: ReplyEmpty) {
        self.flushes.fetch_add(1, Relaxed);
        self.busy(self.latency.flush);
        reply.ok();
    }

    fn flush(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }
}
