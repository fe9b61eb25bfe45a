//! rename, with what renameat2(2) adds: NOREPLACE, EXCHANGE, WHITEOUT.

use super::{check_name, entry_kind, touch, touch_dir, Purpose, RenameFlags, CREDITS};
use crate::cache::Handle;
use crate::error::{Error, Result};
use crate::format::inode::{FileKind, InodeFlags, RawInode};
use crate::format::time::Timestamp;
use crate::fs::attr::Caller;
use crate::fs::dir::Dir;
use crate::fs::inode::{Inode, InodeState};
use crate::fs::{inode_table, Fate, Fs};
use crate::sync::RwLockWriteGuard;
use crate::units::{InodeNr, Tid};
use std::sync::Arc;

/// Directories above one another at most: more is a loop.
const DEPTH_MAX: u32 = 1 << 20;

type Guard<'a> = RwLockWriteGuard<'a, InodeState>;

/// One side of a rename: a name in a directory, and what it names.
struct Side<'a> {
    dir: &'a Inode,
    name: &'a [u8],
}

/// The records that a rename changes, as its handle left them.
struct Changed {
    old_parent: RawInode,
    /// `None`: the same directory.
    new_parent: Option<RawInode>,
    source: RawInode,
    victim: Option<(RawInode, Option<Fate>)>,
    whiteout: Option<(InodeNr, RawInode)>,
}

/// What is locked while a rename is at work.
struct Locked<'a> {
    old: Guard<'a>,
    new: Option<Guard<'a>>,
    source: Guard<'a>,
    victim: Option<Guard<'a>>,
}

impl Locked<'_> {
    fn new_parent(&self) -> &InodeState {
        self.new.as_ref().unwrap_or(&self.old)
    }
}

impl Fs {
    /// Gives what `name` in `parent` names the name `new_name` in `new_parent`, replacing what is there.
    pub fn rename(
        &self,
        parent: InodeNr,
        name: &[u8],
        new_parent: InodeNr,
        new_name: &[u8],
        flags: RenameFlags,
        caller: &Caller,
    ) -> Result<()> {
        check_name(name, Purpose::Rename)?;
        check_name(new_name, Purpose::Rename)?;
        let known = RenameFlags::NOREPLACE | RenameFlags::EXCHANGE | RenameFlags::WHITEOUT;
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        if flags.bits() & !known.bits() != 0
            || exchange && flags.intersects(RenameFlags::NOREPLACE | RenameFlags::WHITEOUT)
        {
            return Err(Error::Invalid);
        }
        self.inactivation_backpressure();
        let across = parent != new_parent;
        let _tree_stands_still = across.then(|| self.rename_lock.lock());
        let (old_dir, new_dir) = (self.inode(parent)?, self.inode(new_parent)?);
        let (old, new) = self.lock_parents(&old_dir, &new_dir)?;
        Self::check_dir(&old)?;
        Self::check_dir(new.as_ref().unwrap_or(&old))?;
        let found = self.find(&old_dir, &old, name)?.ok_or(Error::NotFound)?;
        let target = self.find(&new_dir, new.as_ref().unwrap_or(&old), new_name)?;
        if flags.contains(RenameFlags::NOREPLACE) && target.is_some() {
            return Err(Error::Exists);
        }
        if exchange && target.is_none() {
            return Err(Error::NotFound);
        }
        if target.as_ref().is_some_and(|t| t.inode == found.inode) {
            return Ok(());
        }
        let source = self.child(&old_dir, found)?;
        let victim = target.map(|t| self.child(&new_dir, t)).transpose()?;
        if self.is_above(source.nr, new_parent, across)? {
            return Err(Error::Invalid);
        }
        if let Some(victim) = &victim {
            if self.is_above(victim.nr, parent, across)? {
                return Err(if exchange { Error::Invalid } else { Error::NotEmpty });
            }
        }
        // In a sound tree neither can be one of the directories, which are locked already.
        for inode in std::iter::once(&source).chain(&victim) {
            if inode.nr == parent || inode.nr == new_parent {
                return self.noting(Err(Self::corrupt_inode(inode.nr, "the directory is in itself")));
            }
        }
        let (source_state, victim_state) = match &victim {
            Some(victim) => {
                let (a, b) = self.lock_two(&source, victim);
                (a, b)
            }
            None => (source.write(), None),
        };
        let mut locked = Locked { old, new, source: source_state, victim: victim_state };
        self.check_rename(&locked, victim.as_deref(), exchange, flags)?;
        if victim.is_some() && !exchange {
            self.flush_before_replacing(&source, &mut locked.source);
        }
        let from = Side { dir: &old_dir, name };
        let to = Side { dir: &new_dir, name: new_name };
        let credits = 2 * CREDITS + self.remove_credits();
        let (tid, changed) = if exchange {
            let victim = victim.as_ref().ok_or(Error::NotFound)?;
            self.update_for(caller, credits, |h| self.exchange_in(h, &locked, &from, &to, &source, victim))?
        } else {
            let whiteout = flags.contains(RenameFlags::WHITEOUT).then_some(caller);
            self.update_for(caller, credits, |h| {
                self.rename_in(h, &locked, &from, &to, &source, victim.as_deref(), whiteout)
            })?
        };
        let dirsync = self.publish_rename(locked, changed, tid, victim.as_ref());
        self.settle_names(dirsync, tid)
    }

    /// Puts a file's delayed data on its way before its name replaces another's, as ext4 does (auto_da_alloc): a
    /// program that writes a new version and renames it over the old one without fsync must not find
    /// neither after a crash. What can't be written now stays delayed; the rename doesn't depend on it.
    fn flush_before_replacing(&self, source: &Arc<Inode>, state: &mut InodeState) {
        if state.raw.is_regular() && state.data.is_some() {
            if let Err(error) = self.flush_data(source, state, true) {
                tracing::debug!(inode = source.nr.0, %error, "data stays delayed behind a rename");
            }
            self.writeback.settle(source, state);
        }
    }

    /// Locks the two directories, ancestor first, else by number. Between two directories, the caller holds `rename_lock`.
    fn lock_parents<'a>(
        &self,
        old: &'a Arc<Inode>,
        new: &'a Arc<Inode>,
    ) -> Result<(Guard<'a>, Option<Guard<'a>>)> {
        if old.nr == new.nr {
            return Ok((old.write(), None));
        }
        let old_first = if self.is_above(old.nr, new.nr, true)? {
            true
        } else if self.is_above(new.nr, old.nr, true)? {
            false
        } else {
            old.nr < new.nr
        };
        if old_first {
            let first = old.write();
            Ok((first, Some(new.write())))
        } else {
            let first = new.write();
            Ok((old.write(), Some(first)))
        }
    }

    /// Whether directory `upper` is `lower` or above it. Within one directory (`across` false) only the first can be.
    fn is_above(&self, upper: InodeNr, lower: InodeNr, across: bool) -> Result<bool> {
        if upper == lower {
            return Ok(true);
        }
        if !across {
            return Ok(false);
        }
        let mut at = lower;
        for _ in 0..DEPTH_MAX {
            if at == InodeNr::ROOT {
                return Ok(false);
            }
            // `..` changes only under rename_lock, so the record's map is all that is needed of the inode; it
            // is read past its lock, which the caller may hold.
            let raw = self.noting(inode_table::read(&*self.cache, &self.geometry, at))?;
            if !raw.is_dir() {
                return Ok(false);
            }
            at = self.noting(Dir::new(&self.geometry, at, &raw).parent(&*self.cache))?;
            if at == upper {
                return Ok(true);
            }
        }
        self.noting(Err(Self::corrupt_inode(lower, "its parents form a loop")))
    }

    fn check_rename(
        &self,
        locked: &Locked<'_>,
        victim: Option<&Inode>,
        exchange: bool,
        flags: RenameFlags,
    ) -> Result<()> {
        Self::check_removable(&locked.old, &locked.source)?;
        let new_parent = locked.new_parent();
        Self::check_mutable(&new_parent.raw, true)?;
        let source_is_dir = locked.source.raw.is_dir();
        if flags.contains(RenameFlags::WHITEOUT) {
            Self::check_mutable(&locked.old.raw, true)?;
        }
        let (Some(victim), Some(state)) = (victim, &locked.victim) else {
            if source_is_dir && locked.new.is_some() {
                self.check_subdirectories(&new_parent.raw)?;
            }
            return Ok(());
        };
        Self::check_removable(new_parent, state)?;
        let victim_is_dir = state.raw.is_dir();
        if exchange {
            if locked.new.is_some() && source_is_dir != victim_is_dir {
                let gains = if source_is_dir { new_parent } else { &locked.old };
                self.check_subdirectories(&gains.raw)?;
            }
            return Ok(());
        }
        match (source_is_dir, victim_is_dir) {
            (true, false) => Err(Error::NotDirectory),
            (false, true) => Err(Error::IsDirectory),
            (true, true) => self.check_empty(victim.nr, state),
            (false, false) => Ok(()),
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn rename_in(
        &self,
        h: &mut Handle<'_>,
        locked: &Locked<'_>,
        from: &Side<'_>,
        to: &Side<'_>,
        source: &Inode,
        victim: Option<&Inode>,
        whiteout: Option<&Caller>,
    ) -> Result<Changed> {
        let now = self.now();
        let mut old = locked.old.raw.clone();
        let mut new = locked.new.as_ref().map(|s| s.raw.clone());
        let mut raw = locked.source.raw.clone();
        let (is_dir, across) = (raw.is_dir(), new.is_some());
        let whiteout = match whiteout {
            Some(caller) => Some(self.whiteout(h, from.dir.nr, &old, caller)?),
            None => None,
        };
        {
            let target = new.as_mut().unwrap_or(&mut old);
            let mut dir = self.dir_mut(h, to.dir.nr, target);
            match victim {
                Some(_) => {
                    dir.replace(to.name, source.nr, entry_kind(&raw))?;
                }
                None => dir.insert(to.name, source.nr, entry_kind(&raw))?,
            }
        }
        let mut dir = self.dir_mut(h, from.dir.nr, &mut old);
        match &whiteout {
            Some((nr, raw)) => dir.replace(from.name, *nr, entry_kind(raw))?,
            None => dir.remove(from.name)?,
        };
        if is_dir {
            if across {
                self.dir_mut(h, source.nr, &mut raw).set_parent(to.dir.nr)?;
                Self::drop_subdirectory(&mut old);
            }
            match (&mut new, victim.is_some()) {
                (Some(new), false) => self.add_subdirectory(new),
                (None, true) => Self::drop_subdirectory(&mut old),
                // One directory comes and one goes, or none does either.
                (Some(_), true) | (None, false) => {}
            }
        }
        touch(&mut raw, now);
        inode_table::write(h, &self.geometry, source.nr, &raw)?;
        self.write_parents(h, from, to, &mut old, new.as_mut(), now)?;
        let victim = match (victim, &locked.victim) {
            (Some(victim), Some(state)) => Some(self.drop_victim(h, victim, state, now)?),
            _ => None,
        };
        Ok(Changed { old_parent: old, new_parent: new, source: raw, victim, whiteout })
    }

    fn drop_victim(
        &self,
        h: &mut Handle<'_>,
        victim: &Inode,
        state: &InodeState,
        now: Timestamp,
    ) -> Result<(RawInode, Option<Fate>)> {
        let mut raw = state.raw.clone();
        touch(&mut raw, now);
        raw.links = if raw.is_dir() { 0 } else { raw.links.saturating_sub(1) };
        if raw.links == 0 {
            let fate = self.end_inode(h, victim.nr, state, &mut raw)?;
            return Ok((raw, Some(fate)));
        }
        inode_table::write(h, &self.geometry, victim.nr, &raw)?;
        Ok((raw, None))
    }

    fn exchange_in(
        &self,
        h: &mut Handle<'_>,
        locked: &Locked<'_>,
        from: &Side<'_>,
        to: &Side<'_>,
        source: &Inode,
        other: &Inode,
    ) -> Result<Changed> {
        let now = self.now();
        let mut old = locked.old.raw.clone();
        let mut new = locked.new.as_ref().map(|s| s.raw.clone());
        let mut raw = locked.source.raw.clone();
        let mut other_raw = locked.victim.as_ref().map(|s| s.raw.clone()).ok_or(Error::NotFound)?;
        {
            let target = new.as_mut().unwrap_or(&mut old);
            self.dir_mut(h, to.dir.nr, target).replace(to.name, source.nr, entry_kind(&raw))?;
        }
        self.dir_mut(h, from.dir.nr, &mut old).replace(from.name, other.nr, entry_kind(&other_raw))?;
        if let Some(new) = &mut new {
            if raw.is_dir() {
                self.dir_mut(h, source.nr, &mut raw).set_parent(to.dir.nr)?;
            }
            if other_raw.is_dir() {
                self.dir_mut(h, other.nr, &mut other_raw).set_parent(from.dir.nr)?;
            }
            match (raw.is_dir(), other_raw.is_dir()) {
                (true, false) => {
                    Self::drop_subdirectory(&mut old);
                    self.add_subdirectory(new);
                }
                (false, true) => {
                    Self::drop_subdirectory(new);
                    self.add_subdirectory(&mut old);
                }
                _ => {}
            }
        }
        touch(&mut raw, now);
        touch(&mut other_raw, now);
        inode_table::write(h, &self.geometry, source.nr, &raw)?;
        inode_table::write(h, &self.geometry, other.nr, &other_raw)?;
        self.write_parents(h, from, to, &mut old, new.as_mut(), now)?;
        let victim = Some((other_raw, None));
        Ok(Changed { old_parent: old, new_parent: new, source: raw, victim, whiteout: None })
    }

    fn write_parents(
        &self,
        h: &mut Handle<'_>,
        from: &Side<'_>,
        to: &Side<'_>,
        old: &mut RawInode,
        new: Option<&mut RawInode>,
        now: Timestamp,
    ) -> Result<()> {
        touch_dir(old, now);
        inode_table::write(h, &self.geometry, from.dir.nr, old)?;
        if let Some(new) = new {
            touch_dir(new, now);
            inode_table::write(h, &self.geometry, to.dir.nr, new)?;
        }
        Ok(())
    }

    /// A whiteout: what union file systems take for "deleted here".
    fn whiteout(
        &self,
        h: &mut Handle<'_>,
        parent_nr: InodeNr,
        parent: &RawInode,
        caller: &Caller,
    ) -> Result<(InodeNr, RawInode)> {
        let kind = FileKind::CharDevice;
        let gid = if parent.mode & libc::S_ISGID as u16 == 0 { caller.gid } else { parent.gid };
        let wanted = super::create::Wanted::plain(kind, kind.mode_bits(), 0, caller.uid, gid);
        self.new_inode(h, parent_nr, parent, &wanted)
    }

    /// Takes the handle's records over. Returns the flags that may ask for the directories' durability.
    fn publish_rename(
        &self,
        mut locked: Locked<'_>,
        changed: Changed,
        tid: Tid,
        victim: Option<&Arc<Inode>>,
    ) -> InodeFlags {
        let mut flags = changed.old_parent.flags;
        locked.old.publish(changed.old_parent, tid, true);
        if let (Some(state), Some(raw)) = (&mut locked.new, changed.new_parent) {
            flags |= raw.flags;
            state.publish(raw, tid, true);
        }
        locked.source.publish(changed.source, tid, false);
        if let (Some(inode), Some(state), Some((raw, fate))) = (victim, &mut locked.victim, changed.victim) {
            match fate {
                Some(fate) => self.name_gone(inode, state, raw, tid, fate),
                None => state.publish(raw, tid, false),
            }
        }
        if let Some((nr, raw)) = changed.whiteout {
            self.adopt(nr, raw, tid);
        }
        flags
    }
}
