//! A group: members that share a rate, each with a guarantee, a ceiling and a weight.
//!
//! # Definitions
//! - *pool*: what the group has of one thing (say, bytes sent): a [`Curve`] with a line.
//! - *member*: draws on it. Its calls take tickets in a line of its own (`asked`), first
//!   come, first served; a ticket may go once `granted` has reached it. What `granted` is
//!   ahead of `asked` is the member's *credit*.
//! - *guarantee*: a curve of the member. What it gives is granted at once, whatever the
//!   others do, and counted in the pool (`guaranteed`).
//! - *spare*: what the pool gives beyond the guarantees that are used. A member that wants
//!   more than its guarantee *borrows*: it takes one place at a time in the pool's line.
//!   A place `p` is due when `p + guaranteed <= V(t) + burst`, so that guarantees go first.
//! - *ceiling*: a curve of the member; nothing is granted while that is used up.
//! - *grain*: a member's smallest place, in proportion to its weight. Places are whole
//!   grains, about as many for each member as make a round of [`ROUND_NS`] of all that ask.
//! - *served*: grains that a member has borrowed; of the pool, those of whoever has the most.
//!
//! ```text
//!  calls ──ticket──> asked ┄┄┄ granted <──┬── guarantee: V_g(t) + burst
//!                                         │        │ counted
//!                                         │        v
//!                                         └── place in the pool's line: V(t) + burst
//!                                              A A A B A A A B ...   (weights 3 and 1)
//! ```
//!
//! # Who borrows how much
//! Places are due in the order in which they were taken, and a member has one, so each gets
//! one turn in a round, as long as its weight says (deficit round robin, Shreedhar and
//! Varghese 1995). A member that comes late, because its thread got no CPU, has fallen
//! behind in grains served; it takes up to twice its part until it has caught up. What it
//! left more than [`MEMORY_NS`] ago is forgotten: the others have used it.
//!
//! # Invariants
//! 1. Let through over any window `w`, of all members: at most `rate * w + burst`, the
//!    bursts of the guarantees, and the credits.
//! 2. A member: at most `ceiling * w + burst` and its credit.
//! 3. A member's guarantee never waits for another member.
//! 4. Nobody waits for anybody: a member that was killed or stopped holds no turn, only a
//!    place that comes due by itself.
//! 5. Nothing is left over while somebody borrows: who does not ask has no place in the line.
//! 6. A credit is at most one place, two rounds' part of the member, and half a round of
//!    its guarantee; and what its calls asked for and did not use.
//!
//! # Limits
//! A place knows its position modulo 2^48: 47 minutes at 100 GB/s. One that nobody has looked
//! at for a minute is void. The guarantees together must not be above the rate.

use crate::{Curve, QUANTUM_NS, curve::ahead};
use core::cell::Cell;

/// A word that others may change at any time.
pub trait Word {
    /// Its value.
    fn get(&self) -> u64;
    /// Puts `next` in the place of `seen`; what there is instead if that is not there.
    ///
    /// # Errors
    /// The value there is.
    fn exchange(&self, seen: u64, next: u64) -> Result<(), u64>;
    /// Adds, modulo 2^64.
    fn add(&self, units: u64);
}

impl Word for Cell<u64> {
    fn get(&self) -> u64 {
        Self::get(self)
    }

    fn exchange(&self, seen: u64, next: u64) -> Result<(), u64> {
        let there = Self::get(self);
        if there != seen {
            return Err(there);
        }
        self.set(next);
        Ok(())
    }

    fn add(&self, units: u64) {
        self.set(Self::get(self).wrapping_add(units));
    }
}

/// A turn of each member that asks takes this long together.
pub const ROUND_NS: u64 = QUANTUM_NS;

/// How long a member that comes late may catch up.
pub const MEMORY_NS: u64 = 50_000_000;

/// What a guarantee may be ahead: a member that comes back has its guarantee at once.
pub const GUARANTEE_BURST_NS: u64 = 10_000_000;

/// A member has asked so lately that it takes a whole turn.
const BUSY_NS: u64 = ROUND_NS;

/// Bits of a place's word that say its units: 11 for the first digits, 5 for how many
/// follow. So a place means the same whatever becomes of the terms it was taken under.
const UNIT_BITS: u32 = 16;
const UNITS: u64 = (1 << UNIT_BITS) - 1;
const DIGITS: u32 = 11;

/// Grains in a place, at most.
const MOST_GRAINS: u64 = 1 << 16;

/// The last bits of a place's word for at most so many units, and at least 1.
const fn packed(units: u64) -> u64 {
    let length = u64::BITS - units.leading_zeros();
    let follow = length.saturating_sub(DIGITS) as u64;
    let follow = if follow > 31 { 31 } else { follow };
    let digits = units >> follow;
    let most = (1 << DIGITS) - 1;
    let digits = if digits > most { most } else { digits };
    let digits = if digits == 0 { 1 } else { digits };
    follow << DIGITS | digits
}

/// The units of a place.
const fn units_of(word: u64) -> u64 {
    (word & ((1 << DIGITS) - 1)) << ((word & UNITS) >> DIGITS)
}

/// Whoever waits looks more often. A place that nobody has looked at for so long is void.
const STALE_NS: u64 = 60_000_000_000;

/// Grains in a turn where all members ask.
const GRAINS: u64 = 4;

/// So many places, each due at once, are taken for one call before the caller looks at
/// the clock again.
const STEPS: usize = if cfg!(loom) { 2 } else { 64 };

/// The smallest place of a member of `weight`, in units: `weights` are those of all,
/// `divisor` the greatest that divides each of them, `rate_milli` the pool's rate.
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "bounded first")]
pub const fn grain(rate_milli: u64, weight: u64, weights: u64, divisor: u64) -> u64 {
    let weights = if weights == 0 { 1 } else { weights };
    let divisor = if divisor == 0 { 1 } else { divisor };
    let round = rate_milli as u128 * ROUND_NS as u128 / 1_000_000_000_000;
    let part = round * divisor as u128 / (weights as u128 * GRAINS as u128);
    // Whole units for the least of them: in proportion also at the lowest rates.
    let part = if part == 0 { 1 } else { part };
    let part = if part > 1 << 32 { 1 << 32 } else { part as u64 };
    let parts = weight / divisor;
    part * if parts == 0 { 1 } else { parts }
}

/// What is agreed with a member.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// The pool's rate.
    pub pool: Curve,
    /// Its guarantee, if any.
    pub guarantee: Option<Curve>,
    /// Its ceiling, if any.
    pub ceiling: Option<Curve>,
    /// Its smallest place, units; at least 1.
    pub grain: u64,
}

/// What all members of a pool change.
#[derive(Debug)]
pub struct Pool<'a, W> {
    /// Units in the line, ever.
    pub issued: &'a W,
    /// Units that guarantees gave, ever.
    pub guaranteed: &'a W,
    /// Grains of the member that has been served the most.
    pub served: &'a W,
}

/// What the threads of one member change.
#[derive(Debug)]
pub struct Member<'a, W> {
    /// Units that calls asked for, ever.
    pub asked: &'a W,
    /// Units that were granted, ever.
    pub granted: &'a W,
    /// Its place in the pool's line: position << 16 | units; 0 for none.
    pub place: &'a W,
    /// Grains in its places, ever.
    pub served: &'a W,
    /// Units on the curve of its guarantee.
    pub guaranteed: &'a W,
    /// Units on the curve of its ceiling.
    pub capped: &'a W,
    /// When it asked last for more than its credit, ns.
    pub looked: &'a W,
    /// Units that it has borrowed, ever.
    pub borrowed: &'a W,
}

/// A member at its pool.
#[derive(Debug)]
pub struct Seat<'a, W> {
    /// The pool.
    pub pool: Pool<'a, W>,
    /// The member.
    pub member: Member<'a, W>,
}

impl<W: Word> Seat<'_, W> {
    /// Takes a ticket in the member's line.
    pub fn ask(&self, units: u64) -> u64 {
        let mut seen = self.member.asked.get();
        loop {
            let ticket = seen.wrapping_add(units);
            match self.member.asked.exchange(seen, ticket) {
                Ok(()) => return ticket,
                Err(there) => seen = there,
            }
        }
    }

    /// Gives back what was asked for and not used.
    pub fn give_back(&self, units: u64) {
        self.member.asked.add(units.wrapping_neg());
    }

    /// Whether a ticket may go.
    #[must_use]
    pub fn is_ready(&self, ticket: u64) -> bool {
        ahead(ticket, self.member.granted.get()) <= 0
    }

    /// Gets the member what it may have at `now`. `None` if the ticket may go; otherwise
    /// the instant to ask again, which another member's guarantee may put off.
    ///
    /// `asking` counts the grains of all members that ask, this one among them, one each.
    pub fn serve(
        &self,
        terms: &Terms,
        ticket: u64,
        now: u64,
        asking: impl Fn() -> u64,
    ) -> Option<u64> {
        let m = &self.member;
        let last = m.looked.get();
        let since = now.saturating_sub(last);
        let busy = since < BUSY_NS;
        if since > STALE_NS {
            let word = m.place.get();
            let _ = m.place.exchange(word, 0);
        }
        // Whoever else has just written it has written as much.
        let _ = m.looked.exchange(last, now);
        for _ in 0..STEPS {
            let short = ahead(ticket, m.granted.get());
            if short <= 0 {
                return None;
            }
            let short = short.unsigned_abs();
            if let Some(ceiling) = &terms.ceiling
                && ceiling.level(m.capped.get(), now) <= 0
            {
                let next = ceiling.raised(m.capped.get(), now).wrapping_add(1);
                return Some(ceiling.due(next, now));
            }
            if self.take_guarantee(terms, busy, now) {
                continue;
            }
            let word = match m.place.get() {
                0 => self.take_place(terms, busy, now, asking()),
                word => word,
            };
            if let Some(due) = self.due(terms, word, now) {
                return Some(self.next(terms, word, due, (short, busy), now));
            }
            if m.place.exchange(word, 0).is_ok() {
                let units = units_of(word);
                self.charge_ceiling(terms, units, now);
                m.borrowed.add(units);
                m.granted.add(units);
            }
        }
        Some(now)
    }

    /// Gives up the member's place: rates have changed so much that it means nothing.
    pub fn leave_line(&self, grain: u64) {
        let word = self.member.place.get();
        if word != 0 && self.member.place.exchange(word, 0).is_ok() {
            let units = units_of(word);
            self.pool.issued.add(units.wrapping_neg());
            let grains = units / grain.max(1);
            self.member.served.add(grains.wrapping_neg());
        }
    }

    /// Raises an idle pool to its floor, as a change of its curve requires.
    pub fn raise_pool(pool: &Pool<'_, W>, curve: &Curve, now: u64) {
        let _ = take_position(pool, curve, 0, now);
    }

    fn take_guarantee(&self, terms: &Terms, busy: bool, now: u64) -> bool {
        let Some(curve) = &terms.guarantee else {
            return false;
        };
        let m = &self.member;
        let short = ahead(m.asked.get(), m.granted.get());
        let Ok(mut most) = u64::try_from(short) else {
            return false;
        };
        if busy {
            most = most.saturating_add(curve.units_in(ROUND_NS / 2));
        }
        let mut seen = m.guaranteed.get();
        let units = loop {
            let Ok(level) = u64::try_from(curve.level(seen, now)) else {
                return false;
            };
            let units = level.min(most);
            if units == 0 {
                return false;
            }
            let next = curve.raised(seen, now).wrapping_add(units);
            match m.guaranteed.exchange(seen, next) {
                Ok(()) => break units,
                Err(there) => seen = there,
            }
        };
        // The others first: a member that is killed here has only less.
        self.pool.guaranteed.add(units);
        self.charge_ceiling(terms, units, now);
        m.granted.add(units);
        true
    }

    fn charge_ceiling(&self, terms: &Terms, units: u64, now: u64) {
        if let Some(curve) = &terms.ceiling {
            charge(self.member.capped, curve, units, now);
        }
    }

    /// Takes a place at the end of the pool's line, if another thread does not: which
    /// there is then.
    fn take_place(&self, terms: &Terms, busy: bool, now: u64, asking: u64) -> u64 {
        let m = &self.member;
        let grain = terms.grain.max(1);
        let part = |curve: &Curve, of: u64| curve.units_in(ROUND_NS) / of.max(grain);
        let mut turn = part(&terms.pool, asking);
        if let Some(ceiling) = &terms.ceiling {
            turn = turn.min(part(ceiling, grain));
        }
        let turn = turn.clamp(1, MOST_GRAINS / 2);
        let short = ahead(m.asked.get(), m.granted.get()).max(1);
        let wanted = short.unsigned_abs().div_ceil(grain);
        let first = self.pool.served.get();
        let mut seen = m.served.get();
        let (next, grains) = loop {
            let forgotten = first.wrapping_sub(turn * (MEMORY_NS / ROUND_NS));
            let from = if ahead(forgotten, seen) > 0 {
                forgotten
            } else {
                seen
            };
            let behind = u64::try_from(ahead(first, from)).unwrap_or(0);
            let mut grains = turn + behind.saturating_sub(turn).min(turn);
            if !busy {
                grains = grains.min(wanted);
            }
            let next = from.wrapping_add(grains);
            match m.served.exchange(seen, next) {
                Ok(()) => break (next, grains),
                Err(there) => seen = there,
            }
        };
        let size = packed(grains.saturating_mul(grain));
        let units = units_of(size);
        let position = take_position(&self.pool, &terms.pool, units, now);
        let word = position << UNIT_BITS | size;
        if let Err(there) = m.place.exchange(0, word) {
            self.pool.issued.add(units.wrapping_neg());
            m.served.add(grains.wrapping_neg());
            return there;
        }
        let mut first = self.pool.served.get();
        while ahead(next, first) > 0 {
            match self.pool.served.exchange(first, next) {
                Ok(()) => break,
                Err(there) => first = there,
            }
        }
        word
    }

    /// When a place is due; `None` if it is.
    fn due(&self, terms: &Terms, word: u64, now: u64) -> Option<u64> {
        let front = terms.pool.floor(now).wrapping_add(terms.pool.burst);
        let open = front.wrapping_sub(self.pool.guaranteed.get());
        let missing = ahead(word & !UNITS, open << UNIT_BITS) >> UNIT_BITS;
        if missing <= 0 {
            return None;
        }
        let position = front.wrapping_add(missing.unsigned_abs());
        Some(terms.pool.due(position, now))
    }

    /// When to look again for a ticket that is `short` units ahead of what was granted:
    /// when the place at `due`, or the guarantee, may have brought it so far.
    fn next(
        &self,
        terms: &Terms,
        word: u64,
        due: u64,
        (short, busy): (u64, bool),
        now: u64,
    ) -> u64 {
        let units = units_of(word);
        let mut next = due;
        if let Some(more) = short.checked_sub(units).filter(|more| *more > 0) {
            let curve = Curve::empty(terms.pool.rate_milli, 0, 0, due);
            next = curve.due(more, due);
        }
        if let Some(curve) = &terms.guarantee {
            // Those that follow need not sleep each.
            let more = if busy {
                curve.units_in(ROUND_NS / 2)
            } else {
                0
            };
            // No more than it holds, or the rest would be lost.
            let level = short.saturating_add(more).min((curve.burst / 2).max(1));
            let ticket = curve.raised(self.member.guaranteed.get(), now);
            next = next.min(curve.due(ticket.wrapping_add(level), now));
        }
        next
    }
}

/// Takes `units` in the pool's line; what nobody has used beyond the burst is lost.
fn take_position<W: Word>(pool: &Pool<'_, W>, curve: &Curve, units: u64, now: u64) -> u64 {
    let mut seen = pool.issued.get();
    loop {
        let guaranteed = pool.guaranteed.get();
        let raised = curve.raised(seen.wrapping_add(guaranteed), now);
        let next = raised.wrapping_sub(guaranteed).wrapping_add(units);
        match pool.issued.exchange(seen, next) {
            Ok(()) => return next,
            Err(there) => seen = there,
        }
    }
}

/// Counts units on a curve, which may be in debt then.
fn charge<W: Word>(word: &W, curve: &Curve, units: u64, now: u64) {
    let mut seen = word.get();
    loop {
        let next = curve.raised(seen, now).wrapping_add(units);
        match word.exchange(seen, next) {
            Ok(()) => return,
            Err(there) => seen = there,
        }
    }
}
