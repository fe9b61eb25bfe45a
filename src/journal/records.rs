//! The one map: which blocks have a version that is not home yet, or a record in the log that a
//! recovery would replay. Rules J5 to J8 are decided here and nowhere else.

use crate::device::Block;
use crate::units::{BlockNr, BlockRange, Tid};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A version of a block in the running or committing transaction.
type Version = (Tid, Arc<Block>);

/// The newest durable record of a block in the log.
struct Logged {
    tid: Tid,
    /// The bytes, until they are home and flushed.
    data: Option<Arc<Block>>,
}

#[derive(Default)]
struct Record {
    /// In the running transaction, or in the committing one if the running one hasn't changed it.
    newest: Option<Version>,
    /// In the committing transaction, when the running one has a newer version.
    frozen: Option<Version>,
    logged: Option<Logged>,
    /// The transaction that revokes everything older, not durable yet.
    revoked: Option<Tid>,
}

impl Record {
    fn is_gone(&self) -> bool {
        self.newest.is_none() && self.frozen.is_none() && self.logged.is_none()
    }

    fn readable(&self) -> Option<&Arc<Block>> {
        if self.revoked.is_some() {
            return None;
        }
        match (&self.newest, &self.logged) {
            (Some((_, block)), _) => Some(block),
            (None, Some(logged)) => logged.data.as_ref(),
            (None, None) => None,
        }
    }
}

/// See the module's text.
#[derive(Default)]
pub(super) struct Records {
    map: BTreeMap<BlockNr, Record>,
}

impl Records {
    /// A new version in the running transaction `tid`; undoes its revoke (rule J6).
    pub(super) fn publish(&mut self, nr: BlockNr, tid: Tid, block: Arc<Block>) {
        let record = self.map.entry(nr).or_default();
        match record.newest.take() {
            Some((older, data)) if older != tid => record.frozen = Some((older, data)),
            _ => {}
        }
        record.newest = Some((tid, block));
        record.revoked = None;
    }

    /// Drops the running transaction's version of the blocks in `range`, and returns those with older
    /// records, which the running transaction `tid` must revoke (rule J7).
    pub(super) fn forget(&mut self, range: BlockRange, tid: Tid) -> Vec<BlockNr> {
        let mut revoke = Vec::new();
        let mut gone = Vec::new();
        for (nr, record) in self.map.range_mut(range.start..range.end()) {
            if record.newest.as_ref().is_some_and(|(t, _)| *t == tid) {
                record.newest = None;
            }
            if record.is_gone() {
                gone.push(*nr);
            } else {
                record.revoked = Some(tid);
                revoke.push(*nr);
            }
        }
        for nr in gone {
            self.map.remove(&nr);
        }
        revoke
    }

    /// The newest readable version that is not home.
    pub(super) fn newest(&self, nr: BlockNr) -> Option<Arc<Block>> {
        self.map.get(&nr)?.readable().cloned()
    }

    /// The newest readable versions in `range` that are not home.
    pub(super) fn newest_in(&self, range: BlockRange) -> Vec<(BlockNr, Arc<Block>)> {
        self.map
            .range(range.start..range.end())
            .filter_map(|(nr, record)| Some((*nr, record.readable()?.clone())))
            .collect()
    }

    /// Whether a recovery now, or after the commits under way, would write over a block of `range` (rule J5).
    pub(super) fn is_live(&self, range: BlockRange) -> bool {
        self.map.range(range.start..range.end()).any(|(_, r)| r.revoked.is_none() && !r.is_gone())
    }

    /// Transaction `tid` is durable.
    pub(super) fn committed(
        &mut self,
        tid: Tid,
        blocks: BTreeMap<BlockNr, Arc<Block>>,
        revokes: &BTreeSet<BlockNr>,
    ) {
        for (nr, block) in blocks {
            let record = self.map.entry(nr).or_default();
            for version in [&mut record.newest, &mut record.frozen] {
                if version.as_ref().is_some_and(|(t, _)| *t == tid) {
                    *version = None;
                }
            }
            record.logged = Some(Logged { tid, data: Some(block) });
        }
        for nr in revokes {
            let Some(record) = self.map.get_mut(nr) else { continue };
            record.logged = None;
            if record.revoked == Some(tid) {
                record.revoked = None;
            }
            if record.is_gone() {
                self.map.remove(nr);
            }
        }
    }

    /// The durable versions that are not home, in block order (rule J8); those that are being revoked only
    /// if `revoked`.
    pub(super) fn to_checkpoint(&self, revoked: bool) -> Vec<(BlockNr, Tid)> {
        self.map
            .iter()
            .filter(|(_, r)| revoked || r.revoked.is_none())
            .filter_map(|(nr, r)| r.logged.as_ref().filter(|l| l.data.is_some()).map(|l| (*nr, l.tid)))
            .collect()
    }

    /// The bytes to write home, if `tid`'s is still the newest durable version, and isn't revoked unless `revoked`.
    pub(super) fn checkpoint_data(&self, nr: BlockNr, tid: Tid, revoked: bool) -> Option<Arc<Block>> {
        let record = self.map.get(&nr)?;
        let wanted = revoked || record.revoked.is_none();
        let logged = record.logged.as_ref().filter(|l| l.tid == tid && wanted)?;
        logged.data.clone()
    }

    /// The version of `tid` is home and flushed.
    pub(super) fn home(&mut self, nr: BlockNr, tid: Tid) {
        if let Some(record) = self.map.get_mut(&nr) {
            if let Some(logged) = record.logged.as_mut().filter(|l| l.tid == tid) {
                logged.data = None;
            }
        }
    }

    /// The oldest transaction with a block that is not home; the log's tail must not pass it.
    pub(super) fn oldest_not_home(&self) -> Option<Tid> {
        let mut oldest: Option<Tid> = None;
        for logged in self.map.values().filter_map(|r| r.logged.as_ref()) {
            if logged.data.is_some() && oldest.is_none_or(|o| o.is_after(logged.tid)) {
                oldest = Some(logged.tid);
            }
        }
        oldest
    }

    /// The log now begins with transaction `tail`: older records are gone from it.
    pub(super) fn tail_moved(&mut self, tail: Tid) {
        self.map.retain(|_, record| {
            if record.logged.as_ref().is_some_and(|l| l.data.is_none() && tail.is_after(l.tid)) {
                record.logged = None;
            }
            !record.is_gone()
        });
    }

    /// How many blocks are known.
    pub(super) fn len(&self) -> usize {
        self.map.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NR: BlockNr = BlockNr(7);

    fn range() -> BlockRange {
        BlockRange::new(NR, 1)
    }

    fn block(byte: u8) -> Arc<Block> {
        Arc::new(Block::from_bytes(&[byte; 512]))
    }

    fn commit(records: &mut Records, tid: u32, byte: Option<u8>, revoke: bool) {
        let blocks = byte.map(|b| (NR, block(b))).into_iter().collect();
        let revokes = revoke.then_some(NR).into_iter().collect();
        records.committed(Tid(tid), blocks, &revokes);
    }

    #[test]
    fn the_newest_version_is_read_and_the_committed_one_checkpointed() {
        let mut records = Records::default();
        records.publish(NR, Tid(1), block(1));
        assert!(records.to_checkpoint(false).is_empty(), "J8: nothing uncommitted goes home");
        records.publish(NR, Tid(2), block(2));
        commit(&mut records, 1, Some(1), false);
        assert_eq!(records.newest(NR).unwrap()[0], 2);
        assert_eq!(
            records.checkpoint_data(NR, Tid(1), false).unwrap()[0],
            1,
            "J8: the last committed version"
        );
        records.home(NR, Tid(1));
        assert!(records.is_live(range()), "J5: the record is in the log until the tail passes it");
        records.tail_moved(Tid(2));
        commit(&mut records, 2, Some(2), false);
        assert_eq!(records.newest(NR).unwrap()[0], 2);
        assert_eq!(records.oldest_not_home(), Some(Tid(2)));
        records.home(NR, Tid(2));
        assert!(records.newest(NR).is_none(), "read from home");
        records.tail_moved(Tid(3));
        assert!(!records.is_live(range()));
    }

    #[test]
    fn forgetting_revokes_only_what_a_recovery_could_replay() {
        let mut records = Records::default();
        records.publish(NR, Tid(1), block(1));
        assert!(records.forget(range(), Tid(1)).is_empty(), "never logged");
        assert!(!records.is_live(range()));
        records.publish(NR, Tid(1), block(1));
        commit(&mut records, 1, Some(1), false);
        assert_eq!(records.forget(range(), Tid(2)), vec![NR], "J7");
        assert!(records.to_checkpoint(false).is_empty(), "J5: a revoked block is not written home");
        assert_eq!(records.oldest_not_home(), Some(Tid(1)), "but holds the tail until the revoke is durable");
        commit(&mut records, 2, None, true);
        assert_eq!(records.oldest_not_home(), None);
        assert_eq!(records.len(), 0);
    }

    #[test]
    fn logging_again_undoes_the_revoke() {
        let mut records = Records::default();
        records.publish(NR, Tid(1), block(1));
        commit(&mut records, 1, Some(1), false);
        assert_eq!(records.forget(range(), Tid(2)), vec![NR]);
        records.publish(NR, Tid(2), block(2));
        assert_eq!(records.newest(NR).unwrap()[0], 2, "J6");
        commit(&mut records, 2, Some(2), false);
        assert_eq!(records.checkpoint_data(NR, Tid(2), false).unwrap()[0], 2);
    }

    #[test]
    fn a_block_of_the_committing_transaction_is_revoked_by_the_running_one() {
        let mut records = Records::default();
        records.publish(NR, Tid(1), block(1));
        // Transaction 1 is frozen now; 2 frees the block while 1 is being written.
        assert_eq!(records.forget(range(), Tid(2)), vec![NR]);
        assert!(records.newest(NR).is_none());
        commit(&mut records, 1, Some(1), false);
        assert!(records.to_checkpoint(false).is_empty());
        commit(&mut records, 2, None, true);
        assert_eq!(records.len(), 0);
    }
}
