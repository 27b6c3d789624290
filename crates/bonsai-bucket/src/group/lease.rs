//! Leases of a member's threads: part of its credit, so that not every call asks.

use super::{ROUND_NS, Seat, Terms, Word, update};
use crate::curve::ahead;

const OUT: u64 = 0xffff_ffff;

/// The units out under a tag: leases of other ones are over.
const fn out(word: u64, tag: u32) -> u64 {
    if word >> 32 == tag as u64 {
        word & OUT
    } else {
        0
    }
}

impl Terms {
    /// Units that a member's threads may hold as leases together: half a round's.
    #[must_use]
    pub const fn leases(&self) -> u64 {
        let most = self.pool.units_in(ROUND_NS / 2);
        let most = match &self.ceiling {
            Some(ceiling) if ceiling.units_in(ROUND_NS / 2) < most => {
                ceiling.units_in(ROUND_NS / 2)
            }
            _ => most,
        };
        if most > OUT { OUT } else { most }
    }
}

impl<W: Word> Seat<'_, W> {
    /// Takes `short` units of the credit, and a lease of at most `wanted` beyond them,
    /// which it returns; `None`, with nothing taken, if there is less than `short`.
    ///
    /// Leases count under a `tag`: a later one forgets those of an earlier one.
    pub fn lease(&self, terms: &Terms, short: u64, wanted: u64, tag: u32) -> Option<u64> {
        let m = &self.member;
        let free = |asked| {
            let credit = u64::try_from(ahead(m.granted.get(), asked)).ok()?;
            credit.checked_sub(short)
        };
        let wanted = wanted.min(terms.leases()).min(free(m.asked.get())?);
        let booked = update(m.leased, |seen| {
            let out = out(seen, tag);
            let more = wanted.min(terms.leases().saturating_sub(out));
            Some((u64::from(tag) << 32 | (out + more), more))
        });
        let booked = booked.unwrap_or(0);
        let got = update(m.asked, |asked| {
            let more = booked.min(free(asked)?);
            Some((asked.wrapping_add(short + more), more))
        });
        self.end_lease(booked - got.unwrap_or(0), tag);
        got
    }

    /// A lease of so many units is used up, or given back.
    pub fn end_lease(&self, units: u64, tag: u32) {
        if units == 0 {
            return;
        }
        update(self.member.leased, |seen| {
            let left = out(seen, tag).checked_sub(units)?;
            Some((u64::from(tag) << 32 | left, ()))
        });
    }
}
