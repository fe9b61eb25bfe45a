//! What no file operation reaches, asked of the journal itself.

use journalfs::device::memory::MemoryDevice;
use journalfs::device::{Block, SharedDevice};
use journalfs::format::jbd2::{Compat, Incompat, JournalSuperblock};
use journalfs::journal::log_area::LogArea;
use journalfs::journal::recovery::recover;
use journalfs::journal::{Journal, LogSetup};
use journalfs::units::{BlockNr, BlockRange};
use std::sync::Arc;

const BLOCK_BYTES: u32 = 1024;
const LOG: BlockRange = BlockRange { start: BlockNr(100), len: 1100 };
const DEVICE_BLOCKS: u64 = 2048;

/// A block that one transaction frees and logs again (rule J6) is replayed. The allocator holds freed blocks back until the
/// free is durable, so no workload does this.
pub(crate) fn freed_and_logged_again() -> Result<(), String> {
    let nr = BlockNr(7);
    let device: SharedDevice = Arc::new(MemoryDevice::new(DEVICE_BLOCKS * u64::from(BLOCK_BYTES)));
    let area = LogArea::from_runs([LOG], DEVICE_BLOCKS).unwrap();
    let mut superblock = JournalSuperblock::new(BLOCK_BYTES, LOG.len, [7; 16]);
    superblock.compat = Compat::CHECKSUM;
    superblock.incompat = Incompat::REVOKE | Incompat::ASYNC_COMMIT;
    superblock.start = superblock.first;
    let setup = LogSetup { area: area.clone(), superblock: superblock.clone(), async_commit: true };
    let journal = Journal::with_log(device.clone(), setup);
    let version = |byte| Arc::new(Block::from_bytes(&[byte; BLOCK_BYTES as usize]));
    for round in 1..4 {
        let mut running = journal.start(2).unwrap();
        running.forget(BlockRange::new(nr, 1));
        running.log(nr, version(round));
        let tid = running.tid();
        drop(running);
        journal.commit(tid).unwrap();
        let recovered = recover(&*device, &area, &superblock).unwrap();
        let found = recovered.read(&*device, &area, nr).unwrap().map(|block| block[0]);
        if found != Some(round) {
            return Err(format!(
                "version {round} of a block was committed, version {found:?} would be replayed"
            ));
        }
    }
    Ok(())
}
