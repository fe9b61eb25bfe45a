//! The daemon's life: signals, death, shutdown, remounts.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::command::Output;
use crate::support::environment::{program, scratch};
use crate::support::image::{dumpe2fs, field};
use crate::support::mount::is_mounted;
use crate::support::{driver, needs_root, ok, run, Driver, Image};

const LIMIT: Duration = Duration::from_secs(60);

/// A mount by a daemon in the background; comes down whatever happens.
struct Background {
    dir: tempfile::TempDir,
    image: PathBuf,
}

impl Background {
    fn start(image: &Image, options: &str) -> Self {
        let dir = tempfile::Builder::new().prefix("journalfs-mnt-").tempdir_in(scratch());
        let mounted = Self { dir: dir.expect("mount point"), image: image.path() };
        mounted.mount(options);
        mounted
    }

    fn mount(&self, options: &str) {
        ok(&mut self.command(options), LIMIT);
    }

    fn command(&self, options: &str) -> Command {
        let mut command = Command::new(program("mount.journalfs"));
        command.arg(&self.image).arg(self.dir()).args(["-o", options]);
        command
    }

    fn dir(&self) -> &Path {
        self.dir.path()
    }

    fn journalfs(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(program("journalfs"));
        let (name, rest) = arguments.split_first().expect("a command");
        run(command.arg(name).arg(self.dir()).args(rest), LIMIT)
    }

    /// The daemon is who has the mount point for its last argument.
    fn pid(&self) -> String {
        let dir = format!("\0{}\0", self.dir().display());
        fs::read_dir("/proc")
            .expect("/proc")
            .flatten()
            .find(|process| {
                let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
                String::from_utf8_lossy(&line).ends_with(&dir)
            })
            .map(|process| process.file_name().to_string_lossy().into_owned())
            .expect("a daemon")
    }

    fn signal(&self, signal: &str) -> String {
        let pid = self.pid();
        ok(Command::new("kill").args([signal, &pid]), LIMIT);
        pid
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if is_mounted(self.dir()) {
            let _ = run(Command::new("umount").arg("-l").arg(self.dir()), LIMIT);
        }
    }
}

fn wait_for_end_of(pid: &str) {
    let began = Instant::now();
    while Path::new("/proc").join(pid).exists() {
        assert!(began.elapsed() < LIMIT, "process {pid} does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
}

macro_rules! needs_journalfs {
    () => {
        needs_root!();
        if driver() == Driver::Kernel {
            return;
        }
    };
}

#[test]
fn a_signal_unmounts_cleanly_and_lets_programs_finish() {
    needs_journalfs!();
    let image = Image::formatted(32 << 20, "journalfs", &[]);
    let mounted = Background::start(&image, "rw");
    fs::write(mounted.dir().join("idle"), b"idle").expect("write");
    wait_for_end_of(&mounted.signal("-TERM"));
    assert!(!is_mounted(mounted.dir()));
    image.assert_clean();

    mounted.mount("rw");
    assert_eq!(fs::read(mounted.dir().join("idle")).expect("read"), b"idle");
    let mut open = File::create(mounted.dir().join("open")).expect("create");
    open.write_all(b"before ").expect("write");
    let pid = mounted.signal("-INT");
    std::thread::sleep(Duration::from_millis(300));
    open.write_all(b"after").expect("write after the signal");
    drop(open);
    wait_for_end_of(&pid);
    image.assert_clean();
    let contents = ok(Command::new("debugfs").args(["-R", "cat open"]).arg(image.path()), LIMIT);
    assert_eq!(contents, "before after");
}

#[test]
fn a_dead_mount_is_mounted_over_and_unmounted() {
    needs_journalfs!();
    let image = Image::formatted(32 << 20, "journalfs", &[]);
    let mounted = Background::start(&image, "rw");
    let file = File::create(mounted.dir().join("file")).expect("create");
    file.sync_all().expect("fsync");
    drop(file);
    wait_for_end_of(&mounted.signal("-KILL"));
    assert_eq!(fs::metadata(mounted.dir()).expect_err("dead").raw_os_error(), Some(107));
    mounted.mount("rw");
    assert!(mounted.dir().join("file").exists());
    wait_for_end_of(&mounted.signal("-KILL"));
    let output = mounted.journalfs(&["umount"]);
    assert!(output.status.success(), "{}", output.text());
    assert!(!is_mounted(mounted.dir()));
}

#[test]
fn a_shutdown_keeps_what_was_synced_and_nothing_else() {
    needs_journalfs!();
    let image = Image::formatted(32 << 20, "journalfs", &[]);
    let mounted = Background::start(&image, "commit=1000");
    fs::write(mounted.dir().join("synced"), b"text").expect("write");
    assert!(mounted.journalfs(&["sync"]).status.success());
    fs::write(mounted.dir().join("unsynced"), b"text").expect("write");
    let output = mounted.journalfs(&["shutdown"]);
    assert!(output.status.success(), "{}", output.text());
    fs::write(mounted.dir().join("late"), b"text").expect_err("shut down");
    assert_eq!(fs::read(mounted.dir().join("synced")).expect("read"), b"text");
    mounted.journalfs(&["umount"]);
    assert!(!is_mounted(mounted.dir()));
    let features = field(&dumpe2fs(&image.path()), "Filesystem features");
    assert!(features.contains("needs_recovery"), "{features}");

    mounted.mount("rw");
    assert_eq!(fs::read(mounted.dir().join("synced")).expect("read"), b"text");
    assert!(!mounted.dir().join("unsynced").exists() && !mounted.dir().join("late").exists());
    assert!(mounted.journalfs(&["umount"]).status.success());
    image.assert_clean();
}

#[test]
fn batching_policies_change_while_many_sync() {
    const WRITERS: usize = 6;
    const ROUNDS: usize = 5;
    needs_journalfs!();
    let image = Image::formatted(64 << 20, "journalfs", &[]);
    let mounted = Background::start(&image, "batch=fixed,batch_delay=2ms");
    let stats = || -> serde_json::Value {
        let output = mounted.journalfs(&["stats", "--json"]);
        serde_json::from_str(&output.stdout).expect("JSON")
    };
    std::thread::scope(|scope| {
        let dir = mounted.dir();
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                scope.spawn(move || {
                    for policy in 0..6 {
                        for round in 0..ROUNDS {
                            let path = dir.join(format!("{writer}-{policy}-{round}"));
                            let mut file = File::create(path).expect("create");
                            file.write_all(&[7; 3000]).expect("write");
                            file.sync_all().expect("fsync");
                        }
                    }
                })
            })
            .collect();
        let mut policies =
            ["none", "yield", "fixed", "pipeline", "jbd2,max_batch_time=1ms", "adaptive"].iter().cycle();
        while writers.iter().any(|writer| !writer.is_finished()) {
            let policy = policies.next().expect("a cycle");
            let output = mounted.journalfs(&["tune", &format!("batch={policy}")]);
            assert!(output.status.success(), "{}", output.text());
        }
    });
    let journal = &stats()["journal"];
    let count = |path: &str| journal.pointer(path).and_then(serde_json::Value::as_u64).expect("a count");
    assert_eq!(count("/sync_callers"), (WRITERS * ROUNDS * 6) as u64);
    assert_eq!(count("/sync_time_us/count"), count("/sync_callers"));
    assert!(count("/callers_per_commit/max") <= WRITERS as u64 && count("/commits") > 0);
    assert!(mounted.journalfs(&["umount"]).status.success());
    image.assert_clean();
}

#[test]
fn options_change_by_remount_and_by_tune() {
    needs_journalfs!();
    let image = Image::formatted(32 << 20, "journalfs", &[]);
    let mounted = Background::start(&image, "rw");
    let file = mounted.dir().join("file");
    fs::write(&file, b"text").expect("write");
    ok(&mut mounted.command("remount,ro"), LIMIT);
    assert_eq!(fs::write(&file, b"more").expect_err("read-only").raw_os_error(), Some(30));
    ok(&mut mounted.command("remount,rw,noatime"), LIMIT);
    fs::write(&file, b"more").expect("read-write again");

    let output = mounted.journalfs(&["tune", "commit=7,batch=none", "inactivate=inline"]);
    assert!(output.status.success(), "{}", output.text());
    let stats = mounted.journalfs(&["stats"]).stdout;
    for (name, value) in [("commit_s", "7"), ("batch", "none"), ("inactivate", "inline")] {
        let line = stats.lines().find(|line| line.starts_with(&format!("options.{name} ")));
        assert!(line.is_some_and(|line| line.ends_with(&format!(" {value}"))), "{name}: {stats}");
    }
    let output = mounted.journalfs(&["tune", "offset=4096"]);
    assert!(!output.status.success() && output.stderr.contains("offset"), "{}", output.text());
    assert!(mounted.journalfs(&["umount"]).status.success());

    mounted.mount("ro");
    let output = run(&mut mounted.command("remount,rw"), LIMIT);
    assert!(!output.status.success() && output.stderr.contains("read-only"), "{}", output.text());
    assert!(mounted.journalfs(&["umount"]).status.success());
    image.assert_clean();
}
