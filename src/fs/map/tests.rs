//! Maps against a model of one, on images that mke2fs made, judged by e2fsck.

use super::*;
use crate::device::Device;
use crate::fs::testing::{Image, FILE};
use proptest::prelude::*;
use std::collections::BTreeMap;

const EXTENTS_1K: &str = "-t ext4 -b 1024 -I 256";
const EXTENTS_4K: &str = "-t ext4 -b 4096";
const INDIRECT_1K: &str = "-t ext3 -b 1024 -I 128";
const INDIRECT_4K: &str = "-t ext3 -b 4096";

/// A file's blocks as they should be: file block -> (device block, unwritten).
type Model = BTreeMap<u32, (u64, bool)>;

struct Subject {
    image: Image,
    model: Model,
}

impl Subject {
    fn make(options: &str, size: &str) -> Option<Self> {
        Some(Self { image: Image::with_file(options, size)?, model: Model::new() })
    }

    fn lookup(&self, block: u32, len_max: u32) -> Mapping {
        let image = &self.image;
        lookup(&image.geometry, &image.cache, FILE, &image.raw(FILE), FileBlock(block), len_max).unwrap()
    }

    /// Maps every hole in `blocks`.
    fn fill(&mut self, blocks: Range<u32>, unwritten: bool) -> Result<()> {
        let mut at = blocks.start;
        while at < blocks.end {
            let found = self.lookup(at, blocks.end - at);
            if found.physical.is_none() {
                let image = &self.image;
                let range = image.change(FILE, |h, raw| {
                    let credits = insert_credits(&image.geometry, raw, found.len, 1);
                    let goal = goal(&image.geometry, h, FILE, raw, FileBlock(at))?;
                    let range = image.allocator.allocate(h, goal, found.len)?;
                    insert(&image.allocator, h, FILE, raw, FileBlock(at), range, unwritten)?;
                    assert!(h.blocks_changed() <= credits, "{} > {credits}", h.blocks_changed());
                    Ok(range)
                })?;
                for (i, nr) in range.iter().enumerate() {
                    self.model.insert(at + i as u32, (nr.0, unwritten));
                }
                at += range.len;
            } else {
                at += found.len;
            }
        }
        Ok(())
    }

    fn punch(&mut self, blocks: Range<u64>, budget: u32) -> Result<u32> {
        let mut rest = Some(blocks.clone());
        let mut rounds = 0;
        while let Some(range) = rest {
            let image = &self.image;
            let step = |h: &mut Handle<'_>, raw: &mut RawInode| {
                let done = remove(&image.allocator, h, FILE, raw, range.clone(), budget)?;
                assert!(h.blocks_changed() <= remove_credits(budget), "{} for {budget}", h.blocks_changed());
                Ok(done)
            };
            let done = image.change(FILE, step)?;
            assert!(done.rest.as_ref().is_none_or(|rest| rest.end < range.end), "no progress");
            rest = done.rest;
            rounds += 1;
        }
        self.model.retain(|block, _| !blocks.contains(&u64::from(*block)));
        Ok(rounds)
    }

    fn set_state(&mut self, blocks: Range<u64>, unwritten: bool) {
        let allocator = &self.image.allocator;
        self.image
            .change(FILE, |h, raw| {
                let count = (blocks.end - blocks.start) as u32;
                let credits = insert_credits(allocator.geometry(), raw, count, count);
                let set = if unwritten { set_unwritten } else { set_written };
                set(allocator, h, FILE, raw, blocks.clone())?;
                assert!(h.blocks_changed() <= credits, "{} > {credits}", h.blocks_changed());
                Ok(())
            })
            .unwrap();
        for (block, state) in &mut self.model {
            if blocks.contains(&u64::from(*block)) {
                state.1 = unwritten;
            }
        }
    }

    /// Compares every lookup with the model, in runs and singly.
    fn compare(&self) {
        let limit = self.model.keys().next_back().map_or(10, |last| last.saturating_add(10));
        let mut at = 0;
        while at < limit {
            let found = self.lookup(at, limit - at);
            if found.physical.is_none() {
                let mapped = self.model.range(at..at + found.len.min(limit - at)).next();
                assert_eq!(mapped, None, "a hole of {} at file block {at}", found.len);
                at += found.len;
                continue;
            }
            for i in 0..found.len.min(limit - at) {
                let expected = self.model.get(&(at + i)).copied();
                let mapped = found.physical.map(|nr| (nr.0 + u64::from(i), found.unwritten));
                assert_eq!(mapped, expected, "file block {}", at + i);
            }
            at += found.len;
        }
        for (block, (nr, unwritten)) in self.model.iter().step_by(7) {
            let expected = Mapping { physical: Some(BlockNr(*nr)), len: 1, unwritten: *unwritten };
            assert_eq!(self.lookup(*block, 1), expected);
        }
    }

    fn check(&self) {
        self.compare();
        self.image.fit_size(FILE);
        self.image.check();
    }

    fn depth(&self) -> u16 {
        u16::from_le_bytes([self.image.raw(FILE).block[6], self.image.raw(FILE).block[7]])
    }
}

#[derive(Clone, Debug)]
enum Step {
    Fill(u32, u32, bool),
    Punch(u32, u32, u32),
    State(u32, u32, bool),
    Commit,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // Few distinct starts, near the places where the indirect map changes level, so that steps meet.
    let start = prop_oneof![0u32..40, 250u32..290, 65_790u32..65_830];
    let step = prop_oneof![
        4 => (start.clone(), 1u32..30, any::<bool>()).prop_map(|(s, n, u)| Step::Fill(s, n, u)),
        3 => (start.clone(), 1u32..60, 1u32..20).prop_map(|(s, n, b)| Step::Punch(s, n, b)),
        2 => (start, 1u32..30, any::<bool>()).prop_map(|(s, n, u)| Step::State(s, n, u)),
        1 => Just(Step::Commit),
    ];
    prop::collection::vec(step, 1..60)
}

fn run_steps(options: &str, steps: Vec<Step>) {
    let Some(mut subject) = Subject::make(options, "8M") else { return };
    let free = subject.image.allocator.free_blocks();
    let extents = subject.image.raw(FILE).has_extents();
    for (i, step) in steps.into_iter().enumerate() {
        match step {
            Step::Fill(start, len, unwritten) => {
                subject.fill(start..start + len, unwritten && extents).unwrap();
            }
            Step::Punch(start, len, budget) => {
                subject.punch(u64::from(start)..u64::from(start + len), budget).unwrap();
            }
            Step::State(start, len, unwritten) => {
                subject.set_state(u64::from(start)..u64::from(start + len), unwritten && extents);
            }
            Step::Commit => subject.image.commit(),
        }
        if i % 8 == 0 {
            subject.compare();
        }
    }
    subject.check();
    subject.punch(0..1 << 32, 50).unwrap();
    assert_eq!(subject.image.allocator.free_blocks(), free);
    assert_eq!(subject.image.raw(FILE).blocks, 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn extents_behave_like_the_model(steps in steps(), small: bool) {
        run_steps(if small { EXTENTS_1K } else { EXTENTS_4K }, steps);
    }

    #[test]
    fn indirect_blocks_behave_like_the_model(steps in steps(), small: bool) {
        run_steps(if small { INDIRECT_1K } else { INDIRECT_4K }, steps);
    }
}

#[test]
fn trees_grow_deep_and_shrink_again() {
    let Some(mut subject) = Subject::make(EXTENTS_1K, "64M") else { return };
    let free = subject.image.allocator.free_blocks();
    // Every second block, in an order that splits nodes at the end, at the start and in the middle.
    let count = 30_000;
    let pool = subject.image.take(0, 8000).unwrap();
    subject.image.give(pool).unwrap();
    subject.image.commit();
    let mut order: Vec<u32> = (0..count / 3).collect();
    order.extend((count / 3..2 * count / 3).rev());
    let (a, b) = (2 * count / 3, count);
    order.extend((a..b).step_by(2).chain((a + 1..b).step_by(2)));
    let image = &subject.image;
    for chunk in order.chunks(250) {
        let added = image
            .change(FILE, |h, raw| {
                let mut added = Vec::new();
                let credits = insert_credits(&image.geometry, raw, 250, 250);
                for n in chunk {
                    let nr = image.allocator.allocate(h, BlockNr(1), 1)?;
                    insert(&image.allocator, h, FILE, raw, FileBlock(2 * n), nr, false)?;
                    added.push((2 * n, (nr.start.0, false)));
                }
                assert!(h.blocks_changed() <= credits, "{} > {credits}", h.blocks_changed());
                Ok(added)
            })
            .unwrap();
        subject.model.extend(added);
    }
    assert!(subject.depth() >= 3, "depth {}", subject.depth());
    subject.check();
    // The hole between two extents that touch nothing else is found from any depth.
    assert_eq!(subject.lookup(2 * count - 1, 50).len, 50);
    let whole = subject.punch(1000..2 * u64::from(count) - 1000, 40).unwrap();
    assert!(whole > 10, "the budget was not kept: {whole} rounds");
    subject.check();
    subject.punch(0..1 << 32, 1000).unwrap();
    assert_eq!((subject.depth(), subject.image.allocator.free_blocks()), (0, free));
    subject.check();
}

#[test]
fn holes_and_data_are_found_up_to_the_limit_of_the_format() {
    for (options, last) in [(EXTENTS_4K, u32::MAX - 1), (INDIRECT_4K, 1_000_000), (INDIRECT_1K, 16_000_000)] {
        let Some(mut subject) = Subject::make(options, "16M") else { return };
        subject.fill(5..8, false).unwrap();
        subject.fill(last..last + 1, false).unwrap();
        let image = &subject.image;
        let raw = image.raw(FILE);
        let end = u64::from(last) + 1;
        let data = |from| next_data(&image.geometry, &image.cache, FILE, &raw, from..end).unwrap();
        let hole = |from| next_hole(&image.geometry, &image.cache, FILE, &raw, from..end).unwrap();
        assert_eq!((data(0), data(6), data(8)), (Some(5), Some(6), Some(u64::from(last))));
        assert_eq!((hole(0), hole(5), hole(u64::from(last))), (Some(0), Some(8), None));
        subject.check();
    }
    let Some(mut subject) = Subject::make(EXTENTS_4K, "8M") else { return };
    subject.fill(0..1, false).unwrap();
    let image = &subject.image;
    let beyond = image.change(FILE, |h, raw| {
        let range = image.allocator.allocate(h, BlockNr(0), 1)?;
        insert(&image.allocator, h, FILE, raw, FileBlock(u32::MAX), range, false)
    });
    assert!(beyond.unwrap_err().is(libc::EFBIG));
}

#[test]
fn long_extents_keep_the_format_s_lengths() {
    let Some(mut subject) = Subject::make("-t ext4 -b 1024 -O ^resize_inode,flex_bg -G 64", "160M") else {
        return;
    };
    // Two runs longer than a written extent can be, told as one range each.
    subject.fill(0..70_000, false).unwrap();
    subject.set_state(0..70_000, true);
    subject.check();
    subject.set_state(100..69_900, false);
    subject.check();
    subject.punch(0..1 << 32, 100).unwrap();
    subject.check();
}

#[test]
fn a_punch_that_needs_a_node_and_finds_no_space_changes_nothing() {
    let Some(mut subject) = Subject::make(EXTENTS_1K, "2M") else { return };
    // Four extents fill the root; a hole in one of them needs a fifth entry.
    for start in [0, 100, 200, 300] {
        subject.fill(start..start + 9, false).unwrap();
    }
    while subject.image.take(0, 4000).is_ok() {}
    let before = subject.image.raw(FILE);
    let step = |h: &mut Handle<'_>, raw: &mut RawInode| {
        // Freed only in this handle, so not for its own use (J9).
        remove(&subject.image.allocator, h, FILE, raw, 104..105, 100)
    };
    assert!(subject.image.change(FILE, step).unwrap_err().is(libc::ENOSPC));
    assert_eq!(subject.image.raw(FILE).block, before.block);
    subject.compare();
    assert_eq!(subject.image.allocator.pending_frees(), 0);
}

#[test]
fn a_mapped_block_is_not_mapped_again() {
    for options in [EXTENTS_1K, INDIRECT_1K] {
        let Some(mut subject) = Subject::make(options, "2M") else { return };
        subject.fill(3..20, false).unwrap();
        let image = &subject.image;
        for at in [3, 19, 0] {
            let again = image.change(FILE, |h, raw| {
                let range = image.allocator.allocate(h, BlockNr(0), 10)?;
                insert(&image.allocator, h, FILE, raw, FileBlock(at), range, false)
            });
            assert_eq!(again.unwrap_err().errno(), libc::EUCLEAN, "{options} {at}");
        }
        // The file system's own blocks are nobody's.
        let own = BlockRange::new(BlockNr(1), 1);
        let stolen =
            image.change(FILE, |h, raw| insert(&image.allocator, h, FILE, raw, FileBlock(50), own, false));
        assert_eq!(stolen.unwrap_err().errno(), libc::EUCLEAN);
        subject.check();
    }
}

/// Any damage to a map's own blocks is an error or another map, never a panic or an endless loop.
#[test]
fn damaged_maps_are_survived() {
    for options in ["-t ext4 -b 1024 -O ^metadata_csum", INDIRECT_1K, EXTENTS_1K] {
        let Some(mut subject) = Subject::make(options, "4M") else { return };
        for n in 0..400 {
            subject.fill(3 * n..3 * n + 1, false).unwrap();
        }
        subject.image.commit();
        let raw = subject.image.raw(FILE);
        let slot = if raw.has_extents() { 16 } else { 48 };
        let node = u32::from_le_bytes(raw.block[slot..slot + 4].try_into().unwrap());
        let mut clean = [0; 1024];
        subject.image.device.read_at(u64::from(node) * 1024, &mut clean).unwrap();
        for seed in 0..150_u32 {
            let mut bytes = clean;
            for i in 0..=seed % 3 {
                let random = seed.wrapping_add(i).wrapping_mul(2_654_435_761);
                let at = if seed % 2 == 0 { random >> 26 } else { random >> 22 };
                bytes[at as usize] = (random >> 8) as u8;
            }
            subject.image.device.write_at(u64::from(node) * 1024, &bytes).unwrap();
            let image = Image::open(subject.image.device.clone()).unwrap();
            let raw = image.raw(FILE);
            let _ = next_data(&image.geometry, &image.cache, FILE, &raw, 0..1 << 32);
            let removed = image.change(FILE, |h, raw| remove(&image.allocator, h, FILE, raw, 1..1 << 32, 3));
            let changed = bytes != clean;
            if changed && image.geometry.has_csum() {
                assert_eq!(removed.unwrap_err().errno(), libc::EUCLEAN);
            }
            let _ = image.change(FILE, |h, raw| {
                let range = image.allocator.allocate(h, BlockNr(0), 1)?;
                insert(&image.allocator, h, FILE, raw, FileBlock(1), range, false)
            });
        }
    }
}
