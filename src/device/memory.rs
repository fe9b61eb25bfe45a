//! A device in memory, sparse: for tests, fuzzing and benchmarks at the library's level.

use super::Device;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

const PAGE_BYTES: u64 = 4096;

/// A sparse device in memory; pages that were never written read as zeroes. A clone shares pages until one side
/// writes them, so a test can keep thousands of states of one device.
pub struct MemoryDevice {
    size_bytes: u64,
    pages: RwLock<BTreeMap<u64, Arc<Page>>>,
}

type Page = [u8; PAGE_BYTES as usize];

impl Clone for MemoryDevice {
    fn clone(&self) -> Self {
        Self { size_bytes: self.size_bytes, pages: RwLock::new(self.pages.read().clone()) }
    }
}

impl MemoryDevice {
    /// A device of `size_bytes` zero bytes.
    pub fn new(size_bytes: u64) -> Self {
        Self { size_bytes, pages: RwLock::default() }
    }

    fn check(&self, offset: u64, len: u64) -> io::Result<()> {
        super::check_range(self.size_bytes, offset, len)
    }
}

/// Calls `f(page, offset in the page, offset in the buffer, length)` for each page the bytes touch.
fn for_pages(offset: u64, len: usize, mut f: impl FnMut(u64, usize, usize, usize)) {
    let mut done = 0;
    while done < len {
        let at = offset + done as u64;
        let in_page = (at % PAGE_BYTES) as usize;
        let chunk = (PAGE_BYTES as usize - in_page).min(len - done);
        f(at / PAGE_BYTES, in_page, done, chunk);
        done += chunk;
    }
}

impl Device for MemoryDevice {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.check(offset, buf.len() as u64)?;
        let pages = self.pages.read();
        for_pages(offset, buf.len(), |page, from, to, len| match pages.get(&page) {
            Some(bytes) => buf[to..to + len].copy_from_slice(&bytes[from..from + len]),
            None => buf[to..to + len].fill(0),
        });
        Ok(())
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.check(offset, buf.len() as u64)?;
        let mut pages = self.pages.write();
        for_pages(offset, buf.len(), |page, to, from, len| {
            let bytes = pages.entry(page).or_insert_with(|| Arc::new([0; PAGE_BYTES as usize]));
            Arc::make_mut(bytes)[to..to + len].copy_from_slice(&buf[from..from + len]);
        });
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.write_zeroes(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check(offset, len)?;
        let mut pages = self.pages.write();
        let whole = offset.div_ceil(PAGE_BYTES)..(offset + len) / PAGE_BYTES;
        let drop: Vec<u64> =
            if whole.is_empty() { Vec::new() } else { pages.range(whole).map(|(page, _)| *page).collect() };
        for page in drop {
            pages.remove(&page);
        }
        let ends = [(offset, (offset.next_multiple_of(PAGE_BYTES) - offset).min(len)), {
            let tail = ((offset + len) % PAGE_BYTES).min(len);
            (offset + len - tail, tail)
        }];
        for (at, len) in ends {
            for_pages(at, len as usize, |page, from, _, len| {
                if let Some(bytes) = pages.get_mut(&page) {
                    Arc::make_mut(bytes)[from..from + len].fill(0);
                }
            });
        }
        Ok(())
    }

    fn read_only(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_back_what_was_written_and_zeroes_elsewhere() {
        let device = MemoryDevice::new(1 << 20);
        device.write_at(4000, &[7; 5000]).unwrap();
        let mut buf = vec![1; 9000];
        device.read_at(2000, &mut buf).unwrap();
        assert!(buf[..2000].iter().all(|b| *b == 0));
        assert!(buf[2000..7000].iter().all(|b| *b == 7));
        assert!(buf[7000..].iter().all(|b| *b == 0));
        device.write_zeroes(4001, 4997).unwrap();
        device.read_at(2000, &mut buf).unwrap();
        let sevens: Vec<usize> = (0..buf.len()).filter(|at| buf[*at] == 7).collect();
        assert_eq!(sevens, [2000, 6998, 6999]);
        assert!(device.read_at((1 << 20) - 1, &mut [0; 2]).is_err());
    }
}
