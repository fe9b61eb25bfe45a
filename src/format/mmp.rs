//! The block of multi-mount protection (the kernel's `struct mmp_struct`): who has the file
//! system mounted writes a new sequence number into it every few seconds.

use super::checksum::crc32c;
use super::geometry::Geometry;
use super::wire::{self, Field};
use crate::error::{Error, Place, Result};
use crate::units::BlockNr;

/// `mmp_magic`.
pub const MAGIC: u32 = 0x004d_4d50;
/// `mmp_seq` while nobody has the file system mounted.
pub const SEQ_CLEAN: u32 = 0xff4d_4d50;
/// `mmp_seq` while fsck is at work.
pub const SEQ_FSCK: u32 = 0xe24d_4d50;
/// The highest `mmp_seq` of a mount.
pub const SEQ_MAX: u32 = 0xe24d_4d4f;
/// Bytes of the record; the rest of its block is unused.
pub const BYTES: usize = 1024;

const CHECKSUM_AT: usize = 1020;
const STRUCTURE: &str = "multi-mount protection block";

/// What the block says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mmp {
    /// `SEQ_CLEAN`, `SEQ_FSCK`, or a mount's changing number.
    pub seq: u32,
    /// When it was last written, in seconds from 1970; information only.
    pub time: u64,
    /// The writer's host, NUL-padded; information only.
    pub nodename: [u8; 64],
    /// The writer's device, NUL-padded; information only.
    pub bdevname: [u8; 32],
    /// Seconds between two writes of `seq`.
    pub check_interval: u16,
}

impl Mmp {
    /// Decodes and checks the record at the start of `bytes`.
    pub fn decode(bytes: &[u8], geometry: &Geometry, nr: BlockNr) -> Result<Self> {
        let bad = |why: String| Error::corrupt(STRUCTURE, Place::Block(nr), why);
        let bytes = bytes.get(..BYTES).ok_or_else(|| bad("it is cut short".to_owned()))?;
        let magic = wire::get_u32(bytes, 0);
        if magic != MAGIC {
            return Err(bad(format!("its magic number is {magic:#x}, not {MAGIC:#x}")));
        }
        let (stored, computed) = (wire::get_u32(bytes, CHECKSUM_AT), checksum(bytes, geometry));
        if geometry.has_csum() && stored != computed {
            return Err(bad(format!("its checksum is {stored:#010x}, not {computed:#010x}")));
        }
        Ok(Self {
            seq: Field::get(bytes, 4),
            time: Field::get(bytes, 8),
            nodename: Field::get(bytes, 16),
            bdevname: Field::get(bytes, 80),
            check_interval: Field::get(bytes, 112),
        })
    }

    /// Encodes the record at the start of `bytes`, sealed.
    pub fn encode(&self, bytes: &mut [u8], geometry: &Geometry) {
        MAGIC.put(bytes, 0);
        self.seq.put(bytes, 4);
        self.time.put(bytes, 8);
        self.nodename.put(bytes, 16);
        self.bdevname.put(bytes, 80);
        self.check_interval.put(bytes, 112);
        if geometry.has_csum() {
            checksum(bytes, geometry).put(bytes, CHECKSUM_AT);
        }
    }
}

fn checksum(bytes: &[u8], geometry: &Geometry) -> u32 {
    crc32c(geometry.csum_seed, bytes.get(..CHECKSUM_AT).unwrap_or_default())
}
