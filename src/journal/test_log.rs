//! Logs written by hand, for the tests of recovery.

use super::log_area::LogArea;
use super::recovery::{recover, Recovered};
use crate::device::memory::MemoryDevice;
use crate::device::Device;
use crate::error::Result;
use crate::format::checksum::{crc32_be, START};
use crate::format::jbd2::{
    escape, needs_escape, CommitBlock, Compat, DescriptorBuilder, Incompat, JournalSuperblock, LogChecksum,
    LogFormat, RevokeBuilder,
};
use crate::units::{BlockNr, BlockRange, Tid};
use std::time::{Duration, UNIX_EPOCH};

pub(super) const BLOCK_BYTES: u32 = 1024;
pub(super) const FS_BLOCKS: u64 = 1 << 20;
pub(super) const LOG_BLOCKS: u32 = 1100;

/// A log on a device in memory, in two pieces, and where the next transaction goes.
pub(super) struct TestLog {
    pub(super) device: MemoryDevice,
    pub(super) area: LogArea,
    pub(super) superblock: JournalSuperblock,
    pub(super) at: u32,
    pub(super) tid: Tid,
    seconds: u64,
    crc: u32,
}

impl TestLog {
    pub(super) fn new(checksum: u8, wide: bool) -> Self {
        Self::sized(LOG_BLOCKS, checksum, wide)
    }

    pub(super) fn sized(log_blocks: u32, checksum: u8, wide: bool) -> Self {
        let runs = [BlockRange::new(BlockNr(5000), 500), BlockRange::new(BlockNr(9000), log_blocks - 500)];
        let mut superblock = JournalSuperblock::new(BLOCK_BYTES, log_blocks, [0x5a; 16]);
        superblock.incompat = Incompat::REVOKE;
        superblock.incompat.set(Incompat::WIDE, wide);
        match checksum {
            1 => {
                superblock.compat = Compat::CHECKSUM;
                superblock.incompat |= Incompat::ASYNC_COMMIT;
            }
            2 => superblock.incompat |= Incompat::CSUM_V2,
            3 => superblock.incompat |= Incompat::CSUM_V3,
            _ => {}
        }
        superblock.start = 1;
        superblock.sequence = Tid(u32::MAX - 1);
        Self {
            device: MemoryDevice::new(FS_BLOCKS * BLOCK_BYTES as u64),
            area: LogArea::from_runs(runs, FS_BLOCKS).unwrap(),
            at: superblock.start,
            tid: superblock.sequence,
            superblock,
            seconds: 1000,
            crc: START,
        }
    }

    /// Every checksum version with 32 and 64 bits.
    pub(super) fn all() -> Vec<Self> {
        (0..4).flat_map(|sum| [false, true].map(|wide| Self::new(sum, wide))).collect()
    }

    /// Lets the log begin at this block.
    pub(super) fn starting_at(mut self, log_block: u32) -> Self {
        self.superblock.start = log_block;
        self.at = log_block;
        self
    }

    pub(super) fn format(&self) -> LogFormat {
        self.superblock.log_format()
    }

    /// Puts bytes at the log's head; returns where.
    pub(super) fn put(&mut self, bytes: &[u8]) -> u32 {
        let at = self.at;
        self.overwrite(at, bytes);
        self.at = if at + 1 == self.superblock.last() { self.superblock.first } else { at + 1 };
        at
    }

    pub(super) fn overwrite(&self, log_block: u32, bytes: &[u8]) {
        let nr = self.area.physical(log_block).unwrap();
        self.device.write_at(nr.0 * BLOCK_BYTES as u64, bytes).unwrap();
    }

    /// Damages one byte of a log block.
    pub(super) fn tear(&self, log_block: u32, at: usize) {
        let mut bytes = self.log_block(log_block);
        bytes[at] ^= 0x55;
        self.overwrite(log_block, &bytes);
    }

    pub(super) fn log_block(&self, log_block: u32) -> Vec<u8> {
        let nr = self.area.physical(log_block).unwrap();
        self.block(nr)
    }

    /// A block of the file system as the device has it.
    pub(super) fn block(&self, nr: BlockNr) -> Vec<u8> {
        let mut bytes = vec![0; BLOCK_BYTES as usize];
        self.device.read_at(nr.0 * BLOCK_BYTES as u64, &mut bytes).unwrap();
        bytes
    }

    /// One descriptor with its blocks; returns the descriptor's place.
    pub(super) fn descriptor(&mut self, blocks: &[(u64, Vec<u8>)]) -> u32 {
        let format = self.format();
        let mut builder = DescriptorBuilder::new(format, self.tid, self.superblock.uuid);
        let mut logged = Vec::new();
        for (nr, data) in blocks {
            let mut data = data.clone();
            let escaped = needs_escape(&data);
            if escaped {
                escape(&mut data);
            }
            assert!(builder.push(BlockNr(*nr), escaped, format.data_checksum(self.tid, &data)));
            logged.push(data);
        }
        let descriptor = builder.finish();
        self.crc = crc32_be(self.crc, &descriptor);
        let at = self.put(&descriptor);
        for data in logged {
            self.crc = crc32_be(self.crc, &data);
            self.put(&data);
        }
        at
    }

    /// Revoke blocks for these; returns the first one's place.
    pub(super) fn revoke(&mut self, blocks: &[u64]) -> u32 {
        let first = self.at;
        let mut builder = RevokeBuilder::new(self.format(), self.tid);
        for nr in blocks {
            if !builder.push(BlockNr(*nr)) {
                let full = std::mem::replace(&mut builder, RevokeBuilder::new(self.format(), self.tid));
                self.put(&full.finish());
                assert!(builder.push(BlockNr(*nr)));
            }
        }
        self.put(&builder.finish());
        first
    }

    /// Ends the transaction; returns the commit block's place.
    pub(super) fn commit(&mut self) -> u32 {
        self.seconds += 1;
        let crc = (self.format().checksum == LogChecksum::V1).then_some(self.crc);
        let time = UNIX_EPOCH + Duration::from_secs(self.seconds);
        let block = CommitBlock::new(self.tid, crc, time).encode(&self.format());
        self.crc = START;
        self.tid = self.tid.next();
        self.put(&block)
    }

    /// A transaction of these blocks; returns its descriptor's and its commit block's place.
    pub(super) fn transaction(&mut self, blocks: &[(u64, u8)]) -> (u32, u32) {
        let blocks: Vec<_> = blocks.iter().map(|(nr, fill)| (*nr, filled(*fill))).collect();
        (self.descriptor(&blocks), self.commit())
    }

    pub(super) fn recover(&self) -> Result<Recovered> {
        recover(&self.device, &self.area, &self.superblock)
    }

    /// What recovery would make of the blocks: number and first byte of each.
    pub(super) fn replayed(&self) -> Vec<(u64, u8)> {
        let recovered = self.recover().unwrap();
        let read = |nr| recovered.read(&self.device, &self.area, nr).unwrap().unwrap()[0];
        recovered.blocks.keys().map(|nr| (nr.0, read(*nr))).collect()
    }
}

pub(super) fn filled(byte: u8) -> Vec<u8> {
    vec![byte; BLOCK_BYTES as usize]
}
