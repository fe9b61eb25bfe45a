//! The same for a log: its superblock, descriptors with their tags, revokes, commit blocks and fast commits.

use journalfs::device::memory::MemoryDevice;
use journalfs::device::Device;
use journalfs::format::checksum::{crc32_be, crc32c, START};
use journalfs::format::jbd2::fast_commit;
use journalfs::format::jbd2::{
    descriptor, BlockType, Header, Incompat, JournalSuperblock, LogChecksum, LogFormat, TagFlags, MAGIC,
};
use journalfs::format::Superblock;
use journalfs::journal::locate::locate;
use journalfs::journal::log_area::LogArea;

const SUPERBLOCK_BYTES: usize = 1024;
const SUPERBLOCK_SUM_AT: usize = 0xfc;
const SCAN_BLOCKS: u64 = 1 << 14;

/// Seals what can be found from the journal superblock on, at `journal_at` or wherever it is.
pub(crate) fn seal(device: &MemoryDevice, journal_at: Option<u64>) {
    let Some(at) = journal_at.or_else(|| find(device)) else { return };
    let mut bytes = [0; SUPERBLOCK_BYTES];
    if device.read_at(at, &mut bytes).is_err() {
        return;
    }
    // v2 or v3.
    if bytes[0x2b] & 0x18 != 0 {
        bytes[SUPERBLOCK_SUM_AT..SUPERBLOCK_SUM_AT + 4].fill(0);
        let sum = crc32c(START, &bytes);
        bytes[SUPERBLOCK_SUM_AT..SUPERBLOCK_SUM_AT + 4].copy_from_slice(&sum.to_be_bytes());
        device.write_at(at, &bytes).unwrap();
    }
    let mut sb = [0; SUPERBLOCK_BYTES];
    device.read_at(1024, &mut sb).unwrap();
    let Ok(sb) = Superblock::decode(&sb) else { return };
    let Ok(Some(located)) = locate(device, &sb) else { return };
    let journal = &located.superblock;
    let log = Log { device, area: &located.area, format: journal.log_format() };
    log.transactions(journal);
    if journal.incompat.contains(Incompat::FAST_COMMIT) {
        log.fast_commits(journal);
    }
}

fn find(device: &MemoryDevice) -> Option<u64> {
    let mut block = [0; 1024];
    (0..SCAN_BLOCKS.min(device.size_bytes() / 1024)).map(|nr| nr * 1024).find(|at| {
        device.read_at(*at, &mut block).unwrap();
        block[..4] == MAGIC.to_be_bytes() && matches!(block[7], 3 | 4)
    })
}

struct Log<'a> {
    device: &'a MemoryDevice,
    area: &'a LogArea,
    format: LogFormat,
}

impl Log<'_> {
    fn read(&self, log_block: u32) -> Option<Vec<u8>> {
        let mut block = vec![0; self.format.block_bytes as usize];
        let at = self.area.physical(log_block).ok()?.0 * block.len() as u64;
        self.device.read_at(at, &mut block).ok()?;
        Some(block)
    }

    fn put(&self, log_block: u32, block: &[u8]) {
        if let Ok(nr) = self.area.physical(log_block) {
            let _ = self.device.write_at(nr.0 * block.len() as u64, block);
        }
    }

    fn transactions(&self, journal: &JournalSuperblock) {
        if journal.start == 0 {
            return;
        }
        let (mut at, mut tid, mut crc) = (journal.start, journal.sequence, START);
        let mut left = journal.log_blocks();
        let next = |at: u32| if at + 1 >= journal.last() { journal.first } else { at + 1 };
        while left > 0 {
            let Some(mut block) = self.read(at) else { return };
            let Some(header) = Header::decode(&block).filter(|header| header.tid == tid) else { return };
            let here = at;
            (at, left) = (next(at), left - 1);
            match header.block_type {
                BlockType::Descriptor => {
                    let mut copies = Vec::new();
                    for _ in 0..descriptor::tags(&self.format, &block).count() {
                        let Some(copy) = self.read(at) else { return };
                        copies.push(copy);
                        at = next(at);
                        left = left.saturating_sub(1);
                    }
                    self.tags(&mut block, tid, &copies);
                    self.tail(&mut block);
                    crc = copies.iter().fold(crc32_be(crc, &block), |crc, copy| crc32_be(crc, copy));
                }
                BlockType::Revoke => self.tail(&mut block),
                BlockType::Commit => {
                    self.commit(&mut block, crc);
                    (crc, tid) = (START, tid.next());
                }
                BlockType::SuperblockV1 | BlockType::SuperblockV2 => return,
            }
            self.put(here, &block);
        }
    }

    fn tags(&self, block: &mut [u8], tid: journalfs::units::Tid, copies: &[Vec<u8>]) {
        let tags: Vec<_> = descriptor::tags(&self.format, block).collect();
        let mut at = 12;
        for (tag, copy) in tags.iter().zip(copies) {
            let sum = self.format.data_checksum(tid, copy).unwrap_or(0);
            match self.format.checksum {
                LogChecksum::V3 { .. } => block[at + 12..at + 16].copy_from_slice(&sum.to_be_bytes()),
                LogChecksum::V2 { .. } => block[at + 4..at + 6].copy_from_slice(&(sum as u16).to_be_bytes()),
                _ => {}
            }
            at += self.format.tag_bytes();
            if !tag.flags.contains(TagFlags::SAME_UUID) {
                at += 16;
            }
        }
    }

    fn tail(&self, block: &mut [u8]) {
        let Some(seed) = self.format.seed() else { return };
        let at = block.len() - 4;
        block[at..].fill(0);
        let sum = crc32c(seed, block);
        block[at..].copy_from_slice(&sum.to_be_bytes());
    }

    fn commit(&self, block: &mut [u8], crc: u32) {
        let sum = match self.format.checksum {
            LogChecksum::None => return,
            LogChecksum::V1 => {
                block[12..14].copy_from_slice(&[1, 4]);
                crc
            }
            LogChecksum::V2 { seed } | LogChecksum::V3 { seed } => {
                block[16..20].fill(0);
                crc32c(seed, block)
            }
        };
        block[16..20].copy_from_slice(&sum.to_be_bytes());
    }

    /// Follows the records as the walk does, and puts the right sum and transaction into every tail.
    fn fast_commits(&self, journal: &JournalSuperblock) {
        let mut crc = 0;
        for log_block in journal.last().saturating_add(1)..journal.maxlen {
            let Some(mut block) = self.read(log_block) else { return };
            if block.iter().all(|byte| *byte == 0) {
                return;
            }
            let mut at = 0;
            while at + 4 <= block.len() {
                let (tag, len) = (block[at], usize::from(u16::from_le_bytes([block[at + 2], block[at + 3]])));
                let end = at + 4 + len;
                if end > block.len() {
                    break;
                }
                if tag == 8 && len >= 8 {
                    crc = fast_commit::checksum(crc, &block[at..at + 8]);
                    block[at + 8..at + 12].copy_from_slice(&crc.to_le_bytes());
                    crc = 0;
                } else {
                    crc = fast_commit::checksum(crc, &block[at..end]);
                }
                at = end;
            }
            self.put(log_block, &block);
        }
    }
}
