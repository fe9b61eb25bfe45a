//! Little-endian numbers in byte slices, for records whose fields are not one fixed sequence.
//! A read outside the slice is zero and a write outside it is dropped: callers check the
//! record's length once, before the first field.

use crate::error::{Error, Place, Result};
use bincode::config::{Configuration, Fixint, LittleEndian, NoLimit};

/// How bincode lays out ext's fixed-size records: little-endian, no length prefixes, no padding.
pub(crate) const LE: Configuration<LittleEndian, Fixint, NoLimit> =
    bincode::config::standard().with_fixed_int_encoding();

/// Decodes a fixed-size record from the start of `bytes`.
pub(crate) fn decode<T: bincode::Decode<()>>(
    structure: &'static str,
    place: Place,
    bytes: &[u8],
) -> Result<T> {
    bincode::decode_from_slice(bytes, LE)
        .map(|(record, _)| record)
        .map_err(|error| Error::corrupt(structure, place, error.to_string()))
}

/// Encodes a fixed-size record at the start of `bytes`.
pub(crate) fn encode<T: bincode::Encode>(
    record: &T,
    structure: &'static str,
    place: Place,
    bytes: &mut [u8],
) -> Result<()> {
    bincode::encode_into_slice(record, bytes, LE)
        .map(|_| ())
        .map_err(|error| Error::corrupt(structure, place, error.to_string()))
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}

/// Copies `value` to `at`.
pub(crate) fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(to) = at.checked_add(value.len()).and_then(|end| bytes.get_mut(at..end)) {
        to.copy_from_slice(value);
    }
}

/// A number, or an array of them, at a fixed offset of a little-endian record.
pub(crate) trait Field: Sized {
    fn get(bytes: &[u8], at: usize) -> Self;
    fn put(&self, bytes: &mut [u8], at: usize);
}

macro_rules! number {
    ($($int:ty),*) => {$(
        impl Field for $int {
            fn get(bytes: &[u8], at: usize) -> Self {
                Self::from_le_bytes(array(bytes, at))
            }
            fn put(&self, bytes: &mut [u8], at: usize) {
                put(bytes, at, &self.to_le_bytes());
            }
        }
    )*};
}
number!(u8, u16, u32, u64);

impl<T: Field + Copy + Default, const N: usize> Field for [T; N] {
    fn get(bytes: &[u8], at: usize) -> Self {
        let mut all = [T::default(); N];
        for (i, one) in all.iter_mut().enumerate() {
            *one = T::get(bytes, at + i * size_of::<T>());
        }
        all
    }
    fn put(&self, bytes: &mut [u8], at: usize) {
        for (i, one) in self.iter().enumerate() {
            one.put(bytes, at + i * size_of::<T>());
        }
    }
}

/// The 16-bit number at `at`.
pub(crate) fn get_u16(bytes: &[u8], at: usize) -> u16 {
    Field::get(bytes, at)
}

/// The 32-bit number at `at`.
pub(crate) fn get_u32(bytes: &[u8], at: usize) -> u32 {
    Field::get(bytes, at)
}
