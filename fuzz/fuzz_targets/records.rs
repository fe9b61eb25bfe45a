//! Every record's decoder; see tests/hostile/target/records.rs.
#![no_main]

#[path = "../../tests/hostile/target/mod.rs"]
#[allow(dead_code)]
mod target;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| target::records::run(bytes));
