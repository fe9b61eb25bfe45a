//! `journalfs umount`: returns when the device is free, which umount(8) of a FUSE mount does not.

use super::UmountArgs;
use journalfs::device::lock::{DeviceLock, Exclusion};
use journalfs::fuse::control::{Client, Info};
use journalfs::fuse::mount::unmount;
use journalfs::{Error, Result};
use std::path::Path;
use std::time::{Duration, Instant};

const POLL: Duration = Duration::from_millis(5);

pub(super) fn run(args: &UmountArgs) -> Result<()> {
    let dir = std::path::absolute(&args.dir).map_err(|e| Error::io(args.dir.display().to_string(), e))?;
    let Some(info) = prepare(&dir)? else {
        // The daemon has died; there is nothing to wait for.
        return unmount(&dir, true);
    };
    unmount(&dir, args.lazy)?;
    if args.lazy {
        return Ok(());
    }
    wait_for(&info, Duration::from_secs(args.timeout))
}

/// Finds the daemon, and makes everything durable while it is sure to listen. `None` for a dead mount.
/// Holds nothing of the mount open afterwards.
fn prepare(dir: &Path) -> Result<Option<Info>> {
    match Client::open(dir) {
        Ok(_) => {}
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => return Ok(None),
        Err(error) => return Err(Error::io(dir.display().to_string(), error)),
    }
    let client = super::client(dir)?;
    let info = client.info()?;
    if let Err(error) = client.sync() {
        // A file system that has stopped after an error must still be unmounted.
        super::complain(&error);
    }
    Ok(Some(info))
}

fn wait_for(info: &Info, timeout: Duration) -> Result<()> {
    let Some(pid) = info.pid_here() else {
        let exclusion = if info.read_only { Exclusion::Shared } else { Exclusion::Exclusive };
        return DeviceLock::acquire(&info.device, exclusion, timeout).map(drop);
    };
    let deadline = Instant::now() + timeout;
    while is_alive(pid) {
        if Instant::now() >= deadline {
            let why = format!(
                "{} is unmounted, but the daemon (process {pid}) has not ended",
                info.device.display()
            );
            return Err(Error::Unsupported(why));
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}

/// Whether the process has not ended; one whose parent has yet to take notice has.
fn is_alive(pid: u32) -> bool {
    // The state is the first field behind the command's name, which may hold anything but is in brackets.
    let stat = std::fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.iter().rposition(|byte| *byte == b')').and_then(|at| stat.get(at + 2));
    !matches!(state, None | Some(b'Z' | b'X'))
}

#[cfg(test)]
mod tests {
    use super::is_alive;

    #[test]
    fn a_process_that_nobody_has_waited_for_yet_is_not_alive() {
        assert!(is_alive(std::process::id()));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let seen_dead = (0..1000).any(|_| {
            std::thread::sleep(super::POLL);
            !is_alive(child.id())
        });
        child.wait().unwrap();
        assert!(seen_dead, "the child is seen as alive");
    }
}
