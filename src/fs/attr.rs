//! Attributes of inodes: what `stat(2)` shows and `chmod`, `chown`, `utimensat` and `truncate` change, with
//! the rules for the set-user-ID and set-group-ID bits that the kernel leaves to a file system.
//! Called by `fuse/` and the rest of `fs/`; the operations are in `setattr.rs`.

use crate::format::inode::RawInode;
use crate::format::time::Timestamp;
use crate::units::InodeNr;

const S_ISUID: u16 = 0o4000;
const S_ISGID: u16 = 0o2000;
const S_IXGRP: u16 = 0o0010;
/// What chmod changes of a mode.
const MODE_BITS: u16 = 0o7777;

/// The program (its thread) that made a call.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Caller {
    /// Its file-system uid.
    pub uid: u32,
    /// Its file-system gid.
    pub gid: u32,
    /// Its thread's id; 0 for the kernel itself.
    pub pid: u32,
}

impl Caller {
    /// The superuser, for what the daemon does by itself.
    pub const ROOT: Self = Self { uid: 0, gid: 0, pid: 0 };

    /// Whether it has the capabilities that the checks here stand for.
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Whether it may keep or give the set-group-ID bit on a file of group `gid`: it is in that group
    /// or the superuser.
    pub fn keeps_sgid(&self, gid: u32) -> bool {
        self.is_root() || self.is_in_group(gid)
    }

    /// Whether `gid` is one of its groups.
    pub fn is_in_group(&self, gid: u32) -> bool {
        self.gid == gid || supplementary_groups(self.pid).contains(&gid)
    }
}

/// The groups of a thread besides its first, as far as they can be known.
fn supplementary_groups(pid: u32) -> Vec<u32> {
    let status = if pid == 0 { None } else { std::fs::read_to_string(format!("/proc/{pid}/status")).ok() };
    let groups = status.as_deref().and_then(|text| text.lines().find_map(|l| l.strip_prefix("Groups:")));
    groups
        .map(|list| list.split_whitespace().filter_map(|gid| gid.parse().ok()).collect())
        .unwrap_or_default()
}

/// What `stat(2)` shows.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Attr {
    /// The inode.
    pub nr: InodeNr,
    /// Distinguishes users of the same number in time.
    pub generation: u32,
    /// Bytes.
    pub size: u64,
    /// Space in 512-byte units, delayed allocation included.
    pub blocks: u64,
    /// Last read.
    pub atime: Timestamp,
    /// Last change of the data.
    pub mtime: Timestamp,
    /// Last change of anything.
    pub ctime: Timestamp,
    /// Birth.
    pub crtime: Timestamp,
    /// Type and permissions.
    pub mode: u16,
    /// Names.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Of a device node: Linux's 32-bit device number.
    pub rdev: u32,
    /// Bytes in a block.
    pub block_bytes: u32,
}

/// A time to set.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum TimeOrNow {
    /// The time of the call.
    Now,
    /// This one, or the nearest that the inode can hold.
    Time(Timestamp),
}

/// What to change; what is `None` stays.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct SetAttr {
    /// Permissions; type bits are ignored.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Last read.
    pub atime: Option<TimeOrNow>,
    /// Last change of the data.
    pub mtime: Option<TimeOrNow>,
    /// Last change of anything: given only by a kernel that keeps times itself.
    pub ctime: Option<Timestamp>,
    /// The caller has no right to keep set-user-ID, set-group-ID and capabilities through this.
    pub kill_suid_sgid: bool,
}

impl SetAttr {
    /// Whether it is a kernel that keeps times itself writing them back.
    pub fn is_writeback_of_times(&self) -> bool {
        self.ctime.is_some() && self.mode.is_none() && self.size.is_none() && !self.changes_owner()
    }

    pub(super) fn changes_owner(&self) -> bool {
        self.uid.is_some() || self.gid.is_some()
    }

    pub(super) fn is_only_size(&self) -> bool {
        *self == Self { size: self.size, ..Self::default() }
    }

    /// Whether it does more than append-only files allow: those may be touched, no more.
    pub(super) fn needs_mutable(&self) -> bool {
        let fixed = |time: Option<TimeOrNow>| matches!(time, Some(TimeOrNow::Time(_)));
        // A kernel that keeps times itself brings them together with ctime: those are no utimensat.
        let times = self.ctime.is_none() && (fixed(self.atime) || fixed(self.mtime));
        self.mode.is_some() || self.changes_owner() || self.size.is_some() || times
    }

    /// Applies everything but the size to a record.
    pub(super) fn apply(&self, raw: &mut RawInode, now: Timestamp, caller: &Caller) {
        let wide = raw.has_wide_times();
        let pick = |time| match time {
            TimeOrNow::Now => now,
            TimeOrNow::Time(time) => time.storable(wide),
        };
        raw.uid = self.uid.unwrap_or(raw.uid);
        raw.gid = self.gid.unwrap_or(raw.gid);
        raw.atime = self.atime.map_or(raw.atime, pick);
        raw.mtime = self.mtime.map_or(raw.mtime, pick);
        raw.ctime = self.ctime.map_or(now, |time| time.storable(wide));
        if let Some(mode) = self.mode {
            raw.mode = raw.mode & !MODE_BITS | mode as u16 & MODE_BITS;
            if raw.mode & S_ISGID != 0 && !raw.is_dir() && !caller.keeps_sgid(raw.gid) {
                raw.mode &= !S_ISGID;
            }
        } else if self.kill_suid_sgid || self.changes_owner() {
            strip_privileges(raw, caller);
        }
    }
}

/// Takes away what a change by whoever must take away: set-user-ID, and set-group-ID where it isn't
/// the mark of mandatory locking (no group execute) that the caller may keep. Directories keep theirs.
/// Returns whether the mode changed.
pub fn strip_privileges(raw: &mut RawInode, caller: &Caller) -> bool {
    let before = raw.mode;
    if !raw.is_dir() {
        raw.mode &= !S_ISUID;
        if raw.mode & S_ISGID != 0 && (raw.mode & S_IXGRP != 0 || !caller.keeps_sgid(raw.gid)) {
            raw.mode &= !S_ISGID;
        }
    }
    raw.mode != before
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: Caller = Caller { uid: 1000, gid: 1000, pid: 0 };

    fn file(mode: u16) -> RawInode {
        RawInode { mode: 0o100_000 | mode, uid: 1000, gid: 1000, extra_isize: 32, ..RawInode::default() }
    }

    #[test]
    fn chown_takes_setuid_and_executable_setgid() {
        for (mode, left) in [(0o4755, 0o755), (0o2755, 0o755), (0o6644, 0o2644), (0o1755, 0o1755)] {
            let mut raw = file(mode);
            SetAttr { uid: Some(5), ..SetAttr::default() }.apply(
                &mut raw,
                Timestamp::default(),
                &Caller::ROOT,
            );
            assert_eq!((raw.mode & MODE_BITS, raw.uid), (left, 5), "{mode:o}");
        }
        let mut dir = RawInode { mode: 0o042_755, ..file(0) };
        SetAttr { gid: Some(5), ..SetAttr::default() }.apply(&mut dir, Timestamp::default(), &USER);
        assert_eq!(dir.mode, 0o042_755);
    }

    #[test]
    fn a_stranger_cannot_give_setgid() {
        let set = SetAttr { mode: Some(0o2755), ..SetAttr::default() };
        let mut raw = RawInode { gid: 7, ..file(0o644) };
        set.apply(&mut raw, Timestamp::default(), &USER);
        assert_eq!(raw.mode, 0o100_755);
        let mut raw = file(0o644);
        set.apply(&mut raw, Timestamp::default(), &USER);
        assert_eq!(raw.mode, 0o102_755);
    }

    #[test]
    fn times_are_cut_to_the_inodes_range_and_ctime_moves() {
        let now = Timestamp::from_seconds(77);
        let late = TimeOrNow::Time(Timestamp { seconds: 1 << 40, nanoseconds: 5 });
        let set = SetAttr { atime: Some(late), mtime: Some(TimeOrNow::Now), ..SetAttr::default() };
        let mut raw = RawInode { extra_isize: 0, ..file(0o644) };
        set.apply(&mut raw, now, &USER);
        assert_eq!(raw.atime, Timestamp::from_seconds(i64::from(i32::MAX)));
        assert_eq!((raw.mtime, raw.ctime), (now, now));
    }

    #[test]
    fn append_only_files_may_be_touched_only() {
        let touch = SetAttr { mtime: Some(TimeOrNow::Now), ..SetAttr::default() };
        assert!(!touch.needs_mutable());
        let fixed = SetAttr { mtime: Some(TimeOrNow::Time(Timestamp::default())), ..SetAttr::default() };
        assert!(fixed.needs_mutable());
        assert!(SetAttr { size: Some(0), ..SetAttr::default() }.needs_mutable());
    }
}
