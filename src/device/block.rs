//! A block device.

use super::raw::{self, Alignment, RawFile};
use super::Device;
use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;
use std::path::Path;

/// The ioctls of `linux/fs.h` that a block device answers.
mod ioctls {
    use nix::{ioctl_read_bad, ioctl_write_ptr_bad, request_code_none, request_code_read};
    ioctl_read_bad!(
        /// The device's size in bytes.
        get_size, request_code_read!(0x12, 114, std::mem::size_of::<usize>()), u64);
    ioctl_read_bad!(
        /// The logical sector size in bytes.
        sector_size, request_code_none!(0x12, 104), libc::c_int);
    ioctl_read_bad!(
        /// Whether the device refuses writes.
        read_only, request_code_none!(0x12, 94), libc::c_int);
    ioctl_write_ptr_bad!(
        /// Discards a start and a length in bytes.
        discard, request_code_none!(0x12, 119), [u64; 2]);
    ioctl_write_ptr_bad!(
        /// Zeroes a start and a length in bytes.
        zero_out, request_code_none!(0x12, 127), [u64; 2]);
}

/// A block device. Who else may have it open is [`DeviceLock`](super::lock::DeviceLock)'s business.
pub struct BlockDevice {
    raw: RawFile,
    size_bytes: u64,
    sector_bytes: u32,
}

impl BlockDevice {
    /// Opens the device at `path`, with direct I/O if that is wanted.
    pub fn open(path: &Path, read_only: bool, direct: bool) -> io::Result<Self> {
        let (file, direct) = raw::open(path, read_only, direct)?;
        let (mut size_bytes, mut sector, mut write_protected) = (0u64, 0, 0);
        // SAFETY: each ioctl fills the one integer that it is given.
        unsafe {
            ioctls::get_size(file.as_raw_fd(), &raw mut size_bytes)?;
            ioctls::sector_size(file.as_raw_fd(), &raw mut sector)?;
            ioctls::read_only(file.as_raw_fd(), &raw mut write_protected)?;
        }
        if write_protected != 0 && !read_only {
            return Err(io::Error::from_raw_os_error(libc::EROFS));
        }
        let sector_bytes = u32::try_from(sector).ok().filter(|n| n.is_power_of_two()).unwrap_or(512);
        let sector_alignment = Alignment { offset: sector_bytes as usize, memory: 512 };
        let alignment = raw::stat_alignment(&file).unwrap_or(sector_alignment);
        let raw = RawFile::new(file, read_only, direct.then_some(alignment));
        Ok(Self { raw, size_bytes, sector_bytes })
    }

    fn check(&self, offset: u64, len: u64) -> io::Result<()> {
        super::check_range(self.size_bytes, offset, len)
    }

    /// The whole sectors inside a range, as a start and a length.
    fn whole_sectors(&self, offset: u64, len: u64) -> [u64; 2] {
        let sector = u64::from(self.sector_bytes);
        let start = offset.next_multiple_of(sector);
        let end = (offset + len) / sector * sector;
        [start, end.saturating_sub(start)]
    }
}

impl Device for BlockDevice {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.check(offset, buf.len() as u64)?;
        self.raw.read(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.check(offset, buf.len() as u64)?;
        self.raw.write(offset, buf)
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        self.check(offset, bufs.iter().map(|buf| buf.len() as u64).sum())?;
        self.raw.write_vectored(offset, bufs)
    }

    fn flush(&self) -> io::Result<()> {
        self.raw.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.raw.writable()?;
        self.check(offset, len)?;
        let sectors = self.whole_sectors(offset, len);
        if sectors[1] > 0 {
            // SAFETY: the ioctl reads the two integers that it is given.
            unsafe { ioctls::discard(self.raw.file.as_raw_fd(), &raw const sectors)? };
        }
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        self.raw.writable()?;
        self.check(offset, len)?;
        let sectors = self.whole_sectors(offset, len);
        if sectors[1] == 0 {
            return super::write_zero_bytes(self, offset, len);
        }
        super::write_zero_bytes(self, offset, sectors[0] - offset)?;
        // SAFETY: the ioctl reads the two integers that it is given.
        match unsafe { ioctls::zero_out(self.raw.file.as_raw_fd(), &raw const sectors) } {
            Ok(_) => {}
            // The ioctl first drops the range from the page cache, and can't while a page there is busy, nor
            // claim a device that our own lock claims. Writing is always possible.
            Err(nix::errno::Errno::EBUSY | nix::errno::Errno::EOPNOTSUPP) => {
                super::write_zero_bytes(self, sectors[0], sectors[1])?;
            }
            Err(errno) => return Err(errno.into()),
        }
        let end = sectors[0] + sectors[1];
        super::write_zero_bytes(self, end, offset + len - end)
    }

    fn read_only(&self) -> bool {
        self.raw.read_only
    }

    fn sector_bytes(&self) -> u32 {
        self.sector_bytes
    }
}
