//! Taking names away: unlink, rmdir.

use super::{check_name, touch, touch_dir, Purpose, CREDITS};
use crate::error::{Error, Result};
use crate::fs::dir::Dir;
use crate::fs::inode::InodeState;
use crate::fs::{inode_table, Fs};
use crate::units::InodeNr;

impl Fs {
    /// Takes away a name of what is no directory. With the last one the inode ends: at once, or, if it is
    /// open or large, as an orphan.
    pub fn unlink(&self, parent: InodeNr, name: &[u8]) -> Result<()> {
        check_name(name, Purpose::Unlink)?;
        self.remove_name(parent, name, false)
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, parent: InodeNr, name: &[u8]) -> Result<()> {
        check_name(name, Purpose::Rmdir)?;
        self.remove_name(parent, name, true)
    }

    fn remove_name(&self, parent: InodeNr, name: &[u8], want_dir: bool) -> Result<()> {
        self.inactivation_backpressure();
        let parent = self.inode(parent)?;
        let mut parent_state = parent.write();
        Self::check_dir(&parent_state)?;
        let found = self.find(&parent, &parent_state, name)?.ok_or(Error::NotFound)?;
        let child = self.child(&parent, found)?;
        if child.nr == parent.nr {
            return self.noting(Err(Self::corrupt_inode(parent.nr, "the directory is in itself")));
        }
        let mut state = child.write();
        Self::check_removable(&parent_state, &state)?;
        match (want_dir, state.raw.is_dir()) {
            (true, false) => return Err(Error::NotDirectory),
            (false, true) => return Err(Error::IsDirectory),
            (true, true) => self.check_empty(child.nr, &state)?,
            (false, false) => {}
        }
        let now = self.now();
        let (tid, (raw, parent_raw, fate)) = self.update(CREDITS + self.remove_credits(), |h| {
            let (mut raw, mut parent_raw) = (state.raw.clone(), parent_state.raw.clone());
            self.dir_mut(h, parent.nr, &mut parent_raw).remove(name)?;
            if want_dir {
                Self::drop_subdirectory(&mut parent_raw);
            }
            touch_dir(&mut parent_raw, now);
            inode_table::write(h, &self.geometry, parent.nr, &parent_raw)?;
            touch(&mut raw, now);
            raw.links = if want_dir { 0 } else { raw.links.saturating_sub(1) };
            let fate = if raw.links == 0 {
                Some(self.end_inode(h, child.nr, &state, &mut raw)?)
            } else {
                inode_table::write(h, &self.geometry, child.nr, &raw)?;
                None
            };
            Ok((raw, parent_raw, fate))
        })?;
        let flags = parent_raw.flags;
        parent_state.publish(parent_raw, tid, true);
        match fate {
            Some(fate) => self.name_gone(&child, &mut state, raw, tid, fate),
            None => state.publish(raw, tid, false),
        }
        drop((state, parent_state));
        self.settle_names(flags, tid)
    }

    /// EPERM where inode flags forbid taking a name out of a directory.
    pub(super) fn check_removable(parent: &InodeState, victim: &InodeState) -> Result<()> {
        Self::check_mutable(&parent.raw, false)?;
        Self::check_mutable(&victim.raw, false)
    }

    pub(super) fn check_empty(&self, nr: InodeNr, state: &InodeState) -> Result<()> {
        // Outside of a handle: an emptied directory may still have many blocks to look through.
        if self.noting(Dir::new(&self.geometry, nr, &state.raw).is_empty(&*self.cache))? {
            Ok(())
        } else {
            Err(Error::NotEmpty)
        }
    }
}
