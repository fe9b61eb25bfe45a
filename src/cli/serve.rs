//! The daemon: opens the device, mounts, serves, and puts everything away at the end.

use super::options::Options;
use super::signals::Ending;
use journalfs::device::{self, OpenDevice, OpenOptions};
use journalfs::fs::Fs;
use journalfs::fuse;
use journalfs::{Error, Result};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long files may stay open after a signal has asked for the end.
const GRACE: Duration = Duration::from_secs(5);

/// Serves `device` on `dir` until it is unmounted; `ready` is called when the mount is up.
pub(super) fn run(device: &Path, dir: &Path, mut options: Options, ready: impl FnOnce()) -> Result<()> {
    let ending = Ending::block()?;
    let dir = mount_point(dir)?;
    let opened = open(device, &options)?;
    let about = |error| about(device, error);
    let fs = Fs::mount(opened.device, &options.fs).map_err(about)?;
    let mounted = Mounted { fs: fs.clone(), unmounted: Arc::default() };
    options.fuse.read_only |= fs.is_read_only();
    if fs.geometry().inode_bytes <= 128 {
        options.fuse.time_granularity = Duration::from_secs(1);
    }
    let (on_signal, mount_point) = (mounted.clone(), dir.clone());
    ending.watch(move |signal| on_signal.end(signal, &mount_point))?;
    let served = fuse::serve(fs, &dir, &options.fuse, move || {
        tracing::info!("mounted");
        ready();
    });
    let unmounted = mounted.unmount().map_err(about);
    drop(opened.lock);
    if let Err(error) = &unmounted {
        tracing::error!(%error, "unmounting");
    }
    tracing::info!("unmounted");
    served.and(unmounted)
}

/// The mounted file system, unmounted once whoever comes first.
#[derive(Clone)]
struct Mounted {
    fs: Arc<Fs>,
    unmounted: Arc<Mutex<bool>>,
}

impl Mounted {
    fn unmount(&self) -> Result<()> {
        let mut unmounted = self.unmounted.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut *unmounted, true) {
            return Ok(());
        }
        self.fs.unmount()
    }

    /// Ends the mount: takes it out of the tree, lets programs finish with their open files for a while, and stops.
    fn end(&self, signal: nix::sys::signal::Signal, dir: &Path) {
        tracing::info!("{signal}: unmounting");
        if fuse::mount::unmount(dir, false).is_ok() {
            return;
        }
        if let Err(error) = fuse::mount::unmount(dir, true) {
            tracing::warn!(%error, "unmounting");
        }
        if let Err(error) = self.fs.sync() {
            tracing::error!(%error, "making everything durable");
        }
        std::thread::sleep(GRACE);
        tracing::warn!("files are still open; stopping all the same");
        let status = self.unmount().map_or(1, |()| 0);
        std::process::exit(status);
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
