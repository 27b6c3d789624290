//! Words that are read whole or not at all, without a lock.
//!
//! # Invariants
//! 1. One writes at a time: whoever comes meanwhile is told so, and does not wait.
//! 2. What was read while somebody wrote is not used.

use core::sync::atomic::{AtomicU32, Ordering, fence};

/// Odd while somebody writes.
pub(crate) struct Sequence(AtomicU32);

impl Sequence {
    pub(crate) const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Writes, if nobody else does just now.
    #[inline]
    pub(crate) fn write(&self, by: impl FnOnce()) -> bool {
        let seen = self.0.load(Ordering::Relaxed);
        let odd = seen.wrapping_add(1);
        let taken = self
            .0
            .compare_exchange(seen, odd, Ordering::Acquire, Ordering::Relaxed);
        if !seen.is_multiple_of(2) || taken.is_err() {
            return false;
        }
        fence(Ordering::Release);
        by();
        self.0.store(seen.wrapping_add(2), Ordering::Release);
        true
    }

    /// Reads; `None` while somebody writes.
    #[inline]
    pub(crate) fn read<T>(&self, by: impl FnOnce() -> T) -> Option<T> {
        let seen = self.0.load(Ordering::Acquire);
        let read = by();
        fence(Ordering::Acquire);
        (seen.is_multiple_of(2) && self.0.load(Ordering::Relaxed) == seen).then_some(read)
    }
}
