//! Where the log goes: stderr in the foreground, syslog (and with it the journal) in the background.

use journalfs::{Error, Result};
use std::io::IsTerminal;
use std::panic;
use syslog_tracing::{Facility, Options, Syslog};
use tracing_subscriber::EnvFilter;

/// Sets up logging: `RUST_LOG`, or what `-o debug` and `-v` ask for; by default warnings only.
pub(super) fn start(daemon: bool, debug: bool, verbose: u8) -> Result<()> {
    let level = match (debug, verbose) {
        (true, _) | (_, 2..) => "debug",
        (_, 1) => "info",
        _ => "warn",
    };
    let filter = match std::env::var("RUST_LOG") {
        Ok(filter) if !filter.is_empty() => {
            EnvFilter::try_new(filter).map_err(|error| Error::Usage(format!("RUST_LOG: {error}")))?
        }
        _ => EnvFilter::new(format!("warn,journalfs={level}")),
    };
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_target(debug);
    let syslog = daemon.then(|| Syslog::new(c"journalfs", Options::LOG_PID, Facility::Daemon)).flatten();
    match syslog {
        Some(syslog) => {
            subscriber.with_ansi(false).without_time().with_level(false).with_writer(syslog).init();
        }
        None => subscriber.with_ansi(std::io::stderr().is_terminal()).with_writer(std::io::stderr).init(),
    }
    stop_on_panic();
    Ok(())
}

/// A thread that panics may leave what the others see half changed. Rather than write that to the disk, the
/// daemon ends there and then: the journal is made for that.
fn stop_on_panic() {
    let default = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        tracing::error!("{info}");
        default(info);
        std::process::abort();
    }));
}
