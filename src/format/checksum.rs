//! The three checksums of the format, each as a running state with no inversion at either end,
//! the way the on-disk seeds are defined.

use crc_fast::{CrcAlgorithm, Digest};

/// The state that every checksum here starts from unless the format gives it a seed.
pub const START: u32 = !0;

/// CRC-32C (Castagnoli) of `bytes` from the running state `seed`: metadata_csum, journal checksums v2 and v3.
pub fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!seed, bytes)
}

/// CRC-32 with the bits in big-endian order from the running state `seed`: the commit blocks of journal
/// checksum v1 (the kernel's `crc32_be`; CRC-32/MPEG-2 when it starts from [`START`]).
pub fn crc32_be(seed: u32, bytes: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Mpeg2, seed as u64);
    digest.update(bytes);
    digest.finalize() as u32
}

const CRC16_TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let mut crc = i as u16;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0xa001 } else { crc >> 1 };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
};

/// CRC-16 (polynomial 0x8005, reflected) of `bytes` from the running state `seed`: gdt_csum.
pub fn crc16(seed: u16, bytes: &[u8]) -> u16 {
    bytes.iter().fold(seed, |crc, &byte| {
        let index = (crc as u8 ^ byte) as usize;
        crc >> 8 ^ CRC16_TABLE.get(index).copied().unwrap_or(0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bitwise_be(mut crc: u32, bytes: &[u8]) -> u32 {
        for byte in bytes {
            crc ^= (*byte as u32) << 24;
            for _ in 0..8 {
                crc = if crc & 0x8000_0000 == 0 { crc << 1 } else { crc << 1 ^ 0x04c1_1db7 };
            }
        }
        crc
    }

    #[test]
    fn known_values() {
        let check = b"123456789";
        assert_eq!(!crc32c(START, check), 0xe306_9283);
        assert_eq!(crc32_be(START, check), 0x0376_e6e7);
        assert_eq!(crc16(0, check), 0xbb3d);
    }

    #[test]
    fn big_endian_crc_matches_the_definition_at_every_length_and_seed() {
        let bytes: Vec<u8> = (0..9000_u32).map(|i| (i * 7 + (i >> 8)) as u8).collect();
        for len in [0, 1, 15, 16, 17, 63, 64, 127, 128, 255, 256, 1024, 4096, 8999] {
            for seed in [START, 0, 0xdead_beef] {
                assert_eq!(crc32_be(seed, &bytes[..len]), bitwise_be(seed, &bytes[..len]), "{len} {seed:x}");
            }
        }
    }

    #[test]
    fn checksums_can_be_continued() {
        let bytes = [7; 100];
        let (a, b) = bytes.split_at(33);
        assert_eq!(crc32c(crc32c(5, a), b), crc32c(5, &bytes));
        assert_eq!(crc32_be(crc32_be(5, a), b), crc32_be(5, &bytes));
        assert_eq!(crc16(crc16(5, a), b), crc16(5, &bytes));
    }
}
