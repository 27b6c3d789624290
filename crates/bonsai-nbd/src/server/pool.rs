//! Workers of one export, for what waits for the disk.
//!
//! To wake a thread costs more than to send a reply. So reads that the disk has begun with do not get a
//! worker each: their waiting overlaps, and whoever is awake does up to [`EACH`] of them one after the other.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use super::lock;
use super::perform::{Held, Job};

/// How long a worker waits for the next job before it ends.
const IDLE: Duration = Duration::from_secs(10);

/// Memory of requests that is kept for the next ones, in pieces.
const KEPT: usize = 32;

/// The largest piece that is kept, in bytes.
const KEPT_BYTES: usize = 1 << 20;

/// Reads that the disk has begun with, for each worker that is awake for such.
const EACH: usize = 8;

/// Threads that come when they are needed, and go when they are not.
#[derive(Debug)]
pub(crate) struct Pool {
    name: String,
    most: usize,
    state: Mutex<State>,
    more: Condvar,
    memory: Mutex<Vec<Vec<u8>>>,
}

/// # Invariants
/// 1. While there are jobs, a worker is at one or has been called: it does not sleep before there are none.
/// 2. A job that the disk has not begun with has a worker called for it, as long as there are more.
#[derive(Debug, Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Jobs of these that the disk has begun with.
    begun: usize,
    workers: usize,
    /// Those that sleep, and were not called.
    idle: usize,
    /// Those that were called, and have not come yet.
    called: usize,
    /// Of these, at most, for a job that the disk has begun with.
    called_to_read: usize,
    /// Workers that are at such a job.
    reading: usize,
}

impl Pool {
    pub(crate) fn new(name: &str, most: usize) -> Self {
        Self {
            name: name.chars().take(8).collect(),
            most: most.max(1),
            state: Mutex::default(),
            more: Condvar::new(),
            memory: Mutex::default(),
        }
    }

    /// Memory of that size; what is in it is of no meaning.
    pub(super) fn memory(&self, bytes: usize) -> Vec<u8> {
        let kept = lock(&self.memory).pop();
        let mut memory = kept.unwrap_or_default();
        if memory.len() < bytes {
            memory = vec![0; bytes];
        }
        memory.truncate(bytes.max(KEPT_BYTES.min(memory.len())));
        memory
    }

    /// Memory that is not needed any more.
    pub(super) fn give_back(&self, memory: Vec<u8>) {
        let mut kept = lock(&self.memory);
        if memory.capacity() <= KEPT_BYTES && kept.len() < KEPT {
            kept.push(memory);
        }
    }

    /// Has a job done by a worker. Where no thread can be had, it is done at once.
    pub(super) fn push(self: &Arc<Self>, job: Job) {
        let mut state = lock(&self.state);
        let begun = job.is_begun();
        state.begun += usize::from(begun);
        state.jobs.push_back(job);
        let readers = state.reading + state.called_to_read;
        if begun && state.begun <= EACH * readers {
            return;
        }
        if state.idle > 0 {
            state.idle -= 1;
            state.call(begun);
            drop(state);
            self.more.notify_one();
            return;
        }
        if state.workers >= self.most {
            return;
        }
        state.workers += 1;
        state.call(begun);
        drop(state);
        let pool = Arc::clone(self);
        let thread = thread::Builder::new().name(format!("nbd-{}", self.name));
        if thread.spawn(move || pool.work()).is_err() {
            let mut state = lock(&self.state);
            state.workers -= 1;
            state.comes();
            let job = state.take();
            drop(state);
            if let Some(job) = job {
                let mut held = Held::default();
                job.perform(&mut held);
                held.send();
                self.done(begun);
            }
        }
    }

    fn done(&self, begun: bool) {
        let mut state = lock(&self.state);
        state.reading -= usize::from(begun);
    }

    fn work(&self) {
        let mut held = Held::default();
        let mut state = lock(&self.state);
        state.comes();
        loop {
            if let Some(job) = state.take() {
                drop(state);
                let begun = job.is_begun();
                job.perform(&mut held);
                state = lock(&self.state);
                state.reading -= usize::from(begun);
                continue;
            }
            if !held.is_empty() {
                drop(state);
                held.send();
                state = lock(&self.state);
                continue;
            }
            state.idle += 1;
            loop {
                let waited = self.more.wait_timeout(state, IDLE);
                let (back, time) = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
                state = back;
                if state.called > 0 {
                    state.comes();
                    break;
                }
                if time.timed_out() {
                    state.idle -= 1;
                    state.workers -= 1;
                    return;
                }
            }
        }
    }
}

impl State {
    /// A worker is called. Whoever calls has counted it as not idle.
    const fn call(&mut self, begun: bool) {
        self.called += 1;
        self.called_to_read += begun as usize;
    }

    /// A worker that was called is there. It need not be the one that was called for a read; then some are
    /// called once more than they would have to be.
    const fn comes(&mut self) {
        self.called -= 1;
        self.called_to_read = self.called_to_read.saturating_sub(1);
    }

    fn take(&mut self) -> Option<Job> {
        let job = self.jobs.pop_front()?;
        if job.is_begun() {
            self.begun -= 1;
            self.reading += 1;
        }
        Some(job)
    }
}
