//! Weight and quota of a group or a unit, in the units of where they are kept.

use std::fmt;

use bonsai_units::Quota;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::group::Cgroup;
use crate::hierarchy::{Controller, Hierarchies, Version};
use crate::record::Target;
use crate::systemd::{Property, Unit};
use crate::target::{self, Found};

/// Weight and shares of a group that nobody has changed.
const DEFAULT_WEIGHT: u64 = 100;
const DEFAULT_SHARES: u64 = 1_024;

/// What the kernel takes as shares (`MIN_SHARES`, `MAX_SHARES`).
const SHARES: (u64, u64) = (2, 262_144);

/// The kernel's period where nothing else was said, us.
const DEFAULT_PERIOD: u64 = 100_000;

const S: u64 = 1_000_000;

/// A weight as it is kept: `cpu.weight` (version 2), `cpu.shares` (version 1), or `CPUWeight` of
/// a unit, where `u64::MAX` says that nothing was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Weight(u64);

/// A quota as it is kept: of a group a time in each period, us; of a unit the time per second and
/// the period, us, where `u64::MAX` says that nothing was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Kept {
    runtime: Option<u64>,
    period: u64,
}

/// Where weight and quota of a target are.
#[derive(Debug)]
pub(super) enum Place {
    Group(Cgroup),
    Unit { unit: Unit, group: Option<Cgroup> },
}

impl Place {
    pub(super) fn find(hierarchies: &Hierarchies, target: &Target) -> Result<Self, Error> {
        Ok(match target::find(hierarchies, Controller::Cpu, target)? {
            Found::Group(group) => Self::Group(group),
            Found::Unit { unit, path } => {
                let group = path.and_then(|path| hierarchies.group(Controller::Cpu, &path).ok());
                Self::Unit { unit, group }
            }
        })
    }

    pub(super) fn target(&self) -> Target {
        match self {
            Self::Group(group) => Target::Cgroup(group.path().to_owned()),
            Self::Unit { unit, .. } => Target::Unit(unit.name.clone()),
        }
    }

    pub(super) fn id(&self) -> Result<Option<u64>, Error> {
        match self {
            Self::Group(group) => group.id().map(Some),
            Self::Unit { .. } => Ok(None),
        }
    }

    /// The group, where there is one.
    pub(super) const fn group(&self) -> Option<&Cgroup> {
        match self {
            Self::Group(group) => Some(group),
            Self::Unit { group, .. } => group.as_ref(),
        }
    }

    pub(super) fn weight(&self) -> Result<Weight, Error> {
        match self {
            Self::Group(group) => weight_of(group),
            Self::Unit { unit, .. } => unit.number("CPUWeight").map(Weight),
        }
    }

    pub(super) fn quota(&self) -> Result<Kept, Error> {
        match self {
            Self::Group(group) => quota_of(group),
            Self::Unit { unit, .. } => {
                let per_second = unit.number("CPUQuotaPerSecUSec")?;
                Ok(Kept {
                    runtime: Some(per_second).filter(|n| *n != u64::MAX),
                    period: unit.number("CPUQuotaPeriodUSec")?,
                })
            }
        }
    }

    pub(super) fn set_weight(&self, weight: Weight) -> Result<(), Error> {
        let n = weight.0;
        match self {
            Self::Group(group) => {
                let file = match group.version() {
                    Version::V2 => "cpu.weight",
                    Version::V1 => "cpu.shares",
                };
                let what = format!("weight {}", shown(weight, group.version()));
                group.write(file, &n.to_string(), &what)?;
                taken(group.path(), "a weight", &n, &weight_of(group)?.0)
            }
            Self::Unit { unit, .. } => {
                unit.set(&[("CPUWeight", Property::Number(n))])?;
                taken(&unit.name, "a weight", &n, &unit.number("CPUWeight")?)
            }
        }
    }

    pub(super) fn set_quota(&self, quota: Kept) -> Result<(), Error> {
        match self {
            Self::Group(group) => {
                write_quota(group, quota)?;
                taken(group.path(), "a quota", &quota, &quota_of(group)?)
            }
            Self::Unit { unit, .. } => {
                let per_second = quota.runtime.unwrap_or(u64::MAX);
                unit.set(&[
                    ("CPUQuotaPerSecUSec", Property::Number(per_second)),
                    ("CPUQuotaPeriodUSec", Property::Number(quota.period)),
                ])?;
                taken(&unit.name, "a quota", &quota, &self.quota()?)
            }
        }
    }

    /// A weight from 1 to 10,000, as it is kept here. `None` is what everybody has.
    pub(super) fn weight_from(&self, weight: Option<u64>) -> Weight {
        match (self, weight) {
            (Self::Unit { .. }, weight) => Weight(weight.unwrap_or(u64::MAX)),
            (Self::Group(group), weight) => {
                let weight = weight.unwrap_or(DEFAULT_WEIGHT);
                Weight(match group.version() {
                    Version::V2 => weight,
                    Version::V1 => shares(weight),
                })
            }
        }
    }

    /// A quota as it is kept here.
    pub(super) fn quota_from(&self, quota: Option<Quota>) -> Kept {
        match (self, quota) {
            (Self::Group(_), Some(quota)) => Kept {
                runtime: Some(quota.runtime_us),
                period: quota.period_us,
            },
            (Self::Group(_), None) => Kept {
                runtime: None,
                period: DEFAULT_PERIOD,
            },
            (Self::Unit { .. }, Some(quota)) => Kept {
                runtime: Some(per_second(quota)),
                period: match quota.period_us {
                    DEFAULT_PERIOD => u64::MAX,
                    other => other,
                },
            },
            (Self::Unit { .. }, None) => Kept {
                runtime: None,
                period: u64::MAX,
            },
        }
    }
}

/// systemd keeps a quota as time per second.
fn per_second(quota: Quota) -> u64 {
    let exact = u128::from(quota.runtime_us) * u128::from(S) / u128::from(quota.period_us);
    u64::try_from(exact).unwrap_or(u64::MAX - 1)
}

/// Shares of a weight, as systemd converts them (`cgroup_cpu_weight_to_shares`).
pub(super) fn shares(weight: u64) -> u64 {
    (weight * DEFAULT_SHARES / DEFAULT_WEIGHT).clamp(SHARES.0, SHARES.1)
}

/// The weight of a group, 1 to 10,000; the nearest one where there is none that is equal.
pub(super) fn shown(weight: Weight, version: Version) -> u64 {
    match version {
        Version::V2 => weight.0,
        Version::V1 => {
            let nearest = (weight.0 * DEFAULT_WEIGHT + DEFAULT_SHARES / 2) / DEFAULT_SHARES;
            nearest.clamp(1, 10_000)
        }
    }
}

pub(super) fn weight_of(group: &Cgroup) -> Result<Weight, Error> {
    let file = match group.version() {
        Version::V2 => "cpu.weight",
        Version::V1 => "cpu.shares",
    };
    number(group, file, group.read(file)?.trim()).map(Weight)
}

pub(super) fn quota_of(group: &Cgroup) -> Result<Kept, Error> {
    match group.version() {
        Version::V2 => {
            let text = group.read("cpu.max")?;
            let (runtime, period) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
            Ok(Kept {
                runtime: match runtime {
                    "max" => None,
                    n => Some(number(group, "cpu.max", n)?),
                },
                period: number(group, "cpu.max", period)?,
            })
        }
        Version::V1 => {
            let text = group.read("cpu.cfs_quota_us")?;
            let period = group.read("cpu.cfs_period_us")?;
            Ok(Kept {
                runtime: match text.trim() {
                    "-1" => None,
                    n => Some(number(group, "cpu.cfs_quota_us", n)?),
                },
                period: number(group, "cpu.cfs_period_us", period.trim())?,
            })
        }
    }
}

/// A quota for people.
pub(super) fn as_quota(kept: Kept) -> Option<Quota> {
    Some(Quota {
        runtime_us: kept.runtime?,
        period_us: kept.period,
    })
}

fn write_quota(group: &Cgroup, quota: Kept) -> Result<(), Error> {
    let what = format!("quota {quota}");
    let runtime = quota.runtime.map(|n| n.to_string());
    match group.version() {
        Version::V2 => {
            let line = format!("{} {}", runtime.as_deref().unwrap_or("max"), quota.period);
            group.write("cpu.max", &line, &what)
        }
        Version::V1 => {
            let was = quota_of(group)?;
            let undo = |error: Error| {
                // One of two files was written: the first is put back as well as it may be.
                let _ = group.write("cpu.cfs_period_us", &was.period.to_string(), &what);
                let runtime = was.runtime.map_or("-1".to_owned(), |n| n.to_string());
                let _ = group.write("cpu.cfs_quota_us", &runtime, &what);
                error
            };
            if was.period != quota.period {
                // The kernel checks each write against parent and children: no quota always fits.
                group
                    .write("cpu.cfs_quota_us", "-1", &what)
                    .and_then(|()| {
                        group.write("cpu.cfs_period_us", &quota.period.to_string(), &what)
                    })
                    .map_err(undo)?;
            }
            let runtime = runtime.as_deref().unwrap_or("-1");
            let done = group.write("cpu.cfs_quota_us", runtime, &what);
            done.map_err(undo)
        }
    }
}

fn taken<T: PartialEq + fmt::Display>(
    target: &str,
    what: &str,
    wanted: &T,
    found: &T,
) -> Result<(), Error> {
    if wanted == found {
        return Ok(());
    }
    Err(Error::NotTaken {
        target: target.to_owned(),
        wanted: format!("{what} of {wanted}"),
        found: found.to_string(),
    })
}

fn number(group: &Cgroup, file: &str, text: &str) -> Result<u64, Error> {
    text.parse().map_err(|_| Error::Unreadable {
        file: group.folder().join(file),
        what: format!("{text:?} is no number"),
    })
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.runtime {
            None => f.pad("unlimited"),
            Some(runtime) if self.period == u64::MAX => f.pad(&format!("{runtime}us/s")),
            Some(runtime) => f.pad(&format!("{runtime}us/{}us", self.period)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_become_shares_as_systemd_makes_them() {
        for (weight, expected) in [(1, 10), (100, 1_024), (200, 2_048), (10_000, 102_400)] {
            assert_eq!(shares(weight), expected);
            assert_eq!(shown(Weight(expected), Version::V1), weight);
        }
        assert_eq!(shown(Weight(2), Version::V1), 1);
        assert_eq!(shown(Weight(262_144), Version::V1), 10_000);
    }

    #[test]
    fn a_quota_of_a_unit_is_per_second() {
        let quota = "15ms/10ms".parse().expect("a quota");
        assert_eq!(per_second(quota), 1_500_000);
        let quota = "0.5%".parse().expect("a quota");
        assert_eq!(per_second(quota), 5_000);
    }
}
