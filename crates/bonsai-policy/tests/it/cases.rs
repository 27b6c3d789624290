//! Random machines: a tree of groups, services in it, and what they were seen to do.

use bonsai_policy::{Config, Group, Mode, Observation, Seen, Service, Terms, Usage};
use bonsai_units::Resource;
use proptest::prelude::*;

/// The resource that the cases are about.
pub(crate) const SEND: usize = Resource::Send as usize;

/// A group: its parent (0 is the root, `i` the group `i - 1`, always an earlier one), what it
/// guarantees beyond its members and its ceiling above that, both in parts of 1,000 of the
/// capacity, and its weight.
#[derive(Clone, Debug)]
pub(crate) struct RawGroup {
    pub(crate) parent: usize,
    pub(crate) extra: u64,
    pub(crate) headroom: Option<u64>,
    pub(crate) weight: u32,
}

/// A service, likewise; `used` is `None` where it wants everything.
#[derive(Clone, Debug)]
pub(crate) struct RawService {
    pub(crate) parent: usize,
    pub(crate) min: u64,
    pub(crate) headroom: Option<u64>,
    pub(crate) weight: u32,
    pub(crate) used: Option<u64>,
}

/// A machine.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) capacity: u64,
    pub(crate) groups: Vec<RawGroup>,
    pub(crate) services: Vec<RawService>,
}

fn part() -> impl Strategy<Value = u64> {
    prop_oneof![3 => Just(0), 4 => 1_u64..300, 2 => 300_u64..1_500]
}

fn ceiling() -> impl Strategy<Value = Option<u64>> {
    prop_oneof![2 => Just(None), 1 => part().prop_map(Some)]
}

fn weight() -> impl Strategy<Value = u32> {
    prop_oneof![3 => Just(1), 3 => 1_u32..10, 1 => 1_u32..=1_000]
}

/// Machines with up to `groups` groups and `services` services.
pub(crate) fn cases(groups: usize, services: usize) -> impl Strategy<Value = Case> {
    let group = (any::<prop::sample::Index>(), part(), ceiling(), weight());
    let group =
        group.prop_map(|(parent, extra, headroom, weight)| (parent, extra, headroom, weight));
    let used = prop_oneof![1 => Just(None), 2 => part().prop_map(Some)];
    let service = (
        any::<prop::sample::Index>(),
        part(),
        ceiling(),
        weight(),
        used,
    );
    let capacity = prop_oneof![1_u64..1_000, 1_000_u64..2_000_000, Just(12_500_000_000)];
    let all = (
        capacity,
        prop::collection::vec(group, 0..=groups),
        prop::collection::vec(service, 1..=services),
    );
    all.prop_map(|(capacity, groups, services)| {
        let raw_groups: Vec<RawGroup> = groups
            .into_iter()
            .enumerate()
            .map(|(i, (parent, extra, headroom, weight))| RawGroup {
                parent: parent.index(i + 1),
                extra,
                headroom,
                weight,
            })
            .collect();
        let count = raw_groups.len();
        let service =
            |(parent, min, headroom, weight, used): (prop::sample::Index, _, _, _, _)| RawService {
                parent: parent.index(count + 1),
                min,
                headroom,
                weight,
                used,
            };
        Case {
            capacity,
            services: services.into_iter().map(service).collect(),
            groups: raw_groups,
        }
    })
}

impl Case {
    /// The same part of the capacity for all guarantees, so that they fit.
    fn scaled(&self, part: u64) -> u64 {
        let mins = self.services.iter().map(|s| s.min);
        let all: u64 = mins.chain(self.groups.iter().map(|g| g.extra)).sum();
        let whole = u128::from(all.max(1_000));
        u64::try_from(u128::from(self.capacity) * u128::from(part) / whole).expect("fits")
    }

    fn of_capacity(&self, part: u64) -> u64 {
        u64::try_from(u128::from(self.capacity) * u128::from(part) / 1_000).expect("fits")
    }

    fn group_name(&self, parent: usize) -> Option<bonsai_policy::Name> {
        (parent > 0).then(|| format!("g{}", parent - 1).into())
    }

    /// Guarantees of groups, each at least that of its members.
    fn group_mins(&self) -> Vec<u64> {
        let mut mins = vec![0; self.groups.len() + 1];
        for service in &self.services {
            mins[service.parent] += self.scaled(service.min);
        }
        for (i, group) in self.groups.iter().enumerate().rev() {
            mins[i + 1] += self.scaled(group.extra);
            mins[group.parent] += mins[i + 1];
        }
        mins
    }

    /// The configuration, without headroom in demands.
    pub(crate) fn config(&self) -> Config {
        let mins = self.group_mins();
        let terms = |min: u64, headroom: Option<u64>, weight| {
            let mut terms = [Terms::default(); Resource::COUNT];
            terms[SEND] = Terms {
                min: Some(min),
                max: headroom.map(|part| (min + self.of_capacity(part)).max(1)),
                weight: Some(weight),
            };
            terms
        };
        let mut config = Config {
            mode: Mode::Dynamic,
            headroom: 0,
            hysteresis: 0,
            ..Config::default()
        };
        config.capacity[SEND] = Some(self.capacity);
        config.groups = (0..)
            .zip(&self.groups)
            .map(|(i, group)| Group {
                name: format!("g{i}").into(),
                parent: self.group_name(group.parent),
                terms: terms(mins[i + 1], group.headroom, group.weight),
            })
            .collect();
        config.services = (0..)
            .zip(&self.services)
            .map(|(i, service)| Service {
                group: self.group_name(service.parent),
                terms: terms(self.scaled(service.min), service.headroom, service.weight),
                ..Service::named(format!("s{i}"))
            })
            .collect();
        config
    }

    /// What was seen.
    pub(crate) fn observation(&self) -> Observation {
        let seen = |(i, service): (usize, &RawService)| {
            let mut usage = [Usage::default(); Resource::COUNT];
            usage[SEND] = Usage {
                used: self.of_capacity(service.used.unwrap_or(0)),
                wanted_more: service.used.is_none(),
                borrowed: None,
                bound: None,
            };
            Seen {
                name: format!("s{i}").into(),
                usage,
            }
        };
        Observation {
            services: self.services.iter().enumerate().map(seen).collect(),
            ..Observation::default()
        }
    }
}
