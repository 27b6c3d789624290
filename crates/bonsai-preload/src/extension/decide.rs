//! The decision on a call for which its descriptor matters.

use crate::aio;
use crate::amount::Args;
use crate::claim::Claim;
use crate::descriptors;
use crate::facts::{Site, fact, facts};
use crate::inward::bytes_in;
use crate::kind;
use crate::outward::bytes_out;
use crate::own::Own;
use crate::rings;
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
    match call {
        calls::IO_URING_ENTER => return rings::enter(segment, own, args, site),
        calls::IO_SUBMIT => return aio::submit(segment, own, args, site),
        calls::IO_URING_SETUP => return setup(segment, own, args, site, call),
        _ => {}
    }
    closing(segment, own, call, args);
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
    if own.entered & LOOK_AGAIN == 0 {
        descriptors::check(args.a[0]);
    }
    let mut claim = Claim::none(*args);
    claim.fill(segment, call, &mut own.readable);
    if claim.all() == 0 {
        let result = free(segment, own, call, args, site);
        after(segment, call, args, result);
        return result;
    }
    let direction = facts(call) & (fact::IN | fact::OUT);
    let home = claim.home(call);
    let index = usize::from(call);
    if let Some(entry) = own.entries.get_mut(index) {
        entry.piece = claim.piece(segment, call);
        entry.bytes = home.map_or(0, |note| note.kept(direction == fact::OUT));
    }
    // A signal handler may have interrupted another one.
    let outer = core::mem::replace(&mut own.claim, &raw mut claim as usize);
    let result = match direction {
        fact::IN => bytes_in(segment, own, call, args, site),
        fact::OUT => bytes_out(segment, own, call, args, site, None),
        _ => counted(segment, own, call, args, site),
    };
    own.claim = outer;
    if let Some(entry) = own.entries.get_mut(index) {
        if let Some(home) = home
            && entry.bytes != 0
        {
            home.keep(direction == fact::OUT, entry.bytes);
        }
        (entry.bytes, entry.calls) = (0, 0);
    }
    after(segment, call, args, result);
    result
}

/// A call under no limit.
fn free(segment: &Segment, own: &mut Own, call: CallId, args: &Args, site: &Site) -> isize {
    let result = make(args, site);
    count(segment, own, call, args, result);
    if let Some(entry) = own.entries.get_mut(usize::from(call)) {
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

/// Of rings that a call is about to close, what was done last is counted.
fn closing(segment: &'static Segment, own: &mut Own, call: CallId, args: &Args) {
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

/// The result of a call is a new descriptor.
fn came(segment: &Segment, call: CallId, args: &Args, fd: usize) {
    let copies = matches!(call, calls::DUP | calls::DUP2 | calls::DUP3);
    if copies && fd == args.a[0] & 0xffff_ffff {
        return;
    }
    descriptors::forget(fd, fd);
    if copies {
        let streams = |config: &bonsai_ledger::Config| config.per_stream.load(Ordering::Relaxed);
        let (epoch, streams) = segment.with_config(streams);
        if streams != 0 {
            descriptors::duplicated(segment, args.a[0], fd, epoch);
        }
    }
}
