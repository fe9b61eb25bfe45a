//! Programs run by the benchmark; one that fails says what it printed.

use std::ffi::OsStr;
use std::io;
use std::process::{Command, Stdio};

/// Runs a program to its end; what it wrote to stdout.
pub fn run<A: AsRef<OsStr>>(program: &str, args: impl IntoIterator<Item = A>) -> io::Result<String> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null());
    let output =
        command.output().map_err(|error| io::Error::new(error.kind(), format!("{program}: {error}")))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
        return Err(io::Error::other(format!("{command:?}: {}: {said}", output.status)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether there is such a program.
pub fn exists(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|dir| dir.join(program).is_file())
}
