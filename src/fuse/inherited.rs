//! Descriptors that a program got from whoever started it.

/// Keeps descriptors other than stdin, stdout and stderr from programs started from now on, so that
/// a daemon holds no lock, pipe or terminal of its starter's. Best effort: old kernels can't.
pub fn close_on_exec() {
    // SAFETY: the call changes flags of descriptors and touches no memory. What this process opened has the
    // flag already, as Rust's standard library sets it always.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
}
