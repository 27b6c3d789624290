//! Waiting for an epoll set, and filling it: before the program's call goes to sleep, what
//! is due of what is held (`hold.rs`) is given back, and the sleep ends when the next is.
//! The program sees one call.

use crate::amount::{self, Args};
use crate::facts::{Site, flag};
use crate::group;
use crate::held::{self, HELD};
use crate::hold;
use crate::kind::KINDS;
use crate::learn::learn;
use crate::own::Own;
use crate::polls::{self, deadline};
use crate::raw;
use crate::seccomp::{Helper, forbids};
use crate::set::{self, Set};
use crate::sets::events::EXCLUSIVE;
use crate::sets::{
    self, ABSENT, ADD, DEL, Event, MOD, announce, nr_of, record, registration, tell, withheld,
};
use crate::slow::{make, make_other};
use crate::sys;
use crate::wakes;
use bonsai_calls::{self as calls, CallId};
use bonsai_ledger::{Asleep, LOOK_AGAIN_NS, Segment};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The limits, and the terms of the group, that what is held was last looked at under.
static EPOCH: AtomicU64 = AtomicU64::new(0);

const EEXIST: isize = -17;
const ENOENT: isize = -2;
const EINVAL: isize = -22;

/// `epoll_ctl`.
pub(crate) fn ctl(segment: &Segment, own: &mut Own, args: &Args, site: &Site) -> isize {
    let [set, operation, fd] = [0, 1, 2].map(|i| args.a[i] & 0xffff_ffff);
    let at = args.a[3];
    let counted = |own: &mut Own, args: &Args| {
        let call = |_: &mut Own| make(args, site);
        polls::counted(segment, own, calls::EPOLL_CTL, args, call)
    };
    let Some((slot, _)) = learn(set).filter(|_| fd < KINDS) else {
        return counted(own, args);
    };
    let here = registration(fd).filter(|(_, s)| *s == slot);
    let is_absent = || here.is_some_and(|(r, _)| r.hidden.load(Ordering::SeqCst) == ABSENT);
    let absent = is_absent();
    if operation == DEL {
        if here.is_some() {
            sets::clear(fd);
        }
        let result = counted(own, args);
        // It was absent, or whoever showed it just now has taken it out again.
        return if here.is_some() && result == ENOENT {
            0
        } else {
            result
        };
    }
    if !matches!(operation, ADD | MOD) || !amount::readable(at, 12, &mut own.readable) {
        return counted(own, args);
    }
    // SAFETY: found readable.
    let event = unsafe { (at as *const Event).read_unaligned() };
    let mut made = *args;
    if absent {
        if operation == ADD {
            return EEXIST;
        }
        if here.is_some_and(|(r, _)| {
            (r.events.load(Ordering::Relaxed) | event.events) & EXCLUSIVE != 0
        }) {
            return EINVAL;
        }
        made.a[1] = ADD;
    }
    let asked = event.events;
    let hide = if asked & withheld(fd) == 0 {
        0
    } else {
        hidden_at_once(segment, slot, fd, asked)
    };
    let shown = Event {
        events: if hide == ABSENT { 0 } else { asked & !hide },
        data: event.data,
    };
    if hide != 0 {
        made.a[3] = &raw const shown as usize;
    }
    let tellers = sets::tellers(fd);
    let mut result = if absent && hide == ABSENT {
        polls::counted(segment, own, calls::EPOLL_CTL, args, |_| 0)
    } else {
        counted(own, &made)
    };
    if operation == MOD && here.is_some() && matches!(result, EEXIST | ENOENT) {
        // It was shown or hidden just now.
        made.a[1] = if result == EEXIST { MOD } else { ADD };
        if made.a[1] == MOD || is_absent() {
            result = make(&made, site);
        }
    }
    if result != 0 {
        return result;
    }
    // Without any event, it is not yet absent.
    let hidden = if hide == ABSENT && !absent {
        asked
    } else {
        hide
    };
    record(slot, fd, (asked, hidden), event.data);
    // Who looks from now on finds it there; what is held may be other by now.
    let may_hide = asked & withheld(fd) == 0 || hidden_at_once(segment, slot, fd, asked) != 0;
    if !may_hide {
        sets::show_whole(fd);
    } else if !sets::is_untold(fd, tellers) {
        tell(fd, true);
    } else {
        tell(fd, false);
    }
    0
}

/// What is hidden of a registration that is about to be made of a descriptor of which something is held: whoever sleeps for longer
/// hears of it first.
fn hidden_at_once(segment: &Segment, slot: usize, fd: usize, asked: u32) -> u32 {
    let until = hold::first_due(segment, fd, HELD, sys::now());
    if announce(slot, until) && !raw::sleep(slot) {
        sets::to_hide(asked, withheld(fd))
    } else {
        0
    }
}

/// Ends what is due of everything held, and finds out anew when a set's first is.
fn give_back(segment: &Segment, slot: usize, set: &Set, now: u64) {
    let before = set.sleepers.before();
    let (mut fd, mut first) = (0, u64::MAX);
    while fd < held::high() {
        if held::eight(fd) == 0 {
            fd += 8;
            continue;
        }
        for fd in fd..fd + 8 {
            if held::state(fd) & HELD == 0 {
                continue;
            }
            hold::give_back(segment, fd, now);
            if sets::is_within(fd, slot) {
                first = first.min(hold::first_due(segment, fd, HELD, now));
            }
        }
        fd += 8;
    }
    if set.sleepers.found(before, first, now) {
        wakes::leave(slot);
    }
}

/// Ends what is due in a set; when the next is, for somebody who is about to wait for
/// readiness, but no longer than limits may go unseen. `u64::MAX` for nothing held.
pub(crate) fn next_due(segment: &Segment, slot: usize, now: impl Fn() -> u64) -> u64 {
    let Some(set) = set::at(slot) else {
        return u64::MAX;
    };
    if set.sleepers.earliest() == u64::MAX {
        return u64::MAX;
    }
    let now = now();
    let epoch = u64::from(segment.epoch()) << 32 | u64::from(group::epoch());
    if set.sleepers.earliest() <= now || EPOCH.swap(epoch, Ordering::Relaxed) != epoch {
        give_back(segment, slot, set, now);
    }
    match set.sleepers.earliest() {
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

/// `epoll_wait` and what is like it.
pub(crate) fn wait(
    segment: &Segment,
    own: &mut Own,
    call: CallId,
    args: &Args,
    site: &Site,
) -> isize {
    let Some((slot, set)) = learn(args.a[0] & 0xffff_ffff) else {
        return make(args, site);
    };
    set.waited_for.store(true, Ordering::Relaxed);
    raw::back(own.tid);
    let mut limit = None;
    let mut asleep = set.sleepers.enter();
    let result = loop {
        let next = next_due(segment, slot, sys::now);
        // One that comes back at once is not woken in vain.
        if limit.is_none() && (args.a[3] != 0 || args.nr == nr_of(calls::EPOLL_PWAIT2)) {
            limit = deadline(call, args.a[3], own);
        }
        let result = match limit {
            None => make(args, site),
            Some(u64::MAX) if next == u64::MAX => make(args, site),
            Some(end) => make_until(args, site, next.min(end)),
        };
        set.returns.fetch_add(1, Ordering::Relaxed);
        let result = wakes::take(slot, set, args, result);
        if result != 0 || limit.is_none_or(|end| sys::now() >= end) {
            break result;
        }
        // Aware of what is due next before it is counted as one who may not be.
        let again = set.sleepers.enter();
        stir(slot, set, asleep);
        asleep = again;
    };
    stir(slot, set, asleep);
    result
}

/// A thread sleeps no more: others may have to look in its place.
pub(crate) fn stir(slot: usize, set: &Set, asleep: Asleep) {
    if set.sleepers.leave(asleep) {
        wakes::leave(slot);
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
    let fixed = forbids(Helper::EpollPwait2) || through_libc && held::has_threads();
    if !fixed && !NO_PWAIT2.load(Ordering::Relaxed) {
        let time = [left / 1_000_000_000, left % 1_000_000_000];
        args.a[3] = time.as_ptr() as usize;
        if args.nr == nr_of(calls::EPOLL_WAIT) {
            args.a[4] = 0;
        }
        args.nr = nr_of(calls::EPOLL_PWAIT2);
        let result = make_other(&args, site);
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
