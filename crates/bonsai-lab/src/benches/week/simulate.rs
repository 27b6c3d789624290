//! The week: what is wanted, what the enforcement lets through, what is decided from it.
//!
//! # What is modelled
//! A *step* is a second. Within it a pool shares by the rules of the ledger's groups (and of
//! HTB): to each its guarantee, the rest by weight to those who want more, up to their ceilings.
//! That lending takes microseconds there, so it follows the demand of the step itself, by the
//! guarantees and weights of the decision before. Plain limits know only the decision before.

use bonsai_policy::{
    Allocation, Automatic, Class, Config, Mode, Observation, Policy, Seen, Service, Terms, Usage,
};
use bonsai_units::{Rate, Resource};
use serde::{Deserialize, Serialize};

use super::load::{DAY_S, HOUR_S, Load, SERVICES, WEEK_S};

const SEND: usize = Resource::Send as usize;

/// The link, Mbit/s.
pub(super) const CAPACITY: f64 = 100.0;

/// A Monday, 00:00 UTC: 2024-01-01.
const MONDAY_S: u64 = 1_704_067_200;

/// Rates are compared to so many Mbit/s: thousandths of a byte are rounded.
const NEAR: f64 = 1e-6;

/// What enforces the decisions.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Enforcement {
    /// A group of the ledger.
    Pool,
    /// A limit for each service.
    Limits,
}

/// Means of an interval, Mbit/s.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(super) struct Bin {
    /// What media services wanted, what they were guaranteed, and what they got.
    pub(super) demand: f64,
    pub(super) guarantee: f64,
    pub(super) media: f64,
    /// What the others got.
    pub(super) others: f64,
}

/// What came out of a week.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Week {
    pub(super) enforcement: Enforcement,
    pub(super) step_s: u64,
    /// Steps of media services: all in which they wanted something; those in which one had less
    /// than its demand and less than its guarantee; less than its demand; and, from the second
    /// day of a service on, all, and those in which its demand was above its guarantee.
    pub(super) steps: u64,
    pub(super) broken: u64,
    pub(super) short: u64,
    pub(super) known_steps: u64,
    pub(super) uncovered: u64,
    /// Part of the media's bytes that did not get through.
    pub(super) lost: f64,
    /// Part that the others got of what the media left, over the week, and in the worst hour.
    pub(super) lent: f64,
    pub(super) lent_worst_hour: f64,
    /// Part of the media's guarantees that was not wanted by them.
    pub(super) slack: f64,
    /// The highest sum of all guarantees, Mbit/s.
    pub(super) most_guaranteed: f64,
    /// Automatic changes of guarantees.
    pub(super) changes: u64,
    /// Means of ten minutes.
    pub(super) bins: Vec<Bin>,
}

/// Length of a bin.
pub(super) const BIN_S: u64 = 600;

fn milli(mbit: f64) -> u64 {
    let bytes = (mbit * 125_000.0).max(0.0);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a positive rate far below the highest"
    )]
    let milli = (bytes * 1_000.0) as u64;
    milli
}

fn mbit(milli: u64) -> f64 {
    milli as f64 / 125e6
}

/// Mode adaptive, switched on; bulk is lent to and has no guarantee, and media services begin
/// with 10 Mbit/s.
fn config() -> Config {
    let class = |name: &str, mode: Mode, min: Option<u64>| {
        let mut terms = [Terms::default(); Resource::COUNT];
        terms[SEND].min = min.map(|mbit| Rate::bytes_per_sec(mbit * 125_000).milli());
        Class {
            name: name.into(),
            mode: Some(mode),
            group: None,
            terms,
            target: None,
        }
    };
    let service = |shape: &super::load::Shape| Service {
        class: Some(shape.class.into()),
        ..Service::named(shape.name)
    };
    let mut config = Config {
        automatic: Automatic::On,
        classes: vec![
            class("media", Mode::Adaptive, Some(10)),
            class("pages", Mode::Adaptive, None),
            class("bulk", Mode::Dynamic, None),
        ],
        services: SERVICES.iter().map(service).collect(),
        ..Config::default()
    };
    config.capacity[SEND] = Some(milli(CAPACITY));
    config
}

/// What a pool lets through, Mbit/s: guarantees first, the rest by weight.
fn pool(allocation: &Allocation, wants: &[f64]) -> Vec<f64> {
    let grants = || {
        allocation
            .services
            .iter()
            .map(|service| &service.grants[SEND])
    };
    let most = |(grant, wants): (&bonsai_policy::Grant, &f64)| {
        wants.min(grant.ceiling.map_or(f64::INFINITY, mbit))
    };
    let mosts: Vec<f64> = grants().zip(wants).map(most).collect();
    let guaranteed = |(grant, most): (&bonsai_policy::Grant, &f64)| most.min(mbit(grant.guarantee));
    let mut got: Vec<f64> = grants().zip(&mosts).map(guaranteed).collect();
    // Each round fills somebody, or gives everything away.
    for _ in 0..wants.len() {
        let left = CAPACITY - got.iter().sum::<f64>();
        let wanting = |i: &usize| mosts[*i] - got[*i] > NEAR;
        let open: Vec<usize> = (0..wants.len()).filter(wanting).collect();
        let weight = |i: usize| f64::from(allocation.services[i].grants[SEND].weight);
        let weights: f64 = open.iter().map(|&i| weight(i)).sum();
        if left <= NEAR || open.is_empty() {
            break;
        }
        let room = |&i: &usize| (mosts[i] - got[i]) / weight(i);
        let level = open.iter().map(room).fold(left / weights, f64::min);
        for i in open {
            got[i] += level * weight(i);
        }
    }
    got
}

/// What plain limits let through.
fn limits(allocation: &Allocation, wants: &[f64]) -> Vec<f64> {
    let limit = |service: &bonsai_policy::Allocated| service.grants[SEND].limit.map(mbit);
    let pairs = allocation.services.iter().zip(wants);
    pairs
        .map(|(service, wants)| wants.min(limit(service).unwrap_or(f64::INFINITY)))
        .collect()
}

/// Sums while the week goes on.
#[derive(Debug, Default)]
struct Sums {
    demanded: f64,
    got: f64,
    guaranteed: f64,
    unused: f64,
    hour: (f64, f64),
    whole: (f64, f64),
}

/// A week, from a seed. Steps of more than a second are coarser, and quicker.
pub(super) fn simulate(seed: u64, enforcement: Enforcement, step_s: u64) -> Week {
    let mut load = Load::new(seed, step_s);
    let mut policy = Policy::new(config()).expect("the week's configuration is good");
    let mut observation = Observation {
        wall_s: MONDAY_S,
        ..Observation::default()
    };
    let mut week = Week {
        enforcement,
        step_s,
        steps: 0,
        broken: 0,
        short: 0,
        known_steps: 0,
        uncovered: 0,
        lost: 0.0,
        lent: 0.0,
        lent_worst_hour: 1.0,
        slack: 0.0,
        most_guaranteed: 0.0,
        changes: 0,
        bins: Vec::new(),
    };
    let mut sums = Sums::default();
    let mut bin = Bin::default();
    for second in (0..WEEK_S).step_by(usize::try_from(step_s).unwrap_or(1)) {
        let demands = load.at(second);
        let runs = |i: &usize| second >= SERVICES[*i].from_s;
        let running: Vec<usize> = (0..SERVICES.len()).filter(runs).collect();
        if observation.services.len() != running.len() {
            // Who came is seen before its first step.
            observation.services = running
                .iter()
                .map(|&i| Seen {
                    name: SERVICES[i].name.into(),
                    usage: [Usage::default(); Resource::COUNT],
                })
                .collect();
            policy.decide(&observation);
        }
        let wants: Vec<f64> = running.iter().map(|&i| demands[i]).collect();
        let allocation = policy.allocation();
        let got = match enforcement {
            Enforcement::Pool => pool(allocation, &wants),
            Enforcement::Limits => limits(allocation, &wants),
        };
        let step = judge(
            &mut week, &mut sums, allocation, &running, &wants, &got, second,
        );
        add(&mut bin, step, (BIN_S / step_s) as f64);
        if (second + step_s).is_multiple_of(BIN_S) {
            week.bins.push(core::mem::take(&mut bin));
        }
        if (second + step_s).is_multiple_of(HOUR_S) {
            let (others, free) = core::mem::take(&mut sums.hour);
            week.lent_worst_hour = week.lent_worst_hour.min(others / free);
        }
        observe(&mut observation, &wants, &got, second + step_s);
        week.changes += policy.decide(&observation).changes.len() as u64;
    }
    week.lost = 1.0 - sums.got / sums.demanded;
    week.lent = sums.whole.0 / sums.whole.1;
    week.slack = sums.unused / sums.guaranteed;
    week
}

fn observe(observation: &mut Observation, wants: &[f64], got: &[f64], second: u64) {
    observation.now_ns = second * 1_000_000_000;
    observation.wall_s = MONDAY_S + second;
    for (seen, (wants, got)) in observation.services.iter_mut().zip(wants.iter().zip(got)) {
        seen.usage[SEND] = Usage {
            used: milli(*got),
            wanted_more: wants - got > NEAR,
            borrowed: None,
            bound: None,
        };
    }
}

/// Holds a step against what is promised.
fn judge(
    week: &mut Week,
    sums: &mut Sums,
    allocation: &Allocation,
    running: &[usize],
    wants: &[f64],
    got: &[f64],
    second: u64,
) -> Bin {
    let mut step = Bin::default();
    let mut guaranteed = 0.0;
    for (at, &i) in running.iter().enumerate() {
        let guarantee = mbit(allocation.services[at].grants[SEND].guarantee);
        guaranteed += guarantee;
        let (wants, got) = (wants[at], got[at]);
        if SERVICES[i].class != "media" {
            step.others += got;
            continue;
        }
        step.demand += wants;
        step.guarantee += guarantee;
        step.media += got;
        if wants <= 0.0 {
            continue;
        }
        let known = second >= SERVICES[i].from_s + DAY_S;
        week.steps += 1;
        week.short += u64::from(wants - got > NEAR);
        week.broken += u64::from(wants.min(guarantee) - got > NEAR);
        week.known_steps += u64::from(known);
        week.uncovered += u64::from(known && wants - guarantee > NEAR);
        sums.unused += (guarantee - wants).max(0.0);
        sums.guaranteed += guarantee;
    }
    sums.demanded += step.demand;
    sums.got += step.media;
    for sum in [&mut sums.hour, &mut sums.whole] {
        sum.0 += step.others;
        sum.1 += CAPACITY - step.media;
    }
    week.most_guaranteed = week.most_guaranteed.max(guaranteed);
    step
}

fn add(bin: &mut Bin, step: Bin, steps: f64) {
    bin.demand += step.demand / steps;
    bin.guarantee += step.guarantee / steps;
    bin.media += step.media / steps;
    bin.others += step.others / steps;
}
