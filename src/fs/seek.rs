//! SEEK_DATA and SEEK_HOLE, and copying between files.

use super::attr::Caller;
use super::{map, Fs};
use crate::error::{Error, Result};
use crate::format::inode::{FileKind, InodeFlags};
use crate::units::InodeNr;

/// Bytes that a copy moves at a time.
const COPY_BYTES: u64 = 1 << 20;

impl Fs {
    /// Where the next data (`whence` SEEK_DATA) or hole (SEEK_HOLE) at or behind `offset` begins; delayed writes are
    /// data, and the file's end is a hole. ENXIO behind the end.
    pub fn seek(&self, nr: InodeNr, offset: u64, whence: i32) -> Result<u64> {
        let inode = self.inode(nr)?;
        let state = inode.read();
        let size = state.size();
        if offset >= size {
            return Err(Error::NoSuchAddress);
        }
        if state.raw.kind() != Some(FileKind::Regular) {
            return Err(Error::Invalid);
        }
        if state.raw.flags.contains(InodeFlags::INLINE_DATA) {
            return match whence {
                libc::SEEK_DATA => Ok(offset),
                libc::SEEK_HOLE => Ok(size),
                _ => Err(Error::Invalid),
            };
        }
        let block_bytes = u64::from(self.geometry.block_bytes);
        let blocks = offset / block_bytes..size.div_ceil(block_bytes);
        let page_at = |block: u64| state.data.as_ref().is_some_and(|d| d.pages.contains_key(&(block as u32)));
        let found = match whence {
            libc::SEEK_DATA => {
                let on_disk = map::next_data(&self.geometry, &*self.cache, nr, &state.raw, blocks.clone())?;
                let delayed = state.data.as_ref().and_then(|d| {
                    d.pages.range(blocks.start as u32..).next().map(|(block, _)| u64::from(*block))
                });
                match (on_disk, delayed) {
                    (None, None) => return Err(Error::NoSuchAddress),
                    (disk, delayed) => disk.unwrap_or(u64::MAX).min(delayed.unwrap_or(u64::MAX)),
                }
            }
            libc::SEEK_HOLE => {
                let mut at = blocks.start;
                loop {
                    let hole = map::next_hole(&self.geometry, &*self.cache, nr, &state.raw, at..blocks.end)?;
                    let Some(hole) = hole else { return Ok(size) };
                    if !page_at(hole) {
                        break hole;
                    }
                    at = hole + 1;
                    if at >= blocks.end {
                        return Ok(size);
                    }
                }
            }
            _ => return Err(Error::Invalid),
        };
        if found * block_bytes >= size {
            return if whence == libc::SEEK_HOLE { Ok(size) } else { Err(Error::NoSuchAddress) };
        }
        Ok((found * block_bytes).max(offset))
    }

    /// Copies bytes between two files, or within one where the ranges don't overlap. Returns how many: fewer at the source's end.
    pub fn copy_range(
        &self,
        source: InodeNr,
        mut from: u64,
        target: InodeNr,
        mut to: u64,
        len: u64,
        caller: &Caller,
    ) -> Result<u64> {
        let mut copied = 0;
        while copied < len {
            let bytes = self.read(source, from, (len - copied).min(COPY_BYTES) as u32)?;
            if bytes.is_empty() {
                break;
            }
            let written = match self.write(target, to, &bytes, caller, true) {
                Ok(written) => u64::from(written),
                Err(error) if copied == 0 => return Err(error),
                Err(_) => break,
            };
            if written == 0 {
                break;
            }
            copied += written;
            from += written;
            to += written;
        }
        Ok(copied)
    }
}
