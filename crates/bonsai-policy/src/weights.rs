//! What a flat pool has to be told so that it shares as the tree does.
//!
//! A pool of the ledger gives everybody its guarantee and the rest by weight, to those who want
//! more. In a tree, who gets how much of the rest depends on the groups above: so its pool has
//! for weights what each service got, or would get if it wanted more, beyond its guarantee.

use crate::config::MAX_WEIGHT;
use crate::fill::{UNBOUNDED, narrow};
use crate::plan::Plan;
use crate::tree::{Tree, Water};

/// Levels are kept in units of 2^-20 per weight.
const FRACTION: u32 = 20;

/// Gives what groups guarantee beyond their members to those of them that demand it.
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
    water.reset(tree);
    let leaves = tree.first_leaf..;
    for (leaf, &guarantee) in leaves.clone().zip(&guarantees[tree.first_leaf..]) {
        water.floors[leaf] = guarantee;
        water.mosts[leaf] = guarantee.max(shares.mosts[leaf]);
    }
    let sums = tree.guaranteed(i, |leaf| guarantees[leaf]);
    water.pour(tree, i, sums[0], true);
    // What a group guarantees and none of its members demands is nobody's guarantee.
    for (leaf, guarantee) in leaves.zip(&mut guarantees[tree.first_leaf..]) {
        let most = (*guarantee).max(shares.given[leaf]);
        *guarantee = water.given[leaf].min(most);
    }
}

/// The weight of each service in a flat pool, in the order of `places`.
pub(crate) fn flat(
    plan: &Plan,
    i: usize,
    capacity: u64,
    places: &[u32],
    guarantees: &[u64],
    shares: &Water,
    out: &mut Vec<u32>,
) {
    let tree = &plan.tree;
    let bounds = &tree.bounds[i];
    out.clear();
    if !tree.is_nested() {
        out.extend(
            places
                .iter()
                .map(|&at| bounds[plan.node(at as usize)].weight),
        );
        return;
    }
    let levels = potentials(tree, i, capacity, shares);
    let surplus = |at: u32| -> u128 {
        let node = plan.node(at as usize);
        let level = levels[tree.parents[node] as usize];
        let beyond = level.saturating_mul(u128::from(bounds[node].weight)) >> FRACTION;
        // Whoever is full may have got more than its part by then: others left theirs.
        let would_get = u128::from(shares.floors[node]) + beyond;
        let would_get = would_get.max(u128::from(shares.given[node]));
        would_get
            .saturating_sub(u128::from(guarantees[node]))
            .min(u128::from(UNBOUNDED))
    };
    // The scale is what was got: what somebody might want must not blur what others do.
    let got = |&at: &u32| {
        let node = plan.node(at as usize);
        u128::from(shares.given[node].saturating_sub(guarantees[node]))
    };
    let most = places.iter().map(got).max().unwrap_or(1).max(1);
    let max = u128::from(MAX_WEIGHT);
    let weight = |at: u32| (surplus(at) * max + most / 2) / most;
    let narrowed = |at: u32| u32::try_from(weight(at).clamp(1, max)).unwrap_or(MAX_WEIGHT);
    out.extend(places.iter().map(|&at| narrowed(at)));
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
                    _ => levels[tree.parents[at] as usize] * u128::from(bounds[at].weight),
                };
                whole / weight
            }
        };
    }
    levels
}

/// The ceiling of a service in a flat pool: its own, or what the ceilings of its groups leave
/// for it beside the shares of the others. Never below its guarantee, which it has at once when
/// it comes back; until the next decision its group may then be above its ceiling.
pub(crate) fn ceiling(tree: &Tree, i: usize, node: usize, guarantee: u64, shares: &Water) -> u64 {
    let bounds = &tree.bounds[i];
    let own = bounds[node].max;
    if !tree.ceilings[i] {
        return own;
    }
    let share = shares.given[node];
    let within = u32::try_from(node).unwrap_or(0);
    let groups = tree.ancestors(within).map(|group| group as usize);
    let bounded = groups.filter(|&group| bounds[group].max < UNBOUNDED);
    let left = bounded.map(|group| {
        let used = tree.kids(u32::try_from(group).unwrap_or(0)).iter();
        let used: u128 = used
            .map(|&kid| u128::from(shares.given[kid as usize]))
            .sum();
        share.saturating_add(bounds[group].max.saturating_sub(narrow(used)))
    });
    left.fold(own, u64::min).max(guarantee.min(own))
}
