//! The journal's records in target `records`.

use super::input::Input;
use super::records::block;
use journalfs::format::jbd2::{
    descriptor, fast_commit, revoke, CommitBlock, DescriptorBuilder, Header, JournalSuperblock, LogChecksum,
    LogFormat, RevokeBuilder,
};
use journalfs::units::{BlockNr, Tid};

const TID: Tid = Tid(7);

/// One of the six kinds.
pub(crate) fn run(which: u8, input: &mut Input<'_>) {
    match which {
        0 => superblock(input),
        1 => tags(input),
        2 => revokes(input),
        3 => commit(input),
        4 => fast(input),
        _ => header(input),
    }
}

fn format(input: &mut Input<'_>, block_bytes: usize) -> LogFormat {
    let bits = input.u8();
    let checksum = match bits & 3 {
        0 => LogChecksum::None,
        1 => LogChecksum::V1,
        2 => LogChecksum::V2 { seed: 0x1234_5678 },
        _ => LogChecksum::V3 { seed: 0x9abc_def0 },
    };
    LogFormat { block_bytes: block_bytes as u32, wide: bits & 4 != 0, checksum }
}

/// A format and a block of its size.
fn formatted(input: &mut Input<'_>) -> (LogFormat, Vec<u8>) {
    let mut format = format(input, 0);
    let block = block(input);
    format.block_bytes = block.len() as u32;
    (format, block)
}

fn superblock(input: &mut Input<'_>) {
    let reseal = input.u8() & 1 == 0;
    let mut bytes: [u8; 1024] = input.array();
    if reseal && bytes[0x2b] & 0x18 != 0 {
        bytes[0xfc..0x100].fill(0);
        let sum = journalfs::format::checksum::crc32c(!0, &bytes);
        bytes[0xfc..0x100].copy_from_slice(&sum.to_be_bytes());
    }
    let Ok(mut sb) = JournalSuperblock::decode(&bytes) else { return };
    assert_eq!(JournalSuperblock::decode(&sb.encode()).unwrap(), sb);
    let _ = (sb.log_format(), sb.check(4096, 4096));
    assert!(sb.first < sb.last() && sb.last() <= sb.maxlen && sb.log_blocks() > 0);
    sb.upgrade();
    assert_eq!(JournalSuperblock::decode(&sb.encode()).unwrap(), sb);
}

fn tags(input: &mut Input<'_>) {
    let (format, block) = formatted(input);
    let tags: Vec<_> = descriptor::tags(&format, &block).collect();
    assert!(tags.len() <= block.len() / 8);
    let _ = format.tail_is_right(&block);
    // What can be told of them again.
    let mut builder = DescriptorBuilder::new(format, TID, [7; 16]);
    let mut pushed = Vec::new();
    for tag in &tags {
        if !builder.push(tag.nr, tag.flags.contains(descriptor::TagFlags::ESCAPE), tag.checksum) {
            break;
        }
        pushed.push((tag.nr, tag.checksum));
    }
    if !builder.is_empty() {
        let block = builder.finish();
        assert!(format.tail_is_right(&block));
        let again: Vec<_> = descriptor::tags(&format, &block).map(|tag| (tag.nr, tag.checksum)).collect();
        assert_eq!(again, pushed);
    }
}

fn revokes(input: &mut Input<'_>) {
    let (format, block) = formatted(input);
    let Ok(records) = revoke::records(&format, 1, &block) else { return };
    let records: Vec<BlockNr> = records.collect();
    let mut builder = RevokeBuilder::new(format, TID);
    let pushed = records.iter().take_while(|nr| builder.push(**nr)).count();
    let block = builder.finish();
    let again: Vec<_> = revoke::records(&format, 1, &block).unwrap().collect();
    assert_eq!(again, records[..pushed]);
}

fn commit(input: &mut Input<'_>) {
    let (format, block) = formatted(input);
    let _ = CommitBlock::is_sealed(&format, &block);
    let commit = CommitBlock::decode(TID, &block);
    let encoded = commit.encode(&format);
    assert!(CommitBlock::is_sealed(&format, &encoded));
    assert_eq!(CommitBlock::decode(TID, &encoded).time, commit.time);
}

fn fast(input: &mut Input<'_>) {
    let inode_bytes = if input.u8() & 1 == 0 { 128 } else { 256 };
    let block = block(input);
    let mut crc = 0;
    let mut covered_bytes = 0;
    for item in fast_commit::records(&block, inode_bytes) {
        let fast_commit::FcItem::Record(_, covered) = item else { break };
        covered_bytes += covered.len();
        crc = fast_commit::checksum(crc, covered);
    }
    assert!(covered_bytes <= block.len());
}

fn header(input: &mut Input<'_>) {
    let bytes: [u8; 12] = input.array();
    if let Some(header) = Header::decode(&bytes) {
        assert_eq!(header.encode(), bytes);
    }
    let mut copy = block(input);
    let before = copy.clone();
    if descriptor::needs_escape(&copy) {
        descriptor::escape(&mut copy);
        assert!(!descriptor::needs_escape(&copy));
        descriptor::unescape(&mut copy);
        assert_eq!(copy, before);
    }
}
