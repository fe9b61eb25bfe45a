//! mkfs.journalfs
#![forbid(unsafe_code)]
fn main() {}
