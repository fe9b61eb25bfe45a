//! Answers: each request gets exactly one.

use super::wire::{Dirent, EntryOut, OutHeader};
use crate::error::Error;
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use zerocopy::{Immutable, IntoBytes};

/// The duty to answer one request; dropped without an answer, it says EIO.
#[derive(Debug)]
pub(super) struct Reply {
    device: Option<Arc<OwnedFd>>,
    unique: u64,
}

impl Reply {
    pub(super) fn new(device: Arc<OwnedFd>, unique: u64) -> Self {
        Self { device: Some(device), unique }
    }

    /// The request has been done, and there is nothing more to say.
    pub(super) fn ok(self) {
        self.parts(&[]);
    }

    /// Answers with a structure.
    pub(super) fn send<T: IntoBytes + Immutable>(self, answer: &T) {
        self.parts(&[answer.as_bytes()]);
    }

    /// Answers with bytes.
    pub(super) fn data(self, bytes: &[u8]) {
        self.parts(&[bytes]);
    }

    /// Answers with up to two pieces.
    pub(super) fn parts(mut self, parts: &[&[u8]]) {
        self.write(0, parts);
    }

    /// The request has failed.
    pub(super) fn error(self, error: &Error) {
        self.errno(error.errno());
    }

    /// The request has failed, by number.
    pub(super) fn errno(mut self, errno: i32) {
        self.write(errno, &[]);
    }

    fn write(&mut self, errno: i32, parts: &[&[u8]]) {
        let Some(device) = self.device.take() else { return };
        let len = size_of::<OutHeader>() + parts.iter().map(|part| part.len()).sum::<usize>();
        let header = OutHeader { len: len as u32, error: -errno, unique: self.unique };
        let empty: &[u8] = &[];
        let part = |at: usize| IoSlice::new(parts.get(at).copied().unwrap_or(empty));
        let pieces = [IoSlice::new(header.as_bytes()), part(0), part(1)];
        match nix::sys::uio::writev(&*device, &pieces) {
            // The caller was killed and its request given up, or the mount is gone.
            Ok(_) | Err(nix::errno::Errno::ENOENT | nix::errno::Errno::ENODEV) => {}
            Err(error) => tracing::warn!("an answer of {len} bytes to the kernel failed: {error}"),
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.write(libc::EIO, &[]);
    }
}

/// A directory listing on its way: entries until the kernel's buffer is full.
pub(super) struct Listing {
    bytes: Vec<u8>,
    room: usize,
}

impl Listing {
    pub(super) fn new(room: u32) -> Self {
        let room = room.min(super::super::init::REQUEST_BYTES_MAX) as usize;
        Self { bytes: Vec::with_capacity(room.min(64 << 10)), room }
    }

    /// Adds an entry, for READDIRPLUS with what it leads to; false if there is no room.
    pub(super) fn add(&mut self, entry: Option<&EntryOut>, dirent: (u64, u64, u32), name: &[u8]) -> bool {
        let head = entry.map_or(0, |_| size_of::<EntryOut>()) + size_of::<Dirent>();
        let len = (head + name.len()).next_multiple_of(8);
        if self.bytes.len() + len > self.room {
            return false;
        }
        let (ino, offset, mode) = dirent;
        let end = self.bytes.len() + len;
        if let Some(entry) = entry {
            self.bytes.extend_from_slice(entry.as_bytes());
        }
        let dirent = Dirent { ino, offset, name_len: name.len() as u32, kind: (mode & libc::S_IFMT) >> 12 };
        self.bytes.extend_from_slice(dirent.as_bytes());
        self.bytes.extend_from_slice(name);
        self.bytes.resize(end, 0);
        true
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_forgotten_reply_is_an_error_and_a_sent_one_is_sent_once() {
        let (ours, mut kernels) = UnixStream::pair().unwrap();
        let device = Arc::new(OwnedFd::from(ours));
        drop(Reply::new(device.clone(), 7));
        Reply::new(device.clone(), 8).data(b"abc");
        drop(device);
        let mut sent = Vec::new();
        kernels.read_to_end(&mut sent).unwrap();
        let eio = OutHeader { len: 16, error: -libc::EIO, unique: 7 };
        let abc = OutHeader { len: 19, error: 0, unique: 8 };
        assert_eq!(sent, [eio.as_bytes(), abc.as_bytes(), b"abc"].concat());
    }

    #[test]
    fn a_listing_stays_within_its_room_and_aligned() {
        let mut listing = Listing::new(100);
        assert!(listing.add(None, (11, 1, libc::S_IFREG), b"four"));
        assert_eq!(listing.bytes().len(), 32);
        assert!(listing.add(None, (12, 2, libc::S_IFDIR), b"a longer name, of 29 bytes..."));
        assert_eq!(listing.bytes().len(), 88);
        assert!(!listing.add(None, (13, 3, 0), b"x"));
        assert!(!Listing::new(100).add(Some(&EntryOut::default()), (11, 1, 0), b""));
    }
}
