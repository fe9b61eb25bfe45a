//! The cache of inodes, and the end of inodes: by the call that takes the last name, by the queue, by the kernel's word.

use crate::support::{check, check_all};
use journalfs::device::memory::MemoryDevice;
use journalfs::format::inode::RawInode;
use journalfs::fs::attr::Caller;
use journalfs::fs::options::{InactivatePolicy, MountOptions};
use journalfs::fs::{Fs, Inode, InodeCache, InodeState};
use journalfs::journal::batch::BatchPolicy;
use journalfs::units::InodeNr;
use shuttle::thread;
use std::sync::{Arc, LazyLock};

/// Numbers of one shard of the cache.
const fn number(which: u32) -> InodeNr {
    InodeNr(64 * which + 12)
}

fn load(cache: &InodeCache, nr: InodeNr) -> Arc<Inode> {
    let raw = RawInode { links: 1, ..RawInode::default() };
    let state = || Ok::<_, ()>(Some(InodeState::loaded(raw, None)));
    cache.get_or_load(nr, state).unwrap().unwrap()
}

fn one_inode_per_number() {
    // As small as it can be: each load of another number evicts something.
    let cache = Arc::new(InodeCache::new(0));
    for which in 0..16 {
        load(&cache, number(which));
    }
    let pressure = {
        let cache = cache.clone();
        thread::spawn(move || {
            for which in 20..38 {
                load(&cache, number(which));
            }
        })
    };
    let holder = {
        let cache = cache.clone();
        thread::spawn(move || load(&cache, number(3)))
    };
    let mine = load(&cache, number(3));
    let theirs = holder.join().unwrap();
    pressure.join().unwrap();
    assert!(Arc::ptr_eq(&mine, &theirs), "two inodes of one number are held");
    assert!(Arc::ptr_eq(&mine, &load(&cache, number(3))));
    assert!(cache.count() <= 17);
}

#[test]
fn what_is_held_is_not_evicted() {
    check_all(1, one_inode_per_number);
    check(1, one_inode_per_number);
}

/// A file system with the files `a` and `b` of some blocks.
static IMAGE: LazyLock<MemoryDevice> = LazyLock::new(|| {
    let device = MemoryDevice::new(4 << 20);
    let mut options = mkfs::Options::new(mkfs::Profile::Ext3);
    (options.block_bytes, options.inodes) = (Some(1024), Some(64));
    options.journal = mkfs::JournalSize::MiB(1);
    mkfs::format(&device, &options).unwrap();
    device
});

fn mounted(inactivate: InactivatePolicy) -> Arc<Fs> {
    let mut options = MountOptions::default();
    options.tuning.inactivate = inactivate;
    options.tuning.batch.policy = BatchPolicy::None;
    options.tuning.cache_size = Some(8 << 20);
    let fs = Fs::mount(Arc::new(IMAGE.clone()), &options).unwrap();
    for name in ["a", "b"] {
        let nr = fs.mknod(InodeNr::ROOT, name.as_bytes(), 0o100_644, 0, 0, &Caller::ROOT).unwrap().nr;
        fs.write(nr, 0, &[7; 3000], &Caller::ROOT, false).unwrap();
    }
    fs.sync().unwrap();
    fs
}

fn free_inodes(fs: &Fs) -> u64 {
    fs.stats()["space"]["free_inodes"].as_u64().unwrap()
}

fn unlinks_and_an_unmount() {
    let fs = mounted(InactivatePolicy::Deferred);
    let free = free_inodes(&fs);
    let threads: Vec<_> = ["a", "b"]
        .into_iter()
        .map(|name| {
            let fs = fs.clone();
            thread::spawn(move || fs.unlink(InodeNr::ROOT, name.as_bytes()).unwrap())
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    fs.unmount().unwrap();
    assert_eq!(free_inodes(&fs), free + 2, "both are free");
    assert_eq!(fs.stats()["space"]["orphans"], 0);
}

#[test]
fn the_queue_is_emptied_before_the_end() {
    check(15, unlinks_and_an_unmount);
}

fn an_open_file_is_unlinked_and_closed() {
    let fs = mounted(InactivatePolicy::Deferred);
    let free = free_inodes(&fs);
    let nr = fs.lookup(InodeNr::ROOT, b"a").unwrap().nr;
    fs.open(nr, 0).unwrap();
    let closing = {
        let fs = fs.clone();
        thread::spawn(move || fs.release(nr).unwrap())
    };
    fs.unlink(InodeNr::ROOT, b"a").unwrap();
    closing.join().unwrap();
    fs.unmount().unwrap();
    assert_eq!(free_inodes(&fs), free + 1, "it is free, whoever was last");
}

#[test]
fn the_last_of_close_and_unlink_frees() {
    check(15, an_open_file_is_unlinked_and_closed);
}

fn the_kernel_forgets_while_it_is_freed() {
    let fs = mounted(InactivatePolicy::Deferred);
    fs.expect_forgets();
    let nr = fs.lookup(InodeNr::ROOT, b"a").unwrap().nr;
    let held = fs.lookup(InodeNr::ROOT, b"b").unwrap().nr;
    fs.unlink(InodeNr::ROOT, b"b").unwrap();
    fs.unlink(InodeNr::ROOT, b"a").unwrap();
    // The inactivation thread frees it meanwhile.
    fs.forget(nr);
    while fs.stats()["space"]["orphans"] != 0 {
        thread::yield_now();
    }
    // Its number is nobody's any more, while that of the other, which the kernel still knows, is not given out.
    let new = |name: &[u8]| fs.mknod(InodeNr::ROOT, name, 0o100_644, 0, 0, &Caller::ROOT).unwrap().nr;
    let given = (0..20u8).any(|which| {
        let number = new(&[b'c', which + 1]);
        assert_ne!(number, held);
        // The thread lets go of it a little after the record is gone.
        thread::yield_now();
        number == nr
    });
    assert!(given, "its number is never used again");
    fs.unmount().unwrap();
}

#[test]
fn a_number_is_let_go_once() {
    check(20, the_kernel_forgets_while_it_is_freed);
}
