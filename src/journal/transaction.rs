//! What one transaction holds until it is durable.

use crate::device::Block;
use crate::units::{BlockNr, BlockRange, Tid};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

/// A transaction: running while handles publish into it, then frozen and written.
pub(super) struct Transaction {
    pub(super) tid: Tid,
    /// The blocks to log, in their newest version.
    pub(super) blocks: BTreeMap<BlockNr, Arc<Block>>,
    /// Blocks whose older records recovery must not replay. Disjoint from `blocks` (rule J6).
    pub(super) revokes: BTreeSet<BlockNr>,
    /// Blocks that may be allocated again once this is durable.
    pub(super) freed: Vec<BlockRange>,
    /// The flush that in-place data made reachable here must have been part of; 0: none.
    pub(super) data_stamp: u64,
    /// Handles published.
    pub(super) handles: u32,
    /// When the first handle came.
    pub(super) began: Option<Instant>,
}

impl Transaction {
    pub(super) fn new(tid: Tid) -> Self {
        Self {
            tid,
            blocks: BTreeMap::new(),
            revokes: BTreeSet::new(),
            freed: Vec::new(),
            data_stamp: 0,
            handles: 0,
            began: None,
        }
    }

    /// Whether there is nothing to make durable.
    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.revokes.is_empty() && self.freed.is_empty()
    }
}
