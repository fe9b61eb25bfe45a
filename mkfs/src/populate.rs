//! Filling a new file system from a directory (`-d`): names, contents with their holes, modes, owners, times, hard links,
//! devices, attributes and ACLs. Goes through the file system as a mount does, but past the journal: until the
//! last write is home there is no file system that could be lost.

use journalfs::device::SharedDevice;
use journalfs::format::time::Timestamp;
use journalfs::fs::attr::{Caller, SetAttr, TimeOrNow};
use journalfs::fs::options::MountOptions;
use journalfs::fs::Fs;
use journalfs::units::InodeNr;
use rustix::fs::{IFlags, Mode, OFlags, SeekFrom};
use std::collections::HashMap;
use std::fmt;
use std::fs::{File, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes of a file that are copied at a time.
const PIECE_BYTES: usize = 1 << 20;
/// The longest list of attribute names that Linux gives out, and the longest value.
const XATTR_BYTES_MAX: usize = 1 << 16;

/// Inode flags that programs set (chattr(1)); the others are about how the source keeps its files.
const FLAGS: IFlags = IFlags::SYNC
    .union(IFlags::IMMUTABLE)
    .union(IFlags::APPEND)
    .union(IFlags::NODUMP)
    .union(IFlags::NOATIME)
    .union(IFlags::DIRSYNC);

/// What was copied.
#[derive(Copy, Clone, Default, PartialEq, Eq, Debug)]
pub struct Populated {
    /// Names, the root's not among them.
    pub names: u64,
    /// Bytes of file data, without holes.
    pub bytes: u64,
}

impl fmt::Display for Populated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} names, {} bytes", self.names, self.bytes)
    }
}

/// Why something could not be copied, and what.
#[derive(Debug)]
pub struct Failure {
    path: PathBuf,
    why: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.why)
    }
}

impl std::error::Error for Failure {}

type Result<T> = std::result::Result<T, Failure>;

/// Turns an error of either side into a [`Failure`] about a path.
trait At<T> {
    fn at(self, path: &Path) -> Result<T>;
}

impl<T, E: fmt::Display> At<T> for std::result::Result<T, E> {
    fn at(self, path: &Path) -> Result<T> {
        self.map_err(|error| Failure { path: path.to_owned(), why: error.to_string() })
    }
}

/// Copies what is in `directory`, and the directory's own attributes, into the new file system on `device`; not what is
/// `image`, the device itself. When this returns, it is durable.
pub fn populate(device: SharedDevice, directory: &Path, image: Option<&Metadata>) -> Result<Populated> {
    let metadata = std::fs::metadata(directory).at(directory)?;
    if !metadata.is_dir() {
        return Err("not a directory").at(directory);
    }
    let options = MountOptions { bypass_journal: true, ..MountOptions::default() };
    let fs = Fs::mount(device, &options).at(directory)?;
    let mut copier = Copier {
        fs: &fs,
        image: image.map(|image| (image.dev(), image.ino())),
        linked: HashMap::new(),
        piece: vec![0; PIECE_BYTES],
        populated: Populated::default(),
    };
    let copied = copier.fill(InodeNr::ROOT, directory, &metadata);
    let populated = copier.populated;
    let unmounted = fs.unmount().at(directory);
    copied?;
    unmounted?;
    Ok(populated)
}

struct Copier<'a> {
    fs: &'a Arc<Fs>,
    /// Device and inode number of the image.
    image: Option<(u64, u64)>,
    /// Copies of what has more than one name, by device and inode number.
    linked: HashMap<(u64, u64), InodeNr>,
    piece: Vec<u8>,
    populated: Populated,
}

impl Copier<'_> {
    /// Fills a directory that exists already, and then makes its attributes what they are to be: by then nothing
    /// inherits from it or changes its times.
    fn fill(&mut self, to: InodeNr, path: &Path, metadata: &Metadata) -> Result<()> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(path).at(path)? {
            names.push(entry.at(path)?.file_name());
        }
        names.sort_unstable();
        for name in names {
            self.copy(to, name.as_bytes(), &path.join(&name))?;
        }
        self.finish(to, path, metadata)
    }

    fn copy(&mut self, parent: InodeNr, name: &[u8], path: &Path) -> Result<()> {
        let metadata = std::fs::symlink_metadata(path).at(path)?;
        let identity = (metadata.dev(), metadata.ino());
        if self.image == Some(identity) {
            return Ok(());
        }
        self.populated.names += 1;
        if let Some(first) = self.linked.get(&identity) {
            self.fs.link(*first, parent, name, &Caller::ROOT).at(path)?;
            return Ok(());
        }
        let nr = self.make(parent, name, path, &metadata)?;
        if metadata.is_dir() {
            return self.fill(nr, path, &metadata);
        }
        if metadata.is_file() && metadata.len() > 0 {
            self.contents(nr, path, metadata.len())?;
        }
        if metadata.nlink() > 1 {
            self.linked.insert(identity, nr);
        }
        self.finish(nr, path, &metadata)
    }

    /// A new inode of the same kind; private until it is finished.
    fn make(&self, parent: InodeNr, name: &[u8], path: &Path, metadata: &Metadata) -> Result<InodeNr> {
        let (fs, caller) = (self.fs, &Caller::ROOT);
        let kind = metadata.file_type();
        let made = if kind.is_dir() {
            match fs.lookup(parent, name) {
                // mkfs makes lost+found.
                Ok(attr) if u32::from(attr.mode) & libc::S_IFMT == libc::S_IFDIR => Ok(attr),
                _ => fs.mkdir(parent, name, 0o700, 0, caller),
            }
        } else if kind.is_symlink() {
            let target = std::fs::read_link(path).at(path)?;
            fs.symlink(parent, name, target.as_os_str().as_bytes(), caller)
        } else {
            let is_device = kind.is_char_device() || kind.is_block_device();
            let rdev = if is_device { encoded(metadata.rdev()) } else { 0 };
            fs.mknod(parent, name, metadata.mode() & libc::S_IFMT | 0o600, rdev, 0, caller)
        };
        Ok(made.at(path)?.nr)
    }

    /// The data, and holes where it has none.
    fn contents(&mut self, nr: InodeNr, path: &Path, size: u64) -> Result<()> {
        let file = open(path).at(path)?;
        let mut at = 0;
        while at < size {
            let Some(data) = run_of_data(&file, at, size) else { break };
            at = data.start;
            while at < data.end {
                let want = PIECE_BYTES.min(usize::try_from(data.end - at).unwrap_or(PIECE_BYTES));
                let piece = &mut self.piece[..want];
                let got = file.read_at(piece, at).at(path)?;
                if got == 0 {
                    return Err("it got shorter while it was copied").at(path);
                }
                let written = self.fs.write(nr, at, &piece[..got], &Caller::ROOT, false).at(path)?;
                at += u64::from(written);
                self.populated.bytes += u64::from(written);
            }
        }
        if at < size || data_ends_before(self.fs, nr, size) {
            self.fs.truncate(nr, size).at(path)?;
        }
        Ok(())
    }

    /// Owner, mode, attributes, times, flags: in this order, since each of the first ones changes what comes behind it.
    fn finish(&self, nr: InodeNr, path: &Path, metadata: &Metadata) -> Result<()> {
        let caller = &Caller::ROOT;
        let owner = SetAttr { uid: Some(metadata.uid()), gid: Some(metadata.gid()), ..SetAttr::default() };
        self.fs.setattr(nr, &owner, caller).at(path)?;
        if !metadata.is_symlink() {
            let mode = SetAttr { mode: Some(metadata.mode() & 0o7777), ..SetAttr::default() };
            self.fs.setattr(nr, &mode, caller).at(path)?;
        }
        for (name, value) in attributes(path).at(path)? {
            match self.fs.setxattr(nr, &name, &value, 0, caller) {
                // A namespace that this file system doesn't have.
                Err(error) if error.is(libc::EOPNOTSUPP) => {}
                result => result.at(path)?,
            }
        }
        let time = |seconds, nanoseconds| {
            Some(TimeOrNow::Time(Timestamp { seconds, nanoseconds: nanoseconds as u32 }))
        };
        let times = SetAttr {
            atime: time(metadata.atime(), metadata.atime_nsec()),
            mtime: time(metadata.mtime(), metadata.mtime_nsec()),
            ..SetAttr::default()
        };
        self.fs.setattr(nr, &times, caller).at(path)?;
        if metadata.is_file() || metadata.is_dir() {
            // Where the source has no such flags, or we may not look, there are none to copy.
            let flags = open(path).and_then(rustix::fs::ioctl_getflags).unwrap_or(IFlags::empty()) & FLAGS;
            if !flags.is_empty() {
                let flags = self.fs.get_flags(nr).at(path)? | flags.bits();
                self.fs.set_flags(nr, flags, caller).at(path)?;
            }
        }
        Ok(())
    }
}

fn open(path: &Path) -> rustix::io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    rustix::fs::open(path, flags, Mode::empty()).map(File::from)
}

/// The next run of data from `at` on; the whole rest where the source can't tell.
fn run_of_data(file: &File, at: u64, size: u64) -> Option<std::ops::Range<u64>> {
    let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(start) => start,
        Err(rustix::io::Errno::NXIO) => return None,
        Err(_) => return Some(at..size),
    };
    let end = rustix::fs::seek(file, SeekFrom::Hole(start)).unwrap_or(size);
    (start < size).then(|| start..end.clamp(start + 1, size))
}

fn data_ends_before(fs: &Fs, nr: InodeNr, size: u64) -> bool {
    fs.getattr(nr).is_ok_and(|attr| attr.size < size)
}

/// A device number as mknod(2)'s callers and FUSE have it (`new_encode_dev`).
fn encoded(rdev: u64) -> u32 {
    let (major, minor) = (libc::major(rdev), libc::minor(rdev));
    minor & 0xff | major << 8 | (minor & !0xff) << 12
}

type Attributes = Vec<(Vec<u8>, Vec<u8>)>;

/// The extended attributes, ACLs among them.
fn attributes(path: &Path) -> rustix::io::Result<Attributes> {
    use rustix::io::Errno;
    let mut names = vec![0; XATTR_BYTES_MAX];
    let len = match rustix::fs::llistxattr(path, &mut names) {
        Ok(len) => len,
        Err(Errno::OPNOTSUPP) => 0,
        Err(error) => return Err(error),
    };
    let mut found = Attributes::new();
    for name in names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; XATTR_BYTES_MAX];
        match rustix::fs::lgetxattr(path, std::ffi::OsStr::from_bytes(name), &mut value) {
            Ok(len) => {
                value.truncate(len);
                found.push((name.to_vec(), value));
            }
            // Gone since it was listed, or not for us.
            Err(Errno::NODATA | Errno::PERM | Errno::ACCESS) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}
