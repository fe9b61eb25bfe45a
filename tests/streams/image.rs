//! An image file that remembers what was written to it, for another process to mount: a FUSE file system of one file.

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite,
    Request, TimeOrNow, WriteFlags,
};
use journalfs::device::memory::MemoryDevice;
use journalfs::device::recording::{Event, RecordingDevice};
use journalfs::device::Device;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const NAME: &str = "image";
const FILE: INodeNo = INodeNo(2);
const TTL: Duration = Duration::from_secs(3600);

/// The file, as long as this lives.
pub(crate) struct RecordingFile {
    device: Arc<RecordingDevice>,
    made: MemoryDevice,
    dir: tempfile::TempDir,
    _session: BackgroundSession,
}

impl RecordingFile {
    pub(crate) fn new(bytes: u64) -> Self {
        let made = MemoryDevice::new(bytes);
        let device = Arc::new(RecordingDevice::new(Arc::new(made.clone())));
        let dir = tempfile::Builder::new().prefix("journalfs-recording-").tempdir().unwrap();
        let mut config = Config::default();
        config.n_threads = Some(2);
        let session = fuser::spawn_mount(OneFile(device.clone()), dir.path(), &config).expect("a FUSE mount");
        Self { device, made, dir, _session: session }
    }

    /// Makes a file system; the record begins behind it.
    pub(crate) fn format(&self, profile: &str) {
        let profile = match profile {
            "ext3" => mkfs::Profile::Ext3,
            "ext4" => mkfs::Profile::Ext4,
            _ => mkfs::Profile::Journalfs,
        };
        for device in [&*self.device as &dyn Device, &self.made] {
            let mut options = mkfs::Options::new(profile);
            (options.uuid, options.hash_seed) = (Some([7; 16]), Some([9; 16]));
            options.journal = mkfs::JournalSize::MiB(4);
            mkfs::format(device, &options).expect("mkfs");
        }
        self.copy_made();
        self.device.clear();
    }

    /// The two devices were formatted one after the other, and times may differ.
    fn copy_made(&self) {
        let mut piece = vec![0; 1 << 20];
        for at in (0..self.device.size_bytes()).step_by(piece.len()) {
            self.device.read_at(at, &mut piece).unwrap();
            if piece.iter().any(|byte| *byte != 0) {
                self.made.write_at(at, &piece).unwrap();
            }
        }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join(NAME)
    }

    /// The file system as it was made.
    pub(crate) fn made(&self) -> MemoryDevice {
        self.made.clone()
    }

    pub(crate) fn events(&self) -> Vec<Event> {
        self.device.events()
    }

    pub(crate) fn position(&self) -> usize {
        self.device.position()
    }
}

struct OneFile(Arc<RecordingDevice>);

impl OneFile {
    fn attr(&self, ino: INodeNo) -> FileAttr {
        let now: SystemTime = UNIX_EPOCH;
        let directory = ino != FILE;
        FileAttr {
            ino,
            size: if directory { 0 } else { self.0.size_bytes() },
            blocks: if directory { 0 } else { self.0.size_bytes() / 512 },
            atime: now,
            mtime: now,
            ctime: now,
            crtime: now,
            kind: if directory { FileType::Directory } else { FileType::RegularFile },
            perm: if directory { 0o755 } else { 0o644 },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

fn errno(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_i32)
}

impl Filesystem for OneFile {
    fn lookup(&self, _req: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name == NAME {
            reply.entry(&TTL, &self.attr(FILE), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TTL, &self.attr(ino));
    }

    fn setattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        _size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        reply.attr(&TTL, &self.attr(ino));
    }

    fn open(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        // Past the page cache, so that each write is seen when it is made.
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let end = (offset + u64::from(size)).min(self.0.size_bytes());
        let mut buf = vec![0; end.saturating_sub(offset) as usize];
        match self.0.read_at(offset, &mut buf) {
            Ok(()) => reply.data(&buf),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn write(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.0.write_at(offset, data) {
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn fsync(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        match self.0.flush() {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn flush(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }
}
