//! The command line as people and mount(8) use it.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::support::command::Output;
use crate::support::environment::{program, scratch};
use crate::support::image::{dumpe2fs, field};
use crate::support::mount::is_mounted;
use crate::support::{driver, needs_root, ok, run, Driver, Image, Mounted};

const LIMIT: Duration = Duration::from_secs(60);

/// A mount point for daemons that go to the background; unmounts whatever is there at the end.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("journalfs-mnt-").tempdir_in(scratch());
        Self(directory.expect("mount point"))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        while is_mounted(self.path()) {
            let _ = run(Command::new("umount").arg("-l").arg(self.path()), LIMIT);
        }
    }
}

fn mount(image: &Path, place: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(program("mount.journalfs"));
    command.arg(image).arg(place).args(arguments);
    run(&mut command, LIMIT)
}

fn journalfs(arguments: &[&str], place: &Path) -> String {
    let mut command = Command::new(program("journalfs"));
    ok(command.args(arguments).arg(place), LIMIT)
}

fn assert_refused(output: &Output, words: &[&str]) {
    assert!(!output.status.success(), "mounted: {}", output.text());
    assert_eq!(output.stderr.trim().lines().count(), 1, "not one line: {}", output.text());
    for word in words {
        assert!(output.stderr.contains(word), "no {word:?}: {}", output.stderr);
    }
}

/// Skips the tests of this file when the kernel's driver is under test: they are about ours.
macro_rules! needs_journalfs {
    () => {
        needs_root!();
        if driver() == Driver::Kernel {
            return;
        }
    };
}

#[test]
fn background_mount_and_the_commands_for_it() {
    needs_journalfs!();
    let image = Image::formatted(64 << 20, "journalfs", &[]);
    let place = Place::new();
    let output = mount(&image.path(), place.path(), &["-o", "batch=adaptive"]);
    assert!(output.status.success(), "{}", output.text());
    assert_eq!(output.text(), "", "a mount that works says nothing");
    assert!(is_mounted(place.path()), "returned before it was mounted");
    fs::write(place.path().join("file"), vec![1; 100_000]).expect("write");
    journalfs(&["sync"], place.path());
    assert!(!journalfs(&["stats"], place.path()).trim().is_empty());
    let json = journalfs(&["stats", "--json"], place.path());
    let stats: serde_json::Value =
        serde_json::from_str(&json).unwrap_or_else(|error| panic!("stats --json: {error}: {json}"));
    assert!(stats.is_object(), "{json}");
    // It waits until the image is at rest.
    journalfs(&["umount"], place.path());
    image.assert_clean();
    // What is only ours is gone; what the kernel's driver too sets at its first mount may stay.
    let after = field(&dumpe2fs(&image.path()), "Journal features");
    for ours in ["journal_checksum", "journal_async_commit"] {
        assert!(after.split_whitespace().all(|feature| feature != ours), "{after}");
    }
}

#[test]
fn mount_helper_arguments() {
    needs_journalfs!();
    let image = Image::formatted(64 << 20, "journalfs", &[]);
    let place = Place::new();
    let options = "rw,relatime,nodev,nosuid,_netdev,x-test=1";
    let output = mount(&image.path(), place.path(), &["-o", options, "-n", "-v"]);
    assert!(output.status.success(), "{}", output.text());
    let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
    let line = mounts
        .lines()
        .find(|line| line.split(' ').nth(1).map(Path::new) == Some(place.path()))
        .expect("is mounted");
    for option in ["rw", "nodev", "nosuid", "relatime"] {
        let options = line.split(' ').nth(3).unwrap_or_default();
        assert!(options.split(',').any(|o| o == option), "{option}: {line}");
    }
    journalfs(&["umount"], place.path());
    // -f: everything but the mount.
    let output = mount(&image.path(), place.path(), &["-f"]);
    assert!(output.status.success(), "{}", output.text());
    assert!(!is_mounted(place.path()), "-f mounted");
    image.assert_clean();
}

#[test]
fn wrong_arguments_are_named() {
    needs_journalfs!();
    let image = Image::formatted(16 << 20, "ext3", &["-b", "1024"]);
    let place = Place::new();
    let refused = |options: &str, words: &[&str]| {
        assert_refused(&mount(&image.path(), place.path(), &["-o", options]), words);
        assert!(!is_mounted(place.path()), "mounted with {options}");
    };
    refused("no-such-option", &["no-such-option"]);
    refused("batch=fastest", &["batch", "fastest"]);
    refused("commit=often", &["commit", "often"]);
    refused("data=maybe", &["data", "maybe"]);
    let missing = PathBuf::from("/nonexistent/image");
    assert_refused(&mount(&missing, place.path(), &[]), &["/nonexistent/image"]);
    assert_refused(&mount(&image.path(), Path::new("/nonexistent/dir"), &[]), &["/nonexistent/dir"]);
    image.assert_clean();
}

#[test]
fn an_image_in_use_is_refused() {
    needs_journalfs!();
    let image = Image::formatted(16 << 20, "ext3", &["-b", "1024"]);
    let first = Mounted::journalfs(&image.path(), "");
    let place = Place::new();
    assert_refused(&mount(&image.path(), place.path(), &[]), &["use"]);
    first.unmount();
    let first = Mounted::kernel(&image, "");
    assert_refused(&mount(&image.path(), place.path(), &[]), &["use"]);
    first.unmount();
    let first = Mounted::journalfs(&image.path(), "");
    first.unmount();
}

#[test]
fn read_only_means_it() {
    needs_journalfs!();
    let image = Image::formatted(16 << 20, "journalfs", &["-b", "1024"]);
    let mounted = Mounted::journalfs(&image.path(), "");
    fs::write(mounted.join("file"), b"text").expect("write");
    mounted.unmount();
    let before = fs::read(image.path()).expect("read image");
    let mounted = Mounted::journalfs(&image.path(), "ro");
    assert_eq!(fs::read(mounted.join("file")).expect("read"), b"text");
    for result in [
        fs::write(mounted.join("new"), b""),
        fs::remove_file(mounted.join("file")),
        fs::set_permissions(mounted.join("file"), fs::Permissions::from_mode(0o600)),
    ] {
        assert_eq!(result.expect_err("read-only").raw_os_error(), Some(30));
    }
    mounted.unmount();
    let after = fs::read(image.path()).expect("read image");
    assert!(before == after, "a read-only mount changed the image");
}

#[test]
fn every_mount_option_works() {
    needs_journalfs!();
    let image = Image::formatted(64 << 20, "journalfs", &[]);
    for options in [
        "batch=none",
        "batch=yield",
        "batch=fixed,batch_delay=1000",
        "batch=pipeline",
        "batch=jbd2,min_batch_time=0,max_batch_time=15000",
        "batch=adaptive",
        "commit=1,data=ordered",
        "data=journal",
        "data=writeback",
        "barrier=0",
        "nobarrier",
        "barrier=1,nojournal_async_commit",
        "journal_async_commit",
        "sync",
        "dirsync",
        "noatime,nodev,nosuid,noexec",
        "errors=continue",
        "errors=remount-ro",
        "errors=panic",
        "acl,user_xattr",
        "noacl,nouser_xattr",
        "cache_size=64M",
        "inactivate=inline",
        "inactivate=deferred",
        "inactivate=adaptive",
        "allow_other,default_permissions",
    ] {
        let mounted = Mounted::try_journalfs(&image.path(), options)
            .unwrap_or_else(|(status, message)| panic!("-o {options}: {status} {message}"));
        let path = mounted.join("file");
        let file = fs::File::create(&path).expect("create");
        file.write_all_at(options.as_bytes(), 5000).expect("write");
        file.sync_all().expect("fsync");
        drop(file);
        let read = fs::read(&path).expect("read");
        assert_eq!(&read[5000..], options.as_bytes(), "-o {options}");
        fs::rename(&path, mounted.join("renamed")).expect("rename");
        fs::remove_file(mounted.join("renamed")).expect("unlink");
        let _ = mounted.unmount_with_messages();
        image.assert_clean();
    }
}

#[test]
fn block_device() {
    needs_journalfs!();
    let image = Image::formatted(64 << 20, "ext3", &[]);
    let device = ok(Command::new("losetup").args(["-f", "--show"]).arg(image.path()), LIMIT);
    let device = PathBuf::from(device.trim());
    let detach = || ok(Command::new("losetup").arg("-d").arg(&device), LIMIT);
    let result = std::panic::catch_unwind(|| {
        let mounted = Mounted::journalfs(&device, "");
        fs::write(mounted.join("file"), vec![3; 1 << 20]).expect("write");
        mounted.unmount();
    });
    detach();
    assert!(result.is_ok(), "see above");
    image.assert_clean();
    let mounted = Mounted::kernel(&image, "ro");
    assert!(fs::read(mounted.join("file")).expect("read") == vec![3; 1 << 20]);
    mounted.unmount();
}

/// A file system somewhere inside a file, as images of whole disks have them.
#[test]
fn file_system_at_an_offset() {
    needs_journalfs!();
    let offset = 3 << 20;
    let inner = Image::mke2fs(32 << 20, "ext4", &[]);
    let disk = Image::new(offset + (32 << 20) + 4096);
    let bytes = fs::read(inner.path()).expect("read");
    let file = fs::OpenOptions::new().write(true).open(disk.path());
    file.and_then(|file| file.write_all_at(&bytes, offset)).expect("copy");
    let mounted = Mounted::journalfs(&disk.path(), &format!("offset={offset}"));
    fs::write(mounted.join("file"), b"inside").expect("write");
    mounted.unmount();
    let name = format!("{}?offset={offset}", disk.path().display());
    ok(Command::new("e2fsck").args(["-fn", &name]), LIMIT);
    let mounted = Mounted::kernel_at(&disk.path(), "ext4", &format!("ro,offset={offset}"));
    assert_eq!(fs::read(mounted.join("file")).expect("read"), b"inside");
    mounted.unmount();
}

/// fusermount3 mounts for whoever may open /dev/fuse and owns the mount point.
#[test]
fn ordinary_user() {
    needs_journalfs!();
    let image = Image::formatted(32 << 20, "journalfs", &["-b", "1024"]);
    let open = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("chmod");
    };
    open(&image.path(), 0o666);
    open(image.path().parent().expect("parent"), 0o755);
    let place = Place::new();
    open(place.path(), 0o777);
    ok(Command::new("chown").arg("65534:65534").arg(place.path()), LIMIT);
    // The binaries may lie where only root can look.
    let binaries = tempfile::tempdir_in(scratch()).expect("directory");
    open(binaries.path(), 0o755);
    let binary = binaries.path().join("journalfs");
    fs::copy(program("journalfs"), &binary).expect("copy");
    std::os::unix::fs::symlink("journalfs", binaries.path().join("mount.journalfs")).expect("symlink");
    // In a mount namespace of its own, with a /dev/fuse that everybody may open.
    let script = r#"
        set -e
        mount -t tmpfs -o mode=755 none "$4"
        mknod "$4/fuse" c 10 229; chmod 666 "$4/fuse"
        mount --bind "$4/fuse" /dev/fuse
        as="setpriv --reuid 65534 --regid 65534 --clear-groups"
        $as "$1/mount.journalfs" "$2" "$3"
        $as sh -c 'echo mine > "$1/file"; mkdir "$1/dir"; ls -l "$1"' sh "$3" 2>&1 || true
        grep " $3 " /proc/self/mounts
        $as "$1/journalfs" umount "$3"
    "#;
    // The root directory belongs to root: give it away first.
    let mounted = Mounted::kernel(&image, "");
    ok(Command::new("chown").arg("65534:65534").arg(mounted.root()), LIMIT);
    mounted.unmount();
    let devices = tempfile::tempdir_in(scratch()).expect("directory");
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, "sh"]);
    command.arg(binaries.path()).arg(image.path());
    command.arg(place.path()).arg(devices.path());
    let output = run(&mut command, LIMIT);
    assert!(output.status.success(), "{}", output.text());
    image.assert_clean();
    let mounted = Mounted::kernel(&image, "ro");
    assert_eq!(fs::read(mounted.join("file")).expect("written by the user"), b"mine\n");
    assert!(mounted.join("dir").is_dir());
    mounted.unmount();
}
