//! Sector-aligned memory, so that direct I/O needs no second copy.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Bytes in a sector of [`IoBuf`]; also its alignment.
pub const SECTOR_BYTES: usize = 512;

#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(512))]
struct Sector([u8; SECTOR_BYTES]);

/// Zeroed or copied bytes in sector-aligned memory; the length is a whole number of sectors.
#[derive(Clone)]
pub struct IoBuf(Box<[Sector]>);

impl IoBuf {
    /// `len` zero bytes; `len` is rounded up to whole sectors.
    pub fn zeroed(len: usize) -> Self {
        let sectors = len.div_ceil(SECTOR_BYTES);
        Self(<[Sector]>::new_box_zeroed_with_elems(sectors).expect("memory for an I/O buffer"))
    }
}

impl Deref for IoBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl DerefMut for IoBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.0.as_mut_bytes()
    }
}

/// One file-system block in memory.
///
/// `verified` remembers that the block's checksum and structure were checked, so that each cached
/// block is checked once; a clone (made to be modified) keeps it, since who modifies also seals.
pub struct Block {
    bytes: IoBuf,
    verified: AtomicBool,
}

impl Block {
    /// A block of zeroes.
    pub fn zeroed(len: usize) -> Self {
        Self { bytes: IoBuf::zeroed(len), verified: AtomicBool::new(false) }
    }

    /// A block with these bytes.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut block = Self::zeroed(bytes.len());
        block.bytes.copy_from_slice(bytes);
        block
    }

    /// Whether [`set_verified`](Self::set_verified) was called on this block or its source.
    pub fn is_verified(&self) -> bool {
        self.verified.load(Ordering::Acquire)
    }

    /// Remembers that the contents have been checked.
    pub fn set_verified(&self) {
        self.verified.store(true, Ordering::Release);
    }
}

impl Clone for Block {
    fn clone(&self) -> Self {
        Self { bytes: self.bytes.clone(), verified: AtomicBool::new(self.is_verified()) }
    }
}

impl Deref for Block {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for Block {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl std::fmt::Debug for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Block({} bytes)", self.bytes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_zero_aligned_and_whole_sectors() {
        let buf = IoBuf::zeroed(1000);
        assert_eq!(buf.len(), 1024);
        assert_eq!(buf.as_ptr() as usize % SECTOR_BYTES, 0);
        assert!(buf.iter().all(|b| *b == 0));
    }
}
