//! Reads log blocks in their order, in large pieces.

use super::log_area::LogArea;
use crate::device::{Device, IoBuf};
use crate::error::{Error, Place, Result};

/// Bytes read at once.
const WINDOW_BYTES: u32 = 512 << 10;

/// A window over the log that moves forward with its reader.
pub(super) struct LogReader<'a> {
    device: &'a dyn Device,
    area: &'a LogArea,
    block_bytes: u32,
    window: IoBuf,
    /// Log block of the window's first, and how many blocks are in it.
    start: u32,
    count: u32,
}

impl<'a> LogReader<'a> {
    pub(super) fn new(device: &'a dyn Device, area: &'a LogArea, block_bytes: u32) -> Self {
        let window = IoBuf::zeroed(WINDOW_BYTES.max(block_bytes) as usize);
        Self { device, area, block_bytes, window, start: 0, count: 0 }
    }

    /// The log block's bytes.
    pub(super) fn read(&mut self, log_block: u32) -> Result<&[u8]> {
        if log_block < self.start || log_block - self.start >= self.count {
            self.fill(log_block)?;
        }
        let at = (log_block - self.start) as usize * self.block_bytes as usize;
        self.window
            .get(at..at + self.block_bytes as usize)
            .ok_or_else(|| Error::corrupt("log", Place::LogBlock(log_block), "it is behind the log's end"))
    }

    fn fill(&mut self, log_block: u32) -> Result<()> {
        self.count = 0;
        let want = (WINDOW_BYTES / self.block_bytes).max(1);
        let mut done = 0;
        for run in self.area.runs(log_block, want) {
            let bytes = run.len as usize * self.block_bytes as usize;
            let Some(to) = self.window.get_mut(done..done + bytes) else { break };
            let offset = run.start.0.saturating_mul(self.block_bytes as u64);
            self.device
                .read_at(offset, to)
                .map_err(|e| Error::io(format!("reading log block {log_block}"), e))?;
            done += bytes;
        }
        self.start = log_block;
        self.count = (done / self.block_bytes as usize) as u32;
        if self.count == 0 {
            return Err(Error::corrupt("log", Place::LogBlock(log_block), "it is behind the log's end"));
        }
        Ok(())
    }
}
