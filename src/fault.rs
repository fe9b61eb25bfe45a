//! Deliberate faults, for the crash tests to prove that they can fail: each breaks one rule of docs/DESIGN.md.
//! Compiled in with the feature `fault-injection` only; without it `injected` is `false`, a constant.

/// What can be broken.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Fault {
    /// J1: every other commit isn't flushed before the next one is written.
    NextBeforeFlush = 1,
    /// J2: commit blocks carry no CRC.
    CommitWithoutCrc,
    /// J4: in-place data isn't flushed before the commit that reaches it.
    DataNotFlushed,
    /// J5: a block with a live log record is overwritten in place.
    InPlaceOverRecord,
    /// J7: freed blocks aren't revoked.
    RevokeDropped,
    /// J8: what the running transaction has changed goes home.
    UncommittedGoesHome,
    /// J8: the tail moves before the home writes are flushed.
    TailBeforeFlush,
    /// J9: freed blocks are allocated again at once.
    ReusedBeforeDurable,
    /// J10: a truncated file's tail is zeroed in place, not in the log.
    TailZeroedInPlace,
    /// J11: needs_recovery isn't set before the first commit.
    NeedsRecoveryMissing,
    /// A logged block that begins with the log's magic isn't escaped.
    NotEscaped,
    /// fsync returns before its transaction is durable.
    SyncBeforeCommit,
    /// An unlinked open file isn't recorded as an orphan.
    OrphanNotRecorded,
    /// Recovery replays transactions whose CRC is wrong.
    BadCrcReplayed,
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 14] = [
        Fault::NextBeforeFlush,
        Fault::CommitWithoutCrc,
        Fault::DataNotFlushed,
        Fault::InPlaceOverRecord,
        Fault::RevokeDropped,
        Fault::UncommittedGoesHome,
        Fault::TailBeforeFlush,
        Fault::ReusedBeforeDurable,
        Fault::TailZeroedInPlace,
        Fault::NeedsRecoveryMissing,
        Fault::NotEscaped,
        Fault::SyncBeforeCommit,
        Fault::OrphanNotRecorded,
        Fault::BadCrcReplayed,
    ];
}

#[cfg(feature = "fault-injection")]
static INJECTED: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);

/// Breaks a rule from now on, in the whole process; `None` mends it.
#[cfg(feature = "fault-injection")]
pub fn inject(fault: Option<Fault>) {
    INJECTED.store(fault.map_or(0, |fault| fault as u8), std::sync::atomic::Ordering::SeqCst);
}

/// Whether a rule is broken on purpose.
#[cfg(feature = "fault-injection")]
#[inline]
pub(crate) fn injected(fault: Fault) -> bool {
    INJECTED.load(std::sync::atomic::Ordering::Relaxed) == fault as u8
}

/// Whether a rule is broken on purpose: never, in a build that people use.
#[cfg(not(feature = "fault-injection"))]
#[inline]
pub(crate) const fn injected(_fault: Fault) -> bool {
    false
}
