//! Who may have a device open: one writer, or readers.
//!
//! An image file is locked with flock(2), a block device claimed with `O_EXCL` as mount(2) claims it.
//! flock does not stop `mount -o loop`, so loop devices over an image are looked for too. The lock has a descriptor of its own
//! and ends with the [`DeviceLock`], not with the last user of the device.

use super::holders::{self, Identity};
use crate::error::{Error, Result};
use nix::fcntl::{Flock, FlockArg};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// How often a busy device is tried again.
const RETRY: Duration = Duration::from_millis(20);

/// What a lock keeps out.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Exclusion {
    /// Everybody else: for who writes.
    Exclusive,
    /// Writers: for who reads. A block device has no such claim, so that is exclusive too.
    Shared,
    /// Nobody: for a look at a device that may be in use.
    None,
}

/// A device's lock; dropped, it is free.
#[derive(Debug)]
pub struct DeviceLock {
    _held: Option<Held>,
}

#[derive(Debug)]
enum Held {
    Flock { _lock: Flock<File> },
    Claim { _file: File },
}

/// Why a device can't be had now.
struct Refusal {
    why: String,
    /// Whether waiting makes no sense: it is mounted, not just being let go of.
    settled: bool,
}

impl DeviceLock {
    /// Locks the device or image at `path`, waiting up to `wait` for a holder that is on its way out. A device that is
    /// mounted is refused at once. The error says who has it.
    pub fn acquire(path: &Path, exclusion: Exclusion, wait: Duration) -> Result<Self> {
        if exclusion == Exclusion::None {
            return Ok(Self { _held: None });
        }
        let shown = path.display();
        let deadline = Instant::now() + wait;
        loop {
            let refusal = match try_acquire(path, exclusion).map_err(|e| Error::io(shown.to_string(), e))? {
                Ok(held) => return Ok(Self { _held: Some(held) }),
                Err(refusal) => refusal,
            };
            if refusal.settled || Instant::now() >= deadline {
                return Err(Error::io(
                    shown.to_string(),
                    io::Error::new(io::ErrorKind::ResourceBusy, refusal.why),
                ));
            }
            std::thread::sleep(RETRY);
        }
    }
}

fn try_acquire(path: &Path, exclusion: Exclusion) -> io::Result<Result<Held, Refusal>> {
    match Identity::of(path)? {
        identity @ Identity::File { .. } => lock_file(path, identity, exclusion),
        identity @ Identity::Block { .. } => claim_device(path, identity),
    }
}

fn lock_file(path: &Path, identity: Identity, exclusion: Exclusion) -> io::Result<Result<Held, Refusal>> {
    let how = match exclusion {
        Exclusion::Exclusive => FlockArg::LockExclusiveNonblock,
        _ => FlockArg::LockSharedNonblock,
    };
    let lock = match Flock::lock(File::open(path)?, how) {
        Ok(lock) => lock,
        Err((_, nix::errno::Errno::EWOULDBLOCK)) => return Ok(Err(busy(identity, path))),
        Err((_, errno)) => return Err(errno.into()),
    };
    if let Some(refusal) = holders::loop_over(identity).map(|device| attached(&device)) {
        return Ok(Err(refusal));
    }
    Ok(Ok(Held::Flock { _lock: lock }))
}

/// An image that a loop device has attached; settled if that is mounted.
fn attached(device: &Path) -> Refusal {
    let mounted = Identity::of(device).ok().and_then(holders::mounted_on);
    match mounted {
        Some(dir) => Refusal {
            why: format!("in use: mounted on {} through {}", dir.display(), device.display()),
            settled: true,
        },
        None => Refusal { why: format!("in use: attached to {}", device.display()), settled: false },
    }
}

fn claim_device(path: &Path, identity: Identity) -> io::Result<Result<Held, Refusal>> {
    let file = match OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(path) {
        Ok(file) => file,
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => return Ok(Err(busy(identity, path))),
        Err(error) => return Err(error),
    };
    // A loop device over an image that is itself in use as a file.
    if let Some(image) = holders::backing_file(identity) {
        if let Ok(backing) = File::open(&image) {
            if let Err((_, nix::errno::Errno::EWOULDBLOCK)) =
                Flock::lock(backing, FlockArg::LockSharedNonblock)
            {
                let mut refusal = busy(Identity::of(&image)?, &image);
                refusal.why = format!("its image {} is {}", image.display(), refusal.why);
                return Ok(Err(refusal));
            }
        }
    }
    Ok(Ok(Held::Claim { _file: file }))
}

fn busy(identity: Identity, path: &Path) -> Refusal {
    if let Some(dir) = holders::mounted_on(identity) {
        return Refusal { why: format!("in use: mounted on {}", dir.display()), settled: true };
    }
    let why = match holders::name(identity, path) {
        Some(who) => format!("in use by {who}"),
        None => "in use by another process".to_owned(),
    };
    Refusal { why, settled: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_writer_or_many_readers_and_the_refusal_names_the_holder() {
        let image = tempfile::NamedTempFile::new().unwrap();
        let take = |exclusion| DeviceLock::acquire(image.path(), exclusion, Duration::ZERO);
        let writer = take(Exclusion::Exclusive).unwrap();
        let refused = take(Exclusion::Shared).unwrap_err().to_string();
        assert!(refused.contains(&format!("process {}", std::process::id())), "{refused}");
        take(Exclusion::None).unwrap();
        drop(writer);
        let reader = take(Exclusion::Shared).unwrap();
        take(Exclusion::Shared).unwrap();
        assert!(take(Exclusion::Exclusive).is_err());
        drop(reader);
        take(Exclusion::Exclusive).unwrap();
    }

    #[test]
    fn a_holder_on_its_way_out_is_waited_for() {
        let image = tempfile::NamedTempFile::new().unwrap();
        let lock = DeviceLock::acquire(image.path(), Exclusion::Exclusive, Duration::ZERO).unwrap();
        let leaving = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            drop(lock);
        });
        DeviceLock::acquire(image.path(), Exclusion::Exclusive, Duration::from_secs(20)).unwrap();
        leaving.join().unwrap();
    }
}
