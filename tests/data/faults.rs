//! Devices that fail: what is acknowledged then, what still works, and what is left.

use crate::support::{content, e2fsck, make, options, ROOT};
use journalfs::device::faulty::{FaultyDevice, Request};
use journalfs::device::memory::MemoryDevice;
use journalfs::device::SharedDevice;
use journalfs::fs::Fs;
use journalfs::units::InodeNr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

fn mounted() -> (Arc<Fs>, Arc<FaultyDevice>, Arc<MemoryDevice>) {
    let memory = Arc::new(make(mkfs::Profile::Journalfs, 4096, 32, "").memory);
    let device = Arc::new(FaultyDevice::new(memory.clone()));
    let fs = Fs::mount(device.clone(), &options(&[])).unwrap();
    (fs, device, memory)
}

fn file(fs: &Fs, name: &str) -> InodeNr {
    fs.mknod(InodeNr::ROOT, name.as_bytes(), 0o100_644, 0, 0, &ROOT).unwrap().nr
}

fn again(memory: &Arc<MemoryDevice>) -> Arc<Fs> {
    Fs::mount(memory.clone() as SharedDevice, &options(&[])).unwrap()
}

#[test]
fn after_a_failed_log_write_nothing_is_acknowledged_and_reads_go_on() {
    let faults: [fn(&Request) -> bool; 2] = [|r| r.is_write(), |r| *r == Request::Flush];
    for fault in faults {
        let (fs, device, memory) = mounted();
        let (old, new) = (file(&fs, "old"), file(&fs, "new"));
        fs.write(old, 0, &[1; 5000], &ROOT, false).unwrap();
        fs.fsync(old, false, 0).unwrap();
        fs.write(new, 0, &[2; 5000], &ROOT, false).unwrap();
        device.fail_from(fault);
        assert_eq!(fs.fsync(new, false, 0).unwrap_err().errno(), libc::EIO);
        device.heal();
        assert_eq!(fs.fsync(new, false, 0).unwrap_err().errno(), libc::EIO, "it stays failed");
        assert_eq!(fs.write(new, 0, b"x", &ROOT, false).unwrap_err().errno(), libc::EROFS);
        assert_eq!(fs.mkdir(InodeNr::ROOT, b"d", 0o755, 0, &ROOT).unwrap_err().errno(), libc::EROFS);
        assert!(fs.sync().is_err());
        let (sender, receiver) = std::sync::mpsc::channel();
        fs.sync_then(Box::new(move |result| sender.send(result.is_err()).unwrap()));
        assert!(receiver.recv_timeout(std::time::Duration::from_secs(10)).unwrap());
        assert_eq!(content(&fs, old), [1; 5000]);
        assert_eq!(content(&fs, new), [2; 5000]);
        assert!(fs.unmount().is_err());
        let fs = again(&memory);
        assert_eq!(content(&fs, old), [1; 5000]);
        fs.unmount().unwrap();
        e2fsck(&*memory, "aborted");
    }
}

#[test]
fn one_file_that_cannot_be_written_keeps_no_other_from_the_disk() {
    let (fs, device, memory) = mounted();
    let files = [file(&fs, "a"), file(&fs, "b"), file(&fs, "c")];
    for nr in files {
        fs.write(nr, 0, &vec![nr.0 as u8; 300_000], &ROOT, false).unwrap();
    }
    // The first write is of the first file's data, in place.
    device.fail_once(Request::is_write);
    assert_eq!(fs.sync().unwrap_err().errno(), libc::EIO);
    let cut = again(&Arc::new(MemoryDevice::clone(&memory)));
    for nr in &files[1..] {
        assert_eq!(content(&cut, *nr), vec![nr.0 as u8; 300_000]);
    }
    assert!(content(&cut, files[0]).is_empty(), "not even the size");
    // What failed is still there to be tried again.
    assert_eq!(content(&fs, files[0]).len(), 300_000);
    fs.sync().unwrap();
    device.fail_when(|r| r.is_write() && matches!(r, Request::Write { len, .. } if *len > 200_000));
    fs.write(files[0], 0, &vec![9; 300_000], &ROOT, false).unwrap();
    file(&fs, "d");
    assert_eq!(fs.unmount().unwrap_err().errno(), libc::EIO, "lost data is told");
    e2fsck(&*memory, "unmounted");
    let fs = again(&memory);
    fs.lookup(InodeNr::ROOT, b"d").unwrap();
    fs.unmount().unwrap();
}

#[test]
fn a_failed_write_leaves_no_space_held() {
    let (fs, device, memory) = mounted();
    let nr = file(&fs, "f");
    fs.write(nr, 0, &[1; 4096 * 4], &ROOT, false).unwrap();
    fs.sync().unwrap();
    let free = fs.statfs().unwrap().free;
    device.fail_when(Request::is_read);
    // The last block is covered only in part, and can't be read.
    let failed = fs.write(nr, 4096, &[2; 4096 + 10], &ROOT, false);
    assert_eq!(failed.unwrap_err().errno(), libc::EIO);
    device.heal();
    assert_eq!(fs.statfs().unwrap().free, free);
    assert_eq!(fs.stats()["memory"]["delayed_bytes"], 0);
    assert_eq!(content(&fs, nr), [1; 4096 * 4], "whole or absent");
    fs.unmount().unwrap();
    e2fsck(&*memory, "failed write");
}

#[test]
fn a_device_that_dies_under_load_hangs_nobody() {
    for what in [Request::is_write as fn(&Request) -> bool, |r| *r == Request::Flush] {
        let memory = Arc::new(make(mkfs::Profile::Journalfs, 1024, 8, "").memory);
        let device = Arc::new(FaultyDevice::new(memory.clone()));
        let fs = Fs::mount(device.clone(), &options(&["inactivate=deferred"])).unwrap();
        let (done, asked, answered) =
            (AtomicBool::new(false), AtomicU64::new(0), Arc::new(AtomicU64::new(0)));
        std::thread::scope(|scope| {
            for which in 0..3u64 {
                let (fs, done, asked, answered) = (&fs, &done, &asked, &answered);
                scope.spawn(move || {
                    for i in 0u64.. {
                        if done.load(Ordering::Relaxed) {
                            break;
                        }
                        let name = format!("{which}-{}", i % 5);
                        let Ok(made) = fs.mknod(InodeNr::ROOT, name.as_bytes(), 0o100_644, 0, 0, &ROOT)
                        else {
                            let _ = fs.unlink(InodeNr::ROOT, name.as_bytes());
                            continue;
                        };
                        let _ = fs.write(made.nr, i % 7 * 10_000, &[7; 16_000], &ROOT, false);
                        let count = answered.clone();
                        asked.fetch_add(1, Ordering::Relaxed);
                        let answer = move |_| {
                            count.fetch_add(1, Ordering::Relaxed);
                        };
                        fs.fsync_then(made.nr, false, 0, Box::new(answer));
                        let _ = fs.truncate(made.nr, 70_000);
                        let _ = fs.read(made.nr, 0, 100_000);
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(400));
            device.fail_from(what);
            std::thread::sleep(Duration::from_millis(200));
            done.store(true, Ordering::Relaxed);
        });
        assert!(fs.unmount().is_err());
        assert!(asked.load(Ordering::Relaxed) > 3);
        assert_eq!(asked.load(Ordering::Relaxed), answered.load(Ordering::Relaxed), "everyone is answered");
        let fs = again(&memory);
        fs.unmount().unwrap();
        e2fsck(&*memory, "died");
    }
}
