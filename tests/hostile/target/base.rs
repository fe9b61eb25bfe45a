//! The built-in images: small file systems of each format, with something of everything in them.

use super::{log, tree};
use journalfs::device::memory::MemoryDevice;
use journalfs::device::{Device, SharedDevice};
use journalfs::fs::options::MountOptions;
use journalfs::fs::Fs;
use std::sync::{Arc, LazyLock};

/// An image, and where a patch makes sense.
pub(crate) struct Base {
    pub(crate) device: MemoryDevice,
    pub(crate) block_bytes: u64,
    /// Blocks that are not all zero.
    pub(crate) blocks: Vec<u64>,
    /// The journal superblock's byte.
    pub(crate) journal_at: u64,
}

/// File systems at rest.
pub(crate) static CLEAN: LazyLock<Vec<Base>> =
    LazyLock::new(|| SHAPES.iter().map(|shape| Base::new(filled(shape), shape)).collect());

/// File systems whose journal is to be replayed.
pub(crate) static DIRTY: LazyLock<Vec<Base>> = LazyLock::new(|| {
    let of = |(shape, clean): (&Shape, &Base)| {
        log::dirty(&clean.device, shape.fs_bytes())
            .into_iter()
            .map(|device| Base::new(device, shape))
            .collect::<Vec<_>>()
    };
    SHAPES.iter().zip(&*CLEAN).flat_map(of).collect()
});

/// How an image is made.
struct Shape {
    profile: mkfs::Profile,
    features: &'static str,
    block_bytes: u32,
    inode_bytes: u32,
    mib: u64,
    journal_mib: u32,
}

const SHAPES: [Shape; 5] = [
    Shape {
        profile: mkfs::Profile::Journalfs,
        features: "",
        block_bytes: 1024,
        inode_bytes: 256,
        mib: 5,
        journal_mib: 2,
    },
    Shape {
        profile: mkfs::Profile::Ext3,
        features: "",
        block_bytes: 1024,
        inode_bytes: 128,
        mib: 4,
        journal_mib: 1,
    },
    Shape {
        profile: mkfs::Profile::Ext4,
        features: "^metadata_csum,uninit_bg,^64bit,^orphan_file,meta_bg,^resize_inode",
        block_bytes: 1024,
        inode_bytes: 256,
        mib: 5,
        journal_mib: 2,
    },
    Shape {
        profile: mkfs::Profile::Ext4,
        features: "orphan_file,large_dir,metadata_csum_seed,ea_inode,sparse_super2",
        block_bytes: 2048,
        inode_bytes: 512,
        mib: 8,
        journal_mib: 3,
    },
    Shape {
        profile: mkfs::Profile::Journalfs,
        features: "",
        block_bytes: 4096,
        inode_bytes: 256,
        mib: 12,
        journal_mib: 5,
    },
];

/// The device is larger than the file system on it, so that a superblock may claim more.
const DEVICE_BYTES: u64 = 64 << 20;

impl Shape {
    fn options(&self) -> mkfs::Options {
        let mut options = mkfs::Options::new(self.profile);
        options.block_bytes = Some(self.block_bytes);
        options.inode_bytes = Some(self.inode_bytes);
        options.size_bytes = Some(self.mib << 20);
        options.inodes = Some(256);
        // Several groups even in so small an image.
        options.blocks_per_group = Some(2048);
        options.journal = mkfs::JournalSize::MiB(self.journal_mib);
        options.features = mkfs::options::parse_features(self.features).unwrap();
        (options.uuid, options.hash_seed, options.now) = (Some([0x5a; 16]), Some([0xa5; 16]), Some(1 << 30));
        options.prezeroed = true;
        options
    }

    fn fs_bytes(&self) -> u64 {
        self.mib << 20
    }

    fn journal_at(&self) -> u64 {
        let layout = mkfs::plan(DEVICE_BYTES, &self.options()).unwrap();
        layout.journal[0].start.0 * u64::from(self.block_bytes)
    }
}

/// A new file system with the tree in it, at rest.
fn filled(shape: &Shape) -> MemoryDevice {
    let device = Arc::new(MemoryDevice::new(DEVICE_BYTES));
    mkfs::format(&*device, &shape.options()).unwrap();
    let fs = mount(device.clone());
    tree::fill(&fs);
    fs.unmount().unwrap();
    MemoryDevice::clone(&device)
}

/// Mounts as the images are made.
pub(crate) fn mount(device: SharedDevice) -> Arc<Fs> {
    let mut options = MountOptions::default();
    options.tuning.cache_size = Some(16 << 20);
    Fs::mount(device, &options).unwrap()
}

impl Base {
    fn new(device: MemoryDevice, shape: &Shape) -> Self {
        let (block_bytes, fs_bytes) = (u64::from(shape.block_bytes), shape.fs_bytes());
        let mut block = vec![0; block_bytes as usize];
        let blocks = (0..fs_bytes / block_bytes)
            .filter(|nr| {
                device.read_at(nr * block_bytes, &mut block).unwrap();
                block.iter().any(|byte| *byte != 0)
            })
            .collect();
        Self { device, block_bytes, blocks, journal_at: shape.journal_at() }
    }
}
