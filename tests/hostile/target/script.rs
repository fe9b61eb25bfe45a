//! Changes that an input asks for.

use super::input::Input;
use super::walk::Found;
use journalfs::fs::attr::{Caller, SetAttr};
use journalfs::fs::{Fs, RenameFlags};
use journalfs::units::InodeNr;

const ROOT: Caller = Caller::ROOT;
const STEPS_MAX: usize = 64;
/// What is done when the input says nothing: one of each.
const ALL: [u8; 136] = {
    let mut all = [0; 136];
    let mut i = 0;
    while i < all.len() {
        all[i] = if i % 8 == 0 { (i / 8) as u8 } else { (i * 37) as u8 };
        i += 1;
    }
    all
};

/// Names that changes use besides those found.
const NAMES: [&[u8]; 6] = [b"n", b"small", b"dir", b"new-name-of-some-length", &[b'l'; 255], b"moved"];

struct Script<'a, 'b> {
    fs: &'a Fs,
    input: &'a mut Input<'b>,
    found: &'a [Found],
}

/// Does what the input says, whatever comes of it.
pub(crate) fn run(fs: &Fs, input: &mut Input<'_>, found: &[Found]) {
    let mut all = Input::new(&ALL);
    let input = if input.is_empty() { &mut all } else { input };
    let mut script = Script { fs, input, found };
    for _ in 0..STEPS_MAX {
        if script.input.is_empty() {
            break;
        }
        script.step();
    }
}

impl Script<'_, '_> {
    fn inode(&mut self) -> InodeNr {
        match self.input.u8() {
            0xff => InodeNr(self.input.u32()),
            which => self.found[usize::from(which) % self.found.len()].nr,
        }
    }

    /// A directory and a name in it.
    fn name(&mut self) -> (InodeNr, Vec<u8>) {
        let which = usize::from(self.input.u8());
        let entry = &self.found[which % self.found.len()];
        if which % 3 == 0 {
            (entry.nr, NAMES[which / 3 % NAMES.len()].to_vec())
        } else {
            (entry.parent, entry.name.clone())
        }
    }

    fn step(&mut self) {
        let fs = self.fs;
        match self.input.u8() % 18 {
            0 => {
                let (nr, at, len) =
                    (self.inode(), self.input.scaled(), usize::from(self.input.u16() % 20_000));
                let _ = fs.write(nr, at, &vec![7; len], &ROOT, false);
            }
            1 => {
                let _ = fs.truncate(self.inode(), self.input.scaled());
            }
            2 => {
                let ((parent, name), mode) = (self.name(), self.input.u16());
                let _ = fs.mknod(parent, &name, u32::from(mode), 0x103, 0o22, &ROOT);
            }
            3 => {
                let (parent, name) = self.name();
                let _ = fs.mkdir(parent, &name, 0o755, 0o22, &ROOT);
            }
            4 => {
                let ((parent, name), len) = (self.name(), usize::from(self.input.u16() % 5000));
                let _ = fs.symlink(parent, &name, &vec![b's'; len], &ROOT);
            }
            5 => {
                let (nr, (parent, name)) = (self.inode(), self.name());
                let _ = fs.link(nr, parent, &name, &ROOT);
            }
            6 => {
                let (parent, name) = self.name();
                let _ = fs.unlink(parent, &name);
            }
            7 => {
                let (parent, name) = self.name();
                let _ = fs.rmdir(parent, &name);
            }
            8 => {
                let ((from, name), (to, new)) = (self.name(), self.name());
                let flags = RenameFlags::from_bits_retain(u32::from(self.input.u8() % 8));
                let _ = fs.rename(from, &name, to, &new, flags, &ROOT);
            }
            9 => {
                let (nr, which, len) = (self.inode(), self.input.u8(), usize::from(self.input.u16() % 5000));
                let name = XATTRS[usize::from(which) % XATTRS.len()];
                let value =
                    if which & 0x80 == 0 { vec![b'v'; len] } else { self.input.bytes(len % 64).to_vec() };
                let _ = fs.setxattr(nr, name, &value, 0, &ROOT);
            }
            10 => {
                let (nr, which) = (self.inode(), usize::from(self.input.u8()));
                let _ = fs.removexattr(nr, XATTRS[which % XATTRS.len()], &ROOT);
            }
            11 => {
                let (nr, mode) = (self.inode(), MODES[usize::from(self.input.u8()) % MODES.len()]);
                let (at, len) = (self.input.scaled(), self.input.scaled());
                let _ = fs.fallocate(nr, mode, at, len, &ROOT);
            }
            12 => {
                let nr = self.inode();
                let mut set = SetAttr::default();
                (set.mode, set.uid) = (Some(u32::from(self.input.u16())), Some(u32::from(self.input.u8())));
                let _ = fs.setattr(nr, &set, &ROOT);
            }
            13 => {
                let _ = fs.fsync(self.inode(), self.input.u8() & 1 == 0, 0);
            }
            14 => {
                let _ = fs.sync();
            }
            17 => {
                let _ = fs.tmpfile(self.inode(), 0o600, 0o22, &ROOT);
            }
            15 => {
                let (from, to, len) = (self.inode(), self.inode(), u64::from(self.input.u16()));
                let (from_at, to_at) = (self.input.scaled(), self.input.scaled());
                let _ = fs.copy_range(from, from_at, to, to_at, len, &ROOT);
            }
            _ => {
                let nr = self.inode();
                if fs.open(nr, i32::from(self.input.u8() & 3)).is_ok() && self.input.u8() & 1 == 0 {
                    let _ = fs.release(nr);
                }
            }
        }
    }
}

const XATTRS: [&[u8]; 6] = [
    b"user.small",
    b"user.large",
    b"trusted.other",
    b"system.posix_acl_access",
    b"system.posix_acl_default",
    b"security.x",
];
const MODES: [i32; 4] = [
    0,
    libc::FALLOC_FL_KEEP_SIZE,
    libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
    libc::FALLOC_FL_ZERO_RANGE,
];
