//! Between the file system's types and fuser's.

use super::node;
use super::types::{Attr, TimeOrNow};
use crate::error::{Error, Result};
use crate::format::time::Timestamp;
use fuser::{Errno, FileAttr, FileType, INodeNo};
use std::time::{SystemTime, UNIX_EPOCH};

/// The reply's errno for an error.
pub(super) fn errno(error: &Error) -> Errno {
    Errno::from_i32(error.errno())
}

/// A time as fuser passes it in, put right.
///
/// fuser 0.18 makes `1970 - (-seconds) - nanoseconds` of a time before 1970, though the kernel's nanoseconds are
/// always added; since both numbers survive, the mistake can be undone.
pub(super) fn timestamp(time: SystemTime) -> Timestamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => Timestamp {
            seconds: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            nanoseconds: after.subsec_nanos(),
        },
        Err(before) => {
            let before = before.duration();
            Timestamp {
                seconds: i64::try_from(before.as_secs()).map_or(i64::MIN, |seconds| -seconds),
                nanoseconds: before.subsec_nanos(),
            }
        }
    }
}

/// A time to set, or now.
pub(super) fn time_or_now(time: fuser::TimeOrNow) -> TimeOrNow {
    match time {
        fuser::TimeOrNow::Now => TimeOrNow::Now,
        fuser::TimeOrNow::SpecificTime(time) => TimeOrNow::Time(timestamp(time)),
    }
}

/// The file type of a mode; an impossible one reads as a regular file (the file system has refused it before).
pub(super) fn file_type(mode: u32) -> FileType {
    match mode & libc::S_IFMT {
        libc::S_IFIFO => FileType::NamedPipe,
        libc::S_IFCHR => FileType::CharDevice,
        libc::S_IFBLK => FileType::BlockDevice,
        libc::S_IFDIR => FileType::Directory,
        libc::S_IFLNK => FileType::Symlink,
        libc::S_IFSOCK => FileType::Socket,
        _ => FileType::RegularFile,
    }
}

/// Attributes under the inode's own number: for `GETATTR`, where the number is what stat shows.
pub(super) fn attributes(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.nr.0.into()),
        size: attr.size,
        blocks: attr.blocks,
        atime: attr.atime.into(),
        mtime: attr.mtime.into(),
        ctime: attr.ctime.into(),
        crtime: attr.crtime.into(),
        kind: file_type(attr.mode.into()),
        perm: attr.mode & 0o7777,
        nlink: attr.links,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: attr.block_bytes,
        flags: 0,
    }
}

/// Attributes under the inode's node id: fuser takes an entry's node id from its attributes.
pub(super) fn entry(attr: &Attr) -> Result<FileAttr> {
    Ok(FileAttr { ino: INodeNo(node::node_of(attr.nr)?), ..attributes(attr) })
}

/// What says that a name does not exist and may be remembered so (node id 0).
pub(super) fn no_entry() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// What fuser 0.18 makes of the kernel's numbers.
    fn as_fuser_sends(seconds: i64, nanoseconds: u32) -> SystemTime {
        if seconds >= 0 {
            UNIX_EPOCH + Duration::new(seconds as u64, nanoseconds)
        } else {
            UNIX_EPOCH - Duration::new(-seconds as u64, nanoseconds)
        }
    }

    #[test]
    fn times_before_1970_are_put_right() {
        for (seconds, nanoseconds) in
            [(0, 0), (0, 1), (1, 999_999_999), (-1, 0), (-1, 1), (-1, 999_999_999), (-2, 500), (i64::MAX, 5)]
        {
            let time = Timestamp { seconds, nanoseconds };
            assert_eq!(timestamp(as_fuser_sends(seconds, nanoseconds)), time);
        }
    }
}
