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
//! 4. The unit that rounding leaves goes to the first in the order of (most - floor) / weight,
//!    and then of index, whose running sum passes a whole unit: with the same sharers in the
//!    same order always to the same.
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
/// everybody gets its most. `order` is scratch.
pub(crate) fn fill(
    amount: u64,
    sharers: &[Sharer],
    order: &mut Vec<u32>,
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
    order.clear();
    for (at, sharer) in (0_u32..).zip(sharers) {
        out[at as usize] = sharer.floor;
        if sharer.room() > 0 {
            order.push(at);
        }
    }
    let key = |at: u32| {
        let sharer = sharers[at as usize];
        (u128::from(sharer.room()), u128::from(sharer.weight))
    };
    order.sort_unstable_by(|&a, &b| {
        let ((room_a, weight_a), (room_b, weight_b)) = (key(a), key(b));
        (room_a * weight_b)
            .cmp(&(room_b * weight_a))
            .then(a.cmp(&b))
    });
    let left = amount - narrow(floors);
    Some(pour(left, sharers, order, out))
}

/// Gives what is `left` beyond the floors, in the order in which sharers become full. Not
/// all can be.
fn pour(left: u64, sharers: &[Sharer], order: &[u32], out: &mut [u64]) -> Level {
    let mut left = left;
    let mut weight: u64 = order
        .iter()
        .map(|&at| u64::from(sharers[at as usize].weight))
        .sum();
    let mut full = 0;
    for &at in order {
        let sharer = sharers[at as usize];
        let (room, own) = (u128::from(sharer.room()), u128::from(sharer.weight));
        if room * u128::from(weight) > u128::from(left) * own {
            break;
        }
        out[at as usize] = sharer.most;
        left -= sharer.room();
        weight -= u64::from(sharer.weight);
        full += 1;
    }
    // Differences of running sums: each is within a unit of its exact part, and together they
    // are what is left.
    let (mut sum, mut given) = (0_u128, 0);
    for &at in &order[full..] {
        sum += u128::from(sharers[at as usize].weight);
        let upto = narrow(u128::from(left) * sum / u128::from(weight.max(1)));
        out[at as usize] += upto - given;
        given = upto;
    }
    Level {
        amount: left,
        weight: weight.max(1),
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
