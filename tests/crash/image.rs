//! File systems for the crash tests, and e2fsck's word on them.

use journalfs::device::memory::MemoryDevice;
use journalfs::device::Device;
use std::io::Write;
use std::process::Command;

/// Which file system a test uses.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Profile {
    name: &'static str,
    block_bytes: u32,
}

impl Profile {
    pub(crate) fn new(name: &'static str, block_bytes: u32) -> Self {
        Self { name, block_bytes }
    }

    /// A new file system in memory.
    pub(crate) fn make(&self) -> MemoryDevice {
        let megabytes = if self.block_bytes == 1024 { 8 } else { 24 };
        let device = MemoryDevice::new(megabytes << 20);
        let profile = match self.name {
            "ext3" => mkfs::Profile::Ext3,
            _ => mkfs::Profile::Journalfs,
        };
        let mut options = mkfs::Options::new(profile);
        options.block_bytes = Some(self.block_bytes);
        mkfs::format(&device, &options).unwrap();
        device
    }
}

/// `e2fsck -fn` finds nothing to complain about.
pub(crate) fn check_with_e2fsck(device: &dyn Device, what: &str) {
    let mut image = tempfile::NamedTempFile::new().unwrap();
    let mut bytes = vec![0; device.size_bytes() as usize];
    device.read_at(0, &mut bytes).unwrap();
    image.write_all(&bytes).unwrap();
    let output = Command::new("e2fsck").arg("-fn").arg(image.path()).output().expect("e2fsck is installed");
    assert!(
        output.status.code() == Some(0),
        "{what}: e2fsck -fn says {:?}:\n{}{}\n{}",
        output.status.code(),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
        image.keep().map(|(_, path)| path.display().to_string()).unwrap_or_default(),
    );
}
