//! The decision on a call for which its descriptor matters.

use crate::ahead;
use crate::aio;
use crate::amount::Args;
use crate::claim::Claim;
use crate::descriptors;
use crate::facts::{Site, fact, facts};
use crate::held;
use crate::hold::{self, Gate};
use crate::inward::bytes_in;
use crate::kind;
use crate::learn;
use crate::loops;
use crate::outward::bytes_out;
use crate::own::Own;
use crate::polls;
use crate::quick;
use crate::rings;
use crate::shorter;
use crate::slow::make;
use crate::steps::{count, counted};
use bonsai_calls::{self as calls, CallId};
use bonsai_ledger::Segment;
use bonsai_ledger::sync::Ordering;

/// It is looked once in so many calls of a thread whether a descriptor is still the one
/// that it was.
const LOOK_AGAIN: u32 = 63;

/// See [`super::Decide`].
pub(crate) unsafe extern "C" fn decide(
    segment: &'static Segment,
    own: &mut Own,
    args: &mut Args,
    site: &Site,
    call: CallId,
) -> isize {
    if !own.met {
        held::meet(own.tid);
        own.met = true;
    }
    if own.entered & LOOK_AGAIN != 0
        && let Some(result) = quick::made(segment, own, call, args, site)
    {
        return result;
    }
    match call {
        calls::IO_URING_ENTER => return rings::enter(segment, own, args, site),
        calls::IO_SUBMIT => return aio::submit(segment, own, args, site),
        calls::IO_URING_SETUP => return setup(segment, own, args, site, call),
        _ => {}
    }
    rings_closing(segment, own, call, args);
    let result = decided(segment, own, args, site, call);
    if call == calls::IO_URING_REGISTER {
        rings::registered(segment, own, args, result);
    }
    result
}

/// A ring is made.
fn setup(
    segment: &'static Segment,
    own: &mut Own,
    args: &mut Args,
    site: &Site,
    call: CallId,
) -> isize {
    let asked = rings::asked(segment, own, args);
    if let Some(asked) = asked.as_ref().filter(|asked| asked.is_refused()) {
        asked.restore(args);
        return rings::EPERM;
    }
    let result = decided(segment, own, args, site, call);
    if let Some(asked) = asked {
        rings::made(segment, own, args, asked, result);
    }
    result
}

/// Any call that is made as it is.
fn decided(
    segment: &'static Segment,
    own: &mut Own,
    args: &mut Args,
    site: &Site,
    call: CallId,
) -> isize {
    gone(call, args);
    closing(segment, call, args);
    if own.entered & LOOK_AGAIN == 0 {
        descriptors::check(args.a[0]);
    }
    let mut claim = Claim::none(*args);
    claim.fill(segment, call, &mut own.readable);
    let result = if !claim.is_any() && !waits(call) && !hold::concerns(args, &claim) {
        free(segment, own, call, args, site, &claim)
    } else {
        limited(segment, own, call, args, site, &mut claim)
    };
    after(segment, call, args, result);
    result
}

/// A call that is under limits, or that waits for readiness, or of which the descriptor
/// was held.
fn limited(
    segment: &'static Segment,
    own: &mut Own,
    call: CallId,
    args: &mut Args,
    site: &Site,
    claim: &mut Claim,
) -> isize {
    let out = facts(call) & (fact::IN | fact::OUT) == fact::OUT;
    let home = claim.home(call);
    let index = usize::from(call);
    if let Some(entry) = own.entries.get_mut(index) {
        // Of a call that is the same for every descriptor, it lasts as long as the limits; the
        // terms of a group may change without those.
        let lasts = claim.is_plain && !claim.shares.any();
        if !(lasts && entry.granted_us == claim.epoch) {
            if claim.is_plain {
                entry.granted_us = claim.epoch * u32::from(lasts);
            }
            entry.piece = claim.piece(segment, call);
        }
        if !claim.is_plain {
            entry.bytes = home.map_or(0, |note| note.kept(out));
        }
    }
    let mut had_credit = false;
    let result = match hold::gate(segment, own, call, args, claim) {
        Gate::Refused(error) => error,
        Gate::Open(has_credit) => {
            had_credit = has_credit;
            // A signal handler may have interrupted another one.
            let outer = core::mem::replace(&mut own.claim, &raw mut *claim as usize);
            let result = made(segment, own, call, args, site);
            own.claim = outer;
            if has_credit {
                hold::return_credit(segment, own, call, claim);
            }
            result
        }
    };
    if claim.is_plain {
        ahead::keep(segment, own, call, claim, had_credit);
    } else if let Some(entry) = own.entries.get_mut(index) {
        if let Some(home) = home
            && entry.bytes != 0
        {
            home.keep(out, entry.bytes);
        }
        (entry.bytes, entry.calls) = (0, 0);
    }
    result
}

/// A call that waits for readiness.
type Polls = fn(&Segment, &mut Own, CallId, &Args, &Site) -> isize;

/// How a call waits for readiness, if it does.
fn polls(call: CallId) -> Option<Polls> {
    match call {
        calls::EPOLL_WAIT | calls::EPOLL_PWAIT | calls::EPOLL_PWAIT2 => Some(loops::wait),
        calls::POLL | calls::PPOLL => Some(polls::poll),
        calls::SELECT | calls::PSELECT6 => Some(polls::select),
        _ => None,
    }
}

/// Whether a call waits for readiness, or says for what others do.
fn waits(call: CallId) -> bool {
    call == calls::EPOLL_CTL || polls(call).is_some()
}

/// Makes a call, with the waits that belong to it.
fn made(
    segment: &'static Segment,
    own: &mut Own,
    call: CallId,
    args: &mut Args,
    site: &Site,
) -> isize {
    if call == calls::EPOLL_CTL {
        return loops::ctl(segment, own, args, site);
    }
    if let Some(by) = polls(call) {
        let call_by = |own: &mut Own| by(segment, own, call, args, site);
        return polls::counted(segment, own, call, args, call_by);
    }
    match facts(call) & (fact::IN | fact::OUT) {
        fact::IN => {
            let all = |own: &mut Own, args: &mut Args| bytes_in(segment, own, call, args, site);
            shorter::within_piece(own, call, args, all)
        }
        fact::OUT => bytes_out(segment, own, call, args, site, None),
        _ => counted(segment, own, call, args, site),
    }
}

/// A call under no limit.
fn free(
    segment: &Segment,
    own: &mut Own,
    call: CallId,
    args: &Args,
    site: &Site,
    claim: &Claim,
) -> isize {
    let result = make(args, site);
    count(segment, own, call, args, result);
    if claim.is_plain {
        ahead::keep(segment, own, call, claim, false);
    } else if let Some(entry) = own.entries.get_mut(usize::from(call)) {
        (entry.bytes, entry.calls) = (0, 0);
    }
    result
}

/// A call has been made.
fn after(segment: &Segment, call: CallId, args: &Args, result: isize) {
    gone(call, args);
    if let (0.., Ok(fd)) = (result, usize::try_from(result))
        && crate::calls::gives_descriptor(call)
    {
        kind::forget(fd);
        came(segment, call, args, fd);
    }
}

/// What a call does away with: before it, because others may be given the number at
/// once, and after it, because it may have been looked at in between.
fn gone(call: CallId, args: &Args) {
    match call {
        calls::CLOSE | calls::CONNECT | calls::BIND => descriptors::forget(args.a[0], args.a[0]),
        calls::CLOSE_RANGE => descriptors::forget(args.a[0], args.a[1]),
        _ => {}
    }
}

/// What is held of the descriptors that a call is about to close is not held any more.
/// Before it alone: their numbers may be others' afterwards.
fn closing(segment: &Segment, call: CallId, args: &Args) {
    const CLOSE_RANGE_CLOEXEC: usize = 4;
    let [first, last] = [args.a[0], args.a[1]].map(|fd| fd & 0xffff_ffff);
    match call {
        calls::CLOSE => learn::forget(segment, first, first, true),
        calls::CLOSE_RANGE if args.a[2] & CLOSE_RANGE_CLOEXEC == 0 => {
            learn::forget(segment, first, last, true);
        }
        _ => {}
    }
}

/// Of rings that a call is about to close, what was done last is counted.
fn rings_closing(segment: &'static Segment, own: &mut Own, call: CallId, args: &Args) {
    let [first, second] = [args.a[0], args.a[1]].map(|fd| fd & 0xffff_ffff);
    match call {
        calls::CLOSE => {
            rings::last_look(segment, own, first);
            rings::closed(first, first);
        }
        calls::CLOSE_RANGE => rings::closed(first, second),
        calls::DUP2 | calls::DUP3 if first != second => rings::closed(second, second),
        _ => {}
    }
}

/// See [`super::Given`].
pub(crate) unsafe extern "C" fn given(segment: &'static Segment, fd: usize) {
    held::process();
    came(segment, calls::OPEN, &Args { a: [0; 6], nr: 0 }, fd);
}

/// The result of a call is a new descriptor.
fn came(segment: &Segment, call: CallId, args: &Args, fd: usize) {
    let copies = matches!(call, calls::DUP | calls::DUP2 | calls::DUP3);
    if copies && fd == args.a[0] & 0xffff_ffff {
        return;
    }
    descriptors::forget(fd, fd);
    learn::forget(segment, fd, fd, false);
    if copies {
        let streams = |config: &bonsai_ledger::Config| config.per_stream.load(Ordering::Relaxed);
        let (epoch, streams) = segment.with_config(streams);
        if streams != 0 {
            descriptors::duplicated(segment, args.a[0], fd, epoch);
        }
    }
}
