//! Reading ahead: a walk through cold metadata takes a request for many blocks, not for each.

use crate::support::{make, options, ROOT};
use journalfs::device::{Device, SharedDevice};
use journalfs::fs::Fs;
use journalfs::units::InodeNr;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

/// Counts what is read.
struct Counting(SharedDevice, AtomicUsize);

impl Device for Counting {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.0.write_at(offset, buf)
    }

    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.0.discard(offset, len)
    }

    fn read_only(&self) -> bool {
        false
    }
}

#[test]
fn a_walk_reads_neighbours_together() {
    const FILES: usize = 4000;
    let made = make(mkfs::Profile::Journalfs, 1024, 64, "");
    let memory: SharedDevice = Arc::new(made.memory.clone());
    let fs = Fs::mount(memory.clone(), &options(&[])).unwrap();
    let dir = fs.mkdir(InodeNr::ROOT, b"dir", 0o755, 0, &ROOT).unwrap().nr;
    for i in 0..FILES {
        fs.mknod(dir, format!("file-{i:05}").as_bytes(), 0o100_644, 0, 0, &ROOT).unwrap();
    }
    fs.unmount().unwrap();

    let device = Arc::new(Counting(memory, AtomicUsize::new(0)));
    let fs = Fs::mount(device.clone(), &options(&["ro"])).unwrap();
    let before = device.1.load(Ordering::Relaxed);
    let mut inodes = Vec::new();
    fs.readdir(dir, 0, &mut |entry| {
        inodes.push(entry.nr);
        true
    })
    .unwrap();
    for nr in &inodes {
        fs.getattr(*nr).unwrap();
    }
    assert_eq!(inodes.len(), FILES + 2);
    // 4 inodes in a block, 16 blocks in a request; the directory has about 120 blocks in an index of its own.
    let (reads, blocks) = (device.1.load(Ordering::Relaxed) - before, FILES / 4);
    assert!(reads < blocks / 16 + 250, "{reads} reads for {blocks} blocks of inodes");
    fs.unmount().unwrap();
}
