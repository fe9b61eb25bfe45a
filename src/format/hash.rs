//! The hashes of file names that order an htree directory (`ext4fs_dirhash`).
//! Called by `fs/dir`; calls nothing.
//!
//! The functions are part of the format: one bit of difference and a name is looked for in the wrong
//! leaf. Each exists twice, since old kernels hashed names as `char`, which is signed on some machines
//! and unsigned on others; the superblock says which was meant.

/// A hash function of an htree directory (`dx_root_info.hash_version`), with the signedness of `char`.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct HashVersion {
    function: Function,
    unsigned: bool,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Function {
    Legacy,
    HalfMd4,
    Tea,
}

/// What a name hashes to. The lowest bit of `major` is clear: in an index it marks a continued hash.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct NameHash {
    /// The hash that orders the tree.
    pub major: u32,
    /// More bits, to tell names with equal `major` apart; not stored on disk. 0 for the legacy hash.
    pub minor: u32,
}

/// The largest hash that the kernel gives a name: the next one means "end of directory" to its readdir.
const MAJOR_MAX: u32 = 0xffff_fffc;

/// The seed of a file system whose superblock has none.
const DEFAULT_SEED: [u32; 4] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];

impl HashVersion {
    /// The hash that `version` (0 to 5: `EXT4_HASH_LEGACY` to `EXT4_HASH_TEA_UNSIGNED`) means in a file system whose
    /// superblock asks for unsigned hashes or not. `None` for the unknown and for siphash (6), which only
    /// encrypted casefolded directories have.
    pub fn from_disk(version: u8, unsigned: bool) -> Option<Self> {
        let function = match version % 3 {
            0 => Function::Legacy,
            1 => Function::HalfMd4,
            _ => Function::Tea,
        };
        (version < 6).then_some(Self { function, unsigned: unsigned || version >= 3 })
    }

    /// The byte for `dx_root_info.hash_version`, which never tells signedness (the superblock does).
    pub fn to_disk(self) -> u8 {
        match self.function {
            Function::Legacy => 0,
            Function::HalfMd4 => 1,
            Function::Tea => 2,
        }
    }

    /// The hash of `name`. `seed` is `s_hash_seed`; all zero means the default.
    pub fn hash(self, seed: &[u32; 4], name: &[u8]) -> NameHash {
        let mut state = if seed.iter().all(|word| *word == 0) { DEFAULT_SEED } else { *seed };
        let (major, minor) = match self.function {
            Function::Legacy => (self.legacy(name), 0),
            Function::HalfMd4 => {
                for rest in 0..name.len().div_ceil(32) {
                    let words = self.words::<8>(name.get(rest * 32..).unwrap_or_default());
                    half_md4(&mut state, &words);
                }
                (state[1], state[2])
            }
            Function::Tea => {
                for rest in 0..name.len().div_ceil(16) {
                    let words = self.words::<4>(name.get(rest * 16..).unwrap_or_default());
                    tea(&mut state, &words);
                }
                (state[0], state[1])
            }
        };
        NameHash { major: (major & !1).min(MAJOR_MAX), minor }
    }

    fn char(self, byte: u8) -> u32 {
        if self.unsigned {
            byte as u32
        } else {
            byte as i8 as i32 as u32
        }
    }

    fn legacy(self, name: &[u8]) -> u32 {
        let (mut newer, mut older) = (0x12a3_fe2d_u32, 0x37ab_e8f9_u32);
        for byte in name {
            let product = self.char(*byte).wrapping_mul(7_152_373);
            let mut hash = older.wrapping_add(newer ^ product);
            if hash & 0x8000_0000 != 0 {
                hash = hash.wrapping_sub(0x7fff_ffff);
            }
            older = newer;
            newer = hash;
        }
        newer << 1
    }

    /// The next `N` words of a name: four chars to a word, the rest filled with the length that was left.
    fn words<const N: usize>(self, rest: &[u8]) -> [u32; N] {
        let length = rest.len() as u32;
        let pad = length | length << 8;
        let pad = pad | pad << 16;
        let mut words = [pad; N];
        for (word, chars) in words.iter_mut().zip(rest.chunks(4)) {
            for byte in chars {
                *word = self.char(*byte).wrapping_add(*word << 8);
            }
        }
        words
    }
}

/// Half a round of MD4: three passes of eight steps instead of sixteen.
fn half_md4(state: &mut [u32; 4], words: &[u32; 8]) {
    const ORDER: [[usize; 8]; 3] =
        [[0, 1, 2, 3, 4, 5, 6, 7], [1, 3, 5, 7, 0, 2, 4, 6], [3, 7, 2, 6, 1, 5, 0, 4]];
    const SHIFT: [[u32; 4]; 3] = [[3, 7, 11, 19], [3, 5, 9, 13], [3, 9, 11, 15]];
    const ADD: [u32; 3] = [0, 0x5a82_7999, 0x6ed9_eba1];
    let [mut a, mut b, mut c, mut d] = *state;
    for pass in 0..3 {
        for step in 0..8 {
            let mixed = match pass {
                0 => d ^ (b & (c ^ d)),
                1 => (b & c).wrapping_add((b ^ c) & d),
                _ => b ^ c ^ d,
            };
            let sum = a.wrapping_add(mixed).wrapping_add(words[ORDER[pass][step]]).wrapping_add(ADD[pass]);
            (a, b, c, d) = (d, sum.rotate_left(SHIFT[pass][step % 4]), b, c);
        }
    }
    for (word, change) in state.iter_mut().zip([a, b, c, d]) {
        *word = word.wrapping_add(change);
    }
}

/// Sixteen rounds of the Tiny Encryption Algorithm, with the name as the key.
fn tea(state: &mut [u32; 4], key: &[u32; 4]) {
    let (mut x, mut y, mut sum) = (state[0], state[1], 0_u32);
    let half = |v: u32, sum: u32, k0: u32, k1: u32| {
        (v << 4).wrapping_add(k0) ^ v.wrapping_add(sum) ^ (v >> 5).wrapping_add(k1)
    };
    for _ in 0..16 {
        sum = sum.wrapping_add(0x9e37_79b9);
        x = x.wrapping_add(half(y, sum, key[0], key[1]));
        y = y.wrapping_add(half(x, sum, key[2], key[3]));
    }
    state[0] = state[0].wrapping_add(x);
    state[1] = state[1].wrapping_add(y);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// debugfs prints the hashes of e2fsprogs' own implementation.
    fn by_debugfs(version: &str, seed: &str, name: &str) -> Option<(u32, u32)> {
        let request = format!("dx_hash -h {version} -s {seed} \"{name}\"");
        let output = Command::new("debugfs").args(["-R", &request]).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let numbers: Vec<u32> = text
            .split_whitespace()
            .filter_map(|word| u32::from_str_radix(word.trim_end_matches(')').strip_prefix("0x")?, 16).ok())
            .collect();
        Some((*numbers.first()?, *numbers.get(1)?))
    }

    #[test]
    fn hashes_agree_with_debugfs() {
        let long = "a-name-that-is-longer-than-thirty-two-bytes-and-than-sixteen-of-course".repeat(3);
        let seed_text = "01234567-89ab-cdef-0123-456789abcdef";
        let seed = [0x6745_2301, 0xefcd_ab89, 0x6745_2301, 0xefcd_ab89];
        for version in 0..6 {
            let number = version.to_string();
            for name in ["a", "abcd", "hello.txt", "gr\u{fc}n-\u{20ac}", &long] {
                let ours = HashVersion::from_disk(version, false).unwrap().hash(&seed, name.as_bytes());
                let theirs = by_debugfs(&number, seed_text, name).expect("debugfs dx_hash");
                assert_eq!((ours.major, ours.minor), theirs, "version {version} of {name}");
            }
        }
    }

    #[test]
    fn signedness_matters_only_for_bytes_beyond_ascii() {
        for version in 0..3 {
            let signed = HashVersion::from_disk(version, false).unwrap();
            let unsigned = HashVersion::from_disk(version, true).unwrap();
            assert_eq!(signed.to_disk(), version);
            assert_eq!(unsigned.to_disk(), version);
            assert_eq!(signed.hash(&[0; 4], b"ascii"), unsigned.hash(&[0; 4], b"ascii"));
            assert_ne!(signed.hash(&[0; 4], b"\xff\x80"), unsigned.hash(&[0; 4], b"\xff\x80"));
        }
        assert_eq!(HashVersion::from_disk(6, false), None);
        assert_eq!(HashVersion::from_disk(255, false), None);
    }
}
