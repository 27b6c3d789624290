//! Waiting for an epoll set, and filling it: before the program's call goes to sleep, what
//! is due of what is held (`hold.rs`) is given back, and the sleep ends when the next is.
//! The program sees one call.

use crate::amount::{self, Args};
use crate::facts::{Site, flag};
use crate::held::{self, HELD};
use crate::hold;
use crate::kind::KINDS;
use crate::own::Own;
use crate::polls::{counted, deadline};
use crate::sets::{
    self, ABSENT, ADD, DEL, Event, MOD, Set, announce, learn, nr_of, record, registration, tell,
    withheld,
};
use crate::slow::make;
use crate::state::GUARDED;
use crate::sys;
use bonsai_calls::{self as calls, CallId};
use bonsai_ledger::{LOOK_AGAIN_NS, Segment};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The limits that what is held was last looked at under.
static EPOCH: AtomicU32 = AtomicU32::new(0);

const EEXIST: isize = -17;

/// `epoll_ctl`.
pub(crate) fn ctl(segment: &Segment, own: &mut Own, args: &Args, site: &Site) -> isize {
    let [set, operation, fd] = [0, 1, 2].map(|i| args.a[i] & 0xffff_ffff);
    let at = args.a[3];
    let counted = |own: &mut Own, args: &Args| {
        let call = |_: &mut Own| make(args, site);
        counted(segment, own, calls::EPOLL_CTL, args, call)
    };
    if learn(set).is_none() || fd >= KINDS {
        return counted(own, args);
    }
    let here = registration(fd).filter(|(_, s)| *s == set);
    let absent = here.filter(|(r, _)| r.hidden.load(Ordering::Relaxed) == ABSENT);
    if operation == DEL {
        if let Some((r, _)) = here {
            r.set.store(0, Ordering::Relaxed);
        }
        return if absent.is_some() {
            0
        } else {
            counted(own, args)
        };
    }
    if !matches!(operation, ADD | MOD) || !amount::readable(at, 12, &mut own.readable) {
        return counted(own, args);
    }
    // SAFETY: found readable.
    let event = unsafe { (at as *const Event).read_unaligned() };
    let mut made = *args;
    if absent.is_some() {
        if operation == ADD {
            return EEXIST;
        }
        made.a[1] = ADD;
    }
    let result = counted(own, &made);
    if result != 0 {
        return result;
    }
    let asked = event.events;
    record(set, fd, asked, event.data);
    if asked & withheld(fd) != 0 {
        let until = hold::first_due(segment, fd, HELD, 0);
        // Whoever sleeps for longer hears of it.
        if !announce(set, until) {
            tell(fd, false);
        }
    }
    0
}

/// Ends what is due of everything held, and finds out anew when a set's first is.
fn give_back(segment: &Segment, set: &Set, now: u64) {
    set.earliest.store(0, Ordering::SeqCst);
    let mut fd = 0;
    while fd < held::high() {
        if held::eight(fd) == 0 {
            fd += 8;
            continue;
        }
        for fd in fd..fd + 8 {
            if held::state(fd) & HELD == 0 {
                continue;
            }
            let Some((_, of)) = registration(fd) else {
                continue;
            };
            hold::give_back(segment, fd, now);
            let next = hold::first_due(segment, fd, HELD, now);
            if next != u64::MAX {
                // Whoever sleeps knows of it, or was told.
                announce(of, next);
            }
        }
        fd += 8;
    }
}

/// Ends what is due in a set; when the next is, for somebody who is about to wait for
/// readiness, but no longer than limits may go unseen. `u64::MAX` for nothing held.
pub(crate) fn next_due(segment: &Segment, set: usize, now: impl Fn() -> u64) -> u64 {
    let Some(s) = sets::get(set) else {
        return u64::MAX;
    };
    if s.earliest() == u64::MAX {
        return u64::MAX;
    }
    let now = now();
    let epoch = segment.epoch();
    if s.earliest() <= now || EPOCH.swap(epoch, Ordering::Relaxed) != epoch {
        give_back(segment, s, now);
    }
    match s.earliest() {
        u64::MAX => u64::MAX,
        next => next.min(now.saturating_add(LOOK_AGAIN_NS / 10)),
    }
}

/// The process is about to run another program, which may have been left its epoll sets:
/// they are as they were made. If it does not come to that, a call that is refused hides
/// its descriptor again.
pub(crate) fn leave() {
    // A vforked child is in its parent's memory, and its parent goes on.
    if held::process() != sys::getpid() {
        return;
    }
    for fd in 0..sets::high() {
        sets::show_whole(fd);
    }
}

/// Whether a descriptor is an epoll set that is known.
pub(crate) fn is_set(fd: usize) -> bool {
    sets::get(fd).is_some_and(|s| s.known_to.load(Ordering::Relaxed) != 0)
}

/// `epoll_wait` and what is like it.
pub(crate) fn wait(
    segment: &Segment,
    own: &mut Own,
    call: CallId,
    args: &Args,
    site: &Site,
) -> isize {
    let set = args.a[0] & 0xffff_ffff;
    let Some(known) = learn(set) else {
        return make(args, site);
    };
    known.waited_for.store(true, Ordering::Relaxed);
    let mut limit = None;
    loop {
        known.sleepers.fetch_add(1, Ordering::SeqCst);
        let next = next_due(segment, set, sys::now);
        let end = if next == u64::MAX && limit.is_none() {
            None
        } else {
            limit = limit.or_else(|| deadline(call, args.a[3], own));
            limit
        };
        let result = match end {
            None => make(args, site),
            Some(u64::MAX) if next == u64::MAX => make(args, site),
            Some(end) => make_until(args, site, next.min(end)),
        };
        known.sleepers.fetch_sub(1, Ordering::SeqCst);
        known.returns.fetch_add(1, Ordering::Relaxed);
        if result != 0 || end.is_none_or(|end| sys::now() >= end) {
            return result;
        }
    }
}

/// The kernel has no `epoll_pwait2`.
static NO_PWAIT2: AtomicBool = AtomicBool::new(false);

/// The same call until an instant: to the nanosecond, where the kernel can do that.
fn make_until(args: &Args, site: &Site, until: u64) -> isize {
    let left = until.saturating_sub(sys::now());
    let mut args = *args;
    // Through libc's own function, it is the same one.
    let through_libc = site.flags & (flag::SLOT | flag::CANCELLABLE) == flag::CANCELLABLE;
    let fixed = GUARDED.load(Ordering::Relaxed) || through_libc && held::has_threads();
    if !fixed && !NO_PWAIT2.load(Ordering::Relaxed) {
        let time = [left / 1_000_000_000, left % 1_000_000_000];
        args.a[3] = time.as_ptr() as usize;
        if args.nr == nr_of(calls::EPOLL_WAIT) {
            args.a[4] = 0;
        }
        // SAFETY: the program's own call, with a time limit of ours.
        let result = unsafe { sys::syscall(nr_of(calls::EPOLL_PWAIT2), args.a) };
        if result != sys::ENOSYS {
            return result;
        }
        NO_PWAIT2.store(true, Ordering::Relaxed);
        return 0;
    }
    let ms = left.div_ceil(1_000_000).min(i32::MAX.unsigned_abs().into());
    let time = [left / 1_000_000_000, left % 1_000_000_000];
    args.a[3] = if args.nr == nr_of(calls::EPOLL_PWAIT2) {
        time.as_ptr() as usize
    } else {
        usize::try_from(ms).unwrap_or(0)
    };
    make(&args, site)
}
