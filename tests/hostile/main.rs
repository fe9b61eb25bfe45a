//! Hostile images: the bodies of the fuzz targets on what fuzzing has found, and on random patches, so that
//! each `cargo test` has a slice of it. `make fuzz` does it for hours.

mod target;

use journalfs::units::InodeNr;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

/// A panic of any thread, also of those that the file system starts.
static PANICKED: AtomicBool = AtomicBool::new(false);
/// An input that takes longer is a hang.
const TIME_MAX: Duration = Duration::from_secs(10);

/// Runs one input; a panic of any thread fails the test, named.
fn run(name: &str, body: target::Body, bytes: &[u8], what: &str) {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICKED.store(true, Ordering::SeqCst);
            before(info);
        }));
    });
    let began = Instant::now();
    let result = catch_unwind(AssertUnwindSafe(|| body(bytes)));
    let hex = bytes.iter().take(2000).fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"));
    assert!(result.is_ok() && !PANICKED.load(Ordering::SeqCst), "target {name}, {what}: {hex}");
    assert!(began.elapsed() < TIME_MAX, "target {name}, {what} took {:?}: {hex}", began.elapsed());
}

/// Small random numbers, the same every time (xorshift64*).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| (self.next() >> 32) as u8).collect()
    }
}

fn seed() -> u64 {
    std::env::var("HOSTILE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

fn rounds(default: u64) -> u64 {
    std::env::var("HOSTILE_INPUTS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(default)
}

/// Without patches every image is mounted, and every log replayed; otherwise nothing would be tested.
#[test]
fn the_images_themselves_are_sound() {
    for (i, base) in target::base::CLEAN.iter().chain(&*target::base::DIRTY).enumerate() {
        let fs = target::base::mount(Arc::new(base.device.clone()));
        fs.lookup(InodeNr::ROOT, b"pieces").unwrap_or_else(|error| panic!("image {i}: {error}"));
        let fast = fs.lookup(InodeNr::ROOT, b"linked").is_ok();
        println!("image {i}: {} blocks hold something, fast commits replayed: {fast}", base.blocks.len());
        fs.unmount().unwrap();
    }
    for name in ["mount", "replay"] {
        let (_, body) = target::TARGETS.iter().find(|(known, _)| *known == name).unwrap();
        for base in 0..25 {
            run(name, *body, &[0, base, 0, 0], "an image without patches");
            run(name, *body, &[0, base, 1, 0], "an image sealed anew");
        }
    }
}

#[test]
fn what_fuzzing_has_found_stays_mended() {
    for (name, body) in target::TARGETS {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hostile/inputs").join(name);
        let mut files: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        for file in files {
            run(name, body, &std::fs::read(&file).unwrap(), &file.display().to_string());
        }
    }
}

#[test]
fn random_patches_end_in_errors() {
    let mut random = Random(seed());
    println!("seed {}", seed());
    for (name, body) in target::TARGETS {
        for round in 0..rounds(if name == "records" { 2000 } else { 100 }) {
            let len = 4 + random.next() as usize % 200;
            let mut bytes = random.bytes(len);
            if name != "records" {
                // Few patches, so that most of the image holds; and checksums that fit.
                bytes[1] %= 32;
                bytes[2] |= 1;
                bytes[3] %= 6;
            }
            run(name, body, &bytes, &format!("seed {}, round {round}", seed()));
        }
    }
}
