//! The transport over `/dev/fuse`: threads that read requests from the kernel, and answers written back.
//!
//! The thread that reads a request answers it if that needs memory only, and hands it to a worker if it may wait.

mod dispatch;
mod reply;
mod request;
mod wire;

use super::init::{self, Agreement, REQUEST_BYTES_MAX};
use super::operations::Operations;
use super::service::Service;
use super::workers::Workers;
use crate::error::{Error, Result};
use dispatch::Dispatcher;
use nix::errno::Errno;
use reply::Reply;
use request::{decode, Operation};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use wire::{InHeader, InitIn, InitOut};

/// The largest request: the data of a WRITE, with its headers.
const BUFFER_BYTES: usize = REQUEST_BYTES_MAX as usize + 4096;
/// How many requests may come before INIT is given up.
const GREETINGS_MAX: u32 = 16;

/// A connection to the kernel that has been agreed on.
pub(super) struct Connection<O: Operations> {
    device: Arc<OwnedFd>,
    service: Arc<Service<O>>,
    workers: Arc<Workers>,
}

impl<O: Operations> Connection<O> {
    /// Answers INIT.
    pub(super) fn start(device: OwnedFd, service: Arc<Service<O>>, workers: Arc<Workers>) -> Result<Self> {
        let device = Arc::new(device);
        let mut buffer = vec![0; BUFFER_BYTES];
        for _ in 0..GREETINGS_MAX {
            let len = receive(&device, &mut buffer)?.ok_or_else(|| broken("closed before it began"))?;
            let (header, operation) =
                buffer.get(..len).and_then(decode).ok_or_else(|| broken("garbled from the start"))?;
            let reply = Reply::new(device.clone(), header.unique);
            match operation {
                Operation::Init(wanted, _) if wanted.major > wire::VERSION => {
                    reply.send(&InitOut {
                        major: wire::VERSION,
                        minor: wire::MINOR_VERSION,
                        ..InitOut::default()
                    });
                }
                Operation::Init(wanted, _) if wanted.major < wire::VERSION || wanted.minor < 31 => {
                    reply.errno(libc::EPROTO);
                    return Err(broken("too old a kernel (before Linux 5.4)"));
                }
                Operation::Init(wanted, flags2) => {
                    reply.send(&answer(&init::agree(offer(&wanted, flags2), service.options()), &wanted));
                    return Ok(Self { device, service, workers });
                }
                _ => reply.errno(libc::EIO),
            }
        }
        Err(broken("never began"))
    }

    /// Serves until the file system is unmounted.
    pub(super) fn run(&self, threads: usize) -> Result<()> {
        std::thread::scope(|scope| {
            let mut readers = Vec::new();
            for at in 1..threads.max(1) {
                let name = format!("fuse-{at}");
                match std::thread::Builder::new().name(name).spawn_scoped(scope, || self.serve()) {
                    Ok(thread) => readers.push(thread),
                    Err(error) => tracing::warn!("a thread for requests can't be started: {error}"),
                }
            }
            let mut result = self.serve();
            for reader in readers {
                result = result.and(reader.join().unwrap_or_else(|_| Err(broken("served by a bug"))));
            }
            result
        })
    }

    fn serve(&self) -> Result<()> {
        let dispatcher = Dispatcher::new(&self.device, &self.service, &self.workers);
        let mut buffer = vec![0; BUFFER_BYTES];
        while let Some(len) = receive(&self.device, &mut buffer)? {
            if !dispatcher.handle(&mut buffer, len) {
                break;
            }
        }
        Ok(())
    }
}

fn broken(how: &str) -> Error {
    Error::io("the FUSE connection", io::Error::other(how))
}

/// Reads one request; `None` when the file system is unmounted.
fn receive(device: &OwnedFd, buffer: &mut [u8]) -> Result<Option<usize>> {
    loop {
        match nix::unistd::read(device, buffer) {
            Ok(len) if len >= size_of::<InHeader>() => return Ok(Some(len)),
            Ok(_) => return Err(broken("garbled")),
            // A request that its caller gave up before it was read; a signal.
            Err(Errno::ENOENT | Errno::EINTR | Errno::EAGAIN) => {}
            Err(Errno::ENODEV | Errno::ECONNABORTED) => return Ok(None),
            Err(errno) => return Err(Error::io("reading from /dev/fuse", errno.into())),
        }
    }
}

/// What the kernel offers, as one word.
fn offer(wanted: &InitIn, flags2: u32) -> u64 {
    u64::from(wanted.flags) | u64::from(flags2) << 32
}

fn answer(agreed: &Agreement, wanted: &InitIn) -> InitOut {
    InitOut {
        major: wire::VERSION,
        minor: wire::MINOR_VERSION.min(wanted.minor),
        max_readahead: wanted.max_readahead,
        flags: agreed.flags as u32,
        flags2: (agreed.flags >> 32) as u32,
        max_background: agreed.max_background,
        congestion: agreed.max_background / 4 * 3,
        max_write: REQUEST_BYTES_MAX,
        max_pages: (REQUEST_BYTES_MAX / 4096) as u16,
        time_granularity: agreed.time_granularity_ns,
        ..InitOut::default()
    }
}
