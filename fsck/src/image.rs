//! The file system as it is, or (with -n) as it will be when its journal has been replayed.

use journalfs::cache::ReadBlock;
use journalfs::device::{Block, IoBuf, SharedDevice};
use journalfs::format::geometry::Geometry;
use journalfs::format::superblock::Superblock;
use journalfs::journal::log_area::LogArea;
use journalfs::journal::recovery::Recovered;
use journalfs::units::{BlockNr, BlockRange};
use journalfs::{Error, Result};
use std::sync::Arc;

/// A file system to be read.
pub(crate) struct Image {
    pub(crate) device: SharedDevice,
    pub(crate) superblock: Superblock,
    pub(crate) geometry: Geometry,
    overlay: Option<(Recovered, LogArea)>,
}

impl Image {
    pub(crate) fn new(
        device: SharedDevice,
        superblock: Superblock,
        overlay: Option<(Recovered, LogArea)>,
    ) -> Result<Self> {
        let geometry = Geometry::new(&superblock);
        let mut image = Self { device, superblock, geometry, overlay };
        // The log may hold a newer superblock.
        if image.overlay.is_some() {
            let at = 1024 % image.geometry.block_bytes as usize;
            let block = image.read(BlockNr(1024 / image.geometry.block_bytes as u64))?;
            image.superblock = Superblock::decode(block.get(at..).unwrap_or_default())?;
            image.geometry = Geometry::new(&image.superblock);
        }
        Ok(image)
    }

    /// Whether blocks are read from the journal instead of from where they belong.
    pub(crate) fn has_overlay(&self) -> bool {
        self.overlay.is_some()
    }

    /// One block.
    pub(crate) fn read(&self, nr: BlockNr) -> Result<Block> {
        if let Some((recovered, area)) = &self.overlay {
            if let Some(block) = recovered.read(&*self.device, area, nr)? {
                return Ok(block);
            }
        }
        journalfs::journal::locate::read_block(&*self.device, self.geometry.block_bytes, nr)
    }

    /// Neighbouring blocks, as one read.
    pub(crate) fn read_run(&self, range: BlockRange) -> Result<IoBuf> {
        let block_bytes = self.geometry.block_bytes as usize;
        let mut bytes = IoBuf::zeroed(range.len as usize * block_bytes);
        let offset = range.start.0.saturating_mul(block_bytes as u64);
        self.device
            .read_at(offset, &mut bytes)
            .map_err(|e| Error::io(format!("reading blocks from {}", range.start), e))?;
        if let Some((recovered, area)) = &self.overlay {
            for (nr, _) in recovered.blocks.range(range.start..range.end()) {
                let at = (nr.0 - range.start.0) as usize * block_bytes;
                if let (Some(block), Some(to)) =
                    (recovered.read(&*self.device, area, *nr)?, bytes.get_mut(at..at + block_bytes))
                {
                    to.copy_from_slice(&block);
                }
            }
        }
        Ok(bytes)
    }
}

impl ReadBlock for Image {
    fn read_block(&self, nr: BlockNr) -> Result<Arc<Block>> {
        self.read(nr).map(Arc::new)
    }
}
