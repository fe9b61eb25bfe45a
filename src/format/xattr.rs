//! Extended attributes as ext4 keeps them: an area behind the inode's fields (`ext4_xattr_ibody_header`)
//! and one block (`ext4_xattr_header`), both a list of `ext4_xattr_entry` from the front and values from
//! the back. Pure: called by `fs/xattr.rs`.
//!
//! [`parse`] verifies whatever [`Attributes`](AttributeRef) are handed out: names and values lie inside the area and
//! values behind the names, as the kernel's `check_xattrs` wants it. [`write_inode`] and [`write_block`] lay a whole area
//! out anew, compactly, so an edit is: parse, change the list, write.

use super::checksum::crc32c;
use super::wire::{get_u16, get_u32, put};
use crate::error::{Error, Place, Result};
use crate::units::{BlockNr, InodeNr};

/// `h_magic` of both headers.
pub const MAGIC: u32 = 0xea02_0000;
/// The most files that one attribute block serves (`EXT4_XATTR_REFCOUNT_MAX`).
pub const REFCOUNT_MAX: u32 = 1024;
/// The largest value, in bytes, that the format allows anywhere (`EXT4_XATTR_SIZE_MAX`).
pub const VALUE_MAX: u32 = 1 << 24;
/// The longest name, in bytes, without its prefix.
pub const NAME_MAX: usize = 255;

const ENTRY_BYTES: usize = 16;
const INODE_HEADER_BYTES: usize = 4;
const BLOCK_HEADER_BYTES: usize = 32;
/// Where `h_checksum` is in a block.
const CHECKSUM_AT: usize = 16;
/// The zero word behind the last entry.
const END_BYTES: usize = 4;

/// The name spaces (`e_name_index`) with the prefix that stands for each in system calls.
const PREFIXES: [(u8, &[u8]); 8] = [
    (1, b"user."),
    (2, b"system.posix_acl_access"),
    (3, b"system.posix_acl_default"),
    (4, b"trusted."),
    (6, b"security."),
    (8, b"system.richacl"),
    (7, b"system."),
    (10, b"gnu."),
];

/// `e_name_index` of `user.` names.
pub const INDEX_USER: u8 = 1;
/// `e_name_index` of the access ACL; its name is empty.
pub const INDEX_ACL_ACCESS: u8 = 2;
/// `e_name_index` of the default ACL; its name is empty.
pub const INDEX_ACL_DEFAULT: u8 = 3;
/// `e_name_index` of `trusted.` names.
pub const INDEX_TRUSTED: u8 = 4;
/// `e_name_index` of `security.` names.
pub const INDEX_SECURITY: u8 = 6;
/// `e_name_index` of `system.` names: the format's own ([`INLINE_DATA`]).
pub const INDEX_SYSTEM: u8 = 7;

/// An attribute's name as it is stored: the prefix as a number, and the rest.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Name<'a> {
    /// `e_name_index`.
    pub index: u8,
    /// What follows the prefix.
    pub suffix: &'a [u8],
}

/// Where inline data goes on when it doesn't fit in `i_block`.
pub const INLINE_DATA: Name<'_> = Name { index: INDEX_SYSTEM, suffix: b"data" };
/// The access ACL.
pub const ACL_ACCESS: Name<'_> = Name { index: INDEX_ACL_ACCESS, suffix: b"" };
/// The default ACL of a directory.
pub const ACL_DEFAULT: Name<'_> = Name { index: INDEX_ACL_DEFAULT, suffix: b"" };
/// File capabilities, which a write or a chown takes away.
pub const CAPABILITY: Name<'_> = Name { index: INDEX_SECURITY, suffix: b"capability" };

impl<'a> Name<'a> {
    /// Splits a full name ("user.mime"). `None`: a name space that the format has no number for.
    pub fn split(full: &'a [u8]) -> Option<Self> {
        PREFIXES.iter().find_map(|&(index, prefix)| {
            let suffix = full.strip_prefix(prefix)?;
            // A prefix that ends in a dot needs something behind it; one that doesn't is a whole name.
            (prefix.ends_with(b".") != suffix.is_empty()).then_some(Self { index, suffix })
        })
    }

    /// The full name. `None` for an index that has no prefix (it is skipped in lists).
    pub fn full(&self) -> Option<Vec<u8>> {
        let (_, prefix) = PREFIXES.iter().find(|(index, _)| *index == self.index)?;
        Some([prefix, self.suffix].concat())
    }

    /// The order of entries in a block: index, then length, then bytes.
    fn key(&self) -> (u8, usize, &'a [u8]) {
        (self.index, self.suffix.len(), self.suffix)
    }
}

/// Where a value is.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum ValueRef<'a> {
    /// In the area itself.
    Bytes(&'a [u8]),
    /// In an inode of its own (`ea_inode`): the value is the file's contents.
    Inode {
        /// `e_value_inum`.
        nr: InodeNr,
        /// `e_value_size`, in bytes.
        size: u32,
        /// `e_hash`: over the name and the hash of the value.
        hash: u32,
    },
}

/// One attribute of a verified area.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct AttributeRef<'a> {
    /// Its name.
    pub name: Name<'a>,
    /// Its value.
    pub value: ValueRef<'a>,
}

impl AttributeRef<'_> {
    /// Bytes of its entry with the name, and of its value in the area.
    fn bytes(&self) -> (usize, usize) {
        let value = match self.value {
            ValueRef::Bytes(bytes) => bytes.len().next_multiple_of(4),
            ValueRef::Inode { .. } => 0,
        };
        ((ENTRY_BYTES + self.name.suffix.len()).next_multiple_of(4), value)
    }
}

/// Which of the two areas: they differ in the header and in what `e_value_offs` counts from.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Area {
    /// Behind the inode's fields; the bytes given are those from `128 + i_extra_isize` on.
    Inode,
    /// A block.
    Block,
}

impl Area {
    fn header_bytes(self) -> usize {
        match self {
            Area::Inode => INODE_HEADER_BYTES,
            Area::Block => BLOCK_HEADER_BYTES,
        }
    }

    /// What `e_value_offs` is counted from.
    fn value_base(self) -> usize {
        match self {
            Area::Inode => INODE_HEADER_BYTES,
            Area::Block => 0,
        }
    }

    fn structure(self) -> &'static str {
        match self {
            Area::Inode => "in-inode attributes",
            Area::Block => "attribute block",
        }
    }

    /// Whether an area of `len` bytes holds these attributes.
    pub fn holds(self, len: usize, attributes: &[AttributeRef<'_>]) -> bool {
        let used: usize =
            attributes.iter().map(AttributeRef::bytes).map(|(entry, value)| entry + value).sum();
        self.header_bytes() + used + END_BYTES <= len
    }
}

/// Whether an inode's area has attributes: without the magic the bytes mean nothing.
pub fn inode_area_in_use(area: &[u8]) -> bool {
    area.len() >= INODE_HEADER_BYTES + END_BYTES && get_u32(area, 0) == MAGIC
}

/// All attributes of an area, in their order there. The block's header and checksum are
/// [`verify_block`]'s.
pub fn parse(area: &[u8], kind: Area, place: Place) -> Result<Vec<AttributeRef<'_>>> {
    let corrupt = |why: &str| Error::corrupt(kind.structure(), place, why);
    let mut entries = Vec::new();
    let mut at = kind.header_bytes();
    // Each round moves on by at least an entry, so the area's size bounds the loop.
    loop {
        let word = area.get(at..at + 4).ok_or_else(|| corrupt("the list of names has no end"))?;
        if word == [0; 4] {
            break;
        }
        let entry = area.get(at..at + ENTRY_BYTES).ok_or_else(|| corrupt("an entry leaves the area"))?;
        let name_len = usize::from(word[0]);
        let suffix = area
            .get(at + ENTRY_BYTES..at + ENTRY_BYTES + name_len)
            .ok_or_else(|| corrupt("a name leaves the area"))?;
        if suffix.contains(&0) {
            return Err(corrupt("a name holds a zero byte"));
        }
        // Written again it could be the list's end.
        if name_len == 0 && word[1] == 0 {
            return Err(corrupt("an entry has no name"));
        }
        entries.push((entry, Name { index: word[1], suffix }));
        at += (ENTRY_BYTES + name_len).next_multiple_of(4);
    }
    let names_end = at + END_BYTES;
    let value = |entry: &'_ [u8]| {
        let (size, nr) = (get_u32(entry, 8), get_u32(entry, 4));
        if size > VALUE_MAX {
            return Err(corrupt("a value is too large"));
        }
        if nr != 0 {
            return Ok(ValueRef::Inode { nr: InodeNr(nr), size, hash: get_u32(entry, 12) });
        }
        if size == 0 {
            return Ok(ValueRef::Bytes(&[]));
        }
        let start = usize::from(get_u16(entry, 2)) + kind.value_base();
        if start < names_end {
            return Err(corrupt("a value overlaps the names"));
        }
        let padded = (size as usize).next_multiple_of(4);
        let bytes = area.get(start..start + padded).ok_or_else(|| corrupt("a value leaves the area"))?;
        Ok(ValueRef::Bytes(bytes.get(..size as usize).unwrap_or_default()))
    };
    entries.into_iter().map(|(entry, name)| Ok(AttributeRef { name, value: value(entry)? })).collect()
}

/// Lays the attributes out behind the header; the area is zero elsewhere. They fit ([`Area::holds`]).
fn write_list(area: &mut [u8], kind: Area, attributes: &[AttributeRef<'_>]) {
    let mut at = kind.header_bytes();
    let mut values = area.len();
    for attribute in attributes {
        let Name { index, suffix } = attribute.name;
        let mut entry = [0; ENTRY_BYTES];
        entry[0] = suffix.len() as u8;
        entry[1] = index;
        let hash = match attribute.value {
            ValueRef::Bytes(bytes) => {
                if !bytes.is_empty() {
                    values = values.saturating_sub(bytes.len().next_multiple_of(4));
                    put(area, values, bytes);
                    put(&mut entry, 2, &((values - kind.value_base()) as u16).to_le_bytes());
                }
                put(&mut entry, 8, &(bytes.len() as u32).to_le_bytes());
                // The kernel leaves e_hash zero in the inode: nothing is shared there.
                if kind == Area::Block {
                    entry_hash(suffix, bytes)
                } else {
                    0
                }
            }
            ValueRef::Inode { nr, size, hash } => {
                put(&mut entry, 4, &nr.0.to_le_bytes());
                put(&mut entry, 8, &size.to_le_bytes());
                hash
            }
        };
        put(&mut entry, 12, &hash.to_le_bytes());
        put(area, at, &entry);
        put(area, at + ENTRY_BYTES, suffix);
        at += attribute.bytes().0;
    }
}

/// Fills the area behind an inode's fields; with no attributes it is left zero.
/// [`Error::NoSpace`] if they don't fit, and then nothing was changed.
pub fn write_inode(area: &mut [u8], attributes: &[AttributeRef<'_>]) -> Result<()> {
    if !Area::Inode.holds(area.len(), attributes) {
        return if attributes.is_empty() { Ok(()) } else { Err(Error::NoSpace) };
    }
    area.fill(0);
    if !attributes.is_empty() {
        put(area, 0, &MAGIC.to_le_bytes());
        write_list(area, Area::Inode, attributes);
    }
    Ok(())
}

/// Fills a block that serves one file: header, sorted entries, hashes. Not sealed yet: [`seal_block`].
/// [`Error::NoSpace`] if the attributes don't fit, and then nothing was changed.
pub fn write_block(block: &mut [u8], attributes: &mut [AttributeRef<'_>]) -> Result<()> {
    if !Area::Block.holds(block.len(), attributes) {
        return Err(Error::NoSpace);
    }
    attributes.sort_by_key(|a| a.name.key());
    block.fill(0);
    put(block, 0, &MAGIC.to_le_bytes());
    put(block, 4, &1u32.to_le_bytes());
    put(block, 8, &1u32.to_le_bytes());
    write_list(block, Area::Block, attributes);
    let hash = block_hash(block);
    put(block, 12, &hash.to_le_bytes());
    Ok(())
}

/// `e_hash` over the name and the value's bytes, padded with zeroes to whole words. The format's chars are unsigned;
/// old kernels on some machines took them as signed, see [`inode_value_hash_matches`].
pub fn entry_hash(suffix: &[u8], value: &[u8]) -> u32 {
    let words = value.chunks(4).map(|chunk| {
        let mut word = [0; 4];
        put(&mut word, 0, chunk);
        u32::from_le_bytes(word)
    });
    fold_words(suffix.iter().fold(0, |hash, byte| fold_char(hash, u32::from(*byte))), words)
}

fn fold_char(hash: u32, char: u32) -> u32 {
    hash.rotate_left(5) ^ char
}

fn fold_words(hash: u32, words: impl Iterator<Item = u32>) -> u32 {
    words.fold(hash, |hash, word| hash.rotate_left(16) ^ word)
}

/// Whether `e_hash` of an attribute kept in an inode of its own fits its name and its value's bytes.
/// `csum_seed` is the file system's.
pub fn inode_value_hash_matches(hash: u32, suffix: &[u8], value: &[u8], csum_seed: u32) -> bool {
    let word = crc32c(csum_seed, value);
    let of = |char: fn(u8) -> u32| {
        fold_words(suffix.iter().fold(0, |hash, byte| fold_char(hash, char(*byte))), std::iter::once(word))
    };
    hash == of(u32::from) || hash == of(|byte| byte as i8 as u32)
}

/// `h_hash`: over all `e_hash`; zero (not to be shared) if one of them is zero.
fn block_hash(block: &[u8]) -> u32 {
    let mut hash: u32 = 0;
    let mut at = BLOCK_HEADER_BYTES;
    while get_u32(block, at) != 0 {
        match get_u32(block, at + 12) {
            0 => return 0,
            entry => hash = hash.rotate_left(16) ^ entry,
        }
        at += (ENTRY_BYTES + usize::from(get_u16(block, at) as u8)).next_multiple_of(4);
    }
    hash
}

/// `h_refcount`: how many files the block serves.
pub fn refcount(block: &[u8]) -> u32 {
    get_u32(block, 4)
}

/// Changes `h_refcount`; the block is to be sealed after it.
pub fn set_refcount(block: &mut [u8], count: u32) {
    put(block, 4, &count.to_le_bytes());
}

/// `h_checksum`: over the block's number and its bytes, those of the checksum itself as zero.
fn block_checksum(block: &[u8], nr: BlockNr, csum_seed: u32) -> u32 {
    let crc = crc32c(csum_seed, &nr.0.to_le_bytes());
    let crc = crc32c(crc, block.get(..CHECKSUM_AT).unwrap_or_default());
    let crc = crc32c(crc, &[0; 4]);
    crc32c(crc, block.get(CHECKSUM_AT + 4..).unwrap_or_default())
}

/// Puts the checksum in. `csum_seed`: the file system's, if it has metadata_csum.
pub fn seal_block(block: &mut [u8], nr: BlockNr, csum_seed: Option<u32>) {
    if let Some(seed) = csum_seed {
        let checksum = block_checksum(block, nr, seed);
        put(block, CHECKSUM_AT, &checksum.to_le_bytes());
    }
}

/// Verifies a block's checksum and header; its list is [`parse`]'s.
pub fn verify_block(block: &[u8], nr: BlockNr, csum_seed: Option<u32>) -> Result<()> {
    let corrupt = |why: &str| Err(Error::corrupt("attribute block", Place::Block(nr), why));
    if get_u32(block, 0) != MAGIC {
        return corrupt("bad magic");
    }
    if csum_seed.is_some_and(|seed| get_u32(block, CHECKSUM_AT) != block_checksum(block, nr, seed)) {
        return corrupt("bad checksum");
    }
    if get_u32(block, 8) != 1 {
        return corrupt("it claims more than one block");
    }
    if refcount(block) == 0 || refcount(block) > REFCOUNT_MAX {
        return corrupt("impossible reference count");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PLACE: Place = Place::Block(BlockNr(9));

    fn user<'a>(suffix: &'a [u8], value: &'a [u8]) -> AttributeRef<'a> {
        AttributeRef { name: Name { index: INDEX_USER, suffix }, value: ValueRef::Bytes(value) }
    }

    #[test]
    fn names_split_and_join() {
        for full in ["user.a", "trusted.x.y", "security.selinux", "system.posix_acl_access", "system.data"] {
            let name = Name::split(full.as_bytes()).unwrap();
            assert_eq!(name.full().unwrap(), full.as_bytes());
        }
        assert_eq!(Name::split(b"system.posix_acl_default"), Some(ACL_DEFAULT));
        for bad in ["user.", "usr.a", "", "user"] {
            assert_eq!(Name::split(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn areas_come_back_as_written() {
        let list = [user(b"name", b"12345"), user(b"b", b""), user(b"", b"x")];
        let mut area = [1; 100];
        write_inode(&mut area, &list).unwrap();
        assert!(inode_area_in_use(&area));
        assert_eq!(parse(&area, Area::Inode, PLACE).unwrap(), list);
        write_inode(&mut area, &[]).unwrap();
        assert_eq!(area, [0; 100]);
        let mut block = vec![1; 1024];
        let mut sorted = list;
        write_block(&mut block, &mut sorted).unwrap();
        assert_eq!(sorted, [list[2], list[1], list[0]]);
        seal_block(&mut block, BlockNr(9), Some(7));
        verify_block(&block, BlockNr(9), Some(7)).unwrap();
        assert!(verify_block(&block, BlockNr(8), Some(7)).is_err());
        assert_eq!(parse(&block, Area::Block, PLACE).unwrap(), sorted);
    }

    #[test]
    fn a_full_area_refuses_the_byte_too_many() {
        let value = [5; 64];
        // Header 4, entry 16 + 4, end 4: 28 bytes beside the value.
        assert!(write_inode(&mut [0; 92], &[user(b"abcd", &value)]).is_ok());
        let mut area = [3; 91];
        assert!(write_inode(&mut area, &[user(b"abcd", &value)]).unwrap_err().is(libc::ENOSPC));
        assert_eq!(area, [3; 91]);
        assert!(write_inode(&mut [0; 4], &[]).is_ok());
    }

    #[test]
    fn damage_is_named() {
        let mut area = [0; 100];
        write_inode(&mut area, &[user(b"name", b"12345")]).unwrap();
        let damaged = |at: usize, byte: u8| {
            let mut bad = area;
            bad[at] = byte;
            parse(&bad, Area::Inode, PLACE).map_err(|e| e.to_string()).map(|l| l.len())
        };
        assert!(damaged(4, 200).unwrap_err().contains("name leaves"));
        assert!(damaged(6, 8).unwrap_err().contains("overlaps"));
        assert!(damaged(6, 200).unwrap_err().contains("value leaves"));
        assert!(damaged(15, 2).unwrap_err().contains("too large"));
        assert!(damaged(20, 0).unwrap_err().contains("zero byte"));
        assert!(parse(
            &[0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            Area::Inode,
            PLACE
        )
        .unwrap_err()
        .to_string()
        .contains("no name"));
        assert!(parse(&[0xff; 64], Area::Inode, PLACE).is_err());
        assert_eq!(damaged(5, 6), Ok(1));
    }

    #[test]
    fn hashes_are_the_kernels() {
        // debugfs and e2fsck agree with these: name "a" (0x61), value "b" in one padded word.
        assert_eq!(entry_hash(b"a", b""), 0x61);
        assert_eq!(entry_hash(b"a", b"b"), 0x61 << 16 ^ 0x62);
        let (seed, value) = (3, b"value".as_slice());
        let unsigned = 0xc3_u32.rotate_left(16) ^ crc32c(seed, value);
        let signed = 0xffff_ffc3_u32.rotate_left(16) ^ crc32c(seed, value);
        assert!(inode_value_hash_matches(unsigned, &[0xc3], value, seed));
        assert!(inode_value_hash_matches(signed, &[0xc3], value, seed));
        assert!(!inode_value_hash_matches(signed ^ 1, &[0xc3], value, seed));
    }

    proptest! {
        #[test]
        fn any_bytes_parse_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), len in 0u8..9) {
            let mut bytes = bytes;
            if let Some(first) = bytes.get_mut(4) {
                *first = len;
            }
            let _ = parse(&bytes, Area::Inode, PLACE);
            let _ = parse(&bytes, Area::Block, PLACE);
            let _ = verify_block(&bytes, BlockNr(1), None);
        }
    }
}
