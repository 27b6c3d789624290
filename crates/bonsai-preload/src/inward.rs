//! Bytes that come in: the call first, then the wait for what it brought.

use crate::amount::{self, Args, IoSize};
use crate::kind;
use crate::own::Own;
use crate::pay::{self, Patience};
use crate::pieces::{advance, length, uncount};
use crate::slots::Site;
use crate::slow::make;
use crate::steps::{count, credit_call, denied, patience};
use bonsai_calls::CallId;
use bonsai_decide::{OpenFile as _, Parts, charge, read_division};
use bonsai_ledger::Segment;

/// Pays for bytes that came in before they were due. A signal ends the wait, not
/// the debt: the data is there, and the next call waits.
pub(crate) fn settle(segment: &Segment, own: &mut Own, call: CallId, args: &Args) {
    pay::acquire(segment, own, call, 0, 0, patience(call, args));
}

/// Bytes in: debts first, then the call, then the wait for what it brought.
pub(crate) fn bytes_in(
    segment: &Segment,
    own: &mut Own,
    call: CallId,
    args: &mut Args,
    site: &Site,
) -> isize {
    if let Some(error) = denied(pay::acquire(segment, own, call, 0, 1, patience(call, args))) {
        return error;
    }
    let asked = match amount::io_size(call) {
        IoSize::Arg(2) => amount::asked(call, args, &mut own.readable),
        _ => 0,
    };
    let piece = length(own, call, asked);
    let kind = || kind::open_file(args.a[0], None).kind();
    let Some(parts) = Parts::plan(asked, (piece, piece), || read_division(call, kind)) else {
        let result = make(args, site);
        count(segment, own, call, args, result);
        if result > 0 {
            settle(segment, own, call, args);
        } else if charge::did_nothing(result) {
            credit_call(segment, own, call);
        }
        return result;
    };
    in_pieces(segment, own, call, args, site, parts)
}

/// A large read of a file: each piece is waited for before the next is fetched,
/// so that the device too sees the rate.
fn in_pieces(
    segment: &Segment,
    own: &mut Own,
    call: CallId,
    args: &mut Args,
    site: &Site,
    mut parts: Parts,
) -> isize {
    let start = *args;
    loop {
        let (done, part) = (parts.done(), parts.next());
        advance(args, &start, call, done, part);
        let result = make(args, site);
        if done > 0 {
            uncount(own, call);
        }
        count(segment, own, call, args, result);
        if let Some(all) = parts.made(part, result) {
            if result > 0 {
                settle(segment, own, call, &start);
            }
            *args = start;
            return all;
        }
        if denied(pay::acquire(segment, own, call, 0, 0, Patience::Endless)).is_some() {
            *args = start;
            return parts.result(result);
        }
    }
}
