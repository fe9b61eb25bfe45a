//! Recovery against journals that others wrote, compared with e2fsck's replay, block by block.
//!
//! Needs e2fsprogs; the kernel's journals need root and loop devices. What is missing is said and skipped.

use journalfs::device::faulty::FaultyDevice;
use journalfs::device::file::FileDevice;
use journalfs::device::{Device, SharedDevice};
use journalfs::error::Result;
use journalfs::format::Superblock;
use journalfs::fs::fast_commit::replay_home;
use journalfs::journal::locate::{locate, Located};
use journalfs::journal::recovery::{recover, Recovered};
use journalfs::journal::replay::finish;
use journalfs::units::BlockNr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

fn run(program: &str, args: &[&str]) -> Output {
    Command::new(program).args(args).output().unwrap_or_else(|e| panic!("{program}: {e}"))
}

fn must(program: &str, args: &[&str]) -> String {
    let output = run(program, args);
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{program} {args:?}: {}\n{text}", output.status);
    text
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn copy(from: &Path, to: &Path) {
    must("cp", &["--sparse=always", text(from), text(to)]);
}

fn superblock(device: &dyn Device) -> Superblock {
    let mut bytes = [0; 1024];
    device.read_at(1024, &mut bytes).unwrap();
    Superblock::decode(&bytes).unwrap()
}

/// Replays the image's journal with our code.
fn replay(image: &Path) -> Result<(Located, Recovered)> {
    let device: SharedDevice = Arc::new(FileDevice::open(image, false, false).unwrap());
    let mut located = locate(&*device, &superblock(&*device))?.expect("a journal");
    let recovered = recover(&*device, &located.area, &located.superblock)?;
    replay_home(&recovered, &device, &located)?;
    finish(&recovered, &*device, &located.area, &mut located.superblock)?;
    Ok((located, recovered))
}

fn block(device: &dyn Device, block_bytes: u32, nr: u64) -> Vec<u8> {
    let mut bytes = vec![0; block_bytes as usize];
    device.read_at(nr * block_bytes as u64, &mut bytes).unwrap();
    bytes
}

/// Replays one copy of the image with e2fsck and one with ours: every block must be the same but the
/// superblocks, which each writes its own way. Returns how many blocks the log had.
fn same_as_e2fsck(image: &Path, dir: &Path) -> usize {
    let (ours, theirs) = (dir.join("ours.img"), dir.join("theirs.img"));
    copy(image, &ours);
    copy(image, &theirs);
    let (located, recovered) = replay(&ours).unwrap();
    run("e2fsck", &["-y", "-E", "journal_only", text(&theirs)]);
    let ours_device = FileDevice::open(&ours, true, false).unwrap();
    let theirs_device = FileDevice::open(&theirs, true, false).unwrap();
    let sb = superblock(&ours_device);
    let own = [located.area.physical(0).unwrap().0, 1024 / sb.block_bytes() as u64];
    for nr in (0..sb.blocks_count).filter(|nr| !own.contains(nr)) {
        let (a, b) = (block(&ours_device, sb.block_bytes(), nr), block(&theirs_device, sb.block_bytes(), nr));
        assert!(
            a == b,
            "{}: block {nr} differs (in the log: {:?})",
            image.display(),
            recovered.blocks.get(&BlockNr(nr))
        );
    }
    let theirs_sb = superblock(&theirs_device);
    assert_eq!(sb.free_blocks_count, theirs_sb.free_blocks_count);
    assert!(!sb.features.names().contains(&"needs_recovery".to_string()));
    recovered.blocks.len()
}

fn corpus() -> Option<PathBuf> {
    let path = std::env::var_os("JOURNALFS_CORPUS")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/corpus"), PathBuf::from);
    if path.join("images").is_dir() {
        return Some(path.join("images"));
    }
    println!("skipped: no corpus");
    None
}

fn unpack(corpus: &Path, name: &str, dir: &Path) -> PathBuf {
    let image = dir.join(name);
    let bytes = run("gunzip", &["-c", text(&corpus.join(format!("{name}.img.gz")))]).stdout;
    std::fs::write(&image, bytes).unwrap();
    image
}

#[test]
fn journals_of_the_corpus() {
    let Some(corpus) = corpus() else { return };
    let dir = tempfile::tempdir().unwrap();
    // Logs that can be replayed, though some end in garbage.
    for name in ["f_jnl_32bit", "j_corrupt_commit_tid", "j_corrupt_revoke_csum"] {
        same_as_e2fsck(&unpack(&corpus, name, dir.path()), dir.path());
    }
    // Damaged ones are refused by what is wrong with them, and nothing is written.
    for (name, why) in [
        ("j_corrupt_journal_block", "the copy of block 1090 has a wrong checksum"),
        ("j_corrupt_revoke_rcount", "corrupt revoke block at log block 1"),
        ("j_corrupt_sb_magic", "corrupt journal superblock"),
    ] {
        let image = unpack(&corpus, name, dir.path());
        let before = std::fs::read(&image).unwrap();
        let error = replay(&image).unwrap_err().to_string();
        assert!(error.contains(why), "{name}: {error}");
        assert!(std::fs::read(&image).unwrap() == before, "{name} was changed");
    }
}

/// A mounted image; unmounted when dropped, whatever the test did.
struct Mount<'a>(&'a Path);

impl<'a> Mount<'a> {
    /// `None` where the kernel won't (no root, no loop devices, no such option).
    fn new(image: &Path, options: &str, at: &'a Path) -> Option<Self> {
        std::fs::create_dir_all(at).unwrap();
        let options = format!("loop,{options}");
        let output = run("mount", &["-o", &options, text(image), text(at)]);
        output.status.success().then_some(Self(at))
    }
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        run("umount", &[text(self.0)]);
    }
}

/// Work that logs, frees, reuses and revokes metadata blocks.
fn churn(dir: &Path) {
    for round in 0..6 {
        for n in 0..40 {
            let sub = dir.join(format!("d{n}"));
            std::fs::create_dir_all(&sub).unwrap();
            for file in 0..8 {
                std::fs::write(sub.join(format!("file-{round}-{file}")), vec![n as u8; 3000 * file]).unwrap();
            }
        }
        must("sync", &["-f", text(dir)]);
        for n in (round % 2..40).step_by(2) {
            std::fs::remove_dir_all(dir.join(format!("d{n}"))).unwrap();
        }
        std::fs::File::open(dir).unwrap().sync_all().unwrap();
    }
    // A file that begins with the journal's magic, for data=journal.
    let magic = [&0xc03b_3998_u32.to_be_bytes()[..], &[1; 5000]].concat();
    std::fs::write(dir.join("magic"), magic).unwrap();
    must("sync", &["-f", text(dir)]);
}

#[test]
fn journals_that_the_kernel_left_dirty() {
    let dir = tempfile::tempdir().unwrap();
    let mut done = 0;
    for (mkfs, options) in [
        (&["-t", "ext3", "-b", "1024"][..], "noatime"),
        (&["-t", "ext3", "-b", "4096"], "data=journal"),
        (&["-t", "ext4", "-b", "1024"], "noatime"),
        (&["-t", "ext4", "-O", "metadata_csum,64bit"], "data=journal"),
        (&["-t", "ext4", "-O", "^metadata_csum,64bit"], "journal_checksum,data=journal"),
        (&["-t", "ext4", "-O", "^metadata_csum,64bit"], "journal_async_commit,data=journal"),
        (&["-t", "ext4", "-O", "^metadata_csum,^64bit"], "journal_async_commit,data=writeback"),
    ] {
        let (image, dirty, at) = (dir.path().join("image"), dir.path().join("dirty"), dir.path().join("mnt"));
        must("truncate", &["-s", "96M", text(&image)]);
        // A small log, so that it wraps.
        must("mke2fs", &[&["-q", "-F", "-J", "size=4"], mkfs, &[text(&image)]].concat());
        let Some(mount) = Mount::new(&image, options, &at) else {
            println!("skipped: the kernel doesn't mount {mkfs:?} with {options}");
            continue;
        };
        churn(&at);
        copy(&image, &dirty);
        drop(mount);
        let blocks = same_as_e2fsck(&dirty, dir.path());
        println!("{mkfs:?} {options}: {blocks} blocks replayed");
        must("e2fsck", &["-fn", text(&dir.path().join("ours.img"))]);
        done += blocks;
        std::fs::remove_file(&image).unwrap();
    }
    assert!(done > 0 || !nix::unistd::Uid::effective().is_root(), "nothing was replayed");
}

#[test]
fn journals_that_debugfs_wrote() {
    let dir = tempfile::tempdir().unwrap();
    let (image, data) = (dir.path().join("image"), dir.path().join("data"));
    let magic = [&0xc03b_3998_u32.to_be_bytes()[..], &[7; 1020], &[9; 3072]].concat();
    std::fs::write(&data, &magic).unwrap();
    for (features, open) in [
        ("^metadata_csum,^64bit", "jo"),
        ("^metadata_csum,64bit", "jo"),
        ("^metadata_csum,^64bit", "jo -c"),
        ("^metadata_csum,64bit", "jo -c"),
        ("metadata_csum,^64bit", "jo -c -v 2"),
        ("metadata_csum,64bit", "jo -c -v 2"),
        ("metadata_csum,^64bit", "jo -c -v 3"),
        ("metadata_csum,64bit", "jo -c -v 3"),
    ] {
        must("truncate", &["-s", "64M", text(&image)]);
        must("mke2fs", &["-q", "-F", "-t", "ext4", "-b", "1024", "-O", features, text(&image)]);
        let script = dir.path().join("script");
        let write = format!("jw -b 50000,50001,50002,50003 {}\n", text(&data));
        let again = format!("jw -b 50001 {}\n", text(&data));
        // With checksum v1 debugfs gives a transaction of revokes alone a CRC that e2fsck finds wrong, too.
        let revoke = if open == "jo -c" { "" } else { "jw -r 50000,50002\n" };
        std::fs::write(&script, format!("{open}\n{write}{revoke}{again}jc\n")).unwrap();
        must("debugfs", &["-w", "-f", text(&script), text(&image)]);
        let blocks = same_as_e2fsck(&image, dir.path());
        assert_eq!(blocks, if revoke.is_empty() { 4 } else { 2 }, "{features} {open}");
    }
}

/// What a mounted tree is: kinds, modes, links, sizes, targets, times and contents. Not the links of directories, which
/// the kernel (6.18) gets wrong after a mkdir in a fast commit; e2fsck judges ours.
fn listing(image: &Path, at: &Path) -> Option<String> {
    let _mount = Mount::new(image, "noatime", at)?;
    let script = r#"cd "$1" && find . -path ./lost+found -prune -o \( -type d -printf '%P %y %m\n' \) -o -printf '%P %y %m %n %s %l %T@ %b\n' | sort && find . -type f -print0 | sort -z | xargs -0r sha256sum"#;
    Some(must("sh", &["-c", script, "sh", text(at)]))
}

/// Replays one copy with ours, twice (as after a crash in the middle), and lets the kernel mount another: the trees must be the same.
fn same_as_kernel(image: &Path, dir: &Path) -> Option<u32> {
    let (ours, theirs, at) = (dir.join("ours.img"), dir.join("theirs.img"), dir.join("mnt"));
    copy(image, &ours);
    copy(image, &theirs);
    let device: SharedDevice = Arc::new(FileDevice::open(&ours, false, false).unwrap());
    let located = locate(&*device, &superblock(&*device)).unwrap().expect("a journal");
    let recovered = recover(&*device, &located.area, &located.superblock).unwrap();
    replay_home(&recovered, &device, &located).unwrap();
    replay(&ours).unwrap();
    must("e2fsck", &["-fn", text(&ours)]);
    let records = recovered.fast_commit.map_or(0, |f| f.records);
    let (a, b) = (listing(&ours, &at)?, listing(&theirs, &at)?);
    assert!(a == b, "{}:\nours:\n{a}\nthe kernel's:\n{b}", image.display());
    Some(records)
}

#[test]
fn fast_commits_that_the_kernel_left() {
    let dir = tempfile::tempdir().unwrap();
    if let Some(corpus) = corpus() {
        let records = same_as_kernel(&unpack(&corpus, "j_recover_fast_commit", dir.path()), dir.path());
        assert_ne!(records, Some(0));
    }
    let (image, dirty, at) = (dir.path().join("image"), dir.path().join("dirty"), dir.path().join("mnt"));
    let sync = |name: &str| std::fs::File::open(at.join(name)).unwrap().sync_all().unwrap();
    let write = |name: &str, len: usize| {
        std::fs::write(at.join(name), vec![len as u8; len]).unwrap();
        sync(name);
    };
    let steps: [(&str, &dyn Fn()); 9] = [
        ("create", &|| (0..8).for_each(|n| write(&format!("dir/new{n}"), 3000 * n + 1))),
        ("append", &|| {
            let mut file = std::fs::File::options().append(true).open(at.join("dir/old0")).unwrap();
            std::io::Write::write_all(&mut file, &vec![9; 70_000]).unwrap();
            sync("dir/old0");
        }),
        ("unlink", &|| {
            std::fs::remove_file(at.join("dir/old1")).unwrap();
            write("dir/other", 10);
        }),
        ("link", &|| {
            std::fs::hard_link(at.join("dir/old2"), at.join("dir/linked")).unwrap();
            sync("dir/linked");
        }),
        ("rename", &|| {
            std::fs::rename(at.join("dir/old3"), at.join("dir/renamed")).unwrap();
            sync("dir/renamed");
        }),
        ("rename over", &|| {
            std::fs::rename(at.join("dir/old4"), at.join("dir/old5")).unwrap();
            sync("dir/old5");
        }),
        ("truncate", &|| {
            std::fs::File::options().write(true).open(at.join("dir/old6")).unwrap().set_len(5000).unwrap();
            sync("dir/old6");
        }),
        ("symlink", &|| {
            std::os::unix::fs::symlink("target", at.join("dir/symlink")).unwrap();
            write("dir/after", 5);
        }),
        ("mkdir", &|| {
            std::fs::create_dir(at.join("dir/sub")).unwrap();
            write("dir/sub/file", 5000);
        }),
    ];
    let mut records = 0;
    for count in 1..=steps.len() {
        must("truncate", &["-s", "64M", text(&image)]);
        must("mke2fs", &["-q", "-F", "-t", "ext4", "-O", "fast_commit", "-J", "size=8", text(&image)]);
        let Some(mount) = Mount::new(&image, "noatime", &at) else {
            println!("skipped: the kernel mounts nothing here");
            return;
        };
        std::fs::create_dir(at.join("dir")).unwrap();
        (0..8).for_each(|n| write(&format!("dir/old{n}"), 40_000));
        must("sync", &["-f", text(&at)]);
        // The first alone, then two, ...: each must be right at the end of a log.
        for (_, step) in &steps[..count] {
            step();
        }
        copy(&image, &dirty);
        drop(mount);
        let found = same_as_kernel(&dirty, dir.path()).unwrap_or(0);
        println!("up to {}: {found} records", steps[count - 1].0);
        records += found;
        std::fs::remove_file(&image).unwrap();
    }
    assert!(records > 0, "the kernel wrote no fast commits");
    // A log that has wrapped, before its fast-commit area.
    must("truncate", &["-s", "96M", text(&image)]);
    must(
        "mke2fs",
        &["-q", "-F", "-t", "ext4", "-b", "1024", "-O", "fast_commit", "-J", "size=4", text(&image)],
    );
    let Some(mount) = Mount::new(&image, "data=journal", &at) else { return };
    (0..3).for_each(|_| churn(&at));
    copy(&image, &dirty);
    drop(mount);
    same_as_kernel(&dirty, dir.path());
}

#[test]
fn a_crash_while_fast_commits_are_replayed_does_no_harm() {
    let Some(corpus) = corpus() else { return };
    let dir = tempfile::tempdir().unwrap();
    let (image, at) = (unpack(&corpus, "j_recover_fast_commit", dir.path()), dir.path().join("mnt"));
    let (whole, torn) = (dir.path().join("whole"), dir.path().join("torn"));
    copy(&image, &whole);
    replay(&whole).unwrap();
    let expected = listing(&whole, &at);
    let mut failures = 0;
    for writes in 0..200 {
        copy(&image, &torn);
        let faulty = Arc::new(FaultyDevice::new(Arc::new(FileDevice::open(&torn, false, false).unwrap())));
        let mut done = 0;
        faulty.fail_from(move |request| {
            done += usize::from(request.is_write());
            done > writes
        });
        let device: SharedDevice = faulty;
        let located = locate(&*device, &superblock(&*device)).unwrap().expect("a journal");
        let recovered = recover(&*device, &located.area, &located.superblock).unwrap();
        if replay_home(&recovered, &device, &located).is_ok() {
            break;
        }
        drop(device);
        failures += 1;
        replay(&torn).unwrap();
        must("e2fsck", &["-fn", text(&torn)]);
        assert!(listing(&torn, &at) == expected, "after {writes} writes");
    }
    assert!(failures > 5, "{failures}");
}
