//! What the operations exchange with the front-end.

pub use crate::fs::attr::{Attr, Caller, SetAttr, TimeOrNow};
pub use crate::fs::dir::DirEntry;
pub use crate::fs::{FsXattr, RenameFlags, StatFs};
