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
//! - *ceiling*: a curve of the member; no more is granted than that has.
//! - *lease*: part of the credit that a thread holds, so that not every call asks.
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
//! # When one leaves
//! Nobody says so: who leaves asks no more. Its rate is the others' from the end of its last
//! place on, but they sleep until theirs end, up to a round. So the one behind looks
//! [`LOOK_NS`] after that instant: whoever goes on has taken its next place by then. If none
//! is there, it *borrows alone*: it gets what is due of its place little by little, in steps
//! that begin with [`LOOK_NS`] and grow to whole turns with the time since. Whoever is alone
//! for long leaves the rest of its place with each part, so that it has none when it goes.
//!
//! # Invariants
//! 1. Let through over any window `w`, of all members: at most `rate * w + burst`, the
//!    bursts of the guarantees, and the credits.
//! 2. A member: at most `ceiling * w + burst` and its credit, which is no more than two rounds
//!    of the ceiling (or two grains, or its burst, whichever of these is less), or half a
//!    round of its guarantee, and what invariant 6 says of leases and calls.
//! 3. A member's guarantee never waits for another member.
//! 4. Nobody waits for anybody: a member that was killed or stopped holds no turn, only a
//!    place that comes due by itself.
//! 5. Nothing is left over while somebody borrows: who does not ask has no place in the line.
//! 6. A credit is at most one place, two rounds' part of the member, and half a round of
//!    its guarantee; and what its calls asked for and did not use. Its threads' leases are of
//!    it, and come to no more than half a round together ([`Terms::leases`]), as long as no
//!    tag forgets one that is out.
//! 7. Whoever is alone has got, at any time `t` since the others' last place ended, the rate
//!    for `t` but for a 16th of `t`, a step of [`STEP_NS`] and a call, and its thread's delay.
//!
//! # Limits
//! A place knows its position modulo 2^48: 47 minutes at 100 GB/s. One that nobody has looked
//! at for a minute is void. The guarantees together must not be above the rate.

mod lease;
mod word;

pub use word::Word;

use crate::{Curve, QUANTUM_NS, curve::ahead};
use word::{UNIT_BITS, UNITS, packed, packed_up, units_of, update};

/// A turn of each member that asks takes this long together.
pub const ROUND_NS: u64 = QUANTUM_NS;

/// How long a member that comes late may catch up.
pub const MEMORY_NS: u64 = 50_000_000;

/// What a guarantee may be ahead: a member that comes back has its guarantee at once.
pub const GUARANTEE_BURST_NS: u64 = 10_000_000;

/// A member has asked so lately that it takes a whole turn.
const BUSY_NS: u64 = ROUND_NS;

/// It is looked so long after the others' last places whether they have gone: whoever wants
/// more has taken its next place by then.
const LOOK_NS: u64 = ROUND_NS / 64;

/// Who has borrowed alone for so long takes no part of a place beyond what is due of it: the
/// others are not only late.
const GONE_NS: u64 = ROUND_NS / 4;

/// Who borrows alone gets what is due in steps that grow to this,
const STEP_NS: u64 = ROUND_NS / 16;

/// and on to a whole turn, as this part of the time since the others left.
const SMALLER: u64 = 16;

/// Grains in a place, at most.
const MOST_GRAINS: u64 = 1 << 21;

/// Whoever waits looks more often. A place that nobody has looked at for so long is void.
const STALE_NS: u64 = 60_000_000_000;

/// Grains in a turn where all members ask.
const GRAINS: u64 = 64;

/// So many places, each due at once, are taken for one call before the caller looks at
/// the clock again.
const STEPS: usize = if cfg!(loom) { 2 } else { 64 };

/// The weights of all members.
#[derive(Clone, Copy, Debug)]
pub struct Weights {
    /// Their sum; at least 1.
    sum: u64,
    /// The greatest number that divides each of them.
    divisor: u64,
}

impl Weights {
    /// Of all members, one each.
    pub fn of(all: impl IntoIterator<Item = u64>) -> Self {
        let (sum, divisor) = all.into_iter().fold((0, 0), |(sum, divisor), weight| {
            (weight.saturating_add(sum), gcd(divisor, weight))
        });
        Self {
            sum: sum.max(1),
            divisor: divisor.max(1),
        }
    }
}

const fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The smallest place of a member of `weight`, in units, at a pool's rate.
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "bounded first")]
pub const fn grain(rate_milli: u64, weight: u64, weights: Weights) -> u64 {
    let Weights {
        sum: weights,
        divisor,
    } = weights;
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
    /// Since when it is the only one that borrows, ns; 0 if it is not.
    pub alone: &'a W,
    /// Units that its threads hold as leases, and under which tag.
    pub leased: &'a W,
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
        let took = update(self.member.asked, |seen| {
            let ticket = seen.wrapping_add(units);
            Some((ticket, ticket))
        });
        took.unwrap_or(0)
    }

    /// Gives back what was asked for and not used.
    pub fn give_back(&self, units: u64) {
        self.member.asked.add(units.wrapping_neg());
    }

    /// A ticket that may go when this one may: if units were given back since, which others
    /// behind it had asked for, those that stand in the line now are enough.
    #[must_use]
    pub fn nearest(&self, ticket: u64) -> u64 {
        let asked = self.member.asked.get();
        if ahead(ticket, asked) > 0 {
            asked
        } else {
            ticket
        }
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
                return Some(holds(ceiling, m.capped, short, busy, now));
            }
            if self.take_guarantee(terms, busy, now) {
                continue;
            }
            let word = match m.place.get() {
                0 => self.take_place(terms, busy, now, asking()),
                word => word,
            };
            if !self.claim(terms, word, now) {
                return Some(self.next(terms, word, (short, busy), now));
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
        let most = most.min(available(m.guaranteed, curve, now));
        let allowed = self.charge_ceiling(terms, most, now);
        let units = take(m.guaranteed, curve, allowed, now);
        self.uncharge_ceiling(terms, allowed - units);
        if units == 0 {
            return false;
        }
        // The others first: a member that is killed here has only less.
        self.pool.guaranteed.add(units);
        m.granted.add(units);
        true
    }

    /// Counts up to `units` under the ceiling, as many as that allows.
    fn charge_ceiling(&self, terms: &Terms, units: u64, now: u64) -> u64 {
        match &terms.ceiling {
            Some(curve) => take(self.member.capped, curve, units, now),
            None => units,
        }
    }

    /// Counts units under the ceiling, which may be in debt then.
    fn owe_ceiling(&self, terms: &Terms, units: u64, now: u64) {
        if let (1.., Some(curve)) = (units, &terms.ceiling) {
            update(self.member.capped, |seen| {
                Some((curve.raised(seen, now).wrapping_add(units), ()))
            });
        }
    }

    fn uncharge_ceiling(&self, terms: &Terms, units: u64) {
        if units > 0 && terms.ceiling.is_some() {
            self.member.capped.add(units.wrapping_neg());
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
        let forgotten = first.wrapping_sub(turn * (MEMORY_NS / ROUND_NS));
        let counted = update(m.served, |seen| {
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
            Some((next, (next, grains)))
        });
        let (next, grains) = counted.unwrap_or((0, 0));
        let size = packed(grains.saturating_mul(grain));
        let units = units_of(size);
        let position = take_position(&self.pool, &terms.pool, units, now);
        let word = position << UNIT_BITS | size;
        if let Err(there) = m.place.exchange(0, word) {
            self.pool.issued.add(units.wrapping_neg());
            m.served.add(grains.wrapping_neg());
            return there;
        }
        update(self.pool.served, |first| {
            (ahead(next, first) > 0).then_some((next, ()))
        });
        word
    }

    /// Units until the whole of a place is due; 0 if it is.
    fn missing(&self, terms: &Terms, word: u64, now: u64) -> u64 {
        let front = terms.pool.floor(now).wrapping_add(terms.pool.burst);
        let open = front.wrapping_sub(self.pool.guaranteed.get());
        let missing = ahead(word & !UNITS, open << UNIT_BITS) >> UNIT_BITS;
        u64::try_from(missing).unwrap_or(0)
    }

    /// Whether nobody has a place behind this one.
    fn is_last(&self, word: u64) -> bool {
        ahead(self.pool.issued.get() << UNIT_BITS, word & !UNITS) <= 0
    }

    /// Grants a place that is due; of the last one in the line also a part, and then the
    /// rest, in whole grains, leaves the line: it is not there for whoever asks no more.
    /// Whether anything was granted.
    fn claim(&self, terms: &Terms, word: u64, now: u64) -> bool {
        let (m, units) = (&self.member, units_of(word));
        let missing = self.missing(terms, word, now);
        let due = units.saturating_sub(missing);
        if missing > 0 && (due == 0 || !self.is_last(word)) {
            return false;
        }
        let allowed = self.charge_ceiling(terms, due, now);
        let grain = terms.grain.max(1);
        let grains = if missing > 0 && self.alone_for(now) >= GONE_NS {
            (units - allowed) / grain
        } else {
            0
        };
        let stays = units - allowed - grains * grain;
        let mut rest = packed_up(stays);
        if 0 < allowed && allowed < due && missing == 0 {
            // Its last step may be ahead of the ceiling, which may be less than a step.
            rest = packed(stays);
        }
        let got = (units - grains * grain).saturating_sub(units_of(rest));
        self.owe_ceiling(terms, got.saturating_sub(allowed), now);
        self.uncharge_ceiling(terms, allowed.saturating_sub(got));
        if got == 0 {
            return false;
        }
        let end = (word & !UNITS).wrapping_sub((grains * grain) << UNIT_BITS);
        if m.place
            .exchange(word, if rest == 0 { 0 } else { end | rest })
            .is_err()
        {
            // Another thread was faster.
            self.uncharge_ceiling(terms, got);
            return true;
        }
        if grains > 0 {
            self.pool.issued.add((grains * grain).wrapping_neg());
            m.served.add(grains.wrapping_neg());
        }
        m.borrowed.add(got);
        m.granted.add(got);
        true
    }

    /// When to look again for a ticket that is `short` units ahead of what was granted:
    /// when the place, or the guarantee, may have brought it so far.
    fn next(&self, terms: &Terms, word: u64, (short, busy): (u64, bool), now: u64) -> u64 {
        let units = units_of(word);
        let missing = self.missing(terms, word, now);
        let mut next = if short > units {
            instant(&terms.pool, missing.saturating_add(short - units), now)
        } else {
            let due = instant(&terms.pool, missing, now);
            due.min(self.look(terms, word, (short, missing), now))
        };
        if let Some(curve) = &terms.guarantee {
            next = next.min(holds(curve, self.member.guaranteed, short, busy, now));
        }
        next
    }

    /// When to look, before all of a place is due, whether the others have gone: then what
    /// is due of it is granted little by little, and at first in small steps.
    fn look(&self, terms: &Terms, word: u64, (short, missing): (u64, u64), now: u64) -> u64 {
        let (pool, units) = (&terms.pool, units_of(word));
        let before = missing.saturating_sub(units);
        // Part of a place is whole steps of it.
        let needs = short.saturating_add((units >> 9) + 1).min(units);
        let enough = instant(pool, missing - (units - needs).min(missing), now);
        if before > 0 {
            self.alone_since(0);
            if units <= pool.units_in(4 * LOOK_NS) {
                return u64::MAX;
            }
            // Whoever is there still has taken its next place by then.
            return enough.max(instant(pool, before, now).saturating_add(LOOK_NS));
        }
        if !self.is_last(word) {
            self.alone_since(0);
            return u64::MAX;
        }
        let lasts = self.alone_for(now);
        if lasts == 0 {
            self.alone_since(now);
        }
        let step = lasts.clamp(LOOK_NS, STEP_NS).max(lasts / SMALLER);
        enough.max(now.saturating_add(step))
    }

    fn alone_since(&self, since: u64) {
        let seen = self.member.alone.get();
        if seen != since {
            let _ = self.member.alone.exchange(seen, since);
        }
    }

    /// For how long it has been the only one that borrows, as far as it has looked.
    fn alone_for(&self, now: u64) -> u64 {
        match self.member.alone.get() {
            0 => 0,
            since => now.saturating_sub(since),
        }
    }
}

/// When `missing` units more will be available.
const fn instant(curve: &Curve, missing: u64, now: u64) -> u64 {
    let front = curve.floor(now).wrapping_add(curve.burst);
    curve.due(front.wrapping_add(missing), now)
}

/// When a curve of a member will give `short` units, and, to one that comes all the time,
/// more, so that those which follow need not sleep each.
fn holds<W: Word>(curve: &Curve, word: &W, short: u64, busy: bool, now: u64) -> u64 {
    let more = if busy {
        curve.units_in(ROUND_NS / 2)
    } else {
        0
    };
    // No more than it holds, or the rest would be lost.
    let level = short.saturating_add(more).min((curve.burst / 2).max(1));
    let ticket = curve.raised(word.get(), now);
    curve.due(ticket.wrapping_add(level), now)
}

/// What a curve gives at once.
fn available<W: Word>(word: &W, curve: &Curve, now: u64) -> u64 {
    u64::try_from(curve.level(word.get(), now)).unwrap_or(0)
}

/// Counts up to `units` on a curve, as many as it gives at once.
fn take<W: Word>(word: &W, curve: &Curve, units: u64, now: u64) -> u64 {
    let took = update(word, |seen| {
        let level = u64::try_from(curve.level(seen, now)).ok()?;
        let units = units.min(level);
        (units > 0).then(|| (curve.raised(seen, now).wrapping_add(units), units))
    });
    took.unwrap_or(0)
}

/// Takes `units` in the pool's line; what nobody has used beyond the burst is lost.
fn take_position<W: Word>(pool: &Pool<'_, W>, curve: &Curve, units: u64, now: u64) -> u64 {
    let took = update(pool.issued, |seen| {
        let guaranteed = pool.guaranteed.get();
        let raised = curve.raised(seen.wrapping_add(guaranteed), now);
        let next = raised.wrapping_sub(guaranteed).wrapping_add(units);
        Some((next, next))
    });
    took.unwrap_or(0)
}
