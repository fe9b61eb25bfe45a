//! Directory entries: put in and taken out.

use super::{Early, Replay};
use crate::error::{Error, Place, Result};
use crate::format::inode::RawInode;
use crate::format::jbd2::fast_commit::FcName;
use crate::format::FileKind;
use crate::fs::dir::{Dir, DirMut};
use crate::fs::{inode_table, namespace};
use crate::units::InodeNr;

/// A directory entry of a record.
#[derive(Clone, PartialEq, Eq)]
#[allow(clippy::struct_field_names)]
pub(super) struct Name {
    pub(super) parent: InodeNr,
    pub(super) nr: InodeNr,
    pub(super) name: Vec<u8>,
    /// The entry is one of the inode's links that its record, if any came, hasn't counted.
    pub(super) counted: bool,
}

impl Name {
    pub(super) fn new(name: &FcName<'_>, counted: bool) -> Result<Self> {
        let bad = matches!(name.name, b"." | b"..") || name.name.iter().any(|byte| matches!(byte, b'/' | 0));
        if bad || name.nr == InodeNr::ROOT {
            let why = "a directory entry is named that can't be";
            return Err(Error::corrupt(super::STRUCTURE, Place::Inode(name.parent), why));
        }
        Ok(Self { parent: name.parent, nr: name.nr, name: name.name.to_vec(), counted })
    }
}

impl Replay<'_> {
    /// The directory that a name is in, if there is one.
    fn parent(&self, name: &Name) -> Result<Option<RawInode>> {
        let parent = self.existing(name.parent)?;
        Ok(parent.filter(|raw| raw.is_dir() && raw.size > 0))
    }

    fn named(&self, parent: &RawInode, name: &Name) -> Result<Option<InodeNr>> {
        let dir = Dir::new(&self.fs.geometry, name.parent, parent);
        Ok(dir.lookup(&*self.fs.cache, &name.name)?.map(|found| found.inode))
    }

    /// An entry that was made. A new inode's record comes before its first entry, but not before any other.
    pub(super) fn link(&mut self, name: Name) -> Result<()> {
        let early = if name.counted { self.is_early(name.nr)? } else { self.existing(name.nr)?.is_none() };
        if early {
            return self.postpone(Early::Name(name));
        }
        self.put_name(&name)
    }

    /// Puts an entry in; a new directory gets its dot entries.
    pub(super) fn put_name(&mut self, name: &Name) -> Result<()> {
        let Some(child) = self.existing(name.nr)? else { return Ok(()) };
        let Some(mut parent) = self.parent(name)? else {
            tracing::debug!(
                directory = name.parent.0,
                "a fast commit has a name in a directory that is gone"
            );
            return Ok(());
        };
        match self.named(&parent, name)? {
            Some(nr) if nr == name.nr => return Ok(()),
            Some(nr) => {
                self.unlink(&Name { nr, ..name.clone() })?;
                parent = self.fs.read_record(name.parent)?;
            }
            None => {}
        }
        if child.is_dir() {
            self.parents.insert(name.parent);
            self.parents.insert(name.nr);
        }
        let now = self.fs.now();
        self.update(|h| {
            let (mut child, mut parent) = (child.clone(), parent.clone());
            if child.is_dir() && child.size == 0 {
                self.dir_mut(h, name.nr, &mut child).init(name.parent)?;
                child.links = 2;
            } else if name.counted && !child.is_dir() {
                child.links = child.links.saturating_add(1);
            }
            inode_table::write(h, &self.fs.geometry, name.nr, &child)?;
            let kind = child.kind().map_or(0, FileKind::dirent_type);
            self.dir_mut(h, name.parent, &mut parent).insert(&name.name, name.nr, kind)?;
            namespace::touch_dir(&mut parent, now);
            inode_table::write(h, &self.fs.geometry, name.parent, &parent)
        })
    }

    /// Takes an entry out, if it is there.
    pub(super) fn unlink(&mut self, name: &Name) -> Result<()> {
        self.early.retain(
            |early| !matches!(early, Early::Name(e) if e.parent == name.parent && e.name == name.name),
        );
        let Some(parent) = self.parent(name)? else { return Ok(()) };
        if self.named(&parent, name)? != Some(name.nr) {
            return Ok(());
        }
        let child = self.existing(name.nr)?;
        self.touched.insert(name.nr);
        if child.as_ref().is_some_and(RawInode::is_dir) {
            self.parents.insert(name.parent);
        }
        let now = self.fs.now();
        self.update(|h| {
            let mut parent = parent.clone();
            self.dir_mut(h, name.parent, &mut parent).remove(&name.name)?;
            namespace::touch_dir(&mut parent, now);
            inode_table::write(h, &self.fs.geometry, name.parent, &parent)?;
            let Some(mut child) = child.clone() else { return Ok(()) };
            child.links = if child.is_dir() { 0 } else { child.links.saturating_sub(1) };
            inode_table::write(h, &self.fs.geometry, name.nr, &child)
        })
    }

    /// Counts a directory's links: its own two names, and one of each directory in it.
    pub(super) fn count_links(&self, nr: InodeNr) -> Result<()> {
        let Some(raw) = self.existing(nr)?.filter(|raw| raw.is_dir() && raw.size > 0) else { return Ok(()) };
        let mut inside = Vec::new();
        Dir::new(&self.fs.geometry, nr, &raw).read(&*self.fs.cache, 0, &mut |entry| {
            let plain =
                FileKind::from_dirent_type(entry.kind).is_some_and(|kind| kind != FileKind::Directory);
            if !plain && !matches!(entry.name, b"." | b"..") {
                inside.push((entry.nr, entry.kind != 0));
            }
            true
        })?;
        let mut raw = RawInode { links: 2, ..raw };
        for (child, known) in inside {
            if known || self.fs.read_record(child)?.is_dir() {
                self.fs.add_subdirectory(&mut raw);
            }
        }
        self.update(|h| inode_table::write(h, &self.fs.geometry, nr, &raw))
    }

    fn dir_mut<'b, 'h>(
        &'b self,
        h: &'b mut crate::cache::Handle<'h>,
        nr: InodeNr,
        raw: &'b mut RawInode,
    ) -> DirMut<'b, 'h> {
        DirMut { geometry: &self.fs.geometry, allocator: &self.fs.allocator, h, nr, raw }
    }
}
