//! POSIX ACLs in their two encodings: ext4's on-disk one (`ext4_acl_header`, version 1, short entries
//! for the tags without an id) and the one that system calls carry (`posix_acl_xattr_header`, version 2);
//! and the rules of POSIX.1e draft 17 that tie an ACL to a mode. Pure: called by `fs/acl.rs`.

use crate::error::{Error, Result};

const DISK_VERSION: u32 = 1;
const XATTR_VERSION: u32 = 2;
const HEADER_BYTES: usize = 4;
const SHORT_ENTRY_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;
/// `e_id` of an entry whose tag has none, in the system-call form.
const UNDEFINED_ID: u32 = u32::MAX;

const RWX: u16 = 0o7;

/// Whom an entry is about (`e_tag`), with the id where the tag has one. The order is the one that
/// entries must have.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Tag {
    /// The file's owner.
    UserObj,
    /// A user, by uid.
    User(u32),
    /// The file's group.
    GroupObj,
    /// A group, by gid.
    Group(u32),
    /// The most that `User`, `GroupObj` and `Group` entries can grant.
    Mask,
    /// Everybody else.
    Other,
}

impl Tag {
    fn decode(tag: u16, id: u32) -> Option<Self> {
        Some(match tag {
            0x01 => Tag::UserObj,
            0x02 => Tag::User(id),
            0x04 => Tag::GroupObj,
            0x08 => Tag::Group(id),
            0x10 => Tag::Mask,
            0x20 => Tag::Other,
            _ => return None,
        })
    }

    /// `e_tag`, and the id if the tag has one.
    fn encode(self) -> (u16, Option<u32>) {
        match self {
            Tag::UserObj => (0x01, None),
            Tag::User(id) => (0x02, Some(id)),
            Tag::GroupObj => (0x04, None),
            Tag::Group(id) => (0x08, Some(id)),
            Tag::Mask => (0x10, None),
            Tag::Other => (0x20, None),
        }
    }

    /// The tag's place in the required order, without the id: the kernel doesn't ask for sorted ids.
    fn rank(self) -> u8 {
        match self {
            Tag::UserObj => 0,
            Tag::User(_) => 1,
            Tag::GroupObj => 2,
            Tag::Group(_) => 3,
            Tag::Mask => 4,
            Tag::Other => 5,
        }
    }
}

/// One entry: `perm` is the three rwx bits.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Whom it is about.
    pub tag: Tag,
    /// What they may (0 to 7).
    pub perm: u16,
}

/// A valid ACL: entries in order, owner, group and other present once, and a mask if there is a named entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acl(Vec<Entry>);

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

impl Acl {
    /// An ACL of these entries, if they are valid (`posix_acl_valid`).
    pub fn new(entries: Vec<Entry>) -> Option<Self> {
        let mut last = None;
        let (mut singles, mut named, mut mask) = (0, false, false);
        for entry in &entries {
            let rank = entry.tag.rank();
            let repeats = matches!(entry.tag, Tag::User(_) | Tag::Group(_));
            if entry.perm & !RWX != 0 || last.is_some_and(|l| rank < l || (rank == l && !repeats)) {
                return None;
            }
            match entry.tag {
                Tag::UserObj | Tag::GroupObj | Tag::Other => singles += 1,
                Tag::User(id) | Tag::Group(id) if id == UNDEFINED_ID => return None,
                Tag::User(_) | Tag::Group(_) => named = true,
                Tag::Mask => mask = true,
            }
            last = Some(rank);
        }
        (singles == 3 && (mask || !named)).then_some(Self(entries))
    }

    /// The ACL that says the same as a mode.
    pub fn from_mode(mode: u16) -> Self {
        let entry = |tag, shift: u16| Entry { tag, perm: mode >> shift & RWX };
        Self(vec![entry(Tag::UserObj, 6), entry(Tag::GroupObj, 3), entry(Tag::Other, 0)])
    }

    /// The entries, in order.
    pub fn entries(&self) -> &[Entry] {
        &self.0
    }

    /// Decodes the on-disk form (the value of the attribute in the file system).
    /// `None`: this is not a valid ACL.
    pub fn from_disk(bytes: &[u8]) -> Option<Self> {
        if u32_at(bytes, 0)? != DISK_VERSION {
            return None;
        }
        let mut entries = Vec::with_capacity(bytes.len() / SHORT_ENTRY_BYTES);
        let mut at = HEADER_BYTES;
        while at < bytes.len() {
            let (tag, perm) = (u16_at(bytes, at)?, u16_at(bytes, at + 2)?);
            let mut tag = Tag::decode(tag, 0)?;
            at += SHORT_ENTRY_BYTES;
            if let Tag::User(id) | Tag::Group(id) = &mut tag {
                *id = u32_at(bytes, at)?;
                at += ENTRY_BYTES - SHORT_ENTRY_BYTES;
            }
            entries.push(Entry { tag, perm });
        }
        Self::new(entries)
    }

    /// The on-disk form.
    pub fn to_disk(&self) -> Vec<u8> {
        let mut bytes = DISK_VERSION.to_le_bytes().to_vec();
        for entry in &self.0 {
            let (tag, id) = entry.tag.encode();
            bytes.extend(tag.to_le_bytes());
            bytes.extend(entry.perm.to_le_bytes());
            if let Some(id) = id {
                bytes.extend(id.to_le_bytes());
            }
        }
        bytes
    }

    /// Decodes what `setxattr(2)` brings. `Ok(None)`: an ACL without entries, which asks for removal.
    pub fn from_xattr(bytes: &[u8]) -> Result<Option<Self>> {
        let version = u32_at(bytes, 0).ok_or(Error::Invalid)?;
        if version != XATTR_VERSION {
            return Err(Error::NotSupported);
        }
        let body = bytes.get(HEADER_BYTES..).unwrap_or_default();
        if body.len() % ENTRY_BYTES != 0 {
            return Err(Error::Invalid);
        }
        if body.is_empty() {
            return Ok(None);
        }
        let decode = |entry: &[u8]| {
            let (tag, perm, id) = (u16_at(entry, 0)?, u16_at(entry, 2)?, u32_at(entry, 4)?);
            Some(Entry { tag: Tag::decode(tag, id)?, perm })
        };
        let entries: Option<Vec<_>> = body.chunks_exact(ENTRY_BYTES).map(decode).collect();
        entries.and_then(Self::new).map(Some).ok_or(Error::Invalid)
    }

    /// What `getxattr(2)` returns.
    pub fn to_xattr(&self) -> Vec<u8> {
        let mut bytes = XATTR_VERSION.to_le_bytes().to_vec();
        for entry in &self.0 {
            let (tag, id) = entry.tag.encode();
            bytes.extend(tag.to_le_bytes());
            bytes.extend(entry.perm.to_le_bytes());
            bytes.extend(id.unwrap_or(UNDEFINED_ID).to_le_bytes());
        }
        bytes
    }

    /// The permission bits that `stat(2)` shows for this access ACL; the rest of `mode` is kept.
    #[must_use]
    pub fn mode(&self, mode: u16) -> u16 {
        let perm = |shift: u16| self.class(shift).map_or(0, |e| e.perm << shift);
        (mode & !0o777) | perm(6) | perm(3) | perm(0)
    }

    /// Whether a mode says all that this ACL says (`posix_acl_equiv_mode` returns 0).
    pub fn is_minimal(&self) -> bool {
        self.0.iter().all(|e| matches!(e.tag, Tag::UserObj | Tag::GroupObj | Tag::Other))
    }

    /// The entry behind a class of mode bits: the mask, where there is one, stands for the group.
    fn class(&self, shift: u16) -> Option<&Entry> {
        let of = |tag| self.0.iter().find(move |e| e.tag == tag);
        match shift {
            6 => of(Tag::UserObj),
            3 => of(Tag::Mask).or_else(|| of(Tag::GroupObj)),
            _ => of(Tag::Other),
        }
    }

    fn for_each_class(&mut self, mut f: impl FnMut(&mut u16, u16)) {
        let masked = self.0.iter().any(|e| e.tag == Tag::Mask);
        for entry in &mut self.0 {
            match entry.tag {
                Tag::UserObj => f(&mut entry.perm, 6),
                Tag::Mask => f(&mut entry.perm, 3),
                Tag::GroupObj if !masked => f(&mut entry.perm, 3),
                Tag::Other => f(&mut entry.perm, 0),
                _ => {}
            }
        }
    }

    /// Follows a chmod: owner, mask (or group) and other take the mode's bits.
    pub fn chmod(&mut self, mode: u16) {
        self.for_each_class(|perm, shift| *perm = mode >> shift & RWX);
    }

    /// Makes a parent's default ACL the access ACL of a new file that is created with `mode`: neither
    /// grants what the other withholds (`posix_acl_create_masq`). Returns the new file's mode.
    #[must_use]
    pub fn create(&mut self, mode: u16) -> u16 {
        self.for_each_class(|perm, shift| *perm &= mode >> shift & RWX);
        self.mode(mode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn acl(entries: &[(Tag, u16)]) -> Acl {
        Acl::new(entries.iter().map(|&(tag, perm)| Entry { tag, perm }).collect()).unwrap()
    }

    fn full() -> Acl {
        acl(&[
            (Tag::UserObj, 7),
            (Tag::User(1000), 6),
            (Tag::GroupObj, 5),
            (Tag::Group(70000), 4),
            (Tag::Mask, 7),
            (Tag::Other, 1),
        ])
    }

    #[test]
    fn the_encodings_are_the_kernels() {
        let bytes = full().to_disk();
        assert_eq!(bytes.len(), 4 + 4 * 4 + 2 * 8);
        assert_eq!(bytes[..16], [1, 0, 0, 0, 1, 0, 7, 0, 2, 0, 6, 0, 0xe8, 3, 0, 0]);
        assert_eq!(Acl::from_disk(&bytes), Some(full()));
        let bytes = full().to_xattr();
        assert_eq!(bytes[..12], [2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255]);
        assert_eq!(Acl::from_xattr(&bytes).unwrap(), Some(full()));
        assert!(Acl::from_xattr(&[2, 0, 0, 0]).unwrap().is_none());
        assert!(Acl::from_xattr(&[1, 0, 0, 0]).unwrap_err().is(libc::EOPNOTSUPP));
        assert!(Acl::from_xattr(&bytes[..15]).unwrap_err().is(libc::EINVAL));
    }

    #[test]
    fn order_and_mask_are_required() {
        let entry = |tag, perm| Entry { tag, perm };
        let minimal = [entry(Tag::UserObj, 7), entry(Tag::GroupObj, 0), entry(Tag::Other, 0)];
        assert!(Acl::new(minimal.to_vec()).is_some());
        assert!(Acl::new(minimal[..2].to_vec()).is_none());
        assert!(Acl::new(vec![minimal[1], minimal[0], minimal[2]]).is_none());
        let mut named = minimal.to_vec();
        named.insert(1, entry(Tag::User(1), 7));
        assert!(Acl::new(named.clone()).is_none());
        named.insert(3, entry(Tag::Mask, 7));
        assert!(Acl::new(named.clone()).is_some());
        named[1].perm = 8;
        assert!(Acl::new(named).is_none());
    }

    #[test]
    fn modes_follow_the_mask() {
        let mut acl = full();
        assert_eq!(acl.mode(0o100_000), 0o100_771);
        acl.chmod(0o640);
        assert_eq!(acl.entries()[4].perm, 4);
        assert_eq!(acl.entries()[2].perm, 5);
        assert_eq!(acl.mode(0), 0o640);
        assert!(!acl.is_minimal() && Acl::from_mode(0o644).is_minimal());
        assert_eq!(Acl::from_mode(0o4751).mode(0o4000), 0o4751);
    }

    #[test]
    fn a_new_file_gets_no_more_than_mode_and_default_acl_both_grant() {
        let mut acl = full();
        assert_eq!(acl.create(0o100_666), 0o100_660);
        assert_eq!(acl.entries()[0].perm, 6);
        assert_eq!(acl.entries()[4].perm, 6);
        assert_eq!(acl.entries()[5].perm, 0);
    }

    proptest! {
        #[test]
        fn any_bytes_decode_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Some(acl) = Acl::from_disk(&bytes) {
                prop_assert_eq!(acl.to_disk(), bytes.clone());
            }
            let _ = Acl::from_xattr(&bytes);
        }
    }
}
