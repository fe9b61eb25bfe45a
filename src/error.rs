//! One error type for the library; [`Error::errno`] is the one place where errors become errno.

use crate::units::{BlockNr, GroupNr, InodeNr};
use std::io;

/// What every fallible call here returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Where a corrupt structure is.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// A device block.
    Block(BlockNr),
    /// An inode.
    Inode(InodeNr),
    /// A block group.
    Group(GroupNr),
    /// A block of the log, counted from the journal's first.
    LogBlock(u32),
    /// The whole file system.
    FileSystem,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Block(nr) => write!(f, "block {nr}"),
            Place::Inode(nr) => write!(f, "inode {nr}"),
            Place::Group(nr) => write!(f, "group {nr}"),
            Place::LogBlock(nr) => write!(f, "log block {nr}"),
            Place::FileSystem => f.write_str("the file system"),
        }
    }
}

/// Why an operation did not happen. Nothing of a failed operation is left behind in a transaction.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device failed a read, write or flush.
    #[error("{what}: {source}")]
    Io {
        /// What was being done, with its place.
        what: String,
        /// The device's own error.
        source: io::Error,
    },
    /// A structure on the disk is not what the format says. Maps to EUCLEAN.
    #[error("corrupt {structure} at {place}: {why}")]
    Corrupt {
        /// The on-disk structure, in the format's words ("extent node", "group descriptor").
        structure: &'static str,
        /// Where it is.
        place: Place,
        /// What is wrong with it.
        why: String,
    },
    /// The file system needs something that journalfs doesn't do; the text names it.
    #[error("{0}")]
    Unsupported(String),
    /// A mount option or argument makes no sense; the text names it.
    #[error("{0}")]
    Usage(String),
    /// An earlier failure stopped the journal: nothing can be written any more.
    #[error("the journal has been aborted")]
    Aborted,
    /// A read that the caller must do outside a transaction before it tries again
    /// (never leaves [`crate::cache::BlockCache::update`]).
    #[error("{0:?} is not in memory")]
    NotCached(BlockNr),
    /// A failure that POSIX names, by its number (`libc::ENOENT`, ...).
    #[error("{}", nix::errno::Errno::from_raw(*.0).desc())]
    Posix(i32),
}

impl Error {
    /// A corrupt structure.
    pub fn corrupt(structure: &'static str, place: Place, why: impl Into<String>) -> Self {
        Error::Corrupt { structure, place, why: why.into() }
    }

    /// A device error while doing `what`.
    pub fn io(what: impl Into<String>, source: io::Error) -> Self {
        Error::Io { what: what.into(), source }
    }

    /// The errno for the program that made the call.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Io { source, .. } if source.raw_os_error() == Some(libc::ENOSPC) => libc::ENOSPC,
            Error::Io { .. } | Error::NotCached(_) => libc::EIO,
            Error::Corrupt { .. } => libc::EUCLEAN,
            Error::Unsupported(_) => libc::EOPNOTSUPP,
            Error::Usage(_) => libc::EINVAL,
            Error::Aborted => libc::EROFS,
            Error::Posix(errno) => *errno,
        }
    }

    /// Whether this is the POSIX failure `errno`.
    pub fn is(&self, errno: i32) -> bool {
        matches!(self, Error::Posix(e) if *e == errno)
    }
}

/// Shorthands for the failures that the file system itself decides on.
macro_rules! posix {
    ($($name:ident = $errno:ident),* $(,)?) => {
        #[allow(non_upper_case_globals, missing_docs)]
        impl Error {
            $(pub const $name: Error = Error::Posix(libc::$errno);)*
        }
    };
}

posix! {
    NotFound = ENOENT, Exists = EEXIST, NotDirectory = ENOTDIR, IsDirectory = EISDIR,
    NotEmpty = ENOTEMPTY, NoSpace = ENOSPC, ReadOnly = EROFS, NameTooLong = ENAMETOOLONG,
    TooManyLinks = EMLINK, FileTooBig = EFBIG, NotPermitted = EPERM, Access = EACCES,
    Invalid = EINVAL, NoData = ENODATA, Range = ERANGE, Busy = EBUSY, Stale = ESTALE,
    NoSuchAddress = ENXIO, NotSupported = EOPNOTSUPP, CrossDevice = EXDEV, Overflow = EOVERFLOW,
    BadHandle = EBADF, NotTty = ENOTTY, QuotaExceeded = EDQUOT, TooLoopy = ELOOP,
}
