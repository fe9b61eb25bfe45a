//! The journal superblock (`journal_superblock_t`), versions 1 and 2: the log's first block.

use super::commit::CHECKSUM_CRC32C;
use super::header::BlockType;
use super::{crc32c, LogChecksum, LogFormat, LOG_BLOCKS_MIN, MAGIC};
use crate::error::{Error, Place, Result};
use crate::units::Tid;
use bincode::config::{BigEndian, Configuration, Fixint};

/// Bytes of the journal superblock's record; the rest of its block is not used.
pub const SUPERBLOCK_BYTES: usize = 1024;

/// Fast-commit blocks where `s_num_fc_blks` is 0.
const FAST_COMMIT_BLOCKS_DEFAULT: u32 = 256;

const CODEC: Configuration<BigEndian, Fixint> =
    bincode::config::standard().with_big_endian().with_fixed_int_encoding();

bitflags::bitflags! {
    /// `s_feature_compat`.
    #[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
    pub struct Compat: u32 {
        /// Commit blocks carry the transaction's CRC-32 (v1 checksums).
        const CHECKSUM = 1;
        /// Bits that nobody has named; kept.
        const _ = !0;
    }

    /// `s_feature_incompat`.
    #[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
    pub struct Incompat: u32 {
        /// There may be revoke blocks.
        const REVOKE = 1;
        /// Block numbers have 64 bits.
        const WIDE = 2;
        /// A transaction's commit block may reach the disk before the rest of it.
        const ASYNC_COMMIT = 4;
        /// crc32c checksums, 16 bits in the tags.
        const CSUM_V2 = 8;
        /// crc32c checksums, 32 bits in the tags.
        const CSUM_V3 = 16;
        /// The log's last blocks are a fast-commit area.
        const FAST_COMMIT = 32;
        /// Bits that nobody has named; refused.
        const _ = !0;
    }
}

/// The record, field by field; names as in jbd2, without the `s_`.
#[derive(Clone, PartialEq, Eq, Debug, bincode::Encode, bincode::Decode)]
struct Record {
    magic: u32,
    blocktype: u32,
    header_sequence: u32,
    blocksize: u32,
    maxlen: u32,
    first: u32,
    sequence: u32,
    start: u32,
    errno: i32,
    feature_compat: u32,
    feature_incompat: u32,
    feature_ro_compat: u32,
    uuid: [u8; 16],
    nr_users: u32,
    dynsuper: u32,
    max_transaction: u32,
    max_trans_data: u32,
    checksum_type: u8,
    padding2: [u8; 3],
    num_fc_blks: u32,
    head: u32,
    padding: [u8; 160],
    checksum: u32,
    users: [u8; 768],
}

/// The journal superblock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JournalSuperblock {
    /// 1 or 2; version 1 has no features, UUID or users.
    pub version: u8,
    /// Bytes in a log block; must be the file system's.
    pub block_bytes: u32,
    /// Blocks in the log, this one included.
    pub maxlen: u32,
    /// The first block that transactions use.
    pub first: u32,
    /// The transaction that the log begins with.
    pub sequence: Tid,
    /// The log block where it begins; 0 says that the log is empty.
    pub start: u32,
    /// An errno that an aborted journal left behind; 0 is none.
    pub errno: i32,
    /// Compatible features.
    pub compat: Compat,
    /// Incompatible features.
    pub incompat: Incompat,
    /// Read-only compatible features; none is defined.
    pub ro_compat: u32,
    /// The journal's UUID.
    pub uuid: [u8; 16],
    /// How many file systems use the journal.
    pub nr_users: u32,
    /// `s_checksum_type`; crc32c with v2 and v3, else 0.
    pub checksum_type: u8,
    /// Fast-commit blocks at the log's end; 0 stands for 256 where FAST_COMMIT is set.
    pub num_fc_blks: u32,
    /// Where the log's head was at a clean unmount; 0 when nobody said.
    pub head: u32,
    /// The file systems that use the journal, 16 bytes each.
    pub users: [u8; 768],
    rest: Rest,
}

/// Fields that are kept as they were found.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Rest {
    dynsuper: u32,
    max_transaction: u32,
    max_trans_data: u32,
    padding: [u8; 160],
}

fn corrupt(why: impl Into<String>) -> Error {
    Error::corrupt("journal superblock", Place::LogBlock(0), why)
}

impl JournalSuperblock {
    /// A version-2 superblock of an empty log; no features.
    pub fn new(block_bytes: u32, maxlen: u32, uuid: [u8; 16]) -> Self {
        Self {
            version: 2,
            block_bytes,
            maxlen,
            first: 1,
            sequence: Tid(1),
            start: 0,
            errno: 0,
            compat: Compat::empty(),
            incompat: Incompat::empty(),
            ro_compat: 0,
            uuid,
            nr_users: 1,
            checksum_type: 0,
            num_fc_blks: 0,
            head: 0,
            users: [0; 768],
            rest: Rest { dynsuper: 0, max_transaction: 0, max_trans_data: 0, padding: [0; 160] },
        }
    }

    /// Reads the log's first block. Magic, checksum, features and each field by itself are checked;
    /// [`check`](Self::check) compares them with the file system.
    pub fn decode(block: &[u8]) -> Result<Self> {
        let (record, _) = bincode::decode_from_slice::<Record, _>(block, CODEC)
            .map_err(|_| corrupt(format!("it has only {} bytes", block.len())))?;
        if record.magic != MAGIC {
            return Err(corrupt(format!("its magic is {:#010x}", record.magic)));
        }
        let version = match record.blocktype {
            t if t == BlockType::SuperblockV1 as u32 => 1,
            t if t == BlockType::SuperblockV2 as u32 => 2,
            other => return Err(corrupt(format!("its block type is {other}"))),
        };
        let mut sb = Self {
            version,
            block_bytes: record.blocksize,
            maxlen: record.maxlen,
            first: record.first,
            sequence: Tid(record.sequence),
            start: record.start,
            errno: record.errno,
            ..Self::new(record.blocksize, record.maxlen, [0; 16])
        };
        // What version 1 has behind s_errno means nothing.
        if version == 2 {
            sb.compat = Compat::from_bits_retain(record.feature_compat);
            sb.incompat = Incompat::from_bits_retain(record.feature_incompat);
            sb.ro_compat = record.feature_ro_compat;
            sb.uuid = record.uuid;
            sb.nr_users = record.nr_users;
            sb.checksum_type = record.checksum_type;
            sb.num_fc_blks = record.num_fc_blks;
            sb.head = record.head;
            sb.users = record.users;
            sb.rest = Rest {
                dynsuper: record.dynsuper,
                max_transaction: record.max_transaction,
                max_trans_data: record.max_trans_data,
                padding: record.padding,
            };
        }
        sb.check_features()?;
        if sb.has_block_checksums() && superblock_checksum(block) != Some(record.checksum) {
            return Err(corrupt("its checksum is wrong"));
        }
        sb.check_fields()?;
        Ok(sb)
    }

    fn check_features(&self) -> Result<()> {
        let unknown = self.incompat.difference(
            Incompat::REVOKE
                | Incompat::WIDE
                | Incompat::ASYNC_COMMIT
                | Incompat::CSUM_V2
                | Incompat::CSUM_V3
                | Incompat::FAST_COMMIT,
        );
        if !unknown.is_empty() || self.ro_compat != 0 {
            return Err(Error::Unsupported(format!(
                "the journal has unknown features (incompat {:#x}, ro_compat {:#x})",
                unknown.bits(),
                self.ro_compat
            )));
        }
        if self.incompat.contains(Incompat::CSUM_V2 | Incompat::CSUM_V3) {
            return Err(corrupt("checksum v2 and v3 are both set"));
        }
        if self.has_block_checksums() && self.compat.contains(Compat::CHECKSUM) {
            return Err(corrupt("checksum v1 is set beside v2 or v3"));
        }
        if self.has_block_checksums() && self.checksum_type != CHECKSUM_CRC32C {
            return Err(corrupt(format!("its checksum type is {}", self.checksum_type)));
        }
        Ok(())
    }

    fn check_fields(&self) -> Result<()> {
        if self.maxlen < LOG_BLOCKS_MIN {
            return Err(corrupt(format!("the log has {} blocks, fewer than {LOG_BLOCKS_MIN}", self.maxlen)));
        }
        if self.fast_commit_blocks() > self.maxlen - LOG_BLOCKS_MIN {
            return Err(corrupt(format!("{} fast-commit blocks leave no log", self.fast_commit_blocks())));
        }
        if self.first == 0 || self.first >= self.last() {
            return Err(corrupt(format!("the log would begin at its block {}", self.first)));
        }
        if self.start != 0 && !(self.first..self.last()).contains(&self.start) {
            return Err(corrupt(format!("s_start is {}, outside the log", self.start)));
        }
        Ok(())
    }

    /// Compares the superblock with the file system's block size and the blocks that the journal's inode has.
    pub fn check(&self, block_bytes: u32, log_blocks: u32) -> Result<()> {
        if self.block_bytes != block_bytes {
            return Err(corrupt(format!("its blocks have {} bytes, not {block_bytes}", self.block_bytes)));
        }
        if self.maxlen > log_blocks {
            return Err(corrupt(format!(
                "s_maxlen is {}, but the journal has {log_blocks} blocks",
                self.maxlen
            )));
        }
        Ok(())
    }

    /// The record's bytes, sealed where the features ask for it.
    pub fn encode(&self) -> [u8; SUPERBLOCK_BYTES] {
        let record = Record {
            magic: MAGIC,
            blocktype: if self.version == 1 { BlockType::SuperblockV1 } else { BlockType::SuperblockV2 }
                as u32,
            header_sequence: 0,
            blocksize: self.block_bytes,
            maxlen: self.maxlen,
            first: self.first,
            sequence: self.sequence.0,
            start: self.start,
            errno: self.errno,
            feature_compat: self.compat.bits(),
            feature_incompat: self.incompat.bits(),
            feature_ro_compat: self.ro_compat,
            uuid: self.uuid,
            nr_users: self.nr_users,
            dynsuper: self.rest.dynsuper,
            max_transaction: self.rest.max_transaction,
            max_trans_data: self.rest.max_trans_data,
            checksum_type: if self.has_block_checksums() { CHECKSUM_CRC32C } else { 0 },
            padding2: [0; 3],
            num_fc_blks: self.num_fc_blks,
            head: self.head,
            padding: self.rest.padding,
            checksum: 0,
            users: self.users,
        };
        let mut bytes = [0; SUPERBLOCK_BYTES];
        // The record is exactly as long as the array, so this cannot fail.
        let written = bincode::encode_into_slice(&record, &mut bytes, CODEC);
        debug_assert!(matches!(written, Ok(SUPERBLOCK_BYTES)));
        if self.version == 1 {
            bytes[36..].fill(0);
        } else if self.has_block_checksums() {
            let sum = crc32c(!0, &bytes);
            bytes[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&sum.to_be_bytes());
        }
        bytes
    }

    /// Makes a version-1 superblock one that may have features (rule J14 of the design). The log must be empty.
    pub fn upgrade(&mut self) {
        if self.version == 1 {
            self.version = 2;
            self.nr_users = 1;
        }
    }

    /// Whether log blocks carry crc32c checksums (v2 or v3).
    pub fn has_block_checksums(&self) -> bool {
        self.incompat.intersects(Incompat::CSUM_V2 | Incompat::CSUM_V3)
    }

    /// How this log's blocks are laid out.
    pub fn log_format(&self) -> LogFormat {
        let seed = crc32c(!0, &self.uuid);
        let checksum = if self.incompat.contains(Incompat::CSUM_V3) {
            LogChecksum::V3 { seed }
        } else if self.incompat.contains(Incompat::CSUM_V2) {
            LogChecksum::V2 { seed }
        } else if self.compat.contains(Compat::CHECKSUM) {
            LogChecksum::V1
        } else {
            LogChecksum::None
        };
        LogFormat { block_bytes: self.block_bytes, wide: self.incompat.contains(Incompat::WIDE), checksum }
    }

    /// Blocks of the fast-commit area.
    pub fn fast_commit_blocks(&self) -> u32 {
        match (self.incompat.contains(Incompat::FAST_COMMIT), self.num_fc_blks) {
            (false, _) => 0,
            (true, 0) => FAST_COMMIT_BLOCKS_DEFAULT,
            (true, n) => n,
        }
    }

    /// The block behind the last one that transactions use (jbd2's `j_last`); the log wraps there to `first`.
    pub fn last(&self) -> u32 {
        self.maxlen.saturating_sub(self.fast_commit_blocks())
    }

    /// How many blocks transactions have.
    pub fn log_blocks(&self) -> u32 {
        self.last().saturating_sub(self.first)
    }
}

const CHECKSUM_AT: usize = 0xfc;

fn superblock_checksum(block: &[u8]) -> Option<u32> {
    let record = block.get(..SUPERBLOCK_BYTES)?;
    Some(crc32c(crc32c(crc32c(!0, &record[..CHECKSUM_AT]), &[0; 4]), &record[CHECKSUM_AT + 4..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v3() -> JournalSuperblock {
        let mut sb = JournalSuperblock::new(4096, 32768, [7; 16]);
        sb.incompat = Incompat::REVOKE | Incompat::WIDE | Incompat::CSUM_V3;
        sb.checksum_type = CHECKSUM_CRC32C;
        sb.start = 17;
        sb.sequence = Tid(99);
        sb.head = 5;
        sb.rest.padding[3] = 9;
        sb
    }

    #[test]
    fn round_trip_keeps_all_and_seals() {
        let sb = v3();
        let mut bytes = sb.encode();
        assert_eq!(JournalSuperblock::decode(&bytes).unwrap(), sb);
        assert_eq!(bytes[0x54..0x58], [0; 4]);
        assert_eq!(bytes[0x58..0x5c], 5u32.to_be_bytes());
        bytes[300] ^= 1;
        assert!(JournalSuperblock::decode(&bytes).unwrap_err().to_string().contains("checksum"));
    }

    #[test]
    fn version_1_has_no_features() {
        let mut sb = v3();
        sb.version = 1;
        let mut bytes = sb.encode();
        bytes[36..48].fill(0xff);
        let read = JournalSuperblock::decode(&bytes).unwrap();
        assert_eq!((read.version, read.start, read.incompat), (1, 17, Incompat::empty()));
        assert_eq!(read.log_format().checksum, LogChecksum::None);
        let mut read = read;
        read.upgrade();
        assert_eq!(JournalSuperblock::decode(&read.encode()).unwrap(), read);
    }

    #[test]
    fn hostile_fields_are_refused() {
        let refused = |change: &dyn Fn(&mut JournalSuperblock)| {
            let mut sb = v3();
            change(&mut sb);
            let bytes = sb.encode();
            JournalSuperblock::decode(&bytes).is_err()
        };
        assert!(!refused(&|_| {}));
        assert!(refused(&|sb| sb.maxlen = 1023));
        assert!(refused(&|sb| sb.first = 0));
        assert!(refused(&|sb| sb.first = sb.maxlen));
        assert!(refused(&|sb| sb.start = sb.maxlen));
        assert!(refused(&|sb| sb.incompat |= Incompat::from_bits_retain(0x40)));
        assert!(refused(&|sb| sb.incompat |= Incompat::CSUM_V2));
        assert!(refused(&|sb| sb.compat |= Compat::CHECKSUM));
        assert!(refused(&|sb| sb.ro_compat = 1));
        assert!(refused(&|sb| {
            sb.incompat |= Incompat::FAST_COMMIT;
            sb.num_fc_blks = sb.maxlen - 1000;
        }));
        assert!(JournalSuperblock::decode(&v3().encode()[..1000]).is_err());
        assert!(v3().check(1024, 32768).is_err() && v3().check(4096, 32767).is_err());
        assert!(v3().check(4096, 40000).is_ok());
    }

    #[test]
    fn the_fast_commit_area_shortens_the_log() {
        let mut sb = v3();
        assert_eq!(sb.last(), 32768);
        sb.incompat |= Incompat::FAST_COMMIT;
        assert_eq!(sb.last(), 32768 - 256);
        sb.num_fc_blks = 100;
        assert_eq!((sb.last(), sb.log_blocks()), (32668, 32667));
    }
}
