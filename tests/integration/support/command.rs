//! Running other programs: never for ever, and with their output at hand when they fail.

use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How a program ended and what it printed.
pub(crate) struct Output {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Output {
    /// Everything it printed, for messages.
    pub(crate) fn text(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }
}

/// Runs `command`; a run longer than `limit` kills its whole process group and fails the test.
pub(crate) fn run(command: &mut Command, limit: Duration) -> Output {
    // Files, not pipes: a child that outlives its parent must not keep us reading.
    let mut stdout = tempfile::tempfile().expect("temporary file");
    let mut stderr = tempfile::tempfile().expect("temporary file");
    let started = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(stdout.try_clone().expect("dup"))
        .stderr(stderr.try_clone().expect("dup"))
        .process_group(0)
        .spawn()
        .unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
    let mut pause = Duration::from_millis(1);
    let status = loop {
        if let Some(status) = child.try_wait().expect("wait") {
            break Some(status);
        }
        if started.elapsed() > limit {
            let group = rustix::process::Pid::from_child(&child);
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            break None;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    };
    let read = |file: &mut std::fs::File| {
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(0)).expect("seek");
        file.read_to_end(&mut bytes).expect("read");
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let (stdout, stderr) = (read(&mut stdout), read(&mut stderr));
    let Some(status) = status else {
        panic!("{command:?} ran for more than {limit:?} and was killed:\n{stdout}{stderr}");
    };
    Output { status, stdout, stderr }
}

/// Runs `command`, demands exit status 0 and returns its standard output.
pub(crate) fn ok(command: &mut Command, limit: Duration) -> String {
    let output = run(command, limit);
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, output.text());
    output.stdout
}
