//! Automatic changes of guarantees: learning, the two ways to decide them, and the dry run.
//!
//! A service has a *wish*: the guarantee that the mode would give it. With automatic changes on
//! it is in force; in a dry run it is a proposal, and everything else is as without it.

use std::collections::BTreeMap;

use bonsai_units::Resource;

use crate::adaptive::{EVERY_S, Motion, Range, Wanted, more, wanted};
use crate::allocation::Change;
use crate::cause::{Cause, CauseKind};
use crate::config::{Automatic, Mode, Name, PerResource};
use crate::fill::narrow;
use crate::histogram::Mixture;
use crate::history::{Clock, Histories};
use crate::observation::Observation;
use crate::plan::{Plan, owner};
use crate::policy::Policy;

/// A period counts as at most so long: the machine slept, or the daemon did not run.
const LONGEST_NS: u64 = 10_000_000_000;

/// Histories of so many services that are gone are kept.
const PARKED: usize = 1_024;

/// The automatic side of a guarantee.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Auto {
    /// What it would be, where it is not what is configured.
    pub(crate) wish: Option<u64>,
    why: Option<CauseKind>,
    changed_s: f64,
}

impl Auto {
    /// Takes over a wish of before a restart.
    pub(crate) fn restore(&mut self, wish: u64, why: CauseKind) {
        self.wish = Some(wish);
        self.why = Some(why);
    }
}

/// What was learned.
#[derive(Clone, Debug, Default)]
pub(crate) struct Learned {
    /// Of each service of the plan.
    pub(crate) histories: Vec<Histories>,
    /// Of services that are not in it any more.
    pub(crate) parked: BTreeMap<Name, Histories>,
    pub(crate) clock: Clock,
    last_ns: Option<u64>,
    /// Time that was seen to pass.
    passed_ns: u64,
    pub(crate) mixture: Mixture,
    /// The proposals have to be made anew.
    pub(crate) dirty: bool,
    /// What each node guarantees, with all wishes; made when it is needed first, and again when
    /// wishes were changed otherwise than one by one.
    sums: PerResource<Option<Vec<u64>>>,
    /// Local time, seconds east of UTC.
    pub(crate) utc_offset_s: i32,
    /// Which way automatic changes were the last time.
    was: Automatic,
}

impl Learned {
    pub(crate) fn new(services: usize) -> Self {
        Self {
            histories: vec![Histories::default(); services],
            ..Self::default()
        }
    }

    /// Brings the histories into the order of another plan.
    pub(crate) fn move_to(&mut self, from: &Plan, to: &Plan) {
        for (service, mut histories) in from.services.iter().zip(self.histories.drain(..)) {
            if histories.has_any() {
                self.parked.insert(service.name.clone(), histories);
            }
        }
        let own = to.services.iter();
        self.histories = own
            .map(|s| self.parked.remove(&s.name).unwrap_or_default())
            .collect();
        self.unpark();
        self.dirty = true;
    }

    /// Keeps the histories of a service that is not in the plan.
    pub(crate) fn park(&mut self, name: Name, histories: Histories) {
        self.parked.insert(name, histories);
        self.unpark();
    }

    /// Forgets who was seen least where there are too many.
    fn unpark(&mut self) {
        while self.parked.len() > PARKED {
            let seconds = self.parked.iter_mut();
            let seconds = seconds.map(|(name, histories)| (histories.seconds(), name));
            let shortest = seconds.min();
            let Some(name) = shortest.map(|(_, name)| name.clone()) else {
                break;
            };
            self.parked.remove(&name);
        }
    }

    /// Moves the clocks on to an observation; returns the period's length.
    fn advance(&mut self, observation: &Observation, half_life_h: u32) -> u64 {
        let now_ns = observation.now_ns;
        let last_ns = self.last_ns.replace(now_ns).unwrap_or(now_ns);
        let span_ns = now_ns.saturating_sub(last_ns).min(LONGEST_NS);
        self.passed_ns = self.passed_ns.saturating_add(span_ns);
        self.clock = Clock {
            history_s: self.clock.history_s + span_ns as f64 / 1e9,
            local_s: observation
                .wall_s
                .saturating_add_signed(i64::from(self.utc_offset_s)),
            half_life_s: f64::from(half_life_h) * 3_600.0,
        };
        span_ns
    }
}

/// When a service is looked at again: once a minute, not all of a machine in the same period.
fn next_look(now_s: f64, service: usize) -> f64 {
    let shift = (service * 37 % 600) as f64 / 10.0;
    ((now_s + shift) / EVERY_S).floor() * EVERY_S + EVERY_S - shift
}

impl Policy {
    /// Sets where local time is, seconds east of UTC: the hours of a day, by which demand is learned, are those by which people
    /// live, and move with their clocks.
    pub fn set_utc_offset(&mut self, seconds: i32) {
        self.learned.utc_offset_s = seconds;
    }

    /// Learns from an observation, and changes guarantees, or says what it would change.
    pub(crate) fn learn(&mut self, observation: &Observation) {
        let adaptive = self.config.adaptive;
        let span_ns = self.learned.advance(observation, adaptive.half_life_h);
        let (now_ns, now_s) = (self.learned.passed_ns, self.learned.clock.history_s);
        for (place, seen) in observation.services.iter().enumerate() {
            let at = self.places[place] as usize;
            let live = &mut self.live[at];
            live.gathered.add(&seen.usage, span_ns);
            let over = live.gathered.is_over(now_ns - span_ns, now_ns, at);
            let rates = over.then(|| {
                let done = core::mem::take(&mut live.gathered);
                self.learned.histories[at].note(&done, &self.learned.clock, at)
            });
            let due = live.adapts && live.due_s <= now_s;
            if due {
                live.due_s = next_look(now_s, at);
            }
            if live.adapts && (over || due) {
                for i in 0..Resource::COUNT {
                    self.follow_demand(at, i, rates.map(|rates| rates[i]), due);
                }
            }
        }
        self.follow_reports(observation);
        if self.learned.was != self.config.automatic {
            self.learned.was = self.config.automatic;
            self.learned.dirty = true;
        }
        if self.learned.dirty {
            self.apply();
        }
    }

    /// Within what a guarantee may be changed.
    fn range(&self, at: usize, i: usize) -> Range {
        let bounds = self.plan.tree.bounds[i][self.plan.node(at)];
        Range {
            least: self.plan.services[at].own_min[i].min(bounds.min),
            start: bounds.min,
            most: bounds.max.min(self.owner_most(at, i, bounds.min)),
        }
    }

    /// The most that a guarantee grows to for the sake of its owner: an owner chooses what is reported of their services, what these
    /// demand, and how many there are: what others are promised and may borrow is not theirs to take.
    fn owner_most(&self, at: usize, i: usize, configured: u64) -> u64 {
        let (Some(most), Some(capacity)) = (self.config.owner_most, self.config.capacity[i]) else {
            return u64::MAX;
        };
        let Some(owner) = owner(&self.plan.services[at].name) else {
            return u64::MAX;
        };
        let most = narrow(u128::from(capacity) * u128::from(most) / 1_000);
        let bounds = &self.plan.tree.bounds[i];
        let services = self.plan.services.iter().enumerate();
        let others =
            services.filter(|(j, of)| *j != at && crate::plan::owner(&of.name) == Some(owner));
        let grown = others.map(|(j, _)| {
            let configured = bounds[self.plan.node(j)].min;
            self.wish(j, i).saturating_sub(configured)
        });
        let grown = grown.fold(0, u64::saturating_add);
        configured.saturating_add(most.saturating_sub(grown))
    }

    /// The guarantee that a service has, or would have.
    pub(crate) fn wish(&self, at: usize, i: usize) -> u64 {
        let configured = self.plan.tree.bounds[i][self.plan.node(at)].min;
        self.live[at].cold.auto[i].wish.unwrap_or(configured)
    }

    /// What all guarantees may come to.
    pub(crate) fn most_of_all(&self, i: usize) -> Option<u64> {
        let capacity = u128::from(self.config.capacity[i]?);
        let kept = u128::from(1_000 - self.config.reserve.min(1_000));
        Some(narrow(capacity * kept / 1_000))
    }

    /// By how much a guarantee may grow.
    fn room(&mut self, at: usize, i: usize, most_of_all: u64) -> u64 {
        let sums = match self.learned.sums[i].take() {
            Some(sums) => sums,
            None => {
                let first = self.plan.tree.first_leaf;
                self.plan
                    .tree
                    .guaranteed(i, |node| self.wish(node - first, i))
            }
        };
        let room = self
            .plan
            .tree
            .room(i, &sums, self.plan.node(at), most_of_all);
        self.learned.sums[i] = Some(sums);
        room
    }

    /// Mode adaptive: once a minute, and when a second was above the guarantee.
    fn follow_demand(&mut self, at: usize, i: usize, second: Option<u64>, due: bool) {
        let Some(most_of_all) = self.most_of_all(i) else {
            return;
        };
        let from = self.wish(at, i);
        let above = second.filter(|&second| second > from);
        if above.is_none() && !due {
            return;
        }
        let room = self.room(at, i, most_of_all);
        // What there is no room for is said once a minute, and not each second.
        if room == 0 && !due {
            return;
        }
        let clock = self.learned.clock;
        let range = self.range(at, i);
        let since_s = clock.history_s - self.live[at].cold.auto[i].changed_s;
        let Learned {
            histories, mixture, ..
        } = &mut self.learned;
        let Some(history) = histories[at].settled(i) else {
            return;
        };
        let wanted = wanted(history, &clock, &self.config, range, above, mixture);
        let motion = Motion {
            from,
            since_s,
            room,
            most_of_all,
        };
        if let Some(next) = motion.towards(wanted, &self.config) {
            self.change(at, i, next);
        }
    }

    /// Mode qos.
    fn follow_reports(&mut self, observation: &Observation) {
        let now_s = self.learned.clock.history_s;
        for report in &observation.reports {
            let Some(&at) = self.plan.index.get(&report.service) else {
                continue;
            };
            let at = at as usize;
            if let Some(target) = &self.plan.services[at].target {
                self.live[at].cold.reports.take(report, target, now_s);
            }
        }
        for (place, seen) in observation.services.iter().enumerate() {
            let at = self.places[place] as usize;
            if !self.live[at].reported {
                continue;
            }
            let service = &self.plan.services[at];
            let (Mode::Qos, Some(target)) = (service.mode, service.target) else {
                continue;
            };
            let i = target.resource.unwrap_or(Resource::Send).index();
            let Some(most_of_all) = self.most_of_all(i) else {
                continue;
            };
            let from = self.wish(at, i);
            let range = self.reports_range(at, i, from, most_of_all);
            let usage = seen.usage[i];
            let (qos, reports) = (&self.config.qos, &mut self.live[at].cold.reports);
            let next = reports.decide(from, range, usage.used, usage.wanted_more, qos, now_s);
            let Some(mut next) = next else { continue };
            if next.rate > from {
                let rate = next
                    .rate
                    .min(from.saturating_add(self.room(at, i, most_of_all)));
                if rate < next.rate {
                    let wanted = next.rate;
                    next.why = CauseKind::Short {
                        wanted,
                        most: most_of_all,
                    };
                }
                next.rate = rate;
            }
            if next.rate != from {
                self.live[at].cold.reports.changed(now_s);
                self.change(at, i, next);
            }
        }
    }

    /// Within what reports may change a guarantee.
    fn reports_range(&self, at: usize, i: usize, from: u64, most_of_all: u64) -> Range {
        let range = self.range(at, i);
        let (qos, start) = (&self.config.qos, range.start);
        let times = narrow(u128::from(start) * u128::from(qos.most) / 1_000);
        let times = if start == 0 { most_of_all } else { times };
        // In a dry run more has no effect that the next report could show: one step is all
        // that can be proposed.
        let step = match self.config.automatic {
            Automatic::DryRun => more(start, qos.raise).max(from),
            Automatic::On => u64::MAX,
        };
        Range {
            least: start,
            most: range.most.min(times).min(step),
            ..range
        }
    }

    /// Changes a wish.
    fn change(&mut self, at: usize, i: usize, next: Wanted) {
        let node = self.plan.node(at);
        if let Some(sums) = &mut self.learned.sums[i] {
            self.plan.tree.guarantee(i, sums, node, next.rate);
        }
        let auto = &mut self.live[at].cold.auto[i];
        auto.wish = Some(next.rate);
        auto.why = Some(next.why);
        auto.changed_s = self.learned.clock.history_s;
        self.learned.dirty = true;
    }

    /// Puts wishes in force, or says what they are.
    fn apply(&mut self) {
        self.learned.dirty = false;
        let Self {
            allocation,
            plan,
            live,
            shared,
            places,
            config,
            ..
        } = self;
        allocation.proposals.clear();
        for &at in places.iter() {
            let service = &plan.services[at as usize];
            for resource in Resource::ALL {
                let i = resource.index();
                let cold = &mut *live[at as usize].cold;
                let auto = &mut cold.auto[i];
                if !matches!(service.mode, Mode::Adaptive | Mode::Qos) {
                    auto.wish = None;
                    self.learned.sums[i] = None;
                }
                let configured = plan.tree.bounds[i][plan.node(at as usize)].min;
                let on = config.automatic == Automatic::On;
                let applied = auto.wish.filter(|_| on);
                let kind = match (applied, auto.why) {
                    (Some(_), Some(why)) => why,
                    _ => CauseKind::SwitchedOff,
                };
                let change = |from: Option<u64>, to: Option<u64>, kind| Change {
                    service: service.name.clone(),
                    resource,
                    from: from.unwrap_or(configured),
                    to: to.unwrap_or(configured),
                    why: Cause { resource, kind },
                };
                let done = change(cold.applied[i], applied, kind);
                if done.from != done.to {
                    allocation.changes.push(done);
                }
                if cold.applied[i] != applied {
                    cold.applied[i] = applied;
                    shared[i].guarantee(at as usize, applied.unwrap_or(configured));
                }
                if let (false, Some(_), Some(why)) = (on, auto.wish, auto.why) {
                    let proposed = change(None, auto.wish, why);
                    if proposed.from != proposed.to {
                        allocation.proposals.push(proposed);
                    }
                }
            }
        }
    }

    /// Makes wishes fit another configuration.
    pub(crate) fn fit(&mut self) {
        let first = self.plan.tree.first_leaf;
        self.learned.sums = PerResource::default();
        for i in 0..Resource::COUNT {
            let Some(most_of_all) = self.most_of_all(i) else {
                continue;
            };
            let bounds = &self.plan.tree.bounds[i];
            let mut sums = self.plan.tree.guaranteed(i, |node| bounds[node].min);
            for at in 0..self.live.len() {
                let Some(wish) = self.live[at].cold.auto[i].wish else {
                    continue;
                };
                let range = self.range(at, i);
                let node = first + at;
                let room = self.plan.tree.room(i, &sums, node, most_of_all);
                let most = self.owner_most(at, i, range.start);
                let wish = wish
                    .max(range.least)
                    .min(sums[node].saturating_add(room))
                    .min(most);
                self.plan.tree.guarantee(i, &mut sums, node, wish);
                self.live[at].cold.auto[i].wish = Some(wish);
            }
        }
    }
}
