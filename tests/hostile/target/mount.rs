//! Target `mount`: a hostile image is mounted, looked through, changed, unmounted, and mounted once more.

use super::base::CLEAN;
use super::image::Image;
use super::input::Input;
use super::{script, walk};
use journalfs::device::SharedDevice;
use journalfs::fs::options::{DataMode, ErrorsPolicy, InactivatePolicy, MountOptions};
use journalfs::fs::Fs;
use std::sync::Arc;

/// Mount options, by the bits of a byte.
pub(crate) fn options(bits: u8) -> MountOptions {
    let mut options = MountOptions::default();
    options.tuning.cache_size = Some(16 << 20);
    options.read_only = bits & 0x81 == 0x81;
    options.noload = bits & 0xc2 == 0xc2;
    options.nojournal = bits & 4 != 0;
    options.async_commit = bits & 8 == 0;
    options.data = [DataMode::Ordered, DataMode::Ordered, DataMode::Journal, DataMode::Writeback]
        [usize::from(bits >> 4 & 3)];
    options.errors = if bits & 0x40 == 0 { ErrorsPolicy::Continue } else { ErrorsPolicy::RemountReadOnly };
    options.errors_from_superblock = bits & 0x20 != 0;
    options.tuning.inactivate =
        if bits & 2 == 0 { InactivatePolicy::Inline } else { InactivatePolicy::Deferred };
    options.finish().unwrap();
    options
}

/// The target's body.
pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let bits = input.u8();
    let image = Image::read(&mut input, &CLEAN);
    let device: SharedDevice = Arc::new(image.device);
    let Ok(fs) = Fs::mount(device.clone(), &options(bits)) else { return };
    let found = walk::walk(&fs);
    script::run(&fs, &mut input, &found);
    walk::walk(&fs);
    let _ = fs.sync();
    let _ = fs.unmount();
    drop(fs);
    let Ok(fs) = Fs::mount(device, &options(0x81)) else { return };
    walk::walk(&fs);
    let _ = fs.unmount();
}
