//! What the tests share: images, mounts that always come down again, and comparable snapshots.

pub(crate) mod command;
pub(crate) mod environment;
pub(crate) mod image;
pub(crate) mod load;
pub(crate) mod mount;
pub(crate) mod snapshot;
pub(crate) mod tree;

pub(crate) use command::{ok, run};
pub(crate) use environment::{driver, Driver};
pub(crate) use image::Image;
pub(crate) use mount::Mounted;
pub(crate) use snapshot::{Scope, Snapshot};

/// Returns from the test, saying so, where mounting is impossible.
macro_rules! needs_root {
    () => {
        if !crate::support::environment::can_mount() {
            eprintln!("skipped: needs root");
            return;
        }
    };
}
pub(crate) use needs_root;
