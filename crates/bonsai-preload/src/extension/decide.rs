//! The decision on a call for which its descriptor matters.

use crate::amount::Args;
use crate::claim::Claim;
use crate::descriptors;
use crate::facts::{Site, fact, facts};
use crate::inward::bytes_in;
use crate::outward::bytes_out;
use crate::own::Own;
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
    match call {
        calls::CLOSE => descriptors::forget(args.a[0], args.a[0]),
        calls::CLOSE_RANGE => descriptors::forget(args.a[0], args.a[1]),
        _ => {}
    }
    let claim = Claim::of(segment, call, args);
    let index = usize::from(call);
    if let Some(entry) = own.entries.get_mut(index) {
        entry.piece = claim.piece(segment);
    }
    // A signal handler may have interrupted another one.
    let outer = core::mem::replace(&mut own.claim, &raw const claim as usize);
    let result = match facts(call) & (fact::IN | fact::OUT) {
        fact::IN => bytes_in(segment, own, call, args, site),
        fact::OUT => bytes_out(segment, own, call, args, site, None),
        _ => counted(segment, own, call, args, site),
    };
    own.claim = outer;
    if let Some(entry) = own.entries.get_mut(index) {
        (entry.bytes, entry.calls) = (0, 0);
    }
    if let (0.., Ok(fd)) = (result, usize::try_from(result))
        && crate::calls::gives_descriptor(call)
    {
        descriptors::forget(fd, fd);
    }
    if call == calls::CONNECT {
        descriptors::forget(args.a[0], args.a[0]);
    }
    result
}
