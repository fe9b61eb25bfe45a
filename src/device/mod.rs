//! Where the bytes live: image files, block devices and the test devices, behind one trait.
//! Everything above may call it; it calls nothing of the project's but `units` and `error`.

pub mod block;
pub mod buf;
pub mod faulty;
pub mod file;
pub mod holders;
pub mod lock;
pub mod memory;
pub mod open;
mod raw;
pub mod recording;
pub mod window;

pub use buf::{Block, IoBuf};
pub use open::{open, OpenDevice, OpenOptions};

use std::io;
use std::sync::Arc;

/// Something that stores bytes and can make them durable.
///
/// Offsets and lengths are in bytes, and any alignment is accepted: an implementation that needs
/// more (direct I/O) copies through a buffer of its own. Reads and writes are whole or an error.
/// A write that returned may still be lost until a later [`flush`](Device::flush) succeeds; a flush makes durable
/// everything whose write had returned before the flush was called. After a failed flush nothing
/// may be assumed of any write since the flush before it.
pub trait Device: Send + Sync {
    /// The device's size in bytes.
    fn size_bytes(&self) -> u64;

    /// Fills `buf` from `offset`.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;

    /// Writes all of `buf` at `offset`.
    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()>;

    /// Writes the buffers one behind the other from `offset`, as one request where that is possible.
    fn write_vectored_at(&self, mut offset: u64, bufs: &[io::IoSlice<'_>]) -> io::Result<()> {
        for buf in bufs {
            self.write_at(offset, buf)?;
            offset += buf.len() as u64;
        }
        Ok(())
    }

    /// Makes everything written so far durable.
    fn flush(&self) -> io::Result<()>;

    /// Tells the device that the bytes are not needed; what they read as afterwards is undefined.
    /// EOPNOTSUPP where the device has no such request.
    fn discard(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Makes the bytes zero, cheaply where the device can (a hole in an image file).
    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        write_zero_bytes(self, offset, len)
    }

    /// Whether writes are refused.
    fn read_only(&self) -> bool;

    /// The smallest write that the device does whole (512 or 4096).
    fn sector_bytes(&self) -> u32 {
        512
    }
}

/// A device that several layers hold.
pub type SharedDevice = Arc<dyn Device>;

/// Zeroes by writing them: what every device can do.
fn write_zero_bytes(device: &(impl Device + ?Sized), offset: u64, len: u64) -> io::Result<()> {
    let zeroes = IoBuf::zeroed(len.min(1 << 20) as usize);
    let mut done = 0;
    while done < len {
        let chunk = (len - done).min(zeroes.len() as u64);
        device.write_at(offset + done, &zeroes[..chunk as usize])?;
        done += chunk;
    }
    Ok(())
}

/// Refuses a request that leaves a device of `size_bytes`.
fn check_range(size_bytes: u64, offset: u64, len: u64) -> io::Result<()> {
    match offset.checked_add(len) {
        Some(end) if end <= size_bytes => Ok(()),
        _ => Err(raw::beyond_end()),
    }
}
