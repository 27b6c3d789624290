//! Epoll sets: what is registered there, so that a held way (`hold.rs`) can be hidden
//! from the kernel and shown again.
//!
//! # Definitions
//! - *Registration*: the set that a descriptor is in, and the events and data the program
//!   has given. Seen at `epoll_ctl`; of sets that were filled before that was looked at,
//!   read from `/proc/self/fdinfo`.
//! - *Hidden*: the kernel knows the registration without the events of the held ways. Where
//!   no event would be left, or the registration is one that the kernel does not change
//!   (`EPOLLEXCLUSIVE`) or switches off by itself (`EPOLLONESHOT`), it is *absent* from the
//!   set: then there is no event for hanging up either. So it is where the other end is
//!   gone: the kernel would say that of what is left, again and again.
//! - *Earliest* of a set: no way of its descriptors is due before.
//!
//! # Invariants
//! 1. Whatever is hidden, a thread that sleeps in the set looks when it is due, or a wake-up lies in the set (`bonsai_ledger::Sleepers`,
//!    `wakes.rs`). Where no wake-up can be left, nothing is hidden.
//! 2. What the kernel knows follows what is held: whoever changes it looks afterwards whether what was told last was still right.
//! 3. A one-shot registration that the program has not armed is never armed here, and one that it has taken out of its set is not put
//!    back.
//!
//! # Limits
//! A set that is shared with a forked child shows what the one holds to the other; a call
//! that is refused for that hides it again. A set may be in another, in that in another,
//! four deep. A hold longer than a tenth of a second is looked at ten times a second, for
//! limits may change.

use crate::held::{self, HELD, Way};
use crate::kind::{self, KINDS};
use crate::learn::find_sets;
use crate::raw;
use crate::seccomp::{Helper, ask, forbids};
use crate::set::{self, Set};
use crate::sys;
use crate::wakes;
use bonsai_calls::{self as calls, CallId};
use bonsai_ledger::coverage;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Sets in sets are looked at so deep.
pub(crate) const DEEP: usize = 4;

const EBADF: isize = -9;

pub(crate) mod events {
    pub(super) const IN: u32 = 0x1 | 0x40 | 0x80 | 0x2000;
    pub(super) const OUT: u32 = 0x4 | 0x100 | 0x200;
    pub(crate) const EXCLUSIVE: u32 = 1 << 28;
    pub(super) const ONESHOT: u32 = 1 << 30;
    pub(super) const EDGES: u32 = 1 << 31;
}

/// `struct epoll_event`.
#[repr(C, packed)]
#[derive(Clone, Copy)]
pub(crate) struct Event {
    pub(crate) events: u32,
    pub(crate) data: u64,
}

pub(crate) const ADD: usize = 1;
pub(crate) const DEL: usize = 2;
pub(crate) const MOD: usize = 3;

/// A descriptor's registration.
pub(crate) struct Registration {
    /// One more than the slot of the set that it is in; 0 for none.
    pub(crate) set: AtomicU32,
    /// What the program has asked for.
    pub(crate) events: AtomicU32,
    pub(crate) data: AtomicU64,
    /// What of that the kernel does not know; all of it: it is absent.
    pub(crate) hidden: AtomicU32,
    /// The set's returns when the kernel was told last.
    told: AtomicU32,
    /// Threads that tell the kernel of it, and above them how often one has.
    tellers: AtomicU32,
}

const TELLER: u32 = 1 << 16;

/// It is in another set, too.
const SEVERAL: u32 = 1 << 31;
pub(crate) const ABSENT: u32 = u32::MAX;

static REGISTRATIONS: [Registration; KINDS] = [const {
    Registration {
        set: AtomicU32::new(0),
        events: AtomicU32::new(0),
        data: AtomicU64::new(0),
        hidden: AtomicU32::new(0),
        told: AtomicU32::new(0),
        tellers: AtomicU32::new(0),
    }
}; KINDS];

/// Of descriptors from here on, nothing has ever been known.
static HIGH: AtomicU32 = AtomicU32::new(0);

pub(crate) fn high() -> usize {
    (HIGH.load(Ordering::Relaxed) as usize).min(KINDS)
}

#[expect(clippy::cast_possible_truncation, reason = "there are 65,536")]
fn note_high(fd: usize) {
    HIGH.fetch_max(fd as u32 + 1, Ordering::Relaxed);
}

impl Registration {
    /// The events that the program has asked for, and their data.
    fn asked(&self) -> (u32, u64) {
        let events = self.events.load(Ordering::SeqCst);
        (events, self.data.load(Ordering::SeqCst))
    }

    /// Nothing of it is hidden: a call that is refused hides it.
    fn note_shown(&self, set: usize) {
        self.told
            .store(returns(set).wrapping_sub(1), Ordering::Relaxed);
    }

    fn set(&self) -> Option<usize> {
        let set = self.set.load(Ordering::Relaxed) & !SEVERAL;
        (set as usize).checked_sub(1)
    }
}

/// Something is about to be known of a number.
pub(crate) fn note(fd: usize) {
    kind::note(fd, true);
    note_high(fd);
}

pub(crate) fn registration(fd: usize) -> Option<(&'static Registration, usize)> {
    let registration = REGISTRATIONS.get(fd)?;
    Some((registration, registration.set()?))
}

/// Why readiness of a descriptor cannot be withheld, as a bit of [`coverage`]: it is in several
/// sets, or in one that is waited for by other instructions than those that are seen.
pub(crate) fn why_not_withheld(fd: usize) -> Option<u32> {
    let Some(r) = REGISTRATIONS.get(fd) else {
        return Some(coverage::LOOPS_BEYOND);
    };
    // What is hidden could not be shown again.
    if forbids(Helper::EpollCtl) {
        return Some(coverage::LOOPS_UNSEEN);
    }
    // It may be in one of which nothing was seen.
    if r.set().is_none() && !find_sets() {
        return Some(coverage::LOOPS_UNSEEN);
    }
    let mut at = r;
    for _ in 0..DEEP {
        if at.set.load(Ordering::Relaxed) & SEVERAL != 0 {
            return Some(coverage::LOOPS_SEVERAL);
        }
        let slot = at.set()?;
        if raw::sleep(slot) || !set::at(slot).is_some_and(Set::is_seen) {
            return Some(coverage::LOOPS_UNSEEN);
        }
        at = outer_of(slot)?;
    }
    Some(coverage::LOOPS_UNSEEN)
}

/// The events of the held ways of a descriptor.
pub(crate) fn withheld(fd: usize) -> u32 {
    let held = held::state(fd) & HELD;
    let of = |way: Way, events: u32| if held & way as u8 == 0 { 0 } else { events };
    of(Way::In, events::IN) | of(Way::Out, events::OUT)
}

/// What is to be hidden of a registration for these events.
pub(crate) fn to_hide(asked: u32, withheld: u32) -> u32 {
    let alone = asked & (events::ONESHOT | events::EXCLUSIVE) != 0;
    match asked & withheld {
        0 => 0,
        part if alone || asked & !part & (events::IN | events::OUT) == 0 => ABSENT,
        part => part,
    }
}

pub(crate) fn control(slot: usize, operation: usize, fd: usize, asked: u32, data: u64) -> isize {
    let Some(set) = set::number_of(slot) else {
        return EBADF;
    };
    let event = Event {
        events: asked,
        data,
    };
    // SAFETY: an event of our own.
    unsafe { ask!(EpollCtl, set, operation, fd, &raw const event) }
}

pub(crate) fn nr_of(call: CallId) -> usize {
    calls::CALLS
        .get(usize::from(call))
        .map_or(0, |c| usize::from(c.nr))
}

fn is_ours(slot: usize) -> bool {
    set::at(slot).is_some_and(Set::is_ours)
}

/// How often somebody has come back from waiting for a set.
fn returns(slot: usize) -> u32 {
    set::at(slot).map_or(0, |s| s.returns.load(Ordering::Relaxed))
}

/// Makes the kernel know a registration as the program has made it.
pub(crate) fn show_whole(fd: usize) {
    let Some((r, set)) = registration(fd).filter(|(_, set)| is_ours(*set)) else {
        return;
    };
    let hidden = r.hidden.swap(0, Ordering::SeqCst);
    if hidden != 0 {
        change(r, set, fd, (hidden, 0), r.asked());
        r.note_shown(set);
    }
}

/// The same of all that is in a set, directly or in others.
pub(crate) fn show_all(slot: usize) {
    let within = |fd: &usize| is_within(*fd, slot);
    (0..high()).filter(within).for_each(show_whole);
}

/// Whether a descriptor is in a set, or in one that is in that.
pub(crate) fn is_within(fd: usize, slot: usize) -> bool {
    let mut at = registration(fd).map(|(_, set)| set);
    for _ in 0..DEEP {
        match at {
            Some(set) if set == slot => return true,
            Some(set) => at = set::outer(set),
            None => return false,
        }
    }
    false
}

/// Changes what the kernel knows of a registration: before, this was hidden of it, and from now on that.
fn change(
    r: &Registration,
    set: usize,
    fd: usize,
    (hidden, hide): (u32, u32),
    (asked, data): (u32, u64),
) {
    const EEXIST: isize = -17;
    const EINVAL: isize = -22;
    let shown = asked & !hide;
    if hide == ABSENT {
        if hidden != ABSENT {
            control(set, DEL, fd, 0, 0);
        }
        return;
    }
    let operation = if hidden == ABSENT { ADD } else { MOD };
    match control(set, operation, fd, shown, data) {
        // Another thread was faster.
        EEXIST => {
            control(set, MOD, fd, shown, data);
        }
        // One of `EPOLLEXCLUSIVE` is not changed, but made anew.
        EINVAL if asked & events::EXCLUSIVE != 0 => {
            control(set, DEL, fd, 0, 0);
            control(set, ADD, fd, shown, data);
        }
        _ => {}
    }
    // The program may have taken it out meanwhile.
    if r.set() != Some(set) {
        control(set, DEL, fd, 0, 0);
    }
}

/// Whether the other end is gone: the kernel says that in any case, again and again.
fn has_hung_up(fd: usize) -> bool {
    const ERR_OR_HUP: u64 = 0x18;
    let mut asked = fd as u64;
    // SAFETY: one `struct pollfd` of our own, and no wait.
    let got = unsafe { ask!(Poll, &raw mut asked, 1, 0) };
    got == 1 && asked >> 48 & ERR_OR_HUP != 0
}

/// Makes the kernel know what is to be seen of a registration; `again` also if it should
/// know that already.
pub(crate) fn tell(fd: usize, again: bool) {
    let Some((r, set)) = registration(fd).filter(|(_, set)| is_ours(*set)) else {
        return;
    };
    r.tellers.fetch_add(TELLER | 1, Ordering::SeqCst);
    let mut told: Option<(u32, u32, u64)> = None;
    // Ends as soon as nobody changes what is held, or asked for, meanwhile.
    for _ in 0..8 {
        let (asked, data) = r.asked();
        let mut hide = to_hide(asked, withheld(fd));
        if !matches!(hide, 0 | ABSENT) && has_hung_up(fd) {
            hide = ABSENT;
        }
        let hidden = r.hidden.swap(hide, Ordering::SeqCst);
        // Another thread may have told the kernel something else before us, and gone.
        let is_known = match told {
            None => hide == hidden && !again,
            Some(told) => told == (hide, asked, data),
        };
        if is_known {
            break;
        }
        r.told.store(returns(set), Ordering::Relaxed);
        let hidden = told.map_or(hidden, |(hide, ..)| hide);
        change(r, set, fd, (hidden, hide), (asked, data));
        told = Some((hide, asked, data));
    }
    r.tellers.fetch_sub(1, Ordering::SeqCst);
}

/// Who tells the kernel of a registration just now, and how often somebody has.
pub(crate) fn tellers(fd: usize) -> u32 {
    REGISTRATIONS
        .get(fd)
        .map_or(0, |r| r.tellers.load(Ordering::SeqCst))
}

/// Whether nobody has told the kernel of a registration since then.
pub(crate) fn is_untold(fd: usize, since: u32) -> bool {
    since.is_multiple_of(TELLER) && tellers(fd) == since
}

/// Something in a set is hidden, or about to be, until an instant. Whether it may be: somebody who sleeps there, or in a set that it
/// is in, knows of that or is woken.
pub(crate) fn announce(slot: usize, until: u64) -> bool {
    sleepers_of(slot, |set| set.sleepers.announce(until))
}

/// Leaves a wake-up in a set and those that it is in, where one is needed. Whether that was possible.
fn sleepers_of(slot: usize, needs: impl Fn(&Set) -> bool) -> bool {
    let (mut at, mut left) = (slot, true);
    for _ in 0..DEEP {
        if set::at(at).is_some_and(&needs) {
            left &= wakes::leave(at);
        }
        match set::outer(at) {
            Some(outer) => at = outer,
            None => break,
        }
    }
    left
}

/// A way of a descriptor is held from now on, until an instant.
pub(crate) fn hide(fd: usize, until: u64) {
    let Some((r, set)) = registration(fd) else {
        return;
    };
    let asked = r.events.load(Ordering::Relaxed);
    let may_hide = announce(set, until);
    // Of a one-shot registration it is not known whether it is armed.
    if may_hide && asked & withheld(fd) != 0 && asked & events::ONESHOT == 0 && !raw::sleep(set) {
        tell(fd, false);
    }
}

/// A held descriptor was used all the same: it was shown, by whomever. Not by a wait that
/// nobody has come back from since it was hidden: many programs just try once more.
pub(crate) fn hide_again(fd: usize, until: u64) {
    let Some((r, set)) = registration(fd) else {
        return;
    };
    let asked = r.events.load(Ordering::Relaxed);
    if r.told.load(Ordering::Relaxed) == returns(set) {
        return;
    }
    let hides = asked & withheld(fd) != 0 && asked & events::ONESHOT == 0;
    if hides && announce(set, until) && !raw::sleep(set) {
        // Of one by edges the kernel would report anew what is not held.
        let again = r.hidden.load(Ordering::Relaxed) != ABSENT && asked & events::EDGES == 0;
        tell(fd, again);
    }
}

/// A way of a descriptor is open again: whoever waits for it hears of it if it is ready.
pub(crate) fn show(fd: usize, way: Way) {
    let Some((r, _)) = registration(fd) else {
        return;
    };
    let asked = r.events.load(Ordering::Relaxed);
    let of_way = if way == Way::In {
        events::IN
    } else {
        events::OUT
    };
    let one_shot = asked & events::ONESHOT != 0;
    if asked & of_way != 0 {
        // One that is absent was armed by the program.
        tell(fd, !one_shot);
    }
}

/// A call took less than it was asked to from a descriptor that may have more: of an
/// edge-triggered registration, the program expects no other event.
pub(crate) fn remind(fd: usize) {
    if let Some((r, _)) = registration(fd)
        && r.events.load(Ordering::Relaxed) & events::EDGES != 0
    {
        tell(fd, r.events.load(Ordering::Relaxed) & events::ONESHOT == 0);
    }
}

/// Whether the kernel knows a registration, which it does not change.
fn is_in(set: usize, fd: usize, r: &Registration) -> bool {
    let (asked, data) = r.asked();
    control(set, MOD, fd, asked, data) == 0
}

/// Remembers a registration: what the program asks for, and what the kernel does not know of that.
pub(crate) fn record(slot: usize, fd: usize, (asked, hide): (u32, u32), data: u64) {
    let (Some(r), Ok(set)) = (REGISTRATIONS.get(fd), u32::try_from(slot)) else {
        return;
    };
    note(fd);
    let before = r.set.load(Ordering::Relaxed);
    let several = match before & !SEVERAL {
        0 => 0,
        same if same == set + 1 => before & SEVERAL,
        // If it is still in there: its number may have been another's.
        other if is_in(other as usize - 1, fd, r) => SEVERAL,
        _ => 0,
    };
    r.events.store(asked, Ordering::SeqCst);
    r.data.store(data, Ordering::SeqCst);
    r.hidden.store(hide, Ordering::SeqCst);
    r.note_shown(slot);
    r.set.store((set + 1) | several, Ordering::Relaxed);
}

/// Whether a descriptor is in a set, as far as is known.
pub(crate) fn is_known(fd: usize) -> bool {
    REGISTRATIONS
        .get(fd)
        .is_some_and(|r| r.set.load(Ordering::Relaxed) != 0)
}

/// A descriptor is in no set any more.
pub(crate) fn clear(fd: usize) {
    if let Some(r) = REGISTRATIONS.get(fd) {
        r.set.store(0, Ordering::Relaxed);
        r.hidden.store(0, Ordering::Relaxed);
    }
}

/// The registration of a set in another.
fn outer_of(slot: usize) -> Option<&'static Registration> {
    let of = |number: usize| registration(number).map(|(r, _)| r);
    set::numbers(slot).find_map(of)
}
