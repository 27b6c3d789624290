//! Asking the service's keeper to have the next program entered from outside, where
//! there is no loader that brings us into it.

use crate::sys::{self, call, nr};
use bonsai_ledger::{Futex, Segment};
use core::sync::atomic::AtomicU32;

const PR_SET_PTRACER: usize = 0x5961_6d61;

/// How long a helper is waited for, ns. By the clock: signals end sleeps.
const PATIENCE: u64 = 5_000_000_000;

struct Kernel {
    end: u64,
}

impl Futex for Kernel {
    fn wait(&mut self, word: &AtomicU32, seen: u32) -> bool {
        let time = [0_u64, 100_000_000];
        // SAFETY: FUTEX_WAIT on a word that stays, with a relative time.
        unsafe { call!(nr::FUTEX, core::ptr::from_ref(word), 0, seen, time.as_ptr()) };
        sys::now_early() < self.end
    }

    fn wake(&mut self, word: &AtomicU32) {
        // SAFETY: FUTEX_WAKE.
        unsafe { call!(nr::FUTEX, core::ptr::from_ref(word), 1, i32::MAX) };
    }

    fn is_dead(&mut self, pid: u32) -> bool {
        // SAFETY: signal 0 only asks.
        unsafe { call!(nr::KILL, pid, 0) == sys::ESRCH }
    }
}

/// Whether a helper holds this thread now, and enters what it runs next: the number
/// of the question.
pub(crate) fn ask(segment: &Segment) -> Option<usize> {
    let allow = |helper: u32| {
        // SAFETY: lets that process trace this one; refused without Yama.
        unsafe { call!(nr::PRCTL, PR_SET_PTRACER, helper) };
    };
    let end = sys::now_early() + PATIENCE;
    segment.ask_to_enter(sys::gettid(), &mut Kernel { end }, allow)
}
