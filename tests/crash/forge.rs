//! A file that looks like the log: what escaping is for.
//!
//! Every transaction of this workload has the same length, so a block of it lies where, one wrap later, another
//! transaction will begin, whose number can be told. The file's blocks say that they are the revoke block and the commit
//! block of that transaction; a recovery that believes them forgets what was acknowledged.

use super::oracle::FREE_FORM;
use super::workload::{Workload, ROOT};
use journalfs::device::recording::Event;
use journalfs::device::Block;
use journalfs::format::jbd2::commit::CommitBlock;
use journalfs::format::jbd2::descriptor;
use journalfs::format::jbd2::header::{BlockType, Header};
use journalfs::format::jbd2::revoke::RevokeBuilder;
use journalfs::format::jbd2::LogFormat;
use journalfs::fs::read_superblock;
use journalfs::journal::locate::{locate, Located};
use journalfs::units::{BlockNr, Tid};
use std::sync::Arc;
use std::time::SystemTime;

/// Blocks in the file; with descriptor, inode and commit block a transaction has a length that divides no log's.
const BLOCKS: usize = 7;

/// A commit in the log.
struct Committed {
    tid: Tid,
    /// Log block of its commit block.
    at: u32,
    /// What it logged.
    blocks: Vec<BlockNr>,
}

impl Workload {
    fn located(&self) -> Located {
        let device: journalfs::device::SharedDevice = self.device.clone();
        locate(&*device, &read_superblock(&device).unwrap()).unwrap().unwrap()
    }

    /// The last commits in the log, newest first.
    fn commits(&self, located: &Located, format: &LogFormat, count: usize) -> Vec<Committed> {
        let block_bytes = format.block_bytes as usize;
        let physical: Vec<BlockNr> =
            (0..located.area.len()).map(|at| located.area.physical(at).unwrap()).collect();
        let mut commits: Vec<Committed> = Vec::new();
        let mut blocks = Vec::new();
        for event in self.device.events().iter().rev() {
            let Event::Write { offset, data, .. } = event else { continue };
            for (i, block) in data.chunks_exact(block_bytes).enumerate().rev() {
                let Some(header) = Header::decode(block) else { continue };
                let nr = BlockNr(offset / block_bytes as u64 + i as u64);
                let Some(at) = physical.iter().position(|p| *p == nr).filter(|at| *at > 0) else { continue };
                match header.block_type {
                    BlockType::Commit if commits.len() == count => return commits,
                    BlockType::Commit => {
                        blocks.clear();
                        commits.push(Committed { tid: header.tid, at: at as u32, blocks: Vec::new() });
                    }
                    BlockType::Descriptor => {
                        blocks.extend(descriptor::tags(format, block).map(|tag| tag.nr));
                        if let Some(commit) = commits.last_mut() {
                            commit.blocks.clone_from(&blocks);
                        }
                    }
                    _ => {}
                }
            }
        }
        commits
    }

    pub(crate) fn look_like_the_log(&mut self) {
        let path = (0, FREE_FORM.to_string());
        let Some(file) = self.files.get(&path).copied().or_else(|| self.make(path.clone())) else { return };
        let located = self.located();
        let format = located.superblock.log_format();
        let block_bytes = format.block_bytes as usize;
        let mut bytes = vec![0x77; BLOCKS * block_bytes];
        let round = self.objects[file].content.get(block_bytes - 1).copied().unwrap_or(0).wrapping_add(1);
        let commits = self.commits(&located, &format, 2);
        if let [last, before] = &commits[..] {
            let log_blocks = located.superblock.log_blocks();
            let length = (last.at + log_blocks - before.at) % log_blocks;
            for (i, block) in bytes.chunks_exact_mut(block_bytes).enumerate() {
                // Behind the descriptor and the inode's block.
                let distance = 2 + i as u32 + log_blocks;
                let tid = Tid(last.tid.0.wrapping_add(1 + (distance + length / 2) / length.max(1)));
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
        let position = self.position();
        self.oracle.write(position, self.objects[file].id, 0..bytes.len());
        self.fs.write(self.objects[file].nr, 0, &bytes, &ROOT, false).unwrap();
        self.objects[file].content = Arc::new(bytes);
        self.fsync_file(&path, file, false);
    }
}
