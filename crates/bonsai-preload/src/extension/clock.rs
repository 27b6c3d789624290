//! The clock, by the library's way to it.

use crate::extension::Now;
use core::sync::atomic::{AtomicUsize, Ordering};

static NOW: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn set_now(now: Now) {
    NOW.store(now as usize, Ordering::Relaxed);
}

/// CLOCK_MONOTONIC, ns.
pub(crate) fn now() -> u64 {
    // SAFETY: set before the first call is decided on.
    let now = unsafe { core::mem::transmute::<usize, Now>(NOW.load(Ordering::Relaxed)) };
    now()
}
