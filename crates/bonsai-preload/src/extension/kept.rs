//! What a call that is held (`hold.rs`) draws on of its service's group.
//!
//! # Invariants
//! 1. The group is asked when the service's own limits have given, not before: what it
//!    grants is used at once, or as soon as the program comes for it.
//! 2. Who waits for readiness asks on for what is held, at the instants that the group
//!    says: so an event loop has its turns as a thread that waits has them, and what others
//!    leave earlier.
//! 3. Tickets stand in the service's line, first come, first served, with those of its
//!    threads that wait.

use crate::group::{self, Shares};
use crate::patience::Patience;
use crate::wait::{Wait, Waiter};
use bonsai_bucket::ROUND_NS;
use bonsai_ledger::Segment;

/// What a call may draw on to be held; one that draws on more waits.
const MOST: usize = 4;

/// Words of it.
pub(crate) const WORDS: usize = 4 + MOST;

/// What is held is looked at no sooner than after this: what has become available
/// meanwhile is not lost.
const AGAIN_NS: u64 = ROUND_NS / 32;

const ASKED: u64 = 1 << 16;

/// What is asked for, and the places in the service's lines.
#[derive(Clone, Copy)]
pub(crate) struct Kept {
    shares: Shares,
    /// Bytes and calls.
    units: (u64, u64),
    is_asked: bool,
    /// The terms that were last looked at.
    epoch: u32,
    tickets: [u64; MOST],
}

impl Kept {
    /// Of no group.
    pub(crate) const NONE: Self = Self {
        shares: Shares::NONE,
        units: (0, 0),
        is_asked: false,
        epoch: 0,
        tickets: [0; MOST],
    };

    /// Not asked for yet.
    pub(crate) const fn new(shares: Shares, units: (u64, u64)) -> Self {
        Self {
            shares,
            units,
            ..Self::NONE
        }
    }

    /// Whether a call may be held that draws on this.
    pub(crate) const fn can_keep(shares: Shares) -> bool {
        shares.len() <= MOST
    }

    /// Whether there is a group.
    pub(crate) const fn any(&self) -> bool {
        self.shares.any()
    }

    /// Whether it draws on the same.
    pub(crate) fn is_of(&self, shares: Shares) -> bool {
        self.shares == shares
    }

    /// Bytes and calls.
    pub(crate) const fn units(&self) -> (u64, u64) {
        self.units
    }

    /// Whether the group has been asked.
    pub(crate) const fn is_asked(&self) -> bool {
        self.is_asked
    }

    /// Asks, if that has not been done.
    pub(crate) fn ask(&mut self, segment: &Segment) {
        if !core::mem::replace(&mut self.is_asked, true) {
            self.tickets = group::ask(segment, self.shares, self.units);
        }
    }

    /// Asks, and gets what there is: `now` if that suffices, and otherwise when to look
    /// again.
    pub(crate) fn due(&mut self, segment: &Segment, now: u64) -> u64 {
        self.ask(segment);
        self.epoch = group::epoch();
        let due = group::serve(segment, self.shares, self.units, &self.tickets, now);
        due.map_or(now, |due| due.max(now + AGAIN_NS))
    }

    /// Waits for what was asked for.
    pub(crate) fn sit(&self, segment: &Segment, patience: Patience, waiter: Waiter<'_>) -> Wait {
        let what = (self.shares, self.units);
        group::sit(segment, what, &self.tickets, patience, waiter)
    }

    /// Gives back what was asked for.
    pub(crate) fn give_back(&self, segment: &Segment) {
        if self.is_asked {
            group::give_back(segment, self.shares, self.units.0, self.units.1);
        }
    }

    /// Notes a wait.
    pub(crate) fn note_wait(&self, segment: &Segment, ns: u64) {
        group::note_wait(segment, self.shares, self.units, ns);
    }

    /// Whether a hold of which the first word is this has to be looked at: when it was due,
    /// or the terms of the group have changed.
    pub(crate) fn is_to_be_looked_at(word: u64, until: u64, now: u64) -> bool {
        word & 0xff != 0 && (until <= now || word >> 32 != u64::from(group::epoch()))
    }

    /// As words; of none, the first is 0.
    pub(crate) fn to_words(self) -> [u64; WORDS] {
        let [a, b, c, d] = self.tickets;
        let (head, membership) = self.shares.to_words();
        let asked = if self.is_asked { ASKED } else { 0 };
        let head = head | asked | u64::from(self.epoch) << 32;
        let head = if self.any() { head } else { 0 };
        [head, membership, self.units.0, self.units.1, a, b, c, d]
    }

    /// From words.
    pub(crate) fn from_words(words: &[u64; WORDS]) -> Self {
        let [head, membership, bytes, calls, a, b, c, d] = *words;
        let epoch = (head >> 32) as u32;
        Self {
            shares: Shares::from_words(head, membership),
            units: (bytes, calls),
            is_asked: head & ASKED != 0,
            epoch,
            tickets: [a, b, c, d],
        }
    }
}
