//! The allocator on images that mke2fs made, judged by e2fsck.

use super::*;
use crate::cache::Handle;
use crate::device::Device;
use crate::format::RawInode;
use crate::fs::testing::Image;
use crate::fs::{inode_table, map};
use crate::units::{BlockNr, FileBlock};

fn range(start: u64, len: u32) -> BlockRange {
    BlockRange::new(BlockNr(start), len)
}

/// Takes everything that is left; the runs.
fn take_all(image: &Image) -> Vec<BlockRange> {
    let mut runs = Vec::new();
    while let Ok(run) = image.take(0, 100_000) {
        runs.push(run);
    }
    runs
}

#[test]
fn freed_blocks_come_back_only_when_their_transaction_is_durable() {
    let Some(image) = Image::make("-t ext4 -b 1024", "4M") else { return };
    let runs = take_all(&image);
    assert_eq!(image.allocator.free_blocks(), 0);
    let run = runs[0];
    // Not in the handle that frees them, ...
    let within = image.update(|h| {
        image.allocator.free(h, run)?;
        image.allocator.allocate_held(h, run.start, 1)
    });
    assert!(within.unwrap_err().is(libc::ENOSPC));
    // ... which failed, so nothing is freed at all; ...
    assert_eq!((image.allocator.free_blocks(), image.allocator.pending_frees()), (0, 0));
    image.give(run).unwrap();
    // ... nor in the same transaction, nor for trimming or a reservation, ...
    assert_eq!(image.allocator.free_blocks(), u64::from(run.len));
    assert_eq!(image.allocator.pending_frees(), u64::from(run.len));
    assert!(image.take(run.start.0, 1).unwrap_err().is(libc::ENOSPC));
    assert!(image.update(|h| image.allocator.reserve(h, run.start, 1)).unwrap_err().is(libc::ENOSPC));
    let whole = range(1, 4095);
    let trim = image.update(|h| image.allocator.trim_next(h, whole, 1)).unwrap().unwrap();
    assert_eq!(trim.len, 0);
    // ... but after the commit.
    image.commit();
    assert_eq!(image.allocator.pending_frees(), 0);
    assert_eq!(image.take(run.start.0, run.len).unwrap(), run);
}

#[test]
fn a_freed_run_is_passed_over_where_other_blocks_are_free() {
    let Some(image) = Image::make("-t ext4 -b 1024", "4M") else { return };
    let run = image.take(2000, 10).unwrap();
    let goals = |h: &mut Handle<'_>| -> Result<Vec<BlockRange>> {
        let mut taken = Vec::new();
        for want in [1, 10, 1000] {
            taken.push(image.allocator.allocate(h, run.start, want)?);
        }
        taken.push(image.allocator.reserve(h, run.start, 3)?);
        Ok(taken)
    };
    let apart = |taken: Vec<BlockRange>| {
        assert!(taken.iter().all(|r| r.end() <= run.start || r.start >= run.end()), "{run:?} in {taken:?}");
    };
    // In the handle that frees it, and in another of the same transaction.
    let same = image.update(|h| {
        image.allocator.free(h, run)?;
        goals(h)
    });
    apart(same.unwrap());
    apart(image.update(goals).unwrap());
    image.commit();
    assert_eq!(image.take(run.start.0, 10).unwrap(), run);
}

#[test]
fn a_failed_handle_leaves_no_trace() {
    let Some(image) = Image::make("-t ext4 -b 1024", "4M") else { return };
    let before = (image.allocator.free_blocks(), image.allocator.free_inodes());
    let failed: Result<()> = image.update(|h| {
        image.allocator.allocate(h, BlockNr(0), 10)?;
        image.allocator.allocate_inode(h, InodeNr::ROOT, true)?;
        Err(Error::Invalid)
    });
    assert!(failed.is_err());
    assert_eq!((image.allocator.free_blocks(), image.allocator.free_inodes()), before);
    image.check();
}

#[test]
fn wrong_frees_are_corruption() {
    let Some(image) = Image::make("-t ext4 -b 1024", "16M") else { return };
    let run = image.take(9000, 8).unwrap();
    image.give(range(run.start.0 + 2, 3)).unwrap();
    let count = image.geometry.blocks_count;
    // Free already, partly free, the superblock, a bitmap, behind the end, across the end, absurd.
    let table = crate::fs::groups::read(&image.cache, &image.geometry, GroupNr(0)).unwrap();
    let wrong = [
        range(run.start.0 + 3, 1),
        run,
        range(1, 1),
        range(table.block_bitmap.0, 1),
        range(table.inode_table.0, 5),
        range(count, 1),
        range(count - 1, 2),
        range(u64::MAX, 1),
        range(0, 1),
    ];
    for range in wrong {
        assert_eq!(image.give(range).unwrap_err().errno(), libc::EUCLEAN, "{range:?}");
    }
}

#[test]
fn runs_stay_together_and_small_files_fill_gaps() {
    let Some(image) = Image::make("-t ext4 -b 4096", "512M") else { return };
    let first = image.take(40_000, 100).unwrap();
    assert_eq!(first.len, 100);
    // Right behind, if the goal says so.
    assert_eq!(image.take(first.end().0, 50).unwrap().start, first.end());
    // A gap of 20 is passed over by 100 and taken by 10.
    image.give(range(first.start.0 + 40, 20)).unwrap();
    image.commit();
    let large = image.take(first.start.0, 100).unwrap();
    assert!(large.len == 100 && large.start >= first.end());
    assert_eq!(image.take(first.start.0, 10).unwrap(), range(first.start.0 + 40, 10));
    // What follows a file's last block is taken though it is short of what is wanted.
    assert_eq!(image.take(first.start.0 + 50, 30).unwrap(), range(first.start.0 + 50, 10));
}

#[test]
fn reservations_are_nobody_else_s_until_claimed_or_given_up() {
    let Some(image) = Image::make("-t ext4 -b 1024", "4M") else { return };
    let free = image.allocator.free_blocks();
    let reserve = |want| image.update(|h| image.allocator.reserve(h, BlockNr(2000), want)).unwrap();
    let a = reserve(10);
    let b = reserve(10);
    assert_eq!(b.start, a.end());
    assert_eq!(image.take(a.start.0, 5).unwrap().start, b.end());
    assert_eq!(image.allocator.free_blocks(), free - 5);
    image.update(|h| image.allocator.claim(h, a)).unwrap();
    assert_eq!(image.allocator.free_blocks(), free - 15);
    image.allocator.unreserve(b);
    assert_eq!(image.take(b.start.0, 10).unwrap(), b);
    assert!(image.update(|h| image.allocator.claim(h, a)).is_err(), "claimed twice");
    let spoken: u32 = image.allocator.groups.iter().map(|g| g.spoken_for.load(Ordering::Relaxed)).sum();
    assert_eq!(spoken, 0);
}

#[test]
fn promised_space_is_kept_and_the_root_reserve_is_root_s() {
    let Some(image) = Image::make("-t ext4 -b 1024 -m 10", "16M") else { return };
    let allocator = &image.allocator;
    let space = allocator.space();
    let root = image.geometry.blocks_count / 10;
    assert_eq!(space.available, space.free - root - allocator.margin_blocks);
    assert!(allocator.hold_space(space.available + 1, false).unwrap_err().is(libc::ENOSPC));
    allocator.hold_space(space.available, false).unwrap();
    assert!(allocator.hold_space(1, false).unwrap_err().is(libc::ENOSPC));
    allocator.hold_space(root, true).unwrap();
    // What is promised is not given to those who were promised nothing, nor what its maps may need.
    let kept = allocator.kept_for_maps(space.available + root);
    let mut taken = 0;
    while let Ok(run) = image.take(0, 1000) {
        taken += u64::from(run.len);
    }
    assert_eq!(taken, allocator.margin_blocks - kept);
    assert_eq!(allocator.space().free, kept);
    let mut placed = 0;
    while placed < space.available + root {
        placed += u64::from(image.update(|h| allocator.allocate_held(h, BlockNr(0), 1000)).unwrap().len);
    }
    allocator.release_space(space.available + root);
    let left = space.free - taken - placed;
    assert_eq!((allocator.free_blocks(), allocator.space().free), (left, left));
    while let Ok(run) = image.take(0, 1000) {
        taken += u64::from(run.len);
    }
    assert_eq!((taken + placed, allocator.free_blocks()), (space.free, 0));
}

fn make_file(image: &Image, h: &mut Handle<'_>, parent: InodeNr, is_dir: bool) -> Result<InodeNr> {
    let nr = image.allocator.allocate_inode(h, parent, is_dir)?;
    let mut raw = RawInode { mode: 0o100_644, links: 1, generation: 5, ..RawInode::default() };
    raw.extra_isize = image.geometry.want_extra_isize;
    map::init(&image.geometry, &mut raw);
    inode_table::create(h, &image.geometry, nr, &raw)?;
    Ok(nr)
}

/// Fills never-used parts of inode tables with garbage, as a device that was not zeroed has it.
fn spoil_tables(image: &Image) {
    for group in (0..image.geometry.group_count).map(GroupNr) {
        let descriptor = groups::read(&image.cache, &image.geometry, group).unwrap();
        let used = image.geometry.inodes_per_group - descriptor.itable_unused;
        let from = used.div_ceil(image.geometry.inodes_per_block());
        let bytes = image.geometry.block_bytes;
        for block in from..image.geometry.inode_table_blocks() {
            let at = descriptor.inode_table.plus(u64::from(block)).0 * u64::from(bytes);
            image.device.write_at(at, &vec![0xa5; bytes as usize]).unwrap();
        }
    }
}

#[test]
fn lazily_initialised_groups_are_made_on_first_use() {
    let lazy = "-E lazy_itable_init=1,nodiscard -N 4096";
    let features = [
        "-t ext4 -b 1024",
        "-t ext4 -b 1024 -O ^metadata_csum,uninit_bg",
        "-t ext4 -b 1024 -O ^64bit",
        "-t ext4 -b 1024 -O ^flex_bg",
        "-t ext4 -b 1024 -O ^resize_inode,meta_bg",
        "-t ext4 -b 4096 -g 2048",
    ];
    for options in features {
        let Some(image) = Image::make(&format!("{options} {lazy}"), "64M") else { return };
        spoil_tables(&image);
        // Inodes in every group, the last number of each among them, and blocks in every group.
        let mut files = Vec::new();
        while image.allocator.free_inodes() > 0 {
            let count = image.allocator.free_inodes().min(20);
            let make =
                |h: &mut Handle<'_>| (0..count).map(|_| make_file(&image, h, InodeNr::ROOT, false)).collect();
            let more: Result<Vec<InodeNr>> = image.update(make);
            files.extend(more.unwrap());
        }
        let runs = take_all(&image);
        assert_eq!(image.allocator.free_blocks(), 0);
        image.commit();
        // All of it can be found again, and given back.
        for chunk in files.chunks(50) {
            image
                .update(|h| {
                    for nr in chunk {
                        let mut raw = inode_table::read(h, &image.geometry, *nr)?;
                        (raw.links, raw.mode) = (0, 0);
                        inode_table::clear(h, &image.geometry, *nr, &raw, 1_700_000_000)?;
                        image.allocator.free_inode(h, *nr, false)?;
                    }
                    Ok(())
                })
                .unwrap();
        }
        for run in runs {
            image.give(run).unwrap();
        }
        image.check();
    }
}

#[test]
fn directories_spread_and_files_stay_beside_theirs() {
    let Some(image) = Image::make("-t ext4 -b 1024 -G 4", "256M") else { return };
    let flex = |nr: InodeNr| image.geometry.group_of_inode(nr).0 .0 / 4;
    let mut groups = std::collections::BTreeSet::new();
    for _ in 0..8 {
        let dir = image.update(|h| make_file(&image, h, InodeNr::ROOT, true)).unwrap();
        groups.insert(flex(dir));
        let child = image.update(|h| make_file(&image, h, dir, true)).unwrap();
        let file = image.update(|h| make_file(&image, h, child, false)).unwrap();
        assert_eq!((flex(child), flex(file)), (flex(dir), flex(dir)));
    }
    assert!(groups.len() >= 7, "8 directories in {groups:?}");
}

#[test]
fn a_held_inode_number_is_not_used_again() {
    let Some(image) = Image::make("-t ext4 -b 1024", "4M") else { return };
    let new = || image.update(|h| make_file(&image, h, InodeNr::ROOT, false)).unwrap();
    let nr = new();
    image.allocator.hold_inode(nr);
    image.update(|h| image.allocator.free_inode(h, nr, false)).unwrap();
    assert!(new() > nr);
    image.allocator.release_inode(nr);
    assert_eq!(new(), nr);
    let again = image.update(|h| {
        image.allocator.free_inode(h, nr, false)?;
        image.allocator.free_inode(h, nr, false)
    });
    assert_eq!(again.unwrap_err().errno(), libc::EUCLEAN);
    for wrong in [InodeNr(0), InodeNr(3), InodeNr(u32::MAX)] {
        assert!(image.update(|h| image.allocator.free_inode(h, wrong, false)).is_err());
    }
}

#[test]
fn trimming_sees_each_free_block_once_and_leaves_the_rest_alone() {
    let Some(image) = Image::make("-t ext4 -b 1024", "32M") else { return };
    let reserved = image.update(|h| image.allocator.reserve(h, BlockNr(12_000), 100)).unwrap();
    let end = image.geometry.blocks_count;
    let (mut at, mut trimmed) = (0, 0);
    while at < end {
        let rest = range(at, (end - at) as u32);
        let Some(run) = image.update(|h| image.allocator.trim_next(h, rest, 1)).unwrap() else { break };
        assert!(run.end() <= reserved.start || run.start >= reserved.end());
        // Nothing is allocated there meanwhile.
        if run.len > 0 {
            let taken = image.take(run.start.0, 1).unwrap();
            assert!(!run.contains(taken.start));
            image.give(taken).unwrap();
            image.commit();
        }
        image.allocator.trimmed(run);
        trimmed += u64::from(run.len);
        at = run.end().0;
    }
    assert_eq!(trimmed, image.allocator.free_blocks() - u64::from(reserved.len));
}

#[test]
fn hostile_descriptors_and_bitmaps_are_refused() {
    let options = "-t ext4 -b 1024 -O ^metadata_csum,^uninit_bg";
    let Some(image) = Image::make(options, "32M") else { return };
    // A bitmap that calls the file system's own blocks free.
    let bitmap = groups::read(&image.cache, &image.geometry, GroupNr(1)).unwrap().block_bitmap;
    image.device.write_at(bitmap.0 * 1024, &[0; 1024]).unwrap();
    let fresh = Image::open(image.device.clone()).unwrap();
    assert_eq!(fresh.take(9000, 1).unwrap_err().errno(), libc::EUCLEAN);
    // The group is left alone from then on.
    assert!(fresh.geometry.group_of(fresh.take(9000, 1).unwrap().start) != GroupNr(1));
    // Two groups that share an inode table.
    let table = groups::read(&fresh.cache, &fresh.geometry, GroupNr(1)).unwrap().inode_table;
    fresh.update(|h| groups::modify(h, &fresh.geometry, GroupNr(2), |d| d.inode_table = table)).unwrap();
    fresh.commit();
    assert!(Image::open(image.device.clone()).is_err_and(|error| error.errno() == libc::EUCLEAN));
}

#[test]
fn a_large_file_system_opens_at_once() {
    let Some(image) = Image::make("-t ext4 -b 4096 -E lazy_itable_init=1 -i 1048576", "8T") else { return };
    let start = std::time::Instant::now();
    let again = Image::open(image.device.clone()).unwrap();
    let run = again.take(again.geometry.blocks_count - 100, 64).unwrap();
    assert!(run.start.0 >= again.geometry.blocks_count - 100);
    assert!(start.elapsed().as_secs() < 60, "{:?}", start.elapsed());
    let file = again.update(|h| make_file(&again, h, InodeNr::ROOT, true)).unwrap();
    let mut raw = again.raw(file);
    again
        .update(|h| {
            let goal = map::goal(&again.geometry, h, file, &raw, FileBlock(0))?;
            let range = again.allocator.allocate(h, goal, 1)?;
            map::insert(&again.allocator, h, file, &mut raw, FileBlock(0), range, false)
        })
        .unwrap();
}
