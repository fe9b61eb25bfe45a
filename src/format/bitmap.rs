//! Block and inode bitmaps: bit 0 is the lowest bit of the first byte; a set bit means in use.
//! Bits outside the slice read as set, and can't be changed.

use super::checksum::crc32c;
use super::geometry::Geometry;
use std::ops::Range;

/// Whether a bit is set.
pub fn test(bits: &[u8], at: u32) -> bool {
    bits.get(at as usize / 8).is_none_or(|byte| byte >> (at % 8) & 1 == 1)
}

/// Sets a bit.
pub fn set(bits: &mut [u8], at: u32) {
    if let Some(byte) = bits.get_mut(at as usize / 8) {
        *byte |= 1 << (at % 8);
    }
}

/// Clears a bit.
pub fn clear(bits: &mut [u8], at: u32) {
    if let Some(byte) = bits.get_mut(at as usize / 8) {
        *byte &= !(1 << (at % 8));
    }
}

/// Runs `f` on each byte that `range` touches, with the mask of the bits in it.
fn for_each_byte(bits: &mut [u8], range: Range<u32>, mut f: impl FnMut(&mut u8, u8)) {
    if range.is_empty() {
        return;
    }
    let (first, last) = (range.start as usize / 8, (range.end - 1) as usize / 8);
    let low = 0xff_u8 << (range.start % 8);
    let high = 0xff_u8 >> (7 - (range.end - 1) % 8);
    for (i, byte) in bits.iter_mut().enumerate().take(last + 1).skip(first) {
        let mask = if i == first { low } else { 0xff } & if i == last { high } else { 0xff };
        f(byte, mask);
    }
}

/// Sets all bits of `range`.
pub fn set_range(bits: &mut [u8], range: Range<u32>) {
    for_each_byte(bits, range, |byte, mask| *byte |= mask);
}

/// Clears all bits of `range`.
pub fn clear_range(bits: &mut [u8], range: Range<u32>) {
    for_each_byte(bits, range, |byte, mask| *byte &= !mask);
}

/// The first bit in `range` that is `wanted`, skipping 64 bits at a time.
fn find(bits: &[u8], range: Range<u32>, wanted: bool) -> Option<u32> {
    let flip = if wanted { 0 } else { u64::MAX };
    let mut at = range.start;
    while at < range.end {
        let base = at / 64 * 64;
        let mut word = [0xff; 8];
        let bytes = bits.get(base as usize / 8..).unwrap_or_default();
        let take = bytes.len().min(8);
        if let (Some(to), Some(from)) = (word.get_mut(..take), bytes.get(..take)) {
            to.copy_from_slice(from);
        }
        let hits = (u64::from_le_bytes(word) ^ flip) & u64::MAX << (at % 64);
        if hits != 0 {
            let hit = base + hits.trailing_zeros();
            return (hit < range.end).then_some(hit);
        }
        at = base.checked_add(64)?;
    }
    None
}

/// The first clear bit in `range`.
pub fn find_clear(bits: &[u8], range: Range<u32>) -> Option<u32> {
    find(bits, range, false)
}

/// The first set bit in `range`.
pub fn find_set(bits: &[u8], range: Range<u32>) -> Option<u32> {
    find(bits, range, true)
}

/// The first run of clear bits in `range`, cut to `longest` bits.
pub fn find_clear_run(bits: &[u8], range: Range<u32>, longest: u32) -> Option<Range<u32>> {
    let start = find_clear(bits, range.clone())?;
    let limit = range.end.min(start.saturating_add(longest));
    Some(start..find_set(bits, start..limit).unwrap_or(limit))
}

/// Whether all bits of `range` are clear.
pub fn is_clear(bits: &[u8], range: Range<u32>) -> bool {
    find_set(bits, range).is_none()
}

/// Whether all bits of `range` are set.
pub fn is_set(bits: &[u8], range: Range<u32>) -> bool {
    find_clear(bits, range).is_none()
}

/// How many of the first `count` bits are clear.
pub fn count_clear(bits: &[u8], count: u32) -> u32 {
    let whole = bits.get(..count as usize / 8).unwrap_or(bits);
    let clear: u32 = whole.iter().map(|byte| byte.count_zeros()).sum();
    let rest = (whole.len() as u32 * 8..count).filter(|&at| !test(bits, at)).count();
    clear + rest as u32
}

fn csum(bits: &[u8], geometry: &Geometry, count: u32) -> u32 {
    let sum = crc32c(geometry.csum_seed, bits.get(..count as usize / 8).unwrap_or(bits));
    if geometry.desc_bytes >= 64 {
        sum
    } else {
        sum & 0xffff
    }
}

/// The checksum of a block bitmap as the descriptor holds it; 0 without metadata_csum.
pub fn block_csum(bits: &[u8], geometry: &Geometry) -> u32 {
    if geometry.has_csum() {
        csum(bits, geometry, geometry.clusters_per_group)
    } else {
        0
    }
}

/// The checksum of an inode bitmap as the descriptor holds it; 0 without metadata_csum.
pub fn inode_csum(bits: &[u8], geometry: &Geometry) -> u32 {
    if geometry.has_csum() {
        csum(bits, geometry, geometry.inodes_per_group)
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_change_their_bits_only() {
        for start in 0..20 {
            for end in start..40 {
                let mut bits = [0; 6];
                set_range(&mut bits, start..end);
                for at in 0..48 {
                    assert_eq!(test(&bits, at), (start..end).contains(&at), "{start} {end} {at}");
                }
                assert_eq!(count_clear(&bits, 45), 45 - (end - start));
                clear_range(&mut bits, start..end);
                assert_eq!(bits, [0; 6]);
            }
        }
    }

    #[test]
    fn searches_find_the_first() {
        let mut bits = [0xff; 40];
        for at in [3, 64, 65, 130, 319] {
            clear(&mut bits, at);
        }
        assert_eq!(find_clear(&bits, 0..320), Some(3));
        assert_eq!(find_clear(&bits, 4..320), Some(64));
        assert_eq!(find_clear(&bits, 4..64), None);
        assert_eq!(find_clear_run(&bits, 4..320, 99), Some(64..66));
        assert_eq!(find_clear_run(&bits, 4..320, 1), Some(64..65));
        assert_eq!(find_clear(&bits, 131..400), Some(319));
        assert_eq!(find_clear(&bits, 320..400), None);
        assert_eq!(find_set(&bits, 64..320), Some(66));
        assert!(is_clear(&bits, 64..66) && !is_clear(&bits, 64..67) && is_set(&bits, 66..130));
        set(&mut bits, 3);
        assert!(test(&bits, 3));
        assert!(test(&bits, 1000));
    }
}
