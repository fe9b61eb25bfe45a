//! Layouts as such: whatever is asked for, either a reason why not or tables that don't overlap, and nothing
//! that looks like a file system before all of it is there.

use journalfs::device::memory::MemoryDevice;
use journalfs::device::Device;
use journalfs::format::features::Feature;
use journalfs::format::{Compat, Incompat, RoCompat, Superblock};
use journalfs::units::GroupNr;
use mkfs::{FeatureEdit, JournalSize, Layout, Options, Profile};
use proptest::prelude::*;
use std::io;
use std::sync::atomic::{AtomicI64, Ordering};

fn assert_sound(layout: &Layout) {
    let g = &layout.geometry;
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for (group, descriptor) in (0..).map(GroupNr).zip(&layout.descriptors) {
        runs.push((g.group_first_block(group).0, g.base_meta_blocks(group) as u64));
        runs.push((descriptor.block_bitmap.0, 1));
        runs.push((descriptor.inode_bitmap.0, 1));
        runs.push((descriptor.inode_table.0, g.inode_table_blocks() as u64));
        let mut bytes = vec![0; g.desc_bytes as usize];
        descriptor.encode(&mut bytes, g, group).unwrap();
        journalfs::format::GroupDescriptor::decode(&bytes, g, group).unwrap();
    }
    runs.extend(layout.journal.iter().map(|piece| (piece.start.0, piece.len as u64)));
    runs.retain(|(_, len)| *len > 0);
    runs.sort_unstable();
    for pair in runs.windows(2) {
        assert!(pair[0].0 + pair[0].1 <= pair[1].0, "blocks {:?} and {:?} overlap", pair[0], pair[1]);
    }
    let (first, last) = (runs[0], runs[runs.len() - 1]);
    assert!(first.0 >= g.first_data_block.0 && last.0 + last.1 <= g.blocks_count);
    let free: u64 = layout.descriptors.iter().map(|descriptor| descriptor.free_blocks_count as u64).sum();
    assert_eq!(free, layout.superblock.free_blocks_count);
    let taken: u64 = runs.iter().map(|(_, len)| len).sum();
    assert!(free + taken <= g.blocks_count, "{free} free and {taken} taken of {}", g.blocks_count);
    Superblock::decode(&layout.superblock.encode()).unwrap();
}

fn feature() -> impl Strategy<Value = FeatureEdit> {
    let features = prop::sample::select(vec![
        Feature::Compat(Compat::HAS_JOURNAL),
        Feature::Compat(Compat::RESIZE_INODE),
        Feature::Compat(Compat::SPARSE_SUPER2),
        Feature::Compat(Compat::ORPHAN_FILE),
        Feature::Incompat(Incompat::EXTENT),
        Feature::Incompat(Incompat::BIT64),
        Feature::Incompat(Incompat::META_BG),
        Feature::Incompat(Incompat::FLEX_BG),
        Feature::Incompat(Incompat::MMP),
        Feature::RoCompat(RoCompat::SPARSE_SUPER),
        Feature::RoCompat(RoCompat::GDT_CSUM),
        Feature::RoCompat(RoCompat::METADATA_CSUM),
    ]);
    prop_oneof![
        1 => Just(FeatureEdit::Clear),
        30 => (features, any::<bool>()).prop_map(|(feature, on)| FeatureEdit::Set(feature, on)),
    ]
}

prop_compose! {
    fn options()(
        profile in prop::sample::select(vec![Profile::Journalfs, Profile::Ext3, Profile::Ext4]),
        block_bits in prop::option::of(10_u32..17),
        inode_bits in prop::option::of(7_u32..13),
        inodes in prop::option::weighted(0.3, 0_u64..3_000_000),
        ratio in prop::option::weighted(0.3, 500_u64..1_000_000),
        per_group in prop::option::weighted(0.3, (32_u32..4096).prop_map(|n| n * 8)),
        flex in prop::option::weighted(0.2, (0_u32..8).prop_map(|bits| 1 << bits)),
        journal in prop::option::weighted(0.3, 1_u32..500),
        resize in prop::option::weighted(0.1, 0_u64..1 << 33),
        packed in prop::bool::weighted(0.1),
        features in prop::collection::vec(feature(), 0..5),
    ) -> Options {
        Options {
            block_bytes: block_bits.map(|bits| 1 << bits),
            inode_bytes: inode_bits.map(|bits| 1 << bits),
            inodes,
            bytes_per_inode: ratio,
            blocks_per_group: per_group,
            groups_per_flex: flex,
            journal: journal.map_or(JournalSize::Auto, JournalSize::MiB),
            resize_blocks: resize,
            packed_meta_blocks: packed,
            features,
            ..Options::new(profile)
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_layout_is_sound_or_refused(options in options(), bits in 10_u32..33, odd in 0_u64..1_000_000) {
        if let Ok(layout) = mkfs::plan((1 << bits) + odd, &options) {
            assert_sound(&layout);
        }
    }
}

/// Fails after a number of writes, like a device that is unplugged.
struct Unplugged {
    inner: MemoryDevice,
    left: AtomicI64,
}

impl Unplugged {
    fn count(&self) -> io::Result<()> {
        match self.left.fetch_sub(1, Ordering::Relaxed) {
            left if left > 0 => Ok(()),
            _ => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

impl Device for Unplugged {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.count()?;
        self.inner.write_at(offset, buf)
    }
    fn flush(&self) -> io::Result<()> {
        self.count()
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.discard(offset, len)
    }
    fn read_only(&self) -> bool {
        false
    }
}

#[test]
fn an_interrupted_run_leaves_no_file_system() {
    let options = Options::default();
    let run = |left: i64, older: bool| {
        let device = Unplugged { inner: MemoryDevice::new(8 << 20), left: AtomicI64::new(i64::MAX) };
        if older {
            mkfs::format(&device, &options).unwrap();
        }
        device.left.store(left, Ordering::Relaxed);
        let result = mkfs::format(&device, &options);
        let mut bytes = [0; 1024];
        device.read_at(1024, &mut bytes).unwrap();
        (result.is_ok(), Superblock::decode(&bytes).is_ok(), left - device.left.load(Ordering::Relaxed))
    };
    let (made, found, steps) = run(1_000_000, false);
    assert!(made && found);
    for left in 1..steps {
        let (made, found, _) = run(left, true);
        assert!(!made, "{left} of {steps} steps");
        // The last step but the flush is the superblock.
        assert_eq!(found, left == steps - 1, "{left} of {steps} steps");
    }
}

#[test]
fn the_same_options_make_the_same_bytes() {
    let options = Options {
        uuid: Some([1; 16]),
        hash_seed: Some([2; 16]),
        now: Some(1_700_000_000),
        ..Options::default()
    };
    let image = || {
        let device = MemoryDevice::new(16 << 20);
        mkfs::format(&device, &options).unwrap();
        let mut bytes = vec![0; 16 << 20];
        device.read_at(0, &mut bytes).unwrap();
        bytes
    };
    assert!(image() == image());
}
