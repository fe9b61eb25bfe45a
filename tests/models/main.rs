//! The real code under a model checker, which runs it in one interleaving of its threads after another: what waits for a
//! commit and is answered, the cache of inodes, the end of inodes. A thread that is never woken shows as a deadlock.
//!
//! `make models` runs thousands of interleavings, `JOURNALFS_MODEL_RUNS` more or fewer of them.
#![cfg(feature = "models")]

mod commit;
mod inodes;
mod support;
