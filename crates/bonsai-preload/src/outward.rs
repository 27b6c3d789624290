//! Bytes that go out: the wait first, then the call, whole or in pieces.

use crate::amount::{self, Args, IoVec, Len, MsgHdr};
use crate::inward::settle;
use crate::kind::{self, Looked};
use crate::own::Own;
use crate::pay;
use crate::pieces::{RECORD, advance, finished, length, uncount};
use crate::seccomp::ask;
use crate::slots::{self, Site};
use crate::slow::make;
use crate::steps::{count, credit_call, denied, patience};
use crate::sys;
use bonsai_calls::{self as calls, CallId, Fd, whole};
use bonsai_ledger::Segment;

/// What of a call that cannot be made in pieces is waited for before it, at most. Some ask for all that there may be (`tee(2)` with
/// `INT_MAX`), or are refused; what they move beyond this is waited for afterwards.
const MOST_BEFORE: usize = 1 << 20;

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
    let mut piece = length(own, call, asked);
    if call == calls::SENDMMSG && asked > piece {
        return messages_out(segment, own, args, site, piece);
    }
    let mut first = pay::at_once(segment, own, call, asked.min(piece));
    if asked > first {
        let least = least_part(call, args, looked);
        (piece, first) = (piece.max(least), first.max(least));
    }
    if asked <= first {
        let before = asked.min(MOST_BEFORE);
        return out_part(segment, own, call, args, site, before, 1);
    }
    let start = *args;
    let list = amount::list(call, &start);
    let mut vectors = [IoVec { base: 0, len: 0 }; VECTORS];
    let mut message = MsgHdr::PLAIN;
    let mut done = 0_usize;
    loop {
        let whole = if done == 0 { first } else { piece };
        let mut part = whole.min(asked - done);
        if let Some(list) = list {
            let (used, bytes) = window(list, done, part, &mut vectors);
            part = bytes;
            if let Len::Vec(at, n) = amount::len_of(call) {
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
        let result = out_next(segment, own, call, args, site, part, done == 0);
        let got = usize::try_from(result).unwrap_or(0);
        done += got;
        if got == 0 || got < part || done >= asked {
            *args = start;
            return finished(done, result);
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
    let mut done = 0_usize;
    loop {
        let (at, count, bytes) = amount::group(&start, done, total, piece, &mut own.readable);
        (args.a[1], args.a[2]) = (at, count);
        // A message beyond that is one that the kernel refuses.
        let before = bytes.min(MOST_BEFORE);
        let result = out_next(segment, own, calls::SENDMMSG, args, site, before, done == 0);
        let got = usize::try_from(result).unwrap_or(0);
        done += got;
        // As the kernel does after a message of which it could not take all.
        let is_short = amount::moved(calls::SENDMMSG, args, result) < bytes;
        if got < count || is_short || done >= total {
            *args = start;
            return finished(done, result);
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
    if matches!(amount::len_of(call), Len::Arg(_) | Len::None) {
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
    let moved = amount::moved(call, args, result);
    if moved < bytes {
        pay::give_back(segment, own, call, (bytes - moved) as u64, 0);
    } else if moved > bytes {
        // Nobody could say beforehand how much it would be.
        settle(segment, own, call, args);
    }
    if calls > 0 && (result == sys::EAGAIN || result == sys::EINTR) {
        credit_call(segment, own, call);
    }
    result
}

const O_DSYNC: isize = 0o10_000;
const O_APPEND: isize = 0o2000;
const O_DIRECT: isize = 0o40_000;

/// `RWF_DSYNC`, `RWF_SYNC`, `RWF_APPEND`, `RWF_ATOMIC` (linux/fs.h).
const RWF_WHOLE: usize = 0x2 | 0x4 | 0x10 | 0x40;

/// `IPPROTO_SCTP`, whose streams have messages.
const SCTP: u32 = 132;

/// The smallest chunk of a large call that is not observable; `usize::MAX` forbids to split. Pipes in stream mode and stream
/// sockets take anything in parts. A write to a file is one write up to a mebibyte, and of any size where it is appended, synchronous,
/// direct or atomic. A datagram is one, and so is whatever a device or a packet socket takes at a time.
#[inline(never)]
fn least_part(call: CallId, args: &Args, looked: Option<Looked>) -> usize {
    const WHOLE: usize = usize::MAX;
    let fd = match call {
        calls::SPLICE_FILE
        | calls::SPLICE_SOCKET
        | calls::SPLICE_OTHER
        | calls::COPY_FILE_RANGE => args.a[2],
        _ => args.a[0],
    };
    if matches!(amount::len_of(call), Len::Messages | Len::None)
        || matches!(
            call,
            calls::MQ_TIMEDSEND | calls::MSGSND | calls::TEE | calls::VMSPLICE
        )
        || matches!(call, calls::PROCESS_VM_WRITEV)
        || !amount::sends_bytes_alone(call, args)
    {
        return WHOLE;
    }
    let looked = looked.unwrap_or_else(|| kind::look(fd));
    // SAFETY: F_GETFL reads the flags of a descriptor.
    let flags = unsafe { ask!(Fcntl, fd, 3) };
    match looked.kind {
        _ if flags < 0 => WHOLE,
        Fd::File if flags & (O_APPEND | O_DSYNC | O_DIRECT) != 0 => WHOLE,
        Fd::File if call == calls::PWRITEV2 && args.a[5] & RWF_WHOLE != 0 => WHOLE,
        // The kernel itself splits transfers between files.
        Fd::File if matches!(amount::len_of(call), Len::Arg(3 | 4)) => 0,
        Fd::File => RECORD,
        Fd::Socket if socket(fd, SO_TYPE) == 1 && socket(fd, SO_PROTOCOL) != SCTP => 0,
        _ if looked.pipe && flags & O_DIRECT == 0 => 0,
        _ => WHOLE,
    }
}

/// Whether what is read from a descriptor may be read in parts.
#[cfg(feature = "extension")]
pub(crate) fn is_stream(fd: usize) -> bool {
    let looked = kind::look(fd);
    match looked.kind {
        Fd::Socket => socket(fd, SO_TYPE) == 1,
        _ => looked.pipe,
    }
}

const SO_TYPE: usize = 3;
const SO_PROTOCOL: usize = 38;

/// An option of a socket (socket(7)).
fn socket(fd: usize, option: usize) -> u32 {
    let (mut value, mut len) = (0_u32, 4_u32);
    // SAFETY: four bytes.
    unsafe { ask!(Getsockopt, fd, 1, option, &raw mut value, &raw mut len) };
    value
}
