//! The shares, limits, weights and reasons of one resource.
//!
//! All of it is by service of the plan; only where demands come in and grants go out does the
//! observation's order matter. A service that does not run demands nothing.
//!
//! # Nothing anew where nothing is new
//! A decision follows from the plan, the guarantees, the demands, and the limits and weights of
//! before. Where the last decision moved none of the latter and the others are what they were,
//! it stands.

use bonsai_units::Resource;

use crate::allocation::{Grant, How};
use crate::fill::UNBOUNDED;
use crate::limits::{self, Bound, Limit, Sums};
use crate::observation::{Observation, Usage};
use crate::plan::Plan;
use crate::policy::{Live, Policy};
use crate::tree::Water;
use crate::weights;

/// What is remembered of a service's use of one resource from one decision to the next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept {
    /// Its limit, or [`limits::NONE`].
    pub(crate) limit: u64,
    pub(crate) weight: u32,
    pub(crate) peak: Peak,
}

impl Default for Kept {
    fn default() -> Self {
        Self {
            limit: limits::NONE,
            weight: 0,
            peak: Peak::default(),
        }
    }
}

/// The highest demand in the window before, and in this one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Peak {
    pub(crate) before: u64,
    pub(crate) now: u64,
}

/// How one resource was shared. One element for each service of the plan.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shared {
    pub(crate) kept: Vec<Kept>,
    /// The guarantees in force.
    guarantees: Vec<u64>,
    /// What each demands: nothing where it does not run, at least 1 where it does.
    demands: Vec<u64>,
    /// Demand that an idle service is taken to have.
    trickle: u64,
    /// With the same demands, the next decision would be the same.
    stands: bool,
}

/// Vectors that are used again in each decision.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scratch {
    /// Parts of static services.
    parts: Water,
    shares: Water,
    /// Guarantees within groups, then spare.
    other: Water,
    /// What groups have left below their ceilings.
    rooms: Vec<u64>,
    /// Of each service: its guarantee, with what groups guarantee beyond those of members.
    guarantees: Vec<u64>,
    weights: Vec<u32>,
    limits: Vec<Limit>,
}

impl Shared {
    /// Begins anew with a plan, or with other services running.
    pub(crate) fn renew(&mut self, plan: &Plan, i: usize, live: &[Live]) {
        let bounds = &plan.tree.bounds[i][plan.tree.first_leaf..];
        let guarantee = |(bounds, live): (&crate::tree::Bounds, &Live)| {
            live.cold.applied[i].unwrap_or(bounds.min)
        };
        self.guarantees.clear();
        self.guarantees
            .extend(bounds.iter().zip(live).map(guarantee));
        self.demands.clear();
        self.demands.resize(live.len(), 0);
        self.kept.resize(live.len(), Kept::default());
        self.stands = false;
    }

    /// Puts another guarantee in force.
    pub(crate) fn guarantee(&mut self, service: usize, to: u64) {
        self.guarantees[service] = to;
        self.stands = false;
    }
}

impl Policy {
    /// Decides for one resource.
    pub(crate) fn share(&mut self, resource: Resource, observation: &Observation) {
        let i = resource.index();
        let Some(capacity) = self.config.capacity[i] else {
            return self.unshared(resource);
        };
        let capacity = capacity.min(UNBOUNDED);
        let same = self.demands(i, capacity, observation);
        if same && self.shared[i].stands {
            return;
        }
        self.fix(i, capacity);
        let spare = self.pour(i, capacity);
        self.allocation.free[i] = Some(spare);
        let (tree, scratch) = (&self.plan.tree, &mut self.scratch);
        scratch.guarantees.clone_from(&self.shared[i].guarantees);
        weights::within_groups(
            tree,
            i,
            &mut scratch.other,
            &mut scratch.guarantees,
            &scratch.shares,
        );
        weights::flat(
            tree,
            i,
            capacity,
            &scratch.guarantees,
            &scratch.shares,
            &mut scratch.weights,
        );
        weights::rooms(tree, i, &scratch.shares, &mut scratch.rooms);
        self.limit(i, capacity, spare);
        self.settle(i, capacity);
        self.write(resource);
    }

    /// Notes the demands; returns whether all are what they were.
    fn demands(&mut self, i: usize, capacity: u64, observation: &Observation) -> bool {
        let shared = &mut self.shared[i];
        // So that nobody's limit is nothing, which its return could not be told from. All of
        // these together are a thousandth of the capacity.
        let trickle = (capacity / 1_000 / (observation.services.len() as u64).max(1)).max(1);
        shared.trickle = trickle;
        let mut same = true;
        for (seen, &at) in observation.services.iter().zip(&self.places) {
            let at = at as usize;
            let mut demand = demand(seen.usage[i], self.config.headroom, trickle);
            if self.holds && shared.guarantees[at] == 0 {
                demand = shared.kept[at].peak.hold(demand);
            }
            let before = core::mem::replace(&mut shared.demands[at], demand);
            same &= before == demand;
        }
        same
    }

    /// The parts of static services: what they would get if everybody wanted everything.
    fn fix(&mut self, i: usize, capacity: u64) {
        if self.statics.is_empty() {
            return;
        }
        let (tree, shared, water) = (&self.plan.tree, &self.shared[i], &mut self.scratch.parts);
        water.fit(tree);
        let first = tree.first_leaf;
        let bounds = tree.bounds[i][first..].iter();
        let needs = shared.guarantees.iter().zip(&shared.demands);
        for ((leaf, bounds), (&guarantee, &demand)) in (first..).zip(bounds).zip(needs) {
            let most = if demand > 0 { bounds.max } else { 0 };
            water.mosts[leaf] = most;
            water.floors[leaf] = guarantee.min(most);
        }
        water.pour(tree, i, capacity, true);
    }

    /// The shares; returns what is spare.
    fn pour(&mut self, i: usize, capacity: u64) -> u64 {
        let (tree, shared, scratch) = (&self.plan.tree, &self.shared[i], &mut self.scratch);
        let water = &mut scratch.shares;
        water.fit(tree);
        let first = tree.first_leaf;
        let bounds = tree.bounds[i][first..].iter();
        let needs = shared.guarantees.iter().zip(&shared.demands);
        let floors = water.floors[first..].iter_mut();
        let leaves = floors.zip(&mut water.mosts[first..]);
        for (((floor, most), bounds), (&guarantee, &demand)) in leaves.zip(bounds).zip(needs) {
            *most = demand.min(bounds.max);
            *floor = guarantee.min(*most);
        }
        for at in running(&self.statics, &shared.demands) {
            let part = scratch.parts.given[first + at];
            water.mosts[first + at] = part;
            water.floors[first + at] = part;
        }
        water.pour(tree, i, capacity, true)
    }

    /// What limits would be without those of before: shares, and parts of what is spare.
    fn limit(&mut self, i: usize, capacity: u64, spare: u64) {
        let (tree, shared, scratch) = (&self.plan.tree, &self.shared[i], &mut self.scratch);
        let water = &mut scratch.other;
        water.fit(tree);
        let first = tree.first_leaf;
        let shares = &scratch.shares.given;
        let needs = tree.bounds[i][first..].iter().zip(&shared.demands);
        let mosts = water.mosts[first..].iter_mut().zip(&shares[first..]);
        for ((most, &share), (bounds, &demand)) in mosts.zip(needs) {
            *most = if demand > 0 { bounds.max.max(share) } else { 0 };
        }
        for at in running(&self.statics, &shared.demands) {
            water.mosts[first + at] = shares[first + at];
        }
        if spare > 0 {
            water.floors[first..].copy_from_slice(&shares[first..]);
            water.pour(tree, i, capacity, false);
        } else {
            water.given.copy_from_slice(shares);
        }
    }

    /// The limits and weights, which move only when it matters.
    fn settle(&mut self, i: usize, capacity: u64) {
        let (tree, shared, scratch) = (&self.plan.tree, &mut self.shared[i], &mut self.scratch);
        let Scratch { shares, other, .. } = scratch;
        let hysteresis = self.config.hysteresis;
        let first = tree.first_leaf;
        let mut sums = Sums::default();
        let now = other.given[first..].iter().zip(&other.mosts[first..]);
        let gets = shares.given[first..].iter().zip(&shares.mosts[first..]);
        let before = shared.kept.iter().zip(&scratch.guarantees);
        let parents = &tree.parents[first..];
        let has_rooms = !scratch.rooms.is_empty();
        scratch.limits.clear();
        for ((((kept, guarantee), (&now, &ceiling)), (&share, &most)), &parent) in
            before.zip(now).zip(gets).zip(parents)
        {
            let bound = Bound {
                before: kept.limit,
                now,
                share,
                ceiling,
                guaranteed: most.min(*guarantee),
                in_bounds: has_rooms && scratch.rooms[parent as usize] < u64::MAX,
            };
            let limit = bound.settle(hysteresis);
            sums.add(limit);
            scratch.limits.push(limit);
        }
        let most = sums.highest_excess(capacity);
        shared.stands = true;
        let next = scratch.limits.iter().zip(&scratch.weights);
        let next = next.zip(&shared.demands);
        for (kept, ((limit, &weight), &demand)) in shared.kept.iter_mut().zip(next) {
            let limit = limit.with_excess(most);
            let weight = limits::weight(kept.weight, weight, hysteresis);
            if demand > 0 {
                shared.stands &= (limit == kept.limit) & (weight == kept.weight);
                kept.limit = limit;
                kept.weight = weight;
            }
        }
    }

    /// Writes the grants of one resource.
    fn write(&mut self, resource: Resource) {
        let i = resource.index();
        let (tree, shared, scratch) = (&self.plan.tree, &self.shared[i], &self.scratch);
        let first = tree.first_leaf;
        let (all_bounds, shares) = (&tree.bounds[i][first..], &scratch.shares.given[first..]);
        for (&at, out) in self.places.iter().zip(&mut self.allocation.services) {
            let at = at as usize;
            let (bounds, share, demand) = (all_bounds[at], shares[at], shared.demands[at]);
            let (guarantee, kept) = (scratch.guarantees[at], shared.kept[at]);
            let fixed = !self.statics.is_empty() && self.live[at].fixed;
            let ceiling = if fixed {
                share
            } else if scratch.rooms.is_empty() {
                bounds.max
            } else {
                // Its own, or what those of its groups leave for it. Never below its guarantee,
                // which it has at once when it comes back; until the next decision its group
                // may then be above its ceiling.
                let room = scratch.rooms[tree.parents[first + at] as usize];
                let left = bounds.max.min(share.saturating_add(room));
                left.max(guarantee.min(bounds.max))
            };
            let how = if fixed {
                How::Static
            } else if demand <= share && demand < UNBOUNDED {
                How::Met
            } else if share >= bounds.max {
                How::AtCeiling
            } else {
                How::Shares
            };
            out.grants[i] = Grant {
                // The one that it was promised; it may have more, of its group's.
                guarantee: guarantee.min(ceiling),
                ceiling: bounded(ceiling),
                weight: kept.weight,
                share: Some(share),
                limit: Some(kept.limit),
                demand: bounded(demand),
                resource,
                how,
                by_weight: bounds.weight,
                owner_weight: self.plan.owner_weight(at, i),
                idle: demand <= shared.trickle,
            };
        }
    }

    /// A resource without capacity: ceilings hold, and nothing else is known.
    fn unshared(&mut self, resource: Resource) {
        let i = resource.index();
        let shared = &mut self.shared[i];
        if shared.stands {
            return;
        }
        shared.stands = true;
        self.allocation.free[i] = None;
        for (&at, out) in self.places.iter().zip(&mut self.allocation.services) {
            let bounds = self.plan.tree.bounds[i][self.plan.node(at as usize)];
            shared.kept[at as usize].limit = limits::NONE;
            out.grants[i] = Grant::unshared(resource);
            if let Some(ceiling) = bounded(bounds.max) {
                out.grants[i] = Grant {
                    ceiling: Some(ceiling),
                    share: Some(ceiling),
                    limit: Some(ceiling),
                    weight: bounds.weight,
                    by_weight: bounds.weight,
                    how: How::CeilingOnly,
                    ..out.grants[i]
                };
            }
        }
    }
}

/// Those of some services that run.
fn running(services: &[u32], demands: &[u64]) -> impl Iterator<Item = usize> {
    let services = services.iter().map(|&at| at as usize);
    services.filter(|&at| demands[at] > 0)
}

fn bounded(rate: u64) -> Option<u64> {
    (rate < UNBOUNDED).then_some(rate)
}

/// What a service is taken to want, at most [`UNBOUNDED`].
fn demand(usage: Usage, headroom: u32, trickle: u64) -> u64 {
    // A rate of at most 1e14 and at most 11 times that: far below 2^64.
    let used = usage.used.min(UNBOUNDED);
    let with_headroom = used.saturating_mul(u64::from(headroom) + 1_000) / 1_000;
    let wants = if usage.wanted_more {
        UNBOUNDED
    } else {
        with_headroom
    };
    let bound = usage.bound.unwrap_or(UNBOUNDED);
    wants.min(bound).clamp(trickle.min(UNBOUNDED), UNBOUNDED)
}

impl Peak {
    /// The highest demand of late, with this one.
    fn hold(&mut self, demand: u64) -> u64 {
        self.now = self.now.max(demand);
        self.now.max(self.before)
    }
}
