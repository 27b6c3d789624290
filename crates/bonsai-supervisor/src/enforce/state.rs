//! What a supervisor knows of its service, all of it behind one lock.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bonsai_ledger::Ledger;

use super::filter::Refused;
use super::threads::{IN, KEPT, OUT, Thread, is_alive};

/// Threads that have ended are looked for when so many are known, too.
const MANY: usize = 4096;

/// Descriptors that the supervisor has whatever it does, about.
const OURS: usize = 16;

/// Threads by their numbers. They are looked up several times for a call, and the kernel
/// chooses the numbers: spreading them is enough.
pub(crate) type Threads = HashMap<u32, Thread, BuildHasherDefault<Spread>>;

#[derive(Debug, Default)]
pub(crate) struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }

    fn write_u32(&mut self, number: u32) {
        // The map uses the upper bits and the lower ones.
        let spread = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = spread ^ (spread >> 32);
    }
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) threads: Threads,
    pub(super) alarms: BinaryHeap<Reverse<(u64, u64, u32)>>,
    pub(super) next_alarm: u64,
    /// Bytes that may come in without having been paid for.
    pub(super) ahead: u64,
    /// Threads, by process and number, that run another program while their process has further threads.
    execs: Vec<(u32, u32)>,
    /// Whether there may be processes that share descriptors: then a look at one says
    /// nothing of the call that follows.
    pub(super) shared: bool,
    pub(super) kept: usize,
    pub(super) refused: [u64; Refused::ALL.len()],
    pub(super) swept: u64,
}

/// Half of the descriptors that we may have: the others are for calls that we make.
pub(super) fn room() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let half = limit.map_or(KEPT, |most| usize::try_from(most / 2).unwrap_or(KEPT));
    half.saturating_sub(OURS).min(KEPT)
}

impl State {
    /// Keeps what a thread's descriptors are taken by.
    pub(super) fn keep_process(&mut self, tid: u32, process: &Arc<OwnedFd>) {
        if let Some(thread) = self.threads.get_mut(&tid) {
            let kept = thread.kept();
            thread.keep_process(Arc::clone(process));
            self.kept = (self.kept + thread.kept()).saturating_sub(kept);
        }
    }

    /// Invalidates the cached credentials of a thread before it changes them. `execve` of a thread gives it the number of its
    /// process; of an unknown thread that number is unknown, too, so all are invalidated.
    pub(super) fn forget_rights(&mut self, tid: u32) {
        let known = self.threads.get(&tid).map(|thread| thread.pid);
        for (number, thread) in &mut self.threads {
            if known.is_none_or(|pid| [tid, pid].contains(number)) {
                thread.rights = None;
            }
        }
    }

    /// A thread is about to run another program. If it is not the first of its process it takes that one's number over, and the
    /// kernel's counters of that number are its own from then on: what the process has open is charged now, as far as it may
    /// have moved.
    pub(super) fn begin_exec(&mut self, ledger: &Ledger, tid: u32, now: u64) {
        let Some(pid) = self.threads.get(&tid).map(|thread| thread.pid) else {
            return;
        };
        if pid == tid {
            return;
        }
        for thread in self.threads.values_mut().filter(|of| of.pid == pid) {
            let counted = if thread.tid == tid {
                thread.counted()
            } else {
                None
            };
            self.ahead -= thread.settle(ledger, IN, counted, now);
            thread.settle(ledger, OUT, counted, now);
        }
        self.execs.push((pid, tid));
    }

    /// A thread that makes a call runs no other program any more.
    pub(super) fn end_exec(&mut self, tid: u32) {
        if !self.execs.is_empty() {
            self.execs.retain(|exec| exec.1 != tid);
        }
    }

    /// Whether a thread's counters may become those of another one.
    pub(super) fn may_be_replaced(&mut self, tid: u32) -> bool {
        if self.execs.is_empty() {
            return false;
        }
        self.execs.retain(|(pid, tid)| is_alive(*pid, *tid));
        let pid = self.threads.get(&tid).map(|thread| thread.pid);
        self.execs.iter().any(|exec| Some(exec.0) == pid)
    }

    /// Makes a thread known.
    pub(super) fn know(&mut self, ledger: &Ledger, tid: u32, now: u64, room: usize) {
        if self.threads.contains_key(&tid) {
            return;
        }
        if self.threads.len() >= MANY && self.threads.len().is_power_of_two() {
            // The next turn of the alarms' thread.
            self.swept = self.swept.min(now.saturating_sub(1_000_000_000));
        }
        let thread = Thread::new(ledger, tid, self.kept < room);
        self.kept += thread.kept();
        self.threads.insert(tid, thread);
    }
}
