//! The front-end: what the kernel's FUSE driver asks, answered by a file system in this process.
//!
//! `Service` says what a request means; a transport brings requests and takes answers back:
//! `device` is our own, `Front` fuser's. Another would sit beside them.

pub mod control;
mod convert;
mod device;
mod front;
mod fs;
pub mod inherited;
mod init;
mod ioctl;
pub mod mount;
mod node;
mod operations;
mod options;
mod service;
pub mod types;
mod workers;

pub use operations::{Done, Operations};
pub use options::{FuseOptions, Transport};

use crate::error::{Error, Result};
use front::Front;
use service::Service;
use std::path::Path;
use std::sync::Arc;
use workers::Workers;

/// Mounts `fs` on `mountpoint`, calls `ready` once the kernel has accepted it, and serves it until it is unmounted.
///
/// Returns when every request has been answered and the kernel holds nothing any more, so that the caller can
/// write back and close the file system: the kernel tells a plain unmount by closing the connection only, with no
/// last request.
pub fn serve<O: Operations>(
    fs: Arc<O>,
    mountpoint: &Path,
    options: &FuseOptions,
    ready: impl FnOnce(),
) -> Result<()> {
    let (fd, mountpoint) = mount::mount(mountpoint, options)?;
    let served = serve_connection(fs, fd, &mountpoint, options, ready);
    if served.is_err() {
        // Nobody answers any more: what is left of the mount would only hang or fail its users.
        if let Err(error) = mount::unmount(&mountpoint, true) {
            tracing::debug!("{error}");
        }
    }
    served
}

fn serve_connection<O: Operations>(
    fs: Arc<O>,
    fd: std::os::fd::OwnedFd,
    mountpoint: &Path,
    options: &FuseOptions,
    ready: impl FnOnce(),
) -> Result<()> {
    fs.mounted();
    let service = Arc::new(Service::new(fs, options.clone()));
    let workers = Arc::new(Workers::new(options.workers));
    let ready = || {
        if options.readahead_bytes > 0 {
            mount::set_readahead(mountpoint, options.readahead_bytes);
        }
        ready();
    };
    let result = match options.transport {
        Transport::Device => {
            device::Connection::start(fd, service.clone(), workers.clone()).and_then(|connection| {
                ready();
                connection.run(options.threads)
            })
        }
        Transport::Fuser => {
            let front = Front::new(service.clone(), workers.clone());
            serve_by_fuser(front, fd, options.threads, ready)
        }
    };
    workers.close();
    service.forget_all();
    result
}

fn serve_by_fuser<O: Operations>(
    front: Front<O>,
    fd: std::os::fd::OwnedFd,
    threads: usize,
    ready: impl FnOnce(),
) -> Result<()> {
    let mut config = fuser::Config::default();
    config.n_threads = Some(threads.max(1));
    // Who may use the mount is the kernel's decision (allow_other); fuser's own check would also refuse requests that
    // the kernel makes on behalf of others.
    let session = fuser::Session::from_fd(front, fd, fuser::SessionACL::All, config)
        .map_err(|e| Error::io("starting the FUSE connection", e))?;
    ready();
    session.run().map_err(|e| Error::io("the FUSE connection", e))
}
