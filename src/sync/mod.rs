//! The locks, condition variables, atomics and threads of everything between the front-end and the devices, in one place,
//! so that `tests/models` can run the real code under a model checker: with the feature `models` they are shuttle's, which
//! works inside of its runs only. Anyone may use it; it calls nothing of the project's.

#[cfg(feature = "models")]
mod modelled;
#[cfg(feature = "models")]
pub use modelled::*;

#[cfg(not(feature = "models"))]
pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
#[cfg(not(feature = "models"))]
pub use std::sync::atomic;
#[cfg(not(feature = "models"))]
pub use std::thread;
