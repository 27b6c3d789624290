//! Water-filling at one node: who gets how much of an amount.
//!
//! # Definitions
//! - *sharer*: has a *floor*, which it gets first; a *most*, above which it gets nothing; and
//!   a weight.
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

/// Gives `amount` to `sharers`; `out[i]` is what sharer `i` gets. The level is `None` where
/// everybody gets its most. `open` is scratch.
pub(crate) fn fill(
    amount: u64,
    sharers: &[Sharer],
    open: &mut Vec<u32>,
    out: &mut [u64],
) -> Option<Level> {
    let floors: u128 = sharers.iter().map(|s| u128::from(s.floor)).sum();
    let mosts: u128 = sharers.iter().map(|s| u128::from(s.most)).sum();
    if mosts <= u128::from(amount) {
        for (out, sharer) in out.iter_mut().zip(sharers) {
            *out = sharer.most;
        }
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
    for (at, (out, sharer)) in (0_u32..).zip(out.iter_mut().zip(sharers)) {
        *out = sharer.floor;
        if sharer.room() > 0 {
            open.push(at);
        }
    }
    Some(pour(amount - narrow(floors), sharers, open, out))
}

/// Gives what is `left` beyond the floors to those in `open`, who have more room together.
/// Whoever is full below the level gives what is left of its part to the others, so that the
/// level rises; after few rounds nobody is.
fn pour(mut left: u64, sharers: &[Sharer], open: &mut Vec<u32>, out: &mut [u64]) -> Level {
    let weights = |open: &[u32]| -> u64 {
        open.iter()
            .map(|&at| u64::from(sharers[at as usize].weight))
            .sum()
    };
    let mut weight = weights(open);
    loop {
        let before = open.len();
        let (level, of) = (u128::from(left), u128::from(weight));
        open.retain(|&at| {
            let sharer = sharers[at as usize];
            let room = sharer.room();
            let full = u128::from(room) * of <= level * u128::from(sharer.weight);
            if full {
                out[at as usize] = sharer.most;
                left -= room;
                weight -= u64::from(sharer.weight);
            }
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
    for &at in &*open {
        sum += u64::from(sharers[at as usize].weight);
        let upto = part(left, sum, weight);
        out[at as usize] += upto - given;
        given = upto;
    }
    Level {
        amount: left,
        weight,
    }
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
