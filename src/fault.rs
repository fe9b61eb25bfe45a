//! Deliberate faults, for the crash tests to prove that they can fail: each breaks one rule of docs/DESIGN.md.
//! Compiled in with the feature `fault-injection` only; without it `injected` is `false`, a constant.

macro_rules! faults {
    ($($(#[$doc:meta])* $name:ident: $rule:literal,)*) => {
        /// What can be broken.
        #[derive(Copy, Clone, PartialEq, Eq, Debug)]
        pub enum Fault {
            $($(#[$doc])* $name,)*
        }

        impl Fault {
            /// All of them.
            pub const ALL: &[Fault] = &[$(Fault::$name,)*];

            /// The rule that it breaks.
            pub fn rule(self) -> &'static str {
                match self {
                    $(Fault::$name => $rule,)*
                }
            }
        }
    };
}

faults! {
    /// Every other commit isn't flushed before the next one is written.
    NextBeforeFlush: "J1",
    /// Commit blocks carry no CRC.
    CommitWithoutCrc: "J2",
    /// A logged block that begins with the log's magic isn't escaped.
    NotEscaped: "J2",
    /// Revoke blocks are filled to their end, which takes more than one sector.
    RevokeBlockFull: "J3",
    /// In-place data isn't flushed before the commit that reaches it.
    DataNotFlushed: "J4",
    /// A block with a live log record is overwritten in place.
    InPlaceOverRecord: "J5",
    /// Logging a block again doesn't cancel its revoke.
    RevokeKept: "J6",
    /// Freed blocks aren't revoked.
    RevokeDropped: "J7",
    /// What the running transaction has changed goes home.
    UncommittedGoesHome: "J8",
    /// The tail moves before the home writes are flushed.
    TailBeforeFlush: "J8",
    /// Freed blocks are allocated again at once.
    ReusedBeforeDurable: "J9",
    /// A truncated file's tail is zeroed in place, not in the log.
    TailZeroedInPlace: "J10",
    /// needs_recovery isn't set before the first commit.
    NeedsRecoveryMissing: "J11",
    /// A log taken over goes on with the sequence numbers that its old blocks have.
    StaleLogContinued: "J12",
    /// ORPHAN_PRESENT isn't set before the first entry of the orphan file.
    OrphanPresentMissing: "J14",
    /// fsync returns before its transaction is durable.
    SyncBeforeCommit: "fsync",
    /// An unlinked open file isn't recorded as an orphan.
    OrphanNotRecorded: "orphan",
    /// Recovery replays transactions whose CRC is wrong.
    BadCrcReplayed: "replay",
}

#[cfg(feature = "fault-injection")]
static INJECTED: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);

/// Breaks a rule from now on, in the whole process; `None` mends it.
#[cfg(feature = "fault-injection")]
pub fn inject(fault: Option<Fault>) {
    INJECTED.store(fault.map_or(0, |fault| fault as u8 + 1), std::sync::atomic::Ordering::SeqCst);
}

/// Whether a rule is broken on purpose.
#[cfg(feature = "fault-injection")]
#[inline]
pub(crate) fn injected(fault: Fault) -> bool {
    INJECTED.load(std::sync::atomic::Ordering::Relaxed) == fault as u8 + 1
}

/// Whether a rule is broken on purpose: never, in a build that people use.
#[cfg(not(feature = "fault-injection"))]
#[inline]
pub(crate) const fn injected(_fault: Fault) -> bool {
    false
}
