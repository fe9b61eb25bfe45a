//! File systems for the crash tests, and what e2fsck and the kernel make of them.

use journalfs::device::memory::MemoryDevice;
use journalfs::device::Device;
use journalfs::format::features::{Compat, Feature};
use journalfs::format::superblock::Superblock;
use journalfs::journal::locate::{locate, Located};
use journalfs::journal::replay::write_journal_superblock;
use journalfs::units::Tid;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output};
use tempfile::NamedTempFile;

/// Which file system a test uses.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Profile {
    pub(crate) name: &'static str,
    pub(crate) block_bytes: u32,
}

impl Profile {
    /// A new file system in memory, with the smallest log there is, so that it wraps often. `small`: there is
    /// room for little else.
    pub(crate) fn make(self, small: bool) -> MemoryDevice {
        let blocks = if small { 2048 } else { 6144 };
        let device = MemoryDevice::new(blocks * u64::from(self.block_bytes));
        self.format(&device, false);
        device
    }

    /// Makes a file system; `keep_log`: as `mke2fs -E lazy_journal_init` does, which leaves the log's old blocks
    /// in place and begins every log with the same sequence number.
    pub(crate) fn format(self, device: &MemoryDevice, keep_log: bool) {
        let profile = match self.name {
            "ext3" => mkfs::Profile::Ext3,
            _ => mkfs::Profile::Journalfs,
        };
        let mut options = mkfs::Options::new(profile);
        options.block_bytes = Some(self.block_bytes);
        options.journal = mkfs::JournalSize::MiB(self.block_bytes / 1024);
        options.uuid = Some([0x5a; 16]);
        options.hash_seed = Some([0xa5; 16]);
        options.lazy_journal_init = keep_log;
        if self.name == "orphan_file" {
            options.features = vec![mkfs::FeatureEdit::Set(Feature::Compat(Compat::ORPHAN_FILE), true)];
        }
        mkfs::format(device, &options).unwrap();
        let mut bytes = [0; 1024];
        device.read_at(1024, &mut bytes).unwrap();
        let located = locate(device, &Superblock::decode(&bytes).unwrap()).unwrap();
        let Located { area, mut superblock, .. } = located.unwrap();
        superblock.sequence = Tid(1);
        write_journal_superblock(device, &area, &superblock).unwrap();
    }
}

fn write_image(device: &dyn Device) -> NamedTempFile {
    // In memory where that can be had: thousands of images are written.
    let dir = if Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" };
    let mut image = NamedTempFile::new_in(dir).unwrap();
    let mut bytes = vec![0; device.size_bytes() as usize];
    device.read_at(0, &mut bytes).unwrap();
    image.write_all(&bytes).unwrap();
    image
}

fn read_image(path: &Path) -> MemoryDevice {
    let bytes = std::fs::read(path).unwrap();
    let device = MemoryDevice::new(bytes.len() as u64);
    for (i, page) in bytes.chunks(4096).enumerate() {
        if page.iter().any(|b| *b != 0) {
            device.write_at(i as u64 * 4096, page).unwrap();
        }
    }
    device
}

fn run(program: &str, arguments: &[&str], path: &Path) -> Output {
    Command::new(program).args(arguments).arg(path).output().unwrap_or_else(|e| panic!("{program}: {e}"))
}

fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("exit {:?}\n{}{}", output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// `e2fsck -fn` finds nothing to complain about.
pub(crate) fn check_with_e2fsck(device: &dyn Device, what: &str) {
    let image = write_image(device);
    let output = run("e2fsck", &["-fn"], image.path());
    assert!(output.status.code() == Some(0), "{what}: e2fsck -fn says {}", said(&output));
}

/// Lets e2fsck replay the log, demands that it then finds nothing, and gives back what it made.
pub(crate) fn recover_with_e2fsck(device: &MemoryDevice, what: &str) -> MemoryDevice {
    let image = write_image(device);
    let replay = run("e2fsck", &["-y"], image.path());
    assert!(replay.status.code().is_some_and(|c| c & !1 == 0), "{what}: e2fsck -y says {}", said(&replay));
    let mut check = run("e2fsck", &["-fn"], image.path());
    if complains_of_orphan_file_only(&check) {
        run("e2fsck", &["-fy"], image.path());
        check = run("e2fsck", &["-fn"], image.path());
    }
    assert!(check.status.code() == Some(0), "{what}: after its replay, e2fsck -fn says {}", said(&check));
    read_image(image.path())
}

/// e2fsck 1.47.0 finishes the orphans of an orphan file and leaves them in it, or the flag that there are any.
fn complains_of_orphan_file_only(check: &Output) -> bool {
    let text = String::from_utf8_lossy(&check.stdout);
    let lines: Vec<&str> = text.lines().collect();
    let known =
        ["Orphan file (inode ", "Failed to initialize orphan file.", "Feature orphan_present is set but "];
    check.status.code() == Some(4)
        && lines
            .windows(2)
            .filter(|pair| pair[1].ends_with("? no"))
            .all(|pair| known.iter().any(|known| pair[0].starts_with(known)))
}

/// Lets the kernel mount and unmount the state. `None`: not allowed here.
pub(crate) fn check_with_kernel(device: &MemoryDevice, profile: Profile, what: &str) -> Option<MemoryDevice> {
    if !nix_is_root() {
        return None;
    }
    let image = write_image(device);
    let dir = tempfile::tempdir().unwrap();
    let kind = if profile.name == "ext3" { "ext3" } else { "ext4" };
    let mounted = run("mount", &["-o", "loop", "-t", kind, image.path().to_str().unwrap()], dir.path());
    assert!(mounted.status.success(), "{what}: the kernel says {}", said(&mounted));
    let unmounted = run("umount", &[], dir.path());
    assert!(unmounted.status.success(), "{what}: umount says {}", said(&unmounted));
    let check = run("e2fsck", &["-fn"], image.path());
    assert!(check.status.code() == Some(0), "{what}: after the kernel, e2fsck -fn says {}", said(&check));
    Some(read_image(image.path()))
}

fn nix_is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0)
        && Path::new("/dev/loop-control").exists()
}
