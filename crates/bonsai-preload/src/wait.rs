//! Waiting until tickets are due.
//!
//! One sleep on the epoch's futex with an absolute deadline: a change of limits
//! wakes every sleeper, which computes its wait anew. `futex_waitv(2)` is used
//! where it exists, because the kernel restarts it after a signal handler exactly
//! as it would restart a slow call: with `SA_RESTART`, and not otherwise. The
//! plain futex call always returns; what the handlers ask for is then looked up.
//! Calls that no handler lets go on (`bonsai_calls::signals`) use that one.

use crate::cancel::Cancel;
use crate::facts::{fact, facts};
use crate::seccomp::{Helper, ask, forbids};
use crate::sys;
use bonsai_calls::CallId;
use bonsai_ledger::{LOOK_AGAIN_NS, Segment, Tickets, Unshaped, WaitNote};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// How a wait ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// The call may go.
    Due,
    /// A signal handler ran, and the call has to end with `EINTR`.
    Interrupted,
    /// The limits have changed so much that the call has to queue again.
    Changed,
    /// The descriptor's own time limit is over: the call ends with `EAGAIN`.
    TimedOut,
}

/// Shorter waits are spun: a sleep takes about 20 us by itself.
pub(crate) const SPIN_NS: u64 = 5_000;

/// The default timer slack delays a wake-up by 50 us.
const PR_SET_TIMERSLACK: usize = 29;
const PR_GET_TIMERSLACK: usize = 30;

static NO_WAITV: AtomicBool = AtomicBool::new(false);

/// Who waits with which call, and where that is noted: nowhere for a thread without
/// a page of its own, and for a signal handler during a wait.
#[derive(Clone, Copy)]
pub(crate) struct Waiter<'a> {
    pub(crate) note: Option<&'a WaitNote>,
    pub(crate) tid: u32,
    pub(crate) call: CallId,
    /// The cancellation point of the call.
    pub(crate) cancel: Cancel,
}

/// Waits until `tickets` are due, or void, or until the instant `limit`. Returns
/// how it ended and the instant.
pub(crate) fn until_due(
    segment: &Segment,
    tickets: &Tickets,
    mut now: u64,
    limit: u64,
    waiter: Waiter<'_>,
) -> (Wait, u64) {
    let mut slack: isize = 0;
    if let Some(note) = waiter.note {
        note.begin(now);
    }
    let end = loop {
        let epoch = segment.epoch();
        #[cfg(feature = "alone")]
        if crate::attach::running::is_detached() {
            break Wait::Due;
        }
        if segment.stale(tickets) {
            break Wait::Changed;
        }
        let (due, bucket) = segment.due_last(tickets, now);
        if due <= now {
            break Wait::Due;
        }
        if now >= limit {
            break Wait::TimedOut;
        }
        if waiter.cancel.is_cancelled() {
            break Wait::Interrupted;
        }
        if due - now < SPIN_NS {
            sys::pause();
            now = sys::now();
            continue;
        }
        if slack == 0 {
            slack = sharpen();
        }
        if let Some(note) = waiter.note {
            note.sleep(waiter.call, waiter.tid, bucket, due, now);
        }
        let until = due.min(limit).min(now.saturating_add(LOOK_AGAIN_NS));
        let restarts = restarts(waiter.call, limit);
        let slept = sleep(
            &segment.header.epoch.0,
            epoch,
            until,
            restarts,
            waiter.cancel,
        );
        now = sys::now();
        match slept {
            0 | sys::EAGAIN | sys::ETIMEDOUT => {}
            sys::EINTR => break Wait::Interrupted,
            _ => {
                segment.count_unshaped(Unshaped::WaitFailed);
                break Wait::Due;
            }
        }
    };
    blunt(slack);
    (end, now)
}

/// Sets this thread's timer slack back to what [`sharpen`] said.
#[inline(always)]
pub(crate) fn blunt(slack: isize) {
    if slack > 1 {
        // SAFETY: sets this thread's slack back.
        unsafe { ask!(Prctl, PR_SET_TIMERSLACK, slack) };
    }
}

/// Sets this thread's timer slack to 1 ns; returns what it was.
pub(crate) fn sharpen() -> isize {
    // SAFETY: concerns this thread only.
    unsafe {
        let slack = ask!(Prctl, PR_GET_TIMERSLACK);
        if slack > 1 {
            ask!(Prctl, PR_SET_TIMERSLACK, 1);
        }
        slack.max(1)
    }
}

/// `struct futex_waitv`.
#[repr(C)]
struct WaitV {
    value: u64,
    address: u64,
    flags: u32,
    reserved: u32,
}

/// `futex_waitv` is not tried.
#[cfg(not(any(feature = "alone", feature = "extension")))]
pub(crate) fn use_plain_futex() {
    NO_WAITV.store(true, Ordering::Relaxed);
}

/// True where `futex_waitv` is not tried: from the start in valgrind.
#[cfg(not(any(feature = "alone", feature = "extension")))]
pub(crate) fn is_futex_plain() -> bool {
    NO_WAITV.load(Ordering::Relaxed)
}

const FUTEX2_SIZE_U32: u32 = 2;
const FUTEX_WAIT_BITSET: usize = 9;

/// A helper call that waits, where libc's handler takes it for the call of the program.
macro_rules! wait_by {
    ($cancel:expr, $helper:ident, $args:expr) => {{
        let [a, b, c, d, e, f] = $args;
        let made = match forbids(Helper::$helper) {
            true => None,
            false => $cancel.make(Helper::$helper.word() & 0xffff, &$args),
        };
        match made {
            Some(result) => result,
            None => ask!($helper, a, b, c, d, e, f),
        }
    }};
}

#[expect(
    clippy::cast_possible_wrap,
    reason = "an instant in ns fits into 63 bits for 292 years"
)]
pub(crate) fn sleep(
    word: &AtomicU32,
    value: u32,
    until: u64,
    restarts: bool,
    cancel: Cancel,
) -> isize {
    let deadline = [
        (until / 1_000_000_000) as i64,
        (until % 1_000_000_000) as i64,
    ];
    if restarts && !NO_WAITV.load(Ordering::Relaxed) {
        let waiter = WaitV {
            value: u64::from(value),
            address: core::ptr::from_ref(word) as u64,
            flags: FUTEX2_SIZE_U32,
            reserved: 0,
        };
        // SAFETY: one waiter on a word of the segment; 1 is CLOCK_MONOTONIC.
        let slept = unsafe {
            let args = [
                &raw const waiter as usize,
                1,
                0,
                deadline.as_ptr() as usize,
                1,
                0,
            ];
            wait_by!(cancel, FutexWaitv, args)
        };
        if slept != sys::ENOSYS && slept != -1 {
            return slept;
        }
        NO_WAITV.store(true, Ordering::Relaxed);
    }
    // SAFETY: a word of the segment.
    let slept = unsafe {
        let word = core::ptr::from_ref(word) as usize;
        let deadline = deadline.as_ptr() as usize;
        let all = u32::MAX as usize;
        let args = [word, FUTEX_WAIT_BITSET, value as usize, deadline, 0, all];
        wait_by!(cancel, Futex, args)
    };
    match slept {
        sys::EINTR if restarts && all_restart() => 0,
        sys::ENOSYS | -1 => {
            // SAFETY: an absolute sleep (flag 1).
            unsafe { ask!(ClockNanosleep, 1, 1, deadline.as_ptr(), 0) }
        }
        slept => slept,
    }
}

/// Whether a call goes on waiting after a handler that was installed with `SA_RESTART`. A
/// socket's time limit, which ends at `limit`, keeps it from that.
pub(crate) fn restarts(call: CallId, limit: u64) -> bool {
    facts(call) & fact::ENDS == 0 && limit == u64::MAX
}

const SA_RESTART: u64 = 0x1000_0000;

/// What [`all_restart`] has said when a filter came that forbids to ask. A program has no
/// handlers when it begins.
static RESTARTED: AtomicBool = AtomicBool::new(true);

/// Takes note of the program's handlers, as nobody may ask for them later.
pub(crate) fn note_handlers() {
    RESTARTED.store(all_restart(), Ordering::Relaxed);
}

/// Whether every signal handler of the program asks for restart: which of them
/// ran is not known.
fn all_restart() -> bool {
    if forbids(Helper::Sigaction) {
        return RESTARTED.load(Ordering::Relaxed);
    }
    (1..=64).all(|signal| {
        let mut action = [0_u64; 4];
        // SAFETY: reads a disposition: 32 bytes.
        let asked = unsafe { ask!(Sigaction, signal, 0, action.as_mut_ptr(), 8) };
        asked != 0 || action[0] <= 1 || action[1] & SA_RESTART != 0
    })
}
