//! File systems that are compared.

use crate::run::{exists, run};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

/// A file system and how it is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contender {
    /// Its name in the results.
    pub name: String,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    /// With these mount options.
    Journalfs(String),
    /// The kernel's: its type, what makes it, and mount options.
    Kernel {
        fs_type: &'static str,
        make: &'static [&'static str],
        options: &'static str,
    },
    Fuse2fs,
    /// A FUSE daemon that stores nothing.
    Nothing,
}

/// What the others are compared with.
pub const REFERENCE: &str = "ext3";
/// What shows the limit that FUSE sets.
pub const NOTHING: &str = "nothing";
/// What is to be good.
pub const OURS: &str = "adaptive";
/// The policies, by their names here and as mount options.
pub const POLICIES: [&str; 6] = ["adaptive", "none", "yield", "fixed", "pipeline", "jbd2"];

const EXT3: &[&str] = &["mke2fs", "-q", "-F", "-t", "ext3"];
const EXT4: &[&str] = &["mke2fs", "-q", "-F", "-t", "ext4"];
const XFS: &[&str] = &["mkfs.xfs", "-q", "-f"];

/// All that can be had on this machine.
pub fn all() -> Vec<Contender> {
    let mut all: Vec<Contender> = POLICIES
        .map(|policy| Contender { name: policy.to_owned(), kind: Kind::Journalfs(format!("batch={policy}")) })
        .into();
    let mut kernel = |name: &str, fs_type, make, options| {
        all.push(Contender { name: name.to_owned(), kind: Kind::Kernel { fs_type, make, options } });
    };
    kernel("ext3", "ext3", EXT3, "data=ordered");
    kernel("ext3-journal", "ext3", EXT3, "data=journal");
    kernel("ext4", "ext4", EXT4, "defaults");
    if exists("mkfs.xfs") && known_to_kernel("xfs") {
        kernel("xfs", "xfs", XFS, "defaults");
    }
    if exists("fuse2fs") {
        all.push(Contender { name: "fuse2fs".to_owned(), kind: Kind::Fuse2fs });
    }
    all.push(Contender { name: NOTHING.to_owned(), kind: Kind::Nothing });
    all
}

fn known_to_kernel(fs_type: &str) -> bool {
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    known.split_whitespace().any(|word| word == fs_type)
}

/// Where journalfs's programs are, and on which CPU daemons run.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The directory of `journalfs` and the others.
    pub dir: PathBuf,
    /// Client and daemon run on the first CPU.
    pub pinned: bool,
}

impl Programs {
    fn path(&self, name: &str) -> String {
        self.dir.join(name).to_string_lossy().into_owned()
    }

    /// Runs a program, on the first CPU if everything is to run there.
    pub fn run(&self, line: &[&str]) -> io::Result<String> {
        let mut words = if self.pinned { vec!["taskset", "-c", "0"] } else { Vec::new() };
        words.extend(line);
        let (program, args) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        run(program, args)
    }
}

/// A contender's file system, mounted; unmounted when dropped.
pub struct Mounted<'a> {
    contender: &'a Contender,
    programs: &'a Programs,
    dir: &'a Path,
    daemon: Option<Child>,
}

impl Contender {
    /// Formats the device and mounts it at `dir`.
    pub fn mount<'a>(
        &'a self,
        programs: &'a Programs,
        device: &Path,
        dir: &'a Path,
    ) -> io::Result<Mounted<'a>> {
        let mut daemon = None;
        let (device, at) = (device.to_string_lossy(), dir.to_string_lossy());
        match &self.kind {
            Kind::Journalfs(options) => {
                programs.run(&[&programs.path("mkfs-journalfs"), "-q", "-F", &device])?;
                programs.run(&[&programs.path("journalfs"), "mount", &device, &at, "-o", options])?;
            }
            Kind::Kernel { fs_type, make, options } => {
                run("wipefs", ["-qa", &*device])?;
                programs.run(&[make, &[&*device][..]].concat())?;
                programs.run(&["mount", "-t", fs_type, "-o", options, &device, &at])?;
            }
            Kind::Fuse2fs => {
                programs.run(&[EXT4, &[&*device][..]].concat())?;
                programs.run(&["fuse2fs", &device, &at])?;
            }
            Kind::Nothing => daemon = Some(nothing(programs, dir)?),
        }
        Ok(Mounted { contender: self, programs, dir, daemon })
    }
}

/// Serves nothing at `dir`; returns when it is mounted.
fn nothing(programs: &Programs, dir: &Path) -> io::Result<Child> {
    let before = std::fs::metadata(dir)?.dev();
    let mut command = Command::new(std::env::current_exe()?);
    if programs.pinned {
        command = Command::new("taskset");
        command.args(["-c", "0"]).arg(std::env::current_exe()?);
    }
    let child = command.arg("nothing").arg(dir).spawn()?;
    for _ in 0..500 {
        if std::fs::metadata(dir)?.dev() != before {
            return Ok(child);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Err(io::Error::other("the daemon that stores nothing does not start"))
}

impl Mounted<'_> {
    /// One of the journal's counters, where there are some.
    pub fn journal_count(&self, name: &str) -> Option<u64> {
        let Kind::Journalfs(_) = self.contender.kind else { return None };
        let at = self.dir.to_string_lossy();
        let stats = run(&self.programs.path("journalfs"), ["stats", &*at, "--json"]).ok()?;
        let stats: serde_json::Value = serde_json::from_str(&stats).ok()?;
        stats.pointer(&format!("/journal/{name}"))?.as_u64()
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let at = self.dir.to_string_lossy();
        let result = match self.contender.kind {
            Kind::Journalfs(_) => run(&self.programs.path("journalfs"), ["umount", &*at]),
            Kind::Kernel { .. } | Kind::Fuse2fs | Kind::Nothing => run("umount", [&*at]),
        };
        if let Err(error) = result {
            eprintln!("{error}");
        }
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.wait();
        }
        if self.contender.kind == Kind::Fuse2fs {
            // Its umount returns before it has let go of the device.
            std::thread::sleep(Duration::from_millis(500));
        }
    }
}
