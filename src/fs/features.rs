//! Which feature flags let a file system be mounted, and how; docs/DESIGN.md has the table.

use super::options::ErrorsPolicy;
use crate::error::{Error, Result};
use crate::format::features::{Features, Incompat, RoCompat};

/// What may be done with a file system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    /// Everything.
    ReadWrite,
    /// Reading; the text says why.
    ReadOnly(String),
}

/// Decides by the features. A read-write mount of what can only be read is refused when the kernel would write more
/// than we know (quota and the like); where we merely don't write it, the mount becomes read-only.
pub(crate) fn check(features: &Features, read_only: bool) -> Result<Access> {
    let refused = [
        (Incompat::COMPRESSION, "compression"),
        (Incompat::JOURNAL_DEV, "journal_dev (a journal device, not a file system)"),
        (Incompat::ENCRYPT, "encrypt"),
        (Incompat::CASEFOLD, "casefold"),
        (Incompat::DIRDATA, "dirdata"),
    ];
    for (flag, name) in refused {
        if features.incompat.contains(flag) {
            return Err(Error::Unsupported(format!(
                "the file system has feature {name}, which is not supported"
            )));
        }
    }
    let unknown = features.incompat.bits() & !Incompat::KNOWN.bits();
    if unknown != 0 {
        return Err(Error::Unsupported(format!(
            "the file system has unknown incompatible features ({unknown:#x})"
        )));
    }
    let only_read = [
        (RoCompat::BIGALLOC, "bigalloc"),
        (RoCompat::QUOTA, "quota"),
        (RoCompat::PROJECT, "project"),
        (RoCompat::VERITY, "verity"),
        (RoCompat::SHARED_BLOCKS, "shared_blocks"),
    ];
    for (flag, name) in only_read {
        if features.ro_compat.contains(flag) && !read_only {
            return Err(Error::Unsupported(format!(
                "the file system has feature {name}, which can only be read: mount it with -o ro"
            )));
        }
    }
    let unknown = features.ro_compat.bits() & !known_ro_compat().bits();
    if unknown != 0 && !read_only {
        return Err(Error::Unsupported(format!(
            "the file system has unknown features ({unknown:#x}) that allow reading only: mount it with -o ro"
        )));
    }
    let not_written = [(Incompat::INLINE_DATA, "inline_data"), (Incompat::MMP, "mmp")];
    for (flag, name) in not_written {
        if features.incompat.contains(flag) {
            return Ok(Access::ReadOnly(format!("feature {name} is read, not written")));
        }
    }
    Ok(Access::ReadWrite)
}

fn known_ro_compat() -> RoCompat {
    RoCompat::SPARSE_SUPER
        | RoCompat::LARGE_FILE
        | RoCompat::HUGE_FILE
        | RoCompat::GDT_CSUM
        | RoCompat::DIR_NLINK
        | RoCompat::EXTRA_ISIZE
        | RoCompat::QUOTA
        | RoCompat::BIGALLOC
        | RoCompat::METADATA_CSUM
        | RoCompat::PROJECT
        | RoCompat::SHARED_BLOCKS
        | RoCompat::VERITY
        | RoCompat::ORPHAN_PRESENT
}

/// `s_errors` as a policy.
pub(crate) fn errors_policy(errors: u16) -> ErrorsPolicy {
    match errors {
        2 => ErrorsPolicy::RemountReadOnly,
        3 => ErrorsPolicy::Panic,
        _ => ErrorsPolicy::Continue,
    }
}
