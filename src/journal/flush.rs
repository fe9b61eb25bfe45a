//! The device's flushes, shared by everyone who needs one, and counted.
//!
//! A write that has returned takes a stamp: the number of the next flush to *begin*. It is durable
//! when that flush, or a later one, has succeeded. After a failed flush nothing is known of any
//! write since the last good one, so the clock stays broken.

use crate::device::SharedDevice;
use crate::error::{Error, Result};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Condvar, Mutex};

#[derive(Default)]
struct State {
    begun: u64,
    done: u64,
    under_way: bool,
    broken: bool,
}

/// See the module's text.
pub(super) struct FlushClock {
    device: SharedDevice,
    /// Cleared by `barrier=0`: the device is then trusted to lose nothing, and flushing is only counting.
    barrier: AtomicBool,
    /// The newest stamp that in-place data was given.
    in_place: AtomicU64,
    state: Mutex<State>,
    changed: Condvar,
}

impl FlushClock {
    pub(super) fn new(device: SharedDevice) -> Self {
        Self {
            device,
            barrier: AtomicBool::new(true),
            in_place: AtomicU64::new(0),
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Whether the device is flushed at all.
    pub(super) fn set_barrier(&self, barrier: bool) {
        self.barrier.store(barrier, Ordering::Relaxed);
    }

    /// As [`stamp`](Self::stamp), for in-place data whose write has returned.
    pub(super) fn stamp_in_place(&self) -> u64 {
        let stamp = self.stamp();
        self.in_place.fetch_max(stamp, Ordering::Relaxed);
        stamp
    }

    /// The newest stamp of in-place data, whichever file's.
    pub(super) fn newest_in_place(&self) -> u64 {
        self.in_place.load(Ordering::Relaxed)
    }

    /// The flush that covers every write that has returned by now.
    pub(super) fn stamp(&self) -> u64 {
        self.state.lock().begun + 1
    }

    /// Whether the flush with this stamp has succeeded.
    pub(super) fn is_done(&self, stamp: u64) -> bool {
        self.state.lock().done >= stamp
    }

    /// How many flushes the device has been given.
    pub(super) fn count(&self) -> u64 {
        self.state.lock().begun
    }

    /// Returns when the flush with this stamp has succeeded, flushing if nobody else does.
    pub(super) fn wait(&self, stamp: u64) -> Result<()> {
        let mut state = self.state.lock();
        loop {
            if state.broken {
                return Err(Error::Posix(libc::EIO));
            }
            if state.done >= stamp {
                return Ok(());
            }
            if state.under_way {
                self.changed.wait(&mut state);
                continue;
            }
            state.under_way = true;
            state.begun += 1;
            let this = state.begun;
            drop(state);
            let result = if self.barrier.load(Ordering::Relaxed) { self.device.flush() } else { Ok(()) };
            state = self.state.lock();
            state.under_way = false;
            self.changed.notify_all();
            match result {
                Ok(()) => state.done = this,
                Err(source) => {
                    state.broken = true;
                    return Err(Error::io("flushing the device", source));
                }
            }
        }
    }

    /// Makes durable every write that has returned by now.
    pub(super) fn flush(&self) -> Result<()> {
        self.wait(self.stamp())
    }
}
