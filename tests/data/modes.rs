//! Mount options about data: data=, barrier=, and devices that can't be written.

use crate::support::{content, make, options, Made, Mounted};
use journalfs::device::memory::MemoryDevice;
use journalfs::device::recording::Event;
use journalfs::device::{Device, SharedDevice};
use journalfs::fs::attr::Caller;
use journalfs::fs::Fs;
use journalfs::units::InodeNr;
use std::sync::Arc;

fn made() -> Made {
    make(mkfs::Profile::Journalfs, 4096, 32, "")
}

/// Whether all that is written while `f` runs goes into the log.
fn only_into_the_log(made: &Made, m: &Mounted, f: impl FnOnce()) -> bool {
    let before = m.device.position();
    f();
    let in_log =
        |at: u64| made.journal.iter().any(|r| r.contains(journalfs::units::BlockNr(at / made.block_bytes)));
    m.device.events()[before..].iter().all(|e| !matches!(e, Event::Write { offset, .. } if !in_log(*offset)))
}

#[test]
fn data_takes_the_way_that_its_mode_says() {
    let made = made();
    for (mode, logged, flushes) in
        [("data=ordered", false, 2), ("data=journal", true, 1), ("data=writeback", false, 1)]
    {
        let m = made.mount(&[mode]);
        let nr = m.file("f");
        m.fs.sync().unwrap();
        m.write(nr, 0, 1, 200_000);
        let mut found = false;
        let flushed =
            m.flushes(|| found = only_into_the_log(&made, &m, || m.fs.fsync(nr, false, 0).unwrap()));
        assert_eq!((found, flushed), (logged, flushes), "{mode}");
        assert!(content(&Fs::mount(Arc::new(m.cut_now()), &options(&[])).unwrap(), nr)
            .iter()
            .all(|b| *b == 1));
        m.end(mode);
    }
}

#[test]
fn fdatasync_of_written_blocks_is_one_flush_and_no_commit() {
    let m = made().mount(&[]);
    let nr = m.file("log");
    // Large, so in place.
    m.write(nr, 0, b'a', 400_000);
    m.fs.fsync(nr, false, 0).unwrap();
    let commits = || m.fs.stats()["journal"]["commits"].as_u64().unwrap();
    let before = commits();
    for at in [0, 8192, 4096 * 90] {
        m.write(nr, at, b'b', 4096);
        assert!(!m.fs.sync_is_quick(nr, true), "it writes to the device");
        assert_eq!(m.flushes(|| m.fs.fsync(nr, true, 0).unwrap()), 1);
    }
    assert_eq!(commits(), before);
    assert_eq!(content(&Fs::mount(Arc::new(m.cut_now()), &options(&[])).unwrap(), nr)[8192], b'b');
    // What else there is to change takes a commit.
    m.write(nr, 0, b'c', 4096);
    m.fs.fsync(nr, false, 0).unwrap();
    m.write(nr, 400_000, b'c', 4096);
    m.fs.fsync(nr, true, 0).unwrap();
    assert_eq!(commits(), before + 2);
    m.end("rewritten");
}

#[test]
fn the_journal_data_flag_logs_one_file() {
    let made = made();
    let m = made.mount(&[]);
    let nr = m.file("f");
    // EXT4_JOURNAL_DATA_FL
    let flags = m.fs.get_flags(nr).unwrap() | 0x4000;
    m.fs.set_flags(nr, flags, &Caller::ROOT).unwrap();
    m.fs.sync().unwrap();
    m.write(nr, 0, 1, 200_000);
    assert!(only_into_the_log(&made, &m, || m.fs.fsync(nr, false, 0).unwrap()));
    m.end("flag");
}

#[test]
fn without_barriers_nothing_is_flushed_until_unmount() {
    let m = made().mount(&["barrier=0"]);
    let nr = m.file("f");
    let flushes = m.flushes(|| {
        for i in 0..5 {
            m.write(nr, i * 100_000, 1, 100_000);
            m.fs.fsync(nr, false, 0).unwrap();
        }
    });
    assert_eq!(flushes, 0);
    assert!(m.flushes(|| m.fs.unmount().unwrap()) > 0);
}

#[test]
fn freed_blocks_are_discarded_when_their_transaction_is_durable() {
    let m = made().mount(&["discard"]);
    let nr = m.file("f");
    m.write(nr, 0, 1, 400_000);
    m.fs.sync().unwrap();
    m.unlink("f");
    let discarded = || {
        let events = m.device.events();
        events
            .iter()
            .filter_map(|e| if let Event::Discard { len, .. } = e { Some(*len) } else { None })
            .sum::<u64>()
    };
    assert_eq!(discarded(), 0);
    m.fs.sync().unwrap();
    assert_eq!(discarded(), 400_000u64.next_multiple_of(4096));
    // And those blocks can be had again.
    let nr = m.file("g");
    m.write(nr, 0, 2, 400_000);
    m.fs.tune(|tuning| tuning.set("nodiscard", None).map(|_| ())).unwrap();
    m.fs.sync().unwrap();
    assert!(content(&m.fs, nr).iter().all(|b| *b == 2));
    m.unlink("g");
    m.fs.sync().unwrap();
    assert_eq!(discarded(), 400_000u64.next_multiple_of(4096));
    m.end("discard");
}

/// A device that can't be written.
struct Fixed(MemoryDevice);

impl Device for Fixed {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        self.0.read_at(offset, buf)
    }
    fn write_at(&self, _: u64, _: &[u8]) -> std::io::Result<()> {
        panic!("written to");
    }
    fn flush(&self) -> std::io::Result<()> {
        panic!("flushed");
    }
    fn discard(&self, _: u64, _: u64) -> std::io::Result<()> {
        panic!("discarded");
    }
    fn read_only(&self) -> bool {
        true
    }
}

#[test]
fn a_dirty_journal_on_a_device_that_cannot_be_written_is_read_through() {
    let m = made().mount(&["data=journal"]);
    let nr = m.file("f");
    m.write(nr, 0, 7, 50_000);
    m.fs.fsync(nr, false, 0).unwrap();
    let device: SharedDevice = Arc::new(Fixed(m.cut_now()));
    let fs = Fs::mount(device, &options(&[])).unwrap();
    assert!(fs.is_read_only());
    assert_eq!(fs.lookup(InodeNr::ROOT, b"f").unwrap().size, 50_000);
    assert!(content(&fs, nr).iter().all(|b| *b == 7));
    assert!(fs.write(nr, 0, b"x", &Caller::ROOT, false).is_err_and(|e| e.is(libc::EROFS)));
    // A sync of what can't have changed is answered at once, whichever way it is asked for.
    fs.fsync(nr, false, 0).unwrap();
    fs.fsync(InodeNr::ROOT, false, 0).unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    fs.fsync_then(nr, false, 0, Box::new(move |result| sender.send(result.is_ok()).unwrap()));
    assert!(receiver.recv_timeout(std::time::Duration::from_secs(10)).unwrap());
    fs.unmount().unwrap();
    m.end("dirty");
}
