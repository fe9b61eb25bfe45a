//! Whole reads and writes on a file descriptor, direct or buffered: what image files and block
//! devices have in common.

use super::buf::IoBuf;
use nix::errno::Errno;
use nix::sys::uio;
use parking_lot::Mutex;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The most buffers that one `pwritev` takes (`UIO_MAXIOV`).
const IOV_MAX: usize = 1024;

/// The most bytes that go through a bounce buffer at once.
const BOUNCE_BYTES: usize = 1 << 20;

/// What direct I/O asks of a request; absent where the page cache is used.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Alignment {
    /// Offsets and lengths are multiples of this many bytes.
    pub(super) offset: usize,
    /// Memory starts at multiples of this many bytes; at most [`SECTOR_BYTES`](super::buf::SECTOR_BYTES)
    /// where no copy is to be made.
    pub(super) memory: usize,
}

impl Alignment {
    fn fits(self, offset: u64, buf: &[u8]) -> bool {
        offset % self.offset as u64 == 0
            && buf.len() % self.offset == 0
            && buf.as_ptr().addr() % self.memory == 0
    }
}

/// An open file or device with its alignment rules.
pub(super) struct RawFile {
    pub(super) file: File,
    pub(super) read_only: bool,
    direct: Option<Alignment>,
    /// Held over the read-modify-write of sectors that a request covers in part, so that two blocks of one
    /// sector can be written at the same time.
    partial: Mutex<()>,
}

/// Opens `path`; with `direct` past the page cache if the file system there can.
/// The flag returned says whether that came true.
pub(super) fn open(path: &Path, read_only: bool, direct: bool) -> io::Result<(File, bool)> {
    let mut options = OpenOptions::new();
    options.read(true).write(!read_only);
    if direct {
        match options.custom_flags(libc::O_DIRECT).open(path) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
            opened => return Ok((opened?, true)),
        }
    }
    Ok((options.custom_flags(0).open(path)?, false))
}

/// The kernel's own answer (`STATX_DIOALIGN`, Linux 6.1), where it has one.
pub(super) fn stat_alignment(file: &File) -> Option<Alignment> {
    let mut stat = std::mem::MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: the descriptor is open, the path is an empty C string as AT_EMPTY_PATH wants, and `stat` is
    // valid for the kernel to fill.
    let result = unsafe {
        libc::statx(
            file.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            libc::STATX_DIOALIGN,
            stat.as_mut_ptr(),
        )
    };
    // SAFETY: any bytes, zeroed ones too, are a valid `statx`.
    let stat = unsafe { stat.assume_init() };
    let usable = |n: u32| n.is_power_of_two() && n <= 65536;
    if result != 0
        || stat.stx_mask & libc::STATX_DIOALIGN == 0
        || !usable(stat.stx_dio_mem_align)
        || !usable(stat.stx_dio_offset_align)
    {
        return None;
    }
    Some(Alignment {
        offset: (stat.stx_dio_offset_align as usize).max(512),
        memory: stat.stx_dio_mem_align as usize,
    })
}

impl RawFile {
    pub(super) fn new(file: File, read_only: bool, direct: Option<Alignment>) -> Self {
        Self { file, read_only, direct, partial: Mutex::new(()) }
    }

    /// Fills `buf` from `offset`.
    pub(super) fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        match self.direct {
            Some(alignment) if !alignment.fits(offset, buf) => self.read_bounced(alignment, offset, buf),
            _ => self.read_whole(offset, buf),
        }
    }

    /// Writes `buf` at `offset`.
    pub(super) fn write(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.writable()?;
        match self.direct {
            Some(alignment) if !alignment.fits(offset, buf) => self.write_bounced(alignment, offset, buf),
            _ => self.write_whole(offset, buf),
        }
    }

    /// Writes the buffers one behind the other, `IOV_MAX` of them in a request.
    pub(super) fn write_vectored(&self, mut offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        self.writable()?;
        if let Some(alignment) = self.direct {
            let mut at = offset;
            let fits = bufs.iter().all(|buf| {
                let fits = alignment.fits(at, buf);
                at += buf.len() as u64;
                fits
            });
            if !fits {
                let all: Vec<u8> = bufs.iter().flat_map(|buf| buf.iter().copied()).collect();
                return self.write(offset, &all);
            }
        }
        for bufs in bufs.chunks(IOV_MAX) {
            offset += self.write_iov(offset, bufs)?;
        }
        Ok(())
    }

    /// Makes what was written durable.
    pub(super) fn flush(&self) -> io::Result<()> {
        if self.read_only {
            return Ok(());
        }
        loop {
            match self.file.sync_data() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }

    /// EBADF-like refusals of the kernel would not say why.
    pub(super) fn writable(&self) -> io::Result<()> {
        if self.read_only {
            return Err(io::Error::from_raw_os_error(libc::EROFS));
        }
        Ok(())
    }

    fn read_whole(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match uio::pread(&self.file, rest, offset.saturating_add(done as u64) as i64) {
                Ok(0) => return Err(beyond_end()),
                Ok(count) => done += count,
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    fn write_whole(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        let mut done = 0;
        while let Some(rest) = buf.get(done..).filter(|rest| !rest.is_empty()) {
            match uio::pwrite(&self.file, rest, offset.saturating_add(done as u64) as i64) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => done += count,
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Writes at most `IOV_MAX` buffers and returns how many bytes that was.
    fn write_iov(&self, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<u64> {
        let total: usize = bufs.iter().map(|buf| buf.len()).sum();
        let mut written = loop {
            match uio::pwritev(&self.file, bufs, offset as i64) {
                Ok(0) if total > 0 => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => break count,
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        };
        let mut start = 0;
        for buf in bufs {
            let end = start + buf.len();
            if written < end {
                let rest = buf.get(written - start..).unwrap_or_default();
                // A direct write that stops inside a sector leaves an unaligned rest.
                self.write(offset + written as u64, rest)?;
                written = end;
            }
            start = end;
        }
        Ok(total as u64)
    }

    fn read_bounced(&self, alignment: Alignment, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let mut at = offset;
        for part in buf.chunks_mut(BOUNCE_BYTES) {
            let (start, lead, len) = surround(alignment, at, part.len());
            let mut bounce = AlignedBuf::new(alignment, len);
            self.read_whole(start, bounce.bytes_mut())?;
            part.copy_from_slice(bounce.bytes().get(lead..lead + part.len()).ok_or_else(beyond_end)?);
            at += part.len() as u64;
        }
        Ok(())
    }

    fn write_bounced(&self, alignment: Alignment, offset: u64, buf: &[u8]) -> io::Result<()> {
        let mut at = offset;
        for part in buf.chunks(BOUNCE_BYTES) {
            let (start, lead, len) = surround(alignment, at, part.len());
            let mut bounce = AlignedBuf::new(alignment, len);
            let partial = lead > 0 || lead + part.len() < len;
            let _guard = partial.then(|| self.partial.lock());
            let bytes = bounce.bytes_mut();
            let sector = alignment.offset;
            if lead > 0 {
                self.read_whole(start, &mut bytes[..sector])?;
            }
            if lead + part.len() < len && (lead == 0 || len > sector) {
                self.read_whole(start + (len - sector) as u64, &mut bytes[len - sector..])?;
            }
            bytes[lead..lead + part.len()].copy_from_slice(part);
            self.write_whole(start, bytes)?;
            at += part.len() as u64;
        }
        Ok(())
    }
}

/// The whole sectors around a request: their start, where the request begins in them, their length.
fn surround(alignment: Alignment, offset: u64, len: usize) -> (u64, usize, usize) {
    let sector = alignment.offset as u64;
    let start = offset / sector * sector;
    let lead = (offset - start) as usize;
    (start, lead, (lead + len).next_multiple_of(alignment.offset))
}

/// Memory that starts at a multiple of what direct I/O asks for.
struct AlignedBuf {
    memory: IoBuf,
    start: usize,
    len: usize,
}

impl AlignedBuf {
    fn new(alignment: Alignment, len: usize) -> Self {
        let memory = IoBuf::zeroed(len + alignment.memory);
        let start = memory.as_ptr().addr().next_multiple_of(alignment.memory) - memory.as_ptr().addr();
        Self { memory, start, len }
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

/// The error of a request that leaves the device.
pub(super) fn beyond_end() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "beyond the device's end")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_widened_to_whole_sectors() {
        let alignment = Alignment { offset: 512, memory: 512 };
        assert_eq!(surround(alignment, 1000, 100), (512, 488, 1024));
        assert_eq!(surround(alignment, 1024, 512), (1024, 0, 512));
    }

    #[test]
    fn partial_sectors_keep_their_neighbours() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 16).unwrap();
        let alignment = Alignment { offset: 4096, memory: 512 };
        let raw = RawFile::new(file, false, Some(alignment));
        raw.write(0, &vec![1; 1 << 16]).unwrap();
        for (offset, len) in [(5000u64, 10usize), (4000, 9000), (8192, 100), (8000, 192), (16000, 384)] {
            raw.write(offset, &vec![2; len]).unwrap();
            let mut all = vec![0; 1 << 16];
            raw.read(0, &mut all).unwrap();
            for (at, byte) in all.iter().enumerate() {
                let inside = (offset as usize..offset as usize + len).contains(&at);
                assert_eq!(*byte, if inside { 2 } else { 1 }, "byte {at} after a write at {offset}");
            }
            raw.write(offset, &vec![1; len]).unwrap();
        }
    }

    #[test]
    fn more_buffers_than_one_request_takes_are_all_written() {
        let file = tempfile::tempfile().unwrap();
        let raw = RawFile::new(file, false, None);
        let bufs: Vec<[u8; 3]> = (0..2500u32).map(|n| [n as u8, (n >> 8) as u8, 7]).collect();
        let slices: Vec<IoSlice<'_>> = bufs.iter().map(|buf| IoSlice::new(buf)).collect();
        raw.write_vectored(5, &slices).unwrap();
        let mut all = vec![0; 7500];
        raw.read(5, &mut all).unwrap();
        assert_eq!(all, bufs.concat());
    }
}
