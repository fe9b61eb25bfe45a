//! Directories on images that mke2fs (and, as root, the kernel) made, checked by e2fsck.

use super::{Dir, DirMut};
use crate::cache::{BlockCache, Handle};
use crate::device::memory::MemoryDevice;
use crate::device::{Device, SharedDevice};
use crate::error::{Error, Result};
use crate::format::hash::HashVersion;
use crate::format::{FileKind, Geometry, InodeFlags, RawInode, Superblock, Timestamp};
use crate::fs::alloc::Allocator;
use crate::fs::inode_table;
use crate::journal::Journal;
use crate::units::{FileBlock, InodeNr};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

const CREDITS: u32 = 100;
const REGULAR: u8 = 1;
const LINKS_MAX: u32 = 60_000;
const ZEROES: [u8; 4096] = [0; 4096];

fn run(program: &str, arguments: &[&str]) -> (bool, String) {
    match Command::new(program).args(arguments).output() {
        Ok(output) => {
            let text = [output.stdout, output.stderr].concat();
            (output.status.success(), String::from_utf8_lossy(&text).into_owned())
        }
        Err(error) => (false, format!("{program}: {error}")),
    }
}

/// An empty image's bytes, without those that are zero.
struct Blank {
    dir: tempfile::TempDir,
}

impl Blank {
    fn make(options: &str, size: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let blank = Self { dir };
        let mut options: Vec<&str> = options.split_whitespace().collect();
        let hash = options.pop_if(|last| last.starts_with("hash="));
        let path = blank.path();
        let all = [&["-q", "-F", "-E", "lazy_itable_init=0"], &options[..], &[path.as_str(), size]].concat();
        let (done, text) = run("mke2fs", &all);
        assert!(done, "mke2fs (of e2fsprogs, which these tests need) {options:?}: {text}");
        if let Some(hash) = hash {
            let (done, text) = run("tune2fs", &["-E", &hash.replace("hash", "hash_alg"), &path]);
            assert!(done, "{text}");
        }
        blank
    }

    fn path(&self) -> String {
        self.dir.path().join("image").to_str().unwrap().to_owned()
    }

    /// Mounts the image with the kernel and calls `f`; `false` where that isn't allowed.
    fn with_kernel(&self, f: impl FnOnce(&Path)) -> bool {
        let mount = self.dir.path().join("mnt");
        std::fs::create_dir_all(&mount).unwrap();
        let at = mount.to_str().unwrap();
        let (mounted, why) = run("mount", &["-o", "loop", &self.path(), at]);
        if !mounted {
            println!("skipped, the kernel can't mount here: {why}");
            return false;
        }
        f(&mount);
        let (done, text) = run("umount", &[at]);
        assert!(done, "{text}");
        true
    }

    fn open(&self) -> Image {
        let file = std::fs::File::open(self.path()).unwrap();
        let size = file.metadata().unwrap().len();
        let device = Arc::new(MemoryDevice::new(size));
        let mut chunk = vec![0; 1 << 20];
        for offset in (0..size).step_by(1 << 20) {
            let len = (size - offset).min(1 << 20) as usize;
            file.read_exact_at(&mut chunk[..len], offset).unwrap();
            for (i, page) in chunk[..len].chunks(4096).enumerate() {
                if page != &ZEROES[..page.len()] {
                    device.write_at(offset + i as u64 * 4096, page).unwrap();
                }
            }
        }
        let mut bytes = [0; 1024];
        device.read_at(1024, &mut bytes).unwrap();
        let geometry = Geometry::new(&Superblock::decode(&bytes).unwrap());
        let shared: SharedDevice = device.clone();
        let journal = Arc::new(Journal::without_log(shared.clone(), geometry.block_bytes));
        let cache = BlockCache::new(shared, journal.clone(), geometry.block_bytes, 1 << 30);
        let allocator = Arc::new(Allocator::open(&cache, &geometry, 0, &[]).unwrap());
        journal.set_observer(allocator.clone());
        Image { device, cache, geometry, allocator }
    }
}

struct Image {
    device: Arc<MemoryDevice>,
    cache: BlockCache,
    geometry: Geometry,
    allocator: Arc<Allocator>,
}

/// A directory under test, with the files that its entries name: each of them often.
struct Subject<'a> {
    image: &'a Image,
    nr: InodeNr,
    raw: RawInode,
    /// The links of each file.
    files: BTreeMap<InodeNr, u32>,
}

impl Image {
    fn dir(&self, nr: InodeNr) -> Subject<'_> {
        let raw = inode_table::read(&self.cache, &self.geometry, nr).unwrap();
        Subject { image: self, nr, raw, files: BTreeMap::new() }
    }

    fn update<R>(&self, f: impl FnMut(&mut Handle<'_>) -> Result<R>) -> Result<R> {
        Ok(self.cache.update(CREDITS, f)?.1)
    }

    fn new_inode(&self, h: &mut Handle<'_>, mode: u16, links: u16) -> Result<(InodeNr, RawInode)> {
        let is_dir = mode & FileKind::MASK == FileKind::Directory.mode_bits();
        let nr = self.allocator.allocate_inode(h, InodeNr::ROOT, is_dir)?;
        let now = Timestamp::from_seconds(1_700_000_000);
        let mut raw = RawInode {
            mode,
            links,
            generation: 77,
            atime: now,
            ctime: now,
            mtime: now,
            ..Default::default()
        };
        raw.extra_isize = self.geometry.want_extra_isize;
        if self.geometry.features.incompat.contains(crate::format::Incompat::EXTENT) {
            raw.flags.insert(InodeFlags::EXTENTS);
            // An empty extent tree: magic, no entries, room for four.
            raw.block[..6].copy_from_slice(&[0x0a, 0xf3, 0, 0, 4, 0]);
        }
        inode_table::create(h, &self.geometry, nr, &raw)?;
        Ok((nr, raw))
    }

    /// A new directory `d` in the root.
    fn mkdir(&self) -> Subject<'_> {
        let (nr, raw) = self
            .update(|h| {
                let (nr, mut raw) = self.new_inode(h, 0o040_755, 2)?;
                let (g, a) = (&self.geometry, &*self.allocator);
                DirMut { geometry: g, allocator: a, h, nr, raw: &mut raw }.init(InodeNr::ROOT)?;
                inode_table::write(h, g, nr, &raw)?;
                let mut root = inode_table::read(h, g, InodeNr::ROOT)?;
                root.links += 1;
                let mut dir = DirMut { geometry: g, allocator: a, h, nr: InodeNr::ROOT, raw: &mut root };
                dir.insert(b"d", nr, FileKind::Directory.dirent_type())?;
                inode_table::write(h, g, InodeNr::ROOT, &root)?;
                Ok((nr, raw))
            })
            .unwrap();
        Subject { image: self, nr, raw, files: BTreeMap::new() }
    }

    /// Writes everything home, and the image to a file that e2fsck finds nothing in.
    fn check(&self, path: &str) {
        self.cache.journal().commit(self.cache.journal().running_tid()).unwrap();
        let mut bytes = [0; 1024];
        self.device.read_at(1024, &mut bytes).unwrap();
        let mut superblock = Superblock::decode(&bytes).unwrap();
        superblock.free_blocks_count = self.allocator.free_blocks();
        superblock.free_inodes_count = self.allocator.free_inodes() as u32;
        self.device.write_at(1024, &superblock.encode()).unwrap();
        let file = std::fs::File::create(path).unwrap();
        file.set_len(self.device.size_bytes()).unwrap();
        let mut chunk = vec![0; 1 << 20];
        for offset in (0..self.device.size_bytes()).step_by(1 << 20) {
            let len = (self.device.size_bytes() - offset).min(1 << 20) as usize;
            self.device.read_at(offset, &mut chunk[..len]).unwrap();
            for (i, page) in chunk[..len].chunks(4096).enumerate() {
                if page != &ZEROES[..page.len()] {
                    file.write_all_at(page, offset + i as u64 * 4096).unwrap();
                }
            }
        }
        let (clean, text) = run("e2fsck", &["-fn", path]);
        assert!(clean, "{text}");
    }
}

impl Subject<'_> {
    fn change<R>(&mut self, mut f: impl FnMut(&mut DirMut<'_, '_>) -> Result<R>) -> Result<R> {
        let (image, nr) = (self.image, self.nr);
        let (raw, result) = image.update(|h| {
            let mut raw = self.raw.clone();
            let allocator = &*image.allocator;
            let result = f(&mut DirMut { geometry: &image.geometry, allocator, h, nr, raw: &mut raw })?;
            inode_table::write(h, &image.geometry, nr, &raw)?;
            Ok((raw, result))
        })?;
        self.raw = raw;
        Ok(result)
    }

    fn view(&self) -> Dir<'_> {
        Dir::new(&self.image.geometry, self.nr, &self.raw)
    }

    /// A file that may be named once more.
    fn file(&mut self) -> InodeNr {
        if let Some((nr, links)) = self.files.iter_mut().find(|(_, links)| **links < LINKS_MAX) {
            *links += 1;
            return *nr;
        }
        let nr = self.image.update(|h| Ok(self.image.new_inode(h, 0o100_644, 1)?.0)).unwrap();
        self.files.insert(nr, 1);
        nr
    }

    fn insert(&mut self, name: &[u8]) -> InodeNr {
        let nr = self.file();
        self.change(|dir| dir.insert(name, nr, REGULAR)).unwrap();
        nr
    }

    fn remove(&mut self, name: &[u8]) {
        let found = self.change(|dir| dir.remove(name)).unwrap();
        if let Some(links) = self.files.get_mut(&found.inode) {
            *links -= 1;
        }
    }

    fn lookup(&self, name: &[u8]) -> Option<InodeNr> {
        self.view().lookup(&self.image.cache, name).unwrap().map(|found| found.inode)
    }

    /// At most `max` entries from a cookie on, and the cookie to go on with.
    fn piece(&self, cookie: u64, max: usize) -> (Vec<(Vec<u8>, InodeNr)>, u64) {
        let (mut found, mut next) = (Vec::new(), cookie);
        let mut emit = |entry: super::DirEntry<'_>| {
            if found.len() == max {
                return false;
            }
            assert!(entry.next_cookie > next && entry.next_cookie < 1 << 63);
            found.push((entry.name.to_vec(), entry.nr));
            next = entry.next_cookie;
            true
        };
        self.view().read(&self.image.cache, cookie, &mut emit).unwrap();
        (found, next)
    }

    /// Everything but the dot entries, listed in pieces.
    fn list(&self, piece: usize) -> BTreeMap<Vec<u8>, InodeNr> {
        let (mut all, mut cookie, mut dots) = (BTreeMap::new(), 0, 0);
        loop {
            let (found, next) = self.piece(cookie, piece);
            if found.is_empty() {
                assert_eq!(dots, 2);
                return all;
            }
            for (name, nr) in found {
                if name == b"." || name == b".." {
                    dots += 1;
                } else {
                    assert!(all.insert(name, nr).is_none(), "listed twice");
                }
            }
            cookie = next;
        }
    }

    /// Writes the files' link counts; those without links are freed.
    fn settle(&mut self) {
        for (nr, links) in std::mem::take(&mut self.files) {
            self.image
                .update(|h| {
                    let mut raw = inode_table::read(h, &self.image.geometry, nr)?;
                    raw.links = links as u16;
                    if links == 0 {
                        self.image.allocator.free_inode(h, nr, false)?;
                        inode_table::clear(h, &self.image.geometry, nr, &raw, 1_700_000_001)?;
                    } else {
                        inode_table::write(h, &self.image.geometry, nr, &raw)?;
                    }
                    Ok(())
                })
                .unwrap();
        }
    }
}

const KINDS: [(&str, &str); 8] = [
    ("-t ext4 -b 1024", "16M"),
    ("-t ext4 -b 4096", "16M"),
    ("-t ext4 -b 1024 -O large_dir,^64bit", "16M"),
    ("-t ext3 -b 1024 -I 128", "16M"),
    ("-t ext3 -b 2048 hash=legacy", "16M"),
    ("-t ext3 -b 1024 hash=tea", "16M"),
    ("-t ext2 -b 1024 -O ^dir_index,^filetype", "16M"),
    ("-t ext4 -b 1024 -O ^dir_index", "16M"),
];

fn name_of(i: u32) -> Vec<u8> {
    // Short and long names mixed, with bytes beyond ASCII.
    let mut name = format!("{i}-\u{e9}").into_bytes();
    name.resize(name.len() + (i as usize * 7919) % 60, b'x');
    name
}

#[test]
fn directories_grow_and_shrink_and_e2fsck_finds_nothing() {
    for (options, size) in KINDS {
        let blank = Blank::make(options, size);
        let image = blank.open();
        let mut dir = image.mkdir();
        let count = if options.contains("dir_index") { 300 } else { 1500 };
        let mut model = BTreeMap::new();
        for i in 0..count {
            model.insert(name_of(i), dir.insert(&name_of(i)));
        }
        let indexed = dir.raw.flags.contains(InodeFlags::INDEX);
        assert_eq!(indexed, !options.contains("dir_index"), "{options}");
        for i in (0..count).step_by(3) {
            dir.remove(&name_of(i));
            model.remove(&name_of(i));
        }
        for i in 0..count {
            assert_eq!(dir.lookup(&name_of(i)), model.get(&name_of(i)).copied(), "{options}");
        }
        assert_eq!(dir.lookup(b"nothing of this name"), None);
        assert_eq!(dir.lookup(b".."), Some(InodeNr::ROOT));
        for piece in [7, 100_000] {
            assert_eq!(dir.list(piece), model, "{options}");
        }
        assert!(!dir.view().is_empty(&image.cache).unwrap());
        assert!(matches!(dir.change(|d| d.remove(b"absent")), Err(Error::Posix(libc::ENOENT))));
        dir.settle();
        image.check(&blank.path());
        let mut dir = image.dir(dir.nr);
        for name in model.keys() {
            dir.remove(name);
        }
        assert!(dir.view().is_empty(&image.cache).unwrap());
        assert_eq!(dir.list(5).len(), 0);
        assert_eq!(dir.view().parent(&image.cache).unwrap(), InodeNr::ROOT);
    }
}

#[test]
fn a_listing_under_way_neither_loses_nor_repeats() {
    for (options, size) in KINDS {
        let blank = Blank::make(options, size);
        let image = blank.open();
        let mut dir = image.mkdir();
        let count = 300;
        for i in 0..count {
            dir.insert(&name_of(i));
        }
        let (mut seen, mut cookie, mut round) = (Vec::new(), 0, 0);
        loop {
            let (found, next) = dir.piece(cookie, 5);
            if found.is_empty() {
                break;
            }
            seen.extend(found.into_iter().map(|(name, _)| name));
            cookie = next;
            // Every odd entry stays; even ones go, and many new ones make leaves split.
            for i in 0..if round < 30 { 30 } else { 0 } {
                dir.insert(&name_of(1000 + round * 30 + i));
            }
            if round < count / 2 {
                dir.remove(&name_of(round * 2));
            }
            round += 1;
            assert!(round < 2000, "{options}: a listing without end");
        }
        let set: BTreeSet<_> = seen.iter().collect();
        assert_eq!(set.len(), seen.len(), "{options}: an entry was listed twice");
        for i in (1..count).step_by(2) {
            assert!(set.contains(&name_of(i)), "{options}: entry {i} was lost");
        }
    }
}

#[test]
fn a_directory_is_listed_on_while_it_becomes_indexed() {
    let blank = Blank::make("-t ext4 -b 4096", "16M");
    let image = blank.open();
    let mut dir = image.mkdir();
    for i in 0..40 {
        dir.insert(&name_of(i));
    }
    let (first, cookie) = dir.piece(0, 20);
    assert!(!dir.raw.flags.contains(InodeFlags::INDEX));
    for i in 100..400 {
        dir.insert(&name_of(i));
    }
    assert!(dir.raw.flags.contains(InodeFlags::INDEX));
    let (rest, _) = dir.piece(cookie, 10_000);
    let mut all: Vec<_> = first.into_iter().chain(rest).map(|(name, _)| name).collect();
    all.sort();
    assert!(all.windows(2).all(|pair| pair[0] != pair[1]));
    assert!((0..40).all(|i| all.binary_search(&name_of(i)).is_ok()));
}

#[test]
fn names_of_one_hash_go_on_in_the_next_leaf() {
    // The legacy hash has 31 bits, so among a few 100,000 names some two collide.
    let blank = Blank::make("-t ext3 -b 1024 hash=legacy", "8M");
    let image = blank.open();
    let version = HashVersion::from_disk(0, image.geometry.hash_unsigned).unwrap();
    let name = |i: u32| format!("{i:0>8}{}", "n".repeat(200)).into_bytes();
    let hash = |i: u32| version.hash(&image.geometry.hash_seed, &name(i)).major;
    let mut by_hash = BTreeMap::new();
    let pair = (0..400_000).find_map(|i| {
        let hash = hash(i);
        // Others must be below and above, to be its neighbours in the leaf.
        let middle = (1 << 30..3 << 30).contains(&hash);
        by_hash.insert(hash, i).filter(|_| middle).map(|first| (first, i, hash))
    });
    let (first, second, shared) = pair.expect("two names with one hash");
    let (low, high) = (*by_hash.values().next().unwrap(), *by_hash.values().last().unwrap());
    let mut dir = image.mkdir();
    // Four names fill a leaf; the fifth one splits it, and the pair is in the middle.
    let names = [low, first, second, high, by_hash.into_values().nth(1).unwrap()];
    for i in names {
        dir.insert(&name(i));
    }
    let view = dir.view();
    let path = view.probe(&image.cache, |_| shared).map_err(Error::from).unwrap();
    let next = view.next_hash(&path).map_err(Error::from).unwrap().map(|(_, hash)| hash);
    assert_eq!(next, Some(shared | 1));
    for i in names {
        assert!(dir.lookup(&name(i)).is_some());
    }
    assert_eq!(dir.list(1).len(), names.len());
    dir.remove(&name(first));
    dir.remove(&name(second));
    assert_eq!(dir.list(1).len(), names.len() - 2);
    dir.settle();
    image.check(&blank.path());
}

#[test]
fn a_tree_without_room_is_full() {
    // 1 KiB blocks, no large_dir: a root of 123 and nodes of 126 entries, leaves of three long names each.
    let blank = Blank::make("-t ext4 -b 1024 -N 64", "128M");
    let image = blank.open();
    let mut dir = image.mkdir();
    let long = |i: u32| format!("{i:0255}").into_bytes();
    let file = dir.file();
    let mut count = 0;
    let full = loop {
        let name = long(count);
        match dir.change(|d| d.insert(&name, file, REGULAR)) {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
    };
    assert!(full.is(libc::ENOSPC), "{full}");
    assert!((15_000..50_000).contains(&count), "{count}");
    assert_eq!(dir.lookup(&long(count)), None);
    assert_eq!(dir.lookup(&long(count - 1)), Some(file));
    assert_eq!(dir.list(1000).len(), count as usize);
    dir.files.insert(file, count);
    dir.settle();
    image.check(&blank.path());
}

#[test]
fn large_dir_grows_a_third_level() {
    let blank = Blank::make("-t ext4 -b 1024 -N 64 -O large_dir", "128M");
    let image = blank.open();
    let mut dir = image.mkdir();
    let file = dir.file();
    let count = 50_000;
    for i in 0..count {
        let name = format!("{i:0255}").into_bytes();
        dir.change(|d| d.insert(&name, file, REGULAR)).unwrap();
    }
    let path = dir.view().probe(&image.cache, |_| 0x8000_0000).map_err(Error::from).unwrap();
    assert_eq!(path.frames.len(), 3);
    assert_eq!(dir.list(1000).len(), count as usize);
    dir.files.insert(file, count);
    dir.settle();
    image.check(&blank.path());
}

#[test]
fn a_damaged_index_is_searched_without_or_refused() {
    for (options, refused) in [("-t ext3 -b 1024", false), ("-t ext4 -b 1024", true)] {
        let blank = Blank::make(options, "16M");
        let image = blank.open();
        let mut dir = image.mkdir();
        for i in 0..200 {
            dir.insert(&name_of(i));
        }
        let root = dir.view().physical(&image.cache, FileBlock(0)).unwrap().unwrap();
        image
            .update(|h| {
                // The root's limit.
                h.modify(root)?[32] ^= 1;
                Ok(())
            })
            .unwrap();
        assert!(dir.lookup(&name_of(150)).is_some());
        assert_eq!(dir.list(10).len(), 200);
        let file = dir.file();
        let inserted = dir.change(|d| d.insert(b"new", file, REGULAR));
        if refused {
            assert!(matches!(inserted, Err(Error::Corrupt { .. })));
        } else {
            inserted.unwrap();
            assert!(!dir.raw.flags.contains(InodeFlags::INDEX));
            assert_eq!(dir.lookup(b"new"), Some(file));
        }
        assert!(dir.lookup(&name_of(150)).is_some());
    }
}

#[test]
fn dotdot_and_replace() {
    for (options, size) in KINDS {
        let blank = Blank::make(options, size);
        let image = blank.open();
        let mut dir = image.mkdir();
        for i in 0..100 {
            dir.insert(&name_of(i));
        }
        let before = dir.lookup(&name_of(7)).unwrap();
        let other = InodeNr(11);
        assert_eq!(dir.change(|d| d.replace(&name_of(7), other, 2)).unwrap().inode, before);
        assert_eq!(dir.lookup(&name_of(7)), Some(other));
        dir.change(|d| d.replace(&name_of(7), before, REGULAR)).unwrap();
        assert_eq!(dir.change(|d| d.set_parent(other)).unwrap(), InodeNr::ROOT);
        assert_eq!(dir.view().parent(&image.cache).unwrap(), other);
        dir.change(|d| d.set_parent(InodeNr::ROOT)).unwrap();
        dir.settle();
        image.check(&blank.path());
    }
}

#[test]
fn what_the_kernel_made_is_read_and_changed() {
    for options in
        ["-t ext4", "-t ext4 -b 1024", "-t ext3 -b 1024", "-t ext3 hash=tea", "-t ext4 -O inline_data"]
    {
        let blank = Blank::make(options, "64M");
        let count = if options.contains("inline") { 3 } else { 8000 };
        let (from, to) = (blank.path(), |i: u32| format!("file-{i}"));
        let made = blank.with_kernel(|mount| {
            let dir = mount.join("d");
            std::fs::create_dir(&dir).unwrap();
            std::fs::write(dir.join(to(0)), b"x").unwrap();
            for i in 1..count {
                std::fs::hard_link(dir.join(to(0)), dir.join(to(i))).unwrap();
            }
        });
        if !made {
            return;
        }
        let image = blank.open();
        let nr = image.dir(InodeNr::ROOT).lookup(b"d").unwrap();
        let mut dir = image.dir(nr);
        let file = dir.lookup(to(0).as_bytes()).unwrap();
        for i in 0..count {
            assert_eq!(dir.lookup(to(i).as_bytes()), Some(file), "{options} {i}");
        }
        assert_eq!(dir.lookup(b"absent"), None);
        assert_eq!(dir.list(100).len(), count as usize);
        if options.contains("inline") {
            assert!(dir.raw.flags.contains(InodeFlags::INLINE_DATA));
            assert_eq!(dir.view().parent(&image.cache).unwrap(), InodeNr::ROOT);
            assert!(!dir.view().is_empty(&image.cache).unwrap());
            let refused = dir.change(|d| d.insert(b"new", file, REGULAR));
            assert!(matches!(refused, Err(Error::Unsupported(_))));
            continue;
        }
        dir.files.insert(file, count);
        for i in 0..count {
            if i % 2 == 0 {
                dir.remove(to(i).as_bytes());
            }
            // The kernel's ext3 names of one file end at 65000 links: use others.
            if i % 3 == 0 {
                dir.insert(format!("more-{i}").as_bytes());
            }
        }
        let expected: BTreeSet<_> = dir.list(100).into_keys().collect();
        dir.settle();
        image.check(&from);
        assert!(blank.with_kernel(|mount| {
            let names = std::fs::read_dir(mount.join("d")).unwrap();
            let names: BTreeSet<_> = names.map(|e| e.unwrap().file_name().into_encoded_bytes()).collect();
            assert_eq!(names, expected, "{options}");
            std::fs::remove_dir_all(mount.join("d")).unwrap();
        }));
        let (clean, text) = run("e2fsck", &["-fn", &from]);
        assert!(clean, "{text}");
    }
}

#[derive(Debug, Clone)]
enum Step {
    Insert(u16, u8),
    Remove(u16, u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let name = (0..400_u16, prop::sample::select(vec![1_u8, 8, 40, 250]));
    let step = (name, 0..5_u8).prop_map(|((n, len), what)| match what {
        0..=2 => Step::Insert(n, len),
        _ => Step::Remove(n, len),
    });
    prop::collection::vec(step, 0..900)
}

fn model_run(image: &Image, steps: &[Step]) {
    let mut dir = image.mkdir();
    let mut model = BTreeMap::new();
    for step in steps {
        let (Step::Insert(n, len) | Step::Remove(n, len)) = step;
        let mut name = format!("{n}").into_bytes();
        name.resize(name.len().max(*len as usize), b'.');
        match (step, model.contains_key(&name)) {
            (Step::Insert(..), false) => {
                model.insert(name.clone(), dir.insert(&name));
            }
            (Step::Remove(..), true) => {
                dir.remove(&name);
                model.remove(&name);
            }
            (_, known) => assert_eq!(dir.lookup(&name).is_some(), known),
        }
    }
    assert_eq!(dir.list(11), model);
    for (name, nr) in &model {
        assert_eq!(dir.lookup(name), Some(*nr));
    }
    dir.settle();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]
    #[test]
    fn a_directory_is_a_map(steps in steps(), kind in 0..KINDS.len()) {
        let blank = Blank::make(KINDS[kind].0, "8M");
        let image = blank.open();
        model_run(&image, &steps);
        image.check(&blank.path());
    }
}

/// Bytes of a directory's blocks that are set to something else.
fn damage() -> impl Strategy<Value = Vec<(u32, usize, u8)>> {
    // The first bytes are where lengths, counts and the index's header are.
    let byte = prop_oneof![0..64_usize, 0..1024_usize];
    prop::collection::vec((0..12_u32, byte, prop::sample::select(vec![0_u8, 1, 4, 12, 0x80, 0xff])), 1..6)
}

/// Whatever the blocks say, every call ends, with an error or without.
fn survive(dir: &mut Subject<'_>, file: InodeNr) {
    let image = dir.image;
    let _ = dir.view().is_empty(&image.cache);
    let _ = dir.view().parent(&image.cache);
    for i in 0..60 {
        let _ = dir.view().lookup(&image.cache, &name_of(i * 5));
    }
    let (mut cookie, mut listed, mut stopped) = (0, 0, false);
    while !stopped && listed < 5000 {
        let before = cookie;
        let result = dir.view().read(&image.cache, cookie, &mut |entry| {
            assert!(entry.next_cookie > cookie, "a listing goes round in circles");
            cookie = entry.next_cookie;
            listed += 1;
            listed % 50 != 0
        });
        stopped = result.is_err() || cookie == before;
    }
    for i in 0..40 {
        let _ = dir.change(|d| d.remove(&name_of(i * 7)));
        let _ = dir.change(|d| d.replace(&name_of(i * 3), file, REGULAR));
        let _ = dir.change(|d| d.insert(&name_of(2000 + i), file, REGULAR));
    }
    let _ = dir.change(|d| d.set_parent(InodeNr::ROOT));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]
    #[test]
    fn hostile_blocks_end_in_errors(damage in damage(), flags in any::<bool>(), size in prop::option::of(any::<u64>())) {
        // Without checksums, so that what is damaged is also read.
        let image = HOSTILE.with(Blank::open);
        let mut dir = image.mkdir();
        for i in 0..300 {
            dir.insert(&name_of(i));
        }
        let file = dir.file();
        for (block, byte, value) in damage {
            let Some(nr) = dir.view().physical(&image.cache, FileBlock(block)).unwrap() else { continue };
            let write = |h: &mut Handle<'_>| {
                h.modify(nr)?[byte] = value;
                Ok(())
            };
            image.update(write).unwrap();
        }
        if flags {
            dir.raw.flags.toggle(InodeFlags::INDEX);
        }
        dir.raw.size = size.unwrap_or(dir.raw.size);
        survive(&mut dir, file);
    }
}

thread_local! {
    static HOSTILE: Blank = Blank::make("-t ext3 -b 1024", "4M");
}

/// Slow in a debug build, so only a release build tries the full size.
#[test]
fn a_million_entries() {
    let count = if cfg!(debug_assertions) { 30_000 } else { 1_000_000 };
    let blank = Blank::make("-t ext4 -N 1000", if cfg!(debug_assertions) { "64M" } else { "512M" });
    let image = blank.open();
    let mut dir = image.mkdir();
    let start = std::time::Instant::now();
    let name = |i: u32| format!("entry number {i}").into_bytes();
    for i in 0..count {
        dir.insert(&name(i));
    }
    let inserted = start.elapsed();
    for i in 0..count {
        assert!(dir.lookup(&name(i)).is_some());
    }
    let looked_up = start.elapsed();
    assert_eq!(dir.list(1000).len(), count as usize);
    for i in (0..count).filter(|i| i % 10 != 0) {
        dir.remove(&name(i));
    }
    println!("{count} entries: in {inserted:?}, found after {looked_up:?}, all {:?}", start.elapsed());
    assert_eq!(dir.list(1000).len(), count as usize / 10);
    dir.settle();
    image.check(&blank.path());
}
