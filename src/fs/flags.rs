//! Inode flags as `chattr(1)` sees them: which are shown, which may be changed, by whom, on what.
//! The kernel enforces none of them for a FUSE file system; [`Fs::check_mutable`] is called on every path that changes.

use super::attr::Caller;
use super::{inode_table, Fs};
use crate::error::{Error, Result};
use crate::format::inode::{InodeFlags, RawInode};
use crate::format::RoCompat;
use crate::units::InodeNr;

/// What FS_IOC_GETFLAGS shows (`EXT4_FL_USER_VISIBLE`).
const VISIBLE: u32 = 0x725b_dfff;

/// What FS_IOC_SETFLAGS may change (`EXT4_FL_USER_MODIFIABLE`), without the bits that only say how the
/// inode is stored: changing extents is a migration, casefold a feature, and both are refused.
const MODIFIABLE: InodeFlags = InodeFlags::SECRM
    .union(InodeFlags::UNRM)
    .union(InodeFlags::COMPR)
    .union(InodeFlags::SYNC)
    .union(InodeFlags::IMMUTABLE)
    .union(InodeFlags::APPEND)
    .union(InodeFlags::NODUMP)
    .union(InodeFlags::NOATIME)
    .union(InodeFlags::JOURNAL_DATA)
    .union(InodeFlags::NOTAIL)
    .union(DIRECTORY_ONLY);

/// Flags that mean something for directories only.
const DIRECTORY_ONLY: InodeFlags =
    InodeFlags::DIRSYNC.union(InodeFlags::TOPDIR).union(InodeFlags::PROJINHERIT);

/// All that an inode without data may have.
const OTHER: InodeFlags = InodeFlags::NODUMP.union(InodeFlags::NOATIME);

/// Flags that a change of asks for, and whose change is refused rather than ignored.
const STORAGE: InodeFlags = InodeFlags::EXTENTS.union(InodeFlags::CASEFOLD).union(InodeFlags::DAX);

/// The flags of FS_IOC_FSGETXATTR (`FS_XFLAG_*`) with the inode flags that they stand for.
const XFLAGS: [(u32, InodeFlags); 6] = [
    (0x0008, InodeFlags::IMMUTABLE),
    (0x0010, InodeFlags::APPEND),
    (0x0020, InodeFlags::SYNC),
    (0x0040, InodeFlags::NOATIME),
    (0x0080, InodeFlags::NODUMP),
    (0x0200, InodeFlags::PROJINHERIT),
];

/// The inode's flags after `wanted` was asked for by `caller`, or why not.
fn changed(raw: &RawInode, wanted: InodeFlags, caller: &Caller) -> Result<InodeFlags> {
    let (old, toggled) = (raw.flags, raw.flags.symmetric_difference(wanted));
    if wanted.bits() & !VISIBLE != 0 {
        return Err(Error::NotSupported);
    }
    let privileged = InodeFlags::IMMUTABLE | InodeFlags::APPEND | InodeFlags::JOURNAL_DATA;
    if !caller.is_root() && (toggled.intersects(privileged) || caller.uid != raw.uid) {
        return Err(Error::NotPermitted);
    }
    if toggled.intersects(STORAGE) {
        return Err(Error::NotSupported);
    }
    let new = old.difference(MODIFIABLE) | wanted.intersection(MODIFIABLE);
    let allowed = if raw.is_dir() {
        MODIFIABLE
    } else if raw.is_regular() {
        MODIFIABLE.difference(DIRECTORY_ONLY)
    } else {
        OTHER
    };
    if !new.intersection(MODIFIABLE).difference(allowed).is_empty() {
        return Err(Error::NotSupported);
    }
    // An immutable inode can only be made mutable first.
    if old.contains(InodeFlags::IMMUTABLE)
        && new.contains(InodeFlags::IMMUTABLE)
        && old.intersection(MODIFIABLE) != new.intersection(MODIFIABLE)
    {
        return Err(Error::NotPermitted);
    }
    Ok(new)
}

/// What FS_IOC_FSGETXATTR shows (`struct fsxattr`): the fields ext4 fills.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct FsXattr {
    /// `FS_XFLAG_*`.
    pub xflags: u32,
    /// The project; 0 without the feature.
    pub projid: u32,
}

impl Fs {
    /// FS_IOC_GETFLAGS.
    pub fn get_flags(&self, nr: InodeNr) -> Result<u32> {
        let inode = self.inode(nr)?;
        let state = inode.read();
        let mut flags = state.raw.flags;
        if !state.raw.is_dir() {
            flags.remove(InodeFlags::PROJINHERIT);
        }
        Ok(flags.bits() & VISIBLE)
    }

    /// FS_IOC_SETFLAGS. Bits that are shown but can't be changed are ignored, as chattr(1) needs it.
    pub fn set_flags(&self, nr: InodeNr, flags: u32, caller: &Caller) -> Result<()> {
        let inode = self.inode(nr)?;
        let mut state = self.live(&inode)?;
        let new = changed(&state.raw, InodeFlags::from_bits_retain(flags), caller)?;
        if new == state.raw.flags {
            return Ok(());
        }
        let now = self.now();
        let (tid, raw) = self.update(1, |h| {
            let mut raw = state.raw.clone();
            raw.flags = new;
            raw.ctime = now;
            inode_table::write(h, &self.geometry, nr, &raw)?;
            Ok(raw)
        })?;
        state.publish(raw, tid, false);
        Ok(())
    }

    /// FS_IOC_FSGETXATTR.
    pub fn get_fsxattr(&self, nr: InodeNr) -> Result<FsXattr> {
        let inode = self.inode(nr)?;
        let state = inode.read();
        let of = |(xflag, flag): &(u32, InodeFlags)| if state.raw.flags.contains(*flag) { *xflag } else { 0 };
        let project = self.geometry.features.ro_compat.contains(RoCompat::PROJECT);
        let projid = if project { state.raw.projid } else { 0 };
        Ok(FsXattr { xflags: XFLAGS.iter().map(of).sum(), projid })
    }

    /// FS_IOC_FSSETXATTR. A project can't be set: that needs the project feature, which is not written.
    pub fn set_fsxattr(&self, nr: InodeNr, set: FsXattr, caller: &Caller) -> Result<()> {
        let known: u32 = XFLAGS.iter().map(|(xflag, _)| xflag).sum();
        if set.xflags & !known != 0 || set.projid != self.get_fsxattr(nr)?.projid {
            return Err(Error::NotSupported);
        }
        let mut flags = InodeFlags::from_bits_retain(self.get_flags(nr)?);
        for (xflag, flag) in XFLAGS {
            flags.set(flag, set.xflags & xflag != 0);
        }
        self.set_flags(nr, flags.bits(), caller)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: Caller = Caller { uid: 1000, gid: 1000, pid: 0 };

    fn file(flags: InodeFlags) -> RawInode {
        RawInode { mode: 0o100_644, uid: 1000, flags, ..RawInode::default() }
    }

    #[test]
    fn users_set_harmless_flags_of_their_own_files() {
        let raw = file(InodeFlags::EXTENTS);
        let wanted = InodeFlags::EXTENTS | InodeFlags::NODUMP;
        assert_eq!(changed(&raw, wanted, &USER).unwrap(), wanted);
        let other = Caller { uid: 5, ..USER };
        assert!(changed(&raw, wanted, &other).unwrap_err().is(libc::EPERM));
        assert!(changed(&raw, wanted | InodeFlags::IMMUTABLE, &USER).unwrap_err().is(libc::EPERM));
        assert!(changed(&raw, wanted | InodeFlags::IMMUTABLE, &Caller::ROOT).is_ok());
    }

    #[test]
    fn how_an_inode_is_stored_stays() {
        let raw = file(InodeFlags::EXTENTS);
        let bad = |flags| changed(&raw, flags, &Caller::ROOT).unwrap_err().is(libc::EOPNOTSUPP);
        assert!(bad(InodeFlags::empty()));
        assert!(bad(InodeFlags::EXTENTS | InodeFlags::DIRSYNC));
        assert!(bad(InodeFlags::EXTENTS | InodeFlags::EA_INODE));
        // Shown, not changeable: ignored.
        let kept = changed(&file(InodeFlags::INDEX), InodeFlags::NOATIME, &USER).unwrap();
        assert_eq!(kept, InodeFlags::INDEX | InodeFlags::NOATIME);
    }

    #[test]
    fn immutable_is_taken_off_first() {
        let raw = file(InodeFlags::IMMUTABLE);
        let both = InodeFlags::IMMUTABLE | InodeFlags::NODUMP;
        assert!(changed(&raw, both, &Caller::ROOT).unwrap_err().is(libc::EPERM));
        assert_eq!(changed(&raw, InodeFlags::NODUMP, &Caller::ROOT).unwrap(), InodeFlags::NODUMP);
    }
}
