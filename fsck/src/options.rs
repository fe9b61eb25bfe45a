//! The command line, as fsck(8) and e2fsck users know it.

use clap::{ArgGroup, Parser};
use std::path::PathBuf;

/// Checks an ext3 or ext4 file system: replays its journal, then verifies its structures.
#[derive(Parser, Debug, Clone)]
#[command(name = "fsck.journalfs", version, disable_version_flag = true)]
#[command(group = ArgGroup::new("mode").args(["preen", "no", "yes"]))]
pub(crate) struct Options {
    /// Do what is safe without asking (what boot scripts use).
    #[arg(short = 'p', visible_short_alias = 'a')]
    pub(crate) preen: bool,
    /// Change nothing; the journal is replayed in memory only.
    #[arg(short = 'n')]
    pub(crate) no: bool,
    /// Answer every question with yes.
    #[arg(short = 'y')]
    pub(crate) yes: bool,
    /// Check even if the file system was unmounted cleanly.
    #[arg(short = 'f')]
    pub(crate) force: bool,
    /// Say what is done.
    #[arg(short = 'v')]
    pub(crate) verbose: bool,
    /// Say nothing when nothing is wrong.
    #[arg(short = 'q')]
    pub(crate) quiet: bool,
    /// Write progress ("pass done total device") to this file descriptor; 0 draws it on the terminal.
    #[arg(short = 'C', value_name = "FD", allow_negative_numbers = true)]
    pub(crate) progress: Option<i32>,
    /// Use the superblock copy in this block.
    #[arg(short = 'b', value_name = "BLOCK")]
    pub(crate) superblock: Option<u64>,
    /// The block size that -b counts in.
    #[arg(short = 'B', value_name = "BYTES")]
    pub(crate) block_bytes: Option<u32>,
    /// Print the version.
    #[arg(short = 'V', action = clap::ArgAction::Version)]
    version: Option<bool>,
    /// The image file or block device.
    pub(crate) device: PathBuf,
}

impl Options {
    /// Whether the device is left as it is: -n, or a look through a copy of the superblock.
    pub(crate) fn reads_only(&self) -> bool {
        self.no || self.superblock.is_some()
    }

    /// The device as messages name it.
    pub(crate) fn name(&self) -> String {
        self.device.display().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Options, clap::Error> {
        Options::try_parse_from([&["fsck.journalfs"], args].concat())
    }

    #[test]
    fn arguments_of_fsck_8_are_understood() {
        let options = parse(&["-a", "-C0", "-f", "image"]).unwrap();
        assert!(options.preen && options.force && !options.reads_only());
        assert_eq!(options.progress, Some(0));
        assert_eq!(parse(&["-C", "-7", "image"]).unwrap().progress, Some(-7));
        assert!(parse(&["-n", "-v", "-b", "32768", "-B", "4096", "image"]).unwrap().reads_only());
    }

    #[test]
    fn contradictions_and_nonsense_are_refused() {
        for args in
            [&["-n", "-y", "image"][..], &["-p", "-n", "image"], &["-p"], &["-x", "image"], &["a", "b"]]
        {
            assert!(parse(args).is_err(), "{args:?}");
        }
    }
}
