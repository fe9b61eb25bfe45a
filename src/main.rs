//! The journalfs binary.
fn main() {}
