//! What each batching policy decides, in the simulation: no clock, always the same.

use journalfs::journal::batch::{BatchPolicy, BatchTuning, CallerId, ANONYMOUS};
use journalfs_bench::simulation::{run, Machine, Writer};
use std::time::Duration;

const POLICIES: [BatchPolicy; 6] = [
    BatchPolicy::None,
    BatchPolicy::Yield,
    BatchPolicy::Fixed,
    BatchPolicy::Pipeline,
    BatchPolicy::Jbd2,
    BatchPolicy::Adaptive,
];
/// The commit times of a disk, an array and a fast medium.
const COMMITS: [Duration; 3] =
    [Duration::from_micros(18_200), Duration::from_micros(1300), Duration::from_micros(40)];
const MINUTE: Duration = Duration::from_secs(60);

fn tuning(policy: BatchPolicy) -> BatchTuning {
    // Long enough for a disk: what a device can gain is to be seen, not the limit.
    BatchTuning { policy, max_time: Duration::from_millis(20), ..BatchTuning::default() }
}

fn machine(commit: Duration) -> Machine {
    Machine { commit, cpu: Duration::ZERO }
}

fn writers(count: u32, think: Duration, spread: f64) -> Vec<Writer> {
    (1..=count).map(|caller| Writer { spread, ..Writer::new(caller, think) }).collect()
}

/// Answers per commit time.
fn rate_of(policy: BatchPolicy, machine: Machine, writers: &[Writer]) -> f64 {
    const COMMITS: u32 = 400;
    let outcomes = run(&tuning(policy), machine, writers, machine.commit * COMMITS);
    outcomes.answers() as f64 / f64::from(COMMITS)
}

#[test]
fn one_writer_never_waits() {
    for policy in POLICIES {
        for commit in COMMITS {
            for think in [0.01, 0.3, 0.9, 3.0] {
                let writers = writers(1, commit.mul_f64(think), 0.5);
                let outcomes = run(&tuning(policy), machine(commit), &writers, commit * 1000);
                assert_eq!(outcomes.held, Duration::ZERO, "{policy:?} {commit:?} {think}");
                assert!(outcomes.writers[0].waited_max == commit && outcomes.answers() > 200);
            }
        }
    }
}

#[test]
fn two_writers_never_go_slower_than_one_and_more_never_slower_than_fewer() {
    let adaptive = BatchPolicy::Adaptive;
    for commit in [COMMITS[0], COMMITS[1]] {
        for think in [0.01, 0.1, 0.3, 0.6, 0.9, 1.1, 2.0, 5.0] {
            for spread in [0.0, 0.3, 0.9] {
                let mut fewer = 0.0;
                for count in [1, 2, 4, 8, 10, 20] {
                    let rate =
                        rate_of(adaptive, machine(commit), &writers(count, commit.mul_f64(think), spread));
                    assert!(
                        rate >= 0.95 * fewer,
                        "{commit:?}, thinking {think} commits, {spread}: {rate} with {count} after {fewer}"
                    );
                    fewer = rate;
                }
            }
        }
    }
}

#[test]
fn two_writers_are_slower_than_one_where_the_delay_does_not_fit_the_device() {
    // The trouble that all of this is about.
    let fast = machine(COMMITS[2]);
    let think = Duration::from_micros(20);
    let one = rate_of(BatchPolicy::Fixed, fast, &writers(1, think, 0.1));
    let two = rate_of(BatchPolicy::Fixed, fast, &writers(2, think, 0.1));
    let none = rate_of(BatchPolicy::None, fast, &writers(2, think, 0.1));
    assert!(two < one / 10.0 && two < none / 10.0, "{one} {two} {none}");
}

#[test]
fn adaptive_is_nearly_as_good_as_the_best_at_any_think_time_up_to_a_commit() {
    for commit in [COMMITS[0], COMMITS[1]] {
        for think in [0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0] {
            for count in [2, 4, 8, 20] {
                for spread in [0.0, 0.2, 0.5] {
                    let writers = writers(count, commit.mul_f64(think), spread);
                    let rates = POLICIES.map(|policy| rate_of(policy, machine(commit), &writers));
                    let best = rates.into_iter().fold(0.0, f64::max);
                    assert!(
                        rates[5] >= 0.95 * best,
                        "{commit:?}, {count} thinking {think} commits, {spread}: {rates:.2?}"
                    );
                }
            }
        }
    }
}

#[test]
fn adaptive_is_nearly_as_good_as_the_best_when_the_cpu_is_what_all_share() {
    for commit in [COMMITS[0], COMMITS[1]] {
        for share in [0.02, 0.05, 0.1, 0.2, 0.5] {
            for count in [2, 4, 8, 20] {
                let machine = Machine { commit, cpu: commit.mul_f64(share) };
                let writers = writers(count, commit.mul_f64(share / 2.0), 0.5);
                let rates = POLICIES.map(|policy| rate_of(policy, machine, &writers));
                let best = rates.into_iter().fold(0.0, f64::max);
                assert!(
                    rates[5] >= 0.95 * best,
                    "{commit:?}, {count} sharing a CPU for {share} commits: {rates:.2?}"
                );
            }
        }
    }
}

#[test]
fn writers_that_stop_coming_are_forgotten() {
    for commit in COMMITS {
        let think = commit.mul_f64(0.2);
        let mut writers = writers(8, think, 0.3);
        for writer in &mut writers[1..] {
            writer.until = commit * 50;
        }
        let outcomes = run(&tuning(BatchPolicy::Adaptive), machine(commit), &writers, commit * 1000);
        // What the one that stays does alone in the time left, but for a few commits.
        let alone = 950.0 / 1.2;
        let together = f64::from(50) / 2.5;
        let answers = outcomes.writers[0].answers as f64;
        assert!(answers >= alone + together - 5.0, "{commit:?}: {answers}");
    }
}

#[test]
fn a_rare_writer_does_not_wait_for_the_others_sake() {
    for commit in COMMITS {
        let think = commit.mul_f64(0.3);
        for count in [1, 4, 20] {
            let mut all = writers(count, think, 0.3);
            all.push(Writer::new(1000, commit * 500));
            let outcomes = run(&tuning(BatchPolicy::Adaptive), machine(commit), &all, commit * 20_000);
            let rare = outcomes.writers.last().unwrap();
            // At worst the commit in flight, what it waits for anyway, its own, and what is left of one hold.
            let mean = rare.waited / rare.answers as u32;
            assert!(rare.answers >= 30 && mean <= commit.mul_f64(1.8), "{commit:?} {count}: {mean:?}");
            assert!(rare.waited_max <= commit.mul_f64(2.6), "{commit:?} {count}: {:?}", rare.waited_max);
        }
        // Writers who were busy until just before it comes keep it no more than one commit.
        let mut all = writers(20, think, 0.0);
        for writer in &mut all {
            writer.until = commit * 100;
        }
        all.push(Writer { from: commit.mul_f64(0.5), ..Writer::new(1000, commit * 100) });
        let outcomes = run(&tuning(BatchPolicy::Adaptive), machine(commit), &all, commit * 5000);
        assert!(outcomes.writers.last().unwrap().waited_max <= commit * 3);
    }
}

#[test]
fn one_thread_that_syncs_many_files_never_waits() {
    for commit in COMMITS {
        // All its requests at once and one after another are the same caller's.
        let many: Vec<Writer> =
            (0..10).map(|_| Writer { spread: 0.5, ..Writer::new(7, commit.mul_f64(0.1)) }).collect();
        for writers in [&many[..], &many[..1]] {
            let outcomes = run(&tuning(BatchPolicy::Adaptive), machine(commit), writers, commit * 1000);
            let alone = outcomes.held.as_secs_f64() / (commit * 1000).as_secs_f64();
            assert!(alone < 0.1, "{commit:?}: held for {alone} of the time");
        }
    }
}

#[test]
fn anonymous_callers_are_answered_at_once_and_nobody_waits_for_them() {
    for commit in COMMITS {
        let callers = [ANONYMOUS; 20];
        let writers =
            callers.map(|caller| Writer { spread: 0.9, ..Writer::new(caller, commit.mul_f64(0.2)) });
        let outcomes = run(&tuning(BatchPolicy::Adaptive), machine(commit), &writers, commit * 1000);
        assert_eq!(outcomes.held, Duration::ZERO);
        // A pool, each request by another of its threads.
        let pool: Vec<Writer> = (0..500)
            .map(|n| Writer { from: commit.mul_f64(0.3 * f64::from(n)), ..Writer::new(n, commit * 150) })
            .collect();
        let outcomes = run(&tuning(BatchPolicy::Adaptive), machine(commit), &pool, commit * 1000);
        assert!(outcomes.held < commit, "{commit:?}: {:?}", outcomes.held);
    }
}

#[test]
fn of_two_groups_the_quick_one_is_not_slowed_by_the_slow_one() {
    for commit in COMMITS {
        let quick: Vec<CallerId> = (1..=5).collect();
        let writer = |caller: &CallerId, think: f64| Writer {
            spread: 0.3,
            ..Writer::new(*caller, commit.mul_f64(think))
        };
        let alone: Vec<Writer> = quick.iter().map(|caller| writer(caller, 0.1)).collect();
        let slow: Vec<Writer> = (11..=15).map(|caller| writer(&caller, 3.0)).collect();
        let both = [alone.clone(), slow.clone()].concat();
        let answers = |writers: &[Writer]| {
            let outcomes = run(&tuning(BatchPolicy::Adaptive), machine(commit), writers, commit * 2000);
            let of = |from: usize, to: usize| -> u64 {
                outcomes.writers.iter().take(to).skip(from).map(|w| w.answers).sum()
            };
            (of(0, 5), of(5, 10))
        };
        let (quick_alone, _) = answers(&alone);
        let (slow_alone, _) = answers(&slow);
        let (quick, slow) = answers(&both);
        assert!(quick as f64 >= 0.9 * quick_alone as f64, "{commit:?}: {quick} of {quick_alone}");
        assert!(slow as f64 >= 0.8 * slow_alone as f64, "{commit:?}: {slow} of {slow_alone}");
    }
}

#[test]
fn writers_born_and_dying_each_second_cost_little() {
    let commit = COMMITS[1];
    let second = Duration::from_secs(1);
    let think = commit.mul_f64(0.2);
    // Ten at any time; each lives for a second.
    let all: Vec<Writer> = (0..600)
        .map(|n: u32| {
            let from = second * (n / 10) + Duration::from_millis(u64::from(n % 10) * 100);
            Writer { from, until: from + second, spread: 0.3, ..Writer::new(n + 1, think) }
        })
        .collect();
    let born = run(&tuning(BatchPolicy::Adaptive), machine(commit), &all, MINUTE);
    let steady = run(&tuning(BatchPolicy::Adaptive), machine(commit), &writers(10, think, 0.3), MINUTE);
    let ratio = born.answers() as f64 / steady.answers() as f64;
    assert!(ratio > 0.93, "{ratio}");
}
