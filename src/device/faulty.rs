//! A device that fails when it is told to: for tests of everything that must survive that.

use super::{Device, SharedDevice};
use parking_lot::Mutex;
use std::io::{self, IoSlice};

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

type Predicate = Box<dyn FnMut(&Request) -> bool + Send>;

/// Passes requests on to another device, except those that are to fail (with EIO).
pub struct FaultyDevice {
    inner: SharedDevice,
    fails: Mutex<Option<Predicate>>,
}

impl FaultyDevice {
    /// A device that does not fail yet.
    pub fn new(inner: SharedDevice) -> Self {
        Self { inner, fails: Mutex::new(None) }
    }

    /// Fails each request for which `predicate` is true, from now on.
    pub fn fail_when(&self, predicate: impl FnMut(&Request) -> bool + Send + 'static) {
        *self.fails.lock() = Some(Box::new(predicate));
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
        *self.fails.lock() = None;
    }

    fn check(&self, request: Request) -> io::Result<()> {
        if self.fails.lock().as_mut().is_some_and(|fails| fails(&request)) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        Ok(())
    }
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
        self.check(Request::Write { offset, len: buf.len() as u64 })?;
        self.inner.write_at(offset, buf)
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        self.check(Request::Write { offset, len: bufs.iter().map(|buf| buf.len() as u64).sum() })?;
        self.inner.write_vectored_at(offset, bufs)
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
        self.check(Request::Write { offset, len })?;
        self.inner.write_zeroes(offset, len)
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
        device.heal();
        device.read_at(0, &mut [0; 101]).unwrap();
    }
}
