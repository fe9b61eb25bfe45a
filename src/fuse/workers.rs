//! The threads for what may wait: device reads, fsync, long truncates.
//!
//! They are started as they are needed, up to a limit.

use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;
use std::thread::JoinHandle;

/// A piece of work. It must answer its request itself.
pub(super) type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    idle: usize,
    threads: Vec<JoinHandle<()>>,
    closed: bool,
}

struct Shared {
    state: Mutex<State>,
    work: Condvar,
}

/// A pool of at most `limit` threads.
pub(super) struct Workers {
    shared: Arc<Shared>,
    limit: usize,
}

impl Workers {
    /// A pool that grows up to `limit` threads (at least one).
    pub(super) fn new(limit: usize) -> Self {
        let shared = Arc::new(Shared { state: Mutex::default(), work: Condvar::new() });
        Self { shared, limit: limit.max(1) }
    }

    /// Has `job` run soon by some thread; by this one, if no thread can be started.
    pub(super) fn submit(&self, job: Job) {
        let mut state = self.shared.state.lock();
        state.queue.push_back(job);
        if state.idle >= state.queue.len() {
            drop(state);
            self.shared.work.notify_one();
            return;
        }
        if state.threads.len() < self.limit {
            let shared = self.shared.clone();
            let name = format!("worker-{}", state.threads.len());
            match std::thread::Builder::new().name(name).spawn(move || work(&shared)) {
                Ok(thread) => state.threads.push(thread),
                Err(error) if state.threads.is_empty() => {
                    tracing::error!("no worker thread can be started: {error}");
                    let job = state.queue.pop_back();
                    drop(state);
                    job.into_iter().for_each(run);
                }
                Err(_) => {}
            }
        }
    }

    /// Waits until every job has run and ends the threads.
    pub(super) fn close(&self) {
        let threads = {
            let mut state = self.shared.state.lock();
            state.closed = true;
            std::mem::take(&mut state.threads)
        };
        self.shared.work.notify_all();
        for thread in threads {
            let _ = thread.join();
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.close();
    }
}

fn work(shared: &Shared) {
    let mut state = shared.state.lock();
    loop {
        while let Some(job) = state.queue.pop_front() {
            drop(state);
            run(job);
            state = shared.state.lock();
        }
        if state.closed {
            return;
        }
        state.idle += 1;
        shared.work.wait(&mut state);
        state.idle -= 1;
    }
}

/// A bug in one job must not take the mount down: its reply, dropped, says EIO.
fn run(job: Job) {
    if catch_unwind(AssertUnwindSafe(job)).is_err() {
        tracing::error!("a request failed by a bug; its caller gets an I/O error");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn jobs_run_side_by_side_and_all_before_close() {
        let workers = Workers::new(2);
        let (to_second, from_first) = channel();
        let (done, results) = channel();
        let first_done = done.clone();
        workers.submit(Box::new(move || {
            // Waits for the second job, which only another thread can run.
            first_done.send(from_first.recv().unwrap()).unwrap();
        }));
        workers.submit(Box::new(move || to_second.send(7).unwrap()));
        workers.submit(Box::new(|| panic!("on purpose")));
        workers.submit(Box::new(move || done.send(8).unwrap()));
        workers.close();
        let mut results: Vec<i32> = results.try_iter().collect();
        results.sort_unstable();
        assert_eq!(results, [7, 8]);
    }
}
