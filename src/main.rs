//! The `journalfs` program, which is mount.journalfs too when it is called by that name.
#![forbid(unsafe_code)]

mod cli;

fn main() -> std::process::ExitCode {
    cli::run(std::env::args_os())
}
