//! Sector-aligned memory, so that direct I/O needs no second copy.

use parking_lot::Mutex;
use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Bytes in a sector of [`IoBuf`]; also its alignment.
pub const SECTOR_BYTES: usize = 512;

#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(512))]
struct Sector([u8; SECTOR_BYTES]);

/// Zeroed or copied bytes in sector-aligned memory; the length is a whole number of sectors.
pub struct IoBuf(Box<[Sector]>);

/// The largest buffer that is kept for reuse, in sectors: one block of 4 KiB.
const KEPT_SECTORS_MAX: usize = 8;
/// How many buffers of each size are kept.
const KEPT_MAX: usize = 512;

/// Buffers of block size (1, 2, 4 or 8 sectors) that nobody uses. Every change of a metadata block makes and drops
/// one, often on different threads, which is the worst case of a general allocator with aligned memory.
static KEPT: [Mutex<Vec<Box<[Sector]>>>; 4] = [const { Mutex::new(Vec::new()) }; 4];

thread_local! {
    /// The last larger buffer that this thread dropped. Who answers reads makes and drops one of the same size over and
    /// over; from the system each would come as pages to be zeroed first, which costs as much as filling them.
    static LARGE: Cell<Box<[Sector]>> = Cell::default();
}

/// The largest buffer that a thread keeps, in sectors: a request of the kernel's, 1 MiB.
const LARGE_SECTORS_MAX: usize = 2048;

/// Where buffers of so many sectors are kept.
fn kept(sectors: usize) -> Option<&'static Mutex<Vec<Box<[Sector]>>>> {
    if sectors.is_power_of_two() && sectors <= KEPT_SECTORS_MAX {
        KEPT.get(sectors.trailing_zeros() as usize)
    } else {
        None
    }
}

impl IoBuf {
    /// `len` zero bytes; `len` is rounded up to whole sectors.
    pub fn zeroed(len: usize) -> Self {
        let sectors = len.div_ceil(SECTOR_BYTES);
        match Self::reused(sectors) {
            Some(mut buf) => {
                buf.fill(0);
                buf
            }
            None => Self::fresh(sectors),
        }
    }

    fn fresh(sectors: usize) -> Self {
        Self(<[Sector]>::new_box_zeroed_with_elems(sectors).expect("memory for an I/O buffer"))
    }

    /// `len` bytes of whatever, rounded up to whole sectors: for who fills them all.
    pub fn unfilled(len: usize) -> Self {
        let sectors = len.div_ceil(SECTOR_BYTES);
        if let Some(buf) = Self::reused(sectors) {
            return buf;
        }
        match LARGE.take() {
            large if large.len() == sectors => Self(large),
            _ => Self::fresh(sectors),
        }
    }

    /// A buffer with whatever its last user left in it.
    fn reused(sectors: usize) -> Option<Self> {
        kept(sectors)?.lock().pop().map(Self)
    }

    /// `bytes`, which are whole sectors, or zeroes behind them.
    fn copied(bytes: &[u8]) -> Self {
        let sectors = bytes.len().div_ceil(SECTOR_BYTES);
        let mut buf = Self::reused(sectors).unwrap_or_else(|| Self::fresh(sectors));
        let (copy, rest) = buf.split_at_mut(bytes.len());
        copy.copy_from_slice(bytes);
        rest.fill(0);
        buf
    }
}

impl Clone for IoBuf {
    fn clone(&self) -> Self {
        Self::copied(self)
    }
}

impl Drop for IoBuf {
    fn drop(&mut self) {
        let sectors = self.0.len();
        let Some(kept) = kept(sectors) else {
            if sectors <= LARGE_SECTORS_MAX && sectors > KEPT_SECTORS_MAX {
                // A thread that ends keeps nothing.
                let _ = LARGE.try_with(|large| large.set(std::mem::take(&mut self.0)));
            }
            return;
        };
        let mut kept = kept.lock();
        if kept.len() < KEPT_MAX {
            kept.push(std::mem::take(&mut self.0));
        }
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
        Self { bytes: IoBuf::copied(bytes), verified: AtomicBool::new(false) }
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

    #[test]
    fn a_reused_buffer_shows_nothing_of_its_last_use() {
        for len in [512, 1024, 4096, 4000] {
            for _ in 0..3 {
                let mut buf = IoBuf::zeroed(len);
                assert!(buf.iter().all(|b| *b == 0));
                buf.fill(0xff);
                assert_eq!(&*buf.clone(), &*buf);
                let part = IoBuf::copied(&buf[..len - 100]);
                assert!(part[len - 100..].iter().all(|b| *b == 0));
            }
        }
    }
}
