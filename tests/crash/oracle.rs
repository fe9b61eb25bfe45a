//! What has been acknowledged, and whether a recovered file system keeps it.
//!
//! *Names.* Operations on names become durable in their order, each whole or not at all. So what a recovery shows is what
//! the first k operations made, for one k that is no smaller than the last acknowledged sync demands and no greater than
//! what had begun when the power went. That includes "old or new, never neither" of a rename.
//!
//! *Contents.* A file that was synced has the content it had then, but for what was done to it since: a write may change
//! its bytes, and no others; a truncation is there or not.

use journalfs::fs::Fs;
use journalfs::units::InodeNr;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// What a file is filled with: four bytes over and over, by their place in the file.
pub(crate) type Pattern = [u8; 4];

/// The log's magic number.
pub(crate) const MAGIC: Pattern = [0xc0, 0x3b, 0x39, 0x98];

/// A file whose name begins so has no pattern.
pub(crate) const FREE_FORM: &str = "free-form";

/// Directory and name.
pub(crate) type Path = (usize, String);

/// A file or directory that the workload made; numbers of inodes come again, these don't.
pub(crate) type Id = usize;

/// Names that one operation changes, together.
struct Change {
    position: usize,
    names: Vec<(Path, Option<Id>)>,
}

/// Once the event at `position` has happened, the first `changes` are durable.
struct Floor {
    position: usize,
    changes: usize,
}

/// A file's content was durable at `position`.
struct Promise {
    position: usize,
    /// From here another promise says more.
    until: usize,
    /// What it was, and what truncations have made of it since when.
    versions: Vec<(usize, Arc<Vec<u8>>)>,
    /// Bytes that are being changed since the event at .0.
    loose: Vec<(usize, Range<usize>)>,
}

#[derive(Default)]
pub(crate) struct Oracle {
    /// By [`Id`].
    inodes: Vec<InodeNr>,
    changes: Vec<Change>,
    floors: Vec<Floor>,
    promises: BTreeMap<Id, Vec<Promise>>,
    /// Deleted files' bytes may show: `data=writeback` promises no better.
    stale_bytes_allowed: bool,
}

impl Oracle {
    pub(crate) fn new(stale_bytes_allowed: bool) -> Self {
        Self { stale_bytes_allowed, ..Self::default() }
    }

    /// A new object.
    pub(crate) fn add(&mut self, nr: InodeNr) -> Id {
        self.inodes.push(nr);
        self.inodes.len() - 1
    }

    /// An operation that began at `position` has changed names.
    pub(crate) fn change(&mut self, position: usize, names: Vec<(Path, Option<Id>)>) {
        self.changes.push(Change { position, names });
    }

    /// A write that begins at `position` changes these bytes and no others.
    pub(crate) fn write(&mut self, position: usize, id: Id, bytes: Range<usize>) {
        if let Some(promise) = self.promises.get_mut(&id).and_then(|all| all.last_mut()) {
            promise.loose.push((position, bytes));
        }
    }

    /// A truncation that begins at `position` makes the content this, or leaves it as it was.
    pub(crate) fn truncate(&mut self, position: usize, id: Id, content: &Arc<Vec<u8>>) {
        if let Some(promise) = self.promises.get_mut(&id).and_then(|all| all.last_mut()) {
            promise.versions.push((position, content.clone()));
        }
    }

    /// The file's content is durable now, and so is the name it was made with; with `names`, all its names.
    pub(crate) fn synced(&mut self, position: usize, id: Id, content: &Arc<Vec<u8>>, names: bool) {
        let is_about = |change: &Change| change.names.iter().any(|(_, new)| *new == Some(id));
        let last = if names {
            self.changes.iter().rposition(is_about)
        } else {
            self.changes.iter().position(is_about)
        };
        self.raise_floor(position, last.map_or(0, |last| last + 1));
        let promises = self.promises.entry(id).or_default();
        if let Some(last) = promises.last_mut() {
            if last.versions.len() == 1 && last.loose.is_empty() {
                return;
            }
            last.until = position;
        }
        let versions = vec![(position, content.clone())];
        promises.push(Promise { position, until: usize::MAX, versions, loose: Vec::new() });
    }

    /// All changes of names are durable now.
    pub(crate) fn all_names_synced(&mut self, position: usize) {
        self.raise_floor(position, self.changes.len());
    }

    fn raise_floor(&mut self, position: usize, changes: usize) {
        if self.floors.last().map_or(0, |floor| floor.changes) < changes {
            self.floors.push(Floor { position, changes });
        }
    }

    /// Compares a recovered file system with what must hold when the power is cut behind the first `position` events.
    pub(crate) fn compare(&self, fs: &Fs, dirs: &[InodeNr], position: usize) -> Result<(), String> {
        let found = Found::read(fs, dirs)?;
        let floor = self.floors.iter().rev().find(|floor| floor.position <= position);
        let floor = floor.map_or(0, |floor| floor.changes);
        let mut expected = BTreeMap::new();
        let mut verdict = None;
        for count in 0..=self.changes.len() {
            if count >= floor {
                match self.compare_names(&expected, &found) {
                    None => match self.compare_contents(&expected, &found, position) {
                        Ok(()) => verdict = Some(Ok(())),
                        Err(why) => verdict = Some(Err(why)),
                    },
                    Some(why) if verdict.is_none() => verdict = Some(Err(why)),
                    Some(_) => {}
                }
                if matches!(verdict, Some(Ok(()))) {
                    break;
                }
            }
            let Some(next) = self.changes.get(count) else { break };
            if count >= floor && next.position >= position {
                break;
            }
            for (path, new) in &next.names {
                match new {
                    Some(id) => expected.insert(path, *id),
                    None => expected.remove(path),
                };
            }
        }
        verdict.unwrap_or(Ok(()))?;
        if self.stale_bytes_allowed {
            return Ok(());
        }
        found.no_stale_bytes()
    }

    /// `None`: the same names, of the same inodes.
    fn compare_names(&self, expected: &BTreeMap<&Path, Id>, found: &Found) -> Option<String> {
        for (path, id) in expected {
            match found.names.get(*path) {
                None => return Some(format!("{path:?} of {:?} is missing", self.inodes[*id])),
                Some(nr) if *nr != self.inodes[*id] => {
                    return Some(format!("{path:?} is {nr:?}, not {:?}", self.inodes[*id]));
                }
                Some(_) => {}
            }
        }
        let extra = found.names.iter().find(|(path, _)| !expected.contains_key(path))?;
        Some(format!("{:?} of {:?} should not be there", extra.0, extra.1))
    }

    fn compare_contents(
        &self,
        expected: &BTreeMap<&Path, Id>,
        found: &Found,
        position: usize,
    ) -> Result<(), String> {
        for (path, id) in expected {
            let promises = self.promises.get(id).into_iter().flatten();
            let Some(promise) =
                promises.rev().find(|promise| promise.position <= position && position < promise.until)
            else {
                continue;
            };
            let Some((_, content)) = found.contents.get(&self.inodes[*id]) else {
                return Err(format!("{path:?} of {:?} is no file", self.inodes[*id]));
            };
            promise
                .holds(content, position)
                .map_err(|why| format!("{path:?} of {:?}: {why}", self.inodes[*id]))?;
        }
        Ok(())
    }
}

impl Promise {
    fn holds(&self, content: &[u8], position: usize) -> Result<(), String> {
        let loose: Vec<&Range<usize>> =
            self.loose.iter().filter(|(since, _)| *since < position).map(|(_, bytes)| bytes).collect();
        let end = loose.iter().map(|bytes| bytes.end).max().unwrap_or(0);
        let mut first = Ok(());
        for (i, (since, version)) in self.versions.iter().enumerate() {
            if i > 0 && *since >= position {
                break;
            }
            let matches = if **version == *content {
                Ok(())
            } else if (version.len()..=version.len().max(end)).contains(&content.len()) {
                let wrong = (0..version.len())
                    .find(|at| content[*at] != version[*at] && !loose.iter().any(|bytes| bytes.contains(at)));
                wrong.map_or(Ok(()), |at| Err(format!("content differs at {at} of {}", version.len())))
            } else {
                Err(format!("has {} bytes, not {}", content.len(), version.len()))
            };
            if matches.is_ok() {
                return Ok(());
            }
            first = if i == 0 { matches } else { first };
        }
        first
    }
}

/// What a recovered file system shows.
struct Found {
    names: BTreeMap<Path, InodeNr>,
    /// A name, and the bytes, of each regular file.
    contents: BTreeMap<InodeNr, (Path, Vec<u8>)>,
}

impl Found {
    fn read(fs: &Fs, dirs: &[InodeNr]) -> Result<Self, String> {
        let mut found = Self { names: BTreeMap::new(), contents: BTreeMap::new() };
        for (dir, dir_nr) in dirs.iter().enumerate() {
            let mut entries = Vec::new();
            fs.readdir(*dir_nr, 0, &mut |entry| {
                entries.push((entry.nr, String::from_utf8_lossy(entry.name).into_owned()));
                true
            })
            .map_err(|e| format!("listing directory {dir}: {e}"))?;
            for (nr, name) in entries {
                if [".", "..", "lost+found"].contains(&name.as_str()) || dirs.contains(&nr) {
                    continue;
                }
                let path = (dir, name);
                let attr = fs.getattr(nr).map_err(|e| format!("{path:?}: {e}"))?;
                if attr.mode & 0o170_000 == 0o100_000 && !found.contents.contains_key(&nr) {
                    let size = attr.size.min(1 << 24) as u32;
                    let content = fs.read(nr, 0, size).map_err(|e| format!("{path:?}: {e}"))?;
                    found.contents.insert(nr, (path.clone(), content.to_vec()));
                }
                found.names.insert(path, nr);
            }
        }
        Ok(found)
    }

    /// A file holds zeroes and bytes of one writer only.
    fn no_stale_bytes(&self) -> Result<(), String> {
        for (path, content) in self.contents.values().filter(|(path, _)| !path.1.starts_with(FREE_FORM)) {
            let Some(first) = content.iter().position(|b| *b != 0) else { continue };
            let pattern = if content[first] == MAGIC[first % 4] { MAGIC } else { [content[first]; 4] };
            let stale = content.iter().enumerate().position(|(i, b)| *b != 0 && *b != pattern[i % 4]);
            if let Some(at) = stale {
                let around = &content[at.saturating_sub(4)..content.len().min(at + 8)];
                return Err(format!(
                    "{path:?} shows bytes of another file at {at} of {}: {around:?}",
                    content.len()
                ));
            }
        }
        Ok(())
    }
}
