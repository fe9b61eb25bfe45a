//! Looking without waiting: the thread that takes requests from the kernel tries to answer from memory, and
//! leaves what must be read to another thread.

use std::cell::Cell;

thread_local! {
    static IMPATIENT: Cell<bool> = const { Cell::new(false) };
}

/// Ends the impatience even when what was tried panics.
struct Restore(bool);

impl Drop for Restore {
    fn drop(&mut self) {
        IMPATIENT.set(self.0);
    }
}

/// Runs `f` with every metadata block that this thread would have to read failing as
/// [`Error::NotCached`](crate::Error::NotCached). `f` must have no effect when it fails so.
pub fn without_waiting<R>(f: impl FnOnce() -> R) -> R {
    let _restore = Restore(IMPATIENT.replace(true));
    f()
}

/// Whether this thread may wait for a block.
pub(super) fn may_wait() -> bool {
    !IMPATIENT.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_comes_back_even_after_a_panic() {
        assert!(may_wait());
        assert!(!without_waiting(may_wait));
        let panicked = std::panic::catch_unwind(|| without_waiting(|| panic!("on purpose")));
        assert!(panicked.is_err() && may_wait());
    }
}
