//! An image file.

use super::raw::{self, Alignment, RawFile};
use super::{Device, IoBuf};
use nix::fcntl::{fallocate, FallocateFlags};
use nix::sys::uio;
use std::fs::File;
use std::io::{self, IoSlice};
use std::path::Path;

/// An image file: a file system's bytes in a regular file.
pub struct FileDevice {
    raw: RawFile,
    size_bytes: u64,
    sector_bytes: u32,
}

impl FileDevice {
    /// Opens the image at `path`, with direct I/O if that is wanted and possible there.
    pub fn open(path: &Path, read_only: bool, direct: bool) -> io::Result<Self> {
        let (file, direct) = raw::open(path, read_only, direct)?;
        let size_bytes = file.metadata()?.len();
        let alignment = if direct { alignment_of(&file, size_bytes) } else { None };
        let (file, sector_bytes) = match alignment {
            Some(alignment) => (file, alignment.offset as u32),
            None if direct => (raw::open(path, read_only, false)?.0, 512),
            None => (file, 512),
        };
        Ok(Self { raw: RawFile::new(file, read_only, alignment), size_bytes, sector_bytes })
    }

    fn check(&self, offset: u64, len: u64) -> io::Result<()> {
        super::check_range(self.size_bytes, offset, len)
    }

    fn punch(&self, offset: u64, len: u64, how: FallocateFlags) -> io::Result<()> {
        self.raw.writable()?;
        self.check(offset, len)?;
        if len == 0 {
            return Ok(());
        }
        let flags = how | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        Ok(fallocate(&self.raw.file, flags, offset as i64, len as i64)?)
    }
}

/// What direct I/O on `file` asks for; nothing if it can't be used for the whole image.
fn alignment_of(file: &File, size_bytes: u64) -> Option<Alignment> {
    let alignment = raw::stat_alignment(file).unwrap_or(Alignment { offset: 512, memory: 512 });
    if size_bytes % alignment.offset as u64 != 0 {
        return None;
    }
    // Some file systems accept the flag and refuse the requests.
    let mut probe = IoBuf::zeroed(alignment.offset);
    (size_bytes == 0 || uio::pread(file, &mut probe, 0).is_ok()).then_some(alignment)
}

impl Device for FileDevice {
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
        self.punch(offset, len, FallocateFlags::FALLOC_FL_PUNCH_HOLE)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        for how in [FallocateFlags::FALLOC_FL_PUNCH_HOLE, FallocateFlags::FALLOC_FL_ZERO_RANGE] {
            match self.punch(offset, len, how) {
                Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
                result => return result,
            }
        }
        super::write_zero_bytes(self, offset, len)
    }

    fn read_only(&self) -> bool {
        self.raw.read_only
    }

    fn sector_bytes(&self) -> u32 {
        self.sector_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Direct I/O and the page cache must give the same bytes for every alignment.
    #[test]
    fn any_alignment_reads_back_both_ways() {
        for direct in [false, true] {
            let file = tempfile::NamedTempFile::new().unwrap();
            file.as_file().set_len(1 << 20).unwrap();
            let device = FileDevice::open(file.path(), false, direct).unwrap();
            let mut want = vec![0u8; 1 << 20];
            for (n, (offset, len)) in
                [(0, 4096), (100, 10), (511, 2), (4095, 8194), (1 << 19, 3 << 16), ((1 << 20) - 5, 5)]
                    .into_iter()
                    .enumerate()
            {
                let bytes = vec![n as u8 + 1; len];
                device.write_at(offset as u64, &bytes).unwrap();
                want[offset..offset + len].copy_from_slice(&bytes);
            }
            device.write_zeroes(5000, 1000).unwrap();
            want[5000..6000].fill(0);
            device.discard(1 << 19, 65536).unwrap();
            want[1 << 19..(1 << 19) + 65536].fill(0);
            device.flush().unwrap();
            let mut got = vec![9; (1 << 20) - 7];
            device.read_at(7, &mut got).unwrap();
            assert!(got == want[7..], "direct: {direct}");
            assert!(device.read_at(1 << 20, &mut [0]).is_err());
            assert!(device.write_at((1 << 20) - 1, &[0; 2]).is_err());
        }
    }

    #[test]
    fn a_read_only_image_refuses_writes() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(4096).unwrap();
        let device = FileDevice::open(file.path(), true, true).unwrap();
        for result in [device.write_at(0, &[1]), device.discard(0, 512), device.write_zeroes(0, 512)] {
            assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EROFS));
        }
        device.flush().unwrap();
    }

    #[test]
    fn an_odd_size_falls_back_to_the_page_cache() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1000).unwrap();
        let device = FileDevice::open(file.path(), false, true).unwrap();
        device.write_at(990, &[3; 10]).unwrap();
        let mut tail = [0; 10];
        device.read_at(990, &mut tail).unwrap();
        assert_eq!(tail, [3; 10]);
        assert_eq!(file.as_file().metadata().unwrap().len(), 1000);
    }
}
