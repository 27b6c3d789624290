//! The decision on a call for which its descriptor matters.

use crate::aio;
use crate::amount::Args;
use crate::claim::Claim;
use crate::descriptors;
use crate::facts::{Site, fact, facts};
use crate::inward::bytes_in;
use crate::outward::bytes_out;
use crate::own::Own;
use crate::rings;
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
        calls::CLOSE => {
            descriptors::forget(args.a[0], args.a[0]);
            rings::last_look(segment, own, args.a[0]);
            rings::closed(args.a[0] & 0xffff_ffff, args.a[0] & 0xffff_ffff);
        }
        calls::CLOSE_RANGE => {
            descriptors::forget(args.a[0], args.a[1]);
            rings::closed(args.a[0] & 0xffff_ffff, args.a[1] & 0xffff_ffff);
        }
        calls::DUP2 | calls::DUP3 if args.a[0] != args.a[1] => {
            rings::closed(args.a[1] & 0xffff_ffff, args.a[1] & 0xffff_ffff);
        }
        calls::IO_URING_ENTER => return rings::enter(segment, own, args, site),
        calls::IO_SUBMIT => return aio::submit(segment, own, args, site),
        _ => {}
    }
    let asked = match call {
        calls::IO_URING_SETUP => rings::asked(segment, own, args),
        _ => None,
    };
    if let Some(asked) = asked.as_ref().filter(|asked| asked.is_refused()) {
        asked.restore(args);
        return rings::EPERM;
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
    if let Some(asked) = asked {
        rings::made(segment, own, args, asked, result);
    } else if call == calls::IO_URING_REGISTER {
        rings::registered(segment, own, args, result);
    }
    if call == calls::CONNECT {
        descriptors::forget(args.a[0], args.a[0]);
    }
    result
}
