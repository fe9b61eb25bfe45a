//! The part of a device from an offset on: the `offset=` mount option.

use super::{Device, SharedDevice};
use std::io::{self, IoSlice};

/// A device that begins `offset` bytes into another one and ends with it.
pub struct Window {
    inner: SharedDevice,
    offset: u64,
    size_bytes: u64,
}

impl Window {
    /// The bytes of `inner` from `offset` on; an error if there are none.
    pub fn new(inner: SharedDevice, offset: u64) -> io::Result<Self> {
        let size_bytes =
            inner.size_bytes().checked_sub(offset).filter(|size| *size > 0).ok_or_else(|| {
                let text = format!("offset {offset} is beyond the end ({} bytes)", inner.size_bytes());
                io::Error::new(io::ErrorKind::InvalidInput, text)
            })?;
        Ok(Self { inner, offset, size_bytes })
    }

    fn place(&self, offset: u64, len: u64) -> io::Result<u64> {
        super::check_range(self.size_bytes, offset, len)?;
        Ok(self.offset + offset)
    }
}

impl Device for Window {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(self.place(offset, buf.len() as u64)?, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.inner.write_at(self.place(offset, buf.len() as u64)?, buf)
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        let len = bufs.iter().map(|buf| buf.len() as u64).sum();
        self.inner.write_vectored_at(self.place(offset, len)?, bufs)
    }

    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.discard(self.place(offset, len)?, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.write_zeroes(self.place(offset, len)?, len)
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
    fn a_window_begins_at_its_offset_and_ends_with_the_device() {
        let whole: SharedDevice = Arc::new(MemoryDevice::new(10_000));
        let window = Window::new(whole.clone(), 4096).unwrap();
        assert_eq!(window.size_bytes(), 5904);
        window.write_at(1, &[5; 3]).unwrap();
        let mut bytes = [0; 5];
        whole.read_at(4096, &mut bytes).unwrap();
        assert_eq!(bytes, [0, 5, 5, 5, 0]);
        window.write_vectored_at(0, &[IoSlice::new(&[1]), IoSlice::new(&[2])]).unwrap();
        whole.read_at(4096, &mut bytes).unwrap();
        assert_eq!(bytes, [1, 2, 5, 5, 0]);
        assert!(window.write_at(5903, &[0; 2]).is_err());
        assert!(window.read_at(u64::MAX, &mut bytes).is_err());
        assert!(Window::new(whole, 10_000).is_err());
    }
}
