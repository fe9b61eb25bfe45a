//! Contents: sizes, holes, preallocation, fragments, truncation.

use std::fs::OpenOptions;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{fallocate, FallocateFlags};

use super::{edit, make, make_dir, noise, note, Abilities, Log};

pub(super) fn contents(root: &Path) {
    let dir = root.join("contents");
    make_dir(&dir);
    let k = 1024;
    // Around blocks, the twelve direct blocks, and one and two levels of indirection.
    let edges = [0, 1, 59, 60, 61, 512, k, 4 * k, 12 * k, 48 * k, 268 * k, 300 * k];
    for edge in edges {
        for size in [edge - 1, edge, edge + 1].into_iter().filter(|s| *s >= 0) {
            make(&dir.join(format!("size-{size}")), &noise(size as u64, size as usize));
        }
    }
    make(&dir.join("five-megabytes"), &noise(5, 5 << 20));
    make(&dir.join("overwritten"), &noise(6, 200_000));
    edit(&dir.join("overwritten")).write_all_at(&noise(7, 70_000), 3333).expect("overwrite");
    let mut append = OpenOptions::new().append(true).create(true).open(dir.join("appended")).expect("open");
    for piece in 0..100 {
        append.write_all(&noise(piece, 777)).expect("append");
        if piece % 25 == 0 {
            append.sync_all().expect("fsync");
        }
    }
    let synced = OpenOptions::new()
        .write(true)
        .create_new(true)
        .custom_flags(rustix::fs::OFlags::SYNC.bits() as i32)
        .open(dir.join("o-sync"))
        .expect("open O_SYNC");
    for piece in 0..20 {
        synced.write_all_at(&noise(piece, 1000), piece * 5000).expect("O_SYNC write");
    }
}

/// Holes, far offsets, preallocation, fragments.
pub(super) fn mapped(root: &Path, abilities: Abilities, log: &mut Log) {
    let dir = root.join("mapped");
    make_dir(&dir);
    let sparse = edit(&dir.join("sparse"));
    for shift in [0_u64, 13, 20, 26, 29, 31, 33] {
        sparse.write_all_at(&noise(shift, 3000), (1 << shift) - 1).expect("sparse write");
    }
    edit(&dir.join("all-hole")).set_len(3 << 30).expect("truncate up");
    let far = edit(&dir.join("backwards"));
    for step in (0..60_u64).rev() {
        far.write_all_at(&noise(step, 2000), step * 9000).expect("backwards write");
    }
    // Two files that grow in turn, with fsync between, so that neither is one extent.
    let (mut left, mut right) = (edit(&dir.join("left")), edit(&dir.join("right")));
    for step in 0..40 {
        for file in [&mut left, &mut right] {
            file.seek(SeekFrom::End(0)).expect("seek");
            file.write_all(&noise(step, 8192)).expect("write");
            file.sync_data().expect("fdatasync");
        }
    }
    let punched = edit(&dir.join("punched"));
    punched.write_all_at(&noise(8, 400_000), 0).expect("write");
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    for (offset, length) in [(1000, 500), (4096, 8192), (50_000, 100_001), (399_000, 5000)] {
        note(log, "punch", fallocate(&punched, punch, offset, length));
    }
    if abilities.extents {
        let kept = edit(&dir.join("kept-size"));
        note(log, "keep size", fallocate(&kept, FallocateFlags::KEEP_SIZE, 0, 1 << 20));
        kept.write_all_at(&noise(9, 5000), 300_000).expect("write");
        let grown = edit(&dir.join("preallocated"));
        note(log, "allocate", fallocate(&grown, FallocateFlags::empty(), 5000, 2 << 20));
        grown.write_all_at(&noise(10, 70_000), 1_000_001).expect("write");
        let zeroed = edit(&dir.join("zero-range"));
        zeroed.write_all_at(&noise(11, 300_000), 0).expect("write");
        let zero = FallocateFlags::ZERO_RANGE;
        note(log, "zero", fallocate(&zeroed, zero, 10_001, 50_000));
        note(log, "zero past end", fallocate(&zeroed, zero, 290_000, 50_000));
        let keep = zero | FallocateFlags::KEEP_SIZE;
        note(log, "zero, keep", fallocate(&zeroed, keep, 330_000, 90_000));
    }
    let source = edit(&dir.join("copy-source"));
    source.write_all_at(&noise(12, 150_000), 0).expect("write");
    let copy = edit(&dir.join("copied"));
    let (mut from, mut to) = (1000_u64, 500_u64);
    while from < 140_000 {
        let want = (140_000 - from) as usize;
        let done = rustix::fs::copy_file_range(&source, Some(&mut from), &copy, Some(&mut to), want)
            .expect("copy_file_range");
        assert_ne!(done, 0, "copy_file_range stopped at {from}");
    }
}

pub(super) fn resizes(root: &Path, abilities: Abilities, log: &mut Log) {
    let dir = root.join("contents");
    for (name, size) in [
        ("five-megabytes", 2_500_001),
        ("size-49152", 1),
        ("size-307200", 274_433),
        ("size-12288", 0),
        ("size-61", 100_000),
    ] {
        edit(&dir.join(name)).set_len(size).expect("truncate");
    }
    // What was cut off must not show again when the file grows.
    let regrown = edit(&dir.join("size-4097"));
    regrown.set_len(100).expect("truncate");
    regrown.set_len(9000).expect("truncate");
    edit(&root.join("mapped/sparse")).set_len(1 << 27).expect("truncate");
    edit(&root.join("mapped/all-hole")).write_all_at(b"middle", 1 << 30).expect("write into a hole");
    edit(&root.join("mapped/left")).set_len(81_921).expect("truncate");
    if abilities.extents {
        let prepared = edit(&root.join("mapped/preallocated"));
        for step in 0..20 {
            prepared.write_all_at(&noise(step, 4097), step * 99_991).expect("write into unwritten extents");
        }
        note(
            log,
            "punch unwritten",
            fallocate(&prepared, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 12_288, 1 << 20),
        );
    }
}
