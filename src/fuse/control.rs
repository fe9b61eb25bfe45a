//! How `journalfs sync|stats|tune|umount DIR` talk to the daemon: an ioctl on the mount's root directory.
//!
//! It goes where the mount goes: into containers, to root and to the user whose mount it is, with no
//! socket to be found or left behind. The kernel carries restricted ioctls, whose size is in
//! their number, so requests and replies are JSON in a buffer of fixed size.

use crate::error::{Error, Result};
use crate::fs::options::Tuning;
use crate::fs::Fs;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

pub use crate::fs::ShutdownMode;

/// Size of the buffer that carries a request in and its reply out; an ioctl's number has 14 bits for it.
pub const MESSAGE_BYTES: usize = 16000;

/// The ioctl's number: `_IOWR('J', 0x40, char[MESSAGE_BYTES])`. No other file system uses it.
pub const COMMAND: u32 = nix::request_code_readwrite!(b'J', 0x40, MESSAGE_BYTES) as u32;

/// What can be asked of a mounted file system's daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Who serves this mount.
    Info,
    /// Make everything durable that the daemon has received.
    Sync,
    /// The counters.
    Stats,
    /// Change one of [`Tuning`]'s options.
    Tune {
        /// The option's name.
        name: String,
        /// Its value; a flag has none.
        value: Option<String>,
    },
    /// Stop as if by a crash, as XFS's `FS_IOC_SHUTDOWN`.
    Shutdown(ShutdownMode),
}

/// Who serves a mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Info {
    /// The daemon's process, as it sees itself.
    pub pid: u32,
    /// The inode number of the daemon's PID name space: `pid` means something only inside it.
    pub pid_namespace: u64,
    /// The device or image, as the mount's source shows it.
    pub device: PathBuf,
    /// Nothing can be written.
    pub read_only: bool,
    /// The daemon's version.
    pub version: String,
}

impl Info {
    /// This process, serving `device`.
    pub fn of_this_process(device: &Path, read_only: bool) -> Self {
        Self {
            pid: std::process::id(),
            pid_namespace: pid_namespace(),
            device: device.to_owned(),
            read_only,
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    /// The daemon's process number, if it means anything to this process.
    pub fn pid_here(&self) -> Option<u32> {
        (self.pid_namespace != 0 && self.pid_namespace == pid_namespace()).then_some(self.pid)
    }
}

fn pid_namespace() -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |metadata| metadata.ino())
}

/// The daemon's answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Reply {
    Done,
    Info(Info),
    Stats(serde_json::Value),
    Failed { errno: i32, message: String },
}

/// What the daemon does when asked; the file system implements it.
pub trait Target {
    /// Makes everything durable.
    fn sync(&self) -> Result<()>;
    /// The counters, as a JSON object of objects of numbers.
    fn stats(&self) -> serde_json::Value;
    /// Takes over changed options.
    fn tune(&self, change: &mut dyn FnMut(&mut Tuning) -> Result<()>) -> Result<()>;
    /// Stops as if by a crash.
    fn shutdown(&self, mode: ShutdownMode) -> Result<()>;
}

impl Target for Fs {
    fn sync(&self) -> Result<()> {
        Fs::sync(self)
    }

    fn stats(&self) -> serde_json::Value {
        Fs::stats(self)
    }

    fn tune(&self, change: &mut dyn FnMut(&mut Tuning) -> Result<()>) -> Result<()> {
        Fs::tune(self, change)
    }

    fn shutdown(&self, mode: ShutdownMode) -> Result<()> {
        Fs::shutdown(self, mode)
    }
}

/// Answers the ioctl [`COMMAND`] in the daemon. May wait for the device. `privileged`: the caller is root or
/// owns the daemon. The bytes returned are the ioctl's output, to be sent with result 0.
pub fn answer(target: &dyn Target, info: &Info, privileged: bool, input: &[u8]) -> Vec<u8> {
    let reply = decode(input)
        .and_then(|request| perform(target, info, privileged, request))
        .unwrap_or_else(|error| Reply::Failed { errno: error.errno(), message: error.to_string() });
    encode(&reply).unwrap_or_default()
}

fn perform(target: &dyn Target, info: &Info, privileged: bool, request: Request) -> Result<Reply> {
    let needs_privilege = matches!(request, Request::Tune { .. } | Request::Shutdown(_));
    if needs_privilege && !privileged {
        return Err(Error::NotPermitted);
    }
    match request {
        Request::Info => return Ok(Reply::Info(info.clone())),
        Request::Stats => return Ok(Reply::Stats(target.stats())),
        Request::Sync => target.sync()?,
        Request::Shutdown(mode) => target.shutdown(mode)?,
        Request::Tune { name, value } => target.tune(&mut |tuning| {
            if tuning.set(&name, value.as_deref())? {
                return Ok(());
            }
            Err(Error::Usage(format!("{name} can't be changed while mounted")))
        })?,
    }
    Ok(Reply::Done)
}

/// A message is its length (4 bytes, little-endian) and JSON.
fn encode(message: &impl Serialize) -> Result<Vec<u8>> {
    let json = serde_json::to_vec(message).map_err(|error| Error::Usage(error.to_string()))?;
    if json.len() > MESSAGE_BYTES - 4 {
        return Err(Error::Overflow);
    }
    let mut bytes = (json.len() as u32).to_le_bytes().to_vec();
    bytes.extend_from_slice(&json);
    bytes.resize(MESSAGE_BYTES, 0);
    Ok(bytes)
}

fn decode<T: for<'a> Deserialize<'a>>(bytes: &[u8]) -> Result<T> {
    let (len, rest) = bytes.split_first_chunk::<4>().ok_or(Error::Invalid)?;
    let json = rest.get(..u32::from_le_bytes(*len) as usize).ok_or(Error::Invalid)?;
    serde_json::from_slice(json).map_err(|_| Error::Invalid)
}

mod ioctls {
    use super::MESSAGE_BYTES;
    nix::ioctl_readwrite!(
        /// Carries a message to the daemon and its answer back.
        control, b'J', 0x40, [u8; MESSAGE_BYTES]);
}

/// A client's connection to the daemon of the mount at `dir`.
#[derive(Debug)]
pub struct Client {
    root: File,
}

impl Client {
    /// Opens the mount's root directory, or any directory of the mount.
    pub fn open(dir: &Path) -> std::io::Result<Self> {
        Ok(Self { root: File::open(dir)? })
    }

    /// syncfs(2) on the mount: the kernel's dirty pages become requests to the daemon.
    pub fn push_out_pages(&self) -> std::io::Result<()> {
        // SAFETY: the descriptor is open.
        if unsafe { libc::syncfs(self.root.as_raw_fd()) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
        Ok(())
    }

    /// Makes everything on the mount durable.
    pub fn sync(&self) -> Result<()> {
        self.push_out_pages().map_err(|error| Error::io("syncfs", error))?;
        self.ask(&Request::Sync).map(|_| ())
    }

    /// Who serves the mount; `NotTty` if it is not a journalfs mount.
    pub fn info(&self) -> Result<Info> {
        match self.ask(&Request::Info)? {
            Reply::Info(info) => Ok(info),
            _ => Err(Error::Invalid),
        }
    }

    /// The counters.
    pub fn stats(&self) -> Result<serde_json::Value> {
        match self.ask(&Request::Stats)? {
            Reply::Stats(stats) => Ok(stats),
            _ => Err(Error::Invalid),
        }
    }

    /// Changes an option.
    pub fn tune(&self, name: &str, value: Option<&str>) -> Result<()> {
        let request = Request::Tune { name: name.to_owned(), value: value.map(str::to_owned) };
        self.ask(&request).map(|_| ())
    }

    /// Stops the file system as if by a crash.
    pub fn shutdown(&self, mode: ShutdownMode) -> Result<()> {
        if mode == ShutdownMode::Flush {
            self.push_out_pages().map_err(|error| Error::io("syncfs", error))?;
        }
        self.ask(&Request::Shutdown(mode)).map(|_| ())
    }

    fn ask(&self, request: &Request) -> Result<Reply> {
        let mut message = [0; MESSAGE_BYTES];
        message.copy_from_slice(&encode(request)?);
        // SAFETY: the ioctl reads and writes at most the buffer, whose size is in its number.
        let result = unsafe { ioctls::control(self.root.as_raw_fd(), &raw mut message) };
        result.map_err(|errno| Error::Posix(errno as i32))?;
        match decode(&message)? {
            Reply::Failed { errno, message } => {
                let error = std::io::Error::new(std::io::Error::from_raw_os_error(errno).kind(), message);
                Err(Error::io("the daemon refused", error))
            }
            reply => Ok(reply),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[derive(Default)]
    struct Recorder {
        done: RefCell<Vec<String>>,
        tuning: RefCell<Tuning>,
    }

    impl Target for Recorder {
        fn sync(&self) -> Result<()> {
            self.done.borrow_mut().push("sync".to_owned());
            Ok(())
        }
        fn stats(&self) -> serde_json::Value {
            serde_json::json!({"journal": {"commits": 3}})
        }
        fn tune(&self, change: &mut dyn FnMut(&mut Tuning) -> Result<()>) -> Result<()> {
            change(&mut self.tuning.borrow_mut())
        }
        fn shutdown(&self, mode: ShutdownMode) -> Result<()> {
            self.done.borrow_mut().push(format!("{mode:?}"));
            Ok(())
        }
    }

    fn ask(target: &Recorder, privileged: bool, request: &Request) -> Reply {
        let info = Info::of_this_process(Path::new("/dev/x"), false);
        let output = answer(target, &info, privileged, &encode(request).unwrap());
        assert_eq!(output.len(), MESSAGE_BYTES);
        decode(&output).unwrap()
    }

    #[test]
    fn requests_reach_the_file_system_and_answers_come_back() {
        let target = Recorder::default();
        assert_eq!(ask(&target, false, &Request::Sync), Reply::Done);
        assert_eq!(*target.done.borrow(), ["sync"]);
        let Reply::Stats(stats) = ask(&target, false, &Request::Stats) else { panic!() };
        assert_eq!(stats["journal"]["commits"], 3);
        let Reply::Info(info) = ask(&target, false, &Request::Info) else { panic!() };
        assert_eq!(info.pid_here(), Some(std::process::id()));
        let tune = |name: &str| Request::Tune { name: name.to_owned(), value: Some("9".to_owned()) };
        assert_eq!(ask(&target, true, &tune("commit")), Reply::Done);
        assert_eq!(target.tuning.borrow().commit.as_secs(), 9);
        assert!(matches!(ask(&target, true, &tune("offset")), Reply::Failed { .. }));
    }

    #[test]
    fn strangers_may_not_stop_or_tune() {
        let target = Recorder::default();
        let reply = ask(&target, false, &Request::Shutdown(ShutdownMode::NoLogFlush));
        assert!(matches!(reply, Reply::Failed { errno: libc::EPERM, .. }));
        assert!(target.done.borrow().is_empty());
        assert_eq!(ask(&target, true, &Request::Shutdown(ShutdownMode::NoLogFlush)), Reply::Done);
    }

    #[test]
    fn garbage_is_refused() {
        let target = Recorder::default();
        let info = Info::of_this_process(Path::new("/dev/x"), false);
        for input in [&[] as &[u8], &[1, 2], &[0xff; 16], &[2, 0, 0, 0, b'{', b'}']] {
            let reply = decode(&answer(&target, &info, true, input)).unwrap();
            assert!(matches!(reply, Reply::Failed { errno: libc::EINVAL, .. }));
        }
    }

    #[test]
    fn the_number_carries_the_size() {
        assert_eq!(COMMAND, 3 << 30 | (MESSAGE_BYTES as u32) << 16 | 0x4a40);
    }
}
