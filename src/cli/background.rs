//! Going into the background, but only when the mount works.
//!
//! The command starts itself once more and waits for one line from it: that the mount is up, or why
//! it is not. Starting anew, not fork(2), keeps this free of what a fork does to threads and locks.

use super::MountArgs;
use journalfs::{Error, Result};
use nix::unistd;
use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

/// What the daemon says when the mount is up.
const READY: &str = "ready\n";

/// Set in the daemon when its starter has been told.
static REPORTED: AtomicBool = AtomicBool::new(false);

/// Starts the daemon and returns when the mount is up; the error is the daemon's own.
pub(super) fn start(args: &MountArgs) -> Result<()> {
    let failed = |error| Error::io("starting the daemon", error);
    let program = std::env::current_exe().map_err(failed)?;
    journalfs::fuse::inherited::close_on_exec();
    let mut command = Command::new(program);
    command.arg0("journalfs").arg("mount").arg("--daemon");
    for options in &args.options {
        command.arg("-o").arg(options);
    }
    for (given, flag) in [(args.sloppy, "-s"), (args.read_only, "-r"), (args.read_write, "-w")] {
        if given {
            command.arg(flag);
        }
    }
    command.args((0..args.verbose).map(|_| "-v")).arg("--").arg(&args.device).arg(&args.dir);
    let mut daemon = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .map_err(failed)?;
    let mut said = String::new();
    if let Some(mut pipe) = daemon.stdout.take() {
        pipe.read_to_string(&mut said).map_err(failed)?;
    }
    if said == READY {
        return Ok(());
    }
    let status = daemon.wait().map_err(failed)?;
    Err(match said.trim_end() {
        "" => {
            Error::io("the daemon ended before the mount was up", std::io::Error::other(status.to_string()))
        }
        why if status.code() == Some(super::EXIT_USAGE.into()) => Error::Usage(why.to_owned()),
        why => Error::Unsupported(why.to_owned()),
    })
}

/// In the daemon: tells the starter that the mount is up, and leaves its session, terminal and directory.
pub(super) fn report_ready(daemon: bool) {
    if !daemon {
        return;
    }
    // Fails only for a process-group leader, which the daemon is not.
    let _ = unistd::setsid();
    let _ = unistd::chdir("/");
    report(READY);
    match OpenOptions::new().read(true).write(true).open("/dev/null") {
        Ok(null) => {
            let _ = unistd::dup2_stdout(&null);
            let _ = unistd::dup2_stderr(&null);
        }
        Err(error) => tracing::warn!(%error, "/dev/null can't be opened"),
    }
}

/// In the daemon: tells the starter why there is no mount. False if nobody listens (any more).
pub(super) fn report_failure(daemon: bool, error: &Error) -> bool {
    if !daemon || REPORTED.load(Ordering::Acquire) {
        return false;
    }
    report(&error.to_string());
    true
}

fn report(text: &str) {
    REPORTED.store(true, Ordering::Release);
    let mut stdout = std::io::stdout();
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}
