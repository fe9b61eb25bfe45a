//! Mounts, by our daemon or by the kernel, that come down again however a test ends.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::environment::{driver, program, scratch, Driver};
use super::{run, Image};

/// A daemon that takes longer than this to mount is taken for hung.
const MOUNT_LIMIT: Duration = Duration::from_secs(60);
/// ... and to drain, commit, checkpoint and exit after the unmount.
const EXIT_LIMIT: Duration = Duration::from_secs(120);
/// No test keeps a file system mounted this long: a call that hangs ends with ENOTCONN then.
const MOUNTED_LIMIT: Duration = Duration::from_secs(1200);

/// A mounted image. Dropping it unmounts and stops the daemon; [`Mounted::unmount`] also checks that
/// both went well.
pub(crate) struct Mounted {
    directory: Option<tempfile::TempDir>,
    image: PathBuf,
    daemon: Option<Daemon>,
}

struct Daemon {
    child: Child,
    log: PathBuf,
    // Dropped with the daemon: ends the watchdog's wait.
    _watchdog: mpsc::Sender<()>,
}

impl Mounted {
    /// Mounts with the driver under test.
    pub(crate) fn new(image: &Image, options: &str) -> Self {
        match driver() {
            Driver::Journalfs => Self::journalfs(&image.path(), options),
            Driver::Kernel => Self::kernel(image, options),
        }
    }

    /// Mounts with our daemon in the foreground and waits until it serves requests.
    pub(crate) fn journalfs(image: &Path, options: &str) -> Self {
        Self::try_journalfs(image, options)
            .unwrap_or_else(|(status, log)| panic!("mount.journalfs: {status}\n{log}"))
    }

    /// As [`Mounted::journalfs`]; where the daemon refuses: its exit status and its message.
    pub(crate) fn try_journalfs(image: &Path, options: &str) -> Result<Self, (ExitStatus, String)> {
        let directory = mount_point();
        let log = directory.path().with_extension("log");
        let file = std::fs::File::create(&log).expect("log file");
        let mut command = Command::new(program("mount.journalfs"));
        command.arg(image).arg(directory.path()).arg("--foreground");
        if !options.is_empty() {
            command.args(["-o", options]);
        }
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone().expect("dup"))
            .stderr(file)
            .spawn()
            .expect("run mount.journalfs");
        let mut mounted = Self {
            directory: Some(directory),
            image: image.to_path_buf(),
            daemon: Some(Daemon { _watchdog: watch(&child), child, log }),
        };
        let started = Instant::now();
        while !is_mounted(mounted.root()) {
            let Some(daemon) = &mut mounted.daemon else { unreachable!("just made") };
            if let Some(status) = daemon.child.try_wait().expect("wait") {
                return Err((status, daemon.messages()));
            }
            assert!(started.elapsed() < MOUNT_LIMIT, "mount.journalfs hangs:\n{}", daemon.messages());
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(mounted)
    }

    /// Mounts with the kernel's own driver over a loop device.
    pub(crate) fn kernel(image: &Image, options: &str) -> Self {
        Self::kernel_at(&image.path(), image.kernel_type(), options)
    }

    /// As [`Mounted::kernel`]; `Err` is what mount(8) says where it refuses.
    pub(crate) fn try_kernel(image: &Image, options: &str) -> Result<Self, String> {
        Self::try_kernel_at(&image.path(), image.kernel_type(), options)
    }

    /// As [`Mounted::kernel`], of any file as type `kernel_type`.
    pub(crate) fn kernel_at(image: &Path, kernel_type: &str, options: &str) -> Self {
        Self::try_kernel_at(image, kernel_type, options).unwrap_or_else(|refusal| panic!("{refusal}"))
    }

    fn try_kernel_at(image: &Path, kernel_type: &str, options: &str) -> Result<Self, String> {
        let directory = mount_point();
        let mut command = Command::new("mount");
        command.args(["-t", kernel_type, "-o"]);
        command.arg(format!("loop,{}", kernel_options(options)));
        command.arg(image).arg(directory.path());
        let output = run(&mut command, MOUNT_LIMIT);
        if output.status.success() {
            Ok(Self { directory: Some(directory), image: image.to_path_buf(), daemon: None })
        } else {
            Err(format!("{command:?}: {}: {}", output.status, output.text()))
        }
    }

    /// The mounted root directory.
    pub(crate) fn root(&self) -> &Path {
        self.directory.as_ref().expect("mounted").path()
    }

    /// A path below the root.
    pub(crate) fn join(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.root().join(name.as_ref())
    }

    /// The daemon's process, where there is one.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.daemon.as_ref().map(|daemon| daemon.child.id())
    }

    /// Kills the daemon as a crash would, and cleans up the dead mount.
    pub(crate) fn kill(mut self) {
        let mut daemon = self.daemon.take().expect("a daemon to kill");
        daemon.child.kill().expect("kill");
        daemon.child.wait().expect("wait");
        let _ = std::fs::remove_file(&daemon.log);
        self.tear_down();
    }

    /// Unmounts; demands that the daemon ends well, soon and without a word.
    pub(crate) fn unmount(self) {
        let messages = self.unmount_with_messages();
        assert_eq!(messages, "", "the daemon prints on a quiet day");
    }

    /// Unmounts; demands that the daemon ends well and soon, and returns what it printed.
    pub(crate) fn unmount_with_messages(mut self) -> String {
        let started = Instant::now();
        loop {
            let output = run(Command::new("umount").arg(self.root()), EXIT_LIMIT);
            if output.status.success() {
                break;
            }
            // Another test's child may hold one of our files between its fork and its exec.
            assert!(started.elapsed() < Duration::from_secs(10), "umount: {}", output.text());
            std::thread::sleep(Duration::from_millis(50));
        }
        let messages = if let Some(daemon) = self.daemon.take() {
            daemon.assert_ends_well()
        } else {
            wait_for_loop_device(&self.image);
            String::new()
        };
        self.tear_down();
        messages
    }

    /// After an unmount that may have failed: stops the daemon and returns what it printed.
    pub(crate) fn wait_for_end(mut self) -> String {
        let mut messages = String::new();
        self.tear_down();
        if let Some(mut daemon) = self.daemon.take() {
            let ended = daemon.wait(Duration::from_secs(60)).is_some();
            messages = daemon.messages();
            daemon.stop();
            assert!(ended, "the daemon hangs after unmount:\n{messages}");
        }
        messages
    }

    fn tear_down(&mut self) {
        let Some(directory) = self.directory.take() else {
            return;
        };
        if is_mounted(directory.path()) {
            let _ = run(Command::new("umount").arg("-l").arg(directory.path()), EXIT_LIMIT);
        }
        // Never remove a tree through a mount that would not go.
        if is_mounted(directory.path()) {
            let _ = directory.keep();
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.tear_down();
        if let Some(mut daemon) = self.daemon.take() {
            if std::thread::panicking() {
                eprintln!("the daemon said:\n{}", daemon.messages());
            }
            daemon.stop();
        }
    }
}

impl Daemon {
    fn messages(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let started = Instant::now();
        while started.elapsed() < limit {
            if let Some(status) = self.child.try_wait().expect("wait") {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        None
    }

    fn assert_ends_well(mut self) -> String {
        let status = self.wait(EXIT_LIMIT);
        let messages = self.messages();
        self.stop();
        let status = status.unwrap_or_else(|| panic!("the daemon hangs after unmount:\n{messages}"));
        assert!(status.success(), "the daemon: {status}\n{messages}");
        messages
    }

    fn stop(&mut self) {
        if self.wait(Duration::from_secs(5)).is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        let _ = std::fs::remove_file(&self.log);
    }
}

/// Kills the daemon when the returned sender still lives after [`MOUNTED_LIMIT`].
fn watch(child: &Child) -> mpsc::Sender<()> {
    let (sender, receiver) = mpsc::channel::<()>();
    let pid = rustix::process::Pid::from_child(child);
    std::thread::spawn(move || {
        if receiver.recv_timeout(MOUNTED_LIMIT) == Err(mpsc::RecvTimeoutError::Timeout) {
            eprintln!("mounted for more than {MOUNTED_LIMIT:?}: the daemon is killed");
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    });
    sender
}

fn mount_point() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("journalfs-mnt-").tempdir_in(scratch()).expect("mount point")
}

/// Whether something is mounted on exactly `directory`. It does not touch the directory itself, which
/// a hung daemon may serve.
pub(crate) fn is_mounted(directory: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("/proc/self/mounts");
    mounts.lines().any(|line| line.split(' ').nth(1).map(Path::new) == Some(directory))
}

/// Options both drivers know; the rest is about our daemon alone.
fn kernel_options(options: &str) -> String {
    let shared = ["ro", "noatime", "relatime", "sync", "dirsync", "noload"];
    let known = |o: &&str| shared.contains(o) || o.starts_with("offset=");
    let mut kept: Vec<&str> = options.split(',').filter(known).collect();
    if !kept.contains(&"ro") {
        kept.push("rw");
    }
    kept.join(",")
}

/// umount(8) frees a loop device a moment after it returns; a daemon would refuse the image till then.
fn wait_for_loop_device(image: &Path) {
    for _ in 0..500 {
        let output = run(Command::new("losetup").arg("-j").arg(image), EXIT_LIMIT);
        if output.stdout.trim().is_empty() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("a loop device stays on {}", image.display());
}
