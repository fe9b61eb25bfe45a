//! `-o remount`: changes the VFS's flags of a mount that is there.

use super::options::Options;
use journalfs::{Error, Result};
use nix::mount::MsFlags;
use std::path::Path;

/// Gives the mount at `dir` the flags in `options`. Everything is durable before it becomes read-only.
pub(super) fn run(dir: &Path, options: &Options) -> Result<()> {
    let client = super::client(dir)?;
    if client.info()?.read_only && !options.fs.read_only {
        let why = format!("{}: was mounted read-only; unmount it and mount it read-write", dir.display());
        return Err(Error::Unsupported(why));
    }
    let mut flags = MsFlags::MS_REMOUNT;
    for (wanted, flag) in [
        (options.fuse.read_only, MsFlags::MS_RDONLY),
        (options.fuse.nosuid, MsFlags::MS_NOSUID),
        (options.fuse.nodev, MsFlags::MS_NODEV),
        (options.fuse.noexec, MsFlags::MS_NOEXEC),
        (options.fuse.noatime, MsFlags::MS_NOATIME),
        (options.fuse.sync, MsFlags::MS_SYNCHRONOUS),
        (options.fuse.dirsync, MsFlags::MS_DIRSYNC),
    ] {
        flags.set(flag, wanted);
    }
    let none: Option<&str> = None;
    nix::mount::mount(none, dir, none, flags, none)
        .map_err(|errno| Error::io(format!("remounting {}", dir.display()), errno.into()))?;
    if options.fuse.read_only {
        client.sync()?;
    }
    Ok(())
}
