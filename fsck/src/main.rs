//! fsck.journalfs: replays the journal of an ext3 or ext4 file system and verifies its structures.
//!
//! It never calls a file system clean that it did not look at: what was not checked is said. Problems other
//! than those a journal's replay ends are reported, not repaired, and make the exit status 4.
#![forbid(unsafe_code)]

mod blocks;
mod check;
mod groups;
mod image;
mod index;
mod journal;
mod open;
mod options;
mod orphans;
mod pass1;
mod pass2;
mod pass3;
mod pass4;
mod pass5;
mod paths;
mod progress;
mod report;
mod resize;
mod run;
mod usage;

use clap::Parser;
use options::Options;
use report::exit;
use std::process::ExitCode;

fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { exit::USAGE } else { 0 });
        }
    };
    cancel_on_signals();
    match run::run(&options) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("fsck.journalfs: {}: {error}", options.name());
            ExitCode::from(exit::OPERATIONAL)
        }
    }
}

/// Ends the check with the status for it when the user stops it. Everything that is written can be
/// interrupted at any time: a journal that was half replayed is replayed again.
fn cancel_on_signals() {
    use nix::sys::signal::{SigSet, Signal};
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGTERM);
    if signals.thread_block().is_ok() {
        std::thread::spawn(move || {
            if signals.wait().is_ok() {
                eprintln!("fsck.journalfs: stopped before the end");
                std::process::exit(exit::CANCELLED as i32);
            }
        });
    }
}
