//! A hostile journal, recovered; see tests/hostile/target/replay.rs.
#![no_main]

#[path = "../../tests/hostile/target/mod.rs"]
#[allow(dead_code)]
mod target;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| target::replay::run(bytes));
