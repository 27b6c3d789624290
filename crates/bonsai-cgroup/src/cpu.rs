//! What services get of the CPUs: weight and quota of groups and units, time reserved for threads.

mod change;
mod deadline;
mod share;

use std::path::Path;

use bonsai_units::{CpuTerms, Quota, Reserve};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::group::Cgroup;
use crate::hierarchy::{Controller, Hierarchies, Version};
use crate::record::{Holder, Record, Records, Target};
use crate::systemd::is_unit_name;

use change::Changing;
pub use deadline::go_first;
use deadline::{Reserved, Thread};
use share::{Kept, Place, Weight};

/// What a target has of the CPUs.
#[derive(Clone, Debug, PartialEq)]
pub struct CpuInForce {
    /// The target: a unit also where its control group was named.
    pub target: Target,
    /// The path of its control group; a process alone, and a unit that does not run, have none.
    pub group: Option<String>,
    /// Its weight, 1 to 10,000; of version 1 the nearest to its shares.
    pub weight: Option<u64>,
    /// Its quota; `None` is all there is.
    pub quota: Option<Quota>,
    /// What each of its threads has reserved.
    pub reserve: Option<Reserve>,
    /// Threads that have it.
    pub reserved: usize,
    /// All of its threads; 0 where nothing is reserved. Those that were made since have no
    /// reservation before [`Cpu::again`].
    pub threads: usize,
    /// Somebody else had changed what Bonsai set. Only said by [`Cpu::clear`].
    pub changed_since: bool,
}

/// What a group has of the CPUs, and from whom.
#[derive(Clone, Debug)]
pub struct CpuSeen {
    /// What is in force.
    pub state: CpuInForce,
    /// The version of its hierarchy, where it is about a group.
    pub version: Option<Version>,
    /// Who has set it.
    pub holder: Holder,
}

/// What Bonsai has changed of a target.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Held {
    weight: Option<Pair<Weight>>,
    quota: Option<Pair<Kept>>,
    /// Runtime and period of the reservation, ns.
    reserve: Option<(u64, u64)>,
    threads: Vec<Reserved>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Pair<T> {
    before: T,
    set: T,
}

impl Held {
    fn reserve(&self) -> Option<Reserve> {
        self.reserve.map(|(runtime_ns, period_ns)| Reserve {
            runtime_ns,
            period_ns,
        })
    }

    /// Threads that live and have the reservation.
    fn holding(&self) -> usize {
        let holds = |reserve| self.threads.iter().filter(|one| one.holds(reserve)).count();
        self.reserve().map_or(0, holds)
    }

    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Whose CPU time it is about: a group or unit, or a process alone.
#[derive(Debug)]
enum Of {
    Place(Place),
    Process(u32, Thread),
}

impl Of {
    fn find(hierarchies: &Hierarchies, target: &Target) -> Result<Self, Error> {
        if let Target::Process(pid) = target {
            let threads = deadline::threads(*pid);
            let first = threads.into_iter().find(|thread| thread.tid == *pid);
            let first = first.ok_or(Error::NoProcess { pid: *pid })?;
            return Ok(Self::Process(*pid, first));
        }
        Place::find(hierarchies, target).map(Self::Place)
    }

    fn target(&self) -> Target {
        match self {
            Self::Place(place) => place.target(),
            Self::Process(pid, _) => Target::Process(*pid),
        }
    }

    fn id(&self) -> Result<Option<u64>, Error> {
        match self {
            Self::Place(place) => place.id(),
            Self::Process(_, first) => Ok(Some(first.started())),
        }
    }

    fn threads(&self) -> Result<Vec<Thread>, Error> {
        let pids = match self {
            Self::Process(pid, _) => vec![*pid],
            Self::Place(place) => match place.group() {
                Some(group) => group.processes()?,
                None => {
                    let unit = self.target().to_string();
                    return Err(Error::NotRunning { unit });
                }
            },
        };
        // Whoever reserves may be in the group itself, and is not who it is for.
        let own = std::process::id();
        let others = pids.into_iter().filter(|pid| *pid != own);
        Ok(others.flat_map(deadline::threads).collect())
    }
}

/// What reserves for the threads that a target gets.
#[derive(Debug)]
pub struct Sweeper {
    cpu: Cpu,
    of: Of,
    /// All threads when it last looked: where these are the same, there is nothing to do.
    last: Vec<Thread>,
}

impl Sweeper {
    /// As [`Cpu::again`].
    ///
    /// # Errors
    /// As [`Cpu::again`].
    pub fn again(&mut self) -> Result<usize, Error> {
        let now = self.of.threads()?;
        if !now.is_empty() && now == self.last {
            return Ok(0);
        }
        let _lock = self.cpu.records.lock()?;
        let target = self.of.target();
        let nothing = || Error::NothingHeld {
            target: target.to_string(),
        };
        let record: Option<Record<Held>> = self.cpu.records.load(&target, self.of.id()?)?;
        let record = record.ok_or_else(nothing)?;
        let reserve = record.held.reserve().ok_or_else(nothing)?;
        let before = record.held.holding();
        let mut change = Changing::new(&self.cpu, &self.of, record);
        change.reserve(reserve)?;
        let after = change.record.held.holding();
        self.last = now;
        Ok(after.saturating_sub(before))
    }
}

/// The CPU time of this machine.
#[derive(Clone, Debug)]
pub struct Cpu {
    hierarchies: Hierarchies,
    records: Records,
}

impl Cpu {
    /// With records in a folder, which is made if it is missing.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub fn open(hierarchies: Hierarchies, folder: &Path) -> Result<Self, Error> {
        Ok(Self {
            hierarchies,
            records: Records::open(folder, "cpu")?,
        })
    }

    /// Changes what a target has: all of it, or nothing and an error. Said again, it reaches
    /// threads that are new.
    ///
    /// # Errors
    /// There is no such target, the reservations do not fit, or the kernel or systemd refuses.
    pub fn set(&self, target: &Target, terms: &CpuTerms) -> Result<CpuInForce, Error> {
        let _lock = self.records.lock()?;
        let of = Of::find(&self.hierarchies, target)?;
        let target = of.target();
        if let (Of::Process(pid, _), false) = (&of, terms.weight.is_keep() && terms.quota.is_keep())
        {
            let group = self.hierarchies.of_process(Controller::Cpu, *pid)?;
            return Err(Error::ProcessAlone {
                pid: *pid,
                path: group.path().to_owned(),
            });
        }
        let old: Option<Record<Held>> = self.records.load(&target, of.id()?)?;
        let record = match &old {
            Some(record) => record.clone(),
            None => self
                .records
                .new_record(target.clone(), of.id()?, Held::default()),
        };
        let mut change = Changing::new(self, &of, record);
        if let Err(error) = change.all(terms) {
            match old {
                Some(old) => self.records.save(&old)?,
                None => self.records.remove(&target)?,
            }
            return Err(error);
        }
        let held = change.record.held.clone();
        if held.is_empty() {
            self.records.remove(&target)?;
        }
        self.in_force(&of, &held, false)
    }

    /// Whether one more thread could have a reservation, of a program that is about to be started: by
    /// the sum of what Bonsai has reserved, and by the kernel's word, asked with a thread of our own.
    ///
    /// # Errors
    /// It does not fit, or takes rights.
    pub fn check(&self, reserve: Reserve) -> Result<(), Error> {
        let _lock = self.records.lock()?;
        let held = self.held_elsewhere(None);
        fits(reserve.share(), held)?;
        deadline::try_out(reserve)
    }

    /// Reserves for the threads that a target has got since: those of a deadline thread begin
    /// without. Returns how many.
    ///
    /// # Errors
    /// It has no reservation, is gone, or there is no room for more.
    pub fn again(&self, target: &Target) -> Result<usize, Error> {
        self.sweeper(target)?.again()
    }

    /// What does so again and again, without looking the target up each time.
    ///
    /// # Errors
    /// There is no such target.
    pub fn sweeper(&self, target: &Target) -> Result<Sweeper, Error> {
        Ok(Sweeper {
            of: Of::find(&self.hierarchies, target)?,
            cpu: self.clone(),
            last: Vec::new(),
        })
    }

    /// Whether a target has all of that, by Bonsai. Threads that are new may have no reservation.
    ///
    /// # Errors
    /// There is no such target, or it cannot be read.
    pub fn holds(&self, target: &Target, terms: &CpuTerms) -> Result<bool, Error> {
        let of = Of::find(&self.hierarchies, target)?;
        let record: Option<Record<Held>> = self.records.load(&of.target(), of.id()?)?;
        let Some(record) = record else {
            return Ok(terms.is_empty());
        };
        let Of::Place(place) = &of else {
            return Ok(record.held.reserve() == terms.reserve.over(record.held.reserve()));
        };
        let weight =
            terms.weight.is_keep() || place.weight()? == place.weight_from(terms.weight.over(None));
        let quota =
            terms.quota.is_keep() || place.quota()? == place.quota_from(terms.quota.over(None));
        let reserve = terms.reserve.is_keep() || record.held.reserve() == terms.reserve.over(None);
        Ok(weight && quota && reserve)
    }

    /// Restores what a target had before Bonsai first changed it.
    ///
    /// # Errors
    /// Nothing is held there, or it cannot be restored.
    pub fn clear(&self, target: &Target) -> Result<CpuInForce, Error> {
        let _lock = self.records.lock()?;
        let of = Of::find(&self.hierarchies, target).inspect_err(|error| {
            if matches!(error, Error::NoGroup { .. } | Error::NoProcess { .. }) {
                let _ = self.records.remove(target);
            }
        })?;
        let target = of.target();
        let record: Option<Record<Held>> = self.records.load(&target, of.id()?)?;
        let record = record.ok_or_else(|| Error::NothingHeld {
            target: target.to_string(),
        })?;
        let mut changed = false;
        for one in &record.held.threads {
            changed |= deadline::restore(one)?;
        }
        if let Of::Place(place) = &of {
            if let Some(weight) = record.held.weight {
                changed |= place.weight()? != weight.set;
                place.set_weight(weight.before)?;
            }
            if let Some(quota) = record.held.quota {
                changed |= place.quota()? != quota.set;
                place.set_quota(quota.before)?;
            }
        }
        self.records.remove(&target)?;
        self.in_force(&of, &Held::default(), changed)
    }

    /// Looks at one target, or at all groups and processes that have anything.
    ///
    /// # Errors
    /// There is no such target. Groups that vanish meanwhile are left out.
    pub fn look(&self, only: Option<&Target>) -> Result<Vec<CpuSeen>, Error> {
        let records = self.records_of_those_that_live()?;
        let mut seen = Vec::new();
        if let Some(target) = only {
            let of = Of::find(&self.hierarchies, target)?;
            let id = of.id()?;
            let mut records = records.iter();
            let target = of.target();
            let record = records.find(|one| one.target == target && one.id == id);
            seen.push(self.seen(&of, record)?);
            return Ok(seen);
        }
        let hierarchy = self.hierarchies.with(Controller::Cpu)?;
        for group in hierarchy.groups(Controller::Cpu) {
            let id = group.id().ok();
            let is_of = |record: &&Record<Held>| match &record.target {
                Target::Cgroup(path) => path == group.path() && record.id == id,
                Target::Unit(unit) => {
                    group.path().rsplit('/').next() == Some(unit) && is_unit_name(unit)
                }
                Target::Process(_) => false,
            };
            let record = records.iter().find(is_of);
            // What is seen of a unit is what the kernel does with it.
            let Ok(one) = self.seen(&Of::Place(Place::Group(group)), record) else {
                continue;
            };
            if one.holder != Holder::Nobody {
                seen.push(one);
            }
        }
        for record in &records {
            if let Target::Process(_) = record.target
                && let Ok(of) = Of::find(&self.hierarchies, &record.target)
                && of.id()? == record.id
            {
                seen.push(self.seen(&of, Some(record))?);
            }
        }
        Ok(seen)
    }

    fn seen(&self, of: &Of, record: Option<&Record<Held>>) -> Result<CpuSeen, Error> {
        let held = record.map(|record| record.held.clone()).unwrap_or_default();
        let state = self.in_force(of, &held, false)?;
        let is_plain =
            state.quota.is_none() && state.weight.is_none_or(|n| n == 100) && held.is_empty();
        let differs = match (of, record.map(|record| &record.target)) {
            // The record of a unit has what systemd was told, not what the group has.
            (Of::Place(place @ Place::Group(_)), Some(Target::Cgroup(_))) => {
                held.weight
                    .is_some_and(|pair| place.weight().ok() != Some(pair.set))
                    || held
                        .quota
                        .is_some_and(|pair| place.quota().ok() != Some(pair.set))
            }
            _ => false,
        };
        Ok(CpuSeen {
            version: match of {
                Of::Place(place) => place.group().map(Cgroup::version),
                Of::Process(..) => None,
            },
            holder: match record {
                Some(_) if differs => Holder::OtherSince,
                Some(_) => Holder::Bonsai,
                None if is_plain => Holder::Nobody,
                None => Holder::Other,
            },
            state,
        })
    }

    fn in_force(&self, of: &Of, held: &Held, changed_since: bool) -> Result<CpuInForce, Error> {
        let group = match of {
            Of::Place(place) => place.group(),
            Of::Process(..) => None,
        };
        // The root has neither weight nor quota.
        let weight = group.and_then(|group| {
            let weight = share::weight_of(group).ok()?;
            Some(share::shown(weight, group.version()))
        });
        let quota = group.and_then(|group| share::quota_of(group).ok());
        Ok(CpuInForce {
            target: of.target(),
            group: group.map(|group| group.path().to_owned()),
            weight,
            quota: quota.and_then(share::as_quota),
            reserve: held.reserve(),
            reserved: held.holding(),
            threads: match held.reserve {
                Some(_) => of.threads().map_or(0, |threads| threads.len()),
                None => 0,
            },
            changed_since,
        })
    }

    /// All records; those of groups and processes that have gone are removed.
    fn records_of_those_that_live(&self) -> Result<Vec<Record<Held>>, Error> {
        let _lock = self.records.lock()?;
        let (live, gone): (Vec<_>, Vec<_>) =
            self.records
                .all()
                .into_iter()
                .partition(|record: &Record<Held>| match &record.target {
                    Target::Unit(_) => true,
                    target => Of::find(&self.hierarchies, target)
                        .and_then(|of| of.id())
                        .is_ok_and(|id| id == record.id),
                });
        for record in gone {
            self.records.remove(&record.target)?;
        }
        Ok(live)
    }

    /// CPUs that Bonsai has reserved for other targets than one.
    fn held_elsewhere(&self, target: Option<&Target>) -> f64 {
        let records: Vec<Record<Held>> = self.records.all();
        let others = records
            .iter()
            .filter(|record| Some(&record.target) != target);
        others
            .filter_map(|record| {
                let reserve = record.held.reserve()?;
                Some(reserve.share() * record.held.holding() as f64)
            })
            .sum()
    }
}

/// Whether so many CPUs fit beside those that are held.
fn fits(wanted: f64, held: f64) -> Result<(), Error> {
    let (most, cpus) = deadline::room();
    if wanted + held <= most {
        return Ok(());
    }
    Err(Error::ReserveFull {
        wanted,
        held,
        most,
        cpus,
    })
}
