//! fs_mark, with the command line of the discussion that batching goes back to, scaled down.

use crate::contender::Programs;
use std::io;
use std::path::Path;

/// Numbers of threads.
pub const THREADS: [u32; 6] = [1, 2, 4, 8, 10, 20];

/// Has `threads` threads each write, fsync and close `files` files of 4 KiB. The files per second.
pub fn fs_mark(programs: &Programs, dir: &Path, threads: u32, files: u32) -> io::Result<f64> {
    let log = std::env::temp_dir().join(format!("journalfs-bench-{}.log", std::process::id()));
    let (dir, log) = (dir.to_string_lossy(), log.to_string_lossy());
    let (threads, files) = (threads.to_string(), files.to_string());
    let said = programs.run(&[
        "fs_mark", "-d", &dir, "-S", "1", "-s", "4096", "-N", "50", "-D", "64", "-L", "1", "-t", &threads,
        "-n", &files, "-l", &log,
    ]);
    let _ = std::fs::remove_file(&*log);
    let said = said?;
    rate(&said).ok_or_else(|| io::Error::other(format!("fs_mark says nothing: {said}")))
}

/// The fourth number of the last line that begins with three numbers.
fn rate(said: &str) -> Option<f64> {
    let of_line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let numbers = words.get(..3)?.iter().all(|word| word.parse::<u64>().is_ok());
        numbers.then(|| words.get(3)?.parse().ok()).flatten()
    };
    said.lines().rev().find_map(of_line)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_rate_is_found_in_what_fs_mark_says() {
        let said = "#  fs_mark -d /x\n\nFSUse%        Count         Size    Files/sec     App Overhead\n     1          100         4096        437.5            10372\n";
        assert_eq!(super::rate(said), Some(437.5));
        assert_eq!(super::rate("nothing"), None);
    }
}
