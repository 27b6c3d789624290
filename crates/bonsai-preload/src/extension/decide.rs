//! The decision on a call for which its descriptor matters.

use crate::ahead;
use crate::amount::Args;
use crate::claim::Claim;
use crate::descriptors;
use crate::facts::{Site, fact, facts};
use crate::held;
use crate::hold::{self, Gate};
use crate::inward::bytes_in;
use crate::loops;
use crate::outward::bytes_out;
use crate::own::Own;
use crate::polls;
use crate::sets;
use crate::shorter;
use crate::steps::counted;
use bonsai_calls::{self as calls, CallId};
use bonsai_ledger::Segment;

/// See [`super::Decide`].
pub(crate) unsafe extern "C" fn decide(
    segment: &'static Segment,
    own: &mut Own,
    args: &mut Args,
    site: &Site,
    call: CallId,
) -> isize {
    held::meet(own.tid);
    match call {
        calls::CLOSE => forget(segment, args.a[0], args.a[0], true),
        calls::CLOSE_RANGE => forget(segment, args.a[0], args.a[1], true),
        _ => {}
    }
    let claim = Claim::of(segment, call, args);
    let index = usize::from(call);
    if let Some(entry) = own.entries.get_mut(index)
        && !(claim.is_plain && entry.granted_us == claim.epoch)
    {
        // Of a call that is the same for every descriptor, it lasts as long as the limits.
        entry.granted_us = claim.epoch * u32::from(claim.is_plain);
        entry.piece = claim.piece(segment);
    }
    // A signal handler may have interrupted another one.
    let outer = core::mem::replace(&mut own.claim, &raw const claim as usize);
    let mut had_credit = false;
    let result = match hold::gate(segment, own, call, args, &claim) {
        Gate::Refused(error) => error,
        Gate::Open(has_credit) => {
            let result = made(segment, own, call, args, site, &claim);
            if has_credit {
                hold::return_credit(segment, own, call, &claim);
            }
            had_credit = has_credit;
            result
        }
    };
    own.claim = outer;
    ahead::keep(segment, own, call, &claim, had_credit);
    if let (0.., Ok(fd)) = (result, usize::try_from(result))
        && crate::calls::gives_descriptor(call)
    {
        forget(segment, fd, fd, false);
    }
    if call == calls::CONNECT {
        descriptors::forget(args.a[0], args.a[0]);
    }
    result
}

/// These numbers are about to mean something else.
fn forget(segment: &Segment, first: usize, last: usize, closes: bool) {
    descriptors::forget(first, last);
    sets::forget(segment, first, last, closes);
}

/// Makes a call, with the waits that belong to it.
fn made(
    segment: &'static Segment,
    own: &mut Own,
    call: CallId,
    args: &mut Args,
    site: &Site,
    claim: &Claim,
) -> isize {
    let start = *args;
    let polls = |own: &mut Own, by: Polls| {
        let call_by = |own: &mut Own| by(segment, own, call, &start, site);
        polls::counted(segment, own, call, &start, call_by)
    };
    match call {
        calls::EPOLL_CTL => return loops::ctl(segment, own, args, site),
        calls::EPOLL_WAIT | calls::EPOLL_PWAIT | calls::EPOLL_PWAIT2 => {
            return polls(own, loops::wait);
        }
        calls::POLL | calls::PPOLL => return polls(own, polls::poll),
        calls::SELECT | calls::PSELECT6 => return polls(own, polls::select),
        _ => {}
    }
    match facts(call) & (fact::IN | fact::OUT) {
        fact::IN => {
            let all = |own: &mut Own, args: &mut Args| bytes_in(segment, own, call, args, site);
            shorter::within_piece(own, call, args, claim, all)
        }
        fact::OUT => bytes_out(segment, own, call, args, site, None),
        _ => counted(segment, own, call, args, site),
    }
}

/// A call that waits for readiness.
type Polls = fn(&Segment, &mut Own, CallId, &Args, &Site) -> isize;
