//! A device that remembers what was done to it: the ground of the crash tests.
//!
//! A write is recorded when it is submitted and again when it has returned, a flush when it begins and
//! when it has succeeded, since a power cut knows the difference: what was submitted may be on the medium,
//! and what a flush covers (writes that had returned when it began) is.

use super::{Device, SharedDevice};
use parking_lot::Mutex;
use std::io::{self, IoSlice};
use std::sync::Arc;

/// Something that happened on the device, in the order in which it did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A write was submitted (zeroing is a write of zeroes).
    Write {
        /// The request's number.
        id: u64,
        /// First byte.
        offset: u64,
        /// What was written.
        data: Arc<[u8]>,
    },
    /// A discard was submitted; it changes nothing in the recorded states.
    Discard {
        /// The request's number.
        id: u64,
        /// First byte.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// A flush was submitted.
    FlushBegun {
        /// The request's number.
        id: u64,
    },
    /// The request has returned without error.
    Completed {
        /// The request's number.
        id: u64,
    },
    /// What a test noted with [`RecordingDevice::mark`], such as "fsync of file 7 returned".
    Mark(u64),
}

/// Passes requests on to another device and keeps a log of them.
pub struct RecordingDevice {
    inner: SharedDevice,
    log: Mutex<Log>,
}

#[derive(Default)]
struct Log {
    events: Vec<Event>,
    next_id: u64,
}

impl RecordingDevice {
    /// Records from now on what reaches `inner`.
    pub fn new(inner: SharedDevice) -> Self {
        Self { inner, log: Mutex::default() }
    }

    /// Everything recorded so far; cheap, since the data is shared.
    pub fn events(&self) -> Vec<Event> {
        self.log.lock().events.clone()
    }

    /// How many events there are so far.
    pub fn position(&self) -> usize {
        self.log.lock().events.len()
    }

    /// Notes that something happened, for the test to find again.
    pub fn mark(&self, what: u64) {
        self.log.lock().events.push(Event::Mark(what));
    }

    /// Forgets the log so far.
    pub fn clear(&self) {
        self.log.lock().events.clear();
    }

    fn record(
        &self,
        event: impl FnOnce(u64) -> Event,
        request: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let id = {
            let mut log = self.log.lock();
            let id = log.next_id;
            log.next_id += 1;
            log.events.push(event(id));
            id
        };
        request()?;
        self.log.lock().events.push(Event::Completed { id });
        Ok(())
    }
}

impl Device for RecordingDevice {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.record(|id| Event::Write { id, offset, data: buf.into() }, || self.inner.write_at(offset, buf))
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        let data: Vec<u8> = bufs.iter().flat_map(|buf| buf.iter().copied()).collect();
        self.record(
            |id| Event::Write { id, offset, data: data.into() },
            || self.inner.write_vectored_at(offset, bufs),
        )
    }

    fn flush(&self) -> io::Result<()> {
        self.record(|id| Event::FlushBegun { id }, || self.inner.flush())
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.record(|id| Event::Discard { id, offset, len }, || self.inner.discard(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        let data = vec![0; len as usize].into();
        self.record(|id| Event::Write { id, offset, data }, || self.inner.write_zeroes(offset, len))
    }

    fn read_only(&self) -> bool {
        self.inner.read_only()
    }

    fn sector_bytes(&self) -> u32 {
        self.inner.sector_bytes()
    }
}

/// The writes before a power cut, as indices into the events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CrashPoint {
    /// Writes that a flush has made durable, oldest first.
    pub durable: Vec<usize>,
    /// Writes that may be on the medium whole, in part or not at all, oldest first.
    pub pending: Vec<usize>,
}

/// What a power cut right after the first `position` events finds.
pub fn crash_point(events: &[Event], position: usize) -> CrashPoint {
    use std::collections::HashMap;
    let events = events.get(..position).unwrap_or(events);
    let mut open: HashMap<u64, usize> = HashMap::new();
    // By request: for a write its index; for a flush the writes that had returned when it began.
    let mut returned: Vec<usize> = Vec::new();
    let mut flushes: HashMap<u64, usize> = HashMap::new();
    let mut durable: Vec<usize> = Vec::new();
    for (at, event) in events.iter().enumerate() {
        match event {
            Event::Write { id, .. } => {
                open.insert(*id, at);
            }
            Event::FlushBegun { id } => {
                flushes.insert(*id, durable.len() + returned.len());
            }
            Event::Completed { id } => {
                if let Some(write) = open.remove(id) {
                    returned.push(write);
                } else if let Some(covered) = flushes.remove(id) {
                    let more = covered.saturating_sub(durable.len());
                    durable.extend(returned.drain(..more));
                }
            }
            Event::Discard { .. } | Event::Mark(_) => {}
        }
    }
    durable.sort_unstable();
    let mut pending: Vec<usize> = returned.into_iter().chain(open.into_values()).collect();
    pending.sort_unstable();
    CrashPoint { durable, pending }
}

/// Writes the given events (indices of [`Event::Write`]s) to `device`, in the order given.
pub fn replay(
    events: &[Event],
    writes: impl IntoIterator<Item = usize>,
    device: &dyn Device,
) -> io::Result<()> {
    for at in writes {
        if let Some(Event::Write { offset, data, .. }) = events.get(at) {
            device.write_at(*offset, data)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::memory::MemoryDevice;

    fn recorded(steps: &[&str]) -> Vec<Event> {
        let device = RecordingDevice::new(Arc::new(MemoryDevice::new(1 << 16)));
        for step in steps {
            match *step {
                "flush" => device.flush().unwrap(),
                "mark" => device.mark(7),
                write => device.write_at(0, write.as_bytes()).unwrap(),
            }
        }
        device.events()
    }

    #[test]
    fn a_flush_covers_what_had_returned() {
        let events = recorded(&["a", "flush", "b", "mark"]);
        assert_eq!(events.len(), 7);
        let at = |position| crash_point(&events, position);
        assert_eq!(at(0), CrashPoint::default());
        assert_eq!(at(1), CrashPoint { durable: vec![], pending: vec![0] });
        assert_eq!(at(3), CrashPoint { durable: vec![], pending: vec![0] });
        assert_eq!(at(4), CrashPoint { durable: vec![0], pending: vec![] });
        assert_eq!(at(7), CrashPoint { durable: vec![0], pending: vec![4] });
        let device = MemoryDevice::new(1 << 16);
        replay(&events, [0, 4], &device).unwrap();
        let mut byte = [0];
        device.read_at(0, &mut byte).unwrap();
        assert_eq!(byte, *b"b");
    }

    #[test]
    fn a_write_in_flight_when_the_flush_began_is_not_covered() {
        let write = |id| Event::Write { id, offset: 0, data: Arc::from(*b"x") };
        let done = |id| Event::Completed { id };
        let events =
            [write(0), write(1), done(1), Event::FlushBegun { id: 2 }, done(0), write(3), done(2), done(3)];
        assert_eq!(crash_point(&events, 8), CrashPoint { durable: vec![1], pending: vec![0, 5] });
    }
}
