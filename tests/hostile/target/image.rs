//! An image being made hostile: patches over one of the built-in images, or over a blank device.

use super::base::Base;
use super::input::Input;
use journalfs::device::memory::MemoryDevice;
use journalfs::device::Device;

/// The base number that stands for a blank device, which the patches fill: how whole images of other origin are seeds.
pub(crate) const BLANK: u8 = 0xff;
/// Bytes of a blank device.
const BLANK_MIB: u64 = 16;

/// Bits of the byte that says how the image is used.
const RESEAL: u8 = 1;

pub(crate) struct Image {
    pub(crate) device: MemoryDevice,
    block_bytes: u64,
    /// Blocks that hold something: where patches go.
    blocks: Vec<u64>,
    /// Where the journal superblock is, if that is known.
    journal_at: Option<u64>,
}

impl Image {
    /// The image that the input describes; the rest of the input is the caller's.
    pub(crate) fn read(input: &mut Input<'_>, bases: &[Base]) -> Self {
        let which = input.u8();
        let flags = input.u8();
        let (mut image, patches) = if which == BLANK {
            (Self::blank(), usize::from(input.u16()))
        } else {
            (Self::of(&bases[usize::from(which) % bases.len()]), usize::from(input.u8()))
        };
        for _ in 0..patches {
            if input.is_empty() {
                break;
            }
            image.patch(input);
        }
        if flags & RESEAL != 0 {
            super::seal::seal(&image.device);
            super::seal_log::seal(&image.device, image.journal_at);
        }
        image
    }

    fn blank() -> Self {
        let device = MemoryDevice::new(BLANK_MIB << 20);
        Self { device, block_bytes: 1024, blocks: vec![1], journal_at: None }
    }

    fn of(base: &Base) -> Self {
        Self {
            device: base.device.clone(),
            block_bytes: base.block_bytes,
            blocks: base.blocks.clone(),
            journal_at: Some(base.journal_at),
        }
    }

    /// A block, by its place among those that hold something, or (top bit set) by its number.
    fn block(&self, input: &mut Input<'_>) -> u64 {
        let nr = input.u16();
        if nr & 0x8000 == 0 {
            self.blocks[usize::from(nr) % self.blocks.len()]
        } else {
            u64::from(nr & 0x7fff) % (self.device.size_bytes() / self.block_bytes)
        }
    }

    /// A byte on the device.
    fn place(&self, input: &mut Input<'_>) -> u64 {
        let block = self.block(input);
        block * self.block_bytes + u64::from(input.u16()) % self.block_bytes
    }

    fn get(&self, at: u64, len: usize) -> Vec<u8> {
        let len = len.min((self.device.size_bytes() - at) as usize);
        let mut bytes = vec![0; len];
        self.device.read_at(at, &mut bytes).unwrap();
        bytes
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        let len = bytes.len().min(self.device.size_bytes().saturating_sub(at) as usize);
        self.device.write_at(at.min(self.device.size_bytes()), &bytes[..len]).unwrap();
    }

    fn patch(&mut self, input: &mut Input<'_>) {
        let block_bytes = self.block_bytes as usize;
        match input.u8() % 7 {
            0 => {
                let at = self.place(input);
                let len = usize::from(input.u8() % 33);
                self.put(at, input.bytes(len));
            }
            1 => {
                let at = self.place(input);
                let byte = self.get(at, 1)[0] ^ input.u8();
                self.put(at, &[byte]);
            }
            2 => {
                let (from, to) = (self.block(input), self.block(input));
                let bytes = self.get(from * self.block_bytes, block_bytes);
                self.put(to * self.block_bytes, &bytes);
            }
            3 => {
                let (from, to) = (self.place(input), self.place(input));
                let bytes = self.get(from, usize::from(input.u8()));
                self.put(to, &bytes);
            }
            4 => {
                let at = u64::from(input.u32());
                let len = usize::from(input.u16());
                self.put(at, input.bytes(len));
            }
            5 => {
                let to = self.block(input);
                let byte = input.u8();
                self.put(to * self.block_bytes, &vec![byte; block_bytes]);
            }
            _ => {
                // A small step of a 32-bit number: to the neighbour of what a field may hold.
                let at = self.place(input) & !3;
                let step = i32::from(input.u8() as i8);
                let word = self.get(at, 4);
                let word = u32::from_le_bytes(word.try_into().unwrap()).wrapping_add_signed(step);
                self.put(at, &word.to_le_bytes());
            }
        }
    }
}
