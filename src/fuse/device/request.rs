//! Decoding: what a request of the kernel's says.

use super::wire::{
    BatchForgetIn, CopyIn, CreateIn, FallocateIn, ForgetIn, ForgetOne, FsyncIn, GetxattrIn, InHeader, InitIn,
    IoctlIn, LinkIn, LseekIn, MkdirIn, MknodIn, OpenIn, ReadIn, Rename2In, RenameIn, SetattrIn, SetxattrIn,
    WriteIn,
};
use zerocopy::{FromBytes, Immutable, KnownLayout};

/// A request's fields, borrowed from the buffer it was read into.
#[derive(Debug)]
pub(super) enum Operation<'a> {
    Init(InitIn, u32),
    Lookup {
        name: &'a [u8],
    },
    Forget {
        count: u64,
    },
    BatchForget(Vec<ForgetOne>),
    Getattr,
    Statx,
    Setattr(SetattrIn),
    Readlink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    Mknod(MknodIn, &'a [u8]),
    Mkdir(MkdirIn, &'a [u8]),
    Unlink {
        name: &'a [u8],
    },
    Rmdir {
        name: &'a [u8],
    },
    Rename {
        new_parent: u64,
        flags: u32,
        name: &'a [u8],
        new_name: &'a [u8],
    },
    Link(LinkIn, &'a [u8]),
    Open(OpenIn),
    Opendir,
    Create(CreateIn, &'a [u8]),
    /// O_TMPFILE; the name that comes with it means nothing.
    Tmpfile(CreateIn),
    Read(ReadIn),
    /// The data is behind the fixed part, where the buffer has it.
    Write(WriteIn),
    Release,
    Releasedir,
    Fsync(FsyncIn),
    Syncfs,
    Readdir(ReadIn),
    Readdirplus(ReadIn),
    Statfs,
    Setxattr {
        flags: u32,
        name: &'a [u8],
        value: &'a [u8],
    },
    Getxattr {
        room: u32,
        name: &'a [u8],
    },
    Listxattr {
        room: u32,
    },
    Removexattr {
        name: &'a [u8],
    },
    Ioctl(IoctlIn, &'a [u8]),
    Fallocate(FallocateIn),
    Lseek(LseekIn),
    CopyFileRange(CopyIn),
    /// The connection ends.
    Destroy,
    /// A request may be given up by its caller; it is finished all the same.
    Interrupt,
    /// What we don't do: answered with ENOSYS, which the kernel remembers.
    Other,
}

/// Takes a request apart; `None` if it is too short for what it says it is.
pub(super) fn decode(bytes: &[u8]) -> Option<(InHeader, Operation<'_>)> {
    let (header, body) = InHeader::read_from_prefix(bytes).ok()?;
    let body = body.get(..(header.len as usize).checked_sub(size_of::<InHeader>())?)?;
    let mut rest = Arguments(body);
    let operation = match header.opcode {
        1 => Operation::Lookup { name: rest.name()? },
        2 => Operation::Forget { count: rest.take::<ForgetIn>()?.count },
        3 => Operation::Getattr,
        4 => Operation::Setattr(rest.take()?),
        5 => Operation::Readlink,
        6 => Operation::Symlink { name: rest.name()?, target: rest.name()? },
        8 => Operation::Mknod(rest.take()?, rest.name()?),
        9 => Operation::Mkdir(rest.take()?, rest.name()?),
        10 => Operation::Unlink { name: rest.name()? },
        11 => Operation::Rmdir { name: rest.name()? },
        12 => {
            let new_parent = rest.take::<RenameIn>()?.new_parent;
            Operation::Rename { new_parent, flags: 0, name: rest.name()?, new_name: rest.name()? }
        }
        13 => Operation::Link(rest.take()?, rest.name()?),
        14 => Operation::Open(rest.take()?),
        15 => Operation::Read(rest.take()?),
        16 => {
            let write: WriteIn = rest.take()?;
            rest.0.get(..write.size as usize)?;
            Operation::Write(write)
        }
        17 => Operation::Statfs,
        18 => Operation::Release,
        20 | 30 => Operation::Fsync(rest.take()?),
        21 => {
            let set: SetxattrIn = rest.take()?;
            Operation::Setxattr {
                flags: set.flags,
                name: rest.name()?,
                value: rest.0.get(..set.size as usize)?,
            }
        }
        22 => {
            let room = rest.take::<GetxattrIn>()?.size;
            Operation::Getxattr { room, name: rest.name()? }
        }
        23 => Operation::Listxattr { room: rest.take::<GetxattrIn>()?.size },
        24 => Operation::Removexattr { name: rest.name()? },
        26 => {
            let init = rest.take()?;
            Operation::Init(init, rest.take::<u32>().unwrap_or(0))
        }
        27 => Operation::Opendir,
        28 => Operation::Readdir(rest.take()?),
        29 => Operation::Releasedir,
        35 => Operation::Create(rest.take()?, rest.name()?),
        36 => Operation::Interrupt,
        38 => Operation::Destroy,
        39 => {
            let ioctl: IoctlIn = rest.take()?;
            Operation::Ioctl(ioctl, rest.0.get(..ioctl.in_size as usize)?)
        }
        42 => {
            let count = rest.take::<BatchForgetIn>()?.count;
            Operation::BatchForget((0..count).map(|_| rest.take()).collect::<Option<_>>()?)
        }
        43 => Operation::Fallocate(rest.take()?),
        44 => Operation::Readdirplus(rest.take()?),
        45 => {
            let Rename2In { new_parent, flags, .. } = rest.take()?;
            Operation::Rename { new_parent, flags, name: rest.name()?, new_name: rest.name()? }
        }
        46 => Operation::Lseek(rest.take()?),
        47 => Operation::CopyFileRange(rest.take()?),
        50 => Operation::Syncfs,
        51 => Operation::Tmpfile(rest.take()?),
        52 => Operation::Statx,
        _ => Operation::Other,
    };
    Some((header, operation))
}

/// What is left of a request's body.
struct Arguments<'a>(&'a [u8]);

impl<'a> Arguments<'a> {
    fn take<T: FromBytes + Immutable + KnownLayout>(&mut self) -> Option<T> {
        let (value, rest) = T::read_from_prefix(self.0).ok()?;
        self.0 = rest;
        Some(value)
    }

    /// A string with a NUL behind it.
    fn name(&mut self) -> Option<&'a [u8]> {
        let end = self.0.iter().position(|&byte| byte == 0)?;
        let (name, rest) = self.0.split_at_checked(end)?;
        self.0 = rest.get(1..)?;
        Some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(opcode: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&(40 + body.len() as u32).to_ne_bytes());
        bytes.extend_from_slice(&opcode.to_ne_bytes());
        bytes.extend_from_slice(&7_u64.to_ne_bytes());
        bytes.extend_from_slice(&1_u64.to_ne_bytes());
        bytes.extend_from_slice(&[0; 16]);
        bytes.extend_from_slice(body);
        bytes
    }

    #[test]
    fn names_end_at_their_nul() {
        let bytes =
            request(45, &[&[9, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0], &b"from\0to\0"[..]].concat());
        let (header, operation) = decode(&bytes).unwrap();
        assert_eq!((header.unique, header.node), (7, 1));
        let Operation::Rename { new_parent: 9, flags: 1, name, new_name } = operation else { panic!() };
        assert_eq!((name, new_name), (&b"from"[..], &b"to"[..]));
    }

    #[test]
    fn whatever_is_cut_short_is_refused() {
        assert!(decode(&[0; 39]).is_none());
        assert!(decode(&request(1, b"no end")).is_none());
        assert!(decode(&request(4, &[0; 87])).is_none());
        let mut write = [0; 44];
        write[16] = 5;
        assert!(decode(&request(16, &write)).is_none(), "5 bytes said, 4 there");
        let mut forget = request(42, &[0; 24]);
        forget[40..44].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert!(decode(&forget).is_none());
        let mut lies = request(3, &[0; 16]);
        lies[0] = 200;
        assert!(decode(&lies).is_none(), "longer than what was read");
        for opcode in 0..100 {
            decode(&request(opcode, &[])); // must not panic
            decode(&request(opcode, &[0xff; 100]));
        }
    }
}
