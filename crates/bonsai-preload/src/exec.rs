//! Running programs: whatever environment a program hands on, the next one is
//! shaped too, and one that cannot be entered is named.

#[cfg(not(feature = "alone"))]
pub(crate) mod functions;
#[cfg(not(feature = "alone"))]
pub(crate) mod path;

use crate::amount::Args;
use crate::environment::{Strings, with_environment};
use crate::pay::{self, Patience};
use crate::state::Own;
use crate::sys::{self, nr};
use crate::uncovered::{AT_FDCWD, Done, see_to};
use crate::{attach, extension, threads};
use bonsai_calls as calls;
use bonsai_ledger::Segment;
use core::sync::atomic::Ordering;

/// `execve` or `execveat`, as it stands in the registers of a system call.
#[cfg(feature = "alone")]
pub(crate) fn at_site(segment: &'static Segment, own: &mut Own, args: &mut Args) -> isize {
    // A vforked child of musl's `posix_spawn` runs on 5 KiB, and the environment alone
    // takes 8.
    let stack = threads::room(own);
    let mut result = sys::ENOSYS;
    threads::on_stack(stack, &mut || result = run(segment, own, args));
    result
}

#[cfg(not(feature = "alone"))]
pub(crate) use run as at_site;

/// The same, on a stack that has room for it.
pub(crate) fn run(segment: &'static Segment, own: &mut Own, args: &mut Args) -> isize {
    let at = usize::from(args.nr == nr::EXECVEAT);
    let call = if at == 1 {
        calls::EXECVEAT
    } else {
        calls::EXECVE
    };
    if pay::acquire(segment, own, call, 0, 1, Patience::Endless) == crate::wait::Wait::Interrupted {
        return sys::EINTR;
    }
    // SAFETY: the thread's own page.
    let page = unsafe { &*own.page };
    if let Some(count) = page.counts.get(usize::from(call)) {
        bonsai_ledger::sync::bump(&count.calls, 1);
    }
    if let Some(entry) = own.entries.get_mut(usize::from(call)) {
        entry.calls -= 1;
    }
    let path = args.a[at] as *const u8;
    let dir = if at == 1 { args.a[0] } else { AT_FDCWD };
    let done = see_to(segment, path, dir);
    if matches!(done, Some(Done::Refused)) {
        return sys::EPERM;
    }
    // In a vforked child the leases are the parent's, which goes on with them.
    if getpid_is_own() {
        pay::release(segment, own);
        extension::leave();
    }
    let result = own.suspended(|| threads::left_alone(|| made(args)));
    // Only a failed call comes back.
    take_back(segment, done.as_ref());
    result
}

/// Takes back what was done about a program that does not run after all.
pub(crate) fn take_back(segment: &Segment, done: Option<&Done>) {
    match done {
        Some(Done::Held(number, expected)) => {
            segment.cancel_entering(*number);
            expected.iter().for_each(|expected| expected.take_back(segment));
        }
        Some(Done::Expected(expected)) => expected.take_back(segment),
        Some(Done::Named(entry, before)) => entry.coverage.store(*before, Ordering::Relaxed),
        Some(Done::Refused) | None => {}
    }
}

/// Makes the call as it stands, but for the environment.
pub(crate) fn made(args: &Args) -> isize {
    let mut a = args.a;
    let at = 2 + usize::from(args.nr == nr::EXECVEAT);
    // SAFETY: the program's own arguments.
    unsafe {
        with_environment(a[at] as Strings, &mut |environment| {
            a[at] = environment as usize;
            sys::syscall(args.nr, a)
        })
    }
}

/// Whether this is the process that attached, and not a vforked child in its memory.
fn getpid_is_own() -> bool {
    attach::registered() == sys::getpid()
}
