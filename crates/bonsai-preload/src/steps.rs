//! The steps of a call that is decided on.

use crate::amount::{self, Args};
use crate::kind;
use crate::own::Own;
use crate::pay::{self, Patience, Timeout};
use crate::slots::{self, Site, fact};
use crate::slow::make;
use crate::sys;
use crate::wait::Wait;
use bonsai_calls::CallId;
use bonsai_decide::charge;
use bonsai_ledger::Segment;
use bonsai_ledger::sync::bump;
use core::sync::atomic::Ordering;

/// A call that is limited by number only.
pub(crate) fn counted(
    segment: &Segment,
    own: &mut Own,
    call: CallId,
    args: &Args,
    site: &Site,
) -> isize {
    let patience = patience(call, args);
    if let Some(error) = denied(pay::acquire(segment, own, call, 0, 1, patience)) {
        return error;
    }
    let result = make(args, site);
    count(segment, own, call, args, result);
    if charge::did_nothing(result) {
        credit_call(segment, own, call);
    }
    if let (0.., Ok(fd)) = (result, usize::try_from(result))
        && crate::calls::gives_descriptor(call)
    {
        kind::given(call, fd);
    }
    result
}

/// A call that does nothing gives its unit back.
#[inline(never)]
pub(crate) fn credit_call(segment: &Segment, own: &mut Own, call: CallId) {
    if let Some(entry) = own.entries.get_mut(usize::from(call)) {
        entry.calls += 1;
    }
    pay::give_back(segment, own, call, 0, 1);
}

/// The error that a wait which ended early gives the call.
pub(crate) const fn denied(wait: Wait) -> Option<isize> {
    match wait {
        Wait::Due | Wait::Changed => None,
        Wait::Interrupted => Some(sys::EINTR),
        Wait::TimedOut => Some(sys::EAGAIN),
    }
}

/// The time limit of the descriptor that a call may wait for.
#[inline(never)]
pub(crate) fn patience(call: CallId, args: &Args) -> Patience {
    let facts = slots::facts(call);
    if facts & fact::SENDS != 0 {
        Patience::Socket(args.a[0], Timeout::Send)
    } else if facts & fact::RECEIVES != 0 {
        Patience::Socket(args.a[0], Timeout::Receive)
    } else {
        Patience::Endless
    }
}

/// Counts a finished call and takes its bytes from the thread's lease.
pub(crate) fn count(_segment: &Segment, own: &mut Own, call: CallId, args: &Args, result: isize) {
    let bytes = amount::moved(call, args, result);
    // SAFETY: set up with the state and never unmapped.
    let page = unsafe { &*own.page };
    let index = usize::from(call);
    let (Some(count), Some(entry)) = (page.counts.get(index), own.entries.get_mut(index)) else {
        return;
    };
    if own.crowd {
        count.calls.fetch_add(1, Ordering::Relaxed);
        count.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    } else {
        bump(&count.calls, 1);
        bump(&count.bytes, bytes as u64);
    }
    entry.calls -= 1;
    entry.bytes -= i64::try_from(bytes).unwrap_or(0);
}
