//! A device that fails when it is told to: for tests of everything that must survive that.

use super::{Device, SharedDevice};
use parking_lot::Mutex;
use std::io::{self, IoSlice};
use std::time::Duration;

/// A request, as a fault's predicate sees it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// A read.
    Read {
        /// First byte.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// A write (zeroing too).
    Write {
        /// First byte.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// A flush.
    Flush,
    /// A discard.
    Discard {
        /// First byte.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
}

impl Request {
    /// Whether this is a write.
    pub fn is_write(&self) -> bool {
        matches!(self, Request::Write { .. })
    }

    /// Whether this is a read.
    pub fn is_read(&self) -> bool {
        matches!(self, Request::Read { .. })
    }

    /// Whether the request touches any byte of this range.
    pub fn touches(&self, start: u64, end: u64) -> bool {
        match *self {
            Request::Read { offset, len }
            | Request::Write { offset, len }
            | Request::Discard { offset, len } => offset < end && offset.saturating_add(len) > start,
            Request::Flush => false,
        }
    }
}

/// What goes wrong with a request.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Failure {
    /// It fails with this errno, and nothing of it is done.
    Errno(i32),
    /// A write fails with EIO after these many bytes of it; anything else at once.
    Short(u64),
    /// It is done, later.
    Delay(Duration),
}

type Plan = Box<dyn FnMut(&Request) -> Option<Failure> + Send>;

/// Passes requests on to another device, except those that are to fail.
pub struct FaultyDevice {
    inner: SharedDevice,
    plan: Mutex<Option<Plan>>,
}

impl FaultyDevice {
    /// A device that does not fail yet.
    pub fn new(inner: SharedDevice) -> Self {
        Self { inner, plan: Mutex::new(None) }
    }

    /// From now on `plan` decides what goes wrong.
    pub fn plan(&self, plan: impl FnMut(&Request) -> Option<Failure> + Send + 'static) {
        *self.plan.lock() = Some(Box::new(plan));
    }

    /// Fails each request for which `predicate` is true, from now on, with EIO.
    pub fn fail_when(&self, mut predicate: impl FnMut(&Request) -> bool + Send + 'static) {
        self.plan(move |request| predicate(request).then_some(Failure::Errno(libc::EIO)));
    }

    /// Fails the first request for which `predicate` is true, and none after it.
    pub fn fail_once(&self, mut predicate: impl FnMut(&Request) -> bool + Send + 'static) {
        let mut failed = false;
        self.fail_when(move |request| {
            let fails = !failed && predicate(request);
            failed |= fails;
            fails
        });
    }

    /// Fails the first request for which `predicate` is true, and everything after it: a device that is gone.
    pub fn fail_from(&self, mut predicate: impl FnMut(&Request) -> bool + Send + 'static) {
        let mut failed = false;
        self.fail_when(move |request| {
            failed = failed || predicate(request);
            failed
        });
    }

    /// Fails nothing any more.
    pub fn heal(&self) {
        *self.plan.lock() = None;
    }

    /// What is to be done of a request: all, or so many bytes of a write.
    fn check(&self, request: Request) -> io::Result<Option<u64>> {
        let failure = self.plan.lock().as_mut().and_then(|plan| plan(&request));
        match (failure, request) {
            (None, _) => Ok(None),
            (Some(Failure::Delay(time)), _) => {
                std::thread::sleep(time);
                Ok(None)
            }
            (Some(Failure::Short(bytes)), Request::Write { len, .. }) => Ok(Some(bytes.min(len))),
            (Some(Failure::Short(_)), _) => Err(eio()),
            (Some(Failure::Errno(errno)), _) => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    fn write_short(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.inner.write_at(offset, buf)?;
        Err(eio())
    }
}

fn eio() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}

impl Device for FaultyDevice {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.check(Request::Read { offset, len: buf.len() as u64 })?;
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        match self.check(Request::Write { offset, len: buf.len() as u64 })? {
            None => self.inner.write_at(offset, buf),
            Some(short) => self.write_short(offset, buf.get(..short as usize).unwrap_or_default()),
        }
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        match self.check(Request::Write { offset, len: bufs.iter().map(|buf| buf.len() as u64).sum() })? {
            None => self.inner.write_vectored_at(offset, bufs),
            Some(short) => {
                let all: Vec<u8> =
                    bufs.iter().flat_map(|buf| buf.iter().copied()).take(short as usize).collect();
                self.write_short(offset, &all)
            }
        }
    }

    fn flush(&self) -> io::Result<()> {
        self.check(Request::Flush)?;
        self.inner.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check(Request::Discard { offset, len })?;
        self.inner.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        match self.check(Request::Write { offset, len })? {
            None => self.inner.write_zeroes(offset, len),
            Some(short) => {
                self.inner.write_zeroes(offset, short)?;
                Err(eio())
            }
        }
    }

    fn read_only(&self) -> bool {
        self.inner.read_only()
    }

    fn sector_bytes(&self) -> u32 {
        self.inner.sector_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::memory::MemoryDevice;
    use std::sync::Arc;

    #[test]
    fn fails_once_from_then_on_and_by_place() {
        let device = FaultyDevice::new(Arc::new(MemoryDevice::new(1 << 16)));
        device.fail_once(Request::is_write);
        device.read_at(0, &mut [0; 4]).unwrap();
        assert_eq!(device.write_at(0, &[1]).unwrap_err().raw_os_error(), Some(libc::EIO));
        device.write_at(0, &[1]).unwrap();
        device.fail_from(|request| *request == Request::Flush);
        device.write_at(0, &[1]).unwrap();
        assert!(
            device.flush().is_err()
                && device.write_at(0, &[1]).is_err()
                && device.read_at(0, &mut [0]).is_err()
        );
        device.fail_when(|request| request.is_read() && request.touches(100, 200));
        device.read_at(0, &mut [0; 100]).unwrap();
        assert!(device.read_at(0, &mut [0; 101]).is_err());
        device.read_at(200, &mut [0; 100]).unwrap();
        device.plan(|_| Some(Failure::Short(3)));
        assert_eq!(device.write_at(8, &[7; 5]).unwrap_err().raw_os_error(), Some(libc::EIO));
        device.plan(|_| Some(Failure::Errno(libc::ENOSPC)));
        assert_eq!(device.write_at(9, &[1]).unwrap_err().raw_os_error(), Some(libc::ENOSPC));
        device.heal();
        let mut bytes = [0; 101];
        device.read_at(0, &mut bytes).unwrap();
        assert_eq!(bytes[8..13], [7, 7, 7, 0, 0]);
    }
}
