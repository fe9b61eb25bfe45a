//! What the fuzz targets do with an input. `fuzz/` hands over what libFuzzer makes up; the tests here hand over what it
//! has found and what a random generator makes of the seeds, so the three bodies run in every `cargo test` as well.
//!
//! An input is a few numbers and short patches over an image made at start, so that small inputs are whole file systems.

pub(crate) mod base;
pub(crate) mod image;
pub(crate) mod input;
mod log;
pub(crate) mod mount;
pub(crate) mod records;
mod records_log;
pub(crate) mod replay;
mod script;
mod seal;
mod seal_log;
mod tree;
mod walk;

/// A target's body: takes an input.
pub(crate) type Body = fn(&[u8]);

/// The targets by name.
pub(crate) const TARGETS: [(&str, Body); 3] =
    [("mount", mount::run), ("replay", replay::run), ("records", records::run)];
