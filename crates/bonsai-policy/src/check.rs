//! Whether a configuration can be kept, and if not, why, with the arithmetic.

use std::collections::BTreeMap;

use bonsai_units::{Rate, Resource};

use crate::allocation::rate;
use crate::config::{Config, MAX_WEIGHT, Name, Overcommit, PerResource, Terms};
use crate::plan::Plan;

/// What is wrong with a configuration. Each is one sentence that says what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// A name is empty.
    #[error("a {what} has an empty name: give it one")]
    Nameless {
        /// `group`, `class` or `service`.
        what: &'static str,
    },
    /// A name stands twice.
    #[error("there are two of {what} {name}: merge them, or rename one")]
    Twice {
        /// `group`, `class` or `service`.
        what: &'static str,
        /// The name.
        name: Name,
    },
    /// A group that does not exist is named.
    #[error("{who} is to be in group {group}, which does not exist; there {known}")]
    UnknownGroup {
        /// Who names it.
        who: String,
        /// The group.
        group: Name,
        /// `is no group` or `are media, web`.
        known: String,
    },
    /// A class that does not exist is named.
    #[error("{who} is to have class {class}, which does not exist; there {known}")]
    UnknownClass {
        /// Who names it.
        who: String,
        /// The class.
        class: Name,
        /// `is no class` or `are media, bulk`.
        known: String,
    },
    /// Groups are in each other.
    #[error("groups are in each other: {circle}; take one of them out")]
    Loop {
        /// `a in b in a`.
        circle: String,
    },
    /// A guarantee is above the ceiling.
    #[error("{who} has for {resource} a min of {min}, above its max of {max}")]
    MinAboveMax {
        /// Who.
        who: String,
        /// Of what.
        resource: Resource,
        /// The guarantee.
        min: String,
        /// The ceiling.
        max: String,
    },
    /// A weight is out of range.
    #[error("{who} has for {resource} a weight of {weight}; weights are 1 to {MAX_WEIGHT}")]
    Weight {
        /// Who.
        who: String,
        /// Of what.
        resource: Resource,
        /// The weight.
        weight: u32,
    },
    /// A ceiling or a capacity is nothing, or above any machine.
    #[error("{who} has for {resource} {what}; it has to be above 0 and at most 100 GB/s")]
    OutOfRange {
        /// Who.
        who: String,
        /// Of what.
        resource: Resource,
        /// What: `a max of nothing`.
        what: String,
    },
    /// A setting is out of range.
    #[error("{setting} is {value}; it has to be {least} to {most}")]
    Setting {
        /// Which.
        setting: &'static str,
        /// The value that was given, in the unit of the configuration.
        value: String,
        /// The least.
        least: String,
        /// The most.
        most: String,
    },
    /// A target is no number, or negative.
    #[error("{who} has a target for {what} of {value}; it has to be {right}")]
    Target {
        /// Who.
        who: String,
        /// Of what.
        what: &'static str,
        /// What it is.
        value: String,
        /// What would be right.
        right: &'static str,
    },
    /// Guarantees come to more than there is.
    #[error("min of {sum} is {over} more than {of}; lower one, or say overcommit = \"scale\"")]
    Overcommitted {
        /// `vod 60 Mbit/s + web 50 Mbit/s = 110 Mbit/s`.
        sum: String,
        /// `10 Mbit/s`.
        over: String,
        /// `send has, 100 Mbit/s` or `the max of group media for send, 100 Mbit/s`.
        of: String,
    },
}

impl Config {
    /// Whether this configuration can be kept.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn check(&self) -> Result<(), Vec<Problem>> {
        let mut found = Vec::new();
        self.check_names(&mut found);
        self.check_settings(&mut found);
        self.check_terms(&mut found);
        if found.is_empty() && self.overcommit == Overcommit::Refuse {
            found = Plan::overcommitted(self);
        }
        if found.is_empty() { Ok(()) } else { Err(found) }
    }

    fn check_names(&self, found: &mut Vec<Problem>) {
        let groups = names("group", self.groups.iter().map(|g| &g.name), found);
        let classes = names("class", self.classes.iter().map(|c| &c.name), found);
        names("service", self.services.iter().map(|s| &s.name), found);
        let mut group = |who: String, group: &Option<Name>| {
            if let Some(group) = group.as_ref().filter(|group| !groups.contains_key(*group)) {
                found.push(Problem::UnknownGroup {
                    who,
                    group: group.clone(),
                    known: known("group", &groups),
                });
            }
        };
        for inner in &self.groups {
            group(format!("group {}", inner.name), &inner.parent);
        }
        for class in &self.classes {
            group(format!("class {}", class.name), &class.group);
        }
        for service in &self.services {
            group(service.name.to_string(), &service.group);
        }
        let mut class = |who: String, class: &Option<Name>| {
            if let Some(class) = class.as_ref().filter(|class| !classes.contains_key(*class)) {
                found.push(Problem::UnknownClass {
                    who,
                    class: class.clone(),
                    known: known("class", &classes),
                });
            }
        };
        class(
            "every service that names none".to_owned(),
            &self.default_class,
        );
        for service in &self.services {
            class(service.name.to_string(), &service.class);
        }
        self.check_loops(found);
    }

    /// Each circle once, said from the first of its groups in the order of names.
    fn check_loops(&self, found: &mut Vec<Problem>) {
        let parents: BTreeMap<&Name, &Name> = self
            .groups
            .iter()
            .filter_map(|group| Some((&group.name, group.parent.as_ref()?)))
            .collect();
        for &start in parents.keys() {
            let mut circle = vec![start];
            while let Some(&next) = circle.last().and_then(|last| parents.get(last)) {
                if next == start {
                    circle.push(next);
                    let words: Vec<&str> = circle.iter().map(|name| &***name).collect();
                    found.push(Problem::Loop {
                        circle: words.join(" in "),
                    });
                    break;
                }
                // Whoever is earlier tells of its own circle, and one that is met again has
                // a circle that `start` only leads to.
                if next < start || circle.contains(&next) {
                    break;
                }
                circle.push(next);
            }
        }
    }

    /// Checks settings, which are parts of a thousand, all but one.
    fn check_settings(&self, found: &mut Vec<Problem>) {
        const HALF_LIFE: &str = "half-life";
        let (adaptive, qos) = (&self.adaptive, &self.qos);
        if !(1..=MAX_WEIGHT).contains(&self.owner_weight) {
            found.push(Problem::Setting {
                setting: "owner-weight",
                value: self.owner_weight.to_string(),
                least: 1.to_string(),
                most: MAX_WEIGHT.to_string(),
            });
        }
        let settings = [
            ("headroom", i64::from(self.headroom), 0, 10_000),
            ("hysteresis", i64::from(self.hysteresis), 0, 500),
            ("reserve", i64::from(self.reserve), 0, 900),
            (
                "owner-max",
                i64::from(self.owner_most.unwrap_or_default()),
                0,
                1_000,
            ),
            ("percentile", i64::from(adaptive.percentile), 500, 1_000),
            ("margin", i64::from(adaptive.margin), 0, 10_000),
            (HALF_LIFE, i64::from(adaptive.half_life_h), 1, 8_760),
            (
                "adaptive.lower",
                i64::from(adaptive.lower_per_minute),
                1,
                1_000,
            ),
            ("qos.raise", i64::from(qos.raise), 1, 10_000),
            ("qos.lower", i64::from(qos.lower), 1, 500),
            ("qos.most", i64::from(qos.most), 1_000, 1_000_000),
        ];
        for (setting, value, least, most) in settings {
            let written = |number: i64| match setting {
                HALF_LIFE => format!("{number} h"),
                _ if number % 10 == 0 => format!("{} %", number / 10),
                _ => format!("{}.{} %", number / 10, number % 10),
            };
            if !(least..=most).contains(&value) {
                found.push(Problem::Setting {
                    setting,
                    value: written(value),
                    least: written(least),
                    most: written(most),
                });
            }
        }
    }

    fn check_terms(&self, found: &mut Vec<Problem>) {
        for (resource, capacity) in Resource::ALL.into_iter().zip(self.capacity) {
            in_range("the machine", resource, "capacity", capacity, found);
        }
        for group in &self.groups {
            terms(&format!("group {}", group.name), &group.terms, found);
        }
        for class in &self.classes {
            let who = format!("class {}", class.name);
            terms(&who, &class.terms, found);
            target(&who, class.target, found);
        }
        for service in &self.services {
            // What is wrong with the class is said there.
            let class = service.class.as_ref().or(self.default_class.as_ref());
            let class = class.and_then(|name| self.classes.iter().find(|c| c.name == *name));
            let own: PerResource<Terms> = core::array::from_fn(|i| match class {
                Some(class) if service.terms[i] != Terms::default() => {
                    service.terms[i].or(class.terms[i])
                }
                _ => service.terms[i],
            });
            terms(&service.name, &own, found);
            target(&service.name, service.target, found);
        }
    }
}

fn names<'a>(
    what: &'static str,
    all: impl Iterator<Item = &'a Name>,
    found: &mut Vec<Problem>,
) -> BTreeMap<Name, u32> {
    let mut seen = BTreeMap::new();
    for name in all {
        if name.is_empty() {
            found.push(Problem::Nameless { what });
        }
        let times = seen.entry(name.clone()).or_insert(0_u32);
        *times += 1;
        if *times == 2 {
            found.push(Problem::Twice {
                what,
                name: name.clone(),
            });
        }
    }
    seen
}

/// What there is instead, for a sentence that ends with it.
fn known(what: &str, names: &BTreeMap<Name, u32>) -> String {
    let all: Vec<&str> = names.keys().map(|name| &**name).collect();
    match all[..] {
        [] => format!("is no {what}"),
        [one] => format!("is {one}"),
        _ => format!("are {}", all.join(", ")),
    }
}

fn in_range(
    who: &str,
    resource: Resource,
    what: &str,
    value: Option<u64>,
    found: &mut Vec<Problem>,
) {
    if let Some(value) = value.filter(|value| !(1..=Rate::MAX_MILLI).contains(value)) {
        let value = match value {
            0 => "nothing".to_owned(),
            _ => "more than that".to_owned(),
        };
        found.push(Problem::OutOfRange {
            who: who.to_owned(),
            resource,
            what: format!("a {what} of {value}"),
        });
    }
}

fn terms(who: &str, all: &PerResource<Terms>, found: &mut Vec<Problem>) {
    for (resource, terms) in Resource::ALL.into_iter().zip(all) {
        in_range(who, resource, "max", terms.max, found);
        let min = terms.min.filter(|&min| min > 0);
        in_range(who, resource, "min", min, found);
        if let (Some(min), Some(max)) = (min, terms.max)
            && min > max
        {
            found.push(Problem::MinAboveMax {
                who: who.to_owned(),
                resource,
                min: rate(resource, min),
                max: rate(resource, max),
            });
        }
        if let Some(weight) = terms.weight.filter(|w| !(1..=MAX_WEIGHT).contains(w)) {
            found.push(Problem::Weight {
                who: who.to_owned(),
                resource,
                weight,
            });
        }
    }
}

fn target(who: &str, target: Option<crate::Target>, found: &mut Vec<Problem>) {
    let Some(target) = target else { return };
    let values = [
        ("loss", target.loss, 1.0, "0 to 1, a part of all packets"),
        ("delay", target.delay_ms, f64::MAX, "0 or more"),
        ("jitter", target.jitter_ms, f64::MAX, "0 or more"),
        ("stalls", target.stalls, f64::MAX, "0 or more"),
    ];
    for (what, value, most, right) in values {
        if let Some(value) = value.filter(|value| !(0.0..=most).contains(value)) {
            found.push(Problem::Target {
                who: who.to_owned(),
                what,
                value: value.to_string(),
                right,
            });
        }
    }
}
