//! mkfs.journalfs: makes an ext3 or ext4 file system on a block device or in an image file.
#![forbid(unsafe_code)]

mod cli;

use clap::Parser;
use cli::{Args, Target};
use journalfs::device::lock::Exclusion;
use journalfs::device::{self, Device, OpenOptions, SharedDevice};
use mkfs::{probe, Layout, Options};
use std::io::{BufRead, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

/// How long a device's last user may take to let go of it.
const WAIT: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mkfs.journalfs: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<(), String> {
    let (mut options, target) = args.options()?;
    let created = prepare_file(args, &options, &target)?;
    let opened = open(args, &target);
    let result = opened.and_then(|opened| {
        make(args, &mut options, &target, &*opened.device, created)?;
        fill(args, opened.device)
    });
    if result.is_err() && created {
        // Nothing of a file that was made for a file system that was not. (If that fails too, the first error matters.)
        let _ = std::fs::remove_file(&args.device);
    }
    result
}

/// Makes the image file, or makes it longer, if a size is given. Whether it is new.
fn prepare_file(args: &Args, options: &Options, target: &Target) -> Result<bool, String> {
    let shown = args.device.display();
    let failed = |error| format!("{shown}: {error}");
    let (existing, size) = (std::fs::metadata(&args.device), options.size_bytes);
    let size = match (&existing, size) {
        (Err(error), None) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(format!("{shown} does not exist; to make it, give a size"));
        }
        (Err(error), _) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(format!("{shown}: {error}"))
        }
        (_, None) => return Ok(false),
        (_, Some(size)) => {
            size.checked_add(target.offset).ok_or_else(|| format!("{shown}: the size is too large"))?
        }
    };
    match existing {
        Ok(metadata) if !metadata.is_file() || metadata.len() >= size || args.dry_run => Ok(false),
        Ok(_) => {
            let file = std::fs::OpenOptions::new().write(true).open(&args.device).map_err(failed)?;
            file.set_len(size).map_err(failed)?;
            Ok(false)
        }
        Err(_) if args.dry_run => Err(format!("{shown} does not exist")),
        Err(_) => {
            let file = std::fs::OpenOptions::new().write(true).create_new(true).open(&args.device);
            file.and_then(|file| file.set_len(size)).map_err(failed)?;
            Ok(true)
        }
    }
}

fn open(args: &Args, target: &Target) -> Result<device::OpenDevice, String> {
    let options = OpenOptions {
        read_only: args.dry_run,
        offset: target.offset,
        direct: false,
        wait: WAIT,
        exclusion: args.dry_run.then_some(Exclusion::None),
    };
    device::open(&args.device, &options).map_err(|error| error.to_string())
}

fn make(
    args: &Args,
    options: &mut Options,
    target: &Target,
    device: &dyn Device,
    created: bool,
) -> Result<(), String> {
    let bytes = device.size_bytes();
    let wanted = options.size_bytes.unwrap_or(bytes);
    if wanted > bytes && !args.dry_run {
        return Err(format!("{} has only {bytes} bytes, not {wanted}", args.device.display()));
    }
    let plan = mkfs::plan(bytes, options).map_err(|error| error.to_string())?;
    if args.dry_run {
        report(args, &plan);
        return Ok(());
    }
    if args.force == 0 {
        confirm(args, device)?;
    }
    // A hole in a file reads as zeroes; a discarded block device need not.
    let is_file = args.device.metadata().is_ok_and(|metadata| metadata.is_file());
    let discarded = target.discard && device.discard(0, wanted.min(bytes)).is_ok();
    options.prezeroed |= created || discarded && is_file;
    let layout = mkfs::format(device, options).map_err(|error| error.to_string())?;
    report(args, &layout);
    Ok(())
}

/// Fills the new file system with what is in a directory (`-d`).
fn fill(args: &Args, device: SharedDevice) -> Result<(), String> {
    let Some(directory) = args.directory.as_deref().filter(|_| !args.dry_run) else { return Ok(()) };
    let image = std::fs::metadata(&args.device).ok();
    let filled = mkfs::populate(device, directory, image.as_ref()).map_err(|failure| failure.to_string())?;
    if !args.quiet {
        println!("Filled from {}: {filled}", directory.display());
    }
    Ok(())
}

/// Asks before something else is overwritten, or refuses where nobody can be asked.
fn confirm(args: &Args, device: &dyn Device) -> Result<(), String> {
    let Some(contents) = probe::contents(device) else { return Ok(()) };
    let found = format!("{} contains {contents}", args.device.display());
    if !std::io::stdin().is_terminal() {
        return Err(format!("{found}; -F overwrites it"));
    }
    print!("{found}\nOverwrite it? (y,N) ");
    let mut answer = String::new();
    let asked = std::io::stdout().flush().and_then(|()| std::io::stdin().lock().read_line(&mut answer));
    match (asked, answer.trim()) {
        (Ok(_), "y" | "Y" | "yes") => Ok(()),
        _ => Err("nothing was changed".to_owned()),
    }
}

fn report(args: &Args, layout: &Layout) {
    for note in &layout.notes {
        eprintln!("mkfs.journalfs: {note}");
    }
    if args.quiet {
        return;
    }
    let (s, g) = (&layout.superblock, &layout.geometry);
    let verb = if args.dry_run { "Would make" } else { "Made" };
    println!(
        "{verb} a file system of {} blocks of {} bytes and {} inodes",
        s.blocks_count, g.block_bytes, s.inodes_count
    );
    println!("UUID: {}", uuid::Uuid::from_bytes(s.uuid));
    if !layout.journal.is_empty() {
        let blocks: u64 = layout.journal.iter().map(|piece| piece.len as u64).sum();
        println!("Journal: {blocks} blocks");
    }
    let backups: Vec<String> =
        g.backup_groups().map(|group| g.group_first_block(group).to_string()).collect();
    if !backups.is_empty() {
        println!("Superblock copies at: {}", backups.join(", "));
    }
    if args.verbose {
        println!("Features: {}", s.features);
        println!(
            "Groups: {} of {} blocks and {} inodes",
            g.group_count, g.blocks_per_group, g.inodes_per_group
        );
        println!("Reserved blocks: {}", s.r_blocks_count);
    }
}
