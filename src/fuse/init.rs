//! INIT: what is agreed with the kernel when the connection starts.

use super::options::FuseOptions;
use fuser::{InitFlags, KernelConfig};

/// The largest read or write request. The kernel's own limit (`/proc/sys/fs/fuse/max_pages_limit`) is 256 pages.
pub(super) const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// Readahead, writeback and asynchronous direct I/O requests in flight at once.
const BACKGROUND_MAX: u16 = 64;

/// Asks for what is both offered and wanted.
///
/// Never asked for: `SETXATTR_EXT` (fuser 0.18 then misreads SETXATTR), `AUTO_INVAL_DATA` (nobody but the kernel
/// changes our files), `ATOMIC_O_TRUNC` (opening a running program to read and truncate then
/// truncates it before the kernel says `ETXTBSY`), locks (the kernel does them itself), `NO_OPEN` (an open is where immutable and append-only
/// files are refused).
pub(super) fn negotiate(config: &mut KernelConfig, options: &FuseOptions) {
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
        | InitFlags::FUSE_HANDLE_KILLPRIV_V2;
    if options.acl && options.default_permissions {
        wanted |= InitFlags::FUSE_POSIX_ACL;
    }
    if options.writeback_cache {
        wanted |= InitFlags::FUSE_WRITEBACK_CACHE;
    }
    let offered = wanted & config.capabilities();
    if config.add_capabilities(offered).is_err() {
        tracing::debug!("the kernel offers none of the optional FUSE features");
    }
    // Each of these fails only for values out of range, and then leaves the default, which works too.
    let _ = config.set_max_write(REQUEST_BYTES_MAX);
    let _ = config.set_max_background(BACKGROUND_MAX);
    let _ = config.set_congestion_threshold(BACKGROUND_MAX / 4 * 3);
    let _ = config.set_time_granularity(options.time_granularity);
}
