//! mkfs.journalfs's command line.

use clap::Parser;
use mkfs::options::parse_features;
use mkfs::{JournalSize, Options, Profile};
use std::path::PathBuf;
use std::str::FromStr;

/// Makes an ext3 or ext4 file system with a journal.
#[derive(Parser, Debug)]
#[command(name = "mkfs.journalfs", version, disable_version_flag = true)]
pub(crate) struct Args {
    /// Where the defaults come from: journalfs, ext3 or ext4
    #[arg(short = 't', value_name = "PROFILE", default_value = "journalfs")]
    profile: String,
    /// Bytes in a block: 1024 to 65536
    #[arg(short = 'b', value_name = "BYTES")]
    block_bytes: Option<u32>,
    /// Bytes in an inode: 128 to the block size
    #[arg(short = 'I', value_name = "BYTES")]
    inode_bytes: Option<u32>,
    /// How many inodes, at least
    #[arg(short = 'N', value_name = "INODES")]
    inodes: Option<u64>,
    /// One inode for this many bytes of the device
    #[arg(short = 'i', value_name = "BYTES-PER-INODE")]
    bytes_per_inode: Option<u64>,
    /// Percent of the blocks that only root may use
    #[arg(short = 'm', value_name = "PERCENT")]
    reserved_percent: Option<f64>,
    /// The journal: size=MiB
    #[arg(short = 'J', value_name = "OPTION")]
    journal: Option<String>,
    /// Features to turn on, or off with ^ before the name; none turns off all before it
    #[arg(short = 'O', value_name = "[^]FEATURE,...")]
    features: Vec<String>,
    /// More options; -E help lists them
    #[arg(short = 'E', value_name = "OPTION,...")]
    extended: Vec<String>,
    /// The label, at most 16 bytes
    #[arg(short = 'L', value_name = "LABEL")]
    label: Option<String>,
    /// The UUID, or random, time or clear
    #[arg(short = 'U', value_name = "UUID")]
    uuid: Option<String>,
    /// On errors: continue, remount-ro or panic
    #[arg(short = 'e', value_name = "BEHAVIOUR")]
    errors: Option<String>,
    /// Groups in a flex group
    #[arg(short = 'G', value_name = "GROUPS")]
    groups_per_flex: Option<u32>,
    /// Blocks in a group
    #[arg(short = 'g', value_name = "BLOCKS")]
    blocks_per_group: Option<u32>,
    /// Fill it with what is in this directory
    #[arg(short = 'd', value_name = "DIRECTORY")]
    pub(crate) directory: Option<PathBuf>,
    /// Say what would be made, and write nothing
    #[arg(short = 'n')]
    pub(crate) dry_run: bool,
    /// Print nothing unless something goes wrong
    #[arg(short = 'q')]
    pub(crate) quiet: bool,
    /// Print more
    #[arg(short = 'v')]
    pub(crate) verbose: bool,
    /// Go on over another file system's signature
    #[arg(short = 'F', action = clap::ArgAction::Count)]
    pub(crate) force: u8,
    /// Print the version
    #[arg(short = 'V', action = clap::ArgAction::Version)]
    version: Option<bool>,
    /// A block device or an image file, which is made or extended if a size is given
    pub(crate) device: PathBuf,
    /// The file system's size: in blocks if -b is given, else in KiB, or with a suffix K, M, G, T or s (sectors)
    size: Option<String>,
}

/// What the library's options don't cover.
#[derive(Debug, PartialEq)]
pub(crate) struct Target {
    pub(crate) discard: bool,
    pub(crate) offset: u64,
}

const EXTENDED: &str = "stride= stripe_width= resize= lazy_itable_init= lazy_journal_init= root_owner= \
    hash_seed= mmp_update_interval= num_backup_sb= orphan_file_size= packed_meta_blocks= offset= \
    assume_storage_prezeroed= discard nodiscard";

impl Args {
    /// The options that the arguments name; an error is a phrase that names the argument.
    pub(crate) fn options(&self) -> Result<(Options, Target), String> {
        let profile = match self.profile.as_str() {
            "journalfs" => Profile::Journalfs,
            "ext3" => Profile::Ext3,
            "ext4" => Profile::Ext4,
            other => return Err(format!("unknown profile '{other}': there are journalfs, ext3 and ext4")),
        };
        let mut options = Options {
            block_bytes: self.block_bytes,
            inode_bytes: self.inode_bytes,
            inodes: self.inodes,
            bytes_per_inode: self.bytes_per_inode,
            reserved_percent: self.reserved_percent,
            groups_per_flex: self.groups_per_flex,
            blocks_per_group: self.blocks_per_group,
            label: self.label.clone().unwrap_or_default(),
            lazy_itable_init: true,
            ..Options::new(profile)
        };
        if let Some(size) = &self.size {
            options.size_bytes = Some(parse_size(size, self.block_bytes.unwrap_or(1024))?);
        }
        for list in &self.features {
            options.features.extend(parse_features(list).map_err(|error| error.to_string())?);
        }
        if let Some(journal) = &self.journal {
            options.journal = parse_journal(journal)?;
        }
        options.uuid = self.uuid.as_deref().map(parse_uuid).transpose()?;
        options.errors = match self.errors.as_deref() {
            None => None,
            Some("continue") => Some(1),
            Some("remount-ro") => Some(2),
            Some("panic") => Some(3),
            Some(other) => return Err(format!("-e {other}: not continue, remount-ro or panic")),
        };
        let mut target = Target { discard: true, offset: 0 };
        for item in self.extended.iter().flat_map(|list| list.split(',')).filter(|item| !item.is_empty()) {
            set_extended(item, &mut options, &mut target)?;
        }
        Ok((options, target))
    }
}

fn set_extended(item: &str, options: &mut Options, target: &mut Target) -> Result<(), String> {
    let (name, value) = match item.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (item, None),
    };
    match (name, value) {
        ("stride", Some(value)) => options.raid_stride = number(item, value)?,
        ("stripe_width" | "stripe-width", Some(value)) => options.raid_stripe_width = number(item, value)?,
        ("resize", Some(value)) => options.resize_blocks = Some(number(item, value)?),
        ("lazy_itable_init", value) => options.lazy_itable_init = switch(item, value)?,
        ("lazy_journal_init", value) => options.lazy_journal_init = switch(item, value)?,
        ("packed_meta_blocks", value) => options.packed_meta_blocks = switch(item, value)?,
        ("assume_storage_prezeroed", value) => options.prezeroed = switch(item, value)?,
        ("root_owner", value) => options.root_owner = parse_owner(item, value)?,
        ("hash_seed", Some(value)) => options.hash_seed = Some(parse_uuid(value)?),
        ("mmp_update_interval", Some(value)) => options.mmp_update_interval = Some(number(item, value)?),
        ("num_backup_sb", Some(value)) => options.backup_superblocks = Some(number(item, value)?),
        ("orphan_file_size", Some(value)) => options.orphan_file_bytes = Some(parse_size(value, 1)?),
        ("offset", Some(value)) => target.offset = parse_size(value, 1)?,
        ("discard", None) => target.discard = true,
        ("nodiscard", None) => target.discard = false,
        _ => return Err(format!("-E {item}: there are {EXTENDED}")),
    }
    Ok(())
}

fn number<T: FromStr>(item: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("-E {item}: not a number in range"))
}

fn switch(item: &str, value: Option<&str>) -> Result<bool, String> {
    match value {
        None | Some("1") => Ok(true),
        Some("0") => Ok(false),
        Some(_) => Err(format!("-E {item}: not 0 or 1")),
    }
}

fn parse_owner(item: &str, value: Option<&str>) -> Result<(u32, u32), String> {
    let Some(value) = value else {
        return Ok((nix::unistd::getuid().as_raw(), nix::unistd::getgid().as_raw()));
    };
    let (uid, gid) = value.split_once(':').ok_or_else(|| format!("-E {item}: not UID:GID"))?;
    Ok((number(item, uid)?, number(item, gid)?))
}

fn parse_journal(text: &str) -> Result<JournalSize, String> {
    let mut size = JournalSize::Auto;
    for item in text.split(',').filter(|item| !item.is_empty()) {
        let value = item.strip_prefix("size=").ok_or_else(|| {
            format!("-J {item}: only size= is possible (external journals are not supported)")
        })?;
        let mib = value.trim_end_matches(['M', 'm']);
        size = JournalSize::MiB(mib.parse().map_err(|_| format!("-J {item}: not a number of MiB"))?);
    }
    Ok(size)
}

/// A size with a suffix, or in units of `unit` bytes without one.
fn parse_size(text: &str, unit: u32) -> Result<u64, String> {
    let bad = || format!("'{text}' is not a size");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text.get(digits.len()..).unwrap_or_default().to_ascii_lowercase().as_str() {
        "" => unit as u64,
        "s" => 512,
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        "t" => 1 << 40,
        _ => return Err(bad()),
    };
    digits.parse::<u64>().ok().and_then(|count| count.checked_mul(unit)).ok_or_else(bad)
}

fn parse_uuid(text: &str) -> Result<[u8; 16], String> {
    match text {
        "clear" | "null" => Ok([0; 16]),
        "random" => Ok(*uuid::Uuid::new_v4().as_bytes()),
        "time" => Ok(time_uuid()),
        text => uuid::Uuid::parse_str(text)
            .map(|uuid| *uuid.as_bytes())
            .map_err(|_| format!("'{text}' is not a UUID, random, time or clear")),
    }
}

/// A version-1 UUID: the time in units of 100 ns since the Gregorian reform, and a random node.
fn time_uuid() -> [u8; 16] {
    const REFORM_TO_1970: u64 = 0x01b2_1dd2_1381_4000;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let time = (now.as_nanos() / 100) as u64 + REFORM_TO_1970;
    let random = uuid::Uuid::new_v4().into_bytes();
    let [.., c0, c1, n0, n1, n2, n3, n4, n5] = random;
    // The multicast bit says that the node is no hardware address.
    let tail = [c0 & 0x3f | 0x80, c1, n0 | 1, n1, n2, n3, n4, n5];
    let high = (time >> 48) as u16 & 0x0fff | 0x1000;
    *uuid::Uuid::from_fields(time as u32, (time >> 32) as u16, high, &tail).as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<(Options, Target), String> {
        let all = ["mkfs.journalfs"].iter().chain(arguments);
        Args::try_parse_from(all).map_err(|error| error.to_string())?.options()
    }

    #[test]
    fn arguments_reach_the_options() {
        let (options, target) = parse(&[
            "-t",
            "ext3",
            "-b",
            "2048",
            "-E",
            "stride=4,nodiscard,root_owner=7:8",
            "-E",
            "offset=4k",
            "-J",
            "size=8",
            "-O",
            "^dir_index",
            "-L",
            "name",
            "-U",
            "clear",
            "-m",
            "1.5",
            "img",
            "100",
        ])
        .unwrap();
        assert_eq!(target, Target { discard: false, offset: 4096 });
        assert_eq!((options.profile, options.size_bytes), (Profile::Ext3, Some(204_800)));
        assert_eq!((options.raid_stride, options.root_owner), (4, (7, 8)));
        assert_eq!((options.journal, options.uuid), (JournalSize::MiB(8), Some([0; 16])));
        assert_eq!((options.label.as_str(), options.reserved_percent), ("name", Some(1.5)));
        assert_eq!(parse(&["img", "3g"]).unwrap().0.size_bytes, Some(3 << 30));
        assert_eq!(parse(&["img", "3"]).unwrap().0.size_bytes, Some(3 << 10));
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        for (arguments, named) in [
            (&["-t", "xfs", "img"][..], "xfs"),
            (&["-E", "stirde=4", "img"], "stirde"),
            (&["-E", "stride=x", "img"], "stride"),
            (&["-J", "device=/dev/sda", "img"], "device"),
            (&["-U", "0", "img"], "UUID"),
            (&["-O", "extends", "img"], "extends"),
            (&["img", "12q"], "12q"),
            (&["-e", "ignore", "img"], "ignore"),
            (&[], "DEVICE"),
        ] {
            let error = parse(arguments).unwrap_err();
            assert!(error.contains(named), "{arguments:?}: {error}");
        }
    }

    #[test]
    fn a_uuid_of_the_time_is_version_1() {
        let uuid = uuid::Uuid::from_bytes(time_uuid());
        assert_eq!((uuid.get_version_num(), uuid.get_variant()), (1, uuid::Variant::RFC4122));
    }
}
