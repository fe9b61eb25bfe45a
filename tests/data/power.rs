//! Power cuts around data: overwrites of logged blocks, truncation, mount and unmount, orphans.

use crate::support::{both_kinds, content, make, options, Mounted, ROOT};
use journalfs::device::recording::Event;
use journalfs::device::{Device, SharedDevice};
use journalfs::format::features::{Incompat, RoCompat};
use journalfs::fs::{read_superblock, Fs};
use journalfs::units::InodeNr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

#[test]
fn a_logged_block_is_never_replayed_over_newer_data() {
    for made in both_kinds() {
        let m = made.mount(&[]);
        let nr = m.file("f");
        let len = 256 << 10;
        m.write(nr, 0, b'a', len);
        m.fs.fsync(nr, false, 0).unwrap();
        let begin = m.device.position();
        // Small, so logged.
        m.write(nr, 20_480, b'b', 4096);
        m.fs.fsync(nr, true, 0).unwrap();
        let second = m.device.position();
        // Large, so in place, but for the block that was logged (J5).
        m.write(nr, 0, b'c', len);
        m.fs.fsync(nr, true, 0).unwrap();
        let third = m.device.position();
        m.cut(begin, 1, |fs, position| {
            let found = content(fs, nr);
            assert_eq!(found.len(), len);
            let allowed: &[u8] = match position {
                p if p >= third => b"c",
                p if p >= second => b"bc",
                _ => b"abc",
            };
            let logged = &found[20_480..24_576];
            assert!(logged.iter().all(|b| allowed.contains(b)), "cut at {position}: {:?}", logged[0]);
            let others: &[u8] = if position >= third { b"c" } else { b"ac" };
            let wrong = found[..20_480].iter().chain(&found[24_576..]).find(|b| !others.contains(b));
            assert_eq!(wrong, None, "cut at {position}");
        });
        m.end("overwritten");
    }
}

#[test]
fn what_was_cut_off_never_comes_back() {
    for made in both_kinds() {
        let m = made.mount(&[]);
        let nr = m.file("f");
        m.write(nr, 0, b'a', 10_000);
        m.fs.fsync(nr, false, 0).unwrap();
        let begin = m.device.position();
        m.fs.truncate(nr, 5000).unwrap();
        m.fs.fsync(nr, false, 0).unwrap();
        m.fs.truncate(nr, 9000).unwrap();
        m.fs.fsync(nr, false, 0).unwrap();
        let end = m.device.position();
        m.cut(begin, 1, |fs, position| {
            let found = content(fs, nr);
            let data = found.iter().take_while(|b| **b == b'a').count();
            assert!(found[data..].iter().all(|b| *b == 0), "J10: cut at {position}");
            match found.len() {
                10_000 => assert!(data == 10_000 && position < end),
                5000 => assert!(data == 5000 && position < end),
                9000 => assert_eq!(data, 5000),
                size => panic!("cut at {position}: size {size}"),
            }
        });
        m.end("truncated");
    }
}

/// What is written while `events` happen: the journal superblock, the superblock, or something else.
fn steps(m: &Mounted, from: usize, journal_at: u64) -> Vec<&'static str> {
    let step = |event: &Event| match event {
        Event::Write { offset, .. } if *offset == journal_at => Some("journal"),
        Event::Write { offset: 1024, .. } => Some("superblock"),
        Event::Write { .. } => Some("other"),
        Event::FlushBegun { .. } => Some("flush"),
        _ => None,
    };
    m.device.events()[from..].iter().filter_map(step).collect()
}

#[test]
fn mount_and_unmount_write_in_the_order_that_every_recovery_understands() {
    let made = make(mkfs::Profile::Journalfs, 4096, 32, "orphan_file");
    let journal_at = made.journal[0].start.0 * made.block_bytes;
    // A version-1 journal superblock, as old tools make it: it has no features.
    let mut head = [0; 1024];
    made.memory.read_at(journal_at, &mut head).unwrap();
    head[4..8].copy_from_slice(&3u32.to_be_bytes());
    head[36..48].fill(0);
    made.memory.write_at(journal_at, &head).unwrap();
    let m = made.mount(&[]);
    let begun = ["journal", "flush", "superblock", "flush"];
    assert_eq!(steps(&m, 0, journal_at)[..4], begun, "J11");
    let features = read_superblock(&(m.device.clone() as SharedDevice)).unwrap().features;
    assert!(features.incompat.contains(Incompat::NEEDS_RECOVERY));
    assert!(features.ro_compat.contains(RoCompat::ORPHAN_PRESENT), "J14");
    m.device.read_at(journal_at, &mut head).unwrap();
    assert_eq!(head[4..8], 4u32.to_be_bytes(), "J14: version 2");
    assert_ne!(head[28..32], [0; 4], "J11: a start that is not zero");
    let nr = m.file("f");
    m.write(nr, 0, b'a', 1000);
    let before = m.device.position();
    m.fs.unmount().unwrap();
    let written = steps(&m, before, journal_at);
    assert!(written.ends_with(&["superblock", "flush", "journal", "flush"]), "J11: {written:?}");
    let features = read_superblock(&(m.device.clone() as SharedDevice)).unwrap().features;
    assert!(!features.incompat.contains(Incompat::NEEDS_RECOVERY));
    assert!(!features.ro_compat.contains(RoCompat::ORPHAN_PRESENT));
    m.cut(0, 1, |_, _| {});
    m.end("unmounted");
}

#[test]
fn an_unlinked_file_that_was_open_is_freed_by_the_next_mount() {
    for made in both_kinds() {
        let m = made.mount(&[]);
        m.fs.sync().unwrap();
        let free = m.free();
        let nr = m.file("f");
        m.write(nr, 0, b'a', 300_000);
        m.fs.open(nr, libc::O_RDONLY).unwrap();
        m.fs.fsync(nr, false, 0).unwrap();
        m.unlink("f");
        m.fs.sync().unwrap();
        assert_eq!(content(&m.fs, nr).len(), 300_000);
        let device: SharedDevice = Arc::new(m.cut_now());
        let fs = Fs::mount(device.clone(), &options(&[])).unwrap();
        assert_eq!(fs.statfs().unwrap().free, free);
        assert!(fs.getattr(nr).is_err_and(|e| e.is(libc::ESTALE)));
        fs.unmount().unwrap();
        crate::support::e2fsck(&*device, "orphan");
        m.fs.release(nr).unwrap();
        m.end("released");
    }
}

#[test]
fn a_long_truncation_is_finished_after_a_cut() {
    for made in [make(mkfs::Profile::Ext3, 1024, 32, ""), make(mkfs::Profile::Journalfs, 1024, 32, "")] {
        let m = made.mount(&[]);
        let (nr, other) = (m.file("f"), m.file("other"));
        for i in 0..8000 {
            m.write(nr, i * 2048, b'a', 1024);
        }
        m.fs.sync().unwrap();
        let begin = m.device.position();
        // Somebody commits all the while, so that the truncation is spread over transactions.
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    m.write(other, 0, b'b', 10);
                    m.fs.fsync(other, false, 0).unwrap();
                }
            });
            m.fs.truncate(nr, 3000).unwrap();
            done.store(true, Ordering::Relaxed);
        });
        m.fs.fsync(nr, false, 0).unwrap();
        let size = 8000 * 2048 - 1024;
        let mut unfinished = 0;
        m.cut(begin, (m.device.position() - begin) / 25, |fs, position| {
            let attr = fs.getattr(nr).unwrap();
            assert!(attr.size == size || attr.size == 3000, "cut at {position}: size {}", attr.size);
            if attr.size == 3000 {
                assert!(attr.blocks <= 10, "{} units", attr.blocks);
                unfinished += usize::from(fs.stats()["journal"]["commits"] != 0);
            }
        });
        assert!(unfinished > 0, "no state in the middle of the truncation");
        m.end("truncated");
    }
}

#[test]
fn a_file_that_was_out_of_memory_is_synced_all_the_same() {
    let made = make(mkfs::Profile::Journalfs, 4096, 32, "");
    let m = made.mount(&["cache_size=1"]);
    let nr = m.file("f");
    let others: Vec<InodeNr> = (0..4000).map(|i| m.file(&format!("file-{i}"))).collect();
    m.fs.sync().unwrap();
    let set = journalfs::fs::attr::SetAttr { mode: Some(0o600), ..Default::default() };
    m.fs.setattr(nr, &set, &ROOT).unwrap();
    // Other inodes push it out of the cache.
    for other in others {
        m.fs.getattr(other).unwrap();
    }
    m.fs.fsync(nr, false, 0).unwrap();
    let fs = Fs::mount(Arc::new(m.cut_now()), &options(&[])).unwrap();
    assert_eq!(fs.getattr(nr).unwrap().mode & 0o777, 0o600);
    m.end("synced");
}

#[test]
fn a_file_never_shows_what_its_blocks_held_before() {
    for made in both_kinds() {
        let m = made.mount(&[]);
        // All that is free holds what somebody deleted.
        let old = m.file("old");
        let mut at = 0;
        while m.fs.write(old, at, &vec![b'x'; 1 << 16], &ROOT, false).is_ok() {
            at += 1 << 16;
        }
        m.fs.fsync(old, false, 0).unwrap();
        m.unlink("old");
        m.fs.sync().unwrap();
        let nr = m.file("new");
        m.fs.sync().unwrap();
        let begin = m.device.position();
        m.write(nr, 0, b'y', 300_000);
        m.fs.fsync(nr, false, 0).unwrap();
        // A hole and a preallocated range, written in part.
        m.write(nr, 400_000, b'y', 100_000);
        m.fs.sync().unwrap();
        m.fs.truncate(nr, 450_001).unwrap();
        m.fs.truncate(nr, 600_000).unwrap();
        m.write(nr, 500_000, b'y', 1000);
        m.fs.fsync(nr, false, 0).unwrap();
        m.cut(begin, 1, |fs, position| {
            let found = content(fs, nr);
            assert!(found.iter().all(|b| b"y\0".contains(b)), "J4: cut at {position}");
            assert!(found.iter().take(300_000).all(|b| *b == b'y'), "J4: cut at {position}");
        });
        m.end("reused");
    }
}
