//! A ring is entered.

use super::done::{Debts, Done};
use super::known::{self, Held, params};
use super::records::Records;
use super::toll::{self, Group};
use super::walk::{self, Entries};
use super::{flag, places, register};
use crate::amount::Args;
use crate::facts::Site;
use crate::own::Own;
use crate::slow::make;
use crate::steps::denied;
use crate::sys;
use crate::wait::Wait;
use bonsai_calls::ring::{Meaning, Together, Words, submission, together};
use bonsai_calls::{self as calls, Fd};
use bonsai_ledger::{Segment, Unshaped};
use core::sync::atomic::{AtomicU32, Ordering};

/// `IORING_ENTER_*`.
const GET_EVENTS: usize = 1;
const WAKE_UP: usize = 1 << 1;
const WAIT_FOR_ROOM: usize = 1 << 2;
const BY_PLACE: usize = 1 << 4;

/// `IORING_CQE_F_*`.
const MORE: u32 = 1 << 1;
const NOTICE: u32 = 1 << 3;
const SKIP: u32 = 1 << 5;
const WIDE: u32 = 1 << 15;

impl Entries for Held {
    fn entry(&self, at: u32) -> Option<Words> {
        let n = self.param(params::ENTRIES);
        let place = at & n.wrapping_sub(1);
        let index = if self.has(flag::NO_ARRAY) {
            place
        } else {
            let array = self.array(params::SQ_ARRAY) as *const AtomicU32;
            // SAFETY: within the array, which is mapped while the ring is held.
            unsafe { (*array.add(place as usize)).load(Ordering::Relaxed) }
        };
        if index >= n {
            return None;
        }
        let (width, _) = self.widths();
        let entry = (self.entries_at() + width * index as usize) as *const u64;
        // SAFETY: within the entries. The program may write there at any time, at its own
        // risk.
        Some(core::array::from_fn(|i| unsafe {
            entry.add(i).read_volatile()
        }))
    }

    fn read(&self, _: u32, entry: &Words) -> (Meaning, Together) {
        (submission(entry), together(entry))
    }

    fn width(&self, entry: &Words) -> u32 {
        // NOP128 and URING_CMD128 take two places where widths are mixed.
        1 + u32::from(self.has(flag::MIXED_ENTRIES) && matches!(entry[0] & 0xff, 63 | 64))
    }

    fn file(&self, place: u32) -> Fd {
        register::kind_at(self, place)
    }

    fn set_file(&self, place: u32, kind: Fd) {
        register::set_kind(self, place, kind);
    }

    fn records(&self) -> &Records {
        &self.0.records
    }
}

/// Decides on a call that enters a ring, and makes it.
pub(crate) fn enter(
    segment: &'static Segment,
    own: &mut Own,
    args: &mut Args,
    site: &Site,
) -> isize {
    if toll::begin(segment, own) {
        known::inherit();
    }
    let by_place = args.a[3] & BY_PLACE != 0;
    let fd = if by_place { toll::NO_FD } else { args.a[0] };
    if toll::is_limited(segment, calls::IO_URING_ENTER) {
        let mut call = Group::new(segment, own, calls::IO_URING_ENTER, args);
        call.calls = 1;
        if let Some(error) = denied(call.pay(segment, own, true)) {
            return error;
        }
    } else {
        toll::count(segment, own, calls::IO_URING_ENTER, 1, 0);
    }
    let ring = if by_place {
        places::at_place(segment, own.tid, args.a[0], &mut own.readable)
    } else {
        known::find(segment, fd, &mut own.readable)
    };
    if let Some(ring) = ring {
        let start = *args;
        let result = through(segment, own, &ring, args, site);
        *args = start;
        result
    } else {
        if args.a[1] & 0xffff_ffff != 0 {
            segment.count_unshaped(Unshaped::Ring);
        }
        make(args, site)
    }
}

/// A descriptor is about to be closed: of a ring, what was done last is counted.
pub(crate) fn last_look(segment: &'static Segment, own: &mut Own, fd: usize) {
    if !known::is_mapped(fd) {
        return;
    }
    if toll::begin(segment, own) {
        known::inherit();
    }
    if let Some(ring) = known::find(segment, fd, &mut own.readable) {
        look(segment, own, &ring);
    }
}

fn through(
    segment: &'static Segment,
    own: &mut Own,
    ring: &Held,
    args: &mut Args,
    site: &Site,
) -> isize {
    look(segment, own, ring);
    let start = *args;
    let asked = low(start.a[1]);
    let flags = start.a[3];
    let unpolled = ring.unpolled.load(Ordering::Relaxed);
    let tail = ring.word(params::SQ_TAIL).load(Ordering::Acquire);
    let mut at = match ring.has(flag::REWIND) {
        true => 0,
        false => ring.word(params::SQ_HEAD).load(Ordering::Acquire),
    };
    let most = ring.param(params::ENTRIES);
    let ready = match ring.has(flag::REWIND) {
        true => most,
        false => tail.wrapping_sub(at).min(most),
    };
    // A thread that polls takes whatever is there.
    let mut left = if unpolled { ready } else { asked.min(ready) };
    let whole = ring.has(flag::REWIND);
    let may_end = flags & GET_EVENTS != 0 && low(start.a[2]) > 0;
    let mut entered = 0_u32;
    let result = loop {
        let (n, wait) = walk::part(segment, own, ring, (at, left), whole, may_end);
        if wait != Wait::Due {
            break some(entered, sys::EINTR);
        }
        let last = n == left;
        if last {
            *args = start;
            args.a[1] = if unpolled { n } else { asked - entered } as usize;
            args.a[3] = if unpolled {
                flags & !(WAKE_UP | WAIT_FOR_ROOM)
            } else {
                flags
            };
        } else {
            let place = flags & BY_PLACE;
            args.a = [start.a[0], n as usize, 0, place, 0, 0];
        }
        let result = make(args, site);
        let taken = u32::try_from(result).unwrap_or(0).min(n);
        if taken < n {
            walk::undo(segment, own, ring, at.wrapping_add(taken), n - taken);
        }
        if result < 0 {
            break some(entered, result);
        }
        entered += taken;
        if last || taken < n {
            break some(entered, 0);
        }
        (at, left) = (at.wrapping_add(n), left - n);
    };
    look(segment, own, ring);
    // What a polled ring says: that it was told.
    if unpolled && result >= 0 {
        return isize::try_from(asked).unwrap_or(0);
    }
    result
}

/// What was done, or else why nothing was.
fn some(entered: u32, otherwise: isize) -> isize {
    match entered {
        0 => otherwise,
        n => isize::try_from(n).unwrap_or(0),
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the lower half is meant")]
const fn low(word: usize) -> u32 {
    word as u32
}

/// Looks at the results that have come since somebody looked last, whoever takes them.
fn look(segment: &Segment, own: &mut Own, ring: &Held) {
    let tail = || ring.word(params::CQ_TAIL).load(Ordering::Acquire);
    if !ring.looked.load(Ordering::Acquire) && !ring.looked.swap(true, Ordering::AcqRel) {
        ring.seen.store(tail(), Ordering::Release);
    }
    let size = ring.param(params::RESULTS);
    let mut debts = Debts::NONE;
    loop {
        let (seen, end) = (ring.seen.load(Ordering::Acquire), tail());
        let new = end.wrapping_sub(seen);
        if new == 0 || new > u32::MAX / 2 {
            break;
        }
        let to = |next: u32| {
            ring.seen
                .compare_exchange(seen, next, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        };
        if new > size {
            // The first of them have been overwritten.
            to(end.wrapping_sub(size));
            continue;
        }
        let (done, width) = result(ring, seen);
        if !to(seen.wrapping_add(width)) || tail().wrapping_sub(seen) > size {
            continue;
        }
        if let Some(done) = done {
            debts.take(segment, own, ring, done);
        }
    }
    debts.pay(segment, own);
}

/// The result at a position, and how many positions it takes.
fn result(ring: &Held, at: u32) -> (Option<Done>, u32) {
    let place = at & ring.param(params::RESULTS).wrapping_sub(1);
    let (_, width) = ring.widths();
    let from = (ring.array(params::CQ_RESULTS) + width * place as usize) as *const u64;
    // SAFETY: within the results, which are mapped while the ring is held.
    let (key, rest) = unsafe { (from.read_volatile(), from.add(1).read_volatile()) };
    let flags = low((rest >> 32) as usize);
    let wide = ring.has(flag::MIXED_RESULTS) && flags & WIDE != 0;
    if flags & NOTICE != 0 || ring.has(flag::MIXED_RESULTS) && flags & SKIP != 0 {
        return (None, 1);
    }
    let done = Done {
        key,
        result: low((rest & 0xffff_ffff) as usize).cast_signed() as isize,
        more: flags & MORE != 0,
    };
    (Some(done), 1 + u32::from(wide))
}
