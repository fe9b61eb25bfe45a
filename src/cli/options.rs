//! `-o`: sorts mount options into the file system's, the front-end's and mount(8)'s own.

use journalfs::fs::options::{parse_size, AtimePolicy, MountOptions};
use journalfs::fuse::{FuseOptions, Transport};
use journalfs::{Error, Result};
use std::ffi::OsString;

/// All options of a mount.
pub(super) struct Options {
    pub(super) fs: MountOptions,
    pub(super) fuse: FuseOptions,
    /// `debug`: log more.
    pub(super) debug: bool,
    /// `remount`: change the flags of a mount that is there.
    pub(super) remount: bool,
}

/// Splits `name=value`.
pub(super) fn split(option: &str) -> (&str, Option<&str>) {
    match option.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (option, None),
    }
}

/// Parses the arguments of all `-o`; with `sloppy`, options that nobody knows are skipped.
pub(super) fn parse(arguments: &[OsString], sloppy: bool) -> Result<Options> {
    let mut options = Options { fs: MountOptions::default(), fuse: defaults(), debug: false, remount: false };
    for argument in arguments {
        let Some(argument) = argument.to_str() else {
            return Err(Error::Usage(format!(
                "mount option {}: not valid UTF-8",
                argument.to_string_lossy()
            )));
        };
        for option in argument.split(',').map(str::trim).filter(|option| !option.is_empty()) {
            let (name, value) = split(option);
            let known = options.fs.set(name, value)? || options.set(name, value)? || is_mount_programs(name);
            if !known && !sloppy {
                return Err(Error::Usage(format!("unknown mount option {name}")));
            }
        }
    }
    options.fs.finish()?;
    options.derive();
    Ok(options)
}

/// Root's mounts are for everybody, with devices and set-user-ID programs, as any other file system's; fusermount3 forbids
/// ordinary users those.
fn defaults() -> FuseOptions {
    let root = nix::unistd::geteuid().is_root();
    FuseOptions {
        allow_other: root,
        default_permissions: true,
        nosuid: !root,
        nodev: !root,
        ..FuseOptions::default()
    }
}

impl Options {
    /// Takes one of the front-end's options; false if it isn't one.
    fn set(&mut self, name: &str, value: Option<&str>) -> Result<bool> {
        let bad =
            || Error::Usage(format!("mount option {name}={}: the value makes no sense", value.unwrap_or("")));
        let count = || value.and_then(|value| value.parse::<usize>().ok()).filter(|n| (1..=1024).contains(n));
        match name {
            "suid" => self.fuse.nosuid = false,
            "nosuid" => self.fuse.nosuid = true,
            "dev" => self.fuse.nodev = false,
            "nodev" => self.fuse.nodev = true,
            "exec" => self.fuse.noexec = false,
            "noexec" => self.fuse.noexec = true,
            "allow_other" => self.fuse.allow_other = true,
            "noallow_other" => self.fuse.allow_other = false,
            "default_permissions" => self.fuse.default_permissions = true,
            "writeback_cache" => self.fuse.writeback_cache = true,
            "nowriteback_cache" => self.fuse.writeback_cache = false,
            "transport" => {
                self.fuse.transport = match value {
                    Some("device") => Transport::Device,
                    Some("fuser") => Transport::Fuser,
                    _ => return Err(bad()),
                }
            }
            "threads" => self.fuse.threads = count().ok_or_else(bad)?,
            "workers" => self.fuse.workers = count().ok_or_else(bad)?,
            "readahead" => {
                let bytes = value.and_then(parse_size).and_then(|bytes| bytes.try_into().ok());
                self.fuse.readahead_bytes = bytes.ok_or_else(bad)?;
            }
            "debug" => self.debug = true,
            "remount" => self.remount = true,
            // Always so.
            "auto_da_alloc" | "delalloc" | "big_writes" => {}
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// What the front-end needs to know of the file system's options.
    fn derive(&mut self) {
        self.fuse.read_only = self.fs.read_only;
        self.fuse.noatime = self.fs.atime == AtimePolicy::Never;
        self.fuse.sync = self.fs.sync;
        self.fuse.dirsync = self.fs.dirsync;
        if self.fs.fakeroot {
            self.fuse.default_permissions = false;
        }
        // With ACLs in force the kernel checks permissions whether asked to or not.
        self.fs.acl &= !self.fs.fakeroot;
        self.fuse.acl = self.fs.acl;
    }
}

/// Options that mount(8), the VFS or an init system acts on and passes on all the same.
fn is_mount_programs(name: &str) -> bool {
    const KNOWN: [&str; 34] = [
        "defaults",
        "auto",
        "noauto",
        "user",
        "nouser",
        "users",
        "nousers",
        "owner",
        "noowner",
        "group",
        "nogroup",
        "nofail",
        "_netdev",
        "loop",
        "noloop",
        "sizelimit",
        "comment",
        "silent",
        "loud",
        "lazytime",
        "nolazytime",
        "mand",
        "nomand",
        "iversion",
        "noiversion",
        "nosymfollow",
        "helper",
        "uhelper",
        "subtype",
        // A remount passes on what /proc/self/mounts shows.
        "user_id",
        "group_id",
        "rootmode",
        "max_read",
        "blksize",
    ];
    KNOWN.contains(&name) || name.starts_with("x-") || name.starts_with("X-")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(options: &[&str], sloppy: bool) -> Result<Options> {
        let options: Vec<OsString> = options.iter().map(OsString::from).collect();
        parse(&options, sloppy)
    }

    #[test]
    fn options_go_where_they_belong() {
        let options =
            parsed(&["ro,nosuid,loop,x-systemd.automount", "user=joe,noatime,threads=2,debug"], false)
                .unwrap();
        assert!(options.fs.read_only && options.fuse.read_only && options.fuse.nosuid && options.debug);
        assert!(options.fuse.noatime && options.fuse.default_permissions && options.fuse.acl);
        assert_eq!(options.fuse.threads, 2);
        let faked = parsed(&["fakeroot"], false).unwrap();
        assert!(!faked.fuse.default_permissions && !faked.fuse.acl && !faked.fs.acl);
    }

    #[test]
    fn an_unknown_option_is_named() {
        let error = parsed(&["rw,frobnicate=7"], false).err().unwrap().to_string();
        assert!(error.contains("frobnicate"), "{error}");
        parsed(&["rw,frobnicate=7"], true).unwrap();
        assert!(parsed(&["threads=0"], true).is_err());
    }
}
