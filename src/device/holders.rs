//! Finding out who has a device: mounts, loop devices and processes, from /proc and /sys.
//!
//! All of it is for better messages and quicker refusals; what can't be read is taken as nothing found.

use nix::sys::stat::{major, makedev, minor};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// What a path names, whatever its spelling.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Identity {
    /// A regular file.
    File {
        /// The device number of its file system.
        dev: u64,
        /// Its inode number there.
        ino: u64,
    },
    /// A block device.
    Block {
        /// Its own device number.
        rdev: u64,
    },
}

impl Identity {
    /// What `path` names; an error if it is neither a regular file nor a block device.
    pub fn of(path: &Path) -> io::Result<Self> {
        let metadata = fs::metadata(path)?;
        if metadata.file_type().is_block_device() {
            Ok(Self::Block { rdev: metadata.rdev() })
        } else if metadata.is_file() {
            Ok(Self::File { dev: metadata.dev(), ino: metadata.ino() })
        } else {
            Err(io::Error::new(io::ErrorKind::InvalidInput, "not a block device or image file"))
        }
    }
}

/// One line of /proc/self/mountinfo.
#[derive(Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// The device number of the mounted file system.
    pub dev: u64,
    /// Where it is mounted.
    pub target: PathBuf,
    /// Its type, with the subtype ("fuse.journalfs").
    pub fs_type: String,
    /// What is mounted.
    pub source: PathBuf,
    /// Options of the mount, comma-separated.
    pub options: String,
}

/// The mounts that this process sees, in the order in which they were made.
pub fn mounts() -> Vec<MountEntry> {
    let text = fs::read("/proc/self/mountinfo").unwrap_or_default();
    text.split(|byte| *byte == b'\n').filter_map(parse_mount).collect()
}

fn parse_mount(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|byte| *byte == b' ');
    let dev = std::str::from_utf8(fields.nth(2)?).ok()?;
    let (major, minor) = dev.split_once(':')?;
    let dev = makedev(major.parse().ok()?, minor.parse().ok()?);
    let target = unescape(fields.nth(1)?);
    let options = String::from_utf8_lossy(fields.next()?).into_owned();
    fields.find(|field| *field == b"-")?;
    let fs_type = String::from_utf8_lossy(fields.next()?).into_owned();
    let source = unescape(fields.next()?);
    Some(MountEntry { dev, target, fs_type, source, options })
}

/// Decodes the kernel's `\040` for a space and the like.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let code =
            tail.get(..3).filter(|_| *first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        let coded = code.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(coded.unwrap_or(*first));
        rest = tail.get(if coded.is_some() { 3 } else { 0 }..).unwrap_or_default();
    }
    PathBuf::from(OsString::from_vec(bytes))
}

/// Where the device or image is mounted, by the kernel or by a journalfs daemon.
pub fn mounted_on(identity: Identity) -> Option<PathBuf> {
    let here = |mount: &MountEntry| match identity {
        Identity::Block { rdev } if mount.dev == rdev => true,
        _ => {
            mount.fs_type.ends_with("journalfs") && Identity::of(&mount.source).is_ok_and(|of| of == identity)
        }
    };
    mounts().into_iter().find(here).map(|mount| mount.target)
}

/// A loop device attached to the image.
pub fn loop_over(identity: Identity) -> Option<PathBuf> {
    for entry in fs::read_dir("/sys/block").ok()?.flatten() {
        let name = entry.file_name();
        if !name.to_string_lossy().starts_with("loop") {
            continue;
        }
        let Some(image) = read_path(&entry.path().join("loop/backing_file")) else { continue };
        if Identity::of(&image).is_ok_and(|of| of == identity) {
            return Some(Path::new("/dev").join(name));
        }
    }
    None
}

/// The image under a loop device.
pub fn backing_file(identity: Identity) -> Option<PathBuf> {
    let Identity::Block { rdev } = identity else { return None };
    read_path(Path::new(&format!("/sys/dev/block/{}:{}/loop/backing_file", major(rdev), minor(rdev))))
}

fn read_path(file: &Path) -> Option<PathBuf> {
    let mut bytes = fs::read(file).ok()?;
    while bytes.last() == Some(&b'\n') {
        bytes.pop();
    }
    (!bytes.is_empty()).then(|| PathBuf::from(OsString::from_vec(bytes)))
}

/// Who has the device, in words: "process 12 (fsck)" or "device dm-0".
pub fn name(identity: Identity, path: &Path) -> Option<String> {
    let pid = match identity {
        Identity::File { dev, ino } => flock_holder(dev, ino)?,
        Identity::Block { rdev } => match stacked_on(rdev) {
            Some(device) => return Some(format!("device {device}")),
            None => opener_of(path, rdev)?,
        },
    };
    match fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(comm) => Some(format!("process {pid} ({})", comm.trim_end())),
        Err(_) => Some(format!("process {pid}")),
    }
}

/// The process that /proc/locks says has a flock on the file.
fn flock_holder(dev: u64, ino: u64) -> Option<u32> {
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let place = format!("{:02x}:{:02x}:{ino}", major(dev), minor(dev));
    let holder = |matches: &dyn Fn(&str) -> bool| {
        locks.lines().find_map(|line| {
            let mut fields = line.split_whitespace();
            let flock = fields.nth(1)? == "FLOCK";
            let pid = fields.nth(2)?.parse().ok()?;
            (flock && matches(fields.next()?)).then_some(pid)
        })
    };
    // Some file systems (btrfs, overlayfs) show programs other device numbers than the kernel uses.
    holder(&|at| at == place).or_else(|| holder(&|at| at.ends_with(&format!(":{ino}"))))
}

/// A device-mapper or md device that is built on this one.
fn stacked_on(rdev: u64) -> Option<String> {
    let holders = format!("/sys/dev/block/{}:{}/holders", major(rdev), minor(rdev));
    let entry = fs::read_dir(holders).ok()?.flatten().next()?;
    Some(entry.file_name().to_string_lossy().into_owned())
}

/// A process that has the device open; only root sees everybody's.
fn opener_of(path: &Path, rdev: u64) -> Option<u32> {
    let path = fs::canonicalize(path).ok()?;
    for process in fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        if pid == std::process::id() {
            continue;
        }
        let Ok(open) = fs::read_dir(process.path().join("fd")) else { continue };
        for fd in open.flatten() {
            let same_path = fs::read_link(fd.path()).is_ok_and(|target| target == path);
            if same_path && fs::metadata(fd.path()).is_ok_and(|metadata| metadata.rdev() == rdev) {
                return Some(pid);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mountinfo_line_is_taken_apart() {
        let line =
            b"36 35 0:52 / /mnt/a\\040b rw,nosuid shared:7 master:1 - fuse.journalfs /img\\134x rw,user_id=0";
        let mount = parse_mount(line).unwrap();
        assert_eq!(mount.dev, makedev(0, 52));
        assert_eq!(mount.target, Path::new("/mnt/a b"));
        assert_eq!(mount.fs_type, "fuse.journalfs");
        assert_eq!(mount.source, Path::new("/img\\x"));
        assert_eq!(mount.options, "rw,nosuid");
        assert_eq!(parse_mount(b""), None);
        assert_eq!(parse_mount(b"36 35 0:52 / /mnt rw"), None);
    }

    #[test]
    fn the_root_is_among_the_mounts() {
        assert!(mounts().iter().any(|mount| mount.target == Path::new("/")));
    }

    #[test]
    fn only_files_and_block_devices_have_an_identity() {
        assert!(Identity::of(Path::new("/dev/null")).is_err());
        assert!(Identity::of(Path::new("/")).is_err());
    }
}
