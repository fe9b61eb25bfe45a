//! `mount.journalfs` and `journalfs mount`.

use super::{background, complain, log, options, remount, serve, MountArgs, EXIT_MOUNT_FAILED, EXIT_USAGE};
use journalfs::{Error, Result};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Mounts; returns when the mount is up, or in the foreground when it is over.
pub(super) fn run(args: &MountArgs) -> ExitCode {
    match try_run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if !background::report_failure(args.daemon, &error) {
                if args.daemon {
                    tracing::error!(%error, "the mount has ended");
                }
                complain(&error);
            }
            ExitCode::from(if matches!(error, Error::Usage(_)) { EXIT_USAGE } else { EXIT_MOUNT_FAILED })
        }
    }
}

fn try_run(args: &MountArgs) -> Result<()> {
    let mut list = args.options.clone();
    if args.read_only {
        list.push("ro".into());
    } else if args.read_write {
        list.push("rw".into());
    }
    let mut options = options::parse(&list, args.sloppy)?;
    if args.fake {
        return Ok(());
    }
    if options.remount {
        return remount::run(&args.dir, &options);
    }
    let device = source(&args.device)?;
    options.fuse.source = device.clone().into_os_string();
    if args.daemon || args.foreground {
        log::start(args.daemon, options.debug, args.verbose)?;
        let ready = || background::report_ready(args.daemon);
        return serve::run(&device, &args.dir, options, ready);
    }
    background::start(args)?;
    if args.verbose > 0 {
        println!("{} is mounted on {}", device.display(), args.dir.display());
    }
    Ok(())
}

/// The mount's source as /proc/self/mounts is to show it: as given if that is absolute.
fn source(device: &Path) -> Result<PathBuf> {
    let failed = |error| Error::io(device.display().to_string(), error);
    if device.is_absolute() {
        device.metadata().map_err(failed)?;
        return Ok(device.to_owned());
    }
    device.canonicalize().map_err(failed)
}
