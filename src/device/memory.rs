//! A device in memory, sparse: for tests, fuzzing and benchmarks at the library's level.

use super::Device;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

const PAGE_BYTES: u64 = 4096;
const PAGES_PER_CHUNK: u64 = 64;

/// A sparse device in memory; pages that were never written read as zeroes. A clone shares pages, and the tables
/// of them, until one side writes, so a test can look at millions of states of one device.
pub struct MemoryDevice {
    size_bytes: u64,
    pages: RwLock<Pages>,
}

type Page = [u8; PAGE_BYTES as usize];
type Chunk = [Option<Arc<Page>>; PAGES_PER_CHUNK as usize];

#[derive(Clone, Default)]
struct Pages {
    chunks: BTreeMap<u64, Arc<Chunk>>,
}

impl Pages {
    fn get(&self, page: u64) -> Option<&Page> {
        let chunk = self.chunks.get(&(page / PAGES_PER_CHUNK))?;
        chunk[(page % PAGES_PER_CHUNK) as usize].as_deref()
    }

    /// The page, for writing, of zeroes if it is new.
    fn make(&mut self, page: u64) -> &mut Page {
        let chunk = self.chunks.entry(page / PAGES_PER_CHUNK);
        let chunk =
            Arc::make_mut(chunk.or_insert_with(|| Arc::new([const { None }; PAGES_PER_CHUNK as usize])));
        let page = &mut chunk[(page % PAGES_PER_CHUNK) as usize];
        Arc::make_mut(page.get_or_insert_with(|| Arc::new([0; PAGE_BYTES as usize])))
    }

    /// Zeroes the page by forgetting it.
    fn remove(&mut self, page: u64) {
        if let Some(chunk) = self.chunks.get_mut(&(page / PAGES_PER_CHUNK)) {
            if chunk[(page % PAGES_PER_CHUNK) as usize].is_some() {
                Arc::make_mut(chunk)[(page % PAGES_PER_CHUNK) as usize] = None;
            }
        }
    }

    /// The pages of `range` that were written.
    fn written(&self, range: std::ops::Range<u64>) -> Vec<u64> {
        if range.is_empty() {
            return Vec::new();
        }
        let chunks = range.start / PAGES_PER_CHUNK..range.end.div_ceil(PAGES_PER_CHUNK);
        let pages = self.chunks.range(chunks).flat_map(|(chunk, _)| {
            let first = chunk * PAGES_PER_CHUNK;
            first..first + PAGES_PER_CHUNK
        });
        pages.filter(|page| range.contains(page) && self.get(*page).is_some()).collect()
    }
}

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
        for_pages(offset, buf.len(), |page, from, to, len| match pages.get(page) {
            Some(bytes) => buf[to..to + len].copy_from_slice(&bytes[from..from + len]),
            None => buf[to..to + len].fill(0),
        });
        Ok(())
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.check(offset, buf.len() as u64)?;
        let mut pages = self.pages.write();
        for_pages(offset, buf.len(), |page, to, from, len| {
            pages.make(page)[to..to + len].copy_from_slice(&buf[from..from + len]);
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
        for page in pages.written(whole) {
            pages.remove(page);
        }
        let ends = [(offset, (offset.next_multiple_of(PAGE_BYTES) - offset).min(len)), {
            let tail = ((offset + len) % PAGE_BYTES).min(len);
            (offset + len - tail, tail)
        }];
        for (at, len) in ends {
            for_pages(at, len as usize, |page, from, _, len| {
                if len > 0 && pages.get(page).is_some() {
                    pages.make(page)[from..from + len].fill(0);
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

    #[test]
    fn a_clone_is_another_device() {
        let device = MemoryDevice::new(8 << 20);
        device.write_at(0, &vec![1; 3 << 20]).unwrap();
        let clone = device.clone();
        clone.write_at(4096, &[2; 10]).unwrap();
        clone.write_zeroes(1 << 20, 1 << 20).unwrap();
        device.write_at(5 << 20, &[3]).unwrap();
        let bytes = |device: &MemoryDevice| {
            let mut bytes = vec![0; 8 << 20];
            device.read_at(0, &mut bytes).unwrap();
            bytes
        };
        let (first, second) = (bytes(&device), bytes(&clone));
        assert!(first[..3 << 20].iter().all(|b| *b == 1) && first[5 << 20] == 3);
        assert!(second[4096..4106].iter().all(|b| *b == 2) && second[4106..1 << 20].iter().all(|b| *b == 1));
        assert!(second[1 << 20..2 << 20].iter().all(|b| *b == 0) && second[5 << 20] == 0);
    }
}
