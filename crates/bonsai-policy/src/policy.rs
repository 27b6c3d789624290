//! One decision: from what was seen to what everybody gets.
//!
//! # Definitions
//! - *demand*: what a service used and the headroom; without bound if it wanted more.
//! - *share*: its part by weighted max-min above the guarantees: [`crate::fill`], from the
//!   root of the tree of groups down.
//! - *spare*: what is left when all demands are met. Limits share it, by weight.
//! - *limit*: what a plain limit is set to, where no pool lends within microseconds.
//!
//! # Invariants, of each resource that has a capacity
//! 1. Shares come to no more than the capacity, and so do limits; in each group to no more
//!    than its ceiling.
//! 2. A service gets its guarantee or its demand, whichever is less.
//! 3. Nobody's share is above its ceiling or its demand.
//! 4. Nothing is left while somebody below its ceilings demands it.
//! 5. The same observation gives the same allocation, in whatever order it lists services,
//!    from the second time on.

use std::collections::BTreeSet;

use bonsai_units::Resource;

use crate::allocation::{Allocated, Allocation, Grant, Reason, Why};
use crate::check::Problem;
use crate::config::{Config, Mode, Name, PerResource};
use crate::fill::{UNBOUNDED, narrow};
use crate::limits::{self, Bound};
use crate::observation::{Observation, Usage};
use crate::plan::Plan;
use crate::tree::Water;
use crate::weights;

/// What is remembered of a service from one decision to the next.
#[derive(Clone, Debug, Default)]
pub(crate) struct Live {
    /// Whether it runs.
    pub(crate) present: bool,
    pub(crate) limits: PerResource<Option<u64>>,
    pub(crate) weights: PerResource<u32>,
    /// Guarantees that were changed automatically.
    pub(crate) guarantees: PerResource<Option<u64>>,
}

/// Decides who gets how much. Pure: the same calls give the same answers.
#[derive(Clone, Debug)]
pub struct Policy {
    pub(crate) config: Config,
    pub(crate) plan: Plan,
    /// Of each service of the plan.
    pub(crate) live: Vec<Live>,
    /// Services that run without being configured.
    others: Vec<Name>,
    /// The service of the plan at each place of the observation.
    pub(crate) places: Vec<u32>,
    scratch: Scratch,
    pub(crate) allocation: Allocation,
}

/// Vectors that are used again in each decision.
#[derive(Clone, Debug, Default)]
struct Scratch {
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
    /// A policy for a configuration.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn new(config: Config) -> Result<Self, Vec<Problem>> {
        config.check()?;
        let plan = Plan::new(&config, &[]);
        let live = vec![Live::default(); plan.services.len()];
        Ok(Self {
            config,
            plan,
            live,
            others: Vec::new(),
            places: Vec::new(),
            scratch: Scratch::default(),
            allocation: Allocation::default(),
        })
    }

    /// Takes another configuration; what was learned stays.
    ///
    /// # Errors
    /// What is wrong with it; then the one before stays in force.
    pub fn configure(&mut self, config: Config) -> Result<(), Vec<Problem>> {
        config.check()?;
        self.config = config;
        let configured: BTreeSet<&Name> = self.config.services.iter().map(|s| &s.name).collect();
        let others = self.others.iter().filter(|name| !configured.contains(name));
        let others = others.cloned().collect();
        self.plan(others);
        Ok(())
    }

    /// The configuration in force.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The latest allocation.
    #[must_use]
    pub fn allocation(&self) -> &Allocation {
        &self.allocation
    }

    /// What another configuration would give for an observation. Nothing is changed.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn preview(
        &self,
        config: Config,
        observation: &Observation,
    ) -> Result<Allocation, Vec<Problem>> {
        let mut other = Self::new(config)?;
        let was = |name: &Name| {
            let at = self.plan.index.get(name).copied();
            at.and_then(|at| self.live.get(at as usize))
        };
        for (live, service) in other.live.iter_mut().zip(&other.plan.services) {
            *live = was(&service.name).cloned().unwrap_or_default();
        }
        other.decide(observation);
        Ok(other.allocation)
    }

    /// Decides for what was seen.
    pub fn decide(&mut self, observation: &Observation) -> &Allocation {
        self.look_up(observation);
        self.prepare(observation);
        for resource in Resource::ALL {
            self.share(resource, observation);
        }
        &self.allocation
    }

    /// Makes the plan anew, with `others` beside the configured services.
    fn plan(&mut self, others: Vec<Name>) {
        let plan = Plan::new(&self.config, &others);
        let mut live = vec![Live::default(); plan.services.len()];
        for (live, service) in live.iter_mut().zip(&plan.services) {
            if let Some(&at) = self.plan.index.get(&service.name) {
                *live = core::mem::take(&mut self.live[at as usize]);
            }
        }
        self.plan = plan;
        self.live = live;
        self.others = others;
        self.places.clear();
    }

    /// Finds the services of an observation. Most periods have those of the one before.
    fn look_up(&mut self, observation: &Observation) {
        let same =
            |(seen, &at): (&crate::Seen, &u32)| seen.name == self.plan.services[at as usize].name;
        let seen = &observation.services;
        if self.places.len() == seen.len() && seen.iter().zip(&self.places).all(same) {
            return;
        }
        let names: BTreeSet<&Name> = seen.iter().map(|seen| &seen.name).collect();
        let known = |name: &&Name| self.plan.index.contains_key(*name);
        if !names.iter().all(known) || !self.others.iter().all(|name| names.contains(name)) {
            let configured: BTreeSet<&Name> =
                self.config.services.iter().map(|s| &s.name).collect();
            let others = names.difference(&configured).map(|&name| name.clone());
            let others = others.collect();
            self.plan(others);
        }
        let index = &self.plan.index;
        let at = |seen: &crate::Seen| index.get(&seen.name).copied().unwrap_or(0);
        self.places.clear();
        self.places.extend(seen.iter().map(at));
        for live in &mut self.live {
            live.present = false;
        }
        for &at in &self.places {
            self.live[at as usize].present = true;
        }
    }

    /// An allocation with a place for each service of the observation.
    fn prepare(&mut self, observation: &Observation) {
        let allocation = &mut self.allocation;
        allocation.changes.clear();
        allocation.proposals.clear();
        allocation.services.truncate(observation.services.len());
        for (at, seen) in observation.services.iter().enumerate() {
            match allocation.services.get_mut(at) {
                Some(place) if place.name == seen.name => {}
                Some(place) => place.name = seen.name.clone(),
                None => allocation.services.push(Allocated {
                    name: seen.name.clone(),
                    grants: Resource::ALL.map(Grant::unshared),
                }),
            }
        }
    }

    /// Decides for one resource.
    fn share(&mut self, resource: Resource, observation: &Observation) {
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
        self.allocation.free[i] = Some(capacity.saturating_sub(narrow(given)));
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
        self.limit(i, capacity);
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
            if let Some(min) = live.guarantees[i] {
                scratch.guarantees[plan.tree.first_leaf + service] = min;
            }
        }
        // So that nobody's limit is nothing, which its return could not be told from. All of
        // these together are a thousandth of the capacity.
        let trickle = (capacity / 1_000 / (observation.services.len() as u64).max(1)).max(1);
        for (seen, &at) in observation.services.iter().zip(&self.places) {
            let demand = demand(seen.usage[i], config.headroom, trickle);
            scratch.demands[plan.node(at as usize)] = demand;
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
        let is_static = |at: usize| plan.services[at].mode == Mode::Static;
        scratch.fixed.clear();
        if !(0..plan.services.len()).any(|at| live[at].present && is_static(at)) {
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
        for (service, _) in live.iter().enumerate().filter(|(_, live)| live.present) {
            let node = plan.node(service);
            if plan.services[service].mode == Mode::Static {
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
    fn limit(&mut self, i: usize, capacity: u64) {
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
            let fixed = plan.services[at as usize].mode == Mode::Static;
            water.floors[node] = share;
            water.mosts[node] = if fixed {
                share
            } else {
                bounds[node].max.max(share)
            };
        }
        water.pour(&plan.tree, i, capacity, false);
        scratch.bounds.clear();
        scratch.bounds.extend(places.iter().map(|&at| {
            let node = plan.node(at as usize);
            let within = u32::try_from(node).unwrap_or(0);
            let mut groups = plan.tree.ancestors(within);
            Bound {
                before: live[at as usize].limits[i],
                now: water.given[node],
                ceiling: water.mosts[node],
                guaranteed: scratch.guarantees[node].min(scratch.shares.mosts[node]),
                in_bounds: groups.any(|group| bounds[group as usize].max < UNBOUNDED),
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
            let fixed = self.plan.services[at as usize].mode == Mode::Static;
            let weight = scratch.weights[place];
            let weight = limits::weight(live.weights[i], weight, self.config.hysteresis);
            live.weights[i] = weight;
            let ceiling = if fixed {
                share
            } else {
                weights::ceiling(&self.plan.tree, i, node, &scratch.shares)
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
    let with_headroom = u128::from(usage.used) * u128::from(1_000 + headroom) / 1_000;
    (!usage.wanted_more).then(|| narrow(with_headroom).clamp(trickle, UNBOUNDED))
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
    const fn unshared(resource: Resource) -> Self {
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
