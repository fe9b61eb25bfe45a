//! parking_lot's interface, as far as it is used here, over shuttle's primitives. A wait with a limit never reaches it, so
//! a wakeup that is lost shows as a deadlock.
#![allow(missing_docs)]

pub use shuttle::sync::atomic;
pub use shuttle::sync::{RwLockReadGuard, RwLockWriteGuard};
pub use shuttle::thread;

use shuttle::sync as model;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

#[derive(Default)]
pub struct Mutex<T>(model::Mutex<T>);

/// Gives the lock up for a while when it is asked to, so it knows which one it is.
pub struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    inner: Option<model::MutexGuard<'a, T>>,
}

/// A thread that panics fails the model, so what it held matters no more.
fn whole<G>(result: Result<G, std::sync::PoisonError<G>>) -> G {
    result.unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl<T> Mutex<T> {
    pub fn new(value: T) -> Self {
        Self(model::Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard { mutex: self, inner: Some(whole(self.0.lock())) }
    }
}

impl<T> MutexGuard<'_, T> {
    pub fn unlocked<R>(guard: &mut Self, f: impl FnOnce() -> R) -> R {
        guard.inner = None;
        let result = f();
        guard.inner = Some(whole(guard.mutex.0.lock()));
        result
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.inner.as_ref().expect("a guard in use holds its lock")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().expect("a guard in use holds its lock")
    }
}

#[derive(Default)]
pub struct Condvar(model::Condvar);

/// What a wait with a limit returns.
pub struct WaitTimeoutResult;

impl WaitTimeoutResult {
    pub fn timed_out(&self) -> bool {
        false
    }
}

impl Condvar {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        if let Some(inner) = guard.inner.take() {
            guard.inner = Some(whole(self.0.wait(inner)));
        }
    }

    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _limit: Duration) -> WaitTimeoutResult {
        self.wait(guard);
        WaitTimeoutResult
    }

    pub fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, _limit: Instant) -> WaitTimeoutResult {
        self.wait(guard);
        WaitTimeoutResult
    }

    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

#[derive(Default)]
pub struct RwLock<T>(model::RwLock<T>);

impl<T> RwLock<T> {
    pub fn new(value: T) -> Self {
        Self(model::RwLock::new(value))
    }

    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        whole(self.0.read())
    }

    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        whole(self.0.write())
    }

    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        self.0.try_read().ok()
    }

    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        self.0.try_write().ok()
    }
}
