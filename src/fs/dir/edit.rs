//! Making, taking out and redirecting entries.

use super::blocks::Role;
use super::{DirMut, Found};
use crate::error::{Error, Place, Result};
use crate::format::dirent;
use crate::format::htree::Kind;
use crate::format::FileKind;
use crate::units::{FileBlock, InodeNr};

impl DirMut<'_, '_> {
    /// Gives a new directory its first block, with `.` and `..`.
    pub fn init(&mut self, parent: InodeNr) -> Result<()> {
        let (own, usable, kind) = (self.nr, self.view().usable(Role::Leaf), self.directory_kind());
        self.append(Role::Leaf, |block| {
            dirent::clear(block, usable);
            if dirent::put_dots(block, usable, own, parent, kind) {
                Ok(())
            } else {
                Err("the block has no room for the dot entries")
            }
        })?;
        Ok(())
    }

    fn directory_kind(&self) -> u8 {
        if self.view().has_filetype() {
            FileKind::Directory.dirent_type()
        } else {
            0
        }
    }

    fn find(&self, name: &[u8]) -> Result<Found> {
        self.refuse_inline()?;
        self.view().lookup(&*self.h, name)?.ok_or(Error::NotFound)
    }

    /// Takes the entry of `name` out (ENOENT if there is none) and returns what it named. The entry before
    /// it in its block takes its room.
    pub fn remove(&mut self, name: &[u8]) -> Result<Found> {
        self.drop_stale_index_flag();
        let found = self.find(name)?;
        let gone =
            self.change(found.block, Role::Leaf, |block| dirent::remove(block, found.usable, found.offset))?;
        if gone {
            Ok(found)
        } else {
            Err(Error::corrupt("directory block", Place::Block(found.block), "lost an entry"))
        }
    }

    /// Makes the entry of `name` name another inode (ENOENT if there is no such entry) and returns what it named.
    pub fn replace(&mut self, name: &[u8], target: InodeNr, kind: u8) -> Result<Found> {
        let found = self.find(name)?;
        let kind = if self.view().has_filetype() { kind } else { 0 };
        self.change(found.block, Role::Leaf, |block| {
            dirent::set_target(block, found.offset, target, kind);
            Ok(())
        })?;
        Ok(found)
    }

    /// Makes `..` name another directory, and returns what it named.
    pub fn set_parent(&mut self, parent: InodeNr) -> Result<InodeNr> {
        self.refuse_inline()?;
        let kind = self.directory_kind();
        let found = self.view().parent_entry(&*self.h)?;
        let indexed = self.view().is_indexed();
        let role = if indexed { Role::Index(Kind::Root) } else { Role::Leaf };
        debug_assert_eq!(self.view().physical(&*self.h, FileBlock(0)).ok().flatten(), Some(found.block));
        self.change(found.block, role, |block| {
            dirent::set_target(block, found.offset, parent, kind);
            Ok(())
        })?;
        Ok(found.inode)
    }
}
