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

use crate::allocation::{Allocated, Allocation, Grant};
use crate::automatic::{Auto, Learned};
use crate::check::Problem;
use crate::config::{Config, Mode, Name, PerResource, is_same};
use crate::history::Gathered;
use crate::observation::{Observation, Seen};
use crate::plan::Plan;
use crate::qos::Reports;
use crate::share::{Kept, Peak, Scratch, Shared};

/// What is remembered of a service from one decision to the next.
#[derive(Clone, Debug, Default)]
pub(crate) struct Live {
    /// Whether it runs.
    pub(crate) present: bool,
    /// Whether its mode is static, adaptive, or qos.
    pub(crate) fixed: bool,
    pub(crate) adapts: bool,
    pub(crate) reported: bool,
    /// When its demand is looked at again.
    pub(crate) due_s: f64,
    pub(crate) gathered: Gathered,
    /// What few decisions look at, apart, so that the rest of a thousand services stays in the
    /// cache.
    pub(crate) cold: Box<Cold>,
}

/// Peaks are those of one to two windows, ns. Where each of a thousand services does something
/// else each time, the peaks of so long are nearly always the same.
const WINDOW_NS: u64 = 2_000_000_000;

/// What few decisions look at.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cold {
    pub(crate) auto: PerResource<Auto>,
    /// The guarantees in force, where they were changed automatically.
    pub(crate) applied: PerResource<Option<u64>>,
    pub(crate) reports: Reports,
}

/// Decides who gets how much. Pure: the same calls give the same answers.
#[derive(Clone, Debug)]
pub struct Policy {
    pub(crate) config: Config,
    pub(crate) plan: Plan,
    /// Of each service of the plan.
    pub(crate) live: Vec<Live>,
    /// Those of them whose mode is static.
    pub(crate) statics: Vec<u32>,
    pub(crate) shared: PerResource<Shared>,
    /// Demands of services without a guarantee are their peaks; since when this window is, ns.
    pub(crate) holds: bool,
    window_ns: u64,
    /// Services that run without being configured.
    others: Vec<Name>,
    /// The service of the plan at each place of the observation.
    pub(crate) places: Vec<u32>,
    pub(crate) scratch: Scratch,
    pub(crate) learned: Learned,
    pub(crate) allocation: Allocation,
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
        let mut policy = Self {
            config,
            statics: Vec::new(),
            shared: Default::default(),
            holds: false,
            window_ns: 0,
            others: Vec::new(),
            places: Vec::new(),
            scratch: Scratch::default(),
            learned: Learned::new(plan.services.len()),
            live,
            plan,
            allocation: Allocation::default(),
        };
        policy.renew();
        Ok(policy)
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
        for (at, service) in other.plan.services.iter().enumerate() {
            if let Some(&was) = self.plan.index.get(&service.name) {
                other.live[at] = self.live[was as usize].clone();
                for (other, shared) in other.shared.iter_mut().zip(&self.shared) {
                    other.kept[at] = shared.kept[was as usize];
                }
            }
        }
        other.renew();
        other.fit();
        other.decide(observation);
        Ok(other.allocation)
    }

    /// Has demands of services without a guarantee taken for their peaks of the last two to four
    /// seconds: for whoever cannot rewrite the limits of so many services in each period, where
    /// all of them use something else each time and there is not enough for all.
    pub fn hold_peaks(&mut self, holds: bool) {
        self.holds = holds;
    }

    /// Decides for what was seen.
    pub fn decide(&mut self, observation: &Observation) -> &Allocation {
        self.look_up(observation);
        self.turn_window(observation.now_ns);
        self.prepare(observation);
        self.learn(observation);
        for resource in Resource::ALL {
            self.share(resource, observation);
        }
        &self.allocation
    }

    fn turn_window(&mut self, now_ns: u64) {
        if !self.holds || now_ns.saturating_sub(self.window_ns) < WINDOW_NS {
            return;
        }
        self.window_ns = now_ns;
        for kept in self.shared.iter_mut().flat_map(|shared| &mut shared.kept) {
            kept.peak = Peak {
                before: kept.peak.now,
                now: 0,
            };
        }
    }

    /// Makes the plan anew, with `others` beside the configured services.
    fn plan(&mut self, others: Vec<Name>) {
        let plan = Plan::new(&self.config, &others);
        let mut live = vec![Live::default(); plan.services.len()];
        let mut kept = [(); Resource::COUNT].map(|()| vec![Kept::default(); live.len()]);
        for (at, service) in plan.services.iter().enumerate() {
            if let Some(&was) = self.plan.index.get(&service.name) {
                live[at] = core::mem::take(&mut self.live[was as usize]);
                for (kept, shared) in kept.iter_mut().zip(&self.shared) {
                    kept[at] = shared.kept[was as usize];
                }
            }
        }
        for (shared, kept) in self.shared.iter_mut().zip(kept) {
            shared.kept = kept;
        }
        self.learned.move_to(&self.plan, &plan);
        self.plan = plan;
        self.live = live;
        self.renew();
        self.others = others;
        self.places.clear();
    }

    /// Notes what follows from plan and services.
    fn renew(&mut self) {
        self.statics.clear();
        for (at, (live, service)) in (0..).zip(self.live.iter_mut().zip(&self.plan.services)) {
            live.fixed = service.mode == Mode::Static;
            live.adapts = service.mode == Mode::Adaptive;
            live.reported = service.mode == Mode::Qos;
            if live.fixed {
                self.statics.push(at);
            }
        }
        for (i, shared) in self.shared.iter_mut().enumerate() {
            shared.renew(&self.plan, i, &self.live);
        }
    }

    /// Finds the services of an observation. Most periods have those of the one before.
    fn look_up(&mut self, observation: &Observation) {
        let seen = &observation.services;
        let before = &self.allocation.services;
        let same = |(seen, before): (&Seen, &Allocated)| is_same(&seen.name, &before.name);
        if self.places.len() == seen.len() && seen.iter().zip(before).all(same) {
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
        let at = |seen: &Seen| index.get(&seen.name).copied().unwrap_or(0);
        self.places.clear();
        self.places.extend(seen.iter().map(at));
        let mut present = vec![false; self.live.len()];
        for &at in &self.places {
            present[at as usize] = true;
        }
        for (live, present) in self.live.iter_mut().zip(present) {
            if live.present != present {
                live.present = present;
                live.due_s = 0.0;
                live.gathered = Gathered::default();
                if !present {
                    // Whoever comes back begins anew, with what is known of it.
                    *live.cold = Cold::default();
                }
            }
        }
        // What was lowered of a service that begins anew may be another's by now.
        self.fit();
        self.renew();
        self.learned.dirty = true;
    }

    /// An allocation with a place for each service of the observation.
    fn prepare(&mut self, observation: &Observation) {
        let allocation = &mut self.allocation;
        allocation.changes.clear();
        allocation.services.truncate(observation.services.len());
        for (at, seen) in observation.services.iter().enumerate() {
            match allocation.services.get_mut(at) {
                Some(place) if is_same(&place.name, &seen.name) => {}
                Some(place) => place.name = seen.name.clone(),
                None => allocation.services.push(Allocated {
                    name: seen.name.clone(),
                    grants: Resource::ALL.map(Grant::unshared),
                }),
            }
        }
    }
}
