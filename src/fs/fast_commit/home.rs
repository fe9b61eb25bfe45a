//! A dirty journal made good: its blocks and fast commits written home, or, where nothing may be written, what to
//! read instead of the blocks at home.

use crate::device::{Block, SharedDevice};
use crate::error::Result;
use crate::format::geometry::Geometry;
use crate::format::superblock::Superblock;
use crate::fs::{mount, superblock};
use crate::journal::locate::Located;
use crate::journal::recovery::Recovered;
use crate::journal::replay;
use crate::units::BlockNr;
use std::sync::Arc;

/// Writes home what a recovered journal has: the transactions' blocks, then the fast commits. Durable on return. The log isn't
/// empty yet: [`replay::finish`], or a mount that takes it over, declares it so. Whenever this is cut short, doing it
/// again gives the same.
pub fn replay_home(recovered: &Recovered, device: &SharedDevice, located: &Located) -> Result<()> {
    let Some(found) = &recovered.fast_commit else {
        return replay::apply(recovered, &**device, &located.area);
    };
    super::check(&mount::read_superblock(device)?)?;
    replay::apply(recovered, &**device, &located.area)?;
    // The log may have had a newer one.
    let sb = mount::read_superblock(device)?;
    let changes = super::changes(device, &sb, located, found, Vec::new())?;
    tracing::info!(records = found.records, blocks = changes.len(), "replaying fast commits");
    replay::replace(changes, recovered, found.tid, device, located)
}

/// The blocks as the journal has them, for a device that is only read.
pub fn overlay(
    recovered: &Recovered,
    device: &SharedDevice,
    located: &Located,
) -> Result<Vec<(BlockNr, Arc<Block>)>> {
    let mut blocks = Vec::with_capacity(recovered.blocks.len());
    for nr in recovered.blocks.keys() {
        if let Some(block) = recovered.read(&**device, &located.area, *nr)? {
            blocks.push((*nr, Arc::new(block)));
        }
    }
    let Some(found) = &recovered.fast_commit else { return Ok(blocks) };
    let sb = superblock_in(&blocks, &mount::read_superblock(device)?)?;
    super::check(&sb)?;
    let changes = super::changes(device, &sb, located, found, blocks.clone())?;
    blocks.retain(|(nr, _)| !changes.contains_key(nr));
    blocks.extend(changes);
    Ok(blocks)
}

/// The superblock as the log has it, or else as it is at home.
fn superblock_in(blocks: &[(BlockNr, Arc<Block>)], home: &Superblock) -> Result<Superblock> {
    let (at, offset) = superblock::place(&Geometry::new(home));
    let logged = blocks.iter().find(|(nr, _)| *nr == at).and_then(|(_, block)| block.get(offset..));
    match logged.and_then(|bytes| bytes.get(..superblock::SUPERBLOCK_BYTES)) {
        Some(bytes) => Superblock::decode(bytes),
        None => Ok(home.clone()),
    }
}
