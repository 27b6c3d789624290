//! Asking the service's keeper to have the next program entered from outside, where
//! there is no loader that brings us into it.

use crate::identity;
use crate::seccomp::ask;
use crate::sys;
use bonsai_ledger::{Futex, ProcessId, Segment};
use core::sync::atomic::AtomicU32;

const PR_SET_PTRACER: usize = 0x5961_6d61;

/// Any process (`PR_SET_PTRACER_ANY`).
const ANY: usize = usize::MAX;

/// How long a helper is waited for, s: whole seconds, by the clock, for signals end sleeps.
const PATIENCE: u32 = 5;

struct Kernel {
    last: u32,
    passed: u32,
}

#[expect(clippy::cast_possible_truncation, reason = "differences count")]
fn seconds() -> u32 {
    (sys::now() / 1_000_000_000) as u32
}

impl Futex for Kernel {
    // Twice as large in place.
    #[inline(never)]
    fn wait(&mut self, word: &AtomicU32, seen: u32) -> bool {
        let time = [0_u64, 100_000_000];
        // SAFETY: FUTEX_WAIT on a word that stays, with a relative time.
        unsafe { ask!(Futex, core::ptr::from_ref(word), 0, seen, time.as_ptr()) };
        let now = seconds();
        // One at most for each turn: after more of them the machine has stood still, and the
        // helper, too; or somebody has set the clock.
        self.passed += now.wrapping_sub(self.last) & 1;
        self.last = now;
        self.passed < PATIENCE
    }

    fn wake(&mut self, word: &AtomicU32) {
        // SAFETY: FUTEX_WAKE.
        unsafe { ask!(Futex, core::ptr::from_ref(word), 1, i32::MAX) };
    }

    fn is_dead(&mut self, process: ProcessId) -> bool {
        identity::has_ended(process)
    }
}

/// Whether a helper holds this thread now, and enters what it runs next: the number
/// of the question.
pub(crate) fn ask(segment: &Segment) -> Option<usize> {
    let asker = identity::of_running(sys::gettid());
    let allow = |helper: ProcessId| {
        // A helper outside of this pid namespace has no number here.
        let is_here = helper.namespace == asker.namespace;
        let helper = if is_here { helper.pid as usize } else { ANY };
        // SAFETY: lets that process trace this one; refused without Yama.
        unsafe { ask!(SetPtracer, PR_SET_PTRACER, helper) };
    };
    let mut kernel = Kernel {
        last: seconds(),
        passed: 0,
    };
    segment.ask_to_enter(asker, &mut kernel, allow)
}

/// The program runs: takes back what let any process trace it.
#[cfg(feature = "alone")]
pub(crate) fn is_over(segment: &Segment) {
    let outside = segment.header.namespace.load(core::sync::atomic::Ordering::Relaxed);
    if outside != u64::from(identity::namespace()) {
        // SAFETY: as above.
        unsafe { ask!(SetPtracer, PR_SET_PTRACER, 0) };
    }
}
