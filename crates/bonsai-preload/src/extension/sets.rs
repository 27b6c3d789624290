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
//! 1. Who waits for a set sleeps no longer than to its earliest. Who lowers that while
//!    somebody sleeps leaves its descriptor shown, and makes the kernel look at it: that
//!    wakes the sleeper if it is ready, and if not, the kernel will when it is.
//! 2. What the kernel knows follows what is held: who changes it looks afterwards whether
//!    it was still right.
//! 3. A one-shot registration that the program has not armed is never armed here.
//!
//! # Limits
//! A set that is shared with a forked child shows what the one holds to the other; a call
//! that is refused for that hides it again. A set may be in another, in that in another,
//! four deep. A hold longer than a tenth of a second is looked at ten times a second, for
//! limits may change.

use crate::held::{self, HELD, Way};
use crate::hold;
use crate::kind::{self, KINDS};
use crate::known;
use crate::state::GUARDED;
use crate::sys::{self, call};
use bonsai_calls::{self as calls, CallId};
use bonsai_ledger::Segment;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

mod events {
    pub(super) const IN: u32 = 0x1 | 0x40 | 0x80 | 0x2000;
    pub(super) const OUT: u32 = 0x4 | 0x100 | 0x200;
    pub(super) const EXCLUSIVE: u32 = 1 << 28;
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
    /// One more than the set that it is in; 0 for none.
    pub(crate) set: AtomicU32,
    /// What the program has asked for.
    pub(crate) events: AtomicU32,
    pub(crate) data: AtomicU64,
    /// What of that the kernel does not know; all of it: it is absent.
    pub(crate) hidden: AtomicU32,
    /// The set's returns when the kernel was told last.
    told: AtomicU32,
}

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
    }
}; KINDS];

/// An epoll set, by its own descriptor.
pub(crate) struct Set {
    /// See above; one more, so that 0 is never.
    pub(crate) earliest: AtomicU64,
    /// The process that has looked at it; 0 for none.
    pub(crate) known_to: AtomicU32,
    /// Threads that wait for it.
    pub(crate) sleepers: AtomicU32,
    /// Counts those that have come back.
    pub(crate) returns: AtomicU32,
    /// Somebody has waited for it where that is seen.
    pub(crate) waited_for: AtomicBool,
}

static SETS: [Set; KINDS] = [const {
    Set {
        earliest: AtomicU64::new(0),
        known_to: AtomicU32::new(0),
        sleepers: AtomicU32::new(0),
        returns: AtomicU32::new(0),
        waited_for: AtomicBool::new(false),
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

/// The set of a descriptor that is one.
pub(crate) fn get(set: usize) -> Option<&'static Set> {
    SETS.get(set)
}

impl Set {
    pub(crate) fn earliest(&self) -> u64 {
        self.earliest.load(Ordering::SeqCst).wrapping_sub(1)
    }

    /// Returns what it was.
    fn lower(&self, to: u64) -> u64 {
        let lower = |seen: u64| (seen.wrapping_sub(1) > to).then_some(to.wrapping_add(1));
        let before = self
            .earliest
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, lower);
        before.unwrap_or_else(|seen| seen).wrapping_sub(1)
    }
}

impl Registration {
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

/// Whether readiness of a descriptor can be withheld: not from several sets, and not
/// from one that is waited for by other instructions than those that are seen.
pub(crate) fn can_withhold(fd: usize) -> bool {
    let Some(r) = REGISTRATIONS.get(fd) else {
        return false;
    };
    let seen = |set: usize| {
        let set = SETS.get(set);
        set.is_some_and(|s| s.waited_for.load(Ordering::Relaxed))
    };
    r.set.load(Ordering::Relaxed) & SEVERAL == 0 && r.set().is_none_or(seen)
}

/// The events of the held ways of a descriptor.
pub(crate) fn withheld(fd: usize) -> u32 {
    let held = held::state(fd) & HELD;
    let of = |way: Way, events: u32| if held & way as u8 == 0 { 0 } else { events };
    of(Way::In, events::IN) | of(Way::Out, events::OUT)
}

/// What is to be hidden of a registration for these events.
fn to_hide(asked: u32, withheld: u32) -> u32 {
    let alone = asked & (events::ONESHOT | events::EXCLUSIVE) != 0;
    match asked & withheld {
        0 => 0,
        part if alone || asked & !part & (events::IN | events::OUT) == 0 => ABSENT,
        part => part,
    }
}

fn control(set: usize, operation: usize, fd: usize, asked: u32, data: u64) -> isize {
    let event = Event {
        events: asked,
        data,
    };
    // SAFETY: an event of our own.
    unsafe {
        call!(
            nr_of(calls::EPOLL_CTL),
            set,
            operation,
            fd,
            &raw const event
        )
    }
}

pub(crate) fn nr_of(call: CallId) -> usize {
    calls::CALLS
        .get(usize::from(call))
        .map_or(0, |c| usize::from(c.nr))
}

/// Whether a set is this process's own, and not its parent's.
fn is_ours(set: usize) -> bool {
    let ours = |s: &Set| s.known_to.load(Ordering::Relaxed) == held::process();
    SETS.get(set).is_some_and(ours)
}

/// How often somebody has come back from waiting for a set.
fn returns(set: usize) -> u32 {
    SETS.get(set)
        .map_or(0, |s| s.returns.load(Ordering::Relaxed))
}

/// Makes the kernel know a registration as the program has made it.
pub(crate) fn show_whole(fd: usize) {
    let Some((r, set)) = registration(fd).filter(|(_, set)| is_ours(*set)) else {
        return;
    };
    let operation = match r.hidden.swap(0, Ordering::SeqCst) {
        0 => return,
        ABSENT => ADD,
        _ => MOD,
    };
    let asked = r.events.load(Ordering::Relaxed);
    control(set, operation, fd, asked, r.data.load(Ordering::Relaxed));
    r.note_shown(set);
}

/// Whether the other end is gone: the kernel says that in any case, again and again.
fn has_hung_up(fd: usize) -> bool {
    const ERR_OR_HUP: u64 = 0x18;
    let mut asked = fd as u64;
    // SAFETY: one `struct pollfd` of our own, and no wait.
    let got = unsafe { call!(nr_of(calls::POLL), &raw mut asked, 1, 0) };
    got == 1 && asked >> 48 & ERR_OR_HUP != 0
}

/// Makes the kernel know what is to be seen of a registration; `again` also if it should
/// know that already.
pub(crate) fn tell(fd: usize, again: bool) {
    let Some((r, set)) = registration(fd) else {
        return;
    };
    if !is_ours(set) {
        return;
    }
    let mut again = again;
    // Ends as soon as nobody changes what is held meanwhile.
    for _ in 0..8 {
        let (asked, data) = (
            r.events.load(Ordering::Relaxed),
            r.data.load(Ordering::Relaxed),
        );
        let mut hide = to_hide(asked, withheld(fd));
        if !matches!(hide, 0 | ABSENT) && has_hung_up(fd) {
            hide = ABSENT;
        }
        let hidden = r.hidden.swap(hide, Ordering::SeqCst);
        if hide == hidden && !again {
            return;
        }
        again = false;
        r.told.store(returns(set), Ordering::Relaxed);
        match (hidden, hide) {
            (ABSENT, ABSENT) => 0,
            (_, ABSENT) => control(set, DEL, fd, 0, 0),
            (ABSENT, _) => control(set, ADD, fd, asked & !hide, data),
            _ => control(set, MOD, fd, asked & !hide, data),
        };
    }
}

/// Lowers the earliest of a set and of those that it is in; whether somebody sleeps who
/// does not know of that.
pub(crate) fn announce(set: usize, until: u64) -> bool {
    let (mut at, mut asleep) = (set, false);
    for _ in 0..4 {
        let Some(s) = SETS.get(at) else { break };
        asleep |= s.lower(until) > until && s.sleepers.load(Ordering::SeqCst) > 0;
        match registration(at) {
            Some((_, outer)) => at = outer,
            None => break,
        }
    }
    asleep
}

/// A way of a descriptor is held from now on, until an instant.
pub(crate) fn hide(_: &Segment, fd: usize, until: u64) {
    let Some((r, set)) = registration(fd) else {
        return;
    };
    let asked = r.events.load(Ordering::Relaxed);
    let asleep = announce(set, until);
    if asked & withheld(fd) == 0 {
        return;
    }
    if asked & events::ONESHOT != 0 {
        // Whether it is armed is not known.
        return;
    }
    if !asleep {
        tell(fd, false);
    } else if r.hidden.load(Ordering::Relaxed) == 0 {
        control(set, MOD, fd, asked, r.data.load(Ordering::Relaxed));
    }
}

/// A held descriptor was used all the same: it was shown, by whomever. Not by a wait that
/// nobody has come back from since it was hidden: many programs just try once more.
pub(crate) fn hide_again(fd: usize) {
    let Some((r, set)) = registration(fd) else {
        return;
    };
    let asked = r.events.load(Ordering::Relaxed);
    if r.told.load(Ordering::Relaxed) == returns(set) {
        return;
    }
    if asked & withheld(fd) != 0 && asked & events::ONESHOT == 0 {
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

/// These numbers are about to mean something else; they still mean what they did if
/// they are about to be closed.
pub(crate) fn forget(segment: &Segment, first: usize, last: usize, closes: bool) {
    // A vforked child closes what is its own, in memory that is its parent's.
    let mut own = None;
    for fd in first..=last.min(high().max(held::high())) {
        let (Some(r), Some(set)) = (REGISTRATIONS.get(fd), SETS.get(fd)) else {
            return;
        };
        let known = held::state(fd) != 0
            || r.set.load(Ordering::Relaxed) != 0
            || set.known_to.load(Ordering::Relaxed) != 0;
        if !known && closes {
            // Of a file that is all there is, and `descriptors` forgets what that was about,
            // before the call and after it, in whichever process.
            kind::note(fd, false);
        } else if (known || kind::is_noted(fd))
            && *own.get_or_insert_with(|| held::process() == sys::getpid())
        {
            hold::forget(segment, fd);
            if closes {
                // By another number of the same file, the kernel keeps it.
                tell(fd, false);
            }
            r.set.store(0, Ordering::Relaxed);
            r.hidden.store(0, Ordering::Relaxed);
            set.known_to.store(0, Ordering::Relaxed);
            set.waited_for.store(false, Ordering::Relaxed);
            set.earliest.store(0, Ordering::Relaxed);
            kind::note(fd, false);
        }
    }
}

/// Learns what is in a set that has not been seen from its beginning.
pub(crate) fn learn(set: usize) -> Option<&'static Set> {
    let known = SETS.get(set)?;
    let process = held::process();
    if known.known_to.load(Ordering::Relaxed) == process {
        return Some(known);
    }
    note(set);
    match known.known_to.swap(process, Ordering::Relaxed) {
        before if before == process || GUARDED.load(Ordering::Relaxed) => {}
        0 => known::read(set, meet),
        _ => {
            // Of the process that this one is a child of: what that has hidden.
            for fd in (0..high()).filter(|fd| registration(*fd).is_some_and(|(_, s)| s == set)) {
                tell(fd, false);
            }
        }
    }
    Some(known)
}
/// What was in a set before that was looked at: it may be held already.
fn meet(set: usize, fd: usize, asked: u32, data: u64) {
    record(set, fd, asked, data);
    if asked & withheld(fd) != 0 {
        // Whoever waits finds out when it is due.
        announce(set, 0);
        tell(fd, false);
    }
}

/// Whether the kernel knows a registration, which it does not change.
fn is_in(set: usize, fd: usize, r: &Registration) -> bool {
    let (asked, data) = (
        r.events.load(Ordering::Relaxed),
        r.data.load(Ordering::Relaxed),
    );
    control(set, MOD, fd, asked, data) == 0
}

/// Remembers a registration.
pub(crate) fn record(set: usize, fd: usize, asked: u32, data: u64) {
    let (Some(r), Ok(set)) = (REGISTRATIONS.get(fd), u32::try_from(set)) else {
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
    r.events.store(asked, Ordering::Relaxed);
    r.data.store(data, Ordering::Relaxed);
    r.hidden.store(0, Ordering::SeqCst);
    r.note_shown(set as usize);
    r.set.store((set + 1) | several, Ordering::Relaxed);
}
