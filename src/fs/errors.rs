//! Errors in the file system's structures: what `errors=` makes of them, and how the superblock remembers them
//! (`s_state`, `s_error_count`, the first and the last one), as ext4 does, so that fsck knows.
//!
//! Who meets an error may hold any lock but a handle, so it is only noted then, and soon after written by the
//! background: through the journal while that works, else in place. What is written in place stays in the superblock's first
//! sector, so it can't be torn.

use super::core::Fs;
use super::options::ErrorsPolicy;
use super::superblock;
use crate::error::{Error, Place, Result};
use crate::format::superblock::{Superblock, STATE_ERROR};
use crate::journal::replay;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

/// `EXT4_ERR_EIO`: the device failed.
const CODE_IO: u8 = 2;
/// `EXT4_ERR_EFSCORRUPTED`: a structure makes no sense.
const CODE_CORRUPTED: u8 = 5;

/// One error, as the superblock remembers it. The structure stands where ext4 names its function.
#[derive(Clone, Debug)]
struct Occurrence {
    time: u64,
    inode: u32,
    block: u64,
    structure: [u8; 32],
    code: u8,
}

impl Occurrence {
    fn of(error: &Error) -> Self {
        let (structure, place, code) = match error {
            Error::Corrupt { structure, place, .. } => (*structure, *place, CODE_CORRUPTED),
            _ => ("journal", Place::FileSystem, CODE_IO),
        };
        let mut name = [0; 32];
        // The last byte stays zero: it is a C string.
        for (to, byte) in name.iter_mut().take(31).zip(structure.bytes()) {
            *to = byte;
        }
        Self {
            time: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
            inode: if let Place::Inode(nr) = place { nr.0 } else { 0 },
            block: if let Place::Block(nr) = place { nr.0 } else { 0 },
            structure: name,
            code,
        }
    }
}

/// Errors that the superblock doesn't know of yet.
#[derive(Clone, Debug)]
struct Unwritten {
    count: u32,
    first: Occurrence,
    last: Occurrence,
}

impl Unwritten {
    /// Puts them into a superblock. The codes lie in its second sector; without them only the first one changes.
    fn apply(&self, sb: &mut Superblock, with_codes: bool) {
        sb.state |= STATE_ERROR;
        sb.error_count = sb.error_count.saturating_add(self.count);
        if sb.first_error_time == 0 {
            let first = &self.first;
            sb.first_error_time = first.time;
            (sb.first_error_ino, sb.first_error_block) = (first.inode, first.block);
            (sb.first_error_func, sb.first_error_line) = (first.structure, 0);
            if with_codes {
                sb.first_error_errcode = first.code;
            }
        }
        sb.last_error_time = self.last.time;
        (sb.last_error_ino, sb.last_error_block) = (self.last.inode, self.last.block);
        (sb.last_error_func, sb.last_error_line) = (self.last.structure, 0);
        if with_codes {
            sb.last_error_errcode = self.last.code;
        }
    }
}

/// What is called when `errors=panic` ends the mount.
pub type OnPanic = Box<dyn Fn() + Send + Sync>;

/// The errors of a mounted file system.
#[derive(Default)]
pub(crate) struct Errors {
    unwritten: Mutex<Option<Unwritten>>,
    seen: AtomicBool,
    panicked: AtomicBool,
    on_panic: Mutex<Option<OnPanic>>,
    /// An aborted journal is no error, or one that has been noted.
    abort_known: AtomicBool,
}

impl Errors {
    /// Whether there has been any.
    pub(crate) fn seen(&self) -> bool {
        self.seen.load(Ordering::Acquire)
    }

    /// The journal is about to be aborted on purpose, which is no error.
    pub(crate) fn expect_abort(&self) {
        self.abort_known.store(true, Ordering::Release);
    }

    fn push(&self, error: &Error) {
        let occurrence = Occurrence::of(error);
        let mut unwritten = self.unwritten.lock();
        match &mut *unwritten {
            Some(known) => {
                known.count = known.count.saturating_add(1);
                known.last = occurrence;
            }
            None => *unwritten = Some(Unwritten { count: 1, first: occurrence.clone(), last: occurrence }),
        }
    }
}

impl Fs {
    /// Has `f` called when `errors=panic` asks for the end of the mount: at once, if it has already.
    /// It may be called under inodes' locks.
    pub fn on_panic(&self, f: OnPanic) {
        let mut on_panic = self.errors.on_panic.lock();
        if self.errors.panicked.load(Ordering::Acquire) {
            f();
        }
        *on_panic = Some(f);
    }

    /// Passes a result on, after doing what `errors=` says when it is a corrupt structure.
    pub(crate) fn noting<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(error @ Error::Corrupt { .. }) = &result {
            self.note_error(error);
        }
        result
    }

    /// Marks the file system as having errors and follows `errors=`. No handle may be open.
    pub(crate) fn note_error(&self, error: &Error) {
        if self.errors.seen.swap(true, Ordering::AcqRel) {
            tracing::warn!(%error, "another error in the file system");
        } else {
            tracing::error!(%error, "the file system has an error: run fsck.journalfs");
        }
        self.errors.push(error);
        match self.options.errors {
            ErrorsPolicy::Continue => {}
            ErrorsPolicy::RemountReadOnly => {
                if !self.read_only.swap(true, Ordering::AcqRel) {
                    tracing::error!("no more changes are accepted (errors=remount-ro)");
                }
            }
            ErrorsPolicy::Panic => return self.panic(),
        }
        self.writeback.wanted.notify_all();
    }

    fn panic(&self) {
        self.errors.expect_abort();
        self.journal.abort();
        self.read_only.store(true, Ordering::Release);
        self.record_errors();
        let on_panic = self.errors.on_panic.lock();
        if self.errors.panicked.swap(true, Ordering::AcqRel) {
            return;
        }
        tracing::error!("the mount ends here (errors=panic)");
        if let Some(f) = &*on_panic {
            f();
        }
    }

    /// A journal that a failing device has stopped is an error of the file system too. For the background.
    pub(crate) fn note_abort(&self) {
        if self.journal.is_aborted() && !self.errors.abort_known.swap(true, Ordering::AcqRel) {
            self.note_error(&Error::Aborted);
        }
    }

    /// Writes what the superblock doesn't know of yet, durably if that can be. Must not be called under a handle.
    pub(crate) fn record_errors(&self) {
        let Some(unwritten) = self.errors.unwritten.lock().take() else { return };
        if self.options.read_only || self.cache.device().read_only() {
            return;
        }
        let logged = self
            .cache
            .update(1, |h| superblock::modify(h, self, |sb| unwritten.apply(sb, true)))
            .and_then(|(tid, ())| self.journal.commit(tid));
        // What is published but not committed when the journal is aborted never reaches the disk.
        let recorded = match logged {
            Err(_) if self.journal.is_aborted() => self.record_in_place(&unwritten),
            logged => logged,
        };
        if let Err(error) = recorded {
            tracing::warn!(%error, "the superblock's note of errors can't be written");
        }
    }

    /// The log is of no use any more; whoever replays it keeps this (see `carry_over`).
    fn record_in_place(&self, unwritten: &Unwritten) -> Result<()> {
        let device = self.cache.device();
        replay::update_superblock(&**device, |sb| unwritten.apply(sb, false))?;
        device.flush().map_err(|e| Error::io("flushing the superblock", e))
    }
}

/// Keeps what the superblock said of errors before the log was replayed, which may have brought an older one.
/// Returns whether it changed anything.
pub(super) fn carry_over(before: &Superblock, sb: &mut Superblock) -> bool {
    let forgot_state = before.state & STATE_ERROR & !sb.state != 0;
    let forgot_errors = before.error_count > sb.error_count;
    sb.state |= before.state & STATE_ERROR;
    if forgot_errors {
        sb.error_count = before.error_count;
        sb.first_error_time = before.first_error_time;
        (sb.first_error_ino, sb.first_error_block) = (before.first_error_ino, before.first_error_block);
        (sb.first_error_func, sb.first_error_line) = (before.first_error_func, before.first_error_line);
        sb.last_error_time = before.last_error_time;
        (sb.last_error_ino, sb.last_error_block) = (before.last_error_ino, before.last_error_block);
        (sb.last_error_func, sb.last_error_line) = (before.last_error_func, before.last_error_line);
    }
    forgot_state || forgot_errors
}
