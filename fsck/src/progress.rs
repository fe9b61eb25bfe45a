//! Progress for -C.

use std::fs::File;
use std::io::{IsTerminal, Write};

/// Where progress goes.
pub(crate) struct Progress {
    target: Target,
    device: String,
    last: (u8, u64),
}

enum Target {
    None,
    Terminal,
    Lines(File),
}

impl Progress {
    /// `fd` as -C has it: 0 draws a line on the terminal, above that lines go to the descriptor.
    pub(crate) fn new(fd: Option<i32>, device: String) -> Self {
        let target = match fd {
            Some(0) if std::io::stdout().is_terminal() => Target::Terminal,
            Some(fd) if fd > 0 => {
                let file = File::options().append(true).open(format!("/proc/self/fd/{fd}"));
                file.map_or(Target::None, Target::Lines)
            }
            _ => Target::None,
        };
        Self { target, device, last: (0, u64::MAX) }
    }

    /// Pass `pass` has done this much.
    pub(crate) fn step(&mut self, pass: u8, done: u64, total: u64) {
        let percent = done * 100 / total.max(1);
        if self.last == (pass, percent) {
            return;
        }
        self.last = (pass, percent);
        // Nobody is worse off for progress that can't be written.
        let _ = match &mut self.target {
            Target::None => Ok(()),
            Target::Terminal => write!(std::io::stdout(), "\r{}: pass {pass}, {percent}% ", self.device)
                .and_then(|()| std::io::stdout().flush()),
            Target::Lines(file) => writeln!(file, "{pass} {done} {total} {}", self.device),
        };
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Target::Terminal = self.target {
            print!("\r\x1b[K");
        }
    }
}
