//! Calls for incoming bytes on descriptors that must not block: they take about what
//! their limits give in a quantum at a time, so that a connection is never far ahead of
//! its rate. Its next call is refused until that is due.
//!
//! A program that gets less than it has asked for may take its descriptor to be drained,
//! and wait for an event: so there is one.

use crate::amount;
use crate::amount::{Args, IoSize, IoVec, io_size, list};
use crate::claim::Claim;
use crate::held::Way;
use crate::hold;

use crate::kind;
use crate::outward::{VECTORS, window};
use crate::own::Own;
use crate::sets;
use bonsai_calls::CallId;
use bonsai_decide::{is_stream, may_be_shortened};

/// Makes the call by `made`, for no more bytes than are good.
pub(crate) fn within_piece(
    own: &mut Own,
    call: CallId,
    args: &mut Args,
    made: impl FnOnce(&mut Own, &mut Args) -> isize,
) -> isize {
    let start = *args;
    let mut vectors = [IoVec { base: 0, len: 0 }; VECTORS];
    let may_be_held = Claim::current(own).is_some_and(|claim| {
        let counts_bytes = claim.counts().0;
        counts_bytes && claim.refusable == Some(Way::In)
    });
    let most = match own.entries.get(usize::from(call)) {
        Some(entry) if may_be_held && entry.piece != 0 => entry.piece as usize,
        _ => return made(own, args),
    };
    let splits = may_be_shortened(call, amount::flags(call, args));
    // Half as much again goes at once, as everywhere.
    let enough = |asked: usize| asked <= most.saturating_add(most / 2);
    if !splits || enough(amount::asked(call, args, &mut own.readable)) {
        return made(own, args);
    }
    if !hold::must_not_block(call, args, Way::In) || !is_stream(&kind::open_file(args.a[0], None)) {
        return made(own, args);
    }
    let mut bytes = most;
    match (io_size(call), list(call, &start)) {
        (IoSize::Vec(at, count), Some(all)) => {
            let (used, len) = window(all, 0, most, &mut vectors);
            args.a[usize::from(at) % 6] = vectors.as_ptr() as usize;
            args.a[usize::from(count) % 6] = used;
            bytes = len;
        }
        (IoSize::Arg(i), _) => args.a[usize::from(i) % 6] = most,
        _ => {}
    }
    let result = made(own, args);
    *args = start;
    if usize::try_from(result) == Ok(bytes) {
        sets::remind(start.a[0] & 0xffff_ffff);
    }
    result
}
