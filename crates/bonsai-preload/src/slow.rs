//! The slow path: everything that is not a lease and a system call. Bytes that come
//! in are in `inward.rs`, those that go out in `outward.rs`.

use crate::amount::Args;
use crate::calls::{entry_of, first_entry, gives_descriptor};
use crate::cancel::Cancel;
use crate::doors::mode;
use crate::exec;
use crate::extension;
use crate::inward::{bytes_in, settle};
use crate::kind;
use crate::outward::bytes_out;
use crate::pay::{self, Patience};
use crate::point;
#[cfg(not(feature = "alone"))]
use crate::{found, proof, resolve, trap};
use crate::seccomp::bonsai_filter_comes;
use crate::slots::{self, Site, fact, flag};
use crate::state::{self, Own};
use crate::steps::{count, counted};
use crate::sys::{self, nr};
#[cfg(feature = "alone")]
use crate::{mapped, vdso};
use bonsai_calls::{self as calls, CallId};
use bonsai_ledger::{Segment, Unshaped};

/// Entered from both doors; see [`mode`]. Returns the raw result of the call.
///
/// # Safety
/// `args` is the call as it stood in the registers, `site` the record of the
/// door it came through.
pub(crate) unsafe extern "C" fn bonsai_slow(
    args: &mut Args,
    site: &Site,
    how: usize,
    result: isize,
) -> isize {
    #[cfg(feature = "alone")]
    if how == mode::TWICE {
        vdso::before_unmapping(args);
        if args.nr == nr::MMAP {
            mapped::note(args);
        }
    }
    let whole_call = how == mode::WHOLE;
    // Made already, or still to be made elsewhere: then `result` is the number.
    let cancel = point::of(args, site);
    let undecided = |args| if whole_call { make_by(args, site, cancel) } else { result };
    let Some(segment) = state::segment() else {
        #[cfg(not(feature = "alone"))]
        proof::note(args.nr);
        return undecided(args);
    };
    // Without a state: libc does this in threads that have ended, and in children of posix_spawn.
    #[cfg(not(feature = "alone"))]
    if whole_call
        && found::is_signals(args.nr)
        && let Some(result) = trap::signals(segment, args)
    {
        return result;
    }
    let own = state::me(segment);
    // SAFETY: this thread's own state; null without memory for it.
    let Some(own) = (unsafe { own.as_mut() }) else {
        segment.count_unshaped(Unshaped::Early);
        return undecided(args);
    };
    if whole_call && own.is_passed(args) {
        return undecided(args);
    }
    own.within(|own| {
        let outer = core::mem::replace(&mut own.cancel, cancel);
        let result = decide(segment, own, args, site, how, result);
        own.cancel = outer;
        result
    })
}

/// Decides on a call, and makes it where that is still to be done.
fn decide(
    segment: &'static Segment,
    own: &mut Own,
    args: &mut Args,
    site: &Site,
    how: usize,
    result: isize,
) -> isize {
    if how == mode::WHOLE {
        return whole(segment, own, args, site);
    }
    let is_made = matches!(how & 0xff, mode::LATE | mode::STREAM);
    let number = if is_made { how >> 8 } else { args.nr };
    let Some(call) = first_entry(number) else {
        return result;
    };
    if calls::OPEN == call && how != mode::TWICE {
        // Whichever gave it.
        given(segment, call, result);
    } else if how == mode::TWICE {
        pay::sync(segment, own);
        control(segment, own, call);
    } else {
        let (call, _) = entry_of(call, args, false);
        match extension::there().filter(|_| how & 0xff == mode::STREAM) {
            // SAFETY: the extension's own, for such calls.
            Some(extension) => unsafe {
                (extension.late)(segment, own, call, args, result.unsigned_abs() as u64);
            },
            None => settle(segment, own, call, args),
        }
    }
    result
}

/// Makes the call as it came: through libc's own function where that is a
/// cancellation point and the program may cancel threads, directly elsewhere.
pub(crate) fn make(args: &Args, site: &Site) -> isize {
    let is_in_place = site.flags & flag::IN_PLACE != 0;
    let cancel = is_in_place.then(own).flatten().map(|own| own.cancel);
    make_by(args, site, cancel.unwrap_or(Cancel::NONE))
}

/// The calling thread's state; `None` without memory for it.
fn own() -> Option<&'static Own> {
    // SAFETY: this thread's own state, never unmapped.
    state::segment().and_then(|segment| unsafe { state::me(segment).as_ref() })
}

/// Makes the call; by the cancellation point if the site is one.
fn make_by(args: &Args, site: &Site, cancel: Cancel) -> isize {
    #[cfg(not(feature = "alone"))]
    if resolve::goes_through_libc(site) {
        let forward = || resolve::forward(args, site);
        let made = match own() {
            Some(own) => own.passed(args, forward),
            None => forward(),
        };
        if let Some(result) = made {
            return result;
        }
    }
    if site.flags & flag::IN_PLACE != 0 {
        // SAFETY: only a slot of such a site has that flag.
        return unsafe { point::make(args, cancel) };
    }
    if matches!(args.nr, nr::EXECVE | nr::EXECVEAT) {
        return exec::made(args);
    }
    // SAFETY: the program's own call with its own arguments.
    unsafe { sys::syscall(args.nr, args.a) }
}

/// A descriptor is looked at anew once in so many slow paths of a thread.
const LOOK_AGAIN: u32 = 63;

fn whole(segment: &'static Segment, own: &mut Own, args: &mut Args, site: &Site) -> isize {
    // What the kernel goes on with: it was under way when the process was put under limits.
    #[cfg(feature = "alone")]
    if args.nr == nr::RESTART_SYSCALL {
        return make(args, site);
    }
    if args.nr != site.nr as usize && site.flags & (flag::SLOT | flag::ANY) == flag::SLOT {
        segment.count_unshaped(Unshaped::OtherNumber);
        return make(args, site);
    }
    let Some(first) = first_entry(args.nr) else {
        bonsai_filter_comes(args.nr, args.a[0], args.a[1], args.a[2]);
        return make(args, site);
    };
    pay::sync(segment, own);
    match first {
        calls::EXECVE | calls::EXECVEAT => return exec::at_site(segment, own, args),
        calls::CLOSE => kind::forget(args.a[0]),
        calls::CLOSE_RANGE => kind::forget_range(args.a[0], args.a[1]),
        _ => {}
    }
    let (call, looked) = entry_of(first, args, own.entered & LOOK_AGAIN == 0);
    let ends_noted = call == calls::CLOSE && kind::is_noted(args.a[0]);
    if ends_noted || segment.is_special(call) {
        if let Some(extension) = extension::get(segment) {
            // SAFETY: the extension's own, for such calls.
            return unsafe { (extension.decide)(segment, own, args, site, call) };
        }
        segment.count_unshaped(Unshaped::NotExtended);
    }
    match slots::facts(call) & (fact::IN | fact::OUT) {
        fact::IN => bytes_in(segment, own, call, args, site),
        fact::OUT => bytes_out(segment, own, call, args, site, looked),
        _ => {
            let result = counted(segment, own, call, args, site);
            given(segment, call, result);
            result
        }
    }
}

/// The result of a call may be a new descriptor: if something is known of its number, that
/// was another one.
fn given(segment: &'static Segment, call: CallId, result: isize) {
    if let (0.., Ok(fd)) = (result, usize::try_from(result))
        && gives_descriptor(call)
        && kind::is_noted(fd)
        && let Some(extension) = extension::get(segment)
    {
        // SAFETY: the extension's own, for such numbers.
        unsafe { (extension.given)(segment, fd) };
    }
}

/// The same, of a function that the program has called.
#[cfg(not(feature = "alone"))]
pub(crate) extern "C" fn bonsai_given(fd: isize) {
    if let Some(segment) = state::segment() {
        given(segment, calls::OPEN, fd);
    }
}

/// Waits for a call that somebody else makes, and counts it.
pub(crate) fn control(segment: &Segment, own: &mut Own, call: CallId) {
    pay::acquire(segment, own, call, 0, 1, Patience::Endless);
    let none = Args { a: [0; 6], nr: 0 };
    count(segment, own, call, &none, -1);
}
