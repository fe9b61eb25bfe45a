//! Space: what is free after everything has gone, full file systems, inode numbers, preallocation and holes.

use crate::support::{both_kinds, content, make, Mounted, ROOT};
use journalfs::units::InodeNr;
use libc::{FALLOC_FL_KEEP_SIZE as KEEP, FALLOC_FL_PUNCH_HOLE as PUNCH, FALLOC_FL_ZERO_RANGE as ZERO};

/// Waits until what was unlinked has been freed, durably.
fn settle(m: &Mounted) {
    m.fs.sync().unwrap();
    for _ in 0..1000 {
        m.fs.sync().unwrap();
        let space = &m.fs.stats()["space"];
        let at_rest = |what: &[&str]| what.iter().all(|name| space[name] == 0);
        if at_rest(&["orphans", "blocks_freed_not_durable", "bytes_to_be_freed"]) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    panic!("{}", m.fs.stats());
}

#[test]
fn all_space_comes_back() {
    for made in both_kinds() {
        let m = made.mount(&[]);
        settle(&m);
        let free = m.free();
        let block = made.block_bytes;
        let nr = m.file("f");
        // Delayed, and dropped before it has a place.
        m.write(nr, 0, 1, 500_000);
        assert!(m.free() < free - 400_000 / block);
        m.fs.truncate(nr, 0).unwrap();
        settle(&m);
        assert_eq!(m.free(), free);
        // Sparse, in place, logged, cut and grown.
        for i in 0..40 {
            m.write(nr, i * 77 * block + 5, 2, 3000);
        }
        m.fs.fsync(nr, false, 0).unwrap();
        m.write(nr, 3, 3, 100);
        m.fs.fsync(nr, false, 0).unwrap();
        m.fs.truncate(nr, 1000 * block + 7).unwrap();
        m.write(nr, 2000 * block, 4, 200_000);
        m.fs.truncate(nr, 2010 * block + 9).unwrap();
        m.fs.truncate(nr, 3000 * block).unwrap();
        m.write(nr, 0, 5, 3 << 20);
        m.fs.sync().unwrap();
        m.write(nr, 10, 6, 1 << 20);
        m.unlink("f");
        settle(&m);
        assert_eq!(m.free(), free);
        m.end("emptied");
    }
}

#[test]
fn a_full_device_takes_new_data_as_soon_as_old_has_gone() {
    for made in both_kinds() {
        let m = made.mount(&[]);
        settle(&m);
        let free = m.free();
        for round in 0..3u8 {
            let nr = m.file("f");
            let mut at = 0;
            let error = loop {
                match m.fs.write(nr, at, &vec![round; 100_000], &ROOT, false) {
                    Ok(written) => at += u64::from(written),
                    Err(error) => break error,
                }
            };
            assert!(error.is(libc::ENOSPC), "{error}");
            assert!(at > free * made.block_bytes * 8 / 10, "{at} of {free} blocks");
            // Nothing that was accepted is lost.
            m.fs.fsync(nr, false, 0).unwrap();
            assert_eq!(m.fs.getattr(nr).unwrap().size, at);
            m.unlink("f");
        }
        settle(&m);
        assert_eq!(m.free(), free);
        m.end("filled");
    }
}

#[test]
fn blocks_far_apart_fit_a_small_log() {
    // Each block may need map blocks of its own: more than the log has, all together.
    for made in [make(mkfs::Profile::Ext3, 1024, 32, ""), make(mkfs::Profile::Journalfs, 1024, 32, "")] {
        let m = made.mount(&[]);
        let nr = m.file("f");
        for i in 0..3000u64 {
            m.write(nr, i * 300 * 1024, i as u8 | 1, 700);
        }
        m.fs.sync().unwrap();
        // Logged, so that the background has to log it again, whole.
        let other = m.file("g");
        for i in 0..60 {
            m.write(other, i * 60_000, 1, 60_000);
            m.fs.fsync(other, false, 0).unwrap();
        }
        m.write(other, 0, 2, 3_600_000);
        m.fs.sync().unwrap();
        assert!(content(&m.fs, other).iter().all(|b| *b == 2));
        for i in [0, 1, 1500, 2999u64] {
            let read = m.fs.read(nr, i * 300 * 1024, 1024).unwrap();
            assert_eq!((read[0], read[699]), (i as u8 | 1, i as u8 | 1));
        }
        m.end("sparse");
    }
}

#[test]
fn numbers_of_inodes_come_back_whenever_the_kernel_forgets() {
    let made = make(mkfs::Profile::Ext3, 1024, 8, "");
    let m = made.mount(&["inactivate=deferred"]);
    m.fs.expect_forgets();
    let free = m.fs.statfs().unwrap().free_inodes;
    for _ in 0..2 {
        let numbers: Vec<InodeNr> = (0..free).map(|i| m.file(&format!("{i}"))).collect();
        for (i, nr) in numbers.iter().enumerate() {
            m.unlink(&format!("{i}"));
            // Most often before the inactivation that the unlink began.
            m.fs.forget(*nr);
        }
        settle(&m);
        assert_eq!(m.fs.statfs().unwrap().free_inodes, free);
    }
    m.end("forgotten");
}

#[test]
fn inactivation_inline_means_before_the_call_returns() {
    let made = make(mkfs::Profile::Journalfs, 4096, 32, "");
    let m = made.mount(&["inactivate=inline"]);
    let nr = m.file("f");
    m.write(nr, 0, 1, 4 << 20);
    m.fs.fsync(nr, false, 0).unwrap();
    m.unlink("f");
    assert_eq!(m.fs.stats()["space"]["orphans"], 0);
    m.end("inline");
}

#[test]
fn preallocation_holes_and_seek() {
    for made in both_kinds() {
        let extents = made.block_bytes == 4096;
        let m = made.mount(&[]);
        let b = made.block_bytes;
        let nr = m.file("f");
        let fallocate = |mode, from: u64, len: u64| m.fs.fallocate(nr, mode, from, len, &ROOT);
        let seek = |at: u64, whence| m.fs.seek(nr, at, whence).map_err(|e| e.errno());
        m.write(nr, 0, b'x', 10 * b as usize);
        m.write(nr, 20 * b, b'x', 2 * b as usize);
        for synced in [false, true] {
            assert_eq!(seek(0, libc::SEEK_HOLE), Ok(10 * b));
            assert_eq!(seek(10 * b + 1, libc::SEEK_HOLE), Ok(10 * b + 1));
            assert_eq!(seek(10 * b, libc::SEEK_DATA), Ok(20 * b));
            assert_eq!(seek(21 * b, libc::SEEK_HOLE), Ok(22 * b));
            assert_eq!(seek(22 * b, libc::SEEK_DATA), Err(libc::ENXIO), "{synced}");
            m.fs.fsync(nr, false, 0).unwrap();
        }
        let units = m.fs.getattr(nr).unwrap().blocks;
        fallocate(PUNCH | KEEP, b + 100, 4 * b).unwrap();
        let attr = m.fs.getattr(nr).unwrap();
        assert_eq!((attr.size, attr.blocks), (22 * b, units - 3 * b / 512));
        let mut expected = vec![b'x'; 10 * b as usize];
        expected[b as usize + 100..5 * b as usize + 100].fill(0);
        assert_eq!(content(&m.fs, nr)[..10 * b as usize], expected);
        assert_eq!(seek(0, libc::SEEK_HOLE), Ok(2 * b));
        assert_eq!(seek(2 * b, libc::SEEK_DATA), Ok(5 * b));
        // Punching far behind the end, even behind what a file can have, does nothing.
        for far in [1 << 30, 1 << 45, (1 << 62) + 5] {
            fallocate(PUNCH | KEEP, far, 10).unwrap();
        }
        assert_eq!(m.fs.getattr(nr).unwrap().size, 22 * b);
        if !extents {
            assert!(fallocate(0, 0, b).is_err_and(|e| e.errno() == libc::EOPNOTSUPP));
            m.end("punched");
            continue;
        }
        fallocate(KEEP, 0, 40 * b).unwrap();
        assert_eq!(m.fs.getattr(nr).unwrap().size, 22 * b);
        // One block more: so many extents need a node of their own.
        assert_eq!(m.fs.getattr(nr).unwrap().blocks, 41 * b / 512);
        assert_eq!(seek(2 * b, libc::SEEK_DATA), Ok(5 * b), "preallocated is no data");
        fallocate(ZERO, 6 * b + 1, 2 * b).unwrap();
        fallocate(0, 30 * b, 20 * b).unwrap();
        let attr = m.fs.getattr(nr).unwrap();
        assert_eq!((attr.size, attr.blocks), (50 * b, 51 * b / 512));
        expected[6 * b as usize + 1..][..2 * b as usize].fill(0);
        m.write(nr, 2 * b + 3, b'y', 5);
        expected[2 * b as usize + 3..2 * b as usize + 8].fill(b'y');
        m.fs.fsync(nr, false, 0).unwrap();
        assert_eq!(content(&m.fs, nr)[..10 * b as usize], expected);
        m.end("preallocated");
    }
}

#[test]
fn delayed_data_finds_room_for_its_map_in_free_space_in_pieces() {
    let made = make(mkfs::Profile::Journalfs, 1024, 8, "");
    let m = made.mount(&[]);
    // Free space in pieces of one block: every other block of a full device.
    let nr = m.file("f");
    let mut blocks = 0u64;
    while m.fs.write(nr, blocks * 1024, &[1; 1024], &ROOT, false).is_ok() {
        blocks += 1;
    }
    m.fs.sync().unwrap();
    for block in (0..blocks).step_by(2) {
        m.fs.fallocate(nr, KEEP | PUNCH, block * 1024, 1024, &ROOT).unwrap();
    }
    m.fs.sync().unwrap();
    // Fill it again, delayed; then directories take what they can get.
    let other = m.file("g");
    let mut delayed = 0u64;
    // (Not to the end: a write that finds no space has all delayed data placed.)
    while m.free() > 8192 / 50 + 2 {
        m.write(other, delayed * 2048, 2, 1024);
        delayed += 1;
    }
    assert!(delayed > blocks / 3, "{delayed} of {blocks}");
    for i in 0.. {
        let made = m.fs.mkdir(InodeNr::ROOT, format!("{i}").as_bytes(), 0o755, 0, &ROOT);
        if made.is_err_and(|e| e.is(libc::ENOSPC)) {
            break;
        }
    }
    m.fs.fsync(other, false, 0).unwrap();
    assert_eq!(m.fs.read(other, (delayed - 1) * 2048, 1024).unwrap()[..], [2; 1024]);
    m.end("in pieces");
}
