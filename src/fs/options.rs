//! The mount options that are the file system's own, as ext4(5) means them where it has them.
//! What is between the kernel and the front-end (`nosuid`, `allow_other`, ...) is not here.

use crate::error::{Error, Result};
pub use crate::journal::batch::{BatchPolicy, BatchTuning};
use std::time::Duration;

words!(
    /// What is promised about file contents (`data=`).
    DataMode for "data" {
        /// Data is on the medium before the metadata that reaches it.
        #[default]
        Ordered = "ordered",
        /// Data goes through the journal.
        Journal = "journal",
        /// Data may follow later: after a crash a file can show stale bytes.
        Writeback = "writeback",
    }
);
words!(
    /// What follows when a corrupt structure is met (`errors=`).
    ErrorsPolicy for "errors" {
        /// Note it and go on.
        #[default]
        Continue = "continue",
        /// Accept no more changes.
        RemountReadOnly = "remount-ro",
        /// Abort the connection to the kernel.
        Panic = "panic",
    }
);
words!(
    /// Where the blocks of a deleted inode are freed (`inactivate=`).
    InactivatePolicy for "inactivate" {
        /// In the call that dropped the last reference.
        Inline = "inline",
        /// In the background.
        Deferred = "deferred",
        /// Small ones inline, large ones in the background.
        #[default]
        Adaptive = "adaptive",
    }
);

/// When reading a file updates its access time.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum AtimePolicy {
    /// If it is older than the last change, or than a day (`relatime`).
    #[default]
    Relatime,
    /// Always (`strictatime`).
    Strict,
    /// Never (`noatime`).
    Never,
}

/// What can be changed while mounted (`journalfs tune`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tuning {
    /// `batch=` and its numbers.
    pub batch: BatchTuning,
    /// `commit=`: the age at which a transaction commits though nobody waits for it.
    pub commit: Duration,
    /// `cache_size=` in bytes; without it the machine decides.
    pub cache_size: Option<u64>,
    /// `inactivate=`
    pub inactivate: InactivatePolicy,
    /// `discard`: freed blocks are discarded as soon as that is safe.
    pub discard: bool,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            batch: BatchTuning::default(),
            commit: DEFAULT_COMMIT,
            cache_size: None,
            inactivate: InactivatePolicy::default(),
            discard: false,
        }
    }
}

const DEFAULT_COMMIT: Duration = Duration::from_secs(5);

impl Tuning {
    /// Refuses what makes no sense together.
    pub fn check(&self) -> Result<()> {
        if self.batch.min_time > self.batch.max_time {
            return Err(Error::Usage("min_batch_time is greater than max_batch_time".to_owned()));
        }
        Ok(())
    }

    /// Takes one option; false if it isn't one of these.
    pub fn set(&mut self, name: &str, value: Option<&str>) -> Result<bool> {
        match name {
            "batch" => self.batch.policy = needed(name, value)?.parse()?,
            "batch_delay" => self.batch.delay = microseconds(name, value)?,
            "min_batch_time" => self.batch.min_time = microseconds(name, value)?,
            "max_batch_time" => self.batch.max_time = microseconds(name, value)?,
            "commit" => {
                let seconds: u32 = number(name, value)?;
                self.commit = match seconds {
                    0 => DEFAULT_COMMIT,
                    seconds => Duration::from_secs(seconds.into()),
                };
            }
            "cache_size" => {
                let bytes = size(name, value)?;
                self.cache_size = (bytes > 0).then_some(bytes);
            }
            "inactivate" => self.inactivate = needed(name, value)?.parse()?,
            "discard" => self.discard = flag(name, value)?,
            "nodiscard" => self.discard = !flag(name, value)?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// How a file system is mounted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountOptions {
    /// `ro`: nothing is changed, except that a dirty journal is replayed.
    pub read_only: bool,
    /// `noload`, `norecovery`: the journal is not looked at (implies `ro`).
    pub noload: bool,
    /// `nojournal`: write without a journal where there is none, with no promise for a crash.
    pub nojournal: bool,
    /// No option: the journal, which is empty, is left alone, with no promise for a crash. For a new file system that is
    /// being filled and that nobody has yet.
    pub bypass_journal: bool,
    /// `data=`
    pub data: DataMode,
    /// `barrier=`: whether the device is told to flush its cache.
    pub barrier: bool,
    /// `journal_async_commit`: commits of one flush.
    pub async_commit: bool,
    /// `errors=`
    pub errors: ErrorsPolicy,
    /// No `errors=` was given, so that the superblock's (`s_errors`) counts.
    pub errors_from_superblock: bool,
    /// `acl`: POSIX ACLs.
    pub acl: bool,
    /// `user_xattr`: extended attributes in `user.`.
    pub user_xattr: bool,
    /// `offset=`: where the file system begins on the device, in bytes.
    pub offset: u64,
    /// `fakeroot`: everything is allowed, as if by root.
    pub fakeroot: bool,
    /// `relatime`, `strictatime`, `noatime`
    pub atime: AtimePolicy,
    /// `nodiratime`: no access times for directories.
    pub nodiratime: bool,
    /// `sync`: every change is durable before it returns.
    pub sync: bool,
    /// `dirsync`: changes of directories are durable before they return.
    pub dirsync: bool,
    /// `direct`, `nodirect`: whether the device is used past the page cache.
    pub direct: bool,
    /// What can also be changed later.
    pub tuning: Tuning,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            noload: false,
            nojournal: false,
            bypass_journal: false,
            data: DataMode::default(),
            barrier: true,
            async_commit: true,
            errors: ErrorsPolicy::default(),
            errors_from_superblock: true,
            acl: true,
            user_xattr: true,
            offset: 0,
            fakeroot: false,
            atime: AtimePolicy::default(),
            nodiratime: false,
            sync: false,
            dirsync: false,
            direct: true,
            tuning: Tuning::default(),
        }
    }
}

impl MountOptions {
    /// Takes one option; false if it isn't the file system's.
    pub fn set(&mut self, name: &str, value: Option<&str>) -> Result<bool> {
        match name {
            "ro" => self.read_only = flag(name, value)?,
            "rw" => self.read_only = !flag(name, value)?,
            "noload" | "norecovery" => self.noload = flag(name, value)?,
            "nojournal" => self.nojournal = flag(name, value)?,
            "data" => self.data = needed(name, value)?.parse()?,
            "barrier" => self.barrier = value.is_none() || number::<u32>(name, value)? != 0,
            "nobarrier" => self.barrier = !flag(name, value)?,
            "journal_async_commit" => self.async_commit = flag(name, value)?,
            "nojournal_async_commit" => self.async_commit = !flag(name, value)?,
            "errors" => {
                self.errors = needed(name, value)?.parse()?;
                self.errors_from_superblock = false;
            }
            "acl" => self.acl = flag(name, value)?,
            "noacl" => self.acl = !flag(name, value)?,
            "user_xattr" => self.user_xattr = flag(name, value)?,
            "nouser_xattr" => self.user_xattr = !flag(name, value)?,
            "offset" => self.offset = size(name, value)?,
            "fakeroot" => self.fakeroot = flag(name, value)?,
            "atime" | "relatime" | "norelatime" | "nostrictatime" => {
                flag(name, value)?;
                self.atime = AtimePolicy::Relatime;
            }
            "noatime" => {
                flag(name, value)?;
                self.atime = AtimePolicy::Never;
            }
            "strictatime" => {
                flag(name, value)?;
                self.atime = AtimePolicy::Strict;
            }
            "nodiratime" => self.nodiratime = flag(name, value)?,
            "diratime" => self.nodiratime = !flag(name, value)?,
            "sync" => self.sync = flag(name, value)?,
            "async" => self.sync = !flag(name, value)?,
            "dirsync" => self.dirsync = flag(name, value)?,
            "direct" => self.direct = flag(name, value)?,
            "nodirect" => self.direct = !flag(name, value)?,
            _ => return self.tuning.set(name, value),
        }
        Ok(true)
    }

    /// What several options say together; to be called when all are set.
    pub fn finish(&mut self) -> Result<()> {
        self.read_only |= self.noload;
        self.tuning.check()
    }
}

/// A flag, which takes no value: always true.
fn flag(name: &str, value: Option<&str>) -> Result<bool> {
    match value {
        None => Ok(true),
        Some(value) => Err(Error::Usage(format!("mount option {name} takes no value ({value})"))),
    }
}

fn needed<'a>(name: &str, value: Option<&'a str>) -> Result<&'a str> {
    value
        .filter(|value| !value.is_empty())
        .ok_or_else(|| Error::Usage(format!("mount option {name} needs a value: {name}=...")))
}

fn bad_value(name: &str, value: &str) -> Error {
    Error::Usage(format!("mount option {name}={value}: the value makes no sense"))
}

fn number<T: std::str::FromStr>(name: &str, value: Option<&str>) -> Result<T> {
    let value = needed(name, value)?;
    value.parse().map_err(|_| bad_value(name, value))
}

/// A time in microseconds, or with a unit: `250`, `4ms`, `1s`.
fn microseconds(name: &str, value: Option<&str>) -> Result<Duration> {
    let value = needed(name, value)?;
    let digits = value.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let count: u64 = digits.parse().map_err(|_| bad_value(name, value))?;
    let unit = match value.get(digits.len()..) {
        Some("" | "us") => 1,
        Some("ms") => 1000,
        Some("s") => 1_000_000,
        _ => return Err(bad_value(name, value)),
    };
    // An hour is more than anybody means; what is longer is a slip.
    let longest = 3_600_000_000;
    count
        .checked_mul(unit)
        .filter(|count| *count <= longest)
        .map(Duration::from_micros)
        .ok_or_else(|| bad_value(name, value))
}

fn size(name: &str, value: Option<&str>) -> Result<u64> {
    let value = needed(name, value)?;
    parse_size(value).ok_or_else(|| bad_value(name, value))
}

/// A number of bytes, with K, M, G or T for powers of 1024 (`256M`, `1GiB`), or in hex (`0x100000`).
pub fn parse_size(text: &str) -> Option<u64> {
    if let Some(digits) = text.strip_prefix("0x") {
        return u64::from_str_radix(digits, 16).ok();
    }
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text.get(digits.len()..)?.to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        "T" | "TB" | "TIB" => 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(options: &[&str]) -> Result<MountOptions> {
        let mut parsed = MountOptions::default();
        for option in options {
            let (name, value) = match option.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (*option, None),
            };
            assert!(parsed.set(name, value)?, "{option} is not known");
        }
        parsed.finish()?;
        Ok(parsed)
    }

    #[test]
    fn options_mean_what_they_say() {
        let options = parse(&[
            "ro",
            "noload",
            "data=journal",
            "batch=fixed",
            "batch_delay=4ms",
            "min_batch_time=10",
            "max_batch_time=20",
            "commit=30",
            "nobarrier",
            "nojournal_async_commit",
            "errors=remount-ro",
            "noacl",
            "nouser_xattr",
            "cache_size=256M",
            "inactivate=inline",
            "offset=1MiB",
            "fakeroot",
            "noatime",
            "sync",
            "dirsync",
            "discard",
        ])
        .unwrap();
        let want = MountOptions {
            read_only: true,
            noload: true,
            nojournal: false,
            bypass_journal: false,
            data: DataMode::Journal,
            barrier: false,
            async_commit: false,
            errors: ErrorsPolicy::RemountReadOnly,
            errors_from_superblock: false,
            acl: false,
            user_xattr: false,
            offset: 1 << 20,
            fakeroot: true,
            atime: AtimePolicy::Never,
            nodiratime: false,
            sync: true,
            dirsync: true,
            direct: true,
            tuning: Tuning {
                batch: BatchTuning {
                    policy: BatchPolicy::Fixed,
                    delay: Duration::from_millis(4),
                    min_time: Duration::from_micros(10),
                    max_time: Duration::from_micros(20),
                },
                commit: Duration::from_secs(30),
                cache_size: Some(256 << 20),
                inactivate: InactivatePolicy::Inline,
                discard: true,
            },
        };
        assert_eq!(options, want);
    }

    #[test]
    fn the_last_of_two_opposites_counts() {
        assert_eq!(
            parse(&["ro", "rw", "barrier=0", "barrier=1", "commit=0"]).unwrap(),
            MountOptions::default()
        );
        assert!(parse(&["rw", "norecovery"]).unwrap().read_only);
        assert!(!parse(&["barrier", "barrier=0"]).unwrap().barrier);
    }

    #[test]
    fn nonsense_is_refused_with_its_name() {
        for bad in [
            "batch=fast",
            "batch",
            "batch=",
            "commit=x",
            "commit=-1",
            "data=none",
            "errors=ignore",
            "ro=1",
            "cache_size=12Q",
            "offset=99999999999T",
            "batch_delay=3weeks",
            "max_batch_time=99999999s",
            "barrier=maybe",
        ] {
            let error = parse(&[bad]).unwrap_err().to_string();
            assert!(error.contains(bad.split('=').next().unwrap()), "{bad}: {error}");
        }
        assert!(parse(&["min_batch_time=1s"]).is_err());
        assert!(!MountOptions::default().set("frobnicate", None).unwrap());
    }

    #[test]
    fn sizes_have_units() {
        for (text, bytes) in [("0", 0), ("4096", 4096), ("4k", 4096), ("2GiB", 2 << 30), ("0x1000", 4096)] {
            assert_eq!(parse_size(text), Some(bytes));
        }
        for bad in ["", "K", "1.5M", "-1", "1X", "18446744073709551616", "17000000T"] {
            assert_eq!(parse_size(bad), None, "{bad}");
        }
    }
}
