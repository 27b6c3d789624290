//! Workers of one export, for what waits for the disk.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use super::lock;
use super::perform::Job;

/// How long a worker waits for the next job before it ends.
const IDLE: Duration = Duration::from_secs(10);

/// Threads that come when they are needed, and go when they are not.
#[derive(Debug)]
pub(crate) struct Pool {
    name: String,
    most: usize,
    state: Mutex<State>,
    more: Condvar,
}

#[derive(Debug, Default)]
struct State {
    jobs: VecDeque<Job>,
    workers: usize,
    idle: usize,
}

impl Pool {
    pub(crate) fn new(name: &str, most: usize) -> Self {
        Self {
            name: name.chars().take(8).collect(),
            most: most.max(1),
            state: Mutex::default(),
            more: Condvar::new(),
        }
    }

    /// Has a job done by a worker. Where no thread can be had, it is done at once.
    pub(super) fn push(self: &Arc<Self>, job: Job) {
        let mut state = lock(&self.state);
        state.jobs.push_back(job);
        if state.idle >= state.jobs.len() || state.workers >= self.most {
            drop(state);
            self.more.notify_one();
            return;
        }
        state.workers += 1;
        drop(state);
        let pool = Arc::clone(self);
        let thread = thread::Builder::new().name(format!("nbd-{}", self.name));
        if thread.spawn(move || pool.work()).is_err() {
            let job = {
                let mut state = lock(&self.state);
                state.workers -= 1;
                state.jobs.pop_back()
            };
            job.into_iter().for_each(Job::perform);
        }
    }

    fn work(&self) {
        let mut state = lock(&self.state);
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                job.perform();
                state = lock(&self.state);
                continue;
            }
            state.idle += 1;
            let waited = self.more.wait_timeout(state, IDLE);
            let (back, time) = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
            state = back;
            state.idle -= 1;
            if time.timed_out() && state.jobs.is_empty() {
                state.workers -= 1;
                return;
            }
        }
    }
}
