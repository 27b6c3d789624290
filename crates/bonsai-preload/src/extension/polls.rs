//! `poll`, `ppoll`, `select` and `pselect6`: held ways (`hold.rs`) are taken out of the
//! sets that the kernel is asked about, until the first of them is due; then they are put
//! back, so that the program sees one call with its own sets.
//!
//! # Invariants
//! 1. The program's own array or sets are as they were but for what the kernel reports.
//! 2. A descriptor with nothing left to be asked about is not asked about at all: its
//!    hanging up would end the wait again and again.
//! 3. The time limit is the program's own; what is left of it is written back where the
//!    kernel does that.
//!
//! # Limits
//! [`HIDDEN`] descriptors are hidden from one `poll`, and `select` looks at the first
//! [`SELECTED`]; the rest is reported though it is held, and the calls on it are refused.

use crate::amount;
use crate::amount::Args;
use crate::facts::{Site, flag};
use crate::held::{self, HELD, Way};
use crate::hold;
use crate::kind::KINDS;
use crate::loops;
use crate::own::Own;
use crate::pay::{self, Patience};
use crate::raw;
use crate::seccomp::{Helper, forbids};
use crate::set::{self, Set};
use crate::sets::nr_of;
use crate::slow::{make, make_other};
use crate::steps::{count, credit_call, denied};
use crate::sys;
use bonsai_calls::{self as calls, CallId};
use bonsai_ledger::{Asleep, LOOK_AGAIN_NS, Segment};
use core::sync::atomic::{AtomicU64, Ordering};

/// Descriptors that can be hidden from one call of `poll`.
const HIDDEN: usize = 256;
/// Descriptors of a `select` that are looked at.
const SELECTED: usize = 4096;

/// A call that is limited by number, made by `made`.
pub(crate) fn counted(
    segment: &Segment,
    own: &mut Own,
    call: CallId,
    args: &Args,
    made: impl FnOnce(&mut Own) -> isize,
) -> isize {
    let paid = pay::acquire(segment, own, call, 0, 1, Patience::Endless);
    if let Some(error) = denied(paid) {
        return error;
    }
    let result = made(own);
    count(segment, own, call, args, result);
    if result == sys::EAGAIN || result == sys::EINTR {
        credit_call(segment, own, call);
    }
    result
}

/// `struct pollfd`.
#[repr(C)]
#[derive(Clone, Copy)]
struct PollFd {
    fd: i32,
    events: i16,
    revents: i16,
}

const IN: i16 = 0x1 | 0x40 | 0x80 | 0x2000;
const OUT: i16 = 0x4 | 0x100 | 0x200;

/// What has been changed in the program's array.
#[derive(Clone, Copy, Default)]
struct Change {
    at: u32,
    fd: i32,
    events: i16,
}

/// What may be hidden of a descriptor that is asked about: ends what is due.
fn held_of(segment: &Segment, fd: usize, now: u64, next: &mut u64) -> u8 {
    if held::state(fd) & HELD == 0 {
        return 0;
    }
    hold::give_back(segment, fd, now);
    let due = hold::first_due(segment, fd, HELD, now);
    *next = (*next).min(due).min(now.saturating_add(LOOK_AGAIN_NS / 10));
    held::state(fd) & HELD
}

/// Sets that one call is counted as asleep in; it looks at the others ten times a second.
const NESTED: usize = 8;

/// Sets that are asked about, as if they were descriptors.
struct Nested {
    asleep: [Option<(usize, &'static Set, Asleep)>; NESTED],
    len: usize,
}

impl Nested {
    const fn new() -> Self {
        Self {
            asleep: [const { None }; NESTED],
            len: 0,
        }
    }

    /// A descriptor is asked about.
    fn ask(&mut self, segment: &Segment, fd: usize, now: u64, next: &mut u64) {
        let Some(slot) = set::slot_of(fd) else {
            return;
        };
        let Some(set) = set::at(slot).filter(|set| set.is_ours()) else {
            return;
        };
        if let Some(place) = self.asleep.get_mut(self.len) {
            *place = Some((slot, set, set.sleepers.enter()));
            self.len += 1;
        } else {
            *next = (*next).min(now.saturating_add(LOOK_AGAIN_NS / 10));
        }
        *next = (*next).min(loops::next_due(segment, slot, || now));
    }

    /// The call has come back.
    fn end(&mut self) {
        for place in &mut self.asleep {
            if let Some((slot, set, asleep)) = place.take() {
                loops::stir(slot, set, asleep);
            }
        }
        self.len = 0;
    }
}

/// Descriptors that `poll` or `select` has waited for. A number that stands for another one by now does no harm: small
/// calls on it are refused.
static WAITED: [AtomicU64; KINDS / 64] = [const { AtomicU64::new(0) }; KINDS / 64];

fn note_waited(word: usize, bits: u64) {
    if let Some(known) = WAITED.get(word)
        && known.load(Ordering::Relaxed) & bits != bits
    {
        known.fetch_or(bits, Ordering::Relaxed);
    }
}

/// Whether `poll` or `select` has waited for a descriptor.
pub(crate) fn has_waited(fd: usize) -> bool {
    let word = WAITED.get(fd / 64);
    word.is_some_and(|word| word.load(Ordering::Relaxed) >> (fd % 64) & 1 != 0)
}

/// Whether nothing has ever been held, and there are no sets in which something might be while a call waits.
fn is_plain() -> bool {
    held::high() == 0 && !set::any()
}

/// `poll` and `ppoll`.
pub(crate) fn poll(
    segment: &Segment,
    own: &mut Own,
    call: CallId,
    args: &Args,
    site: &Site,
) -> isize {
    let (at, len) = (args.a[0], args.a[1]);
    let bytes = len.saturating_mul(size_of::<PollFd>());
    if len == 0 || !amount::readable(at, bytes, &mut own.readable) {
        return make(args, site);
    }
    // SAFETY: found readable.
    let asked = unsafe { core::slice::from_raw_parts(at as *const PollFd, len) };
    for fd in asked.iter().filter_map(|one| usize::try_from(one.fd).ok()) {
        note_waited(fd / 64, 1 << (fd % 64));
    }
    if is_plain() {
        return make(args, site);
    }
    let (mut limit, mut nested) = (None, Nested::new());
    raw::back(own.tid);
    loop {
        // SAFETY: found readable; what is written is what the kernel would write beside.
        let asked = unsafe { core::slice::from_raw_parts_mut(at as *mut PollFd, len) };
        let mut changes = [Change::default(); HIDDEN];
        let (used, next) = hide(segment, asked, &mut changes, &mut nested);
        if used == 0 && next == u64::MAX && limit.is_none() {
            let result = make(args, site);
            nested.end();
            return result;
        }
        let end = *limit.get_or_insert_with(|| deadline(call, args.a[2], own));
        let result = match end {
            Some(end) => make_until(call, args, site, next.min(end)),
            None => make(args, site),
        };
        nested.end();
        for change in changes.get(..used).unwrap_or_default() {
            if let Some(entry) = asked.get_mut(change.at as usize) {
                (entry.fd, entry.events) = (change.fd, change.events);
            }
        }
        if result != 0 || end.is_none_or(|end| sys::now() >= end) {
            left_over(call, site, args.a[2], end);
            return result;
        }
    }
}

/// Hides what is held of an array; how much that was, and when the first is due.
fn hide(
    segment: &Segment,
    asked: &mut [PollFd],
    changes: &mut [Change; HIDDEN],
    nested: &mut Nested,
) -> (usize, u64) {
    let (mut used, mut next, now) = (0, u64::MAX, sys::now());
    for (at, entry) in (0_u32..).zip(asked) {
        let Ok(fd) = usize::try_from(entry.fd) else {
            continue;
        };
        nested.ask(segment, fd, now, &mut next);
        let held = held_of(segment, fd, now, &mut next);
        let events = |way: Way, events: i16| if held & way as u8 == 0 { 0 } else { events };
        let hidden = entry.events & (events(Way::In, IN) | events(Way::Out, OUT));
        let Some(change) = changes.get_mut(used).filter(|_| hidden != 0) else {
            continue;
        };
        *change = Change {
            at,
            fd: entry.fd,
            events: entry.events,
        };
        used += 1;
        if entry.events & !hidden & (IN | OUT) == 0 {
            entry.fd = -1;
        } else {
            entry.events &= !hidden;
        }
    }
    (used, next)
}

/// Words of a set of descriptors.
const WORDS: usize = SELECTED / 64;

/// `select` and `pselect6`.
pub(crate) fn select(
    segment: &Segment,
    own: &mut Own,
    call: CallId,
    args: &Args,
    site: &Site,
) -> isize {
    let high = (args.a[0] & 0xffff_ffff).min(SELECTED);
    let words = high.div_ceil(64);
    let sets = [args.a[1], args.a[2], args.a[3]];
    let mut usable = |at: &usize| *at == 0 || amount::readable(*at, 8 * words, &mut own.readable);
    if !sets.iter().all(&mut usable) || args.a[0] & 0xffff_ffff > SELECTED {
        return make(args, site);
    }
    let set = |i: usize| {
        // SAFETY: found readable; what is written is what the kernel would write.
        (sets[i] != 0)
            .then(|| unsafe { core::slice::from_raw_parts_mut(sets[i] as *mut u64, words) })
    };
    let mut asked = [[0_u64; WORDS]; 3];
    for (i, copy) in asked.iter_mut().enumerate() {
        for (to, from) in copy.iter_mut().zip(set(i).unwrap_or_default()) {
            *to = *from;
        }
        for (at, bits) in copy.iter().enumerate().take(words) {
            note_waited(at, *bits);
        }
    }
    if is_plain() {
        return make(args, site);
    }
    let (mut limit, mut nested) = (None, Nested::new());
    raw::back(own.tid);
    loop {
        let mut next = u64::MAX;
        let now = sys::now();
        for at in 0..words {
            let mut hidden = [0_u64; 3];
            let mut left = asked.iter().fold(0, |all, set| all | set[at % WORDS]);
            while left != 0 {
                let bit = left & left.wrapping_neg();
                left &= left - 1;
                let fd = 64 * at + bit.trailing_zeros() as usize;
                nested.ask(segment, fd, now, &mut next);
                let held = held_of(segment, fd, now, &mut next);
                if held & Way::In as u8 != 0 {
                    hidden[0] |= bit;
                }
                if held & Way::Out as u8 != 0 {
                    hidden[1] |= bit;
                }
            }
            for i in 0..3 {
                if let Some(word) = set(i).and_then(|set| set.get_mut(at)) {
                    *word = asked[i][at % WORDS] & !hidden[i];
                }
            }
        }
        if next == u64::MAX && limit.is_none() {
            let result = make(args, site);
            nested.end();
            return result;
        }
        let end = *limit.get_or_insert_with(|| deadline(call, args.a[4], own));
        let result = match end {
            Some(end) => make_until(call, args, site, next.min(end)),
            None => make(args, site),
        };
        nested.end();
        if result != 0 || end.is_none_or(|end| sys::now() >= end) {
            left_over(call, site, args.a[4], end);
            return result;
        }
    }
}

/// The same call until an instant: to the nanosecond, where that is possible.
fn make_until(call: CallId, args: &Args, site: &Site, until: u64) -> isize {
    let left = until.saturating_sub(sys::now());
    let mut args = *args;
    // Of a `timeval`, in microseconds.
    let unit = if call == calls::SELECT { 1000 } else { 1 };
    let left = left.next_multiple_of(unit);
    let time = [left / 1_000_000_000, left % 1_000_000_000 / unit];
    let forever = until == u64::MAX;
    let through_libc = site.flags & (flag::SLOT | flag::CANCELLABLE) == flag::CANCELLABLE;
    let fixed = forbids(Helper::Ppoll) || through_libc && held::has_threads();
    let at = if forever { 0 } else { time.as_ptr() as usize };
    match call {
        calls::POLL if fixed => {
            let ms = left.div_ceil(1_000_000).min(i32::MAX.unsigned_abs().into());
            args.a[2] = if forever {
                usize::MAX
            } else {
                usize::try_from(ms).unwrap_or(0)
            };
            return make(&args, site);
        }
        calls::POLL => {
            args.nr = nr_of(calls::PPOLL);
            (args.a[2], args.a[3], args.a[4]) = (at, 0, 0);
        }
        calls::PPOLL => args.a[2] = at,
        _ => args.a[4] = at,
    }
    make_other(&args, site)
}

/// Writes what is left of the program's time limit, as the kernel does.
fn left_over(call: CallId, site: &Site, at: usize, end: Option<u64>) {
    // libc's own variable, which it looks at; what the program passes may be constant.
    let written = site.flags & flag::SLOT != 0 && call != calls::POLL && at != 0;
    let Some(end) = end.filter(|end| written && *end != u64::MAX) else {
        return;
    };
    let left = end.saturating_sub(sys::now());
    let unit = if call == calls::SELECT { 1000 } else { 1 };
    let time = [left / 1_000_000_000, left % 1_000_000_000 / unit];
    // SAFETY: on libc's stack.
    unsafe { (at as *mut [u64; 2]).write_unaligned(time) };
}

/// The program's own time limit, an instant.
pub(crate) fn deadline(call: CallId, word: usize, own: &mut Own) -> Option<u64> {
    let ns = match call {
        calls::EPOLL_PWAIT2 | calls::PPOLL | calls::PSELECT6 | calls::SELECT => {
            if word == 0 {
                return Some(u64::MAX);
            }
            if !amount::readable(word, 16, &mut own.readable) {
                return None;
            }
            // SAFETY: found readable.
            let [seconds, part] = unsafe { (word as *const [u64; 2]).read_unaligned() };
            let unit = if call == calls::SELECT { 1000 } else { 1 };
            if part >= 1_000_000_000 / unit || seconds >> 63 != 0 {
                return None;
            }
            seconds
                .saturating_mul(1_000_000_000)
                .saturating_add(part * unit)
        }
        #[expect(clippy::cast_possible_truncation, reason = "an int")]
        _ => match u64::try_from((word as u32).cast_signed()) {
            Ok(ms) => ms * 1_000_000,
            Err(_) => return Some(u64::MAX),
        },
    };
    Some(sys::now().saturating_add(ns))
}
