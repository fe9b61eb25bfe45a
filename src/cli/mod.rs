//! The command line: which command is meant, and how it ends.

mod background;
mod log;
mod mount;
mod options;
mod remount;
mod replay;
mod serve;
mod signals;
mod stats;
mod umount;

use clap::{Args, Parser, Subcommand, ValueEnum};
use journalfs::fuse::control::{Client, ShutdownMode};
use journalfs::{Error, Result};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What mount(8) calls a failed mount.
const EXIT_MOUNT_FAILED: u8 = 32;
/// What mount(8) calls a wrong invocation.
const EXIT_USAGE: u8 = 1;
/// How long an unmount waits for the daemon, in seconds.
const UMOUNT_TIMEOUT: u64 = 300;

#[derive(Parser)]
#[command(
    name = "journalfs",
    version,
    about = "Mount and look after ext3 and ext4 file systems in user space"
)]
struct Program {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Mount a device or image
    Mount(MountArgs),
    /// Unmount, and wait until the daemon has let go of the device
    Umount(UmountArgs),
    /// Make everything on a mount durable
    Sync(Dir),
    /// Show what the file system has done
    Stats(StatsArgs),
    /// Replay the journal and finish what was interrupted, without mounting
    Replay(ReplayArgs),
    /// Change mount options of a mounted file system
    Tune(TuneArgs),
    /// Stop a mounted file system as if by a crash (for tests)
    Shutdown(ShutdownArgs),
}

/// What mount(8) passes its helpers; `journalfs mount` takes the same.
#[derive(Args, Clone)]
struct MountArgs {
    /// The block device or image file
    device: PathBuf,
    /// The directory to mount it on
    dir: PathBuf,
    /// Mount options, separated by commas
    #[arg(short = 'o', value_name = "OPTION,...", action = clap::ArgAction::Append)]
    options: Vec<OsString>,
    /// Stay in the foreground; log to stderr
    #[arg(long)]
    foreground: bool,
    /// Tolerate unknown mount options
    #[arg(short = 's')]
    sloppy: bool,
    /// Check the options, but do not mount
    #[arg(short = 'f')]
    fake: bool,
    /// Mount read-only
    #[arg(short = 'r')]
    read_only: bool,
    /// Mount read-write
    #[arg(short = 'w', overrides_with = "read_only")]
    read_write: bool,
    /// Say more
    #[arg(short = 'v', action = clap::ArgAction::Count)]
    verbose: u8,
    /// Ignored (there is no /etc/mtab to write)
    #[arg(short = 'n')]
    no_mtab: bool,
    /// Ignored (mount(8) has entered the name space already)
    #[arg(short = 'N', value_name = "NAMESPACE")]
    namespace: Option<OsString>,
    /// Ignored
    #[arg(short = 't', value_name = "TYPE")]
    fs_type: Option<OsString>,
    /// Serve as the process that a mount in the background started
    #[arg(long, hide = true)]
    daemon: bool,
}

#[derive(Parser)]
#[command(name = "mount.journalfs", version, about = "Mount an ext3 or ext4 file system in user space")]
struct MountProgram {
    #[command(flatten)]
    args: MountArgs,
}

/// What umount(8) passes its helpers. `umount.fuse.journalfs` makes a plain umount wait until the device is free.
#[derive(Parser)]
#[command(name = "umount.journalfs", version, about = "Unmount a journalfs mount and wait for its daemon")]
struct UmountProgram {
    /// Where it is mounted
    dir: PathBuf,
    /// Detach now, though files are open
    #[arg(short = 'l')]
    lazy: bool,
    /// Ignored
    #[arg(short = 'f')]
    force: bool,
    /// Ignored (there is no /etc/mtab to write)
    #[arg(short = 'n')]
    no_mtab: bool,
    /// Ignored
    #[arg(short = 'r')]
    read_only: bool,
    /// Ignored
    #[arg(short = 'v', action = clap::ArgAction::Count)]
    verbose: u8,
    /// Ignored (umount(8) has entered the name space already)
    #[arg(short = 'N', value_name = "NAMESPACE")]
    namespace: Option<OsString>,
    /// Ignored
    #[arg(short = 't', value_name = "TYPE")]
    fs_type: Option<OsString>,
}

#[derive(Args)]
struct Dir {
    /// A directory of the mount
    dir: PathBuf,
}

#[derive(Args)]
struct UmountArgs {
    /// Where it is mounted
    dir: PathBuf,
    /// Detach now, though files are open; the daemon ends when the last one is closed
    #[arg(short, long)]
    lazy: bool,
    /// How long to wait for the daemon, in seconds
    #[arg(long, default_value_t = UMOUNT_TIMEOUT)]
    timeout: u64,
}

#[derive(Args)]
struct StatsArgs {
    /// A directory of the mount
    dir: PathBuf,
    /// As one JSON object
    #[arg(long)]
    json: bool,
    /// Again and again, with what has changed in between
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1")]
    watch: Option<f64>,
}

#[derive(Args)]
struct ReplayArgs {
    /// The block device or image file
    device: PathBuf,
    /// Where the file system begins on it, in bytes
    #[arg(long, default_value = "0", value_parser = size)]
    offset: u64,
}

#[derive(Args)]
struct TuneArgs {
    /// A directory of the mount
    dir: PathBuf,
    /// Options to change, such as batch=adaptive or commit=30
    #[arg(required = true, value_name = "OPTION[=VALUE]")]
    options: Vec<String>,
}

#[derive(Args)]
struct ShutdownArgs {
    /// A directory of the mount
    dir: PathBuf,
    /// What is still written
    #[arg(long, value_enum, default_value = "nologflush")]
    mode: Mode,
}

#[derive(Copy, Clone, ValueEnum)]
enum Mode {
    /// Data and log
    Flush,
    /// The log
    Logflush,
    /// Nothing
    Nologflush,
}

fn size(text: &str) -> Result<u64, String> {
    journalfs::fs::options::parse_size(text)
        .ok_or_else(|| "a number of bytes, such as 1048576 or 1M".to_owned())
}

/// Runs the program that `args` (the program's name first) ask for.
pub(crate) fn run(args: impl Iterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.collect();
    let name =
        args.first().map(Path::new).and_then(Path::file_name).map(OsStr::to_string_lossy).unwrap_or_default();
    if name.starts_with("mount.") {
        return match MountProgram::try_parse_from(&args) {
            Ok(program) => mount::run(&program.args),
            Err(error) => usage(&error),
        };
    }
    if name.starts_with("umount.") {
        return match UmountProgram::try_parse_from(&args) {
            Ok(UmountProgram { dir, lazy, .. }) => {
                ended(umount::run(&UmountArgs { dir, lazy, timeout: UMOUNT_TIMEOUT }), EXIT_MOUNT_FAILED)
            }
            Err(error) => usage(&error),
        };
    }
    let program = match Program::try_parse_from(&args) {
        Ok(program) => program,
        Err(error) => return usage(&error),
    };
    let result = match program.command {
        Command::Mount(args) => return mount::run(&args),
        Command::Umount(args) => umount::run(&args),
        Command::Sync(Dir { dir }) => client(&dir).and_then(|client| client.sync()),
        Command::Stats(args) => stats::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Tune(args) => tune(&args),
        Command::Shutdown(args) => shutdown(&args),
    };
    ended(result, 1)
}

/// The exit code: `failed` with a line on stderr for an error.
fn ended(result: Result<()>, failed: u8) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error);
            ExitCode::from(failed)
        }
    }
}

/// Prints what clap has to say; help and version are no errors.
fn usage(error: &clap::Error) -> ExitCode {
    let _ = error.print();
    ExitCode::from(if error.use_stderr() { EXIT_USAGE } else { 0 })
}

/// One line on stderr.
fn complain(error: &impl std::fmt::Display) {
    eprintln!("journalfs: {}", one_line(&error.to_string()));
}

/// The text on one line, without the numbers that Rust's standard library adds to the system's errors.
fn one_line(text: &str) -> String {
    let mut line = text.trim_end().replace('\n', "; ");
    if let Some((start, end)) =
        line.find(" (os error ").and_then(|at| Some((at, at + line.get(at..)?.find(')')?)))
    {
        line.replace_range(start..=end, "");
    }
    line
}

/// The daemon of the mount at `dir`.
fn client(dir: &Path) -> Result<Client> {
    let failed = |error| Error::io(dir.display().to_string(), error);
    let client = Client::open(dir).map_err(failed)?;
    // Anything but a journalfs mount doesn't know the question.
    client.info().map_err(|error| match error {
        Error::Posix(_) => Error::Usage(format!("{}: not on a journalfs mount", dir.display())),
        error => error,
    })?;
    Ok(client)
}

fn tune(args: &TuneArgs) -> Result<()> {
    let client = client(&args.dir)?;
    for option in args.options.iter().flat_map(|options| options.split(',')) {
        let (name, value) = options::split(option);
        client.tune(name, value)?;
    }
    Ok(())
}

fn shutdown(args: &ShutdownArgs) -> Result<()> {
    client(&args.dir)?.shutdown(match args.mode {
        Mode::Flush => ShutdownMode::Flush,
        Mode::Logflush => ShutdownMode::LogFlush,
        Mode::Nologflush => ShutdownMode::NoLogFlush,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_lines_make_sense_to_clap() {
        use clap::CommandFactory;
        Program::command().debug_assert();
        MountProgram::command().debug_assert();
        UmountProgram::command().debug_assert();
    }

    #[test]
    fn errors_are_one_line_for_people() {
        let error = Error::io("/dev/x", std::io::Error::from_raw_os_error(libc::ENOENT));
        assert_eq!(one_line(&format!("{error}\nagain\n")), "/dev/x: No such file or directory; again");
        assert_eq!(one_line("odd (os error "), "odd (os error");
    }

    #[test]
    fn what_mount_8_passes_is_understood() {
        let line =
            ["mount.fuse.journalfs", "/dev/loop0", "/mnt", "-s", "-f", "-n", "-v", "-r", "-o", "rw,nosuid"];
        let program =
            MountProgram::try_parse_from(line.iter().chain(&["-N", "/proc/1/ns/mnt", "-t", "x"])).unwrap();
        assert!(program.args.sloppy && program.args.fake && program.args.read_only);
        assert_eq!(program.args.options, ["rw,nosuid"]);
    }
}
