//! fuse

pub mod control;
