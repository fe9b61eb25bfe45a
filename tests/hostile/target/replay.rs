//! Target `replay`: a hostile journal is recovered; and recovering must say the same however often it is done.

use super::base::DIRTY;
use super::image::Image;
use super::input::Input;
use super::{mount, walk};
use journalfs::device::memory::MemoryDevice;
use journalfs::device::{Device, SharedDevice};
use journalfs::fs::{read_superblock, Fs};
use journalfs::journal::locate::locate;
use journalfs::journal::recovery::recover;
use journalfs::journal::replay;
use std::io;
use std::sync::Arc;

/// The target's body.
pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let bits = input.u8();
    let image = Image::read(&mut input, &DIRTY);
    recovered_twice(&image.device);
    // What is read instead of being written home.
    let shared: SharedDevice = Arc::new(ReadOnly(image.device.clone()));
    if let Ok(fs) = Fs::mount(shared, &mount::options(bits)) {
        walk::walk(&fs);
        let _ = fs.unmount();
    }
    let device: SharedDevice = Arc::new(image.device);
    let Ok(fs) = Fs::mount(device, &mount::options(bits & 0x7f)) else { return };
    walk::walk(&fs);
    let _ = fs.unmount();
}

/// A recovery that is cut short is done again, on blocks of which some are home.
fn recovered_twice(device: &MemoryDevice) {
    let shared: SharedDevice = Arc::new(device.clone());
    let Ok(sb) = read_superblock(&shared) else { return };
    let Ok(Some(located)) = locate(&*shared, &sb) else { return };
    let Ok(recovered) = recover(&*shared, &located.area, &located.superblock) else { return };
    for nr in recovered.blocks.keys().take(20) {
        assert!(recovered.read(&*shared, &located.area, *nr).unwrap().is_some());
    }
    assert!(recovered.blocks.keys().all(|nr| !located.area.contains(*nr)), "a log that replays over itself");
    replay::apply(&recovered, &*shared, &located.area).unwrap();
    let again = recover(&*shared, &located.area, &located.superblock).unwrap();
    assert_eq!(recovered, again, "a recovery cut short leads elsewhere");
}

/// A device that is only read.
struct ReadOnly(MemoryDevice);

impl Device for ReadOnly {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset, buf)
    }

    fn write_at(&self, _: u64, _: &[u8]) -> io::Result<()> {
        panic!("a write to a device that is only read");
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, _: u64, _: u64) -> io::Result<()> {
        panic!("a discard on a device that is only read");
    }

    fn read_only(&self) -> bool {
        true
    }
}
