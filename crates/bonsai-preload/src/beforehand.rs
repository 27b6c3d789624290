//! Calls that libc's own functions make, decided on before they do.

use crate::amount::Args;
use crate::calls::first_entry;
use crate::slots::Symbol;
use crate::slow::control;
use crate::sys::place;
use crate::{kind, pay, resolve, state};
use bonsai_calls as calls;

/// `syscall(SYS_fork)` and its like, decided on before libc makes them.
pub(crate) extern "C" fn bonsai_before_fork(number: usize) {
    let (Some(segment), Some(call)) = (state::segment(), first_entry(number)) else {
        return;
    };
    // SAFETY: this thread's own state.
    if let Some(own) = unsafe { state::me(segment).as_mut() } {
        own.within(|own| {
            pay::sync(segment, own);
            control(segment, own, call);
        });
    }
}

/// Decides on a call that libc's own function makes (fork, closefrom, ...), and
/// returns that function.
///
/// # Safety
/// From `bonsai_tail` only.
pub(crate) unsafe extern "C" fn bonsai_before(symbol: &Symbol, saved: &[usize; 7]) -> usize {
    let site = symbol.site();
    // Pushed in the order rdi, rsi, rdx, rcx, r8, r9, and the symbol.
    let args = Args {
        a: [saved[6], saved[5], saved[4], saved[3], saved[2], saved[1]],
        nr: site.nr as usize,
    };
    if let Some(segment) = state::segment()
        && let Some(own) =
            // SAFETY: this thread's own state.
            unsafe { state::me(segment).as_mut() }
    {
        own.within(|own| {
            pay::sync(segment, own);
            if site.call() == calls::CLOSE_RANGE {
                kind::forget_range(args.a[0], usize::MAX);
            }
            control(segment, own, site.call());
        });
    }
    let real = resolve::real_early(site);
    if real == 0 { place!("bonsai_first_all_slow") } else { real }
}
