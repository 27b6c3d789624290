//! Event loops: a call on a descriptor that does not block is refused (`EAGAIN`, or a
//! short count) instead of delayed, and the readiness of its descriptor withheld until
//! the call may go. So a loop goes on with its other connections.
//!
//! # Definitions
//! - *Way*: what a descriptor is ready for: IN (received, accepted, read) or OUT.
//! - *Held*: a way of a descriptor that is not ready before an instant, when the tickets
//!   that were taken for it are due.
//! - *Credit*: units of those tickets that no call has used yet. Outgoing calls take
//!   theirs before the call, so the place in line is kept, and nothing is asked twice;
//!   of incoming bytes nothing is left, as they have come already.
//! - *Hidden*: the kernel does not report a held way to whoever waits for it: it is
//!   taken out of the descriptor's registration with its epoll set (`loops.rs`), or out
//!   of the sets of `poll` and `select` (`polls.rs`).
//!
//! ```text
//!              call before its tickets are due: EAGAIN, or a short count
//!   open ─────────────────────────────────────────────────────────────> held, hidden
//!    ^ ^                                                                    │
//!    │ └── next call uses the credit ── shown, credit <── due: a wait gives  │
//!    │                                                    it back (MOD) ────┤
//!    └── close: credit goes back to its buckets <───────────────────────────┘
//! ```
//!
//! What the service's group has to give is asked for when its own limits have given, and
//! looked at again at instants that the group says (`kept.rs`).
//!
//! # Invariants
//! 1. A refused call is followed by an event: every held way ends at an instant that each
//!    waiting call of the process which could see it knows, or is woken to learn.
//! 2. Giving back makes the kernel look at the descriptor once more (`EPOLL_CTL_MOD`), so
//!    that an edge-triggered registration gets its event, too.
//! 3. Nothing goes before its tickets are due, but one call of incoming bytes of about a
//!    quantum each descriptor, which the next call waits for.
//! 4. No lock: who finds a hold being written by somebody else delays its call instead.
//! 5. A forked child starts with nothing held: the memory that says so is wiped.
//!
//! # Limits
//! Calls are delayed as ever on descriptors above 65,535, in two epoll sets at a time, or
//! with `O_ASYNC`; under more than five limits at a time, or four of a group; where they connect, or block;
//! and in processes of which not all waits are seen (`--no-patch`).
//!
//! A `splice` holds its socket: the target if that is one, else the source. A pipe is the program's own buffer, and
//! no loop waits for it.

use crate::amount::{Args, IoSize, io_size};
use crate::claim::Claim;
use crate::facts::{fact, facts};
use crate::held::{self, CREDIT_SHIFT, Held, Hold, Way, high, hold, sees_waits, state};
use crate::kept::Kept;
use crate::kind;
use crate::own::Own;
use crate::patience::Patience;
use crate::polls;
use crate::seccomp::ask;
use crate::sets;
use crate::sys;
use crate::wait::{self, Wait, Waiter};
use bonsai_calls::{self as calls, CallId, Fd};
use bonsai_ledger::{Segment, Tickets, coverage};
use core::sync::atomic::Ordering;

/// The way that a call uses its descriptor, if that is one that can be waited for.
pub(crate) fn way(call: CallId, args: &Args) -> Option<Way> {
    match call {
        calls::SPLICE_SOCKET => {
            let sends = kind::look(args.a[2]).kind == Fd::Socket;
            return Some(if sends { Way::Out } else { Way::In });
        }
        calls::SPLICE_FILE | calls::SPLICE_OTHER => return None,
        calls::ACCEPT | calls::ACCEPT4 => return Some(Way::In),
        calls::SENDFILE_SOCKET | calls::SENDFILE_OTHER => return Some(Way::Out),
        calls::READ_FILE | calls::READV_FILE | calls::WRITE_FILE | calls::WRITEV_FILE => {
            return None;
        }
        _ => {}
    }
    let by_kind = matches!(
        call,
        calls::READ_SOCKET
            | calls::READ_OTHER
            | calls::READV_SOCKET
            | calls::READV_OTHER
            | calls::WRITE_SOCKET
            | calls::WRITE_OTHER
            | calls::WRITEV_SOCKET
            | calls::WRITEV_OTHER
    );
    let facts = facts(call);
    if !by_kind && facts & (fact::SENDS | fact::RECEIVES) == 0 {
        return None;
    }
    match facts & (fact::IN | fact::OUT) {
        fact::IN => Some(Way::In),
        fact::OUT => Some(Way::Out),
        _ => None,
    }
}

const SPLICE: usize = 275;

/// The descriptor that a call is refused on.
const fn descriptor(args: &Args, way: Way) -> usize {
    let fd = match way {
        Way::Out if args.nr == SPLICE => args.a[2],
        _ => args.a[0],
    };
    fd & 0xffff_ffff
}

const O_NONBLOCK: isize = 0o4000;
const O_ASYNC: isize = 0o20_000;
const MSG_DONTWAIT: usize = 0x40;

/// Whether a call must not block, and will be told by an event when to come again.
pub(crate) fn must_not_block(call: CallId, args: &Args, way: Way) -> bool {
    let flags = match call {
        calls::SENDTO | calls::RECVFROM | calls::SENDMMSG | calls::RECVMMSG => args.a[3],
        calls::SENDMSG | calls::RECVMSG => args.a[2],
        _ => 0,
    };
    // SAFETY: F_GETFL reads the flags of a descriptor.
    let own = unsafe { ask!(Fcntl, descriptor(args, way), 3) };
    own >= 0 && own & O_ASYNC == 0 && (own & O_NONBLOCK != 0 || flags & MSG_DONTWAIT != 0)
}

/// Where many are held, those that are due within this time are given back together.
const TOGETHER_NS: u64 = 1 << 18;
const MANY: usize = 256;

/// What a refused call waits for.
pub(crate) struct Lack<'a> {
    /// Tickets of the service's own limits.
    pub(crate) tickets: &'a Tickets,
    /// What there will be credit for: bytes and calls.
    pub(crate) credit: (u64, u64),
    /// What it draws on of the group.
    pub(crate) shared: Kept,
    /// When to look; 0 where the tickets say that.
    pub(crate) until: u64,
}

/// Refuses a call that lacks something: its descriptor is held until that is due. False
/// where it has to wait instead.
pub(crate) fn refuse(
    segment: &Segment,
    call: CallId,
    claim: &Claim,
    lack: &Lack<'_>,
    now: u64,
) -> bool {
    let Some(way) = claim.refusable else {
        return false;
    };
    let fd = descriptor(&claim.args, way);
    let (Some(hold), Some(words)) = (hold(fd, way), lack.tickets.to_words()) else {
        say_delayed(segment, call, claim, coverage::LOOPS_BEYOND);
        return false;
    };
    let reason = match sees_waits(segment) {
        true => sets::why_not_withheld(fd),
        false => Some(coverage::LOOPS_UNSEEN),
    };
    if let Some(reason) = reason {
        say_delayed(segment, call, claim, reason);
        return false;
    }
    if !must_not_block(call, &claim.args, way) {
        return false;
    }
    // Sets that were filled before are known by now.
    let bytes = || usize::try_from(lack.credit.0).unwrap_or(usize::MAX);
    if way == Way::Out && is_last_word(call, &claim.args, bytes, fd) {
        return false;
    }
    let epoch = segment.epoch();
    let mut until = match lack.until {
        // Two pieces at a time are half as many events.
        0 => segment.due(&segment.with_another(lack.tickets), now),
        until => until,
    };
    if high() > MANY {
        until = (until | (TOGETHER_NS - 1)).saturating_add(1);
    }
    let (bytes, calls) = lack.credit;
    let held = Held {
        epoch,
        until,
        since: now,
        bytes,
        calls,
        mask: claim.mask,
        per_stream: claim.per_stream,
        call,
        tickets: words,
        shared: lack.shared,
    };
    if !hold.write(&held) {
        return false;
    }
    sets::note(fd);
    held::set(fd, way, bytes + calls > 0);
    sets::hide(fd, until);
    true
}

/// Outgoing bytes below this may be a last word.
const WORD: usize = 4096;

/// Whether a call may be a program's last word to a connection that no loop waits for: `vsftpd` says goodbye after
/// `O_NONBLOCK`, and a refusal would lose that. It is delayed. More bytes than these, programs do not leave to chance.
fn is_last_word(call: CallId, args: &Args, bytes: impl FnOnce() -> usize, fd: usize) -> bool {
    let bytes = match io_size(call) {
        IoSize::Arg(at) => args.a.get(usize::from(at)).copied().unwrap_or(0),
        _ => bytes(),
    };
    bytes < WORD && !sets::is_known(fd) && !polls::has_waited(fd)
}

/// Says once per process that a call is delayed that must not block.
fn say_delayed(segment: &Segment, call: CallId, claim: &Claim, reason: u32) {
    let is_wanted = |way| must_not_block(call, &claim.args, way);
    if held::is_news(reason) && claim.refusable.is_some_and(is_wanted) {
        held::say(segment, reason);
    }
}

/// When a held way is due, or is to be looked at again; 0 for one that is not held.
pub(crate) fn until(segment: &Segment, fd: usize, way: Way, now: u64) -> u64 {
    if state(fd) & way as u8 == 0 {
        return 0;
    }
    let Some(hold) = hold(fd, way) else {
        return 0;
    };
    let until = hold.until.load(Ordering::Relaxed);
    let same = hold.epoch.load(Ordering::Relaxed) == segment.epoch();
    if same && !hold.is_to_be_looked_at(until, now) {
        return until;
    }
    // Where somebody writes it: soon.
    let mut until = now + 1_000_000;
    hold.change(|held| {
        renew(segment, held, now);
        until = held.until;
    });
    until
}

/// Finds out anew when a hold is due: the limits have changed, or it is the group's turn.
fn renew(segment: &Segment, held: &mut Held, now: u64) {
    let tickets = Tickets::from_words(&held.tickets);
    held.epoch = segment.epoch();
    let stale = held.shared.is_asked() || segment.stale(&tickets);
    held.until = if stale {
        now
    } else {
        segment.due(&tickets, now)
    };
    if held.shared.any() && held.until <= now {
        held.until = held.shared.due(segment, now);
    }
}

/// When the first of the given ways of a descriptor is due; `u64::MAX` for none held.
pub(crate) fn first_due(segment: &Segment, fd: usize, ways: u8, now: u64) -> u64 {
    let mut first = u64::MAX;
    for way in [Way::In, Way::Out] {
        if ways & state(fd) & way as u8 != 0 {
            first = first.min(until(segment, fd, way, now));
        }
    }
    first
}

/// Ends what is due of a descriptor's holds at `now`, and shows it again.
pub(crate) fn give_back(segment: &Segment, fd: usize, now: u64) {
    for way in [Way::In, Way::Out] {
        if state(fd) & way as u8 != 0 && until(segment, fd, way, now) <= now {
            end(segment, fd, way, now);
        }
    }
}

/// Ends a hold: its way is open, and seen again. Its credit stays.
fn end(segment: &Segment, fd: usize, way: Way, now: u64) {
    if held::clear(fd, way as u8) == 0 {
        return;
    }
    if let Some(held) = hold(fd, way).and_then(Hold::read) {
        let waited = held.until.min(now).saturating_sub(held.since);
        segment.record_wait(held.call, fd, waited);
        held.shared.note_wait(segment, waited);
    }
    sets::show(fd, way);
}

/// What becomes of a call on a descriptor of which something is held or paid.
pub(crate) enum Gate {
    /// It may be decided on; true if it has credit.
    Open(bool),
    /// It ends with this.
    Refused(isize),
}

/// Times a way: its bits.
const CREDIT_OR_HELD: u8 = 1 | 1 << CREDIT_SHIFT;

/// Whether something is held or paid of the way that a call uses its descriptor.
#[inline]
pub(crate) fn concerns(args: &Args, claim: &Claim) -> bool {
    claim
        .refusable
        .is_some_and(|way| state(descriptor(args, way)) & (way as u8 * CREDIT_OR_HELD) != 0)
}

/// Asked before a call is decided on.
#[inline]
pub(crate) fn gate(
    segment: &Segment,
    own: &mut Own,
    call: CallId,
    args: &Args,
    claim: &Claim,
) -> Gate {
    match claim.refusable {
        Some(way) if concerns(args, claim) => pass(segment, own, call, args, claim, way),
        _ => Gate::Open(false),
    }
}

#[inline(never)]
fn pass(
    segment: &Segment,
    own: &mut Own,
    call: CallId,
    args: &Args,
    claim: &Claim,
    way: Way,
) -> Gate {
    let fd = descriptor(args, way);
    let mut now = sys::now();
    let due = until(segment, fd, way, now);
    if due > now {
        let is_word = || way == Way::Out && is_last_word(call, args, || usize::MAX, fd);
        if must_not_block(call, args, way) && !is_word() {
            sets::hide_again(fd, due);
            return Gate::Refused(sys::EAGAIN);
        }
        // A blocking call, or a last word after a refused call.
        if let Some(error) = sit_out(segment, own, call, fd, way, &mut now) {
            return Gate::Refused(error);
        }
    }
    end(segment, fd, way, now);
    Gate::Open(use_credit(segment, own, call, claim, way))
}

/// Waits for a hold to be due; an error that ends the call.
fn sit_out(
    segment: &Segment,
    own: &Own,
    call: CallId,
    fd: usize,
    way: Way,
    now: &mut u64,
) -> Option<isize> {
    let waiter = own.waiter(call);
    while let Some(held) = hold(fd, way).and_then(Hold::read) {
        let (is_asked, tickets) = (held.shared.is_asked(), Tickets::from_words(&held.tickets));
        let end = if is_asked {
            held.shared.sit(segment, Patience::Endless, waiter)
        } else {
            wait::until_due(segment, &tickets, *now, u64::MAX, waiter).0
        };
        *now = sys::now();
        match end {
            Wait::Interrupted if facts(call) & fact::WHOLE == 0 || own.cancel.is_cancelled() => {
                return Some(sys::EINTR);
            }
            Wait::Interrupted => {}
            _ if is_asked || !held.shared.any() => break,
            // Then for the group.
            _ => {
                let asks = hold(fd, way).is_some_and(|h| h.change(|h| renew(segment, h, *now)));
                if !asks {
                    break;
                }
            }
        }
    }
    None
}

/// Takes the credit of a way, for a call that is under the same limits.
fn use_credit(segment: &Segment, own: &mut Own, call: CallId, claim: &Claim, way: Way) -> bool {
    let Some(held) = take_credit(descriptor(&claim.args, way), way) else {
        return false;
    };
    let tickets = Tickets::from_words(&held.tickets);
    let same = held.mask == claim.mask && held.per_stream == claim.per_stream;
    let shares = !held.shared.any() || held.shared.is_asked();
    let same = same && shares && held.shared.is_of(claim.shares);
    if segment.stale(&tickets) {
        held.shared.give_back(segment);
        return false;
    }
    let Some(entry) = own.entries.get_mut(usize::from(call)).filter(|_| same) else {
        segment.refund(&tickets, held.bytes, held.calls);
        held.shared.give_back(segment);
        return false;
    };
    entry.bytes += i64::try_from(held.bytes).unwrap_or(0);
    entry.calls += i64::try_from(held.calls).unwrap_or(0);
    claim.note(
        segment,
        (held.bytes, held.calls),
        held.until.saturating_sub(held.since),
    );
    true
}

/// What a call has not used of its credit goes back.
pub(crate) fn return_credit(segment: &Segment, own: &mut Own, call: CallId, claim: &Claim) {
    if let Some(entry) = own.entries.get_mut(usize::from(call)) {
        let left = |units: i64, has: bool| {
            let units = u64::try_from(units).unwrap_or(0);
            if has { units } else { 0 }
        };
        let (bytes, calls) = claim.counts();
        claim.refund(segment, left(entry.bytes, bytes), left(entry.calls, calls));
        (entry.bytes, entry.calls) = (entry.bytes.min(0), entry.calls.min(0));
    }
}

/// Whoever clears the bit has the credit.
fn take_credit(fd: usize, way: Way) -> Option<Held> {
    let bit = (way as u8) << CREDIT_SHIFT;
    let held = hold(fd, way)?.read()?;
    (held::clear(fd, bit) != 0).then_some(held)
}

/// These numbers are about to mean something else: what was paid for them goes back.
pub(crate) fn forget(segment: &Segment, fd: usize) {
    for way in [Way::In, Way::Out] {
        if let Some(held) = take_credit(fd, way) {
            let tickets = Tickets::from_words(&held.tickets);
            segment.refund(&tickets, held.bytes, held.calls);
            held.shared.give_back(segment);
        } else if state(fd) & way as u8 != 0 {
            // What has come in is owed to the group all the same.
            hold(fd, way).map(|hold| hold.change(|held| held.shared.ask(segment)));
        }
    }
    held::clear(fd, u8::MAX);
}
