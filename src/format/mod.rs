//! format

pub mod jbd2;
