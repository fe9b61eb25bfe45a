//! Opening what a user names: an image file or a block device, locked.

use super::block::BlockDevice;
use super::file::FileDevice;
use super::holders::Identity;
use super::lock::{DeviceLock, Exclusion};
use super::window::Window;
use super::SharedDevice;
use crate::error::{Error, Result};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How a device is opened.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Open for reading only.
    pub read_only: bool,
    /// Where the file system begins, in bytes.
    pub offset: u64,
    /// Go past the page cache where that is possible.
    pub direct: bool,
    /// How long to wait for a holder that is on its way out.
    pub wait: Duration,
    /// Whom to keep out; by default writers keep out everybody and readers writers.
    pub exclusion: Option<Exclusion>,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self { read_only: false, offset: 0, direct: true, wait: Duration::from_secs(10), exclusion: None }
    }
}

/// An open device and its lock.
pub struct OpenDevice {
    /// The device, from `offset` on.
    pub device: SharedDevice,
    /// Keeps others out until it is dropped.
    pub lock: DeviceLock,
}

/// Locks and opens the image file or block device at `path`. The errors begin with the path.
pub fn open(path: &Path, options: &OpenOptions) -> Result<OpenDevice> {
    let failed = |error| Error::io(path.display().to_string(), error);
    let exclusion =
        options.exclusion.unwrap_or(if options.read_only { Exclusion::Shared } else { Exclusion::Exclusive });
    let lock = DeviceLock::acquire(path, exclusion, options.wait)?;
    let device: SharedDevice = match Identity::of(path).map_err(failed)? {
        Identity::File { .. } => {
            Arc::new(FileDevice::open(path, options.read_only, options.direct).map_err(failed)?)
        }
        Identity::Block { .. } => {
            Arc::new(BlockDevice::open(path, options.read_only, options.direct).map_err(failed)?)
        }
    };
    let device = match options.offset {
        0 => device,
        offset => Arc::new(Window::new(device, offset).map_err(failed)?),
    };
    Ok(OpenDevice { device, lock })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_opens_locked_and_from_its_offset() {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(1 << 16).unwrap();
        let options = OpenOptions { offset: 4096, wait: Duration::ZERO, ..OpenOptions::default() };
        let opened = open(image.path(), &options).unwrap();
        assert_eq!(opened.device.size_bytes(), (1 << 16) - 4096);
        assert!(open(image.path(), &options).is_err());
        drop(opened);
        assert!(open(image.path(), &OpenOptions { offset: 1 << 16, ..options }).is_err());
    }

    #[test]
    fn what_is_missing_is_named() {
        let error = open(Path::new("/nonexistent/image"), &OpenOptions::default()).err().unwrap();
        assert!(error.to_string().starts_with("/nonexistent/image: "), "{error}");
    }
}
