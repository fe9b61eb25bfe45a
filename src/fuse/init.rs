//! INIT: what is agreed with the kernel when the connection starts.

use super::options::FuseOptions;
use fuser::{InitFlags, KernelConfig};

/// The largest read or write request. The kernel's own limit (`/proc/sys/fs/fuse/max_pages_limit`) is 256 pages.
pub(super) const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// Readahead, writeback and asynchronous direct I/O requests in flight at once.
const BACKGROUND_MAX: u16 = 64;

/// What has been agreed on.
pub(super) struct Agreement {
    /// `FUSE_*` flags, those of `flags2` in the upper half.
    pub(super) flags: u64,
    /// Requests in the background at once.
    pub(super) max_background: u16,
    /// The smallest difference between two timestamps, in nanoseconds.
    pub(super) time_granularity_ns: u32,
}

/// What we want of what the kernel may offer.
///
/// Never asked for: `SETXATTR_EXT` (SETXATTR then has another layout), `AUTO_INVAL_DATA` (nobody but the kernel
/// changes our files), `ATOMIC_O_TRUNC` (opening a running program to read and truncate then
/// truncates it before the kernel says `ETXTBSY`), locks (the kernel does them itself), `NO_OPEN` (an open is where
/// immutable and append-only files are refused).
fn wanted(options: &FuseOptions) -> InitFlags {
    let mut wanted = InitFlags::FUSE_ASYNC_READ
        | InitFlags::FUSE_ASYNC_DIO
        | InitFlags::FUSE_BIG_WRITES
        | InitFlags::FUSE_MAX_PAGES
        // The umask is applied in the file system, which knows about default ACLs.
        | InitFlags::FUSE_DONT_MASK
        | InitFlags::FUSE_PARALLEL_DIROPS
        | InitFlags::FUSE_DO_READDIRPLUS
        | InitFlags::FUSE_READDIRPLUS_AUTO
        | InitFlags::FUSE_CACHE_SYMLINKS
        | InitFlags::FUSE_EXPLICIT_INVAL_DATA
        | InitFlags::FUSE_HAS_IOCTL_DIR
        // File handles (NFS, open_by_handle_at) outlive the kernel's inode: "." and ".." can be looked up.
        | InitFlags::FUSE_EXPORT_SUPPORT
        // Set-user-ID bits are cleared by us: else each write asks for security.capability first.
        | InitFlags::FUSE_HANDLE_KILLPRIV_V2
        | InitFlags::FUSE_INIT_EXT;
    if options.acl && options.default_permissions {
        wanted |= InitFlags::FUSE_POSIX_ACL;
    }
    if options.writeback_cache {
        wanted |= InitFlags::FUSE_WRITEBACK_CACHE;
    }
    wanted
}

/// Answers the kernel's offer.
pub(super) fn agree(offer: u64, options: &FuseOptions) -> Agreement {
    Agreement {
        flags: wanted(options).bits() & offer,
        max_background: BACKGROUND_MAX,
        time_granularity_ns: options.time_granularity.as_nanos().clamp(1, 1_000_000_000) as u32,
    }
}

/// The same for fuser, which answers the kernel itself.
pub(super) fn negotiate(config: &mut KernelConfig, options: &FuseOptions) {
    let offered = wanted(options) & config.capabilities();
    if config.add_capabilities(offered).is_err() {
        tracing::debug!("the kernel offers none of the optional FUSE features");
    }
    // Each of these fails only for values out of range, and then leaves the default, which works too.
    let _ = config.set_max_write(REQUEST_BYTES_MAX);
    let _ = config.set_max_background(BACKGROUND_MAX);
    let _ = config.set_congestion_threshold(BACKGROUND_MAX / 4 * 3);
    let _ = config.set_time_granularity(options.time_granularity);
}
