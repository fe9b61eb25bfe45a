//! A load through a mount that remembers what was acknowledged, and when.

use super::image::RecordingFile;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;

/// From the event at `position` on, until the one at `ends`, this file has these contents.
pub(crate) struct Promise {
    pub(crate) position: usize,
    pub(crate) ends: usize,
    pub(crate) name: String,
    pub(crate) content: Vec<u8>,
}

/// xorshift64*: the same numbers everywhere.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % limit.max(1)
    }
}

struct Load<'a> {
    root: &'a Path,
    file: &'a RecordingFile,
    random: Random,
    contents: BTreeMap<String, Vec<u8>>,
    promises: Vec<Promise>,
}

const OPERATIONS: u32 = 150;

/// Runs the load; what it was promised.
pub(crate) fn run(root: &Path, file: &RecordingFile, seed: u64) -> Vec<Promise> {
    let mut load =
        Load { root, file, random: Random::new(seed), contents: BTreeMap::new(), promises: Vec::new() };
    for number in 0..OPERATIONS {
        load.step(number);
    }
    load.promises
}

impl Load<'_> {
    fn step(&mut self, number: u32) {
        match self.random.below(10) {
            0..=4 => self.create(&format!("file-{number}")),
            5 | 6 => self.append(),
            7 => self.replace(),
            8 => self.remove(),
            // Never synced.
            _ => fs::write(self.root.join(format!("unsynced-{number}")), vec![number as u8; 3000]).unwrap(),
        }
    }

    fn bytes(&mut self) -> Vec<u8> {
        let len = [500, 4096, 20_000, 150_000][self.random.below(4) as usize];
        let first = self.random.below(250) as u8 + 1;
        (0..len).map(|i| first.wrapping_add((i / 512) as u8)).collect()
    }

    fn any(&mut self) -> Option<String> {
        let at = self.random.below(self.contents.len() as u64) as usize;
        self.contents.keys().nth(at).cloned()
    }

    /// Promises about this file end: it is about to change.
    fn touch(&mut self, name: &str) {
        let now = self.file.position();
        for promise in self.promises.iter_mut().filter(|promise| promise.name == name) {
            promise.ends = promise.ends.min(now);
        }
    }

    fn promise(&mut self, name: &str) {
        let (position, content) = (self.file.position(), self.contents[name].clone());
        self.promises.push(Promise { position, ends: usize::MAX, name: name.to_owned(), content });
    }

    /// A new file, synced with its name.
    fn create(&mut self, name: &str) {
        let bytes = self.bytes();
        let mut file = File::create(self.root.join(name)).unwrap();
        file.write_all(&bytes).unwrap();
        file.sync_all().unwrap();
        File::open(self.root).and_then(|root| root.sync_all()).unwrap();
        self.contents.insert(name.to_owned(), bytes);
        self.promise(name);
    }

    fn append(&mut self) {
        let Some(name) = self.any() else { return };
        let bytes = self.bytes();
        self.touch(&name);
        let mut file = OpenOptions::new().append(true).open(self.root.join(&name)).unwrap();
        file.write_all(&bytes).unwrap();
        file.sync_data().unwrap();
        self.contents.entry(name.clone()).or_default().extend(bytes);
        self.promise(&name);
    }

    /// Written aside, synced and renamed into place.
    fn replace(&mut self) {
        let Some(name) = self.any() else { return };
        self.create("aside");
        self.touch(&name);
        self.touch("aside");
        fs::rename(self.root.join("aside"), self.root.join(&name)).unwrap();
        File::open(self.root).and_then(|root| root.sync_all()).unwrap();
        let bytes = self.contents.remove("aside").unwrap();
        self.contents.insert(name.clone(), bytes);
        self.promise(&name);
    }

    fn remove(&mut self) {
        let Some(name) = self.any() else { return };
        self.touch(&name);
        fs::remove_file(self.root.join(&name)).unwrap();
        self.contents.remove(&name);
    }
}
