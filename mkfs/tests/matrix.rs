//! Every kind of file system that mkfs.journalfs makes, judged by e2fsck, dumpe2fs, the kernel and mke2fs.

mod common;

use common::{dumpe2fs, have_e2fsprogs, mke2fs, Image};

fn fs_type(options: &str) -> &'static str {
    if options.contains("-t ext3") {
        "ext3"
    } else {
        "ext4"
    }
}

/// Makes and judges one file system. ext3's driver wants a journal: without one ext4's takes the image.
fn judge(options: &str, size: &str) {
    let image = Image::new();
    let output = image.make(options, size);
    let what = format!("{options} {size}");
    image.check(&what);
    let has_journal = dumpe2fs(&image.path).contains("has_journal");
    let says_so = String::from_utf8_lossy(&output.stderr).contains("too few for a journal");
    assert_eq!(says_so, !has_journal && !options.contains("^has_journal"), "{what}");
    image.mount_and_use(if has_journal { fs_type(options) } else { "ext4" }, &what);
}

fn judge_sizes(profile: &str) {
    if !have_e2fsprogs() {
        return;
    }
    for block in [1024, 2048, 4096] {
        for inode in [128, 256] {
            for size in ["2M", "9M", "64M", "700M"] {
                judge(&format!("-t {profile} -b {block} -I {inode}"), size);
            }
        }
    }
}

#[test]
fn journalfs_of_all_sizes() {
    judge_sizes("journalfs");
}

#[test]
fn ext3_of_all_sizes() {
    judge_sizes("ext3");
}

#[test]
fn ext4_of_all_sizes() {
    judge_sizes("ext4");
}

#[test]
fn journals_that_do_not_fit() {
    for (options, size, has) in [("-b 1024", "2M", true), ("-b 2048", "2M", false), ("-b 4096", "2M", false)]
    {
        let image = Image::new();
        let output = image.make(options, size);
        assert_eq!(String::from_utf8_lossy(&output.stderr).contains("journal"), !has, "{options}");
    }
    Image::new().refuse("-J size=1", "64M", "1024");
    Image::new().refuse("-J size=60", "64M", "too small for a journal");
}

/// Option sets whose superblock must be exactly mke2fs's, counters included.
const AS_MKE2FS: &[(&str, &str)] = &[
    ("-t ext3", "2M"),
    ("-t ext3", "100M"),
    ("-t ext3 -b 1024 -I 128", "600M"),
    ("-t ext3 -O ^dir_index,^filetype,^ext_attr", "600M"),
    ("-t ext3 -O ^sparse_super,^resize_inode -b 1024", "600M"),
    ("-t ext3 -O none", "300M"),
    ("-t ext3 -b 1024 -J size=64", "2G"),
    ("-t ext4", "2M"),
    ("-t ext4", "100M"),
    ("-t ext4", "5G"),
    ("-t ext4 -I 128", "600M"),
    ("-t ext4 -b 2048 -m 1 -i 8192", "600M"),
    ("-t ext4 -b 1024 -i 1024", "600M"),
    ("-t ext4 -N 20", "600M"),
    ("-t ext4 -N 500000 -m 0", "600M"),
    ("-t ext4 -b 1024 -J size=1024", "5G"),
    ("-t ext4 -G 64 -i 1048576", "5G"),
    ("-t ext4 -O meta_bg,^resize_inode -b 1024", "300M"),
    ("-t ext4 -O meta_bg,^resize_inode,^flex_bg -b 1024", "300M"),
    ("-t ext4 -O sparse_super2", "64M"),
    ("-t ext4 -O sparse_super2 -b 1024 -E num_backup_sb=1", "600M"),
    ("-t ext4 -O ^metadata_csum,uninit_bg", "600M"),
    ("-t ext4 -O ^metadata_csum,uninit_bg,^flex_bg -b 1024", "600M"),
    ("-t ext4 -O ^metadata_csum", "600M"),
    ("-t ext4 -O ^64bit", "600M"),
    ("-t ext4 -O ^64bit,^flex_bg -b 1024", "600M"),
    ("-t ext4 -O ^extent,^64bit", "600M"),
    ("-t ext4 -O mmp,orphan_file,fast_commit,large_dir,ea_inode,stable_inodes", "600M"),
    ("-t ext4 -O orphan_file,metadata_csum_seed -b 1024 -I 1024", "100M"),
    ("-t ext4 -O ^has_journal", "600M"),
    ("-t ext4 -E resize=10000000", "600M"),
    ("-t ext4 -E stride=16,stripe_width=64", "600M"),
    ("-t ext4 -E packed_meta_blocks=1", "5G"),
    ("-t ext4 -b 65536", "600M"),
    ("-t ext4 -b 16384 -I 4096", "100M"),
    ("-t ext4 -b 1024", "123457K"),
    ("-t ext4", "131100K"),
];

/// The lines of dumpe2fs that don't depend on time and chance.
fn facts(image: &Image) -> String {
    const CHANCE: &[&str] = &[
        "UUID",
        "Seed",
        "seed",
        "created",
        "Last ",
        "Lifetime",
        "Checksum:",
        "mmp_",
        "MMP_block",
        "MMP block",
    ];
    let shown = dumpe2fs(&image.path);
    let lasting = |line: &&str| !CHANCE.iter().any(|word| line.contains(word));
    shown.lines().filter(lasting).collect::<Vec<_>>().join("\n")
}

#[test]
fn superblocks_are_those_of_mke2fs() {
    if !have_e2fsprogs() {
        return;
    }
    for (options, size) in AS_MKE2FS {
        let (ours, theirs) = (Image::new(), Image::new());
        ours.make(options, size);
        ours.check(options);
        mke2fs(&theirs.path, options, size);
        assert_eq!(facts(&ours), facts(&theirs), "{options} {size}: ours is left, mke2fs's right");
    }
}

#[test]
fn features_are_mounted_by_the_kernel() {
    if !have_e2fsprogs() {
        return;
    }
    for options in [
        "-O meta_bg -b 1024 -g 256",
        "-O ^flex_bg -b 1024",
        "-O sparse_super2",
        "-O ^metadata_csum,uninit_bg",
        "-O ^metadata_csum,^64bit",
        "-O ^extent",
        "-O metadata_csum_seed,large_dir,ea_inode,inline_data,stable_inodes",
        "-O orphan_file",
        "-O mmp",
        "-O fast_commit",
        "-O ^resize_inode,^dir_index,^ext_attr,^huge_file,^large_file,^dir_nlink,^extra_isize",
        "-O ^has_journal",
        "-t ext3 -O ^sparse_super",
        "-t ext3 -b 1024 -N 300",
        "-E packed_meta_blocks=1",
        "-i 1024 -b 1024",
        "-I 1024",
    ] {
        judge(options, "200M");
    }
}

#[test]
fn sixteen_tebibytes_take_seconds() {
    if !have_e2fsprogs() {
        return;
    }
    // ext4 as the host has no file of that size; tmpfs has.
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let path = dir.path().join("image");
    let Ok(()) = std::fs::File::create(&path).and_then(|file| file.set_len(1 << 44)) else {
        println!("skipped: no file of 16 TiB can be made here");
        return;
    };
    let device = journalfs::device::file::FileDevice::open(&path, false, false).unwrap();
    let options = mkfs::Options { prezeroed: true, ..mkfs::Options::default() };
    let started = std::time::Instant::now();
    let layout = mkfs::format(&device, &options).unwrap();
    assert!(started.elapsed().as_secs() < 60, "it took {:?}", started.elapsed());
    assert_eq!(layout.superblock.blocks_count, 1 << 32);
    // Bitmaps of groups with tables or copies, and descriptors in all copies: nothing else was written.
    let used = std::os::unix::fs::MetadataExt::blocks(&path.metadata().unwrap()) * 512;
    assert!(used < 512 << 20, "{used} bytes were written");
    assert!(dumpe2fs(&path).contains("4294967296"));
}
