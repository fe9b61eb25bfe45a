//! Files that look like the log.
//!
//! *What escaping is for.* Every transaction of the workload has the same length, so a block of it lies where, one wrap later,
//! another transaction will begin, whose number can be told. The file's blocks say that they are the revoke block and the
//! commit block of that transaction; a recovery that believes them forgets what was acknowledged.
//!
//! *What rule J3 is for.* The log is filled with records of revokes of a block that is often logged. Where a sector of a revoke
//! block is not written, they are what it holds.

use super::oracle::FREE_FORM;
use super::workload::{Workload, ROOT};
use journalfs::device::recording::Event;
use journalfs::device::{Block, SharedDevice};
use journalfs::format::jbd2::commit::CommitBlock;
use journalfs::format::jbd2::descriptor;
use journalfs::format::jbd2::header::{BlockType, Header};
use journalfs::format::jbd2::revoke::RevokeBuilder;
use journalfs::fs::read_superblock;
use journalfs::journal::locate::{locate, Located};
use journalfs::units::{BlockNr, Tid};
use std::sync::Arc;
use std::time::SystemTime;

/// Blocks in the file; with descriptor, inode and commit block a transaction has a length that divides no log's.
const BLOCKS: usize = 7;

/// A transaction in the log.
struct Logged {
    tid: Tid,
    /// Log block of its first descriptor.
    at: u32,
    /// What that one names.
    blocks: Vec<BlockNr>,
}

impl Workload {
    fn located(&self) -> Located {
        let device: SharedDevice = self.device.clone();
        locate(&*device, &read_superblock(&device).unwrap()).unwrap().unwrap()
    }

    /// The last transactions without revokes, newest first.
    fn last_logged(&self, located: &Located, count: usize) -> Vec<Logged> {
        let format = located.superblock.log_format();
        let mut logged = Vec::new();
        for event in self.device.events().iter().rev() {
            let Event::Write { offset, data, .. } = event else { continue };
            let header = Header::decode(data).filter(|header| header.block_type == BlockType::Descriptor);
            let nr = BlockNr(offset / u64::from(format.block_bytes));
            let (Some(header), true) = (header, located.area.contains(nr)) else { continue };
            let at = (0..located.area.len()).find(|at| located.area.physical(*at).unwrap() == nr).unwrap();
            let block = &data[..format.block_bytes as usize];
            let blocks = descriptor::tags(&format, block).map(|tag| tag.nr).collect();
            logged.push(Logged { tid: header.tid, at, blocks });
            if logged.len() == count {
                break;
            }
        }
        logged
    }

    /// Files whose every block is in the log, and says, as a revoke block would, that a block is revoked which the last
    /// transaction logged.
    pub(crate) fn fill_the_log(&mut self) {
        let logged = self.last_logged(&self.located(), 1);
        // Bitmaps and inodes come before data.
        let victims: Vec<BlockNr> = logged.into_iter().flat_map(|logged| logged.blocks).take(8).collect();
        let victims = if victims.is_empty() { vec![BlockNr(1)] } else { victims };
        let records = victims.iter().cycle().flat_map(|nr| (nr.0 as u32).to_be_bytes());
        let bytes: Vec<u8> = records.take(60_000).collect();
        for i in 0..4 {
            self.write_free_form(&format!("{FREE_FORM}-{i}"), &bytes);
        }
    }

    /// Writes a whole file in the root directory, and syncs it.
    fn write_free_form(&mut self, name: &str, bytes: &[u8]) {
        let path = (0, name.to_string());
        let Some(file) = self.files.get(&path).copied().or_else(|| self.make(path.clone())) else { return };
        let position = self.position();
        self.oracle.write(position, self.objects[file].id, 0..bytes.len());
        self.fs.write(self.objects[file].nr, 0, bytes, &ROOT, false).unwrap();
        let content = Arc::make_mut(&mut self.objects[file].content);
        content.resize(content.len().max(bytes.len()), 0);
        content[..bytes.len()].copy_from_slice(bytes);
        self.fsync_file(&path, file, false);
    }

    /// All of those go at once, with a revoke for each block.
    pub(crate) fn unlink_many(&mut self) {
        for i in 0..4 {
            let path = (0, format!("{FREE_FORM}-{i}"));
            if self.files.contains_key(&path) {
                self.unlink_path(&path);
            }
        }
        self.sync();
    }

    pub(crate) fn look_like_the_log(&mut self) {
        let located = self.located();
        let format = located.superblock.log_format();
        let block_bytes = format.block_bytes as usize;
        let mut bytes = vec![0x77; BLOCKS * block_bytes];
        let before = self.files.get(&(0, FREE_FORM.to_string())).map(|file| &self.objects[*file].content);
        let round =
            before.and_then(|bytes| bytes.get(block_bytes - 1)).map_or(0, |round| round.wrapping_add(1));
        if let [last, before] = &self.last_logged(&located, 2)[..] {
            let log_blocks = located.superblock.log_blocks();
            let length = ((last.at + log_blocks - before.at) % log_blocks).max(1);
            for (i, block) in bytes.chunks_exact_mut(block_bytes).enumerate() {
                // From the next transaction's begin, behind its descriptor and the inode's block, once around.
                let distance = 2 + i as u32 + log_blocks;
                let tid = Tid(last.tid.0.wrapping_add(1 + (distance + length / 2) / length));
                let forged: Block = if i % 2 == usize::from(round % 2) {
                    CommitBlock::new(tid, None, SystemTime::now()).encode(&format)
                } else {
                    let mut builder = RevokeBuilder::new(format, tid);
                    let _ = last.blocks.iter().all(|nr| builder.push(*nr));
                    builder.finish()
                };
                block.copy_from_slice(&forged);
            }
        }
        // The last byte of the first block tells the rounds apart.
        bytes[block_bytes - 1] = round;
        self.write_free_form(FREE_FORM, &bytes);
    }
}
