//! The shares, limits, weights and reasons of one resource.

use bonsai_units::Resource;

use crate::allocation::{Grant, Reason, Why};
use crate::fill::{UNBOUNDED, narrow};
use crate::limits::{self, Bound};
use crate::observation::{Observation, Usage};
use crate::policy::{Peak, Policy};
use crate::tree::Water;
use crate::weights;

/// Vectors that are used again in each decision.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scratch {
    /// Parts of static services, then guarantees within groups, then spare.
    first: Water,
    shares: Water,
    /// Of each node: its guarantee, what it demands, its static part.
    guarantees: Vec<u64>,
    demands: Vec<Option<u64>>,
    fixed: Vec<u64>,
    /// Of each place in the observation.
    weights: Vec<u32>,
    bounds: Vec<Bound>,
}

impl Policy {
    /// Decides for one resource.
    pub(crate) fn share(&mut self, resource: Resource, observation: &Observation) {
        let i = resource.index();
        let Some(capacity) = self.config.capacity[i] else {
            self.allocation.free[i] = None;
            return self.unshared(resource);
        };
        let capacity = capacity.min(UNBOUNDED);
        self.demands(i, capacity, observation);
        self.fix(i, capacity);
        self.pour(i, capacity);
        let given: u128 = self
            .places
            .iter()
            .map(|&at| u128::from(self.share_of(at)))
            .sum();
        let spare = capacity.saturating_sub(narrow(given));
        self.allocation.free[i] = Some(spare);
        let scratch = &mut self.scratch;
        let shares = &scratch.shares;
        weights::within_groups(
            &self.plan.tree,
            i,
            &mut scratch.first,
            &mut scratch.guarantees,
            shares,
        );
        weights::flat(
            &self.plan,
            i,
            capacity,
            &self.places,
            &scratch.guarantees,
            shares,
            &mut scratch.weights,
        );
        self.limit(i, capacity, spare);
        self.write(resource);
    }

    fn share_of(&self, at: u32) -> u64 {
        self.scratch.shares.given[self.plan.node(at as usize)]
    }

    /// Guarantees and demands of all services.
    fn demands(&mut self, i: usize, capacity: u64, observation: &Observation) {
        let Self {
            plan,
            live,
            scratch,
            config,
            holds,
            ..
        } = self;
        let bounds = &plan.tree.bounds[i];
        let nodes = bounds.len();
        scratch.guarantees.clear();
        scratch
            .guarantees
            .extend(bounds.iter().map(|bounds| bounds.min));
        scratch.demands.clear();
        scratch.demands.resize(nodes, Some(0));
        for (service, live) in live.iter().enumerate() {
            if let Some(min) = live.applied[i] {
                scratch.guarantees[plan.tree.first_leaf + service] = min;
            }
        }
        // So that nobody's limit is nothing, which its return could not be told from. All of
        // these together are a thousandth of the capacity.
        let trickle = (capacity / 1_000 / (observation.services.len() as u64).max(1)).max(1);
        for (seen, &at) in observation.services.iter().zip(&self.places) {
            let demand = demand(seen.usage[i], config.headroom, trickle);
            let node = plan.node(at as usize);
            scratch.demands[node] = if *holds && scratch.guarantees[node] == 0 {
                live[at as usize].peaks[i].hold(demand)
            } else {
                demand
            };
        }
    }

    /// The parts of static services: what they would get if everybody wanted everything.
    fn fix(&mut self, i: usize, capacity: u64) {
        let Self {
            plan,
            live,
            scratch,
            ..
        } = self;
        scratch.fixed.clear();
        if !live.iter().any(|live| live.present && live.fixed) {
            return;
        }
        let bounds = &plan.tree.bounds[i];
        scratch.first.reset(&plan.tree);
        for (service, _) in live.iter().enumerate().filter(|(_, live)| live.present) {
            let node = plan.node(service);
            scratch.first.mosts[node] = bounds[node].max;
            scratch.first.floors[node] = scratch.guarantees[node].min(bounds[node].max);
        }
        scratch.first.pour(&plan.tree, i, capacity, true);
        scratch.fixed.extend_from_slice(&scratch.first.given);
    }

    /// The shares.
    fn pour(&mut self, i: usize, capacity: u64) {
        let Self {
            plan,
            live,
            scratch,
            ..
        } = self;
        let bounds = &plan.tree.bounds[i];
        let water = &mut scratch.shares;
        water.reset(&plan.tree);
        for (service, live) in live.iter().enumerate().filter(|(_, live)| live.present) {
            let node = plan.node(service);
            if live.fixed {
                water.mosts[node] = scratch.fixed[node];
                water.floors[node] = scratch.fixed[node];
            } else {
                let demand = scratch.demands[node].unwrap_or(UNBOUNDED);
                water.mosts[node] = demand.min(bounds[node].max);
                water.floors[node] = scratch.guarantees[node].min(water.mosts[node]);
            }
        }
        water.pour(&plan.tree, i, capacity, true);
    }

    /// The limits: shares, and parts of what is spare.
    fn limit(&mut self, i: usize, capacity: u64, spare: u64) {
        let Self {
            plan,
            live,
            scratch,
            places,
            config,
            ..
        } = self;
        let bounds = &plan.tree.bounds[i];
        let water = &mut scratch.first;
        water.reset(&plan.tree);
        for &at in places.iter() {
            let node = plan.node(at as usize);
            let share = scratch.shares.given[node];
            let fixed = live[at as usize].fixed;
            water.floors[node] = share;
            water.mosts[node] = if fixed {
                share
            } else {
                bounds[node].max.max(share)
            };
        }
        if spare > 0 {
            water.pour(&plan.tree, i, capacity, false);
        } else {
            water.given.copy_from_slice(&scratch.shares.given);
        }
        scratch.bounds.clear();
        scratch.bounds.extend(places.iter().map(|&at| {
            let node = plan.node(at as usize);
            let within = u32::try_from(node).unwrap_or(0);
            let mut groups = plan.tree.ancestors(within);
            Bound {
                before: live[at as usize].limits[i],
                now: water.given[node],
                share: scratch.shares.given[node],
                ceiling: water.mosts[node],
                guaranteed: scratch.guarantees[node].min(scratch.shares.mosts[node]),
                in_bounds: plan.tree.ceilings[i]
                    && groups.any(|group| bounds[group as usize].max < UNBOUNDED),
            }
        }));
        limits::settle(&mut scratch.bounds, capacity, config.hysteresis);
        for (&at, bound) in places.iter().zip(&scratch.bounds) {
            live[at as usize].limits[i] = Some(bound.now);
        }
    }

    /// Writes the grants of one resource.
    fn write(&mut self, resource: Resource) {
        let i = resource.index();
        let places = self.places.iter().zip(&mut self.allocation.services);
        for (place, (&at, out)) in places.enumerate() {
            let node = self.plan.node(at as usize);
            let live = &mut self.live[at as usize];
            let scratch = &self.scratch;
            let bounds = self.plan.tree.bounds[i][node];
            let share = scratch.shares.given[node];
            let fixed = live.fixed;
            let weight = scratch.weights[place];
            let weight = limits::weight(live.weights[i], weight, self.config.hysteresis);
            live.weights[i] = weight;
            let ceiling = if fixed {
                share
            } else {
                weights::ceiling(
                    &self.plan.tree,
                    i,
                    node,
                    scratch.guarantees[node],
                    &scratch.shares,
                )
            };
            let demand = scratch.demands[node];
            // The one that it was promised; it may have more, of its group's.
            let promised = scratch.guarantees[node].min(ceiling);
            let why = match (fixed, demand) {
                (true, _) => Why::Static {
                    guarantee: promised.min(share),
                    by_weight: share - promised.min(share),
                    weight: bounds.weight,
                },
                (_, Some(demand)) if demand <= share => met(demand, promised),
                _ if share >= bounds.max => Why::AtCeiling { ceiling: share },
                _ => Why::Shares {
                    guarantee: promised.min(share),
                    borrowed: share - promised.min(share),
                    weight: bounds.weight,
                },
            };
            out.grants[i] = Grant {
                guarantee: promised,
                ceiling: (ceiling < UNBOUNDED).then_some(ceiling),
                weight,
                share: Some(share),
                limit: live.limits[i],
                demand,
                reason: Reason { resource, why },
            };
        }
    }

    /// A resource without capacity: ceilings hold, and nothing else is known.
    fn unshared(&mut self, resource: Resource) {
        let i = resource.index();
        for (&at, out) in self.places.iter().zip(&mut self.allocation.services) {
            let bounds = self.plan.tree.bounds[i][self.plan.node(at as usize)];
            self.live[at as usize].limits[i] = None;
            out.grants[i] = Grant::unshared(resource);
            if bounds.max < UNBOUNDED {
                let ceiling = bounds.max;
                out.grants[i] = Grant {
                    ceiling: Some(ceiling),
                    share: Some(ceiling),
                    limit: Some(ceiling),
                    weight: bounds.weight,
                    reason: Reason {
                        resource,
                        why: Why::CeilingOnly { ceiling },
                    },
                    ..out.grants[i]
                };
            }
        }
    }
}

/// What a service is taken to want.
fn demand(usage: Usage, headroom: u32, trickle: u64) -> Option<u64> {
    // A rate of at most 1e14 and at most 11 times that: far below 2^64.
    let used = usage.used.min(UNBOUNDED);
    let with_headroom = used.saturating_mul(u64::from(headroom) + 1_000) / 1_000;
    let wants = if usage.wanted_more {
        UNBOUNDED
    } else {
        with_headroom
    };
    let bound = usage.bound.unwrap_or(UNBOUNDED);
    let demand = wants.min(bound).clamp(trickle.min(UNBOUNDED), UNBOUNDED);
    (demand < UNBOUNDED).then_some(demand)
}

impl Peak {
    /// The highest demand of late, with this one.
    fn hold(&mut self, demand: Option<u64>) -> Option<u64> {
        self.now = self.now.max(demand.unwrap_or(UNBOUNDED));
        let highest = self.now.max(self.before);
        (highest < UNBOUNDED).then_some(highest)
    }
}

/// The words for a demand that is met.
fn met(demand: u64, guarantee: u64) -> Why {
    if demand < guarantee {
        return Why::Lends {
            guarantee,
            lent: guarantee - demand,
            demand,
        };
    }
    Why::Met {
        demand,
        guarantee,
        borrowed: demand - guarantee,
    }
}

impl Grant {
    /// Without bound.
    pub(crate) const fn unshared(resource: Resource) -> Self {
        Self {
            guarantee: 0,
            ceiling: None,
            weight: 1,
            share: None,
            limit: None,
            demand: None,
            reason: Reason {
                resource,
                why: Why::Unshared,
            },
        }
    }
}
