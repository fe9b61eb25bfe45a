//! Directory entries (`ext4_dir_entry_2`) and the blocks they fill, with the checksum in a block's tail.
//! Called by `fs/dir`, mkfs and fsck; calls `checksum` and `wire`.
//!
//! Invariants of a block: the entries cover it from its first byte to the tail (or its end) without a gap;
//! every `rec_len` is a multiple of 4 and holds its name; an entry with inode 0 is free space.

use super::checksum::crc32c;
use super::wire;
use crate::units::InodeNr;

/// The longest name, in bytes (`EXT4_NAME_LEN`).
pub const NAME_MAX: usize = 255;
/// Bytes before an entry's name.
const HEADER: usize = 8;
/// Bytes of the checksum's fake entry at a block's end (`ext4_dir_entry_tail`).
pub const TAIL_BYTES: usize = 12;
/// The smallest entry.
pub const ENTRY_MIN: usize = 12;
/// The file type that marks the tail (`EXT4_FT_DIR_CSUM`).
const TAIL_KIND: u8 = 0xde;

/// One entry of a block.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Where it begins in the block.
    pub offset: usize,
    /// How far the next one is.
    pub rec_len: usize,
    /// What it names; 0 for free space.
    pub inode: u32,
    /// Its file type (see [`FileKind::dirent_type`](super::FileKind::dirent_type)); 0 where the file system has no filetype feature.
    pub kind: u8,
    /// The name, without `/` or NUL in a sound file system.
    pub name: &'a [u8],
}

impl Entry<'_> {
    /// Whether it names something.
    pub fn in_use(&self) -> bool {
        self.inode != 0
    }

    /// The bytes it needs; one without a name, which only damage makes, no less than any other.
    pub fn used(&self) -> usize {
        if self.in_use() {
            entry_bytes(self.name.len()).max(ENTRY_MIN)
        } else {
            0
        }
    }
}

/// The bytes that an entry with a name of `name_len` bytes takes (`EXT4_DIR_REC_LEN`).
pub fn entry_bytes(name_len: usize) -> usize {
    (HEADER + name_len).next_multiple_of(4)
}

/// `rec_len` as stored: 64 KiB does not fit in 16 bits, so the low two bits hold the highest ones.
fn rec_len_to_disk(len: usize, block_bytes: usize) -> u16 {
    if len < 65536 {
        len as u16
    } else if len == block_bytes {
        if block_bytes == 65536 {
            u16::MAX
        } else {
            0
        }
    } else {
        ((len & 0xfffc) | (len >> 16 & 3)) as u16
    }
}

fn rec_len_from_disk(raw: u16, block_bytes: usize) -> usize {
    if block_bytes < 65536 {
        raw as usize
    } else if raw == u16::MAX || raw == 0 {
        block_bytes
    } else {
        raw as usize & 0xfffc | (raw as usize & 3) << 16
    }
}

/// The entry at `offset` of the first `usable` bytes of a block, checked as `ext4_check_dir_entry` does.
pub fn entry_at(block: &[u8], usable: usize, offset: usize) -> Result<Entry<'_>, &'static str> {
    const CUT: &str = "an entry is cut off by the block's end";
    let header = block.get(offset..offset.saturating_add(HEADER)).ok_or(CUT)?;
    let inode = wire::get_u32(header, 0);
    let rec_len = rec_len_from_disk(wire::get_u16(header, 4), block.len());
    let (name_len, kind) = (header[6] as usize, header[7]);
    if rec_len < ENTRY_MIN {
        return Err("an entry's length is too small");
    }
    if rec_len % 4 != 0 {
        return Err("an entry's length is not a multiple of 4");
    }
    if rec_len < entry_bytes(name_len) {
        return Err("an entry is too short for its name");
    }
    let next = offset + rec_len;
    if next > usable {
        return Err("an entry runs over the block's end");
    }
    if next != usable && next > usable.saturating_sub(ENTRY_MIN) {
        return Err("an entry leaves too little room before the block's end");
    }
    let name = block.get(offset + HEADER..offset + HEADER + name_len).ok_or(CUT)?;
    Ok(Entry { offset, rec_len, inode, kind, name })
}

/// The entries of a block's first `usable` bytes, free ones too. Ends after the first bad one.
pub fn entries(block: &[u8], usable: usize) -> impl Iterator<Item = Result<Entry<'_>, &'static str>> {
    let mut offset = 0;
    std::iter::from_fn(move || {
        if offset >= usable {
            return None;
        }
        let entry = entry_at(block, usable, offset);
        offset = entry.map_or(usable, |e| offset + e.rec_len);
        Some(entry)
    })
}

/// Writes an entry; `false` (and nothing written) if it doesn't fit in the block.
#[must_use]
pub fn put(block: &mut [u8], offset: usize, rec_len: usize, inode: InodeNr, kind: u8, name: &[u8]) -> bool {
    let block_bytes = block.len();
    let end = offset.saturating_add(rec_len);
    if name.len() > NAME_MAX || rec_len < entry_bytes(name.len()).max(ENTRY_MIN) || end > block_bytes {
        return false;
    }
    let Some(entry) = block.get_mut(offset..end) else { return false };
    let (header, body) = entry.split_at_mut(HEADER);
    header[..4].copy_from_slice(&inode.0.to_le_bytes());
    header[4..6].copy_from_slice(&rec_len_to_disk(rec_len, block_bytes).to_le_bytes());
    header[6] = name.len() as u8;
    header[7] = kind;
    body[..name.len()].copy_from_slice(name);
    // The bytes up to the next 4-byte boundary must not show what was there before.
    for byte in body.iter_mut().take(entry_bytes(name.len()) - HEADER).skip(name.len()) {
        *byte = 0;
    }
    true
}

/// Makes `rec_len` of the entry at `offset` `len`.
pub fn set_rec_len(block: &mut [u8], offset: usize, len: usize) {
    let raw = rec_len_to_disk(len, block.len());
    wire::put(block, offset + 4, &raw.to_le_bytes());
}

/// Makes the entry at `offset` name `inode`, of type `kind`.
pub fn set_target(block: &mut [u8], offset: usize, inode: InodeNr, kind: u8) {
    wire::put(block, offset, &inode.0.to_le_bytes());
    wire::put(block, offset + 7, &[kind]);
}

/// The entry of `name` in a block, or `None`.
pub fn find<'a>(block: &'a [u8], usable: usize, name: &[u8]) -> Result<Option<Entry<'a>>, &'static str> {
    for entry in entries(block, usable) {
        let entry = entry?;
        if entry.in_use() && entry.name == name {
            return Ok(Some(entry));
        }
    }
    Ok(None)
}

/// Free space of a block: the entry that has it, and how the two would share its length.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Room {
    offset: usize,
    used: usize,
    rec_len: usize,
}

/// Where an entry with a name of `name_len` bytes fits in a block, if it does.
pub fn find_room(block: &[u8], usable: usize, name_len: usize) -> Result<Option<Room>, &'static str> {
    let need = entry_bytes(name_len);
    for entry in entries(block, usable) {
        let entry = entry?;
        if entry.rec_len - entry.used() >= need {
            return Ok(Some(Room { offset: entry.offset, used: entry.used(), rec_len: entry.rec_len }));
        }
    }
    Ok(None)
}

/// Puts an entry where [`find_room`] has found room in this very block.
#[must_use]
pub fn put_in(block: &mut [u8], room: Room, inode: InodeNr, kind: u8, name: &[u8]) -> bool {
    let done = put(block, room.offset + room.used, room.rec_len - room.used, inode, kind, name);
    if done && room.used > 0 {
        set_rec_len(block, room.offset, room.used);
    }
    done
}

/// Takes the entry at `offset` out: the one before it takes its room, or it stays as free space if it is the
/// block's first. `false` if there is no entry at `offset`.
pub fn remove(block: &mut [u8], usable: usize, offset: usize) -> Result<bool, &'static str> {
    let mut before: Option<(usize, usize)> = None;
    let mut found = None;
    for entry in entries(block, usable) {
        let entry = entry?;
        if entry.offset == offset {
            found = Some((entry.rec_len, entry.name.len()));
            break;
        }
        before = Some((entry.offset, entry.rec_len));
    }
    let Some((rec_len, name_len)) = found else { return Ok(false) };
    if let Some((previous, previous_len)) = before {
        if let Some(gone) = block.get_mut(offset..offset + rec_len) {
            gone.fill(0);
        }
        set_rec_len(block, previous, previous_len + rec_len);
    } else {
        // Inode, name and name length go; the length of the record stays.
        for range in [offset..offset + 4, offset + 6..offset + HEADER + name_len] {
            if let Some(gone) = block.get_mut(range) {
                gone.fill(0);
            }
        }
    }
    Ok(true)
}

/// Makes a block one free entry up to `usable`.
pub fn clear(block: &mut [u8], usable: usize) {
    block.fill(0);
    set_rec_len(block, 0, usable);
}

/// Writes `.` and `..`, the latter reaching up to `usable`.
pub fn put_dots(block: &mut [u8], usable: usize, own: InodeNr, parent: InodeNr, kind: u8) -> bool {
    put(block, 0, ENTRY_MIN, own, kind, b".")
        && put(block, ENTRY_MIN, usable.saturating_sub(ENTRY_MIN), parent, kind, b"..")
}

/// The bytes of a block that entries may use.
pub fn usable_bytes(block_bytes: usize, has_csum: bool) -> usize {
    if has_csum {
        block_bytes.saturating_sub(TAIL_BYTES)
    } else {
        block_bytes
    }
}

/// The tail looks like a free entry of 12 bytes to who doesn't know it.
const TAIL_HEADER: [u8; 8] = [0, 0, 0, 0, TAIL_BYTES as u8, 0, 0, TAIL_KIND];

/// Writes the tail: the CRC-32C of all before it, from the inode's `seed`.
pub fn seal(block: &mut [u8], seed: u32) {
    let usable = usable_bytes(block.len(), true);
    let (entries, tail) = block.split_at_mut(usable);
    let sum = crc32c(seed, entries);
    wire::put(tail, 0, &TAIL_HEADER);
    wire::put(tail, TAIL_HEADER.len(), &sum.to_le_bytes());
}

/// Checks the tail and its checksum.
pub fn check_seal(block: &[u8], seed: u32) -> Result<(), &'static str> {
    let usable = usable_bytes(block.len(), true);
    let (entries, tail) = block.split_at(usable);
    if tail.get(..8) != Some(&TAIL_HEADER[..]) {
        return Err("the checksum's tail is missing");
    }
    if wire::get_u32(tail, TAIL_HEADER.len()) == crc32c(seed, entries) {
        Ok(())
    } else {
        Err("the checksum does not match")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(block: &[u8], usable: usize) -> Vec<(u32, Vec<u8>)> {
        let entries: Result<Vec<_>, _> = entries(block, usable).collect();
        entries.unwrap().iter().filter(|e| e.in_use()).map(|e| (e.inode, e.name.to_vec())).collect()
    }

    fn insert(
        block: &mut [u8],
        usable: usize,
        inode: InodeNr,
        kind: u8,
        name: &[u8],
    ) -> Result<bool, &'static str> {
        let room = find_room(block, usable, name.len())?;
        Ok(room.is_some_and(|room| put_in(block, room, inode, kind, name)))
    }

    #[test]
    fn a_block_fills_and_empties() {
        let mut block = vec![0; 1024];
        clear(&mut block, 1012);
        let mut count = 0_u32;
        while insert(&mut block, 1012, InodeNr(count + 1), 1, format!("name{count:03}").as_bytes()).unwrap() {
            count += 1;
        }
        assert_eq!(count, 1012 / 16);
        seal(&mut block, 5);
        assert_eq!(check_seal(&block, 5), Ok(()));
        assert!(check_seal(&block, 6).is_err());
        let third = find(&block, 1012, b"name002").unwrap().unwrap();
        assert_eq!((third.inode, third.offset), (3, 32));
        assert!(remove(&mut block, 1012, 32).unwrap());
        assert!(remove(&mut block, 1012, 0).unwrap(), "the first entry stays as free space");
        assert!(!remove(&mut block, 1012, 32).unwrap(), "the entry before has taken its room");
        assert!(find(&block, 1012, b"name002").unwrap().is_none());
        assert_eq!(names(&block, 1012).len() as u32, count - 2);
        assert!(check_seal(&block, 5).is_err());
        assert!(insert(&mut block, 1012, InodeNr(7), 1, b"again").unwrap());
        assert_eq!(names(&block, 1012)[0], (7, b"again".to_vec()));
    }

    #[test]
    fn bad_lengths_are_refused() {
        let mut block = vec![0; 1024];
        clear(&mut block, 1024);
        for bad in [0, 8, 13, 2000, 1020] {
            set_rec_len(&mut block, 0, bad);
            assert!(entries(&block, 1024).next().unwrap().is_err(), "{bad}");
        }
        set_rec_len(&mut block, 0, 12);
        block[6] = 200;
        assert!(entry_at(&block, 1024, 0).is_err());
        assert!(entry_at(&block, 1024, 1021).is_err());
        assert!(!put(&mut block, 1020, 12, InodeNr(1), 1, b"x"));
    }

    #[test]
    fn records_of_64_kib_blocks_fit_in_16_bits() {
        for (len, raw) in [(65536, u16::MAX), (65532, 65532), (12, 12)] {
            assert_eq!(rec_len_to_disk(len, 65536), raw);
            assert_eq!(rec_len_from_disk(raw, 65536), len);
        }
        assert_eq!(rec_len_from_disk(0, 65536), 65536);
        assert_eq!(rec_len_from_disk(4096, 4096), 4096);
    }
}
