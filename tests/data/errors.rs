//! Damage that is met while mounted: what `errors=` makes of it, and what the superblock remembers.

use crate::support::{e2fsck, make, options, ROOT};
use journalfs::device::faulty::{FaultyDevice, Request};
use journalfs::device::memory::MemoryDevice;
use journalfs::device::{Device, SharedDevice};
use journalfs::format::superblock::STATE_ERROR;
use journalfs::format::{extent, Geometry, Superblock};
use journalfs::fs::{read_superblock, Fs};
use journalfs::journal::replay::update_superblock;
use journalfs::units::InodeNr;
use journalfs::Place;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

const BLOCK_BYTES: u64 = 4096;

/// A file system at rest with a sound file `f` and a directory `d` whose block is damaged.
fn damaged() -> Arc<MemoryDevice> {
    let memory = Arc::new(make(mkfs::Profile::Journalfs, BLOCK_BYTES as u32, 32, "").memory);
    let fs = mount(&memory, &[]);
    fs.mknod(InodeNr::ROOT, b"f", 0o100_644, 0, 0, &ROOT).unwrap();
    let dir = fs.mkdir(InodeNr::ROOT, b"d", 0o755, 0, &ROOT).unwrap().nr;
    let raw = fs.read_record(dir).unwrap();
    fs.unmount().unwrap();
    let view = extent::View::new(&raw.block, Place::Inode(dir), None).unwrap();
    let block = view.get(0).unwrap().physical.0;
    memory.write_at(block * BLOCK_BYTES + 4, &[3; 20]).unwrap();
    memory
}

fn mount(memory: &Arc<MemoryDevice>, words: &[&str]) -> Arc<Fs> {
    Fs::mount(memory.clone(), &options(words)).unwrap()
}

/// The superblock that a power cut now would leave, once its journal is replayed.
fn after_a_cut(memory: &MemoryDevice) -> Superblock {
    let copy: SharedDevice = Arc::new(memory.clone());
    Fs::mount(copy.clone(), &options(&["ro"])).unwrap();
    read_superblock(&copy).unwrap()
}

/// Waits until the background has done it.
fn soon(what: &str, done: impl Fn() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(10), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn meet_damage(fs: &Fs) {
    let dir = fs.lookup(InodeNr::ROOT, b"d").unwrap().nr;
    assert_eq!(fs.lookup(dir, b"x").unwrap_err().errno(), libc::EUCLEAN);
    assert_eq!(fs.readdir(dir, 0, &mut |_| true).unwrap_err().errno(), libc::EUCLEAN);
}

#[test]
fn the_superblock_remembers_errors_without_an_unmount() {
    let memory = damaged();
    let fs = mount(&memory, &["errors=continue"]);
    assert_eq!(after_a_cut(&memory).error_count, 0);
    meet_damage(&fs);
    soon("two errors are recorded", || after_a_cut(&memory).error_count == 2);
    let sb = after_a_cut(&memory);
    assert_eq!(sb.state & STATE_ERROR, STATE_ERROR);
    assert!(sb.first_error_block != 0 && sb.first_error_block == sb.last_error_block);
    assert!(sb.first_error_time > 1 << 30 && sb.last_error_time >= sb.first_error_time);
    assert!(sb.first_error_func.starts_with(b"direct"), "{:?}", sb.first_error_func);
    assert_eq!((sb.first_error_errcode, sb.last_error_errcode), (5, 5));
    // It goes on.
    fs.mkdir(InodeNr::ROOT, b"e", 0o755, 0, &ROOT).unwrap();
    fs.unmount().unwrap();
    let fs = mount(&memory, &[]);
    fs.lookup(InodeNr::ROOT, b"e").unwrap();
    fs.unmount().unwrap();
    let device: SharedDevice = memory;
    assert_eq!(read_superblock(&device).unwrap().error_count, 2, "kept until fsck clears it");
}

#[test]
fn remount_ro_changes_nothing_more_and_acknowledges_nothing_that_is_lost() {
    let memory = damaged();
    let fs = mount(&memory, &["errors=remount-ro"]);
    let file = fs.lookup(InodeNr::ROOT, b"f").unwrap().nr;
    fs.write(file, 0, b"in memory only", &ROOT, false).unwrap();
    meet_damage(&fs);
    assert_eq!(fs.mkdir(InodeNr::ROOT, b"e", 0o755, 0, &ROOT).unwrap_err().errno(), libc::EROFS);
    assert_eq!(fs.write(file, 0, b"x", &ROOT, false).unwrap_err().errno(), libc::EROFS);
    assert_eq!(fs.fsync(file, false, 0).unwrap_err().errno(), libc::EROFS);
    assert_eq!(fs.sync().unwrap_err().errno(), libc::EROFS);
    assert_eq!(fs.fsync(InodeNr::ROOT, false, 0).unwrap_err().errno(), libc::EROFS);
    assert_eq!(fs.read(file, 0, 100).unwrap().to_vec(), b"in memory only");
    soon("the errors are recorded", || after_a_cut(&memory).error_count == 2);
    assert_eq!(fs.unmount().unwrap_err().errno(), libc::EROFS, "data is lost, and told");
}

#[test]
fn panic_records_the_error_and_ends_the_mount() {
    let memory = damaged();
    let fs = mount(&memory, &["errors=panic"]);
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    fs.on_panic(Box::new(move || {
        counted.fetch_add(1, Ordering::SeqCst);
    }));
    fs.mkdir(InodeNr::ROOT, b"lost", 0o755, 0, &ROOT).unwrap();
    meet_damage(&fs);
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    let sb = after_a_cut(&memory);
    assert_eq!((sb.state & STATE_ERROR, sb.error_count), (STATE_ERROR, 2), "without a commit");
    assert!(fs.sync().is_err());
    assert!(fs.unmount().is_err());
    let fs = mount(&memory, &[]);
    assert!(fs.lookup(InodeNr::ROOT, b"lost").is_err(), "as a crash leaves it");
    fs.unmount().unwrap();
    // Too late for the call, so it comes at once.
    let fs = mount(&damaged(), &["errors=panic"]);
    meet_damage(&fs);
    let counted = calls.clone();
    fs.on_panic(Box::new(move || {
        counted.fetch_add(1, Ordering::SeqCst);
    }));
    assert_eq!(calls.load(Ordering::SeqCst), 2);
    let _ = fs.unmount();
}

#[test]
fn a_failed_journal_is_remembered_whatever_a_replay_brings() {
    // Orphans on the list, so that the log has copies of the superblock.
    let memory = Arc::new(make(mkfs::Profile::Ext3, 1024, 16, "").memory);
    let device = Arc::new(FaultyDevice::new(memory.clone()));
    let fs = Fs::mount(device.clone(), &options(&[])).unwrap();
    let file = fs.mknod(InodeNr::ROOT, b"f", 0o100_644, 0, 0, &ROOT).unwrap().nr;
    fs.open(file, 0).unwrap();
    fs.unlink(InodeNr::ROOT, b"f").unwrap();
    fs.sync().unwrap();
    fs.mkdir(InodeNr::ROOT, b"d", 0o755, 0, &ROOT).unwrap();
    device.fail_once(Request::is_write);
    assert!(fs.sync().is_err());
    let shared: SharedDevice = memory.clone();
    soon("the failure is recorded", || read_superblock(&shared).unwrap().error_count == 1);
    assert!(fs.unmount().is_err());
    let fs = mount(&memory, &[]);
    let sb = read_superblock(&shared).unwrap();
    assert_eq!((sb.state & STATE_ERROR, sb.error_count), (STATE_ERROR, 1));
    assert!(sb.last_error_func.starts_with(b"journal\0"));
    fs.unmount().unwrap();
    e2fsck(&*memory, "after a failed journal");
}

#[test]
fn a_shutdown_on_purpose_is_no_error() {
    let memory = Arc::new(make(mkfs::Profile::Journalfs, 4096, 32, "").memory);
    let fs = mount(&memory, &[]);
    fs.shutdown(journalfs::fs::ShutdownMode::NoLogFlush).unwrap();
    std::thread::sleep(Duration::from_millis(700));
    let _ = fs.unmount();
    let device: SharedDevice = memory;
    assert_eq!(read_superblock(&device).unwrap().state & STATE_ERROR, 0);
}

/// An image whose orphan list holds these inodes of the files `0`, `1`, `2`; the number behind each is the next one.
fn with_orphans(list: impl Fn(&[u32]) -> (u32, Vec<(u32, u32)>)) -> Arc<MemoryDevice> {
    let memory = Arc::new(make(mkfs::Profile::Ext3, 1024, 16, "").memory);
    let fs = mount(&memory, &[]);
    let files: Vec<u32> = ["0", "1", "2"]
        .map(|name| fs.mknod(InodeNr::ROOT, name.as_bytes(), 0o100_644, 0, 0, &ROOT).unwrap().nr.0)
        .to_vec();
    for nr in &files {
        fs.write(InodeNr(*nr), 0, &[7; 5000], &ROOT, false).unwrap();
    }
    fs.unmount().unwrap();
    let (head, links) = list(&files);
    let shared: SharedDevice = memory.clone();
    let sb = read_superblock(&shared).unwrap();
    let geometry = Geometry::new(&sb);
    for (nr, next) in links {
        // Group 0's table: these are the first inodes in use.
        let mut descriptor = [0; 32];
        let (block, at) = geometry.descriptor_place(journalfs::units::GroupNr(0));
        memory.read_at(block.0 * 1024 + at as u64, &mut descriptor).unwrap();
        let table = u32::from_le_bytes(descriptor[8..12].try_into().unwrap());
        let at = u64::from(table) * 1024 + u64::from(nr - 1) * u64::from(geometry.inode_bytes);
        let mut bytes = vec![0; geometry.inode_bytes as usize];
        memory.read_at(at, &mut bytes).unwrap();
        let mut raw = journalfs::format::RawInode::decode(&bytes, &geometry, InodeNr(nr)).unwrap();
        raw.dtime = next;
        raw.encode(&mut bytes, &geometry, InodeNr(nr)).unwrap();
        memory.write_at(at, &bytes).unwrap();
    }
    update_superblock(&*memory, |sb| sb.last_orphan = head).unwrap();
    memory
}

#[test]
fn a_broken_orphan_list_is_cut_and_the_mount_goes_on() {
    type List = fn(&[u32]) -> (u32, Vec<(u32, u32)>);
    let lists: [(List, usize); 5] = [
        (|f| (f[0], vec![(f[0], f[1]), (f[1], f[0])]), 2),
        (|f| (f[0], vec![(f[0], f[0])]), 1),
        (|_| (4_000_000, vec![]), 0),
        (|f| (f[2], vec![(f[2], 7)]), 1),
        (|f| (f[1], vec![(f[1], f[2]), (f[2], u32::MAX)]), 2),
    ];
    for (i, (list, sound)) in lists.into_iter().enumerate() {
        let memory = with_orphans(list);
        let fs = mount(&memory, &["errors=continue"]);
        assert_eq!(fs.stats()["space"]["orphans"], 0, "list {i}: {sound} were finished");
        // The list is usable.
        let open = fs.mknod(InodeNr::ROOT, b"open", 0o100_644, 0, 0, &ROOT).unwrap().nr;
        fs.open(open, 0).unwrap();
        fs.unlink(InodeNr::ROOT, b"open").unwrap();
        fs.sync().unwrap();
        fs.release(open).unwrap();
        fs.unmount().unwrap();
        let shared: SharedDevice = memory.clone();
        let sb = read_superblock(&shared).unwrap();
        assert_eq!((sb.last_orphan, sb.state & STATE_ERROR), (0, STATE_ERROR), "list {i}");
        assert_eq!(sb.error_count, 1, "list {i}");
        // Files that were only said to be truncated are whole, so nothing else is wrong.
        e2fsck(&*memory, &format!("orphan list {i}"));
    }
}
