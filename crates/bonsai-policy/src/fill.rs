//! Water-filling at one node: who gets how much of an amount.
//!
//! # Definitions
//! - *sharer*: has a *floor*, which it gets first; a *most*, at least its floor, above which it
//!   gets nothing; and a weight.
//! - *level*: what each sharer that wants more gets beyond its floor, per unit of weight.
//!
//! ```text
//!              ┌─┐        most of C
//!   level ~~~~~│~│~~~┌─┐~~~~~
//!              │ │   │ │      B is full, A and C have level * weight beyond
//!    ┌─┐  ┌─┐  │ │            their floors
//!    │A│  │B│  │C│ <- floors
//! ```
//!
//! # Invariants
//! 1. What is given is the amount, or the sum of all mosts where that is less; exactly.
//! 2. Nobody gets more than its most, and nobody less than its floor.
//! 3. Whoever gets less than its most gets its floor and `level * weight`, to one unit, and
//!    nobody gets more than that.
//! 4. A unit that rounding leaves goes to the first whose running sum of exact parts, in the
//!    order of sharers, passes a whole unit: with the same sharers in the same order always to
//!    the same.
//!
//! # Limits
//! Amounts and mosts are at most [`UNBOUNDED`], so that no product here is beyond 128 bits.
//! Floors that come to more than the amount (which [`crate::Config::check`] refuses) are cut
//! in proportion.

use bonsai_units::Rate;

/// More than anybody can use: the highest rate there is.
pub(crate) const UNBOUNDED: u64 = Rate::MAX_MILLI;

/// What one has and wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sharer {
    pub(crate) floor: u64,
    pub(crate) most: u64,
    pub(crate) weight: u32,
}

impl Sharer {
    fn room(&self) -> u64 {
        self.most.saturating_sub(self.floor)
    }
}

/// `amount / weight` for each unit of weight of those who want more than they get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Level {
    pub(crate) amount: u64,
    pub(crate) weight: u64,
}

/// A sharer that wants more than it has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Open {
    /// How much more.
    room: u64,
    weight: u32,
    /// Which it is.
    at: u32,
}

/// Gives `amount` to `sharers`; `out[i]` is what sharer `i` gets. The level is `None` where
/// everybody gets its most. `open` is scratch.
pub(crate) fn fill(
    amount: u64,
    sharers: &[Sharer],
    open: &mut Vec<Open>,
    out: &mut [u64],
) -> Option<Level> {
    let (mut floors, mut mosts) = (0_u128, 0_u128);
    for (out, sharer) in out.iter_mut().zip(sharers) {
        floors += u128::from(sharer.floor);
        mosts += u128::from(sharer.most);
        *out = sharer.most;
    }
    if mosts <= u128::from(amount) {
        return None;
    }
    if floors > u128::from(amount) {
        cut(amount, floors, sharers, out);
        return Some(Level {
            amount: 0,
            weight: 1,
        });
    }
    open.clear();
    open.extend((0_u32..).zip(sharers).map(|(at, sharer)| Open {
        room: sharer.room(),
        weight: sharer.weight,
        at,
    }));
    retain(open, |one| one.room > 0);
    Some(pour(amount - narrow(floors), open, out))
}

/// Gives what is `left` beyond the floors to those in `open`, who have more room together.
/// Whoever is full below the level gives what is left of its part to the others, so that the
/// level rises; after few rounds nobody is. `out` says that all of them are full.
fn pour(mut left: u64, open: &mut Vec<Open>, out: &mut [u64]) -> Level {
    let mut weight: u64 = open.iter().map(|one| u64::from(one.weight)).sum();
    loop {
        let before = open.len();
        let (level, of) = (u128::from(left), u128::from(weight));
        retain(open, |one| {
            let full = u128::from(one.room) * of <= level * u128::from(one.weight);
            left -= if full { one.room } else { 0 };
            weight -= if full { u64::from(one.weight) } else { 0 };
            !full
        });
        if open.len() == before {
            break;
        }
    }
    // Differences of running sums: each is within a unit of its exact part, which its room is
    // above, and together they are what is left.
    let weight = weight.max(1);
    let (mut sum, mut given) = (0_u64, 0);
    for one in &*open {
        sum += u64::from(one.weight);
        let upto = part(left, sum, weight);
        out[one.at as usize] -= one.room - (upto - given);
        given = upto;
    }
    Level {
        amount: left,
        weight,
    }
}

/// `Vec::retain` without a branch on what nobody can predict.
fn retain(open: &mut Vec<Open>, mut keeps: impl FnMut(&Open) -> bool) {
    let mut kept = 0;
    for at in 0..open.len() {
        let one = open[at];
        open[kept] = one;
        kept += usize::from(keeps(&one));
    }
    open.truncate(kept);
}

/// `amount * of / whole`, rounded down.
fn part(amount: u64, of: u64, whole: u64) -> u64 {
    match amount.checked_mul(of) {
        Some(product) => product / whole,
        None => narrow(u128::from(amount) * u128::from(of) / u128::from(whole)),
    }
}

/// Floors that come to more than there is, in proportion.
fn cut(amount: u64, floors: u128, sharers: &[Sharer], out: &mut [u64]) {
    let (mut sum, mut given) = (0_u128, 0);
    for (out, sharer) in out.iter_mut().zip(sharers) {
        sum += u128::from(sharer.floor);
        let upto = narrow(u128::from(amount) * sum / floors);
        *out = upto - given;
        given = upto;
    }
}

/// A value that is known to fit.
pub(crate) fn narrow(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}
