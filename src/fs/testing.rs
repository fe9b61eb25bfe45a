//! Images that mke2fs made, in memory, changed through handles and judged by e2fsck. Tests only; where e2fsprogs
//! is missing they have nothing to work on and say so.

use super::alloc::Allocator;
use super::{inode_table, map};
use crate::cache::{BlockCache, Handle};
use crate::device::memory::MemoryDevice;
use crate::device::{Device, SharedDevice};
use crate::error::Result;
use crate::format::{Geometry, RawInode, Superblock};
use crate::journal::Journal;
use crate::units::{BlockNr, BlockRange, InodeNr};
use nix::unistd::{lseek, Whence};
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::Arc;

const CHUNK_BYTES: u64 = 1 << 20;
const ZEROES: [u8; 4096] = [0; 4096];

/// The first inode that is not reserved: the file `f` in images made by [`Image::with_file`].
pub(crate) const FILE: InodeNr = InodeNr(12);

/// A file system in memory.
pub(crate) struct Image {
    pub(crate) device: Arc<MemoryDevice>,
    pub(crate) cache: BlockCache,
    pub(crate) geometry: Geometry,
    pub(crate) allocator: Arc<Allocator>,
}

/// Runs a program; whether it succeeded, and what it said.
pub(crate) fn run(program: &str, args: &[&str]) -> Option<(bool, String)> {
    let output = Command::new(program).args(args).output().ok()?;
    let text = [output.stdout, output.stderr].concat();
    Some((output.status.success(), String::from_utf8_lossy(&text).into_owned()))
}

impl Image {
    /// What `mke2fs options` makes, without a journal.
    pub(crate) fn make(options: &str, size: &str) -> Option<Self> {
        Self::with_files(options, size, &[])
    }

    /// The same with an empty file `f`, which is [`FILE`].
    pub(crate) fn with_file(options: &str, size: &str) -> Option<Self> {
        Self::with_files(options, size, &["f"])
    }

    fn with_files(options: &str, size: &str, files: &[&str]) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        std::fs::create_dir(&tree).unwrap();
        for file in files {
            std::fs::write(tree.join(file), "").unwrap();
        }
        let path = dir.path().join("image");
        let (path, tree) = (path.to_str().unwrap(), tree.to_str().unwrap());
        let mut args = vec!["-q", "-F", "-O", "^has_journal"];
        if !files.is_empty() {
            args.extend(["-d", tree]);
        }
        args.extend(options.split_whitespace());
        args.extend([path, size]);
        let Some((made, text)) = run("mke2fs", &args) else {
            println!("skipped: mke2fs is not installed");
            return None;
        };
        assert!(made, "{text}");
        Some(Self::load(path))
    }

    fn load(path: &str) -> Self {
        let file = std::fs::File::open(path).unwrap();
        let size = file.metadata().unwrap().len();
        let device = MemoryDevice::new(size);
        let mut chunk = vec![0; CHUNK_BYTES as usize];
        let mut at = 0;
        // Only what is not a hole; an image of terabytes is nearly all hole.
        while let Ok(data) = lseek(&file, at, Whence::SeekData) {
            let hole = lseek(&file, data, Whence::SeekHole).unwrap();
            let len = ((hole - data) as u64).min(CHUNK_BYTES) as usize;
            file.read_exact_at(&mut chunk[..len], data as u64).unwrap();
            for (i, page) in chunk[..len].chunks(4096).enumerate() {
                if page != &ZEROES[..page.len()] {
                    device.write_at(data as u64 + i as u64 * 4096, page).unwrap();
                }
            }
            at = data + len as i64;
        }
        Self::open(Arc::new(device)).unwrap()
    }

    /// Opens what is on a device.
    pub(crate) fn open(device: Arc<MemoryDevice>) -> Result<Self> {
        let mut bytes = [0; 1024];
        device.read_at(1024, &mut bytes).unwrap();
        let superblock = Superblock::decode(&bytes)?;
        let geometry = Geometry::new(&superblock);
        let shared: SharedDevice = device.clone();
        let journal = Arc::new(Journal::without_log(shared.clone(), geometry.block_bytes));
        let cache = BlockCache::new(shared, journal.clone(), geometry.block_bytes, 64 << 20);
        let allocator = Arc::new(Allocator::open(&cache, &geometry, superblock.r_blocks_count, &[])?);
        journal.set_observer(allocator.clone());
        Ok(Self { device, cache, geometry, allocator })
    }

    /// Makes everything durable.
    pub(crate) fn commit(&self) {
        let journal = self.cache.journal();
        journal.commit(journal.running_tid()).unwrap();
    }

    /// Runs a handle.
    pub(crate) fn update<R>(&self, f: impl FnMut(&mut Handle<'_>) -> Result<R>) -> Result<R> {
        Ok(self.cache.update(1000, f)?.1)
    }

    /// An inode's record.
    pub(crate) fn raw(&self, nr: InodeNr) -> RawInode {
        inode_table::read(&self.cache, &self.geometry, nr).unwrap()
    }

    /// Changes an inode's map in a handle, and its size to what is mapped then.
    pub(crate) fn change<R>(
        &self,
        nr: InodeNr,
        mut f: impl FnMut(&mut Handle<'_>, &mut RawInode) -> Result<R>,
    ) -> Result<R> {
        let raw = self.raw(nr);
        self.update(|h| {
            let mut raw = raw.clone();
            let result = f(h, &mut raw)?;
            inode_table::write(h, &self.geometry, nr, &raw)?;
            Ok(result)
        })
    }

    /// Gives a file the size that its last block asks for.
    pub(crate) fn fit_size(&self, nr: InodeNr) {
        let raw = self.raw(nr);
        let (mut at, mut end) = (0, 0);
        while at < map::blocks_max(&self.geometry, &raw) {
            let block = crate::units::FileBlock(at as u32);
            let found = map::lookup(&self.geometry, &self.cache, nr, &raw, block, u32::MAX).unwrap();
            at += u64::from(found.len);
            if found.physical.is_some() {
                end = at;
            }
        }
        self.change(nr, |_, raw| {
            raw.size = end * u64::from(self.geometry.block_bytes);
            Ok(())
        })
        .unwrap();
    }

    /// Commits, brings the superblock's counts up to date, and has e2fsck look at the result.
    pub(crate) fn check(&self) {
        let (clean, text) = self.e2fsck();
        assert!(clean, "{text}");
    }

    /// What e2fsck says of the image.
    pub(crate) fn e2fsck(&self) -> (bool, String) {
        self.commit();
        let mut bytes = [0; 1024];
        self.device.read_at(1024, &mut bytes).unwrap();
        let mut superblock = Superblock::decode(&bytes).unwrap();
        superblock.free_blocks_count = self.allocator.free_blocks();
        superblock.free_inodes_count = self.allocator.free_inodes() as u32;
        self.device.write_at(1024, &superblock.encode()).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        let size = self.device.size_bytes();
        file.as_file().set_len(size).unwrap();
        let mut chunk = vec![0; CHUNK_BYTES as usize];
        for offset in (0..size).step_by(chunk.len()) {
            let len = (size - offset).min(CHUNK_BYTES) as usize;
            self.device.read_at(offset, &mut chunk[..len]).unwrap();
            if chunk[..len].chunks(ZEROES.len()).any(|page| page != &ZEROES[..page.len()]) {
                file.as_file().write_all_at(&chunk[..len], offset).unwrap();
            }
        }
        run("e2fsck", &["-fn", file.path().to_str().unwrap()]).unwrap()
    }

    /// Allocates outside of any file; for tests that fill or fragment the space.
    pub(crate) fn take(&self, goal: u64, want: u32) -> Result<BlockRange> {
        self.update(|h| self.allocator.allocate(h, BlockNr(goal), want))
    }

    /// Frees blocks.
    pub(crate) fn give(&self, range: BlockRange) -> Result<()> {
        self.update(|h| self.allocator.free(h, range))
    }
}
