//! POSIX ACLs of inodes: an access ACL's mode bits are the inode's own, a default ACL is what a
//! directory hands to what is created in it. Called by [`attr`](super::attr), the `xattr` operations and creation.

use super::alloc::Allocator;
use super::xattr;
use crate::cache::{Handle, ReadBlock};
use crate::error::{Error, Place, Result};
use crate::format::acl::Acl;
use crate::format::geometry::Geometry;
use crate::format::inode::RawInode;
use crate::format::xattr::{ACL_ACCESS, ACL_DEFAULT};
use crate::units::InodeNr;

/// The file-type bits of a mode.
const TYPE_BITS: u16 = 0o170_000;

/// Which of an inode's two ACLs.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Who may do what with the inode.
    Access,
    /// What a new entry of the directory starts with.
    Default,
}

impl Kind {
    fn name(self) -> crate::format::xattr::Name<'static> {
        match self {
            Kind::Access => ACL_ACCESS,
            Kind::Default => ACL_DEFAULT,
        }
    }
}

/// An inode's ACL as it is stored; `None` if it has none (then the mode says all).
pub fn get(
    r: &impl ReadBlock,
    geometry: &Geometry,
    nr: InodeNr,
    raw: &RawInode,
    kind: Kind,
) -> Result<Option<Acl>> {
    let bytes = xattr::get(r, geometry, nr, raw, kind.name())?;
    bytes.map(|bytes| decode(nr, &bytes)).transpose()
}

/// The stored form's ACL; `nr` is the inode that has it.
pub(crate) fn decode(nr: InodeNr, bytes: &[u8]) -> Result<Acl> {
    Acl::from_disk(bytes)
        .ok_or_else(|| Error::corrupt("access control list", Place::Inode(nr), "it is not valid"))
}

/// Sets or removes an ACL. The mode follows an access ACL, and one that says no more than the mode is
/// not stored. The record is written.
pub fn set(
    h: &mut Handle<'_>,
    allocator: &Allocator,
    nr: InodeNr,
    raw: &mut RawInode,
    kind: Kind,
    acl: Option<&Acl>,
) -> Result<()> {
    let file_type = raw.mode & TYPE_BITS;
    if file_type == libc::S_IFLNK as u16 {
        return Err(Error::NotSupported);
    }
    if kind == Kind::Default && file_type != libc::S_IFDIR as u16 {
        return if acl.is_some() { Err(Error::Access) } else { Ok(()) };
    }
    if let (Kind::Access, Some(acl)) = (kind, acl) {
        raw.mode = acl.mode(raw.mode);
    }
    store(h, allocator, nr, raw, kind, acl)
}

fn store(
    h: &mut Handle<'_>,
    allocator: &Allocator,
    nr: InodeNr,
    raw: &mut RawInode,
    kind: Kind,
    acl: Option<&Acl>,
) -> Result<()> {
    match acl {
        Some(acl) if kind == Kind::Default || !acl.is_minimal() => {
            xattr::set(h, allocator, nr, raw, kind.name(), &acl.to_disk(), xattr::Mode::Any)?;
        }
        _ => {
            xattr::remove(h, allocator, nr, raw, kind.name())?;
        }
    }
    super::inode_table::write(h, allocator.geometry(), nr, raw)
}

/// After a chmod (`raw.mode` is the new mode): the access ACL, if there is one, follows. The record is written.
pub fn chmod(h: &mut Handle<'_>, allocator: &Allocator, nr: InodeNr, raw: &mut RawInode) -> Result<()> {
    let acl = get(h, allocator.geometry(), nr, raw, Kind::Access)?;
    match acl {
        Some(mut acl) => {
            acl.chmod(raw.mode);
            store(h, allocator, nr, raw, Kind::Access, Some(&acl))
        }
        None => super::inode_table::write(h, allocator.geometry(), nr, raw),
    }
}

/// What a new inode gets from its parent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inherited {
    /// Its mode, with the umask or the default ACL applied.
    pub mode: u16,
    /// Its access ACL, if the mode doesn't say it all.
    pub access: Option<Acl>,
    /// Its default ACL (directories).
    pub default: Option<Acl>,
}

impl Inherited {
    /// What a parent without a default ACL gives: the umask counts.
    pub fn by_umask(mode: u16, umask: u32) -> Self {
        let umask = if mode & TYPE_BITS == libc::S_IFLNK as u16 { 0 } else { umask as u16 & 0o777 };
        Self { mode: mode & !umask, access: None, default: None }
    }

    /// What a parent with a default ACL gives: the umask doesn't count.
    pub fn from_default(default: &Acl, mode: u16) -> Self {
        let mut access = default.clone();
        let new_mode = access.create(mode);
        Self {
            mode: new_mode,
            access: (!access.is_minimal()).then_some(access),
            default: (mode & TYPE_BITS == libc::S_IFDIR as u16).then(|| default.clone()),
        }
    }

    /// Whether there is nothing to write but the mode.
    pub fn is_mode_only(&self) -> bool {
        self.access.is_none() && self.default.is_none()
    }
}

/// What a new inode of `mode` (with its type bits) gets in a directory. `parent`: the directory's record.
pub fn inherit(
    r: &impl ReadBlock,
    geometry: &Geometry,
    parent_nr: InodeNr,
    parent: &RawInode,
    mode: u16,
    umask: u32,
) -> Result<Inherited> {
    if mode & TYPE_BITS == libc::S_IFLNK as u16 {
        return Ok(Inherited::by_umask(mode, 0));
    }
    Ok(match get(r, geometry, parent_nr, parent, Kind::Default)? {
        Some(default) => Inherited::from_default(&default, mode),
        None => Inherited::by_umask(mode, umask),
    })
}

/// Gives a new inode, whose record `inode_table::create` has written and whose `raw.mode` is
/// `inherited.mode`, its ACLs. The record is written again if there are any.
pub fn write_inherited(
    h: &mut Handle<'_>,
    allocator: &Allocator,
    nr: InodeNr,
    raw: &mut RawInode,
    inherited: &Inherited,
) -> Result<()> {
    if let Some(acl) = &inherited.default {
        xattr::set(h, allocator, nr, raw, ACL_DEFAULT, &acl.to_disk(), xattr::Mode::Any)?;
    }
    if let Some(acl) = &inherited.access {
        xattr::set(h, allocator, nr, raw, ACL_ACCESS, &acl.to_disk(), xattr::Mode::Any)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::acl::{Entry, Tag};

    #[test]
    fn what_is_inherited_depends_on_the_default_acl_and_the_type() {
        let plain = Inherited::by_umask(0o100_666, 0o022);
        assert_eq!((plain.mode, plain.is_mode_only()), (0o100_644, true));
        assert_eq!(Inherited::by_umask(0o120_777, 0o022).mode, 0o120_777);

        let minimal = Acl::from_mode(0o750);
        let file = Inherited::from_default(&minimal, 0o100_666);
        assert_eq!((file.mode, file.is_mode_only()), (0o100_640, true));
        let dir = Inherited::from_default(&minimal, 0o040_777);
        assert_eq!((dir.mode, dir.access.is_none(), dir.default), (0o040_750, true, Some(minimal)));

        let entry = |tag, perm| Entry { tag, perm };
        let named = Acl::new(vec![
            entry(Tag::UserObj, 7),
            entry(Tag::User(9), 7),
            entry(Tag::GroupObj, 5),
            entry(Tag::Mask, 7),
            entry(Tag::Other, 0),
        ])
        .unwrap();
        let file = Inherited::from_default(&named, 0o100_664);
        assert_eq!(file.mode, 0o100_660);
        assert_eq!(file.access.unwrap().entries()[3].perm, 6);
        assert!(file.default.is_none());
    }
}
