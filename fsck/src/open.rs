//! Opens the device and finds a superblock.

use crate::options::Options;
use journalfs::device::open::{open, OpenDevice, OpenOptions};
use journalfs::device::SharedDevice;
use journalfs::format::features::Incompat;
use journalfs::format::superblock::Superblock;
use journalfs::{Error, Result};

/// Block sizes that -b is tried with when -B doesn't say.
const BLOCK_BYTES: [u32; 7] = [1024, 2048, 4096, 8192, 16384, 32768, 65536];

/// Opens the device: locked against everybody, or only against writers when it is only read.
pub(crate) fn device(options: &Options) -> Result<OpenDevice> {
    open(&options.device, &OpenOptions { read_only: options.reads_only(), ..OpenOptions::default() })
}

fn read(device: &SharedDevice, offset: u64) -> Result<Superblock> {
    let mut bytes = [0; 1024];
    device.read_at(offset, &mut bytes).map_err(|e| Error::io("reading the superblock", e))?;
    Superblock::decode(&bytes)
}

/// The primary superblock.
pub(crate) fn primary(device: &SharedDevice) -> Result<Superblock> {
    read(device, 1024)
}

/// The superblock to work with.
pub(crate) fn superblock(device: &SharedDevice, options: &Options) -> Result<Superblock> {
    let superblock = match options.superblock {
        None => primary(device).map_err(|error| with_hint(device, error))?,
        Some(block) => copy(device, block, options.block_bytes)?,
    };
    let unknown: Vec<_> = refused(&superblock).collect();
    if !unknown.is_empty() {
        return Err(Error::Unsupported(format!(
            "it has features that can't be checked: {}",
            unknown.join(" ")
        )));
    }
    Ok(superblock)
}

fn copy(device: &SharedDevice, block: u64, block_bytes: Option<u32>) -> Result<Superblock> {
    let sizes = block_bytes.map_or(BLOCK_BYTES.to_vec(), |bytes| vec![bytes]);
    let mut error = Error::Usage(format!("there is no superblock in block {block}"));
    for bytes in sizes {
        match read(device, block.saturating_mul(bytes as u64)) {
            Ok(superblock) if superblock.block_bytes() == bytes => return Ok(superblock),
            Ok(_) => {}
            Err(e) => error = e,
        }
    }
    Err(error)
}

/// Adds where a sound copy of a damaged superblock is.
fn with_hint(device: &SharedDevice, error: Error) -> Error {
    let found = BLOCK_BYTES.iter().find_map(|&bytes| {
        let block = 8 * bytes as u64 + u64::from(bytes == 1024);
        let superblock = read(device, block * bytes as u64).ok()?;
        (superblock.block_bytes() == bytes).then_some((block, bytes))
    });
    match found {
        Some((block, bytes)) => {
            Error::Unsupported(format!("{error}; there is a sound copy: -b {block} -B {bytes}"))
        }
        None => error,
    }
}

/// Features that make the rest unreadable.
fn refused(superblock: &Superblock) -> impl Iterator<Item = String> {
    let mut features = superblock.features;
    features.compat = journalfs::format::features::Compat::empty();
    features.ro_compat = journalfs::format::features::RoCompat::empty();
    features.incompat = features.incompat.difference(Incompat::KNOWN);
    features.names().into_iter()
}
