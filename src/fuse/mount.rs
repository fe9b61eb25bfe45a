//! Getting a file system mounted: mount(2) for root, fusermount3 for everybody else.

use super::options::FuseOptions;
use crate::error::{Error, Result};
use nix::cmsg_space;
use nix::errno::Errno;
use nix::mount::{umount2, MntFlags, MsFlags};
use nix::sys::socket::{
    recvmsg, socketpair, AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType,
};
use std::ffi::OsString;
use std::io::{self, IoSliceMut, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const DEVICE: &str = "/dev/fuse";

/// Mounts and returns the connection to the kernel, which has an INIT request in it, and the mount point's real path.
pub fn mount(mountpoint: &Path, options: &FuseOptions) -> Result<(OwnedFd, PathBuf)> {
    let mountpoint = real_mountpoint(mountpoint)?;
    let fd = if nix::unistd::geteuid().is_root() {
        match mount_directly(&mountpoint, options) {
            // Root of a container without the right to mount.
            Err(Error::Io { source, .. }) if source.raw_os_error() == Some(libc::EPERM) => {
                mount_by_helper(&mountpoint, options)?
            }
            result => result?,
        }
    } else {
        mount_by_helper(&mountpoint, options)?
    };
    Ok((fd, mountpoint))
}

/// Unmounts; `lazily` also when it is in use.
pub fn unmount(mountpoint: &Path, lazily: bool) -> Result<()> {
    let flags = if lazily { MntFlags::MNT_DETACH } else { MntFlags::empty() };
    match umount2(mountpoint, flags) {
        Ok(()) => return Ok(()),
        Err(Errno::EPERM) => {}
        Err(errno) => return Err(failed(&format!("cannot unmount {}", mountpoint.display()), errno)),
    }
    let mut command = Command::new("fusermount3");
    command.arg("-u");
    if lazily {
        command.arg("-z");
    }
    let output = command
        .arg("--")
        .arg(mountpoint)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| Error::io("fusermount3 cannot be run", e))?;
    if output.status.success() {
        return Ok(());
    }
    Err(Error::io(
        format!("cannot unmount {}", mountpoint.display()),
        io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_string()),
    ))
}

fn failed(what: &str, errno: Errno) -> Error {
    Error::io(what, errno.into())
}

/// The mount point's path without links. A mount there whose daemon has died is detached first.
fn real_mountpoint(mountpoint: &Path) -> Result<PathBuf> {
    let what = || format!("mount point {}", mountpoint.display());
    if let Err(error) = std::fs::metadata(mountpoint) {
        if error.raw_os_error() == Some(libc::ENOTCONN) {
            tracing::warn!("{}: detaching a mount whose daemon is gone", mountpoint.display());
            unmount(mountpoint, true)?;
        }
    }
    let real = mountpoint.canonicalize().map_err(|e| Error::io(what(), e))?;
    if !real.metadata().map_err(|e| Error::io(what(), e))?.is_dir() {
        return Err(Error::io(what(), io::Error::from_raw_os_error(libc::ENOTDIR)));
    }
    Ok(real)
}

fn mount_directly(mountpoint: &Path, options: &FuseOptions) -> Result<OwnedFd> {
    let device = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_CLOEXEC)
        .open(DEVICE)
        .map_err(|e| Error::io(format!("{DEVICE} (is the kernel's fuse module loaded?)"), e))?;
    let mut flags = MsFlags::empty();
    for (wanted, flag) in [
        (options.read_only, MsFlags::MS_RDONLY),
        (options.nosuid, MsFlags::MS_NOSUID),
        (options.nodev, MsFlags::MS_NODEV),
        (options.noexec, MsFlags::MS_NOEXEC),
        (options.noatime, MsFlags::MS_NOATIME),
        (options.sync, MsFlags::MS_SYNCHRONOUS),
        (options.dirsync, MsFlags::MS_DIRSYNC),
    ] {
        flags.set(flag, wanted);
    }
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={}",
        device.as_raw_fd(),
        nix::unistd::getuid(),
        nix::unistd::getgid()
    );
    if options.default_permissions {
        data.push_str(",default_permissions");
    }
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let fstype = format!("fuse.{}", options.subtype);
    nix::mount::mount(
        Some(options.source.as_os_str()),
        mountpoint,
        Some(fstype.as_str()),
        flags,
        Some(data.as_str()),
    )
    .map_err(|e| failed(&format!("cannot mount on {}", mountpoint.display()), e))?;
    Ok(device.into())
}

/// The options as fusermount3 reads them: commas and backslashes in the source are escaped.
fn helper_options(options: &FuseOptions) -> OsString {
    let mut list = b"fsname=".to_vec();
    for &byte in options.source.as_bytes() {
        if matches!(byte, b',' | b'\\') {
            list.push(b'\\');
        }
        list.push(byte);
    }
    list.extend_from_slice(format!(",subtype={}", options.subtype).as_bytes());
    for (wanted, name) in [
        (options.read_only, "ro"),
        (options.nosuid, "nosuid"),
        (options.nodev, "nodev"),
        (options.noexec, "noexec"),
        (options.noatime, "noatime"),
        (options.sync, "sync"),
        (options.dirsync, "dirsync"),
        (options.default_permissions, "default_permissions"),
        (options.allow_other, "allow_other"),
    ] {
        if wanted {
            list.push(b',');
            list.extend_from_slice(name.as_bytes());
        }
    }
    OsString::from_vec(list)
}

fn mount_by_helper(mountpoint: &Path, options: &FuseOptions) -> Result<OwnedFd> {
    // The helper's end must survive exec, so it has no close-on-exec flag; ours has.
    let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::empty())
        .map_err(|e| failed("a socket for fusermount3", e))?;
    nix::fcntl::fcntl(&ours, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC))
        .map_err(|e| failed("a socket for fusermount3", e))?;
    let mut child = Command::new("fusermount3")
        .arg("-o")
        .arg(helper_options(options))
        .arg("--")
        .arg(mountpoint)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| Error::io("fusermount3 cannot be run (is the fuse3 package installed?)", e))?;
    drop(theirs);
    let received = receive_fd(&ours);
    let mut complaint = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        let _ = stderr.read_to_string(&mut complaint);
    }
    let _ = child.wait();
    received?.ok_or_else(|| {
        let complaint = complaint.trim().to_string();
        Error::io(format!("cannot mount on {}", mountpoint.display()), io::Error::other(complaint))
    })
}

/// The descriptor that the helper sends; `None` if it ends without sending one.
fn receive_fd(socket: &OwnedFd) -> Result<Option<OwnedFd>> {
    let mut byte = [0u8];
    let mut buffers = [IoSliceMut::new(&mut byte)];
    let mut control = cmsg_space!(RawFd);
    let message = loop {
        match recvmsg::<()>(socket.as_raw_fd(), &mut buffers, Some(&mut control), MsgFlags::MSG_CMSG_CLOEXEC)
        {
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(failed("fusermount3's answer", errno)),
            Ok(message) => break message,
        }
    };
    for control in message.cmsgs().map_err(|e| failed("fusermount3's answer", e))? {
        if let ControlMessageOwned::ScmRights(fds) = control {
            if let Some(&fd) = fds.first() {
                // SAFETY: the kernel has just installed this descriptor for us, and nobody else knows it.
                return Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) }));
            }
        }
    }
    Ok(None)
}

/// Sets the mount's readahead window, which the kernel otherwise keeps at 128 KiB. Best effort: only
/// root may, and it changes speed only.
pub fn set_readahead(mountpoint: &Path, bytes: u32) {
    let Some(device) = device_number(mountpoint) else { return };
    let file = format!("/sys/class/bdi/{device}/read_ahead_kb");
    if let Err(error) = std::fs::write(&file, (bytes / 1024).to_string()) {
        tracing::debug!("{file}: {error}");
    }
}

/// The `major:minor` of the topmost mount there. Not by stat(2), which would ask us and wait.
fn device_number(mountpoint: &Path) -> Option<String> {
    let table = std::fs::read("/proc/self/mountinfo").ok()?;
    let wanted = escape(mountpoint.as_os_str().as_bytes());
    let mut found = None;
    for line in table.split(|&b| b == b'\n') {
        let mut fields = line.split(|&b| b == b' ').skip(2);
        let (device, _root, place) = (fields.next(), fields.next(), fields.next());
        if place == Some(wanted.as_slice()) {
            found = device;
        }
    }
    String::from_utf8(found?.to_vec()).ok()
}

/// A path as the mount table writes it.
fn escape(path: &[u8]) -> Vec<u8> {
    let mut escaped = Vec::with_capacity(path.len());
    for &byte in path {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' => escaped.extend_from_slice(format!("\\{byte:03o}").as_bytes()),
            _ => escaped.push(byte),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comma_in_the_source_is_no_new_option() {
        let options = FuseOptions { source: "/a,b\\c".into(), read_only: true, ..FuseOptions::default() };
        assert_eq!(helper_options(&options), "fsname=/a\\,b\\\\c,subtype=journalfs,ro");
    }

    #[test]
    fn the_root_mount_has_a_device_number() {
        assert!(device_number(Path::new("/")).is_some_and(|d| d.contains(':')));
        assert_eq!(escape(b"/a b"), b"/a\\040b");
    }
}
