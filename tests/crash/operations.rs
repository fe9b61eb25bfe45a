//! The steps of a workload, and what each tells the oracle.

use super::oracle::Path;
use super::workload::{File, Workload, ROOT};
use journalfs::error::Error;
use journalfs::fs::RenameFlags;
use journalfs::units::InodeNr;
use std::sync::Arc;

/// A full file system is no failure of the test.
fn is_full(error: &Error) {
    assert_eq!(error.errno(), libc::ENOSPC, "{error}");
}

impl Workload {
    fn dir_and_name<'a>(&self, path: &'a Path) -> (InodeNr, &'a [u8]) {
        (self.dirs[path.0], path.1.as_bytes())
    }

    /// Makes an empty file and returns its index.
    pub(crate) fn make(&mut self, path: Path) -> Option<usize> {
        let position = self.position();
        let (dir, name) = self.dir_and_name(&path);
        match self.fs.mknod(dir, name, 0o100_644, 0, 0, &ROOT) {
            Ok(attr) => {
                let id = self.oracle.add(attr.nr);
                self.oracle.change(position, vec![(path.clone(), Some(id))]);
                let pattern = self.pattern();
                self.objects.push(File { nr: attr.nr, id, pattern, content: Arc::default() });
                self.files.insert(path, self.objects.len() - 1);
                Some(self.objects.len() - 1)
            }
            Err(error) => {
                is_full(&error);
                None
            }
        }
    }

    pub(crate) fn create(&mut self) {
        let path = self.name();
        if self.files.contains_key(&path) {
            return;
        }
        if let Some(file) = self.make(path) {
            self.write_somewhere(file, 9000);
        }
    }

    pub(crate) fn write(&mut self, len_max: u64) {
        if let Some((_, file)) = self.any_file() {
            self.write_somewhere(file, len_max);
        }
    }

    pub(crate) fn append(&mut self) {
        let Some((_, file)) = self.any_file() else { return };
        let len = 1 + self.random.below(3000) as usize;
        self.write_at(file, self.objects[file].content.len(), len);
    }

    fn write_somewhere(&mut self, file: usize, len_max: u64) {
        let len = 1 + self.random.below(len_max) as usize;
        let size = self.objects[file].content.len() as u64;
        let at = if self.random.below(2) == 0 { size } else { self.random.below(size + 5000) };
        self.write_at(file, at as usize, len);
    }

    pub(crate) fn write_at(&mut self, file: usize, at: usize, len: usize) {
        let position = self.position();
        let File { nr, id, pattern, ref content } = self.objects[file];
        self.oracle.write(position, id, at.min(content.len())..at + len);
        let bytes: Vec<u8> = (at..at + len).map(|i| pattern[i % 4]).collect();
        match self.fs.write(nr, at as u64, &bytes, &ROOT, false) {
            Ok(written) => {
                let content = Arc::make_mut(&mut self.objects[file].content);
                let end = at + written as usize;
                if content.len() < end {
                    content.resize(end, 0);
                }
                content[at..end].copy_from_slice(&bytes[..end - at]);
            }
            Err(error) => is_full(&error),
        }
    }

    /// Small and synced, so that it is in the log; then large, so that it goes home past the log; then freed, and the
    /// blocks used by another file.
    pub(crate) fn logged_then_in_place(&mut self) {
        let Some((path, file)) = self.any_file() else { return };
        for _ in 0..=self.random.below(3) {
            self.write_at(file, 0, 6000);
            self.fsync_file(&path, file, false);
        }
        self.write_at(file, 0, 100_000);
        if self.random.below(2) == 0 {
            let data_only = self.random_bit();
            self.fsync_file(&path, file, data_only);
        }
        if self.random.below(2) == 0 {
            self.unlink_path(&path);
            if self.random.below(2) == 0 {
                self.sync();
            }
            let other = self.name();
            if let Some(other) = (!self.files.contains_key(&other)).then(|| self.make(other)).flatten() {
                self.write_at(other, 0, 100_000);
            }
        }
    }

    fn random_bit(&mut self) -> bool {
        self.random.below(2) == 0
    }

    pub(crate) fn truncate(&mut self) {
        let Some((_, file)) = self.any_file() else { return };
        let size = self.random.below(2 * self.objects[file].content.len() as u64 + 1);
        let position = self.position();
        match self.fs.truncate(self.objects[file].nr, size) {
            Ok(()) => {
                let File { id, content, .. } = &mut self.objects[file];
                Arc::make_mut(content).resize(size as usize, 0);
                self.oracle.truncate(position, *id, content);
            }
            Err(error) => is_full(&error),
        }
    }

    pub(crate) fn punch(&mut self) {
        let Some((_, file)) = self.any_file() else { return };
        let size = self.objects[file].content.len() as u64;
        if size < 2 {
            return;
        }
        let at = self.random.below(size - 1);
        let len = 1 + self.random.below(size - at);
        let end = (at + len).min(size) as usize;
        let File { nr, id, .. } = self.objects[file];
        self.oracle.write(self.device.position(), id, at as usize..end);
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        match self.fs.fallocate(nr, mode, at, len, &ROOT) {
            Ok(()) => Arc::make_mut(&mut self.objects[file].content)[at as usize..end].fill(0),
            Err(error) => is_full(&error),
        }
    }

    pub(crate) fn rename(&mut self) {
        let Some((from, file)) = self.any_file() else { return };
        let to = self.name();
        if self.files.get(&to).is_some_and(|other| self.objects[*other].nr == self.objects[file].nr) {
            return;
        }
        self.rename_to(&from, &to);
    }

    fn rename_to(&mut self, from: &Path, to: &Path) -> bool {
        let position = self.position();
        let file = self.files[from];
        let ((a, old), (b, new)) = (self.dir_and_name(from), self.dir_and_name(to));
        match self.fs.rename(a, old, b, new, RenameFlags::empty(), &ROOT) {
            Ok(()) => {
                let id = self.objects[file].id;
                self.oracle.change(position, vec![(from.clone(), None), (to.clone(), Some(id))]);
                self.files.remove(from);
                self.files.insert(to.clone(), file);
                true
            }
            Err(error) => {
                is_full(&error);
                false
            }
        }
    }

    pub(crate) fn exchange(&mut self) {
        let (Some((one, x)), Some((other, y))) = (self.any_file(), self.any_file()) else { return };
        if self.objects[x].nr == self.objects[y].nr {
            return;
        }
        let position = self.position();
        let ((a, old), (b, new)) = (self.dir_and_name(&one), self.dir_and_name(&other));
        match self.fs.rename(a, old, b, new, RenameFlags::EXCHANGE, &ROOT) {
            Ok(()) => {
                let (id, other_id) = (self.objects[x].id, self.objects[y].id);
                self.oracle.change(position, vec![(one.clone(), Some(other_id)), (other.clone(), Some(id))]);
                self.files.insert(one, y);
                self.files.insert(other, x);
            }
            Err(error) => is_full(&error),
        }
    }

    /// Write a new file, fsync it, rename it over the old one, fsync the directory: old or new, never neither.
    pub(crate) fn replace_atomically(&mut self) {
        let Some((path, _)) = self.any_file() else { return };
        let temporary = (path.0, "replacement".to_string());
        let file = match self.files.get(&temporary) {
            Some(file) => *file,
            None => match self.make(temporary.clone()) {
                Some(file) => file,
                None => return,
            },
        };
        if path == temporary {
            return;
        }
        self.write_somewhere(file, 30_000);
        self.fsync_file(&temporary, file, false);
        if self.rename_to(&temporary, &path) && self.random_bit() {
            self.fs.fsync(self.dirs[path.0], false, 0).unwrap();
            self.everything_synced();
        }
    }

    pub(crate) fn link(&mut self) {
        let Some((_, file)) = self.any_file() else { return };
        let to = self.name();
        if self.files.contains_key(&to) {
            return;
        }
        let position = self.position();
        let (dir, name) = self.dir_and_name(&to);
        match self.fs.link(self.objects[file].nr, dir, name, &ROOT) {
            Ok(_) => {
                self.oracle.change(position, vec![(to.clone(), Some(self.objects[file].id))]);
                self.files.insert(to, file);
            }
            Err(error) => is_full(&error),
        }
    }

    pub(crate) fn unlink(&mut self) {
        if let Some((path, _)) = self.any_file() {
            self.unlink_path(&path);
        }
    }

    pub(crate) fn unlink_path(&mut self, path: &Path) {
        let position = self.position();
        let (dir, name) = self.dir_and_name(path);
        self.fs.unlink(dir, name).unwrap();
        self.oracle.change(position, vec![(path.clone(), None)]);
        self.files.remove(path);
    }

    /// An orphan: its last name goes while it is open; some stay open to the end.
    pub(crate) fn unlink_open(&mut self) {
        let Some((path, file)) = self.any_file() else { return };
        let nr = self.objects[file].nr;
        if self.files.values().filter(|other| self.objects[**other].nr == nr).count() > 1 {
            return;
        }
        self.fs.open(nr, libc::O_RDWR).unwrap();
        self.unlink_path(&path);
        self.open.push(nr);
        if self.open.len() > 2 {
            let nr = self.open.remove(0);
            self.fs.release(nr).unwrap();
        }
    }

    fn make_directory(&mut self, name: String) -> Option<InodeNr> {
        let position = self.position();
        match self.fs.mkdir(InodeNr::ROOT, name.as_bytes(), 0o755, 0, &ROOT) {
            Ok(attr) => {
                let id = self.oracle.add(attr.nr);
                self.oracle.change(position, vec![((0, name.clone()), Some(id))]);
                self.passing.insert(name, id);
                Some(attr.nr)
            }
            Err(error) => {
                is_full(&error);
                None
            }
        }
    }

    fn remove_directory(&mut self, name: String) {
        let position = self.position();
        self.fs.rmdir(InodeNr::ROOT, name.as_bytes()).unwrap();
        self.passing.remove(&name);
        self.oracle.change(position, vec![((0, name), None)]);
    }

    pub(crate) fn make_or_remove_directory(&mut self) {
        let name = format!("dir-{}", self.random.below(4));
        if self.passing.contains_key(&name) {
            self.remove_directory(name);
        } else {
            self.make_directory(name);
        }
    }

    /// Directory blocks come and go, and are used for data afterwards.
    pub(crate) fn fill_and_empty_directory(&mut self) {
        let Some(dir) = self.make_directory("wide".into()) else { return };
        let count = 20 + self.random.below(60);
        let name = |i: u64| format!("{i:03}-{}", "x".repeat(120)).into_bytes();
        for i in 0..count {
            if self.fs.mknod(dir, &name(i), 0o100_644, 0, 0, &ROOT).is_err() {
                break;
            }
        }
        if self.random_bit() {
            self.fs.fsync(dir, false, 0).unwrap();
            self.everything_synced();
        }
        for i in 0..count {
            let _ = self.fs.unlink(dir, &name(i));
        }
        self.remove_directory("wide".into());
    }

    pub(crate) fn fsync(&mut self, data_only: bool) {
        if let Some((path, file)) = self.any_file() {
            self.fsync_file(&path, file, data_only);
        }
    }

    pub(crate) fn fsync_file(&mut self, path: &Path, file: usize, data_only: bool) {
        let File { nr, id, .. } = self.objects[file];
        self.fs.fsync(nr, data_only, 0).unwrap_or_else(|e| panic!("fsync of {path:?}: {e}"));
        self.oracle.synced(self.device.position(), id, &self.objects[file].content, !data_only);
    }

    /// Makes everything durable, as a sync does.
    pub(crate) fn fsync_directory(&mut self) {
        let dir = self.random.below(self.dirs.len() as u64) as usize;
        self.fs.fsync(self.dirs[dir], false, 0).unwrap();
        self.everything_synced();
    }

    pub(crate) fn sync(&mut self) {
        self.fs.sync().unwrap();
        self.everything_synced();
    }

    fn everything_synced(&mut self) {
        let position = self.position();
        self.oracle.all_names_synced(position);
        for file in self.files.values() {
            let File { id, content, .. } = &self.objects[*file];
            self.oracle.synced(position, *id, content, true);
        }
    }
}
