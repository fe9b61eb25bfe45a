//! Fast commits: what the kernel's ext4 writes behind the last full transaction, in the log's last blocks.

use super::log_area::LogArea;
use super::log_reader::LogReader;
use crate::device::Device;
use crate::error::{Error, Place, Result};
use crate::format::jbd2::fast_commit::{checksum, records, FcItem, FcRecord};
use crate::format::jbd2::JournalSuperblock;
use crate::units::Tid;
use std::ops::Range;

/// Valid fast commits behind the last full transaction. Only their place is kept: the area may be
/// large on a hostile device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FastCommit {
    /// The transaction that would have been next.
    pub tid: Tid,
    /// How many records there are, up to the last valid tail.
    pub records: u32,
    /// The log blocks that hold them.
    pub log_blocks: Range<u32>,
}

/// Looks for fast commits that belong behind the transactions before `tid`.
///
/// The valid part ends with the last tail whose checksum and transaction are right; what is behind
/// it never finished, so nobody was told that it had.
pub(super) fn scan(
    superblock: &JournalSuperblock,
    tid: Tid,
    reader: &mut LogReader<'_>,
) -> Result<Option<FastCommit>> {
    // The area begins one block behind the log's last (jbd2's j_fc_first).
    let first = superblock.last().saturating_add(1);
    let mut found = FastCommit { tid, records: 0, log_blocks: first..first };
    let (mut count, mut crc) = (0, 0);
    for log_block in first..superblock.maxlen {
        let block = reader.read(log_block)?;
        for item in records(block, block.len()) {
            let FcItem::Record(record, covered) = item else { return Ok(found.some()) };
            count += 1;
            crc = checksum(crc, covered);
            match record {
                FcRecord::Head { features: 0, tid: head } if head == tid => {}
                FcRecord::Head { features, tid: head } if head == tid => {
                    let what = format!("the journal's fast commits have unknown features {features:#x}");
                    return Err(Error::Unsupported(what));
                }
                FcRecord::Tail { tid: tail, crc: expected }
                    if tail == tid && expected == crc && count > 1 =>
                {
                    crc = 0;
                    found.records = count;
                    found.log_blocks.end = log_block + 1;
                }
                FcRecord::Head { .. } | FcRecord::Tail { .. } => return Ok(found.some()),
                // The area's first record is a head, or it is from another time.
                _ if count == 1 => return Ok(None),
                _ => {}
            }
        }
    }
    Ok(found.some())
}

impl FastCommit {
    /// Reads the records again, in order, up to the last valid tail. `block_bytes` is the log's.
    pub fn for_each(
        &self,
        device: &dyn Device,
        area: &LogArea,
        block_bytes: u32,
        mut f: impl FnMut(&FcRecord<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut reader = LogReader::new(device, area, block_bytes);
        let mut left = self.records;
        for log_block in self.log_blocks.clone() {
            let block = reader.read(log_block)?;
            for item in records(block, block.len()) {
                if left == 0 {
                    return Ok(());
                }
                left -= 1;
                let FcItem::Record(record, _) = item else {
                    let why = "a record is not what it was when the area was looked at first";
                    return Err(Error::corrupt("fast commit", Place::LogBlock(log_block), why));
                };
                f(&record)?;
            }
        }
        Ok(())
    }

    fn some(self) -> Option<Self> {
        (self.records > 0).then_some(self)
    }
}
