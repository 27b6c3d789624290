//! The service curve and its arithmetic.

/// Fractions of a unit that the remainder is kept in: a rate in thousandths of
/// a unit per second times a time in nanoseconds counts in units of 1e-12.
pub const FRACTIONS_PER_UNIT: u64 = 1_000_000_000_000;

/// How a burst is divided between the curve and the leases drawn on it, so that
/// both together never exceed what was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// Units that the curve itself may be ahead.
    pub curve: u64,
    /// Units that threads may hold as leases, all together.
    pub leases: u64,
}

impl Split {
    /// Divides a burst of `burst` units: half may be leased. A burst of one
    /// unit stays whole, and nothing can be leased from it.
    #[must_use]
    pub const fn of(burst: u64) -> Self {
        let leases = burst / 2;
        Self {
            curve: burst - leases,
            leases,
        }
    }
}

/// `V(t)`: what has become available, and how far ahead of it tickets may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Curve {
    /// Thousandths of a unit per second. Zero lets nothing more through.
    pub rate_milli: u64,
    /// Units that may be ahead of `V`.
    pub burst: u64,
    /// `V` at the anchor, whole units.
    pub anchor_units: u64,
    /// `V` at the anchor, remainder in 1e-12 units, below [`FRACTIONS_PER_UNIT`].
    pub anchor_fraction: u64,
    /// The anchor's instant, ns.
    pub anchor_ns: u64,
}

impl Curve {
    /// A curve through an empty bucket: the next unit after `issued` has to be
    /// waited for.
    #[must_use]
    pub const fn empty(rate_milli: u64, burst: u64, issued: u64, now: u64) -> Self {
        Self {
            rate_milli,
            burst,
            anchor_units: issued.wrapping_sub(burst),
            anchor_fraction: 0,
            anchor_ns: now,
        }
    }

    /// `V(now)` in whole units (modulo 2^64) and its remainder in 1e-12 units.
    /// An instant before the anchor counts as the anchor.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "positions are modulo 2^64")]
    pub const fn value(&self, now: u64) -> (u64, u64) {
        let grown = self.grown(now);
        if grown < u64::MAX as u128 {
            // The common case: a 64-bit division costs a third of a 128-bit one.
            let grown = grown as u64;
            return (
                self.anchor_units.wrapping_add(grown / FRACTIONS_PER_UNIT),
                grown % FRACTIONS_PER_UNIT,
            );
        }
        let units = (grown / FRACTIONS_PER_UNIT as u128) as u64;
        let rest = (grown % FRACTIONS_PER_UNIT as u128) as u64;
        (self.anchor_units.wrapping_add(units), rest)
    }

    const fn grown(&self, now: u64) -> u128 {
        self.rate_milli as u128 * now.saturating_sub(self.anchor_ns) as u128
            + self.anchor_fraction as u128
    }

    /// The lowest position that `issued` may have before a ticket is taken at
    /// `now`: what an idle bucket has not used beyond its burst is lost.
    #[must_use]
    #[inline(never)]
    pub const fn floor(&self, now: u64) -> u64 {
        self.value(now).0
    }

    /// `issued`, raised to the floor where it lies below.
    #[must_use]
    pub const fn raised(&self, issued: u64, now: u64) -> u64 {
        let floor = self.floor(now);
        if ahead(floor, issued) > 0 {
            floor
        } else {
            issued
        }
    }

    /// Units that could go at once at `now` if `issued` have been taken;
    /// negative where tickets are waiting.
    #[must_use]
    pub const fn level(&self, issued: u64, now: u64) -> i64 {
        let issued = self.raised(issued, now);
        ahead(self.floor(now).wrapping_add(self.burst), issued)
    }

    /// The first instant from `now` on at which a ticket may go, in ns;
    /// `u64::MAX` for never. Computed from `V(now)`, so that an anchor of years
    /// ago does no harm.
    #[must_use]
    #[expect(
        clippy::cast_sign_loss,
        clippy::cast_possible_truncation,
        reason = "checked to be positive and in range"
    )]
    pub const fn due(&self, ticket: u64, now: u64) -> u64 {
        let (units, fraction) = self.value(now);
        let missing = ahead(ticket, units.wrapping_add(self.burst));
        if missing <= 0 {
            return now;
        }
        if self.rate_milli == 0 {
            return u64::MAX;
        }
        let needed = missing as u128 * FRACTIONS_PER_UNIT as u128 - fraction as u128;
        let wait = needed.div_ceil(self.rate_milli as u128);
        if wait > u64::MAX as u128 {
            return u64::MAX;
        }
        let from = if now > self.anchor_ns {
            now
        } else {
            self.anchor_ns
        };
        from.saturating_add(wait as u64)
    }

    /// Units by which a ticket is not due yet at `now`.
    #[must_use]
    pub const fn missing(&self, ticket: u64, now: u64) -> u64 {
        let missing = ahead(ticket, self.floor(now).wrapping_add(self.burst));
        if missing > 0 {
            missing.unsigned_abs()
        } else {
            0
        }
    }

    /// Units among the last `units` of a ticket that are still to be had at `now`: a bucket loses what goes unused for as
    /// long as its burst takes, and so does a ticket that was due long ago. Else the leases of all tickets that became
    /// due while the machine stood still could be used one after the other.
    #[must_use]
    pub const fn fresh(&self, ticket: u64, units: u64, now: u64) -> u64 {
        let above = ahead(ticket, self.floor(now));
        if above <= 0 {
            return 0;
        }
        let above = above.unsigned_abs();
        if above < units { above } else { units }
    }

    /// The curve after a change at `now`. `issued` must already have been raised
    /// to this curve's [`Curve::floor`] at `now`, so that an idle bucket is not
    /// enriched; tickets taken since then do no harm.
    ///
    /// The level after the change is the one before, or the new burst if that is
    /// smaller. A bucket in debt keeps its debt.
    #[must_use]
    pub const fn retune(&self, rate_milli: u64, burst: u64, now: u64) -> Self {
        let (units, fraction) = self.value(now);
        Self {
            rate_milli,
            burst,
            // `V + burst` stays where it is: a larger burst must not hand out the
            // difference at once, and a smaller one must not add it to the debt.
            anchor_units: units.wrapping_add(self.burst).wrapping_sub(burst),
            anchor_fraction: fraction,
            anchor_ns: if now > self.anchor_ns {
                now
            } else {
                self.anchor_ns
            },
        }
    }

    /// Units that become available in `ns`, rounded down.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "saturated first")]
    pub const fn units_in(&self, ns: u64) -> u64 {
        let units = self.rate_milli as u128 * ns as u128 / FRACTIONS_PER_UNIT as u128;
        if units > u64::MAX as u128 {
            u64::MAX
        } else {
            units as u64
        }
    }
}

/// How far position `a` is ahead of `b`, modulo 2^64.
#[expect(
    clippy::cast_possible_wrap,
    reason = "the difference is meant modulo 2^64"
)]
pub(crate) const fn ahead(a: u64, b: u64) -> i64 {
    a.wrapping_sub(b) as i64
}
