//! What real programs' writes look like from below: a mount on a file that records every write and flush, and the
//! states that a power cut can leave of it. The library's own crash tests (tests/crash) know more of what is owed; these
//! see the whole daemon, with the kernel above it and direct I/O beneath, and can put another driver in its place.
//!
//! `make streams` runs for long, `make test` a slice. `JOURNALFS_STREAM_STATES` (15): states of each stream;
//! `JOURNALFS_SEED` (1). Needs root, /dev/fuse and e2fsprogs.

mod driver;
mod image;
mod load;
mod states;

use driver::{Driver, Mounted};
use image::RecordingFile;
use journalfs::device::recording::Event;
use std::path::{Path, PathBuf};
use std::process::Command;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

fn can_mount() -> bool {
    let able = nix::unistd::geteuid().is_root() && Path::new("/dev/fuse").exists();
    if !able {
        eprintln!("skipped: needs root");
    }
    able
}

/// A new file system of `profile`, mounted by `driver`, with `work` done on it, then unmounted: what was recorded.
fn record<R>(
    driver: Driver,
    profile: &str,
    work: impl FnOnce(&Path, &RecordingFile) -> R,
) -> (RecordingFile, R) {
    let file = RecordingFile::new(64 << 20);
    file.format(profile);
    let mounted = Mounted::new(driver, &file.path());
    let result = work(mounted.root(), &file);
    mounted.unmount();
    (file, result)
}

/// States that a power cut can leave while `work` runs on a mount, each whole after its recovery.
fn consistent(what: &str, profile: &str, work: impl FnOnce(&Path)) {
    let (file, ()) = record(Driver::Journalfs, profile, |root, _| work(root));
    let flushes = file.events().iter().filter(|event| matches!(event, Event::FlushBegun { .. })).count();
    assert!(flushes > 10, "{what}: only {flushes} flushes");
    let states =
        states::all_recover(&file, number("JOURNALFS_SEED", 1), number("JOURNALFS_STREAM_STATES", 15));
    println!(
        "{what}, {profile}: {states} states of {} events, each recovered and whole",
        file.events().len()
    );
}

fn tool(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/bin").join(name);
    if path.exists() {
        return Some(path);
    }
    eprintln!("skipped: no {name} (make deps)");
    None
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&text));
}

#[test]
fn fs_mark_s_writes() {
    if !can_mount() {
        return;
    }
    for (profile, method) in [("journalfs", "1"), ("ext3", "5")] {
        consistent(&format!("fs_mark -S {method}"), profile, |root| {
            let arguments = ["-S", method, "-s", "5000", "-n", "60", "-t", "4", "-L", "2", "-D", "8"];
            run(Command::new("fs_mark").args(arguments).arg("-d").arg(root).current_dir("/tmp"));
        });
    }
}

#[test]
fn pjdfstest_s_writes() {
    let Some(pjdfstest) = tool("pjdfstest").filter(|_| can_mount()) else { return };
    consistent("pjdfstest", "journalfs", |root| {
        // What it finds is for its own test to say; here its writes count. Its tests never sync.
        let directory = root.join("work");
        std::fs::create_dir(&directory).unwrap();
        nix::unistd::chown(&directory, Some(0.into()), Some(0.into())).unwrap();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let _ = std::fs::File::open(root).and_then(|root| root.sync_all());
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
            });
            let _ =
                Command::new(pjdfstest).arg("-p").arg(&directory).args(["rename", "unlink", "link"]).output();
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    });
}

/// A tree unpacked, built into a repository and removed again, with syncs between.
#[test]
fn a_day_s_writes() {
    if !can_mount() {
        return;
    }
    consistent("the demo's work", "journalfs", |root| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        run(Command::new("cp").arg("-r").arg(source).arg(root.join("tree")));
        let git = |arguments: &[&str]| {
            let mut git = Command::new("git");
            git.args(["-c", "user.name=a", "-c", "user.email=a@b", "-c", "core.fsync=all", "-C"]);
            run(git.arg(root.join("tree")).args(arguments));
        };
        git(&["init", "-q"]);
        git(&["add", "."]);
        git(&["commit", "-qm", "all"]);
        git(&["gc", "-q"]);
        run(Command::new("sync").arg("-f").arg(root));
        run(Command::new("rm").arg("-r").arg(root.join("tree/.git")));
        std::fs::File::open(root).and_then(|root| root.sync_all()).unwrap();
    });
}

/// Of the same load, how many states have lost something that was acknowledged: none of ours.
#[test]
fn nothing_acknowledged_is_lost() {
    if !can_mount() {
        return;
    }
    let (seed, states) = (number("JOURNALFS_SEED", 1), number("JOURNALFS_STREAM_STATES", 15));
    for driver in [Driver::Journalfs, Driver::Fuse2fs] {
        if !driver.is_there() {
            println!("skipped: no {driver:?}");
            continue;
        }
        let (file, promises) = record(driver, "ext4", |root, file| load::run(root, file, seed));
        let lost = states::count_lost(&file, &promises, seed, states);
        println!(
            "{driver:?}: {lost} of {states} states have lost acknowledged data ({} promises)",
            promises.len()
        );
        assert!(driver != Driver::Journalfs || lost == 0, "{lost} states have lost acknowledged data");
    }
}
