//! What becomes of a recovered log: its blocks are written home, and the log is declared empty.
//! Or, where nothing may be written, its blocks are read instead of those at home.
//!
//! Each step can be repeated after a crash: the log stays valid until everything is home and durable,
//! and needs_recovery stays set until the log is empty.

use super::commit::log_image;
use super::locate::Located;
use super::log::{Medium, Ring};
use super::log_area::LogArea;
use super::recovery::{LogCopy, Recovered};
use super::transaction::Transaction;
use crate::device::{Block, Device, IoBuf, SharedDevice};
use crate::error::{Error, Result};
use crate::format::features::Incompat;
use crate::format::jbd2::{unescape, JournalSuperblock};
use crate::format::superblock::Superblock;
use crate::units::{BlockNr, Tid};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes that are read from the log before they are written home.
const BATCH_BYTES: usize = 16 << 20;

/// `s_state`: errors were found.
const STATE_ERROR: u16 = 2;

/// Bytes of the file system's superblock, and where it is.
const SUPERBLOCK_BYTES: usize = 1024;
const SUPERBLOCK_AT: u64 = 1024;

fn read_block(device: &dyn Device, nr: BlockNr, buf: &mut [u8]) -> Result<()> {
    let offset = nr.0.saturating_mul(buf.len() as u64);
    device.read_at(offset, buf).map_err(|e| Error::io(format!("reading block {nr}"), e))
}

impl Recovered {
    /// The block as the log has it, or `None` when it has no copy: what to read instead of the block at home.
    pub fn read(&self, device: &dyn Device, area: &LogArea, nr: BlockNr) -> Result<Option<Block>> {
        let Some(copy) = self.blocks.get(&nr) else { return Ok(None) };
        let mut block = Block::zeroed(self.block_bytes() as usize);
        Self::read_copy(device, area, copy, &mut block)?;
        Ok(Some(block))
    }

    fn read_copy(device: &dyn Device, area: &LogArea, copy: &LogCopy, to: &mut [u8]) -> Result<()> {
        read_block(device, area.physical(copy.log_block)?, to)?;
        if copy.escaped {
            unescape(to);
        }
        Ok(())
    }
}

/// Writes every block home and makes it durable. The log and its superblock stay as they are.
/// Fast commits are not part of it: see [`crate::fs::fast_commit::replay_home`].
pub fn apply(recovered: &Recovered, device: &dyn Device, area: &LogArea) -> Result<()> {
    let block_bytes = recovered.block_bytes() as usize;
    let mut blocks = recovered.blocks.iter();
    loop {
        let batch: Vec<_> = blocks.by_ref().take((BATCH_BYTES / block_bytes).max(1)).collect();
        if batch.is_empty() {
            break;
        }
        write_batch(&batch, block_bytes, device, area)?;
    }
    device.flush().map_err(|e| Error::io("flushing replayed blocks", e))
}

/// Reads the copies in the log's order, and writes them in the device's, neighbours together.
fn write_batch(
    batch: &[(&BlockNr, &LogCopy)],
    block_bytes: usize,
    device: &dyn Device,
    area: &LogArea,
) -> Result<()> {
    let mut data = IoBuf::zeroed(batch.len() * block_bytes);
    {
        let mut reads: Vec<_> = batch.iter().zip(data.chunks_exact_mut(block_bytes)).collect();
        reads.sort_unstable_by_key(|((_, copy), _)| copy.log_block);
        for ((_, copy), to) in reads {
            Recovered::read_copy(device, area, copy, to)?;
        }
    }
    let neighbours = |pair: &[(&BlockNr, &LogCopy)]| matches!(pair, [a, b] if a.0.plus(1) == *b.0);
    let mut from = 0;
    while let Some((first, _)) = batch.get(from) {
        let mut to = from + 1;
        while batch.get(to - 1..=to).is_some_and(neighbours) {
            to += 1;
        }
        let bytes = data.get(from * block_bytes..to * block_bytes).unwrap_or_default();
        device
            .write_at(first.0.saturating_mul(block_bytes as u64), bytes)
            .map_err(|e| Error::io(format!("writing {} replayed blocks from block {first}", to - from), e))?;
        from = to;
    }
    Ok(())
}

/// Replaces a log that [`apply`] has written home, with the fast commits behind it, by one transaction of these blocks,
/// and writes them home. The transaction has the number that the fast commits are for (`tid`), so that a recovery
/// finds either them or it, whenever this is cut short: until the commit block is durable the log is empty and they
/// are behind it; from then on they are behind a transaction that is not theirs.
pub fn replace(
    changes: BTreeMap<BlockNr, Arc<Block>>,
    recovered: &Recovered,
    tid: Tid,
    device: &SharedDevice,
    located: &Located,
) -> Result<()> {
    let Located { area, superblock, .. } = located;
    let mut superblock = superblock.clone();
    let transaction = Transaction { blocks: changes, ..Transaction::new(tid) };
    let format = superblock.log_format();
    let mut image = log_image(&format, superblock.uuid, &transaction);
    if image.len() > superblock.log_blocks() as usize {
        return Err(too_many_changes());
    }
    superblock.start = recovered.head_log_block;
    superblock.sequence = tid;
    write_journal_superblock(&**device, area, &superblock)?;
    flush(&**device)?;
    let mut ring = Ring::new(&superblock);
    ring.head = recovered.head_log_block;
    let medium = Medium { device: device.clone(), area: area.clone(), format };
    // A transaction of this number may have been under way; nothing of it may be taken for a part of this one.
    let zero = Arc::new(Block::zeroed(format.block_bytes as usize));
    write_ring(&medium, &ring, &vec![zero; image.len()])?;
    flush(&**device)?;
    let commit_block = image.pop();
    write_ring(&medium, &ring, &image)?;
    flush(&**device)?;
    ring.head = ring.advance(ring.head, image.len() as u32);
    write_ring(&medium, &ring, commit_block.as_slice())?;
    flush(&**device)?;
    for (nr, block) in &transaction.blocks {
        let offset = nr.0.saturating_mul(u64::from(format.block_bytes));
        device.write_at(offset, block).map_err(|e| Error::io(format!("writing replayed block {nr}"), e))?;
    }
    flush(&**device)
}

/// What becomes of fast commits that can't be made one transaction.
pub(crate) fn too_many_changes() -> Error {
    Error::Unsupported(
        "the journal's fast commits change more blocks than its log can hold (fast_commit): run e2fsck"
            .into(),
    )
}

/// Writes log blocks from the ring's head on.
fn write_ring(medium: &Medium, ring: &Ring, blocks: &[Arc<Block>]) -> Result<()> {
    let mut rest = blocks;
    for (start, count) in ring.runs_from_head(blocks.len() as u32) {
        let (now, later) = rest.split_at((count as usize).min(rest.len()));
        if !now.is_empty() {
            medium.write(start, now)?;
        }
        rest = later;
    }
    Ok(())
}

/// Declares the log empty after [`apply`], then clears needs_recovery; each durably before the next.
/// An error that the journal had recorded goes over into the file system's state, as the kernel does it.
pub fn finish(
    recovered: &Recovered,
    device: &dyn Device,
    area: &LogArea,
    journal: &mut JournalSuperblock,
) -> Result<()> {
    if journal.errno != 0 {
        update_superblock(device, |sb| sb.state |= STATE_ERROR)?;
        flush(device)?;
        journal.errno = 0;
    }
    journal.start = 0;
    journal.sequence = recovered.next_tid;
    write_journal_superblock(device, area, journal)?;
    flush(device)?;
    update_superblock(device, |sb| sb.features.incompat.remove(Incompat::NEEDS_RECOVERY))?;
    flush(device)
}

/// Writes the journal superblock in place, without a flush.
pub fn write_journal_superblock(
    device: &dyn Device,
    area: &LogArea,
    journal: &JournalSuperblock,
) -> Result<()> {
    let offset = area.physical(0)?.0.saturating_mul(journal.block_bytes as u64);
    device.write_at(offset, &journal.encode()).map_err(|e| Error::io("writing the journal superblock", e))
}

/// Changes the file system's primary superblock in place, without a flush.
pub fn update_superblock(device: &dyn Device, change: impl FnOnce(&mut Superblock)) -> Result<()> {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    device.read_at(SUPERBLOCK_AT, &mut bytes).map_err(|e| Error::io("reading the superblock", e))?;
    let mut superblock = Superblock::decode(&bytes)?;
    change(&mut superblock);
    device.write_at(SUPERBLOCK_AT, &superblock.encode()).map_err(|e| Error::io("writing the superblock", e))
}

fn flush(device: &dyn Device) -> Result<()> {
    device.flush().map_err(|e| Error::io("flushing", e))
}
