//! pjdfstest: what POSIX asks of a file system, in some 400 cases.

use std::process::Command;
use std::time::Duration;

use crate::support::environment::{scratch, tool};
use crate::support::{needs_root, run, Image, Mounted};

/// kernel ext3 passes 383 (384 with a second file system); fewer passes mean that cases did not run.
const PLAUSIBLE: u32 = 383;

fn suite(profile: &'static str) {
    let image = Image::formatted(512 << 20, profile, &[]);
    let mounted = Mounted::new(&image, "");
    let directory = mounted.join("pjdfstest");
    std::fs::create_dir(&directory).expect("mkdir");
    let other = tempfile::tempdir_in(other_file_system()).expect("directory elsewhere");
    let work = tempfile::tempdir_in(scratch()).expect("scratch directory");
    let config = work.path().join("pjdfstest.toml");
    std::fs::write(&config, configuration()).expect("write configuration");
    let output = run(
        Command::new(tool("pjdfstest"))
            .arg("-c")
            .arg(&config)
            .arg("-p")
            .arg(&directory)
            .arg("-s")
            .arg(other.path())
            .current_dir(work.path()),
        Duration::from_secs(600),
    );
    let text = output.text();
    let failed: String = failures(&text);
    let summary = text.lines().find(|line| line.starts_with("Summary:"));
    let summary = summary.unwrap_or_else(|| panic!("no summary:\n{text}"));
    eprintln!("pjdfstest on {profile}: {summary}");
    assert_eq!(count(summary, "failed"), 0, "{summary}\n{failed}");
    assert!(output.status.success(), "{}\n{text}", output.status);
    let passed = count(summary, "passed");
    assert!(passed >= PLAUSIBLE, "only {passed} cases passed: {summary}");
    assert!(count(summary, "skipped") <= 15, "{summary}");
    mounted.unmount();
    image.assert_clean();
}

/// The number before `word` in "Summary: 0 failed, 15 skipped, 383 passed, ...".
fn count(summary: &str, word: &str) -> u32 {
    let part =
        summary.trim_start_matches("Summary:").split(',').find_map(|part| part.trim().strip_suffix(word));
    part.and_then(|number| number.trim().parse().ok())
        .unwrap_or_else(|| panic!("no count of {word} in {summary}"))
}

/// The cases that failed, each with the lines that explain it.
fn failures(text: &str) -> String {
    let mut kept = String::new();
    let mut within = false;
    for line in text.lines() {
        if !line.starts_with(['\t', ' ']) {
            within = line.ends_with("FAILED") || line.ends_with("failed");
        }
        if within {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

/// EXDEV needs a file system of another kind than the mount's.
fn other_file_system() -> std::path::PathBuf {
    let shm = std::path::Path::new("/dev/shm");
    if shm.is_dir() {
        shm.to_path_buf()
    } else {
        std::env::temp_dir()
    }
}

fn configuration() -> String {
    // Two unprivileged users that every Linux has; only the name of nobody's group differs.
    let groups = std::fs::read_to_string("/etc/group").unwrap_or_default();
    let nogroup = if groups.lines().any(|line| line.starts_with("nogroup:")) { "nogroup" } else { "nobody" };
    format!(
        "[features]\nposix_fallocate = {{}}\nrename_ctime = {{}}\nutimensat = {{}}\nutime_now = {{}}\n\
         [settings]\nnaptime = 0.01\nallow_remount = false\n\
         [dummy_auth]\nentries = [[\"nobody\", \"{nogroup}\"], [\"daemon\", \"daemon\"]]\n"
    )
}

#[test]
fn journalfs_profile() {
    needs_root!();
    suite("journalfs");
}

#[test]
fn ext3_profile() {
    needs_root!();
    suite("ext3");
}
