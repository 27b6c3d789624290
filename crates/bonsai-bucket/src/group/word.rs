//! The words of a group: what they may be, and how a place stands in one.

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

/// Changes a word as `next` says, until nobody is in between; `None` leaves it as it is.
pub(super) fn update<W: Word, T>(
    word: &W,
    mut next: impl FnMut(u64) -> Option<(u64, T)>,
) -> Option<T> {
    let mut seen = word.get();
    loop {
        let (to, result) = next(seen)?;
        match word.exchange(seen, to) {
            Ok(()) => return Some(result),
            Err(there) => seen = there,
        }
    }
}

/// Bits of a place's word that say its units: 11 for the first digits, 5 for how many
/// follow. So a place means the same whatever becomes of the terms it was taken under.
pub(super) const UNIT_BITS: u32 = 16;
pub(super) const UNITS: u64 = (1 << UNIT_BITS) - 1;
const DIGITS: u32 = 11;
const MOST_DIGITS: u64 = (1 << DIGITS) - 1;

/// Digits of a number that do not fit.
const fn dropped(units: u64) -> u32 {
    let length = u64::BITS - units.leading_zeros();
    let follow = length.saturating_sub(DIGITS);
    if follow > 31 { 31 } else { follow }
}

/// The last bits of a place's word for at most so many units, and at least 1.
pub(super) const fn packed(units: u64) -> u64 {
    let follow = dropped(units);
    let digits = units >> follow;
    let digits = if digits > MOST_DIGITS {
        MOST_DIGITS
    } else {
        digits
    };
    let digits = if digits == 0 { 1 } else { digits };
    (follow as u64) << DIGITS | digits
}

/// The same for at least so many, which are no more than a place has; 0 for none.
pub(super) const fn packed_up(units: u64) -> u64 {
    let follow = dropped(units);
    let digits = units.div_ceil(1 << follow);
    if digits > MOST_DIGITS {
        return ((follow as u64 + 1) << DIGITS) | (digits / 2);
    }
    (follow as u64) << DIGITS | digits
}

/// The units of a place.
pub(super) const fn units_of(word: u64) -> u64 {
    (word & MOST_DIGITS) << ((word & UNITS) >> DIGITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_rounded_as_they_say() {
        for units in (0..5_000).chain((12..42).flat_map(|n| (1 << n) - 3..(1 << n) + 3)) {
            let (down, up) = (units_of(packed(units)), units_of(packed_up(units)));
            assert!(
                down <= units.max(1) && down + units / 1024 >= units,
                "{units}: {down}"
            );
            assert!(units <= up && up <= units + units / 1024, "{units}: {up}");
            assert_eq!(packed_up(down), packed(units), "{units}");
        }
        assert_eq!(packed_up(0), 0);
    }
}
