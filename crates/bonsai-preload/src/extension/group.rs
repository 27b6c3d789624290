//! What a call draws on of its service's group.

use crate::facts::{fact, facts};
use crate::joined;
use crate::patience::Patience;
use crate::sys;
use crate::wait::{self, SPIN_NS, Wait, Waiter};
use bonsai_bucket::{ROUND_NS, Seat};
use bonsai_calls::CallId;
use bonsai_ledger::{
    Config, GROUP_BUCKET, GROUPS, GroupSegment, LOOK_AGAIN_NS, Membership, Segment, Shared,
    Unshaped,
};
use core::sync::atomic::Ordering;

/// A wait that others have put off lasts at least so long: what has become available
/// meanwhile is not lost.
const AGAIN_NS: u64 = ROUND_NS / 64;

/// What a call draws on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shares {
    /// Which of what the group shares, a bit each.
    things: u8,
    /// Those of them that count bytes.
    bytes: u8,
    /// The number of the service; 0 for none.
    membership: u64,
}

impl Shares {
    /// Nothing.
    pub(crate) const NONE: Self = Self {
        things: 0,
        bytes: 0,
        membership: 0,
    };

    /// Whether it draws on anything.
    pub(crate) const fn any(self) -> bool {
        self.things != 0
    }

    pub(crate) fn of(config: &Config, call: CallId) -> Self {
        let things = config.grouped(call);
        let first = things.trailing_zeros() as usize;
        let word = config.groups.get(first);
        Self {
            things,
            bytes: config.group_bytes.load(Ordering::Relaxed).to_le_bytes()[0] & things,
            membership: word.map_or(0, |word| word.load(Ordering::Relaxed)),
        }
    }

    /// How much it draws on.
    pub(crate) const fn len(self) -> usize {
        self.things.count_ones() as usize
    }

    /// As words: the lowest two bytes of the first.
    pub(crate) const fn to_words(self) -> (u64, u64) {
        let head = self.things as u64 | (self.bytes as u64) << 8;
        (head, self.membership)
    }

    /// From words.
    pub(crate) const fn from_words(head: u64, membership: u64) -> Self {
        let [things, bytes, ..] = head.to_le_bytes();
        Self {
            things,
            bytes,
            membership,
        }
    }

    /// Whether one of them counts bytes, and whether one counts calls.
    pub(crate) const fn counts(self) -> (bool, bool) {
        (
            self.things & self.bytes != 0,
            self.things & !self.bytes != 0,
        )
    }

    /// Runs `each` for all of them, with the units that it counts, as long as that says
    /// so.
    fn each(self, bytes: u64, calls: u64, mut each: impl FnMut(usize, u64) -> bool) {
        let mut left = self.things;
        while left != 0 {
            let thing = left.trailing_zeros() as usize;
            left &= left - 1;
            let units = if self.bytes >> thing & 1 != 0 {
                bytes
            } else {
                calls
            };
            if units != 0 && !each(thing, units) {
                return;
            }
        }
    }

    /// The group and the service's number in it; none once the service has left.
    fn group(self, segment: &Segment) -> Option<(&'static GroupSegment, usize)> {
        let membership = Membership::from_word(self.membership)?;
        let group = joined::segment_of(segment, self.membership);
        let Some(group) = group.filter(|group| group.has(membership)) else {
            if joined::in_force(segment, self.membership) {
                segment.count_unshaped(Unshaped::NoGroup);
            }
            return None;
        };
        Some((group, membership.member))
    }
}

/// The number of the terms in force; 0 without a group.
pub(crate) fn epoch() -> u32 {
    joined::current().map_or(0, GroupSegment::epoch)
}

/// Takes tickets for all that a call draws on, in order.
pub(crate) fn ask<const N: usize>(
    segment: &Segment,
    shares: Shares,
    (bytes, calls): (u64, u64),
) -> [u64; N] {
    let mut tickets = [0; N];
    let Some((group, member)) = shares.group(segment) else {
        return tickets;
    };
    let mut places = tickets.iter_mut();
    shares.each(bytes, calls, |thing, units| {
        let seat = group.seat(member, thing);
        if let (Some(place), Some(seat)) = (places.next(), seat) {
            *place = seat.ask(units);
        }
        true
    });
    tickets
}

/// Gets the service what it may have at `now` of all that tickets were taken for; when to
/// look again, if that does not suffice.
pub(crate) fn serve(
    segment: &Segment,
    shares: Shares,
    (bytes, calls): (u64, u64),
    tickets: &[u64],
    now: u64,
) -> Option<u64> {
    let (group, member) = shares.group(segment)?;
    let (mut tickets, mut last) = (tickets.iter(), None);
    shares.each(bytes, calls, |thing, _| {
        if let (Some(ticket), Some(seat)) = (tickets.next(), group.seat(member, thing)) {
            last = last.max(group.serve(member, thing, seat.nearest(*ticket), now));
        }
        true
    });
    last
}

/// Waits until such tickets may go.
pub(crate) fn sit(
    segment: &Segment,
    (shares, (bytes, calls)): (Shares, (u64, u64)),
    tickets: &[u64],
    patience: Patience,
    waiter: Waiter<'_>,
) -> Wait {
    let (mut tickets, mut end) = (tickets.iter(), Wait::Due);
    let Some((group, member)) = shares.group(segment) else {
        return end;
    };
    shares.each(bytes, calls, |thing, _| {
        if let (Some(ticket), Some(seat)) = (tickets.next(), group.seat(member, thing)) {
            let at = shares.place(segment, (group, member), thing);
            end = until_served(&at, &seat, *ticket, patience, waiter);
        }
        end == Wait::Due
    });
    end
}

/// Notes that a call has waited for what it draws on.
pub(crate) fn note_wait(segment: &Segment, shares: Shares, (bytes, calls): (u64, u64), ns: u64) {
    if shares.any()
        && let Some((group, member)) = shares.group(segment)
    {
        shares.each(bytes, calls, |thing, _| {
            group.note_wait(member, thing, ns);
            true
        });
    }
}

/// Gives units back that were asked for and not used.
pub(crate) fn give_back(segment: &Segment, shares: Shares, bytes: u64, calls: u64) {
    if shares.things == 0 || bytes | calls == 0 {
        return;
    }
    let Some((group, member)) = shares.group(segment) else {
        return;
    };
    shares.each(bytes, calls, |thing, units| {
        if let Some(seat) = group.seat(member, thing) {
            seat.give_back(units);
        }
        true
    });
}

/// Takes `short` bytes of what the service has been granted, and a lease of at most `most`
/// beyond them, which it returns; `None`, with nothing taken, if that is not there.
pub(crate) fn lease(
    segment: &Segment,
    shares: Shares,
    short: u64,
    most: u64,
    epoch: u32,
) -> Option<u64> {
    let (group, member) = shares.group(segment)?;
    let mut got = [0_u64; GROUPS];
    let (mut least, mut all) = (most, true);
    shares.each(1, 0, |thing, _| {
        let lease = group.lease(member, thing, (short, least), epoch);
        if let (Some(lease), Some(place)) = (lease, got.get_mut(thing)) {
            (least, *place) = (least.min(lease), short + lease);
        }
        all = lease.is_some();
        all
    });
    let keeps = if all { short + least } else { 0 };
    shares.each(1, 0, |thing, _| {
        let taken = got.get(thing).copied().unwrap_or(0);
        if let Some(seat) = group.seat(member, thing).filter(|_| taken > keeps) {
            seat.end_lease(taken - keeps.max(short), epoch);
            seat.give_back(taken - keeps);
        }
        true
    });
    all.then_some(least)
}

/// A lease of so many bytes is over.
pub(crate) fn end_lease(segment: &Segment, shares: Shares, bytes: u64, epoch: u32) {
    if bytes == 0 || shares.things == 0 {
        return;
    }
    if let Some((group, member)) = shares.group(segment) {
        shares.each(bytes, 0, |thing, bytes| {
            if let Some(seat) = group.seat(member, thing) {
                seat.end_lease(bytes, epoch);
            }
            true
        });
    }
}

/// Bytes that the group gives in a quantum, at most.
pub(crate) fn quantum(segment: &Segment, shares: Shares) -> u64 {
    let mut most = u64::MAX;
    if shares.things & shares.bytes == 0 {
        return most;
    }
    if let Some((group, member)) = shares.group(segment) {
        shares.each(1, 0, |thing, _| {
            most = most.min(group.quantum(member, thing));
            true
        });
    }
    most
}

/// Makes bytes and calls available, of all that the call draws on. What was asked for is
/// given back if the wait ends early, unless it is owed.
pub(crate) fn acquire(
    segment: &Segment,
    shares: Shares,
    (bytes, calls): (u64, u64),
    owed: bool,
    patience: Patience,
    waiter: Waiter<'_>,
) -> Wait {
    if shares.things == 0 {
        return Wait::Due;
    }
    let Some((group, member)) = shares.group(segment) else {
        return Wait::Due;
    };
    let mut end = Wait::Due;
    let mut asked = 0_u8;
    shares.each(bytes, calls, |thing, units| {
        let Some(seat) = group.seat(member, thing) else {
            return true;
        };
        let ticket = seat.ask(units);
        asked |= 1 << thing;
        if end == Wait::Due && !seat.is_ready(ticket) {
            let at = shares.place(segment, (group, member), thing);
            end = until_served(&at, &seat, ticket, patience, waiter);
        }
        // What is owed is owed to all of them.
        end == Wait::Due || owed
    });
    if end != Wait::Due && !owed {
        let asked = Shares {
            things: asked,
            ..shares
        };
        give_back(segment, asked, bytes, calls);
    }
    end
}

impl Shares {
    /// Where a call waits for one thing of a group.
    const fn place<'a>(
        self,
        segment: &'a Segment,
        (group, member): (&'a GroupSegment, usize),
        thing: usize,
    ) -> Place<'a> {
        Place {
            segment,
            group,
            shares: self,
            member,
            thing,
        }
    }
}

/// Where a call waits.
struct Place<'a> {
    segment: &'a Segment,
    group: &'a GroupSegment,
    shares: Shares,
    member: usize,
    thing: usize,
}

/// Waits until a ticket may go.
fn until_served(
    at: &Place<'_>,
    seat: &Seat<'_, Shared>,
    ticket: u64,
    patience: Patience,
    waiter: Waiter<'_>,
) -> Wait {
    let from = sys::now();
    let mut now = from;
    let mut slack = 0;
    let mut limit = None;
    let end = loop {
        let epoch = at.group.epoch();
        // The service may have left, and its number and line be somebody else's.
        if at.shares.group(at.segment).is_none() {
            break Wait::Due;
        }
        let nearest = seat.nearest(ticket);
        let Some(mut due) = at.group.serve(at.member, at.thing, nearest, now) else {
            break Wait::Due;
        };
        let limit = *limit.get_or_insert_with(|| patience.limit(now));
        if now >= limit {
            break Wait::TimedOut;
        }
        if waiter.cancel.is_cancelled() {
            break Wait::Interrupted;
        }
        if due.saturating_sub(now) < SPIN_NS {
            sys::pause();
            now = sys::now();
            continue;
        }
        if slack == 0 {
            if let Some(note) = waiter.note {
                note.begin(now);
            }
            slack = wait::sharpen();
        } else {
            due = due.max(now + AGAIN_NS);
        }
        if let Some(note) = waiter.note {
            #[expect(clippy::cast_possible_truncation, reason = "there are 8")]
            let bucket = GROUP_BUCKET + at.thing as u8;
            note.sleep(waiter.call, waiter.tid, bucket, due, now);
        }
        let until = due.min(limit).min(now.saturating_add(LOOK_AGAIN_NS));
        let restarts = wait::restarts(waiter.call, limit);
        let word = &at.group.head.epoch.0;
        let slept = wait::sleep(word, epoch, until, restarts, waiter.cancel);
        now = sys::now();
        match slept {
            0 | sys::EAGAIN | sys::ETIMEDOUT => {}
            // A call that the kernel never interrupts is not interrupted here either.
            sys::EINTR if facts(waiter.call) & fact::WHOLE != 0 => {}
            sys::EINTR if seat.is_ready(ticket) => break Wait::Due,
            sys::EINTR => break Wait::Interrupted,
            _ => {
                at.segment.count_unshaped(Unshaped::WaitFailed);
                break Wait::Due;
            }
        }
    };
    wait::blunt(slack);
    if now > from {
        at.segment
            .record_wait(waiter.call, waiter.tid as usize, now - from);
        // Of a number that was given back meanwhile, the line is cleared.
        if Membership::from_word(at.shares.membership).is_some_and(|m| at.group.has(m)) {
            at.group.note_wait(at.member, at.thing, now - from);
        }
    }
    end
}
