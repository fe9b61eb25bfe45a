//! fsck.journalfs against e2fsck: on images that mke2fs and debugfs make, damaged on purpose, and on e2fsprogs' own tests.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

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

/// Exit status and everything that was printed.
fn fsck(args: &[&str], image: &Path) -> (i32, String) {
    let output = run(env!("CARGO_BIN_EXE_fsck-journalfs"), &[args, &[text(image)]].concat());
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    (output.status.code().unwrap_or(-1), text)
}

/// An image with a few files, directories and attributes in it.
fn image(dir: &Path, mke2fs: &[&str]) -> PathBuf {
    let (image, tree) = (dir.join("image"), dir.join("tree"));
    if !tree.exists() {
        std::fs::create_dir_all(tree.join("a/b")).unwrap();
        for n in 0..300 {
            std::fs::write(tree.join(format!("a/file-with-a-long-name-{n}")), vec![1; n * 50]).unwrap();
        }
        std::fs::write(tree.join("a/b/x"), vec![7; 40_000]).unwrap();
        std::os::unix::fs::symlink("a/b/x", tree.join("short")).unwrap();
        std::os::unix::fs::symlink("y".repeat(200), tree.join("long")).unwrap();
    }
    let _ = std::fs::remove_file(&image);
    must("truncate", &["-s", "32M", text(&image)]);
    must("mke2fs", &[&["-q", "-F", "-d", text(&tree)], mke2fs, &[text(&image)]].concat());
    image
}

fn debugfs(image: &Path, command: &str) -> String {
    must("debugfs", &["-w", "-R", command, text(image)])
}

const KINDS: [&[&str]; 7] = [
    &["-t", "ext2", "-b", "1024"],
    &["-t", "ext3"],
    &["-t", "ext4", "-b", "1024"],
    &["-t", "ext4", "-I", "128", "-O", "^metadata_csum,uninit_bg"],
    &["-t", "ext4", "-O", "metadata_csum,metadata_csum_seed,64bit,orphan_file,mmp"],
    &["-t", "ext4", "-O", "meta_bg,^resize_inode,sparse_super2"],
    &["-t", "ext4", "-O", "inline_data,large_dir"],
];

#[test]
fn sound_images_have_no_problems_and_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    for kind in KINDS {
        let image = image(dir.path(), kind);
        let before = std::fs::read(&image).unwrap();
        let (status, out) = fsck(&["-f", "-n", "-v"], &image);
        assert_eq!(status, 0, "{kind:?}: {out}");
        assert!(out.contains("no problems in"), "{out}");
        let (status, out) = fsck(&["-p"], &image);
        assert_eq!(status, 0, "{kind:?}: {out}");
        assert!(out.contains("not checked"), "{out}");
        assert!(std::fs::read(&image).unwrap() == before);
        let (status, out) = fsck(&["-f", "-y"], &image);
        assert_eq!(status, 0, "{kind:?}: {out}");
        must("e2fsck", &["-fn", text(&image)]);
    }
}

#[test]
fn damage_is_found_and_named() {
    let dir = tempfile::tempdir().unwrap();
    for kind in [KINDS[1], KINDS[2]] {
        for (command, expected) in [
            ("sif /a/b/x links_count 5", "(/a/b/x): has 5 links, but 1 names"),
            ("sif /a/b/x blocks 2", "(/a/b/x): counts 2 sectors"),
            ("sif /a/b/x size 100", "(/a/b/x): has a size of 100 bytes"),
            ("clri /a/b", "entry \"b\" names inode"),
            ("unlink /a/b/x", "no name"),
            ("unlink /a/b", "can't be reached from the root"),
            ("freeb 9000 1", ""),
            ("setb 30000 3", "blocks 30000 to 30002 (group 3) are marked in use, but nothing uses them"),
            ("set_bg 0 free_blocks_count 7", "group 0"),
            ("set_bg 0 inode_bitmap 0", "group 0"),
            ("ssv free_inodes_count 5", "the superblock counts"),
            ("ssv state 2", "errors were recorded"),
            ("ln /short /a", ""),
        ] {
            let image = image(dir.path(), kind);
            if kind == KINDS[1] && command.contains("30000") {
                // One group of 4 KiB blocks.
                continue;
            }
            debugfs(&image, command);
            if expected.is_empty() {
                // Whether this is damage depends on what is there: ask e2fsck.
                let theirs = run("e2fsck", &["-fn", text(&image)]).status.code();
                assert_eq!(Some(fsck(&["-fn"], &image).0), theirs, "{command}");
                continue;
            }
            let (status, out) = fsck(&["-fn"], &image);
            assert_eq!(status, 4, "{kind:?} {command}: {out}");
            assert!(out.contains(expected), "{kind:?} {command}: {out}");
        }
    }
}

#[test]
fn wrong_counts_in_the_superblock_are_corrected() {
    let dir = tempfile::tempdir().unwrap();
    let image = image(dir.path(), KINDS[2]);
    debugfs(&image, "ssv free_blocks_count 5");
    assert_eq!(fsck(&["-f", "-p"], &image).0, 1);
    assert_eq!(fsck(&["-f", "-n"], &image).0, 0);
    must("e2fsck", &["-fn", text(&image)]);
}

#[test]
fn bad_usage_and_bad_devices_have_their_exit_codes() {
    let dir = tempfile::tempdir().unwrap();
    let image = image(dir.path(), KINDS[2]);
    assert_eq!(fsck(&["-n", "-y"], &image).0, 16);
    assert_eq!(fsck(&[], &dir.path().join("none")).0, 8);
    let (status, out) = fsck(&["-f", "-n", "-b", "8193"], &image);
    assert_eq!(status, 0, "{out}");
    must(
        "dd",
        &["if=/dev/zero", &format!("of={}", text(&image)), "bs=1024", "seek=1", "count=1", "conv=notrunc"],
    );
    let (status, out) = fsck(&["-n"], &image);
    assert_eq!(status, 8, "{out}");
    assert!(out.contains("-b 8193 -B 1024"), "{out}");
    let (status, out) = fsck(&["-f", "-n", "-b", "8193"], &image);
    assert_eq!(status, 4, "{out}");
    assert!(out.contains("corrupt superblock"), "{out}");
}

#[test]
fn a_dirty_journal_is_replayed_or_looked_through() {
    let dir = tempfile::tempdir().unwrap();
    let image = image(dir.path(), &["-t", "ext4", "-b", "1024", "-O", "metadata_csum,64bit"]);
    let (data, script) = (dir.path().join("data"), dir.path().join("script"));
    // The log changes the root directory's inode to something that is no directory.
    std::fs::write(&data, vec![0; 1024]).unwrap();
    let table = debugfs(&image, "imap <2>");
    let block = table.split("located at block ").nth(1).unwrap().split(',').next().unwrap().to_string();
    std::fs::write(&script, format!("jo -c -v 3\njw -b {block} {}\njc\n", text(&data))).unwrap();
    must("debugfs", &["-w", "-f", text(&script), text(&image)]);
    let before = std::fs::read(&image).unwrap();
    let (status, out) = fsck(&["-fn"], &image);
    assert_eq!(status, 4, "{out}");
    assert!(out.contains("inode 2"), "{out}");
    assert!(std::fs::read(&image).unwrap() == before, "-n wrote");
    debugfs(&image, "feature -needs_recovery");
    let unwanted = dir.path().join("unwanted");
    std::fs::copy(&image, &unwanted).unwrap();
    assert_eq!(fsck(&["-n"], &unwanted).0, 4);
    let (status, out) = fsck(&["-fp"], &unwanted);
    assert_eq!(status, 1, "{out}");
    must("e2fsck", &["-fn", text(&unwanted)]);
    debugfs(&image, "feature needs_recovery");
    let (status, out) = fsck(&["-p"], &image);
    assert_eq!(status, 0, "{out}");
    assert!(out.contains("replaying 1 transactions, 1 blocks"), "{out}");
    assert_eq!(fsck(&["-fn"], &image).0, 4);
}

fn corpus() -> Option<PathBuf> {
    let path = std::env::var_os("JOURNALFS_CORPUS")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/corpus"), PathBuf::from);
    if path.join("images").is_dir() {
        return Some(path.join("images"));
    }
    println!("skipped: no corpus");
    None
}

/// Where we and `e2fsck -fn` (1.47) see an image of its own test suite differently.
const DIFFERENCES: [(&str, &str); 13] = [
    ("f_bad_gdt_csum", "e2fsck -n passes over wrong descriptor checksums"),
    ("f_uninit_enable", "the same"),
    ("f_clear_orphan_file", "e2fsck -n does not look at the journal, where the orphans are"),
    ("f_ea_inode_fast_symlink", "short symlinks' unused bytes are not looked at"),
    ("f_ea_inode_no_feature", "e2fsck -n takes the feature as set"),
    ("f_extent_too_deep", "e2fsck accepts deeper trees than the kernel"),
    ("f_jnl_errno", "e2fsck -n passes over the error flag"),
    ("f_orphquot", "e2fsck -n takes orphans as deleted"),
    ("f_quota_invalid_inum", "quotas are not looked at, which is said"),
    ("f_readonly_fsck", "e2fsck passes over the superblock's free counts"),
    ("j_corrupt_journal_block", "e2fsck -n does not look at the journal"),
    ("j_corrupt_revoke_rcount", "the same"),
    ("j_recover_fast_commit", "the same"),
];

#[test]
fn what_e2fsck_finds_in_its_own_test_images_is_found() {
    let Some(corpus) = corpus() else { return };
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let mut wrong = Vec::new();
    let mut count = 0;
    for entry in std::fs::read_dir(corpus).unwrap() {
        let path = entry.unwrap().path();
        let Some(name) = path.file_name().and_then(|n| n.to_str()).and_then(|n| n.strip_suffix(".img.gz"))
        else {
            continue;
        };
        let bytes = run("gunzip", &["-c", text(&path)]).stdout;
        std::fs::write(&image, &bytes).unwrap();
        // It never ends on f_illitable_flexbg.
        let theirs = run("timeout", &["20", "e2fsck", "-fn", text(&image)]).status.code().unwrap_or(-1);
        std::fs::write(&image, &bytes).unwrap();
        let (ours, out) = fsck(&["-fn"], &image);
        count += 1;
        assert!(matches!(ours, 0 | 4 | 8), "{name}: {ours} {out}");
        assert!(std::fs::read(&image).unwrap() == bytes, "{name}: -n wrote");
        if (ours == 0) != (theirs == 0) && !DIFFERENCES.iter().any(|(known, _)| *known == name) {
            wrong.push(format!("{name}: e2fsck {theirs}, ours {ours}\n{out}"));
        }
    }
    println!("{count} images");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn orphans_are_ended() {
    let dir = tempfile::tempdir().unwrap();
    for kind in [KINDS[1], KINDS[2]] {
        let image = image(dir.path(), kind);
        let stat = debugfs(&image, "stat /a/b/x");
        let nr = stat.split("Inode: ").nth(1).unwrap().split_whitespace().next().unwrap().to_string();
        debugfs(&image, "unlink /a/b/x");
        for command in [format!("sif <{nr}> links_count 0"), format!("ssv last_orphan {nr}")] {
            debugfs(&image, &command);
        }
        let (status, out) = fsck(&["-fn"], &image);
        assert_eq!(status, 0, "{kind:?}: {out}");
        let (status, out) = fsck(&["-fp"], &image);
        assert_eq!(status, 0, "{kind:?}: {out}");
        assert!(out.contains("1 deletions or truncations were under way"), "{out}");
        assert!(debugfs(&image, &format!("testi <{nr}>")).contains("not in use"));
        must("e2fsck", &["-fn", text(&image)]);
    }
}
