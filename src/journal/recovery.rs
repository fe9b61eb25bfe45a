//! Recovery: what a log says that the file system's blocks should be, found without writing anything.
//!
//! Three passes, as in jbd2: find the log's end, collect the revokes, collect the copies. The first remembers where the
//! descriptor and revoke blocks of committed transactions are, so the others visit only those and cannot end elsewhere.
//!
//! Where the log ends (rule J1 of the design): at the first block that is no log block of the expected transaction, or at a commit
//! block whose checksum is wrong though the log says ASYNC_COMMIT, provided that no commit block of the transaction after it
//! is found. Everything else that is wrong is corruption, and nothing is replayed then.

use super::log_area::LogArea;
use super::log_reader::LogReader;
use crate::device::Device;
use crate::error::{Error, Place, Result};
use crate::fault::{injected, Fault};
use crate::format::checksum::{crc32_be, START};
use crate::format::jbd2::commit::CommitChecksum;
use crate::format::jbd2::{
    descriptor, revoke, BlockType, CommitBlock, Header, Incompat, JournalSuperblock, LogChecksum, LogFormat,
    TagFlags,
};
use crate::journal::fast_commit::{self, FastCommit};
use crate::units::{BlockNr, Tid};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// Where the newest committed copy of a block is in the log.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct LogCopy {
    /// The log block that holds it.
    pub log_block: u32,
    /// Its first four bytes are the log's magic, and zero in the log.
    pub escaped: bool,
    /// The transaction that logged it.
    pub tid: Tid,
}

/// What a log holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recovered {
    /// The blocks to be written home.
    pub blocks: BTreeMap<BlockNr, LogCopy>,
    /// The sequence number that the log goes on with: never one that a block left in it may carry.
    pub next_tid: Tid,
    /// The log block behind the last committed transaction.
    pub head_log_block: u32,
    /// Revoke records read.
    pub revoke_count: u64,
    /// Copies that a revoke kept from being replayed.
    pub revoked_copies: u64,
    /// Committed transactions found.
    pub transactions: u32,
    /// A fast commit behind the last transaction.
    pub fast_commit: Option<FastCommit>,
    block_bytes: u32,
}

impl Recovered {
    /// Whether the log holds nothing.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.fast_commit.is_none()
    }

    /// Bytes in a block.
    pub fn block_bytes(&self) -> u32 {
        self.block_bytes
    }
}

/// Reads the log. `superblock` must have passed [`JournalSuperblock::check`] against `area`.
pub fn recover(device: &dyn Device, area: &LogArea, superblock: &JournalSuperblock) -> Result<Recovered> {
    superblock.check(superblock.block_bytes, area.len())?;
    let mut recovered = Recovered {
        blocks: BTreeMap::new(),
        next_tid: superblock.sequence.next(),
        head_log_block: superblock.first,
        revoke_count: 0,
        revoked_copies: 0,
        transactions: 0,
        fast_commit: None,
        block_bytes: superblock.block_bytes,
    };
    if superblock.start == 0 {
        return Ok(recovered);
    }
    let mut reader = LogReader::new(device, area, superblock.block_bytes);
    let log = Log { superblock, format: superblock.log_format() };
    let scan = Scan::new(&log).run(&mut reader)?;
    recovered.head_log_block = scan.head;
    recovered.transactions = scan.end.0.wrapping_sub(superblock.sequence.0);
    // Blocks of the transaction that did not commit may lie in the log: its number is not used again.
    recovered.next_tid = scan.end.next();
    let revokes = collect_revokes(&log, area, &scan, &mut reader, &mut recovered)?;
    collect_copies(&log, area, &scan, &mut reader, &revokes, &mut recovered)?;
    if superblock.incompat.contains(Incompat::FAST_COMMIT) {
        recovered.fast_commit = fast_commit::scan(superblock, scan.end, &mut reader)?;
    }
    Ok(recovered)
}

struct Log<'a> {
    superblock: &'a JournalSuperblock,
    format: LogFormat,
}

impl Log<'_> {
    /// The log block `count` blocks behind `at`; `count` is at most a block's number of tags.
    fn after(&self, at: u32, count: u32) -> u32 {
        let (first, len) = (self.superblock.first as u64, self.superblock.log_blocks() as u64);
        (first + (at as u64 - first + count as u64) % len) as u32
    }
}

/// A descriptor or revoke block of a committed transaction.
struct Control {
    block_type: BlockType,
    log_block: u32,
    tid: Tid,
}

/// The committed part of the log.
struct Scanned {
    controls: Vec<Control>,
    /// The first transaction that is not committed.
    end: Tid,
    head: u32,
}

/// The first pass.
struct Scan<'a> {
    log: &'a Log<'a>,
    at: u32,
    tid: Tid,
    /// Log blocks passed; a log that goes on for longer than it has blocks has come round to its start.
    passed: u64,
    controls: Vec<Control>,
    /// How many of `controls` belong to committed transactions, and where the last of those ends.
    committed: usize,
    head: u32,
    /// v1: the running CRC of the transaction.
    crc: u32,
    /// v2, v3: a descriptor or revoke block of this transaction has a wrong checksum.
    suspicious: bool,
    /// The transaction whose commit block said that it is torn.
    torn: Option<Tid>,
    last_time: Duration,
}

impl<'a> Scan<'a> {
    fn new(log: &'a Log<'a>) -> Self {
        Self {
            log,
            at: log.superblock.start,
            tid: log.superblock.sequence,
            passed: 0,
            controls: Vec::new(),
            committed: 0,
            head: log.superblock.start,
            crc: START,
            suspicious: false,
            torn: None,
            last_time: Duration::ZERO,
        }
    }

    fn run(mut self, reader: &mut LogReader<'_>) -> Result<Scanned> {
        while self.passed < self.log.superblock.log_blocks() as u64 {
            let log_block = self.at;
            let block = reader.read(log_block)?;
            let Some(header) = Header::decode(block).filter(|h| h.tid == self.tid) else { break };
            self.advance(1);
            let format = &self.log.format;
            match header.block_type {
                BlockType::Descriptor => {
                    self.suspicious |= !format.tail_is_right(block);
                    let tags = descriptor::tags(format, block).count() as u32;
                    if format.checksum == LogChecksum::V1 && self.torn.is_none() {
                        self.crc = crc32_be(self.crc, block);
                        self.add_data_to_crc(reader, tags)?;
                    } else {
                        self.advance(tags);
                    }
                }
                BlockType::Revoke => self.suspicious |= !format.tail_is_right(block),
                BlockType::Commit => {
                    let sealed = CommitBlock::is_sealed(format, block);
                    let commit = CommitBlock::decode(header.tid, block);
                    if !self.commit(log_block, &commit, sealed)? {
                        break;
                    }
                    continue;
                }
                BlockType::SuperblockV1 | BlockType::SuperblockV2 => break,
            }
            self.controls.push(Control { block_type: header.block_type, log_block, tid: self.tid });
        }
        self.controls.truncate(self.committed);
        Ok(Scanned { controls: self.controls, end: self.torn.unwrap_or(self.tid), head: self.head })
    }

    fn advance(&mut self, count: u32) {
        self.at = self.log.after(self.at, count);
        self.passed += count as u64;
    }

    fn add_data_to_crc(&mut self, reader: &mut LogReader<'_>, tags: u32) -> Result<()> {
        for _ in 0..tags {
            self.crc = crc32_be(self.crc, reader.read(self.at)?);
            self.advance(1);
        }
        Ok(())
    }

    /// Judges a commit block of the expected transaction. Returns whether the log goes on behind it.
    fn commit(&mut self, log_block: u32, commit: &CommitBlock, sealed: bool) -> Result<bool> {
        let corrupt = |why: String| Error::corrupt("log", Place::LogBlock(log_block), why);
        if let Some(torn) = self.torn {
            return Err(corrupt(format!(
                "transaction {torn} has a wrong checksum, but transaction {} behind it was committed",
                commit.tid
            )));
        }
        let right = match self.log.format.checksum {
            LogChecksum::None => true,
            LogChecksum::V1 => match commit.checksum {
                CommitChecksum::Absent => true,
                CommitChecksum::Crc32(crc) => crc == self.crc,
                CommitChecksum::Other => false,
            },
            LogChecksum::V2 { .. } | LogChecksum::V3 { .. } => sealed && !self.suspicious,
        };
        if right || injected(Fault::BadCrcReplayed) {
            self.committed = self.controls.len();
            self.head = self.at;
        } else {
            // Commit times grow; an older one shows a block that an earlier life of the journal left here.
            if commit.time < self.last_time {
                return Ok(false);
            }
            let may_be_torn = self.log.superblock.incompat.contains(Incompat::ASYNC_COMMIT);
            if self.suspicious || !may_be_torn {
                return Err(corrupt(format!(
                    "transaction {} was committed with a wrong checksum",
                    commit.tid
                )));
            }
            self.torn = Some(commit.tid);
        }
        self.last_time = commit.time;
        self.crc = START;
        self.tid = self.tid.next();
        Ok(true)
    }
}

/// The second pass: the newest transaction that revoked each block.
fn collect_revokes(
    log: &Log<'_>,
    area: &LogArea,
    scan: &Scanned,
    reader: &mut LogReader<'_>,
    recovered: &mut Recovered,
) -> Result<HashMap<BlockNr, Tid>> {
    let mut revokes = HashMap::new();
    for control in scan.controls.iter().filter(|c| c.block_type == BlockType::Revoke) {
        let block = reader.read(control.log_block)?;
        for nr in revoke::records(&log.format, control.log_block, block)? {
            recovered.revoke_count += 1;
            // Transactions come in order, so the last one wins.
            if nr.0 < area.fs_blocks() {
                revokes.insert(nr, control.tid);
            }
        }
    }
    Ok(revokes)
}

/// The third pass: the newest copy of each block that no revoke of its own or a later transaction names.
fn collect_copies(
    log: &Log<'_>,
    area: &LogArea,
    scan: &Scanned,
    reader: &mut LogReader<'_>,
    revokes: &HashMap<BlockNr, Tid>,
    recovered: &mut Recovered,
) -> Result<()> {
    for control in scan.controls.iter().filter(|c| c.block_type == BlockType::Descriptor) {
        // At most one block's tags.
        let tags: Vec<_> = descriptor::tags(&log.format, reader.read(control.log_block)?).collect();
        for (index, tag) in tags.into_iter().enumerate() {
            let log_block = log.after(control.log_block, 1 + index as u32);
            if revokes.get(&tag.nr).is_some_and(|revoked| revoked.is_at_least(control.tid)) {
                recovered.revoked_copies += 1;
                continue;
            }
            let corrupt = |why: &str| {
                let why = format!("the copy of block {} {why}", tag.nr);
                Error::corrupt("log", Place::LogBlock(log_block), why)
            };
            if tag.nr.0 >= area.fs_blocks() || area.contains(tag.nr) {
                return Err(corrupt("belongs to no block of the file system"));
            }
            if log.format.seed().is_some()
                && log.format.data_checksum(control.tid, reader.read(log_block)?) != tag.checksum
            {
                return Err(corrupt("has a wrong checksum"));
            }
            let escaped = tag.flags.contains(TagFlags::ESCAPE);
            recovered.blocks.insert(tag.nr, LogCopy { log_block, escaped, tid: control.tid });
        }
    }
    Ok(())
}
