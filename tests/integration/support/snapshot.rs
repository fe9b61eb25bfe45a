//! A tree as programs see it, in a form that compares.

use std::collections::hash_map::DefaultHasher;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::hash::Hasher;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{llistxattr, IFlags, SeekFrom};
use rustix::io::Errno;

/// How much of two snapshots must agree.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Scope {
    /// The same image, at rest both times: everything.
    Exact,
    /// As `Exact`, recovered twice from fast commits: these bring names, but not the time at which a directory got or lost
    /// one, so who replays sets the time of the replay, as ext4 does.
    Replayed,
    /// The same image, one time with changes still in memory: allocation may differ.
    Live,
    /// The same operations on two file systems: what programs may rely on. Times only under `times/`.
    Portable,
}

/// Every entry below a directory (itself included, as ""), by relative path.
pub(crate) struct Snapshot {
    entries: BTreeMap<Vec<u8>, Entry>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Entry {
    mode: u32,
    uid: u32,
    gid: u32,
    links: u64,
    /// The first path with the same inode: the hard-link group.
    same_as: Vec<u8>,
    /// Files and symlinks; directories only where allocation counts.
    size: u64,
    device: u64,
    target: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    flags: u32,
    /// Over the blocks that are not all zeros, each with its place.
    content: u64,
    times: Vec<(i64, i64)>,
    inode: u64,
    blocks: u64,
    /// Start and end of each run of data, as SEEK_DATA and SEEK_HOLE tell.
    data: Vec<(u64, u64)>,
}

/// Flags that chattr(1) sets; the rest (extents, htree) is the driver's business.
const SHOWN_FLAGS: IFlags = IFlags::SYNC
    .union(IFlags::IMMUTABLE)
    .union(IFlags::APPEND)
    .union(IFlags::NODUMP)
    .union(IFlags::NOATIME)
    .union(IFlags::DIRSYNC);

impl Snapshot {
    /// Reads the whole tree at `root`. Mount with noatime (or ro), or reading it changes it.
    pub(crate) fn take(root: &Path) -> Self {
        let mut entries = BTreeMap::new();
        let mut first_paths = BTreeMap::new();
        let mut pending = vec![Vec::new()];
        while let Some(relative) = pending.pop() {
            let path = root.join(std::ffi::OsStr::from_bytes(&relative));
            let meta =
                path.symlink_metadata().unwrap_or_else(|error| panic!("lstat {}: {error}", path.display()));
            if meta.is_dir() {
                let listing = std::fs::read_dir(&path)
                    .unwrap_or_else(|error| panic!("readdir {}: {error}", path.display()));
                for entry in listing {
                    let entry = entry.unwrap_or_else(|error| panic!("readdir {}: {error}", path.display()));
                    let mut child = relative.clone();
                    if !child.is_empty() {
                        child.push(b'/');
                    }
                    child.extend_from_slice(entry.file_name().as_bytes());
                    pending.push(child);
                }
            }
            let mut entry = Entry::read(&path, &meta);
            if !meta.is_dir() {
                let first = first_paths.entry(meta.ino()).or_insert_with(|| relative.clone());
                entry.same_as.clone_from(first);
            }
            let before = entries.insert(relative, entry);
            assert!(before.is_none(), "{} is listed twice", path.display());
        }
        // Which member of a link group comes first depends on the order of readdir.
        let mut smallest: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        for (path, entry) in &entries {
            smallest.entry(entry.same_as.clone()).or_insert_with(|| path.clone());
        }
        for entry in entries.values_mut() {
            if let Some(path) = smallest.get(&entry.same_as) {
                entry.same_as.clone_from(path);
            }
        }
        Self { entries }
    }

    /// How many entries there are.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Demands that both agree as far as `scope` says; lists the first differences otherwise.
    pub(crate) fn assert_same(&self, other: &Self, scope: Scope, what: &str) {
        let mut report = String::new();
        let mut count = 0;
        let mut differ = |path: &[u8], text: String| {
            count += 1;
            if count <= 20 {
                let _ = writeln!(report, "  {}: {text}", path.escape_ascii());
            }
        };
        for (path, entry) in self.in_scope(scope) {
            match other.entries.get(path) {
                None => differ(path, "only on the left".to_owned()),
                Some(their) => {
                    let (ours, theirs) = (entry.reduced(path, scope), their.reduced(path, scope));
                    if ours != theirs {
                        differ(path, ours.difference(&theirs));
                    }
                }
            }
        }
        for (path, _) in other.in_scope(scope) {
            if !self.entries.contains_key(path) {
                differ(path, "only on the right".to_owned());
            }
        }
        assert!(count == 0, "{what}: {count} differences ({scope:?}):\n{report}");
    }

    fn in_scope(&self, scope: Scope) -> impl Iterator<Item = (&Vec<u8>, &Entry)> {
        self.entries
            .iter()
            .filter(move |(path, _)| scope != Scope::Portable || !path.starts_with(b"lost+found"))
    }
}

impl Entry {
    fn read(path: &Path, meta: &std::fs::Metadata) -> Self {
        let kind = meta.file_type();
        let mut entry = Self {
            mode: meta.mode(),
            uid: meta.uid(),
            gid: meta.gid(),
            links: meta.nlink(),
            size: meta.size(),
            times: vec![
                (meta.atime(), meta.atime_nsec()),
                (meta.mtime(), meta.mtime_nsec()),
                (meta.ctime(), meta.ctime_nsec()),
            ],
            inode: meta.ino(),
            blocks: meta.blocks(),
            ..Self::default()
        };
        if kind.is_block_device() || kind.is_char_device() {
            entry.device = meta.rdev();
        }
        if kind.is_symlink() {
            let target = std::fs::read_link(path)
                .unwrap_or_else(|error| panic!("readlink {}: {error}", path.display()));
            entry.target = target.as_os_str().as_bytes().to_vec();
        }
        entry.xattrs = read_xattrs(path);
        if kind.is_file() || kind.is_dir() {
            let file = std::fs::OpenOptions::new()
                .read(true)
                .custom_flags(rustix::fs::OFlags::NOATIME.bits() as i32)
                .open(path)
                .unwrap_or_else(|error| panic!("open {}: {error}", path.display()));
            entry.flags =
                rustix::fs::ioctl_getflags(&file).map_or(0, |flags| flags.intersection(SHOWN_FLAGS).bits());
            if kind.is_file() {
                entry.data = data_runs(&file, meta.size())
                    .unwrap_or_else(|error| panic!("SEEK_DATA {}: {error}", path.display()));
                entry.content = hash_content(&file, &entry.data, meta.size())
                    .unwrap_or_else(|error| panic!("read {}: {error}", path.display()));
            }
        }
        entry
    }

    /// This entry without what `scope` leaves out.
    fn reduced(&self, path: &[u8], scope: Scope) -> Self {
        let mut entry = self.clone();
        let directory = entry.mode & 0o170_000 == 0o040_000;
        // FUSE calls its root inode 1, ext4 2.
        if path.is_empty() {
            entry.inode = 0;
        }
        if scope == Scope::Replayed && directory {
            entry.times.truncate(1);
        }
        if !matches!(scope, Scope::Exact | Scope::Replayed) {
            entry.blocks = 0;
            entry.data.clear();
        }
        if scope == Scope::Portable {
            entry.inode = 0;
            if directory {
                entry.size = 0;
            }
            if path.starts_with(b"times/") {
                entry.times.pop();
            } else {
                entry.times.clear();
            }
        }
        entry
    }

    /// The fields that differ, each with both values.
    fn difference(&self, other: &Self) -> String {
        let mut text = String::new();
        let mut field = |name: &str, left: &dyn std::fmt::Debug, right: &dyn std::fmt::Debug| {
            let (left, right) = (format!("{left:?}"), format!("{right:?}"));
            if left != right {
                let cut = |s: &str| s.chars().take(300).collect::<String>();
                let _ = write!(text, "{name} {} != {}; ", cut(&left), cut(&right));
            }
        };
        field("mode", &format_args!("{:o}", self.mode), &format_args!("{:o}", other.mode));
        field("uid", &self.uid, &other.uid);
        field("gid", &self.gid, &other.gid);
        field("links", &self.links, &other.links);
        field(
            "same file as",
            &self.same_as.escape_ascii().to_string(),
            &other.same_as.escape_ascii().to_string(),
        );
        field("size", &self.size, &other.size);
        field("device", &self.device, &other.device);
        field("target", &self.target, &other.target);
        field("xattrs", &self.xattrs, &other.xattrs);
        field("flags", &self.flags, &other.flags);
        field("content", &self.content, &other.content);
        field("times (a, m, c)", &self.times, &other.times);
        field("inode", &self.inode, &other.inode);
        field("st_blocks", &self.blocks, &other.blocks);
        field("data runs", &self.data, &other.data);
        text
    }
}

fn read_xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0_u8; 65536];
    let length = match llistxattr(path, &mut names) {
        Ok(length) => length,
        Err(Errno::NOTSUP) => 0,
        Err(error) => panic!("listxattr {}: {error}", path.display()),
    };
    let mut xattrs = BTreeMap::new();
    for name in names[..length].split(|&b| b == 0).filter(|n| !n.is_empty()) {
        let mut value = vec![0_u8; 65536];
        let length = rustix::fs::lgetxattr(path, name, &mut value)
            .unwrap_or_else(|error| panic!("getxattr {} {}: {error}", path.display(), name.escape_ascii()));
        value.truncate(length);
        xattrs.insert(name.to_vec(), value);
    }
    xattrs
}

/// The file's runs of data, end exclusive. Fails on answers that make no progress.
fn data_runs(file: &File, size: u64) -> Result<Vec<(u64, u64)>, Errno> {
    let mut runs = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error),
        };
        let end = rustix::fs::seek(file, SeekFrom::Hole(start))?;
        if start < at || end <= start {
            return Err(Errno::LOOP);
        }
        runs.push((start, end.min(size)));
        at = end;
    }
    Ok(runs)
}

fn hash_content(file: &File, runs: &[(u64, u64)], size: u64) -> std::io::Result<u64> {
    const STEP: usize = 1 << 16;
    let mut hasher = DefaultHasher::new();
    let mut buffer = vec![0_u8; STEP];
    let zeros = [0_u8; 1024];
    for &(start, end) in runs {
        // Whole 1 KiB pieces, so that where a run starts does not matter.
        let mut at = start & !1023;
        while at < end {
            let want = STEP.min((end - at) as usize);
            let mut filled = 0;
            while filled < want {
                let got = file.read_at(&mut buffer[filled..want], at + filled as u64)?;
                if got == 0 {
                    return Err(std::io::Error::other(format!(
                        "end of file at {} of {size}",
                        at + filled as u64
                    )));
                }
                filled += got;
            }
            for (index, piece) in buffer[..want].chunks(1024).enumerate() {
                if piece != &zeros[..piece.len()] {
                    hasher.write_u64(at + index as u64 * 1024);
                    hasher.write(piece);
                }
            }
            at += want as u64;
        }
    }
    Ok(hasher.finish())
}
