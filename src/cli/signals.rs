//! SIGTERM and SIGINT end a mount properly.

use journalfs::{Error, Result};
use nix::sys::signal::{SigSet, Signal};

/// The signals that end the daemon, blocked in this thread and all that it starts from now on.
pub(super) struct Ending(SigSet);

impl Ending {
    /// Blocks the signals. To be called before any thread is started.
    pub(super) fn block() -> Result<Self> {
        // A limit on file sizes must fail a write to the image, not kill the daemon.
        let mut all = SigSet::empty();
        all.add(Signal::SIGXFSZ);
        let mut set = SigSet::empty();
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            set.add(signal);
            all.add(signal);
        }
        all.thread_block().map_err(|errno| Error::io("blocking signals", errno.into()))?;
        Ok(Self(set))
    }

    /// Starts a thread that calls `end` each time such a signal arrives.
    pub(super) fn watch(self, end: impl Fn(Signal) + Send + 'static) -> Result<()> {
        let watch = move || loop {
            match self.0.wait() {
                Ok(signal) => end(signal),
                Err(errno) => {
                    tracing::error!(%errno, "waiting for signals");
                    return;
                }
            }
        };
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(watch)
            .map(drop)
            .map_err(|error| Error::io("starting a thread", error))
    }
}
