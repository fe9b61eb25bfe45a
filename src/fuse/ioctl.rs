//! The ioctls that FUSE carries: inode flags, trim, labels, versions, and our own control requests.

use super::control;
use super::operations::Operations;
use super::types::{Caller, FsXattr};
use crate::error::{Error, Result};
use crate::units::InodeNr;

// The numbers of <linux/fs.h>; the size in bits 16..30 is the argument's.
const FS_IOC_GETFLAGS: u32 = 0x8008_6601;
const FS_IOC32_GETFLAGS: u32 = 0x8004_6601;
const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
const FS_IOC32_SETFLAGS: u32 = 0x4004_6602;
const FS_IOC_FSGETXATTR: u32 = 0x801c_581f;
const FS_IOC_FSSETXATTR: u32 = 0x401c_5820;
const FS_IOC_GETVERSION: u32 = 0x8008_7601;
const FS_IOC32_GETVERSION: u32 = 0x8004_7601;
const FS_IOC_SHUTDOWN: u32 = 0x8004_587d;
const FITRIM: u32 = 0xc018_5879;
const FS_IOC_GETFSLABEL: u32 = 0x8100_9431;
const FS_IOC_SETFSLABEL: u32 = 0x4100_9432;

/// `FSLABEL_MAX`: the label's buffer, the NUL at its end included.
const LABEL_BYTES: usize = 256;
/// `struct fsxattr`.
const FSXATTR_BYTES: usize = 28;
/// Says that there are extended attributes; only ever shown.
const XFLAG_HASATTR: u32 = 0x8000_0000;

/// Does what `cmd` asks; the answer is what the kernel copies to the caller's argument.
pub(super) fn ioctl<O: Operations>(
    ops: &O,
    info: &control::Info,
    nr: InodeNr,
    cmd: u32,
    input: &[u8],
    caller: &Caller,
) -> Result<Vec<u8>> {
    match cmd {
        // The kernel's own callers want 4 bytes, whatever the number says.
        FS_IOC_GETFLAGS | FS_IOC32_GETFLAGS => Ok(ops.get_flags(nr)?.to_ne_bytes().to_vec()),
        FS_IOC_SETFLAGS | FS_IOC32_SETFLAGS => {
            ops.set_flags(nr, word(input, 0)?, caller)?;
            Ok(Vec::new())
        }
        FS_IOC_FSGETXATTR => {
            let mut fsxattr = vec![0; FSXATTR_BYTES];
            let FsXattr { xflags, projid } = ops.get_fsxattr(nr)?;
            fsxattr[..4].copy_from_slice(&xflags.to_ne_bytes());
            fsxattr[12..16].copy_from_slice(&projid.to_ne_bytes());
            Ok(fsxattr)
        }
        FS_IOC_FSSETXATTR => {
            // Extent size hints are XFS's: only "none" can be set.
            if word(input, 4)? != 0 || word(input, 16)? != 0 {
                return Err(Error::NotSupported);
            }
            let set = FsXattr { xflags: word(input, 0)? & !XFLAG_HASATTR, projid: word(input, 12)? };
            ops.set_fsxattr(nr, set, caller)?;
            Ok(Vec::new())
        }
        FS_IOC_GETVERSION | FS_IOC32_GETVERSION => Ok(ops.getattr(nr)?.generation.to_ne_bytes().to_vec()),
        FITRIM => trim(ops, input, caller),
        FS_IOC_GETFSLABEL => {
            let mut label = ops.label()?;
            label.resize(LABEL_BYTES, 0);
            Ok(label)
        }
        FS_IOC_SETFSLABEL => {
            let len = input.iter().position(|&b| b == 0).ok_or(Error::Invalid)?;
            ops.set_label(input.get(..len).unwrap_or_default(), caller)?;
            Ok(Vec::new())
        }
        FS_IOC_SHUTDOWN => {
            if !privileged(caller) {
                return Err(Error::NotPermitted);
            }
            // The mode stays in the caller's memory; the harshest is what tests want.
            ops.target().ok_or(Error::NotTty)?.shutdown(control::ShutdownMode::NoLogFlush)?;
            Ok(Vec::new())
        }
        control::COMMAND => {
            let target = ops.target().ok_or(Error::NotTty)?;
            Ok(control::answer(target, info, privileged(caller), input))
        }
        _ => Err(Error::NotTty),
    }
}

/// `struct fstrim_range`: start, length and least length in bytes; the length comes back as what was trimmed.
fn trim<O: Operations>(ops: &O, input: &[u8], caller: &Caller) -> Result<Vec<u8>> {
    if !privileged(caller) {
        return Err(Error::NotPermitted);
    }
    let field = |at: usize| {
        let bytes = input.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map(u64::from_ne_bytes).ok_or(Error::Invalid)
    };
    let trimmed = ops.trim(field(0)?, field(8)?, field(16)?)?;
    let mut range = input.get(..24).unwrap_or_default().to_vec();
    if let Some(len) = range.get_mut(8..16) {
        len.copy_from_slice(&trimmed.to_ne_bytes());
    }
    Ok(range)
}

/// What the kernel checks by `CAP_SYS_ADMIN` for its own file systems. An ordinary user who mounted is root here.
fn privileged(caller: &Caller) -> bool {
    caller.uid == 0 || caller.uid == nix::unistd::getuid().as_raw()
}

fn word(input: &[u8], at: usize) -> Result<u32> {
    let bytes = input.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
    bytes.map(u32::from_ne_bytes).ok_or(Error::Invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_argument_is_invalid_not_a_panic() {
        assert!(word(&[1, 2, 3], 0).is_err());
        assert_eq!(word(&[0, 0, 0, 0, 1, 0, 0, 0], 4).unwrap(), u32::from_ne_bytes([1, 0, 0, 0]));
    }
}
