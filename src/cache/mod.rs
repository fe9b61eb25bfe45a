//! What is kept in memory: metadata blocks, and the handles through which they change.
//! Called by `fs/`; calls `journal/` for the newest logged copy of a block, and `device/`.
//!
//! A change happens in a [`Handle`]: private copies of the blocks it touches, published together
//! into the running transaction when the operation succeeds and dropped when it fails. One handle
//! is open at a time, it never waits for I/O, and nothing of a failed one can be seen.

mod block;
pub(crate) mod clock;
mod handle;
mod patience;

pub use block::BlockCache;
pub use handle::Handle;
pub use patience::without_waiting;

use crate::device::Block;
use crate::error::Result;
use crate::units::BlockNr;
use std::sync::Arc;

/// Where code that only looks finds metadata blocks: the [`BlockCache`] outside a transaction
/// (reads the device on a miss), a [`Handle`] inside one (sees its own changes; a miss is
/// [`Error::NotCached`](crate::Error::NotCached), which [`BlockCache::update`] answers by reading the block and trying again).
pub trait ReadBlock {
    /// The newest version of a metadata block.
    fn read_block(&self, nr: BlockNr) -> Result<Arc<Block>>;

    /// Asks for blocks that are about to be read; at most a hint.
    fn prefetch(&self, _blocks: &[BlockNr]) {}
}
