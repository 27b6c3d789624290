//! Bytes that go out: the wait first, then the call, whole or in pieces.

use crate::amount::{self, Args, IoSize, IoVec, MsgHdr};
use crate::inward::settle;
use crate::kind::{self, Looked};
use crate::own::Own;
use crate::pay;
use crate::pieces::{advance, length, uncount};
use crate::slots::{self, Site};
use crate::slow::make;
use crate::steps::{count, credit_call, denied, patience};
use bonsai_calls::{self as calls, CallId, about, whole};
use bonsai_decide::charge::{self, Settlement};
use bonsai_decide::{Parts, division};
use bonsai_ledger::Segment;

/// Bytes out: the wait comes before the call, and what the call did not take goes
/// back.
pub(crate) fn bytes_out(
    segment: &Segment,
    own: &mut Own,
    call: CallId,
    args: &mut Args,
    site: &Site,
    looked: Option<Looked>,
) -> isize {
    if !pay::counts_bytes(segment, own, call) {
        return out_part(segment, own, call, args, site, 0, 1);
    }
    let asked = amount::asked(call, args, &mut own.readable);
    renew_for_vectors(segment, own, call, asked);
    let piece = length(own, call, asked);
    if call == calls::SENDMMSG && asked > piece {
        return messages_out(segment, own, args, site, piece);
    }
    let first = pay::at_once(segment, own, call, asked.min(piece));
    let division = || {
        let target = args.a[usize::from(about::ends(call).target) % 6];
        division(
            call,
            amount::extras(call, args),
            &kind::open_file(target, looked),
        )
    };
    let Some(mut parts) = Parts::plan(asked, (first, piece), division) else {
        return out_part(segment, own, call, args, site, charge::before(asked), 1);
    };
    let start = *args;
    let list = amount::list(call, &start);
    let mut vectors = [IoVec { base: 0, len: 0 }; VECTORS];
    let mut message = MsgHdr::PLAIN;
    loop {
        let (done, mut part) = (parts.done(), parts.next());
        if let Some(list) = list {
            let (used, bytes) = window(list, done, part, &mut vectors);
            part = bytes;
            if let IoSize::Vec(at, n) = amount::io_size(call) {
                args.a[usize::from(at) % 6] = vectors.as_ptr() as usize;
                args.a[usize::from(n) % 6] = used;
            } else {
                (message.iov, message.iov_len) = (vectors.as_ptr(), used);
                args.a[1] = &raw const message as usize;
            }
            if let Some(offset) = whole::offset_after(call, start.a[3], done) {
                args.a[3] = offset;
            }
        } else {
            advance(args, &start, call, done, part);
        }
        let result = out_next(segment, own, call, args, site, part, parts.is_first());
        if let Some(all) = parts.made(part, result) {
            *args = start;
            return all;
        }
    }
}

/// Many messages go in groups of about a piece: each of them is one by itself, and
/// the call says how many went.
fn messages_out(
    segment: &Segment,
    own: &mut Own,
    args: &mut Args,
    site: &Site,
    piece: usize,
) -> isize {
    let start = *args;
    let total = start.a[2].min(whole::MOST_VECTORS);
    let mut parts = Parts::new(total, (total, total));
    loop {
        let done = parts.done();
        let (at, count, bytes) = amount::group(&start, done, total, piece, &mut own.readable);
        (args.a[1], args.a[2]) = (at, count);
        // A message beyond that is one that the kernel refuses.
        let before = charge::before(bytes);
        let result = out_next(segment, own, calls::SENDMMSG, args, site, before, done == 0);
        // As the kernel does after a message of which it could not take all.
        let is_short = amount::moved(calls::SENDMMSG, args, result) < bytes;
        let all = parts.made(count, result);
        if let Some(all) = all.or(is_short.then(|| parts.result(result))) {
            *args = start;
            return all;
        }
    }
}

/// A piece of a call; only the first of them is one for a limit in calls.
fn out_next(
    segment: &Segment,
    own: &mut Own,
    call: CallId,
    args: &Args,
    site: &Site,
    bytes: usize,
    first: bool,
) -> isize {
    let made = own.made(call);
    let result = out_part(segment, own, call, args, site, bytes, u64::from(first));
    if !first && own.made(call) != made {
        uncount(own, call);
    }
    result
}

/// Vectored calls take the fast path as long as the lease is so large that their
/// lengths need not be added up. What is left of a large one below that is traded
/// in for a new one, instead of being used up the slow way.
fn renew_for_vectors(segment: &Segment, own: &mut Own, call: CallId, asked: usize) {
    if matches!(amount::io_size(call), IoSize::Arg(_) | IoSize::None) {
        return;
    }
    let enough = i64::from(slots::VECTORS_FROM);
    let Some(entry) = own.entries.get(usize::from(call)) else {
        return;
    };
    let left = entry.bytes;
    let asked = i64::try_from(asked).unwrap_or(i64::MAX);
    if i64::from(entry.lease_bytes) >= 4 * enough && left > 0 && left < enough.saturating_add(asked)
    {
        pay::give_back(segment, own, call, left.unsigned_abs(), 0);
    }
}

/// Vectors passed on at a time when a vectored call is split.
pub(crate) const VECTORS: usize = 32;

/// The vectors of a call from `done` bytes on, for at most `part` bytes: how many
/// there are in `out`, and their bytes.
pub(crate) fn window(
    all: &[IoVec],
    done: usize,
    part: usize,
    out: &mut [IoVec; VECTORS],
) -> (usize, usize) {
    let (mut skip, mut used, mut bytes) = (done, 0, 0);
    for v in all {
        if skip >= v.len {
            skip -= v.len;
            continue;
        }
        let Some(slot) = out.get_mut(used) else { break };
        let len = (v.len - skip).min(part - bytes);
        *slot = IoVec {
            base: v.base + skip,
            len,
        };
        (skip, used, bytes) = (0, used + 1, bytes + len);
        if bytes == part {
            break;
        }
    }
    (used, bytes)
}

/// One call of `bytes` bytes: waits, calls, counts, gives back.
fn out_part(
    segment: &Segment,
    own: &mut Own,
    call: CallId,
    args: &Args,
    site: &Site,
    bytes: usize,
    calls: u64,
) -> isize {
    if let Some(error) = denied(pay::acquire(
        segment,
        own,
        call,
        bytes as u64,
        calls,
        patience(call, args),
    )) {
        return error;
    }
    let result = make(args, site);
    count(segment, own, call, args, result);
    match charge::settle(bytes, amount::moved(call, args, result)) {
        Settlement::Refund(rest) => pay::give_back(segment, own, call, rest as u64, 0),
        // The size was not known beforehand.
        Settlement::Owe(_) => settle(segment, own, call, args),
        Settlement::Even => {}
    }
    if calls > 0 && charge::did_nothing(result) {
        credit_call(segment, own, call);
    }
    result
}
