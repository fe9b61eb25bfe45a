//! `journalfs-bench`: measures journalfs beside the kernel's file systems. bench/README.md says how and what.

mod nothing;

use clap::{Args, Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use journalfs_bench::class::{Class, Device, CLASSES};
use journalfs_bench::contender::{self, Contender, Programs};
use journalfs_bench::marks::{fs_mark, THREADS};
use journalfs_bench::results::{Results, Sample};
use journalfs_bench::slow_device::{self, Latency};
use journalfs_bench::{plot, run};
use std::error::Error;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

#[derive(Parser)]
#[command(name = "journalfs-bench", version, about = "Measures journalfs beside the kernel's file systems")]
struct Program {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure (as root)
    Run(RunArgs),
    /// Serve a slow device: one file, `disk`
    Device {
        /// Where to mount it
        dir: PathBuf,
        /// The file with its bytes
        file: PathBuf,
        /// What a read or write takes, in microseconds
        transfer_us: u64,
        /// What a flush takes, in microseconds
        flush_us: u64,
    },
    /// Serve a file system in memory that stores nothing
    Nothing {
        /// Where to mount it
        dir: PathBuf,
        /// Threads that read requests
        #[arg(default_value_t = 1)]
        threads: usize,
    },
}

#[derive(Args)]
struct RunArgs {
    /// Classes of devices
    #[arg(long, value_delimiter = ',', default_value = "array,disk,ram,ram-pinned")]
    classes: Vec<String>,
    /// Contenders; all without it
    #[arg(long, value_delimiter = ',')]
    contenders: Vec<String>,
    /// Numbers of threads
    #[arg(long, value_delimiter = ',', default_values_t = THREADS)]
    threads: Vec<u32>,
    /// How often each is measured
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Part of the files of a full run, in percent
    #[arg(long, default_value_t = 100)]
    scale: u32,
    /// Where journalfs's programs are
    #[arg(long, default_value = "target/release")]
    programs: PathBuf,
    /// Where the results go
    #[arg(long, default_value = "bench/results")]
    results: PathBuf,
}

fn main() -> ExitCode {
    let result: Result<(), Box<dyn Error>> = match Program::parse().command {
        Command::Run(args) => measure(&args),
        Command::Device { dir, file, transfer_us, flush_us } => {
            let us = Duration::from_micros;
            slow_device::serve(&dir, &file, Latency { transfer: us(transfer_us), flush: us(flush_us) })
                .map_err(Into::into)
        }
        Command::Nothing { dir, threads } => nothing::run(&dir, threads).map_err(Into::into),
    };
    if let Err(error) = result {
        eprintln!("journalfs-bench: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn chosen<T: Clone>(all: &[T], names: &[String], name: impl Fn(&T) -> &str) -> Result<Vec<T>, String> {
    names
        .iter()
        .map(|wanted| {
            all.iter()
                .find(|item| name(item) == wanted)
                .cloned()
                .ok_or_else(|| format!("{wanted}: no such one here"))
        })
        .collect()
}

fn measure(args: &RunArgs) -> Result<(), Box<dyn Error>> {
    if !nix::unistd::geteuid().is_root() {
        return Err("measuring mounts file systems: it needs root".into());
    }
    let classes = chosen(&CLASSES, &args.classes, |class| class.name)?;
    let mut contenders = contender::all();
    if !args.contenders.is_empty() {
        contenders = chosen(&contenders, &args.contenders, |contender| &contender.name)?;
    }
    let steps = classes.len() * contenders.len() * args.threads.len() * args.rounds as usize;
    let bar = ProgressBar::new(steps as u64);
    bar.set_style(ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} (about {eta} left) {msg}")?);
    let mut results = Results::default();
    std::fs::create_dir_all(&args.results)?;
    for class in &classes {
        measure_class(args, class, &mut contenders, &bar, &mut results)?;
    }
    bar.finish_and_clear();
    report(args, &classes, &results)
}

fn measure_class(
    args: &RunArgs,
    class: &Class,
    contenders: &mut [Contender],
    bar: &ProgressBar,
    results: &mut Results,
) -> Result<(), Box<dyn Error>> {
    let device = Device::new(class, &std::env::current_exe()?)?;
    let dir = tempfile::tempdir()?;
    let programs = Programs { dir: args.programs.clone(), pinned: class.pinned };
    for round in 1..=args.rounds {
        for contender in &*contenders {
            measure_contender(
                args,
                class,
                (contender, &programs, dir.path()),
                (&device, round),
                bar,
                results,
            )?;
        }
        // Nobody always comes after the same one.
        contenders.rotate_left(1);
        std::fs::write(args.results.join("runs.csv"), results.csv())?;
    }
    Ok(())
}

fn measure_contender(
    args: &RunArgs,
    class: &Class,
    (contender, programs, dir): (&Contender, &Programs, &Path),
    (device, round): (&Device, u32),
    bar: &ProgressBar,
    results: &mut Results,
) -> Result<(), Box<dyn Error>> {
    let mounted = contender.mount(programs, &device.path, dir)?;
    for threads in &args.threads {
        bar.set_message(format!("{} {} {threads}", class.name, contender.name));
        // On memory all run for about as long, whatever the threads.
        let share = if class.latency.is_none() { threads.div_ceil(2) } else { 1 };
        let files = (class.files * args.scale / 100 / share).max(5);
        let counts = || (device.flushes(), mounted.journal_count("commits"));
        let before = counts();
        let rate = fs_mark(programs, dir, *threads, files)?;
        let after = counts();
        let grown = |before: Option<u64>, after: Option<u64>| Some(after?.saturating_sub(before?));
        results.samples.push(Sample {
            class: class.name,
            contender: contender.name.clone(),
            threads: *threads,
            round,
            rate,
            files: files * threads,
            flushes: grown(before.0, after.0),
            commits: grown(before.1, after.1),
        });
        bar.inc(1);
    }
    Ok(())
}

fn report(args: &RunArgs, classes: &[Class], results: &Results) -> Result<(), Box<dyn Error>> {
    let mut text = format!("# fs_mark -S 1 -s 4096 -N 50 -D 64\n\n{}\n", machine());
    for class in classes {
        let _ = write!(text, "Medians of {} rounds.\n\n{}\n", args.rounds, results.table(class));
        plot::plot(results, class, &args.results.join(format!("{}.svg", class.name)))?;
    }
    std::fs::write(args.results.join("summary.md"), &text)?;
    std::fs::write(args.results.join("runs.csv"), results.csv())?;
    println!("{text}");
    Ok(())
}

/// What this was measured on.
fn machine() -> String {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ")).map(|(_, m)| m);
    let kernel = run::run("uname", ["-sr"]).unwrap_or_default();
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{} CPUs ({}), {}", cpus, model.unwrap_or("unknown"), kernel.trim())
}
