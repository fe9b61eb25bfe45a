//! `journalfs replay`: what a mount does about a dirty journal, without the mount.

use super::ReplayArgs;
use journalfs::device::{self, Device, OpenOptions};
use journalfs::format::features::Incompat;
use journalfs::format::superblock::Superblock;
use journalfs::fs::options::MountOptions;
use journalfs::fs::Fs;
use journalfs::{Error, Result};

pub(super) fn run(args: &ReplayArgs) -> Result<()> {
    super::log::start(false, false, 0)?;
    let opened = device::open(&args.device, &OpenOptions { offset: args.offset, ..OpenOptions::default() })?;
    let shown = args.device.display();
    let was_dirty = needs_recovery(&*opened.device)?;
    let fs = Fs::mount(opened.device, &MountOptions::default())?;
    fs.unmount()?;
    println!(
        "{shown}: {}",
        if was_dirty { "the journal has been replayed" } else { "the journal was clean" }
    );
    Ok(())
}

fn needs_recovery(device: &dyn Device) -> Result<bool> {
    let mut block = [0; 1024];
    device.read_at(1024, &mut block).map_err(|error| Error::io("reading the superblock", error))?;
    Ok(Superblock::decode(&block)?.features.incompat.contains(Incompat::NEEDS_RECOVERY))
}
