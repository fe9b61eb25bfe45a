//! What can be asked of a mounted file system besides file operations: its counters, other options, an end as by a crash.

use super::core::Fs;
use super::options::Tuning;
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::{json, Map, Value};

/// What is still written at a shutdown.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ShutdownMode {
    /// Everything (`FSOP_GOING_FLAGS_DEFAULT`).
    Flush,
    /// The running transaction, but no delayed data (`FSOP_GOING_FLAGS_LOGFLUSH`).
    LogFlush,
    /// Nothing (`FSOP_GOING_FLAGS_NOLOGFLUSH`).
    NoLogFlush,
}

impl Fs {
    /// The counters and sizes, as a JSON object of objects.
    pub fn stats(&self) -> Value {
        let stats = &self.journal.stats;
        let mut journal: Map<String, Value> =
            stats.counters().into_iter().map(|(name, count)| (name.to_owned(), count.into())).collect();
        for (name, histogram) in [
            ("commit_time_us", &stats.commit_time_us),
            ("sync_time_us", &stats.sync_time_us),
            ("callers_per_commit", &stats.callers_per_commit),
            ("hold_time_us", &stats.hold_time_us),
        ] {
            journal.insert(name.to_owned(), json!(histogram.quantiles()));
        }
        journal.insert("flushes".to_owned(), self.journal.flushes().into());
        journal.insert("aborted".to_owned(), self.journal.is_aborted().into());
        let tuning = self.tuning.read().clone();
        json!({
            "journal": journal,
            "memory": {
                "inodes": self.inodes.count(),
                "delayed_bytes": self.writeback.bytes(),
            },
            "space": {
                "free_blocks": self.allocator.free_blocks(),
                "free_inodes": self.allocator.free_inodes(),
                "blocks_freed_not_durable": self.allocator.pending_frees(),
                "orphans": self.orphans.len(),
                "bytes_to_be_freed": self.inactivation.units() * 512,
            },
            "options": {
                "read_only": self.is_read_only(),
                "data": self.options.data.word(),
                "batch": tuning.batch.policy.word(),
                "batch_delay_us": tuning.batch.delay.as_micros() as u64,
                "min_batch_time_us": tuning.batch.min_time.as_micros() as u64,
                "max_batch_time_us": tuning.batch.max_time.as_micros() as u64,
                "commit_s": tuning.commit.as_secs(),
                "inactivate": tuning.inactivate.word(),
                "async_commit": self.options.async_commit,
                "barrier": self.options.barrier,
            },
        })
    }

    /// Lets `change` change the options that can change while mounted; on an error they stay as they were.
    pub fn tune(&self, change: impl FnOnce(&mut Tuning) -> Result<()>) -> Result<()> {
        let mut tuning = self.tuning.write();
        let mut wanted = tuning.clone();
        change(&mut wanted)?;
        if wanted.cache_size != tuning.cache_size {
            return Err(Error::Usage("cache_size can't be changed while mounted".to_owned()));
        }
        wanted.check()?;
        self.journal.set_discard(wanted.discard);
        if wanted.batch != tuning.batch {
            self.journal.set_batch(wanted.batch);
        }
        *tuning = wanted;
        Ok(())
    }

    /// Stops as if by a crash: after what `mode` says, nothing is written any more.
    pub fn shutdown(&self, mode: ShutdownMode) -> Result<()> {
        let written = match mode {
            ShutdownMode::Flush => self.sync(),
            ShutdownMode::LogFlush => self.journal.commit(self.journal.running_tid()),
            ShutdownMode::NoLogFlush => Ok(()),
        };
        tracing::warn!(?mode, "the file system is shut down");
        self.errors.expect_abort();
        self.journal.abort();
        written
    }
}
