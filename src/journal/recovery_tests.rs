use super::test_log::{filled, TestLog, BLOCK_BYTES, FS_BLOCKS, LOG_BLOCKS};
use crate::format::jbd2::{Incompat, MAGIC};
use crate::units::{BlockNr, Tid};
use proptest::prelude::*;
use std::collections::BTreeMap;

#[test]
fn an_empty_log_has_nothing_to_replay() {
    for mut log in TestLog::all() {
        log.transaction(&[(100, 1)]);
        log.superblock.start = 0;
        let recovered = log.recover().unwrap();
        assert!(recovered.is_empty());
        assert_eq!(recovered.next_tid, log.superblock.sequence.next());
    }
}

#[test]
fn the_newest_copy_wins_and_sequence_numbers_wrap() {
    for mut log in TestLog::all() {
        log.transaction(&[(100, 1), (101, 2)]);
        log.transaction(&[(100, 3)]);
        log.transaction(&[(102, 4), (101, 5)]);
        assert_eq!(log.replayed(), [(100, 3), (101, 5), (102, 4)]);
        let recovered = log.recover().unwrap();
        assert_eq!(recovered.transactions, 3);
        assert_eq!(log.tid, Tid(1));
        assert_eq!(recovered.next_tid, Tid(2), "the end's number is not used again");
        assert_eq!(recovered.head_log_block, log.at);
    }
}

#[test]
fn a_log_wraps_in_the_middle_of_a_transaction() {
    for log in TestLog::all() {
        let mut log = log.starting_at(LOG_BLOCKS - 3);
        log.transaction(&[(100, 1), (101, 2), (102, 3), (103, 4)]);
        log.transaction(&[(104, 5)]);
        assert!(log.at < 20);
        assert_eq!(log.replayed(), [(100, 1), (101, 2), (102, 3), (103, 4), (104, 5)]);
    }
}

#[test]
fn escaped_blocks_come_back_with_the_magic() {
    for mut log in TestLog::all() {
        let mut data = filled(7);
        data[..4].copy_from_slice(&MAGIC.to_be_bytes());
        log.descriptor(&[(100, data.clone())]);
        log.commit();
        let recovered = log.recover().unwrap();
        assert_eq!(log.log_block(2)[..4], [0; 4]);
        let block = recovered.read(&log.device, &log.area, BlockNr(100)).unwrap().unwrap();
        assert_eq!(block[..], data[..]);
        assert!(recovered.read(&log.device, &log.area, BlockNr(101)).unwrap().is_none());
    }
}

#[test]
fn a_revoke_hides_copies_of_its_own_and_earlier_transactions_only() {
    for mut log in TestLog::all() {
        log.transaction(&[(100, 1), (101, 1), (102, 1)]);
        // Same transaction (J6): logged and revoked, whichever is first in the log.
        log.descriptor(&[(100, filled(2)), (103, filled(2))]);
        log.revoke(&[100, 101]);
        log.descriptor(&[(101, filled(3))]);
        log.commit();
        log.transaction(&[(101, 4)]);
        assert_eq!(log.replayed(), [(101, 4), (102, 1), (103, 2)]);
        let recovered = log.recover().unwrap();
        assert_eq!((recovered.revoke_count, recovered.revoked_copies), (2, 4));
    }
}

#[test]
fn revokes_of_a_transaction_that_did_not_commit_do_not_count() {
    for mut log in TestLog::all() {
        log.transaction(&[(100, 1)]);
        log.revoke(&[100]);
        assert_eq!(log.replayed(), [(100, 1)]);
    }
}

#[test]
fn a_missing_descriptor_data_or_commit_block_leaves_the_transaction_out() {
    for mut log in TestLog::all() {
        log.transaction(&[(100, 1)]);
        let (descriptor, commit) = log.transaction(&[(100, 2), (101, 2)]);
        let whole = [(100, 2), (101, 2)];
        assert_eq!(log.replayed(), whole);
        for lost in [descriptor, commit] {
            let old = log.log_block(lost);
            log.overwrite(lost, &filled(0));
            assert_eq!(log.replayed(), [(100, 1)]);
            log.overwrite(lost, &old);
        }
        assert_eq!(log.recover().unwrap().transactions, 2);
    }
}

#[test]
fn v1_a_torn_last_transaction_is_left_out() {
    for wide in [false, true] {
        let mut log = TestLog::new(1, wide);
        log.transaction(&[(100, 1)]);
        let (descriptor, commit) = log.transaction(&[(100, 2), (101, 2)]);
        // Any byte of a descriptor (here of one that isn't needed to find the commit block), of the data, of the CRC.
        for (block, at) in
            [(descriptor, 1000), (descriptor + 1, 0), (descriptor + 2, 1023), (commit, 16), (commit, 12)]
        {
            log.tear(block, at);
            assert_eq!(log.replayed(), [(100, 1)], "block {block} byte {at}");
            assert_eq!(log.recover().unwrap().next_tid, log.tid, "the torn one's number is not used again");
            log.tear(block, at);
        }
        assert_eq!(log.replayed(), [(100, 2), (101, 2)]);
    }
}

#[test]
fn v1_a_torn_transaction_with_a_whole_one_behind_it_is_corruption() {
    let mut log = TestLog::new(1, true);
    log.transaction(&[(100, 1)]);
    let (descriptor, _) = log.transaction(&[(101, 2)]);
    let (_, commit) = log.transaction(&[(102, 3)]);
    log.tear(descriptor + 1, 5);
    let error = log.recover().unwrap_err().to_string();
    assert!(error.contains("committed"), "{error}");
    // Without its commit block the third is no proof of anything.
    log.overwrite(commit, &filled(0));
    assert_eq!(log.replayed(), [(100, 1)]);
}

#[test]
fn v1_without_async_commit_a_wrong_checksum_is_corruption() {
    let mut log = TestLog::new(1, true);
    log.superblock.incompat.remove(Incompat::ASYNC_COMMIT);
    let (descriptor, _) = log.transaction(&[(100, 1)]);
    assert!(log.recover().is_ok());
    log.tear(descriptor + 1, 5);
    assert!(log.recover().is_err());
}

#[test]
fn v1_an_all_zero_checksum_is_accepted_unverified() {
    let mut log = TestLog::new(1, true);
    let (descriptor, commit) = log.transaction(&[(100, 1)]);
    log.tear(descriptor + 1, 5);
    assert!(log.replayed().is_empty());
    let mut block = log.log_block(commit);
    block[12..20].fill(0);
    log.overwrite(commit, &block);
    assert_eq!(log.replayed(), [(100, 1)]);
}

#[test]
fn a_stale_commit_block_with_an_older_time_ends_the_log() {
    let mut log = TestLog::new(1, true);
    log.superblock.incompat.remove(Incompat::ASYNC_COMMIT);
    log.transaction(&[(100, 1)]);
    let (_, commit) = log.transaction(&[(101, 2)]);
    let mut block = log.log_block(commit);
    block[48..56].copy_from_slice(&5u64.to_be_bytes());
    block[16] ^= 1;
    log.overwrite(commit, &block);
    assert_eq!(log.replayed(), [(100, 1)]);
}

#[test]
fn v1_a_torn_revoke_block_is_whole_or_ends_the_log() {
    let mut log = TestLog::new(1, true);
    log.transaction(&[(100, 1), (101, 1)]);
    log.descriptor(&[(102, filled(2))]);
    let revoke = log.revoke(&[100]);
    log.commit();
    assert_eq!(log.replayed(), [(101, 1), (102, 2)]);
    // Its first sector is lost.
    let old = log.log_block(revoke);
    log.overwrite(revoke, &filled(0));
    assert_eq!(log.replayed(), [(100, 1), (101, 1)]);
    log.overwrite(revoke, &old);
    // The others are lost, and held something else.
    log.overwrite(revoke, &[&old[..512], &[0xff; 512]].concat());
    assert_eq!(log.replayed(), [(101, 1), (102, 2)]);
}

#[test]
fn v2_and_v3_wrong_checksums_are_corruption() {
    for (sum, wide) in [(2, false), (2, true), (3, false), (3, true)] {
        let mut log = TestLog::new(sum, wide);
        log.transaction(&[(100, 1)]);
        let descriptor = log.descriptor(&[(101, filled(2))]);
        let revoke = log.revoke(&[102]);
        let commit = log.commit();
        assert_eq!(log.replayed(), [(100, 1), (101, 2)]);
        for (block, at) in [(descriptor, 700), (descriptor + 1, 9), (revoke, 700), (commit, 700)] {
            log.tear(block, at);
            assert!(log.recover().is_err(), "block {block} byte {at}");
            log.tear(block, at);
        }
        // A revoked copy is not replayed, so its bytes don't matter.
        log.revoke(&[101]);
        log.commit();
        log.tear(descriptor + 1, 9);
        assert_eq!(log.replayed(), [(100, 1)]);
    }
}

#[test]
fn hostile_tags_are_refused() {
    for bad in [FS_BLOCKS, 5000, 9599, u32::MAX as u64] {
        let mut log = TestLog::new(1, true);
        log.transaction(&[(bad, 1)]);
        assert!(log.recover().is_err(), "{bad}");
    }
}

#[test]
fn a_log_full_of_one_endless_transaction_ends() {
    for mut log in TestLog::all() {
        for _ in 0..LOG_BLOCKS {
            log.descriptor(&[(100, filled(1))]);
        }
        // Round and round over descriptors of the same transaction, and no commit.
        assert!(log.replayed().is_empty());
    }
}

#[test]
fn a_million_revokes_take_seconds() {
    let mut log = TestLog::sized(5000, 3, false);
    let per_block = log.format().revokes_per_block() as u64;
    let begin = std::time::Instant::now();
    let mut nr = 20_000;
    for _ in 0..4000 {
        let blocks: Vec<u64> = (nr..nr + per_block).collect();
        log.revoke(&blocks);
        nr += per_block;
    }
    log.commit();
    let recovered = log.recover().unwrap();
    assert_eq!(recovered.revoke_count, 4000 * per_block);
    assert!(recovered.revoke_count > 1_000_000);
    assert!(begin.elapsed().as_secs() < 20);
}

#[test]
fn applying_writes_home_and_can_be_repeated() {
    for mut log in TestLog::all() {
        let mut magic = filled(9);
        magic[..4].copy_from_slice(&MAGIC.to_be_bytes());
        log.transaction(&[(100, 1), (101, 2), (300, 3)]);
        log.descriptor(&[(101, magic.clone()), (299, filled(8))]);
        log.commit();
        let recovered = log.recover().unwrap();
        for _ in 0..2 {
            super::replay::apply(&recovered, &log.device, &log.area).unwrap();
            assert_eq!(log.block(BlockNr(100)), filled(1));
            assert_eq!(log.block(BlockNr(101)), magic);
            assert_eq!(log.block(BlockNr(299)), filled(8));
            assert_eq!(log.block(BlockNr(300)), filled(3));
            assert_eq!(log.recover().unwrap(), recovered);
        }
    }
}

/// One step of a random log.
#[derive(Clone, Debug)]
enum Step {
    Log(Vec<(u64, u8)>),
    Revoke(Vec<u64>),
    Commit,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => proptest::collection::vec((100..120u64, any::<u8>()), 1..6).prop_map(Step::Log),
        1 => proptest::collection::vec(100..120u64, 1..4).prop_map(Step::Revoke),
        2 => Just(Step::Commit),
    ];
    proptest::collection::vec(step, 0..60)
}

/// What a log means, by the plainest rule: a list of transactions, each a map and a set of revokes.
fn model(steps: &[Step]) -> BTreeMap<u64, u8> {
    let mut home: BTreeMap<u64, u8> = BTreeMap::new();
    let (mut logged, mut revoked) = (BTreeMap::new(), Vec::new());
    for step in steps {
        match step {
            Step::Log(blocks) => logged.extend(blocks.iter().copied()),
            Step::Revoke(blocks) => revoked.extend(blocks.iter().copied()),
            Step::Commit => {
                home.append(&mut logged);
                for nr in revoked.drain(..) {
                    home.remove(&nr);
                }
            }
        }
    }
    home
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn recovery_means_what_the_log_says(steps in steps(), start in 1..LOG_BLOCKS - 1) {
        for log in TestLog::all() {
            let mut log = log.starting_at(start);
            for step in &steps {
                match step {
                    Step::Log(blocks) => {
                        let blocks: Vec<_> = blocks.iter().map(|(nr, fill)| (*nr, filled(*fill))).collect();
                        log.descriptor(&blocks);
                    }
                    Step::Revoke(blocks) => { log.revoke(blocks); }
                    Step::Commit => { log.commit(); }
                }
            }
            let expected: Vec<_> = model(&steps).into_iter().collect();
            prop_assert_eq!(log.replayed(), expected);
        }
    }

    #[test]
    fn damaged_logs_never_panic(damage in proptest::collection::vec((1..40u32, 0..BLOCK_BYTES as usize, any::<u8>()), 1..20)) {
        for mut log in TestLog::all() {
            log.transaction(&[(100, 1), (101, 2), (102, 3)]);
            log.revoke(&[100, 103]);
            log.transaction(&[(103, 1), (104, 2), (100, 3)]);
            log.transaction(&[(105, 1), (106, 2)]);
            for (block, at, byte) in &damage {
                let mut bytes = log.log_block(*block);
                bytes[*at] = *byte;
                log.overwrite(*block, &bytes);
            }
            if let Ok(recovered) = log.recover() {
                prop_assert!(recovered.blocks.len() <= LOG_BLOCKS as usize);
                super::replay::apply(&recovered, &log.device, &log.area).unwrap();
            }
        }
    }
}
