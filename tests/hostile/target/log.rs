//! Images whose journal is to be replayed: our own, as a crash leaves it, and logs in the other formats of jbd2.

use super::{base, tree};
use journalfs::device::memory::MemoryDevice;
use journalfs::device::{Device, SharedDevice};
use journalfs::format::checksum::{crc32_be, START};
use journalfs::format::jbd2::{
    escape, fast_commit, needs_escape, CommitBlock, Compat, DescriptorBuilder, Incompat, JournalSuperblock,
    LogChecksum, RevokeBuilder,
};
use journalfs::format::{Geometry, Incompat as FsIncompat};
use journalfs::fs::{read_superblock, Fs};
use journalfs::journal::locate::{locate, Located};
use journalfs::journal::replay::{update_superblock, write_journal_superblock};
use journalfs::units::{BlockNr, InodeNr, Tid};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

const FAST_COMMIT_BLOCKS: u32 = 64;
const FIRST_TID: Tid = Tid(70);

/// A file system with each kind of log.
pub(crate) fn dirty(before: &MemoryDevice, fs_bytes: u64) -> Vec<MemoryDevice> {
    let device = Arc::new(before.clone());
    let fs = base::mount(device.clone());
    tree::change(&fs);
    let mut all = vec![MemoryDevice::clone(&device)];
    // What is open is closed, so that the new state is at rest.
    fs.unmount().unwrap();
    for (checksum, fast) in [(0, false), (2, false), (3, false), (3, true)] {
        all.extend(written(before, &device, fs_bytes, checksum, fast));
    }
    all
}

/// The first image with a log that makes the second of it; with fast commits, those that follow.
fn written(
    before: &MemoryDevice,
    after: &MemoryDevice,
    fs_bytes: u64,
    checksum: u8,
    fast: bool,
) -> Option<MemoryDevice> {
    let device = before.clone();
    let shared: SharedDevice = Arc::new(device.clone());
    let sb = read_superblock(&shared).unwrap();
    let Located { area, mut superblock, .. } = locate(&device, &sb).unwrap().unwrap();
    superblock.compat.remove(Compat::CHECKSUM);
    superblock.incompat = Incompat::REVOKE;
    superblock.incompat.set(Incompat::WIDE, sb.features.incompat.contains(FsIncompat::BIT64));
    match checksum {
        2 => superblock.incompat |= Incompat::CSUM_V2,
        3 => superblock.incompat |= Incompat::CSUM_V3,
        _ => {}
    }
    if fast {
        if superblock.maxlen < 1100 + FAST_COMMIT_BLOCKS {
            return None;
        }
        superblock.incompat |= Incompat::FAST_COMMIT;
        superblock.num_fc_blks = FAST_COMMIT_BLOCKS;
    }
    // Near the end, so that it goes round.
    (superblock.start, superblock.sequence) = (superblock.last() - 5, FIRST_TID);
    let block_bytes = superblock.block_bytes;
    let changed: Vec<u64> = (u64::from(sb.first_data_block) + 1..fs_bytes / u64::from(block_bytes))
        .filter(|nr| {
            !area.contains(BlockNr(*nr)) && block(before, block_bytes, *nr) != block(after, block_bytes, *nr)
        })
        .collect();
    let mut log = Writer {
        device: &device,
        area: &area,
        superblock: &superblock,
        at: superblock.start,
        tid: FIRST_TID,
        crc: START,
    };
    let (first, second) = changed.split_at(changed.len() / 2);
    // A copy that must not be replayed, since it is revoked later; and two that are revoked and logged again.
    let stale = fs_bytes / u64::from(block_bytes) - 1;
    log.transaction(after, &[first, &[stale]].concat(), &[]);
    let again = &first[..first.len().min(2)];
    log.transaction(after, second, &[again, &[stale]].concat());
    log.transaction(after, again, &[]);
    let next = log.tid;
    if fast {
        let geometry = Geometry::new(&sb);
        let bytes = fast_commits(after, &geometry, next);
        let at = area.physical(superblock.last() + 1).unwrap().0 * u64::from(block_bytes);
        device.write_at(at, &bytes).unwrap();
    }
    write_journal_superblock(&device, &area, &superblock).unwrap();
    update_superblock(&device, |sb| sb.features.incompat.insert(FsIncompat::NEEDS_RECOVERY)).unwrap();
    Some(device)
}

fn block(device: &MemoryDevice, block_bytes: u32, nr: u64) -> Vec<u8> {
    let mut bytes = vec![0; block_bytes as usize];
    device.read_at(nr * u64::from(block_bytes), &mut bytes).unwrap();
    bytes
}

struct Writer<'a> {
    device: &'a MemoryDevice,
    area: &'a journalfs::journal::log_area::LogArea,
    superblock: &'a JournalSuperblock,
    at: u32,
    tid: Tid,
    crc: u32,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        let nr = self.area.physical(self.at).unwrap();
        self.device.write_at(nr.0 * bytes.len() as u64, bytes).unwrap();
        self.at = if self.at + 1 == self.superblock.last() { self.superblock.first } else { self.at + 1 };
    }

    fn transaction(&mut self, from: &MemoryDevice, blocks: &[u64], revokes: &[u64]) {
        let format = self.superblock.log_format();
        if !revokes.is_empty() {
            let mut builder = RevokeBuilder::new(format, self.tid);
            for nr in revokes {
                assert!(builder.push(BlockNr(*nr)));
            }
            self.put(&builder.finish());
        }
        for some in blocks.chunks(format.tags_per_descriptor().min(40)) {
            let mut builder = DescriptorBuilder::new(format, self.tid, self.superblock.uuid);
            let mut copies = Vec::new();
            for nr in some {
                let mut copy = block(from, format.block_bytes, *nr);
                let escaped = needs_escape(&copy);
                if escaped {
                    escape(&mut copy);
                }
                assert!(builder.push(BlockNr(*nr), escaped, format.data_checksum(self.tid, &copy)));
                copies.push(copy);
            }
            let descriptor = builder.finish();
            self.crc = crc32_be(self.crc, &descriptor);
            self.put(&descriptor);
            for copy in copies {
                self.crc = crc32_be(self.crc, &copy);
                self.put(&copy);
            }
        }
        let crc = (format.checksum == LogChecksum::V1).then_some(self.crc);
        let time = UNIX_EPOCH + Duration::from_secs(1000);
        self.put(&CommitBlock::new(self.tid, crc, time).encode(&format));
        (self.crc, self.tid) = (START, self.tid.next());
    }
}

/// Fast commits that make a file, give it blocks, rename it and remove another, on the file system as `after` is.
fn fast_commits(after: &MemoryDevice, geometry: &Geometry, tid: Tid) -> Vec<u8> {
    let device: SharedDevice = Arc::new(after.clone());
    let options = journalfs::fs::options::MountOptions { read_only: true, ..Default::default() };
    let fs = Fs::mount(device, &options).unwrap();
    let small = fs.lookup(InodeNr::ROOT, b"small").unwrap().nr;
    let pieces = fs.lookup(InodeNr::ROOT, b"pieces").unwrap().nr;
    let free = geometry.inodes_count - 3;
    let mut records = Records { bytes: Vec::new(), crc: 0 };
    records.put(9, &[0u32.to_le_bytes(), tid.0.to_le_bytes()].concat());
    let mut raw = fs.read_record(small).unwrap();
    (raw.links, raw.size, raw.file_acl) = (1, 5000, BlockNr(0));
    let mut bytes = vec![0; geometry.inode_bytes as usize];
    raw.encode(&mut bytes, geometry, InodeNr(free)).unwrap();
    records.put(6, &[&free.to_le_bytes()[..], &bytes].concat());
    records.name(3, free, b"fast");
    let end = geometry.blocks_count as u32 - 40;
    records.range(free, 0, 3, end);
    records.range(pieces.0, 1, 2 + 32768, end + 8);
    records.put(2, &[pieces.0.to_le_bytes(), 8u32.to_le_bytes(), 9u32.to_le_bytes()].concat());
    records.tail(tid);
    records.name(4, free, b"linked");
    records.name(5, free, b"fast");
    records.name(5, pieces.0, b"unwritten");
    records.tail(tid);
    records.bytes
}

struct Records {
    bytes: Vec<u8>,
    crc: u32,
}

impl Records {
    fn put(&mut self, tag: u16, value: &[u8]) {
        let record = [&tag.to_le_bytes()[..], &(value.len() as u16).to_le_bytes(), value].concat();
        self.crc = fast_commit::checksum(self.crc, &record);
        self.bytes.extend(record);
    }

    fn name(&mut self, tag: u16, nr: u32, name: &[u8]) {
        self.put(tag, &[&InodeNr::ROOT.0.to_le_bytes()[..], &nr.to_le_bytes(), name].concat());
    }

    fn range(&mut self, nr: u32, file_block: u32, len: u16, physical: u32) {
        let words = [nr.to_le_bytes(), file_block.to_le_bytes()].concat();
        self.put(1, &[&words[..], &len.to_le_bytes(), &0u16.to_le_bytes(), &physical.to_le_bytes()].concat());
    }

    fn tail(&mut self, tid: Tid) {
        let head = [&8u16.to_le_bytes()[..], &8u16.to_le_bytes(), &tid.0.to_le_bytes()].concat();
        let crc = fast_commit::checksum(self.crc, &head);
        self.bytes.extend(head);
        self.bytes.extend(crc.to_le_bytes());
        self.crc = 0;
    }
}
