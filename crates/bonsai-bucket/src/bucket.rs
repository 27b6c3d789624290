//! One bucket and a group of them as plain state machines: the reference that
//! the shared-memory ledger is checked against, and the simulator's bucket.

use crate::{Curve, Split, curve::ahead};

/// A place in line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The position up to which this ticket reaches.
    pub position: u64,
    /// Its units.
    pub units: u64,
}

/// A bucket owned by one caller.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    curve: Curve,
    issued: u64,
    leased: u64,
    lease_budget: u64,
}

impl Bucket {
    /// An empty bucket at `now`: `rate_milli` in thousandths of a unit per
    /// second, `burst` in units (at least 1), half of it for leases.
    #[must_use]
    pub const fn new(rate_milli: u64, burst: u64, now: u64) -> Self {
        let split = Split::of(burst);
        Self {
            curve: Curve::empty(rate_milli, split.curve, 0, now),
            issued: 0,
            leased: 0,
            lease_budget: split.leases,
        }
    }

    /// Takes the next place in line for `units`.
    pub const fn take(&mut self, units: u64, now: u64) -> Ticket {
        self.issued = self.curve.raised(self.issued, now).wrapping_add(units);
        Ticket {
            position: self.issued,
            units,
        }
    }

    /// When a ticket may go, ns, seen from `now`; changes with every
    /// [`Bucket::retune`].
    #[must_use]
    pub const fn due(&self, ticket: Ticket, now: u64) -> u64 {
        self.curve.due(ticket.position, now)
    }

    /// Gives back `units` that a ticket did not use. They go to whoever comes
    /// next; an idle bucket still holds at most its burst.
    pub const fn refund(&mut self, units: u64) {
        self.issued = self.issued.wrapping_sub(units);
    }

    /// Turns the last `units` of a ticket that is due into a lease. Returns how many are
    /// still to be had at `now` (see [`Curve::fresh`]) and within the budget; what of the
    /// former is beyond the latter is refunded.
    pub fn lease(&mut self, ticket: Ticket, units: u64, now: u64) -> u64 {
        let fresh = self.curve.fresh(ticket.position, units, now);
        let granted = fresh.min(self.lease_budget - self.leased);
        self.leased += granted;
        self.refund(fresh - granted);
        granted
    }

    /// Ends a lease of `granted` units of which `unused` were not used.
    pub const fn end_lease(&mut self, granted: u64, unused: u64) {
        self.leased -= granted;
        self.refund(unused);
    }

    /// Changes rate and burst at `now`. Leases end first (the ledger's threads
    /// see the change before their next call): `unused` units come back.
    pub const fn retune(&mut self, rate_milli: u64, burst: u64, unused: u64, now: u64) {
        self.refund(unused);
        self.leased = 0;
        self.issued = self.curve.raised(self.issued, now);
        let split = Split::of(burst);
        self.curve = self.curve.retune(rate_milli, split.curve, now);
        self.lease_budget = split.leases;
    }

    /// Units that could go at once; negative while tickets wait.
    #[must_use]
    pub const fn level(&self, now: u64) -> i64 {
        self.curve.level(self.issued, now)
    }

    /// The curve in force.
    #[must_use]
    pub const fn curve(&self) -> &Curve {
        &self.curve
    }

    /// Units waiting in line at `now` beyond what the curve allows.
    #[must_use]
    pub const fn backlog(&self, now: u64) -> u64 {
        let level = ahead(
            self.curve.floor(now).wrapping_add(self.curve.burst),
            self.issued,
        );
        if level < 0 { level.unsigned_abs() } else { 0 }
    }
}

/// Buckets that a call draws on together: it waits for the latest of them. The
/// members' order is the order in which tickets are taken.
#[derive(Debug)]
pub struct Group<'a>(pub &'a mut [Bucket]);

impl Group<'_> {
    /// Takes `units` from every member and returns the instant at which the call
    /// may go: when the last of its tickets is due.
    pub fn take(&mut self, units: u64, now: u64) -> u64 {
        let mut due = now;
        for member in self.0.iter_mut() {
            let ticket = member.take(units, now);
            due = due.max(member.due(ticket, now));
        }
        due
    }

    /// Gives back to every member.
    pub fn refund(&mut self, units: u64) {
        for member in self.0.iter_mut() {
            member.refund(units);
        }
    }
}
