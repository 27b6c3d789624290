//! Calls under way that may take a writeback error from the kernel.
//!
//! # Story
//! The kernel reports a writeback error once to an open file description (errseq_t), so of several calls at the same time one
//! is given it. A call that succeeded therefore waits for the calls that were under way at its end, until each of them has counted
//! its error. Calls that begin later found the error taken already, or take one of later writes: the wait is not for them, and
//! holds none of them up.
//!
//! # Invariants
//! 1. A [`Call`] is dropped after its error was counted.
//! 2. [`Calls::await_begun`] returns once each call that began before it has been dropped.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Calls of one open file description.
#[derive(Debug, Default)]
pub(super) struct Calls {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Calls that began, from the start on: the number of the next one.
    begun: u64,
    under_way: BTreeSet<u64>,
    /// For each thread that waits, the number of the first call that it does not wait for.
    awaited: Vec<u64>,
}

impl State {
    fn is_over(&self, end: u64) -> bool {
        self.under_way.first().is_none_or(|of| *of >= end)
    }
}

/// One call, under way until this is dropped.
#[derive(Debug)]
pub(super) struct Call<'a> {
    calls: &'a Calls,
    number: u64,
}

impl Calls {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a call begins. It waits for none.
    pub(super) fn begin(&self) -> Call<'_> {
        let mut state = self.lock();
        let number = state.begun;
        state.begun += 1;
        state.under_way.insert(number);
        Call {
            calls: self,
            number,
        }
    }

    /// Waits for the calls that are under way now, and for none that begins later.
    pub(super) fn await_begun(&self) {
        let mut state = self.lock();
        let end = state.begun;
        if state.is_over(end) {
            return;
        }
        state.awaited.push(end);
        let waits = |state: &mut State| !state.is_over(end);
        let over = self.ended.wait_while(state, waits);
        let mut state = over.unwrap_or_else(PoisonError::into_inner);
        let own = state.awaited.iter().position(|of| *of == end);
        own.map(|at| state.awaited.swap_remove(at));
    }
}

impl Call<'_> {
    /// Whether no other call is under way.
    pub(super) fn is_alone(&self) -> bool {
        self.calls.lock().under_way.len() == 1
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let mut state = self.calls.lock();
        state.under_way.remove(&self.number);
        let wakes = state.awaited.iter().any(|end| state.is_over(*end));
        drop(state);
        if wakes {
            self.calls.ended.notify_all();
        }
    }
}
