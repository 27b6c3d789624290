//! Bytes that come in: the call first, then the wait for what it brought.

use crate::amount::{self, Args, Len};
use crate::kind;
use crate::own::Own;
use crate::pay::{self, Patience};
use crate::pieces::{RECORD, advance, finished, length, uncount};
use crate::slots::Site;
use crate::slow::make;
use crate::steps::{count, credit_call, denied, patience};
use crate::sys;
use bonsai_calls::{self as calls, CallId, Fd};
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
    let asked = match amount::len_of(call) {
        Len::Arg(2) => amount::asked(call, args, &mut own.readable),
        _ => 0,
    };
    let mut piece = length(own, call, asked);
    if call == calls::READ_FILE {
        piece = piece.max(RECORD);
    }
    let file = || call == calls::READ_FILE || is_positioned_file(call, args);
    if asked <= piece || !file() {
        let result = make(args, site);
        count(segment, own, call, args, result);
        if result > 0 {
            settle(segment, own, call, args);
        } else if result == sys::EAGAIN || result == sys::EINTR {
            credit_call(segment, own, call);
        }
        return result;
    }
    in_pieces(segment, own, call, args, site, asked, piece)
}

/// `pread` works on files and on little else; the little else is not split.
fn is_positioned_file(call: CallId, args: &Args) -> bool {
    call == calls::PREAD64 && matches!(kind::look(args.a[0]).kind, Fd::File)
}

/// A large read of a file: each piece is waited for before the next is fetched,
/// so that the device too sees the rate.
fn in_pieces(
    segment: &Segment,
    own: &mut Own,
    call: CallId,
    args: &mut Args,
    site: &Site,
    asked: usize,
    piece: usize,
) -> isize {
    let start = *args;
    let mut done = 0_usize;
    loop {
        let part = piece.min(asked - done);
        advance(args, &start, call, done, part);
        let result = make(args, site);
        if done > 0 {
            uncount(own, call);
        }
        count(segment, own, call, args, result);
        let got = usize::try_from(result).unwrap_or(0);
        done += got;
        if got == 0 || got < part || done >= asked {
            if result > 0 {
                settle(segment, own, call, &start);
            }
            *args = start;
            return finished(done, result);
        }
        if denied(pay::acquire(segment, own, call, 0, 0, Patience::Endless)).is_some() {
            *args = start;
            return finished(done, result);
        }
    }
}
