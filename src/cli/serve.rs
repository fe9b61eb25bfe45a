//! The daemon: opens the device, mounts, serves, and puts everything away at the end.

use super::options::Options;
use super::signals::Ending;
use journalfs::device::{self, holders, OpenDevice, OpenOptions};
use journalfs::fs::Fs;
use journalfs::fuse;
use journalfs::{Error, Result};
use nix::mount::{umount2, MntFlags};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long files may stay open after a signal has asked for the end.
const GRACE: Duration = Duration::from_secs(5);
/// How often an unmount is tried meanwhile.
const RETRY: Duration = Duration::from_millis(200);

/// Serves `device` on `dir` until it is unmounted; `ready` is called when the mount is up.
pub(super) fn run(device: &Path, dir: &Path, mut options: Options, ready: impl FnOnce()) -> Result<()> {
    let ending = Ending::block()?;
    let dir = mount_point(dir)?;
    let opened = open(device, &options)?;
    let about = |error| about(device, error);
    let fs = Fs::mount(opened.device, &options.fs).map_err(about)?;
    let mounted = Mounted {
        fs: fs.clone(),
        device: device.to_owned(),
        dir: dir.clone(),
        phase: Arc::new(Mutex::new(Phase::Starting)),
    };
    options.fuse.read_only |= fs.is_read_only();
    if fs.geometry().inode_bytes <= 128 {
        options.fuse.time_granularity = Duration::from_secs(1);
    }
    let on_panic = mounted.clone();
    fs.on_panic(Box::new(move || on_panic.clone().panic()));
    let on_signal = mounted.clone();
    ending.watch(move |signal| on_signal.end(signal))?;
    let served = fuse::serve(fs.clone(), &dir, &options.fuse, || {
        mounted.enter(Phase::Serving);
        tracing::info!("mounted");
        ready();
    });
    mounted.enter(Phase::Ending);
    let unmounted = fs.unmount().map_err(about);
    drop(opened.lock);
    if unmounted.is_ok() {
        tracing::info!("unmounted");
    }
    served.and(unmounted)
}

/// How far the daemon has come.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Phase {
    Starting,
    Serving,
    Ending,
}

/// The mount, as a signal sees it.
#[derive(Clone)]
struct Mounted {
    fs: Arc<Fs>,
    device: PathBuf,
    dir: PathBuf,
    phase: Arc<Mutex<Phase>>,
}

impl Mounted {
    fn enter(&self, phase: Phase) {
        *self.phase.lock().unwrap_or_else(PoisonError::into_inner) = phase;
    }

    fn phase(&self) -> Phase {
        *self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the mount: at once where it isn't in use; else programs may finish with their files for a
    /// while. What the main thread does after the connection has ended is the same as for any unmount.
    fn end(&self, signal: nix::sys::signal::Signal) {
        tracing::info!("{signal}: unmounting");
        match self.phase() {
            // Nothing of anybody's is lost, and the journal is made for an end at any moment.
            Phase::Starting => std::process::exit(1),
            Phase::Ending => return,
            Phase::Serving => {}
        }
        self.sync();
        let deadline = Instant::now() + GRACE;
        while self.is_on_top() && Instant::now() < deadline {
            if fuse::mount::unmount(&self.dir, false).is_ok() {
                return;
            }
            std::thread::sleep(RETRY);
        }
        if self.phase() == Phase::Ending {
            return;
        }
        tracing::warn!("files are still open; their programs will see errors");
        if self.is_on_top() {
            // Root can cut the connection, and then it's an unmount like any other.
            if umount2(&self.dir, MntFlags::MNT_FORCE | MntFlags::MNT_DETACH).is_ok() {
                return;
            }
            if let Err(error) = fuse::mount::unmount(&self.dir, true) {
                tracing::warn!(%error, "unmounting");
            }
        }
        // Operations may still come, so the file system can't be unmounted. Everything is durable, and the
        // next mount replays the journal.
        self.sync();
        std::process::exit(1);
    }

    /// Ends the mount at once (errors=panic): nothing more is written, and whoever uses it sees errors. Called in the
    /// middle of a request, so another thread does it.
    fn panic(self) {
        let end = move || {
            match self.phase() {
                Phase::Ending => return,
                Phase::Serving
                    if self.is_on_top()
                        && umount2(&self.dir, MntFlags::MNT_FORCE | MntFlags::MNT_DETACH).is_ok() =>
                {
                    // Root can cut the connection; then the main thread ends as after any unmount, with the error.
                    return;
                }
                Phase::Serving if self.is_on_top() => {
                    let _ = fuse::mount::unmount(&self.dir, true);
                }
                Phase::Starting | Phase::Serving => {}
            }
            // With the process its connection to the kernel ends too.
            std::process::exit(1);
        };
        if std::thread::Builder::new().name("panic".into()).spawn(end).is_err() {
            std::process::exit(1);
        }
    }

    fn sync(&self) {
        if let Err(error) = self.fs.sync() {
            tracing::error!(%error, "making everything durable");
        }
    }

    /// Whether the mount is what its mount point shows: neither gone nor covered by another.
    fn is_on_top(&self) -> bool {
        let top = holders::mounts().into_iter().rfind(|mount| mount.target == self.dir);
        top.is_some_and(|mount| mount.fs_type.ends_with("journalfs") && mount.source == self.device)
    }
}

/// A read-only mount replays a dirty journal first, as the kernel's does, so it opens for writing where that is allowed.
fn open(device: &Path, options: &Options) -> Result<OpenDevice> {
    let mut how = OpenOptions {
        read_only: options.fs.noload,
        offset: options.fs.offset,
        direct: options.fs.direct,
        ..OpenOptions::default()
    };
    match device::open(device, &how) {
        Err(Error::Io { source, .. })
            if options.fs.read_only
                && matches!(
                    source.kind(),
                    io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
                ) =>
        {
            how.read_only = true;
            device::open(device, &how)
        }
        result => result,
    }
}

/// The mount point as an absolute path. One whose daemon has died can't be looked at; it is left as it is named.
fn mount_point(dir: &Path) -> Result<PathBuf> {
    let failed = |error| Error::io(dir.display().to_string(), error);
    match dir.canonicalize() {
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => {
            std::path::absolute(dir).map_err(failed)
        }
        result => result.map_err(failed),
    }
}

/// Says which device an error is about, where it doesn't say that itself.
fn about(device: &Path, error: Error) -> Error {
    let device = device.display();
    match error {
        Error::Io { what, source } => Error::Io { what: format!("{device}: {what}"), source },
        Error::Unsupported(why) => Error::Unsupported(format!("{device}: {why}")),
        error => Error::Unsupported(format!("{device}: {error}")),
    }
}
