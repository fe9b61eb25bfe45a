//! Kill -9 of the daemon under a mixed load: whatever an fsync acknowledged is there, whole, whoever
//! recovers. And the other way round: journals that the kernel left dirty, recovered by us.
//!
//! The page cache survives a kill, so this cannot show a missing flush; it shows what is written and
//! in what order it is recovered. `KILL_ROUNDS` sets the rounds.

use std::fs::File;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::image::{dumpe2fs, field};
use crate::support::load::{assert_kept, load, recover};
use crate::support::{driver, needs_root, ok, Driver, Image, Mounted, Scope, Snapshot};

fn rounds(default: u64) -> u64 {
    std::env::var("KILL_ROUNDS").map_or(default, |text| text.parse().expect("KILL_ROUNDS"))
}

#[test]
fn killed_daemon_loses_nothing_synced() {
    needs_root!();
    if driver() == Driver::Kernel {
        return;
    }
    let mut kept = 0;
    for round in 0..rounds(10) {
        let (profile, arguments, options): (_, &[&str], _) = [
            ("journalfs", &[][..], ""),
            ("ext3", &[], "commit=1"),
            ("ext4", &[], "data=journal"),
            ("journalfs", &[], "nojournal_async_commit"),
            // Small logs: they wrap, and checkpoints are always under way.
            ("journalfs", &["-b", "1024", "-J", "size=1"], ""),
            ("ext3", &["-J", "size=4"], ""),
            ("ext4", &["-J", "size=4"], "data=writeback"),
        ][round as usize % 7];
        let image = Image::formatted(256 << 20, profile, arguments);
        let mounted = Mounted::journalfs(&image.path(), options);
        let pid = mounted.pid().expect("daemon");
        let root = mounted.root().to_path_buf();
        let (promised, open) = load(&root, round, |_| {
            ok(Command::new("kill").args(["-9", &pid.to_string()]), Duration::from_secs(10));
        });
        drop(open);
        mounted.kill();
        kept += promised.len();
        let features = field(&dumpe2fs(&image.path()), "Filesystem features");
        assert!(features.contains("needs_recovery"), "{features}");
        let what = format!("round {round}, {profile} {arguments:?}, {options}");
        recover(&image, &promised, round, &what);
    }
    assert!(kept > 20, "only {kept} files were synced in all");
}

#[test]
fn journal_left_dirty_by_the_kernel() {
    needs_root!();
    for round in 0..rounds(4) {
        let (kernel_type, arguments, scope): (_, &[&str], _) = [
            ("ext4", &[][..], Scope::Exact),
            ("ext3", &[], Scope::Exact),
            ("ext4", &["-O", "^metadata_csum"], Scope::Exact),
            ("ext4", &["-b", "1024", "-O", "orphan_file,fast_commit"], Scope::Replayed),
        ][round as usize % 4];
        let image = Image::mke2fs(256 << 20, kernel_type, arguments);
        let mounted = Mounted::kernel(&image, "");
        let (promised, open) = load(mounted.root(), round, |_| ());
        // The load is over but not unmounted: the log is full of what is not home yet.
        let by_us = image.copy();
        drop(open);
        mounted.unmount();
        let features = field(&dumpe2fs(&by_us.path()), "Filesystem features");
        assert!(features.contains("needs_recovery"), "{features}");
        let by_kernel = by_us.copy();

        let mounted = Mounted::new(&by_us, "noatime");
        assert_kept(mounted.root(), &promised, &format!("round {round}"));
        mounted.unmount();
        by_us.assert_clean();
        match Mounted::try_kernel(&by_kernel, "noatime") {
            Ok(mounted) => mounted.unmount(),
            // Now and then the kernel refuses fast commits that it wrote itself; then what was promised must do.
            Err(refusal) if scope == Scope::Replayed => {
                eprintln!("round {round}: the kernel refuses its own fast commits: {refusal}");
                continue;
            }
            Err(refusal) => panic!("round {round}: {refusal}"),
        }
        let snapshot = |image: &Image| {
            let mounted = Mounted::kernel(image, "ro");
            let snapshot = Snapshot::take(mounted.root());
            mounted.unmount();
            snapshot
        };
        snapshot(&by_us).assert_same(
            &snapshot(&by_kernel),
            scope,
            &format!("round {round}: our recovery and the kernel's"),
        );
    }
}

/// What ext3 and ext4 do at `EXT4_IOC_SHUTDOWN`: from one moment to the next nothing is written any more.
mod kernel {
    nix::ioctl_read!(
        /// Stops the file system; 2 is "without flushing the log".
        shutdown,
        b'X',
        125,
        u32
    );
}

/// As if the power had gone in the middle of a load on the kernel's driver: the log as jbd2 leaves it at a
/// moment that it did not choose, replayed by us and by the kernel.
#[test]
fn kernel_stopped_in_the_middle_of_a_load() {
    needs_root!();
    for round in 0..rounds(4) {
        let (kernel_type, arguments): (_, &[&str]) = [
            ("ext4", &[][..]),
            ("ext3", &["-b", "1024"]),
            ("ext4", &["-O", "^metadata_csum,^64bit"]),
            // Not fast_commit: the kernel then leaves, now and then, what itself refuses to mount.
            ("ext4", &["-O", "orphan_file"]),
        ][round as usize % 4];
        let image = Image::mke2fs(256 << 20, kernel_type, arguments);
        let mounted = Mounted::kernel(&image, "");
        let root = File::open(mounted.root()).expect("root");
        let (promised, open) = load(mounted.root(), round, |doubt| {
            // The kernel lets fsyncs succeed that are under way when it stops.
            doubt.store(true, Ordering::SeqCst);
            let mut without_flushing_the_log = 2_u32;
            // SAFETY: the ioctl reads the one integer that it is given.
            let stopped = unsafe {
                kernel::shutdown(std::os::fd::AsRawFd::as_raw_fd(&root), &raw mut without_flushing_the_log)
            };
            stopped.expect("EXT4_IOC_SHUTDOWN");
        });
        drop((open, root));
        mounted.unmount();
        let features = field(&dumpe2fs(&image.path()), "Filesystem features");
        assert!(features.contains("needs_recovery"), "{features}");
        if driver() == Driver::Journalfs {
            recover(
                &image.copy(),
                &promised,
                round % 3 * 2,
                &format!("round {round}, stopped, us or e2fsck"),
            );
        }
        recover(&image, &promised, 1, &format!("round {round}, stopped, the kernel"));
    }
}
