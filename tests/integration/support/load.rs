//! A mixed load of several workers that remember what was promised them, and the checks that it was kept.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::environment::program;
use super::{ok, run, Image, Mounted};

const WORKERS: u64 = 4;
const LIMIT: Duration = Duration::from_secs(120);

/// Files whose fsync returned, by name below the root, each with the bytes that it must hold.
pub(crate) type Promised = BTreeMap<String, Vec<u8>>;

/// A worker's own random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    fn bytes(&mut self, length: u64) -> Vec<u8> {
        (0..length).map(|_| self.below(256) as u8).collect()
    }
}

/// Creates, appends, renames, replaces and removes files until `stop` or the first error; returns what
/// was promised to last, and the files kept open after their removal.
fn work(root: &Path, worker: u64, seed: u64, stop: &AtomicBool, doubt: &AtomicBool) -> (Promised, Vec<File>) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9) ^ (worker + 1) << 40 | 1);
    let mut promised = Promised::new();
    let mut open = Vec::new();
    let directory = format!("worker-{worker}");
    if fs::create_dir_all(root.join(&directory)).is_err() {
        return (promised, open);
    }
    for number in 0_u64.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let name = format!("{directory}/file-{number}");
        let Ok(touched) = step(root, &name, &mut random, &mut promised, &mut open) else {
            break;
        };
        if doubt.load(Ordering::SeqCst) {
            promised.remove(&touched.unwrap_or(name));
            break;
        }
    }
    (promised, open)
}

/// One change; returns which older file it was made to, if one.
fn step(
    root: &Path,
    name: &str,
    random: &mut Random,
    promised: &mut Promised,
    open: &mut Vec<File>,
) -> std::io::Result<Option<String>> {
    let length = [0, 100, 4096, 20_000, 300_000][random.below(5) as usize];
    let bytes = random.bytes(length);
    let path = root.join(name);
    let pick = |random: &mut Random, promised: &Promised| {
        let index = random.below(promised.len().max(1) as u64) as usize;
        promised.keys().nth(index).cloned()
    };
    match random.below(12) {
        // Never synced: may be there or not.
        0 => fs::write(path, bytes)?,
        // Written aside, synced, renamed into place, directory synced.
        1 | 2 => {
            let aside = root.join(format!("{name}.new"));
            let mut file = File::create(&aside)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            fs::rename(&aside, &path)?;
            File::open(path.parent().expect("has a parent"))?.sync_all()?;
            promised.insert(name.to_owned(), bytes);
        }
        3 => {
            if let Some(old) = pick(random, promised) {
                let mut now = promised.remove(&old).expect("picked");
                let mut file = OpenOptions::new().append(true).open(root.join(&old))?;
                file.write_all(&bytes)?;
                file.sync_data()?;
                now.extend_from_slice(&bytes);
                promised.insert(old.clone(), now);
                return Ok(Some(old));
            }
        }
        4 => {
            if let Some(old) = pick(random, promised) {
                promised.remove(&old);
                let file = OpenOptions::new().write(true).open(root.join(&old))?;
                fs::remove_file(root.join(&old))?;
                if open.len() < 20 {
                    open.push(file);
                }
            }
        }
        5 => {
            if let Some(old) = pick(random, promised) {
                let mut now = promised.remove(&old).expect("picked");
                let cut = random.below(now.len() as u64 + 1);
                let file = OpenOptions::new().write(true).open(root.join(&old))?;
                file.set_len(cut)?;
                file.sync_all()?;
                now.truncate(cut as usize);
                promised.insert(old.clone(), now);
                return Ok(Some(old));
            }
        }
        // Overwritten in place, perhaps while the log still holds the blocks.
        6 | 7 => {
            if let Some(old) = pick(random, promised) {
                let mut now = promised.remove(&old).expect("picked");
                let at = random.below(now.len() as u64 + 1) as usize;
                let file = OpenOptions::new().write(true).open(root.join(&old))?;
                file.write_all_at(&bytes, at as u64)?;
                file.sync_data()?;
                now.resize(now.len().max(at + bytes.len()), 0);
                now[at..at + bytes.len()].copy_from_slice(&bytes);
                promised.insert(old.clone(), now);
                return Ok(Some(old));
            }
        }
        // One synced file takes another one's name.
        8 => {
            let (from, to) = (pick(random, promised), pick(random, promised));
            if let (Some(from), Some(to)) = (from, to) {
                let bytes = promised.remove(&from).expect("picked");
                promised.remove(&to);
                fs::rename(root.join(&from), root.join(&to))?;
                File::open(path.parent().expect("has a parent"))?.sync_all()?;
                promised.insert(to.clone(), bytes);
                return Ok(Some(to));
            }
        }
        // Directories come and go unsynced: their blocks are logged, freed and used again for data.
        9 => {
            let directory = root.join(format!("{name}.directory"));
            fs::create_dir(&directory)?;
            for number in 0..random.below(60) {
                fs::write(directory.join(format!("{number:060}")), &bytes[..bytes.len().min(50)])?;
            }
            if random.below(4) > 0 {
                fs::remove_dir_all(&directory)?;
            }
        }
        _ => {
            let mut file = File::create(path)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            promised.insert(name.to_owned(), bytes);
        }
    }
    Ok(None)
}

/// Runs the workers, lets `interrupt` happen in the middle, and returns all that was promised. What returns after
/// `interrupt` has set its flag is not counted as a promise.
pub(crate) fn load(root: &Path, seed: u64, interrupt: impl FnOnce(&AtomicBool)) -> (Promised, Vec<File>) {
    let (stop, doubt) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|worker| {
                let (stop, doubt) = (&stop, &doubt);
                scope.spawn(move || work(root, worker, seed, stop, doubt))
            })
            .collect();
        std::thread::sleep(Duration::from_millis(150 + seed * 37 % 400));
        interrupt(&doubt);
        stop.store(true, Ordering::Relaxed);
        let (mut promised, mut open) = (Promised::new(), Vec::new());
        for worker in workers {
            let (names, files) = worker.join().expect("worker");
            promised.extend(names);
            open.extend(files);
        }
        (promised, open)
    })
}

pub(crate) fn assert_kept(root: &Path, promised: &Promised, what: &str) {
    for (name, bytes) in promised {
        let found =
            fs::read(root.join(name)).unwrap_or_else(|error| panic!("{what}: {name} was synced: {error}"));
        assert!(
            found == *bytes,
            "{what}: {name} was synced with {} bytes and has {} now, the first difference at {:?}",
            bytes.len(),
            found.len(),
            found.iter().zip(bytes).position(|(a, b)| a != b)
        );
    }
}

/// By each who can replay the journal in turn; each must find a consistent file system with every
/// promised file.
pub(crate) fn recover(image: &Image, promised: &Promised, round: u64, what: &str) {
    // Shown where the test fails.
    eprintln!("{what}: {} files promised, recovery {}", promised.len(), round % 5);
    match round % 5 {
        0 => {
            let mounted = Mounted::journalfs(&image.path(), "");
            assert_kept(mounted.root(), promised, &format!("{what}, our recovery"));
            fs::write(mounted.join("after"), b"usable").expect("write after recovery");
            mounted.unmount();
        }
        1 => {
            let mounted = Mounted::kernel(image, "");
            assert_kept(mounted.root(), promised, &format!("{what}, the kernel's recovery"));
            mounted.unmount();
        }
        2 => {
            ok(Command::new(program("journalfs")).arg("replay").arg(image.path()), LIMIT);
        }
        3 => {
            let output = run(Command::new(program("fsck.journalfs")).arg("-p").arg(image.path()), LIMIT);
            let status = output.status.code();
            assert!(status <= Some(1), "{what}: fsck.journalfs -p: {}", output.text());
        }
        _ => {
            // Replays and cleans orphans; that alone is no error (exit status 0 or 1).
            let output = run(Command::new("e2fsck").arg("-p").arg(image.path()), LIMIT);
            let status = output.status.code();
            assert!(status <= Some(1), "{what}: e2fsck -p: {}", output.text());
        }
    }
    image.assert_clean();
    let mounted = Mounted::kernel(image, "ro");
    assert_kept(mounted.root(), promised, &format!("{what}, seen by the kernel"));
    mounted.unmount();
}
