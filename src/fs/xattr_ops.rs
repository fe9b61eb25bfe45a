//! The attribute calls of the VFS: names with prefixes, ACLs translated, permissions that the VFS leaves to us.

use super::xattr::{self, Mode};
use crate::cache::Handle;
use crate::error::{Error, Result};
use crate::format::acl::Acl;
use crate::format::features::Compat;
use crate::format::inode::RawInode;
use crate::format::xattr::{
    Name, CAPABILITY, INDEX_ACL_ACCESS, INDEX_ACL_DEFAULT, INDEX_SECURITY, INDEX_TRUSTED, INDEX_USER,
};
use crate::fs::acl::{self, Kind};
use crate::fs::attr::Caller;
use crate::fs::{superblock, Fs, InodeState};
use crate::units::InodeNr;

/// The largest value that Linux passes (`XATTR_SIZE_MAX`).
const SIZE_MAX: usize = 65536;

impl Fs {
    /// The stored form of a name that programs may use here; EOPNOTSUPP otherwise.
    fn xattr_name<'a>(&self, full: &'a [u8]) -> Result<Name<'a>> {
        let name = Name::split(full).ok_or(Error::NotSupported)?;
        let served = match name.index {
            INDEX_USER => self.options.user_xattr,
            INDEX_ACL_ACCESS | INDEX_ACL_DEFAULT => self.options.acl,
            INDEX_TRUSTED | INDEX_SECURITY => true,
            _ => false,
        };
        if served {
            Ok(name)
        } else {
            Err(Error::NotSupported)
        }
    }

    /// The value of an attribute; ENODATA if there is none.
    pub fn getxattr(&self, nr: InodeNr, name: &[u8]) -> Result<Vec<u8>> {
        let name = self.xattr_name(name)?;
        let inode = self.inode(nr)?;
        let state = inode.read();
        if state.absent.lacks(name.index) {
            return Err(Error::NoData);
        }
        let value = self.noting(self.value_of(nr, &state, name))?;
        value.ok_or(Error::NoData)
    }

    /// The value of an attribute as programs see it; remembers what there isn't.
    fn value_of(&self, nr: InodeNr, state: &InodeState, name: Name<'_>) -> Result<Option<Vec<u8>>> {
        let areas = xattr::Areas::read(&*self.cache, &self.geometry, nr, &state.raw)?;
        let all = areas.all()?;
        state.absent.learn(&all);
        let Some(attribute) = all.iter().find(|a| a.name == name) else { return Ok(None) };
        let value = xattr::value(&*self.cache, &self.geometry, nr, attribute)?;
        match acl_kind(name) {
            Some(_) => acl::decode(nr, &value).map(|acl| Some(acl.to_xattr())),
            None => Ok(Some(value)),
        }
    }

    /// All names, each followed by a zero byte. Whether the caller may see `trusted.` names is for the caller's side.
    pub fn listxattr(&self, nr: InodeNr) -> Result<Vec<u8>> {
        let inode = self.inode(nr)?;
        let state = inode.read();
        let areas = self.noting(xattr::Areas::read(&*self.cache, &self.geometry, nr, &state.raw))?;
        let mut names = Vec::new();
        for attribute in self.noting(areas.all())? {
            let Some(full) = attribute.name.full() else { continue };
            if self.xattr_name(&full).is_ok() {
                names.extend(full);
                names.push(0);
            }
        }
        Ok(names)
    }

    /// Sets an attribute. `flags`: XATTR_CREATE or XATTR_REPLACE, or 0.
    pub fn setxattr(
        &self,
        nr: InodeNr,
        name: &[u8],
        value: &[u8],
        flags: i32,
        caller: &Caller,
    ) -> Result<()> {
        let name = self.xattr_name(name)?;
        let mode = match flags {
            0 => Mode::Any,
            libc::XATTR_CREATE => Mode::Create,
            libc::XATTR_REPLACE => Mode::Replace,
            _ => return Err(Error::Invalid),
        };
        if value.len() > SIZE_MAX {
            return Err(Error::Posix(libc::E2BIG));
        }
        match acl_kind(name) {
            Some(kind) => {
                let acl = if value.is_empty() { None } else { Acl::from_xattr(value)? };
                self.change_xattr(nr, name, caller, |fs, h, raw| {
                    acl::set(h, &fs.allocator, nr, raw, kind, acl.as_ref())?;
                    if kind == Kind::Access && acl.is_some() && !caller.keeps_sgid(raw.gid) {
                        raw.mode &= !(libc::S_ISGID as u16);
                    }
                    Ok(())
                })
            }
            None => self.change_xattr(nr, name, caller, |fs, h, raw| {
                xattr::set(h, &fs.allocator, nr, raw, name, value, mode)
            }),
        }
    }

    /// Removes an attribute; ENODATA if there is none (an ACL may be absent).
    pub fn removexattr(&self, nr: InodeNr, name: &[u8], caller: &Caller) -> Result<()> {
        let name = self.xattr_name(name)?;
        self.change_xattr(nr, name, caller, |fs, h, raw| {
            let found = xattr::remove(h, &fs.allocator, nr, raw, name)?;
            if found || acl_kind(name).is_some() {
                Ok(())
            } else {
                Err(Error::NoData)
            }
        })
    }

    fn change_xattr(
        &self,
        nr: InodeNr,
        name: Name<'_>,
        caller: &Caller,
        mut change: impl FnMut(&Self, &mut Handle<'_>, &mut RawInode) -> Result<()>,
    ) -> Result<()> {
        if name.index == INDEX_TRUSTED && !caller.is_root() {
            return Err(Error::NotPermitted);
        }
        let inode = self.inode(nr)?;
        let mut state = self.live(&inode)?;
        Self::check_mutable(&state.raw, false)?;
        let kind = u32::from(state.raw.mode) & libc::S_IFMT;
        if name.index == INDEX_USER && kind != libc::S_IFREG && kind != libc::S_IFDIR {
            return Err(Error::NotPermitted);
        }
        let now = self.now();
        let (tid, raw) = self.update_for(caller, xattr::CREDITS, |h| {
            let mut raw = state.raw.clone();
            raw.ctime = now;
            change(self, h, &mut raw)?;
            crate::fs::inode_table::write(h, &self.geometry, nr, &raw)?;
            self.claim_ext_attr(h)?;
            Ok(raw)
        })?;
        state.publish(raw, tid, false);
        state.absent.forget();
        Ok(())
    }

    /// Sets the compat feature ext_attr, which says that there may be attributes.
    fn claim_ext_attr(&self, h: &mut Handle<'_>) -> Result<()> {
        if self.geometry.features.compat.contains(Compat::EXT_ATTR)
            || superblock::read(h, &self.geometry)?.features.compat.contains(Compat::EXT_ATTR)
        {
            return Ok(());
        }
        superblock::modify(h, self, |sb| sb.features.compat |= Compat::EXT_ATTR)
    }

    /// Whether the file has capabilities (`security.capability`), which a write, truncation or chown takes.
    pub(crate) fn has_capability(&self, nr: InodeNr, state: &InodeState) -> Result<bool> {
        if state.absent.lacks(CAPABILITY.index) {
            return Ok(false);
        }
        Ok(self.noting(self.value_of(nr, state, CAPABILITY))?.is_some())
    }

    /// Removes the file's capabilities in a handle that writes its record.
    pub(crate) fn drop_capability(
        &self,
        h: &mut Handle<'_>,
        nr: InodeNr,
        raw: &mut RawInode,
    ) -> Result<bool> {
        xattr::remove(h, &self.allocator, nr, raw, CAPABILITY)
    }

    /// Removes the capabilities of a file that is being written, whoever writes.
    pub(crate) fn take_capability(&self, nr: InodeNr, state: &mut InodeState) -> Result<()> {
        let (tid, raw) = self.update(xattr::CREDITS, |h| {
            let mut raw = state.raw.clone();
            self.drop_capability(h, nr, &mut raw)?;
            Ok(raw)
        })?;
        state.publish(raw, tid, false);
        state.absent.forget();
        Ok(())
    }
}

fn acl_kind(name: Name<'_>) -> Option<Kind> {
    match name.index {
        INDEX_ACL_ACCESS => Some(Kind::Access),
        INDEX_ACL_DEFAULT => Some(Kind::Default),
        _ => None,
    }
}
