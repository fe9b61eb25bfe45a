//! The FUSE transport through the kernel, with a file system in memory behind it: what goes wrong here
//! is the front-end's fault alone.

#[path = "../bench/src/nothing.rs"]
mod nothing;

use journalfs::fuse::{mount, serve, FuseOptions, Operations, Transport};
use nix::sys::time::TimeSpec;
use nothing::Nothing;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{symlink, FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::mpsc::channel;
use std::sync::Arc;
use std::thread::JoinHandle;

/// A mount for one test; unmounted, and its daemon thread waited for, at the end.
struct Mount {
    dir: tempfile::TempDir,
    fs: Arc<Nothing>,
    daemon: Option<JoinHandle<journalfs::Result<()>>>,
}

impl Mount {
    fn new(options: FuseOptions) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let fs = Arc::new(Nothing::new());
        let (path, served) = (dir.path().to_owned(), fs.clone());
        let (ready, is_ready) = channel();
        let daemon = std::thread::spawn(move || serve(served, &path, &options, || ready.send(()).unwrap()));
        is_ready.recv().unwrap_or_else(|_| panic!("the mount failed"));
        Self { dir, fs, daemon: Some(daemon) }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Unmounts; the inodes that are left.
    fn finish(mut self) -> u64 {
        mount::unmount(self.path(), false).unwrap();
        self.daemon.take().unwrap().join().unwrap().unwrap();
        let statfs = self.fs.statfs().unwrap();
        statfs.inodes - statfs.free_inodes
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.daemon.is_some() {
            let _ = mount::unmount(self.path(), true);
        }
    }
}

fn options(transport: Transport) -> FuseOptions {
    FuseOptions { transport, default_permissions: true, ..FuseOptions::default() }
}

fn inode_of(path: &Path) -> u64 {
    fs::symlink_metadata(path).unwrap().ino()
}

fn names_data_and_attributes_go_through(transport: Transport) {
    let mount = Mount::new(FuseOptions { source: "/dev/with space".into(), ..options(transport) });
    let root = mount.path();
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = format!("/dev/with\\040space {} fuse.journalfs rw,", root.display());
    assert!(table.contains(&line), "{table}");
    assert_eq!(inode_of(root), 2);

    fs::create_dir(root.join("d")).unwrap();
    fs::write(root.join("d/f"), "twelve bytes").unwrap();
    symlink("f", root.join("d/l")).unwrap();
    fs::hard_link(root.join("d/f"), root.join("g")).unwrap();
    assert_eq!(fs::read_to_string(root.join("d/l")).unwrap(), "twelve bytes");
    assert_eq!(fs::read_link(root.join("d/l")).unwrap(), Path::new("f"));
    let metadata = fs::metadata(root.join("g")).unwrap();
    assert_eq!((metadata.nlink(), metadata.len(), metadata.blocks()), (2, 12, 8));
    assert_eq!(metadata.ino(), inode_of(&root.join("d/f")));

    fs::rename(root.join("g"), root.join("d/h")).unwrap();
    assert!(!root.join("g").exists());
    let missing = fs::remove_file(root.join("g")).unwrap_err();
    assert_eq!(missing.raw_os_error(), Some(libc::ENOENT));
    assert_eq!(fs::remove_dir(root.join("d")).unwrap_err().raw_os_error(), Some(libc::ENOTEMPTY));

    fs::set_permissions(root.join("d/h"), fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(fs::metadata(root.join("d/f")).unwrap().mode() & 0o7777, 0o640);
    fs::remove_dir_all(root.join("d")).unwrap();
    assert_eq!(mount.finish(), 1, "the root is all that is left");
}

fn a_large_directory_is_listed_whole_and_once(transport: Transport) {
    let mount = Mount::new(options(transport));
    let root = mount.path();
    for i in 0..3000 {
        File::create(root.join(format!("a fairly long name, number {i:05}"))).unwrap();
    }
    let list = || {
        let mut names: Vec<_> = fs::read_dir(root).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort_unstable();
        names
    };
    let names = list();
    assert_eq!(names.len(), 3000);
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
    for name in &names {
        assert_eq!(fs::metadata(root.join(name)).unwrap().len(), 0);
        fs::remove_file(root.join(name)).unwrap();
    }
    assert!(list().is_empty());
    assert_eq!(mount.finish(), 1);
}

fn large_and_odd_reads_and_writes(transport: Transport) {
    let mount = Mount::new(options(transport));
    let pattern: Vec<u8> = (0..5_000_000_u32).map(|i| (i / 3) as u8).collect();
    let path = mount.path().join("f");
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all(&pattern).unwrap();
    file.sync_all().unwrap();
    file.write_all_at(b"over there", 6_000_001).unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut back = Vec::new();
    file.read_to_end(&mut back).unwrap();
    assert_eq!(back.len(), 6_000_011);
    assert!(back.starts_with(&pattern) && back.ends_with(b"\0over there"));
    file.set_len(7).unwrap();
    drop(file);
    assert_eq!(fs::read(&path).unwrap(), pattern[..7]);
    let truncated = OpenOptions::new().write(true).truncate(true).open(&path).unwrap();
    assert_eq!(truncated.metadata().unwrap().len(), 0);
    drop(truncated);
    assert_eq!(mount.finish(), 2);
}

fn an_unlinked_file_lives_until_it_is_closed(transport: Transport) {
    let mount = Mount::new(options(transport));
    let path = mount.path().join("f");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all_at(b"still here", 0).unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    let mut back = [0; 10];
    file.read_exact_at(&mut back, 0).unwrap();
    assert_eq!(&back, b"still here");
    drop(file);
    assert_eq!(mount.finish(), 1);
}

fn times_before_1970_keep_their_fraction(transport: Transport) {
    let mount = Mount::new(options(transport));
    let path = mount.path().join("f");
    let file = File::create(&path).unwrap();
    for (seconds, nanoseconds) in
        [(-1, 250_000_000), (-2, 0), (-2_000_000_000, 999_999_999), (5_000_000_000, 1)]
    {
        let time = TimeSpec::new(seconds, nanoseconds);
        nix::sys::stat::futimens(&file, &time, &time).unwrap();
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (seconds, nanoseconds));
        assert_eq!((metadata.atime(), metadata.atime_nsec()), (seconds, nanoseconds));
    }
    drop(file);
    mount.finish();
}

fn many_threads_of_callers_and_of_the_daemon(transport: Transport) {
    for threads in [1, 4] {
        let mount = Mount::new(FuseOptions { threads, workers: 2, ..options(transport) });
        let root = mount.path();
        std::thread::scope(|scope| {
            for t in 0..8 {
                scope.spawn(move || {
                    let dir = root.join(format!("dir{t}"));
                    fs::create_dir(&dir).unwrap();
                    for i in 0..100 {
                        let path = dir.join(format!("{i}"));
                        let mut file = File::create(&path).unwrap();
                        file.write_all(path.as_os_str().as_encoded_bytes()).unwrap();
                        file.sync_all().unwrap();
                        assert_eq!(fs::read(&path).unwrap(), path.as_os_str().as_encoded_bytes());
                        if i % 2 == 0 {
                            fs::remove_file(&path).unwrap();
                        }
                    }
                });
            }
        });
        assert_eq!(mount.finish(), 1 + 8 + 8 * 50);
    }
}

fn dirsync_and_what_is_not_offered(transport: Transport) {
    let mount = Mount::new(FuseOptions { dirsync: true, noexec: true, ..options(transport) });
    let root = mount.path();
    fs::create_dir(root.join("d")).unwrap();
    fs::write(root.join("d/f"), "x").unwrap();
    fs::rename(root.join("d/f"), root.join("g")).unwrap();
    fs::remove_dir(root.join("d")).unwrap();
    let file = File::open(root.join("g")).unwrap();
    let mut version = 0_i32;
    // SAFETY: the ioctl writes an int there.
    let result =
        unsafe { libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&file), 0x8008_7601, &raw mut version) };
    assert_eq!((result, version), (0, 1), "FS_IOC_GETVERSION");
    // SAFETY: an unknown number is refused before anything is read or written.
    let result = unsafe { libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&file), 0x5a00, 0) };
    assert_eq!((result, nix::errno::Errno::last()), (-1, nix::errno::Errno::ENOTTY));
    drop(file);
    assert_eq!(mount.finish(), 2);
}

/// fuser 0.18 can't compute with this time, and the mount would end.
#[test]
fn the_earliest_time_of_all_is_a_time() {
    let mount = Mount::new(options(Transport::Device));
    let file = File::create(mount.path().join("f")).unwrap();
    let time = TimeSpec::new(i64::MIN, 1);
    nix::sys::stat::futimens(&file, &time, &time).unwrap();
    assert_eq!(file.metadata().unwrap().mtime(), i64::MIN);
    drop(file);
    assert_eq!(mount.finish(), 2);
}

/// statx(2) shows when a file was born.
#[test]
fn birth_times_are_shown() {
    let mount = Mount::new(options(Transport::Device));
    let path = mount.path().join("f");
    let before = std::time::SystemTime::now() - std::time::Duration::from_secs(5);
    fs::write(&path, "x").unwrap();
    assert!(fs::metadata(&path).unwrap().created().unwrap() > before);
    assert_eq!(mount.finish(), 2);
}

#[test]
fn a_mount_that_cannot_be_says_why() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let error =
        serve(Arc::new(Nothing::new()), file.path(), &options(Transport::Device), || panic!("mounted"))
            .unwrap_err();
    assert_eq!(error.errno(), libc::EIO);
    assert!(error.to_string().contains("Not a directory"), "{error}");
    let gone = file.path().join("x");
    assert!(
        serve(Arc::new(Nothing::new()), &gone, &options(Transport::Device), || panic!("mounted")).is_err()
    );
}

macro_rules! on_every_transport {
    ($($test:ident),* $(,)?) => {
        mod device {
            $(#[test]
            fn $test() {
                super::$test(super::Transport::Device);
            })*
        }
        mod by_fuser {
            $(#[test]
            fn $test() {
                super::$test(super::Transport::Fuser);
            })*
        }
    };
}

on_every_transport!(
    names_data_and_attributes_go_through,
    a_large_directory_is_listed_whole_and_once,
    large_and_odd_reads_and_writes,
    an_unlinked_file_lives_until_it_is_closed,
    times_before_1970_keep_their_fraction,
    many_threads_of_callers_and_of_the_daemon,
    dirsync_and_what_is_not_offered,
);
