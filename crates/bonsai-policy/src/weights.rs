//! What a flat pool has to be told so that it shares as the tree does.
//!
//! A pool of the ledger gives everybody its guarantee and the rest by weight, to those who want
//! more. In a tree, who gets how much of the rest depends on the groups above: so its pool has
//! for weights what each service got, or would get if it wanted more, beyond its guarantee.

use crate::config::MAX_WEIGHT;
use crate::fill::{UNBOUNDED, narrow};
use crate::tree::{Tree, Water};

/// Levels are kept in units of 2^-20 per weight.
const FRACTION: u32 = 20;

/// Gives what groups guarantee beyond their members to those of them that demand it.
/// `guarantees` are those of all services.
pub(crate) fn within_groups(
    tree: &Tree,
    i: usize,
    water: &mut Water,
    guarantees: &mut [u64],
    shares: &Water,
) {
    if !tree.excess[i] {
        return;
    }
    water.fit(tree);
    let first = tree.first_leaf;
    for (service, &guarantee) in guarantees.iter().enumerate() {
        water.floors[first + service] = guarantee;
        water.mosts[first + service] = guarantee.max(shares.mosts[first + service]);
    }
    let sums = tree.guaranteed(i, |leaf| guarantees[leaf - first]);
    water.pour(tree, i, sums[0], true);
    // What a group guarantees and none of its members demands is nobody's guarantee.
    for (service, guarantee) in guarantees.iter_mut().enumerate() {
        let most = (*guarantee).max(shares.given[first + service]);
        *guarantee = water.given[first + service].min(most);
    }
}

/// The weight of each service in a flat pool.
pub(crate) fn flat(
    tree: &Tree,
    i: usize,
    capacity: u64,
    guarantees: &[u64],
    shares: &Water,
    out: &mut Vec<u32>,
) {
    let first = tree.first_leaf;
    let bounds = &tree.bounds[i][first..];
    out.clear();
    if !tree.is_nested() {
        out.extend(bounds.iter().map(|bounds| bounds.weight));
        return;
    }
    let mut levels = potentials(tree, i, capacity, shares);
    for level in &mut levels {
        // More gives everybody [`UNBOUNDED`], and products beyond 128 bits.
        *level = (*level).min(u128::from(3 * UNBOUNDED) << FRACTION);
    }
    let given = &shares.given[first..];
    // The scale is what was got: what somebody might want must not blur what others do.
    let got = given.iter().zip(guarantees);
    let got = got.map(|(given, guarantee)| given.saturating_sub(*guarantee));
    let most = got.max().unwrap_or(1).max(1);
    let leaves = tree.parents[first..].iter().zip(bounds);
    let got = given.iter().zip(&shares.floors[first..]).zip(guarantees);
    for ((&parent, bounds), ((&given, floor), guarantee)) in leaves.zip(got) {
        let beyond = (levels[parent as usize] * u128::from(bounds.weight)) >> FRACTION;
        // Whoever is full may have got more than its part by then: others left theirs.
        let would_get = floor.saturating_add(narrow(beyond)).max(given);
        let surplus = would_get.saturating_sub(*guarantee).min(UNBOUNDED);
        // At most 1e17.
        let weight = (surplus * u64::from(MAX_WEIGHT) + most / 2) / most;
        let weight = u32::try_from(weight).unwrap_or(MAX_WEIGHT);
        out.push(weight.clamp(1, MAX_WEIGHT));
    }
}

/// Of each inner node: what a child gets per weight beyond its floor, or would get if it wanted
/// more.
fn potentials(tree: &Tree, i: usize, capacity: u64, shares: &Water) -> Vec<u128> {
    let bounds = &tree.bounds[i];
    let mut levels = vec![0_u128; tree.first_leaf];
    for &node in tree.downwards() {
        let at = node as usize;
        levels[at] = match shares.levels[at] {
            Some(level) => (u128::from(level.amount) << FRACTION) / u128::from(level.weight),
            None => {
                let weight = |&kid: &u32| u64::from(bounds[kid as usize].weight);
                let runs = |kid: &&u32| shares.mosts[**kid as usize] > 0;
                let kids = tree.kids(node).iter();
                let running: u64 = kids.clone().filter(runs).map(weight).sum();
                let all: u64 = kids.map(weight).sum();
                let weight = u128::from(if running > 0 { running } else { all.max(1) });
                let whole = match node {
                    0 => u128::from(capacity) << FRACTION,
                    _ => levels[tree.parents[at] as usize]
                        .saturating_mul(u128::from(bounds[at].weight)),
                };
                whole / weight
            }
        };
    }
    levels
}

/// What the ceilings of groups leave for the members of each inner node beside their shares;
/// [`u64::MAX`] where no group has one, from the node upwards. Nothing is put into `out` where no
/// group of the tree has one.
pub(crate) fn rooms(tree: &Tree, i: usize, shares: &Water, out: &mut Vec<u64>) {
    out.clear();
    if !tree.ceilings[i] {
        return;
    }
    out.resize(tree.first_leaf, u64::MAX);
    for group in tree.downwards().iter().map(|&node| node as usize).skip(1) {
        let max = tree.bounds[i][group].max;
        let own = if max < UNBOUNDED {
            max.saturating_sub(shares.given[group])
        } else {
            u64::MAX
        };
        out[group] = own.min(out[tree.parents[group] as usize]);
    }
}
