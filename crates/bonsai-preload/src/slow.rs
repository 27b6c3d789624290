//! The slow path: everything that is not a lease and a system call.

use crate::amount::{self, Args, IoVec, Len, MsgHdr};
use crate::calls::{entry_of, first_entry};
use crate::doors::mode;
use crate::kind::{self, Looked};
use crate::pay::{self, Patience, Timeout};
use crate::slots::{self, Site, fact, flag};
use crate::state::{self, Own};
use crate::sys::{self, call, nr};
use crate::wait::Wait;
use crate::{exec, resolve};
use bonsai_calls::{self as calls, CallId, Fd};
use bonsai_ledger::sync::bump;
use bonsai_ledger::{Segment, Unshaped};
use core::sync::atomic::Ordering;

/// Entered from both doors; see [`mode`]. Returns the raw result of the call.
///
/// # Safety
/// `args` is the call as it stood in the registers, `site` the record of the
/// door it came through.
pub(crate) unsafe extern "C" fn bonsai_slow(
    args: &mut Args,
    site: &Site,
    how: usize,
    result: isize,
) -> isize {
    let Some(segment) = state::segment() else {
        return if how == mode::WHOLE {
            make(args, site)
        } else {
            result
        };
    };
    let own = state::me(segment);
    // SAFETY: this thread's own state; null without memory for it.
    let Some(own) = (unsafe { own.as_mut() }) else {
        segment.count_unshaped(Unshaped::Early);
        return if how == mode::WHOLE {
            make(args, site)
        } else {
            result
        };
    };
    own.within(|own| {
        if how == mode::WHOLE {
            return whole(segment, own, args, site);
        }
        let (call, _) = entry_of(site.call(), args, false);
        settle(segment, own, call, args);
        result
    })
}

/// Makes the call as it came: through libc's own function where that is a
/// cancellation point and the program may cancel threads, directly elsewhere.
fn make(args: &Args, site: &Site) -> isize {
    if site.flags & (flag::SLOT | flag::CANCELLABLE) == flag::CANCELLABLE
        && !resolve::single_threaded()
        && let Some(result) = resolve::forward(args, site)
    {
        return result;
    }
    if matches!(args.nr, nr::EXECVE | nr::EXECVEAT) {
        return exec::made(args);
    }
    // SAFETY: the program's own call with its own arguments.
    unsafe { sys::syscall(args.nr, args.a) }
}

/// A descriptor is looked at anew once in so many slow paths of a thread.
const LOOK_AGAIN: u32 = 63;

fn whole(segment: &'static Segment, own: &mut Own, args: &mut Args, site: &Site) -> isize {
    if args.nr != site.nr as usize && site.flags & flag::SLOT != 0 {
        segment.count_unshaped(Unshaped::OtherNumber);
        return make(args, site);
    }
    let Some(first) = first_entry(args.nr) else {
        return make(args, site);
    };
    pay::sync(segment, own);
    match first {
        calls::EXECVE | calls::EXECVEAT => return exec::at_site(segment, own, args),
        calls::CLOSE => kind::forget(args.a[0]),
        calls::CLOSE_RANGE => kind::forget_range(args.a[0], args.a[1]),
        _ => {}
    }
    let (call, looked) = entry_of(first, args, own.entered & LOOK_AGAIN == 0);
    match slots::facts(call) & (fact::IN | fact::OUT) {
        fact::IN => bytes_in(segment, own, call, args, site),
        fact::OUT => bytes_out(segment, own, call, args, site, looked),
        _ => counted(segment, own, call, args, site),
    }
}

/// A call that is limited by number only.
fn counted(segment: &Segment, own: &mut Own, call: CallId, args: &Args, site: &Site) -> isize {
    let patience = patience(call, args);
    if let Some(error) = denied(pay::acquire(segment, own, call, 0, 1, patience)) {
        return error;
    }
    let result = make(args, site);
    count(segment, own, call, args, result);
    if result == sys::EAGAIN || result == sys::EINTR {
        // Nothing was done: the caller will come again.
        credit_call(segment, own, call);
    }
    if let (0.., Ok(fd)) = (result, usize::try_from(result))
        && crate::calls::gives_descriptor(call)
    {
        kind::forget(fd);
    }
    result
}

/// A call that does nothing gives its unit back.
#[inline(never)]
fn credit_call(segment: &Segment, own: &mut Own, call: CallId) {
    if let Some(entry) = own.entries.get_mut(usize::from(call)) {
        entry.calls += 1;
    }
    pay::give_back(segment, own, call, 0, 1);
}

/// The error that a wait which ended early gives the call.
const fn denied(wait: Wait) -> Option<isize> {
    match wait {
        Wait::Due | Wait::Changed => None,
        Wait::Interrupted => Some(sys::EINTR),
        Wait::TimedOut => Some(sys::EAGAIN),
    }
}

/// The time limit of the descriptor that a call may wait for.
#[inline(never)]
fn patience(call: CallId, args: &Args) -> Patience {
    let facts = slots::facts(call);
    if facts & fact::SENDS != 0 {
        Patience::Socket(args.a[0], Timeout::Send)
    } else if facts & fact::RECEIVES != 0 {
        Patience::Socket(args.a[0], Timeout::Receive)
    } else {
        Patience::Endless
    }
}

/// Counts a finished call and takes its bytes from the thread's lease.
fn count(_segment: &Segment, own: &mut Own, call: CallId, args: &Args, result: isize) {
    let bytes = amount::moved(call, args, result);
    // SAFETY: set up with the state and never unmapped.
    let page = unsafe { &*own.page };
    let index = usize::from(call);
    let (Some(count), Some(entry)) = (page.counts.get(index), own.entries.get_mut(index)) else {
        return;
    };
    if own.crowd {
        count.calls.fetch_add(1, Ordering::Relaxed);
        count.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    } else {
        bump(&count.calls, 1);
        bump(&count.bytes, bytes as u64);
    }
    entry.calls -= 1;
    entry.bytes -= i64::try_from(bytes).unwrap_or(0);
}

/// Pays for bytes that came in before they were due. A signal ends the wait, not
/// the debt: the data is there, and the next call waits.
fn settle(segment: &Segment, own: &mut Own, call: CallId, args: &Args) {
    pay::acquire(segment, own, call, 0, 0, patience(call, args));
}

/// Bytes in: debts first, then the call, then the wait for what it brought.
fn bytes_in(segment: &Segment, own: &mut Own, call: CallId, args: &mut Args, site: &Site) -> isize {
    if let Some(error) = denied(pay::acquire(segment, own, call, 0, 1, patience(call, args))) {
        return error;
    }
    let asked = match amount::len_of(call) {
        Len::Arg(2) => args.a[2].min(amount::MOST),
        _ => 0,
    };
    let piece = own
        .entries
        .get(usize::from(call))
        .map_or(u32::MAX, |e| e.piece) as usize;
    let piece = even(asked, piece);
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

/// The length of the pieces of a call of `asked` bytes, all alike: whole pages, as
/// near to `piece` as that comes. The last one would otherwise be short, and what
/// the thread takes beyond it missing to others until its next call.
fn even(asked: usize, piece: usize) -> usize {
    let pieces = (asked.saturating_add(piece / 2) / piece).max(1);
    asked.div_ceil(pieces).next_multiple_of(PAGE)
}

const PAGE: usize = 4096;

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

/// Later pieces of a call are not calls of their own.
#[inline(never)]
fn uncount(own: &mut Own, call: CallId) {
    // SAFETY: set up with the state and never unmapped.
    let page = unsafe { &*own.page };
    if let (Some(count), Some(entry)) = (
        page.counts.get(usize::from(call)),
        own.entries.get_mut(usize::from(call)),
    ) {
        if own.crowd {
            count.calls.fetch_sub(1, Ordering::Relaxed);
        } else {
            bump(&count.calls, u64::MAX);
        }
        entry.calls += 1;
    }
}

/// Bytes moved by the pieces, or the first one's error.
fn finished(done: usize, last: isize) -> isize {
    if done == 0 {
        last
    } else {
        isize::try_from(done).unwrap_or(last)
    }
}

/// Sets the arguments to the part of a call that starts after `done` bytes.
fn advance(args: &mut Args, start: &Args, call: CallId, done: usize, part: usize) {
    match amount::len_of(call) {
        Len::Arg(i) => args.a[usize::from(i) % 6] = part,
        _ => return,
    }
    match call {
        // The kernel moves these on by itself: through the file's own position,
        // or through the program's offset variable.
        calls::SENDFILE_FILE | calls::SENDFILE_SOCKET | calls::SENDFILE_OTHER => {}
        calls::SPLICE_FILE
        | calls::SPLICE_SOCKET
        | calls::SPLICE_OTHER
        | calls::COPY_FILE_RANGE => {}
        calls::PREAD64 | calls::PWRITE64 => {
            args.a[1] = start.a[1] + done;
            args.a[3] = start.a[3] + done;
        }
        _ => args.a[1] = start.a[1] + done,
    }
}

/// Bytes out: the wait comes before the call, and what the call did not take goes
/// back.
fn bytes_out(
    segment: &Segment,
    own: &mut Own,
    call: CallId,
    args: &mut Args,
    site: &Site,
    looked: Option<Looked>,
) -> isize {
    let (_, mask, byte_buckets) = segment.mask(call);
    if mask & byte_buckets == 0 {
        return out_whole(segment, own, call, args, site, 0);
    }
    let asked = amount::asked(call, args, &mut own.readable);
    renew_for_vectors(segment, own, call, asked);
    let piece = own
        .entries
        .get(usize::from(call))
        .map_or(u32::MAX, |e| e.piece) as usize;
    let piece = even(asked, piece);
    if call == calls::SENDMMSG && asked > piece {
        return messages_out(segment, own, args, site, piece);
    }
    if asked <= piece || !splittable(call, args, looked) {
        return out_whole(segment, own, call, args, site, asked);
    }
    let start = *args;
    let list = amount::list(call, &start);
    let mut vectors = [IoVec { base: 0, len: 0 }; VECTORS];
    let mut message = MsgHdr::PLAIN;
    let mut done = 0_usize;
    loop {
        let mut part = piece.min(asked - done);
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
            if matches!(call, calls::PWRITEV | calls::PWRITEV2) {
                args.a[3] = start.a[3].wrapping_add(done);
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
    let total = start.a[2].min(amount::MAX_VECTORS);
    let mut done = 0_usize;
    loop {
        let (at, count, bytes) = amount::group(&start, done, total, piece, &mut own.readable);
        (args.a[1], args.a[2]) = (at, count);
        let result = out_next(segment, own, calls::SENDMMSG, args, site, bytes, done == 0);
        let got = usize::try_from(result).unwrap_or(0);
        done += got;
        if got < count || done >= total {
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
    if first {
        return out_whole(segment, own, call, args, site, bytes);
    }
    let made = own.made(call);
    let result = out_part(segment, own, call, args, site, bytes, 0);
    if own.made(call) != made {
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
const VECTORS: usize = 32;

/// The vectors of a call from `done` bytes on, for at most `part` bytes: how many
/// there are in `out`, and their bytes.
fn window(all: &[IoVec], done: usize, part: usize, out: &mut [IoVec; VECTORS]) -> (usize, usize) {
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

fn out_whole(
    segment: &Segment,
    own: &mut Own,
    call: CallId,
    args: &Args,
    site: &Site,
    bytes: usize,
) -> isize {
    out_part(segment, own, call, args, site, bytes, 1)
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
    }
    if calls > 0 && (result == sys::EAGAIN || result == sys::EINTR) {
        credit_call(segment, own, call);
    }
    result
}

const O_APPEND: isize = 0o2000;
const O_DIRECT: isize = 0o40_000;

/// Whether a large call means the same in pieces: on files that are not appended
/// to, pipes in stream mode, and stream sockets. A datagram is one, and so is
/// whatever a device or a packet socket takes at a time.
fn splittable(call: CallId, args: &Args, looked: Option<Looked>) -> bool {
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
        return false;
    }
    let looked = looked.unwrap_or_else(|| kind::look(fd));
    // SAFETY: F_GETFL reads the flags of a descriptor.
    let flags = unsafe { call!(nr::FCNTL, fd, 3) };
    match looked.kind {
        Fd::File => flags >= 0 && flags & O_APPEND == 0,
        Fd::Socket => socket_type(fd) == 1,
        _ => looked.pipe && flags >= 0 && flags & O_DIRECT == 0,
    }
}

fn socket_type(fd: usize) -> u32 {
    let (mut value, mut len) = (0_u32, 4_u32);
    // SAFETY: four bytes; SO_TYPE is 3.
    unsafe { call!(nr::GETSOCKOPT, fd, 1, 3, &raw mut value, &raw mut len) };
    value
}

/// Waits for a call that somebody else makes, and counts it.
pub(crate) fn control(segment: &Segment, own: &mut Own, call: CallId) {
    pay::acquire(segment, own, call, 0, 1, Patience::Endless);
    let none = Args { a: [0; 6], nr: 0 };
    count(segment, own, call, &none, -1);
}

/// `syscall(SYS_fork)` and its like, decided on before libc makes them.
pub(crate) extern "C" fn bonsai_before_fork(number: usize) {
    let (Some(segment), Some(call)) = (state::segment(), first_entry(number)) else {
        return;
    };
    // SAFETY: this thread's own state.
    if let Some(own) = unsafe { state::me(segment).as_mut() } {
        own.within(|own| {
            pay::sync(segment, own);
            control(segment, own, call);
        });
    }
}

/// Decides on a call that libc's own function makes (fork, closefrom, ...), and
/// returns that function.
///
/// # Safety
/// From `bonsai_tail` only.
pub(crate) unsafe extern "C" fn bonsai_before(site: &Site, saved: &[usize; 7]) -> usize {
    // Pushed in the order rdi, rsi, rdx, rcx, r8, r9, and the record.
    let args = Args {
        a: [saved[6], saved[5], saved[4], saved[3], saved[2], saved[1]],
        nr: site.nr as usize,
    };
    if let Some(segment) = state::segment()
        && let Some(own) =
            // SAFETY: this thread's own state.
            unsafe { state::me(segment).as_mut() }
    {
        own.within(|own| {
            pay::sync(segment, own);
            if site.call() == calls::CLOSE_RANGE {
                kind::forget_range(args.a[0], usize::MAX);
            }
            control(segment, own, site.call());
        });
    }
    resolve::real(site)
}
