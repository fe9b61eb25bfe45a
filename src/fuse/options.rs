//! How a file system is mounted, as far as the kernel's side of it goes.

use std::ffi::OsString;
use std::time::Duration;

/// The kernel's longest useful cache lifetime: the daemon owns the image, so nothing changes behind
/// the kernel's back and what it has cached stays right until it changes it itself.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// How requests are read and answered.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum Transport {
    /// Our own reading and writing of `/dev/fuse`.
    #[default]
    Device,
    /// fuser's. Its version 0.18 ends the mount when a program sets a time of `i64::MIN` seconds, and knows
    /// no birth times; otherwise both do the same.
    Fuser,
}

/// What [`super::serve`] asks of the kernel.
#[derive(Clone, Debug)]
pub struct FuseOptions {
    /// The mount's source as `/proc/self/mounts` shows it: the device's or image's path.
    pub source: OsString,
    /// The type is `fuse.` and this.
    pub subtype: String,
    /// Users other than the one who mounts may use the mount.
    pub allow_other: bool,
    /// The kernel checks permissions by mode (and ACL); without it everything is allowed to all who
    /// may use the mount, as under fakeroot.
    pub default_permissions: bool,
    /// POSIX ACLs are in force (needs `default_permissions`, which the kernel implies with them).
    pub acl: bool,
    /// Mount read-only.
    pub read_only: bool,
    /// Ignore set-user-ID and set-group-ID bits and file capabilities.
    pub nosuid: bool,
    /// Device nodes can't be opened.
    pub nodev: bool,
    /// Nothing can be executed.
    pub noexec: bool,
    /// Don't update access times.
    pub noatime: bool,
    /// Every write is followed by an fsync (the kernel sends it).
    pub sync: bool,
    /// Changes of directories are durable before they are answered.
    pub dirsync: bool,
    /// How requests are read and answered.
    pub transport: Transport,
    /// Threads that read requests from the kernel. One is fastest for small operations.
    pub threads: usize,
    /// Threads for requests that may wait for the device.
    pub workers: usize,
    /// Let the kernel keep written data in its page cache and send it later.
    pub writeback_cache: bool,
    /// How long the kernel may keep a name.
    pub entry_timeout: Duration,
    /// How long the kernel may keep an inode's attributes.
    pub attr_timeout: Duration,
    /// How long the kernel may remember that a name does not exist.
    pub negative_timeout: Duration,
    /// The smallest difference between two timestamps: 1 ns, or 1 s with 128-byte inodes.
    pub time_granularity: Duration,
    /// Readahead window in bytes, where the daemon may set it (root); 0 leaves the kernel's.
    pub readahead_bytes: u32,
}

impl Default for FuseOptions {
    fn default() -> Self {
        Self {
            source: "journalfs".into(),
            subtype: "journalfs".into(),
            allow_other: false,
            default_permissions: false,
            acl: false,
            read_only: false,
            nosuid: false,
            nodev: false,
            noexec: false,
            noatime: false,
            sync: false,
            dirsync: false,
            transport: Transport::default(),
            threads: 1,
            workers: 8,
            writeback_cache: false,
            entry_timeout: FOREVER,
            attr_timeout: FOREVER,
            negative_timeout: FOREVER,
            time_granularity: Duration::from_nanos(1),
            readahead_bytes: 1 << 20,
        }
    }
}
