//! A hostile image, mounted and worked on; see tests/hostile/target/mount.rs.
#![no_main]

#[path = "../../tests/hostile/target/mod.rs"]
#[allow(dead_code)]
mod target;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| target::mount::run(bytes));
