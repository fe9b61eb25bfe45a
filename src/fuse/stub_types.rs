//! stub
/// stub
pub use crate::format::time::Timestamp;
use crate::units::InodeNr;
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    pub uid: u32,
    pub gid: u32,
    pub pid: u32,
}
#[derive(Clone, Copy, Debug)]
pub struct Attr {
    pub nr: InodeNr,
    pub generation: u32,
    pub size: u64,
    pub blocks: u64,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    pub crtime: Timestamp,
    pub mode: u16,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    pub block_bytes: u32,
}
#[derive(Clone, Copy, Debug)]
pub enum TimeOrNow {
    Now,
    Time(Timestamp),
}
#[derive(Clone, Copy, Debug, Default)]
pub struct SetAttr {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<TimeOrNow>,
    pub mtime: Option<TimeOrNow>,
    pub ctime: Option<Timestamp>,
    pub kill_suid_sgid: bool,
}
#[derive(Clone, Copy, Debug)]
pub struct DirEntry<'a> {
    pub nr: InodeNr,
    pub kind: u8,
    pub name: &'a [u8],
    pub next_cookie: u64,
}
bitflags::bitflags! { #[derive(Clone, Copy, Debug, PartialEq, Eq)] pub struct RenameFlags: u32 { const NOREPLACE = 1; const EXCHANGE = 2; const WHITEOUT = 4; } }
#[derive(Clone, Copy, Debug)]
pub struct StatFs {
    pub block_bytes: u32,
    pub blocks: u64,
    pub free: u64,
    pub available: u64,
    pub inodes: u64,
    pub free_inodes: u64,
    pub name_max: u32,
}
#[derive(Clone, Copy, Debug)]
pub struct FsXattr {
    pub xflags: u32,
    pub projid: u32,
}
