//! What services may have of disk and CPU, put into force and given back.
//!
//! ```text
//!   put ──> written down whose it is ──> bonsai_cgroup: its record, then the kernel ──> read again
//!             │                                           │ refused: as before
//!             └ killed here: the next one finds it, and gives back what nobody wants any more
//! ```
//!
//! # Invariants
//! 1. What was set by hand before stays where nothing is wanted here, and is back afterwards.
//! 2. What is in force as it is wanted is not written again, by whomever it was put there.
//! 3. What another program keeps reverting is repaired less and less often, up to once a minute: each
//!    service's disks and CPUs by themselves, so that none waits for another.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use bonsai_cgroup::cpu::Sweeper;
use bonsai_cgroup::disk::limits_of;
use bonsai_cgroup::{self as cgroup, Cgroup, Cpu, Device, Disk, Hierarchies, Target};
use bonsai_units::{Change, CpuTerms, DiskTerms};

use super::Terms;
use super::owned::{OwnedCpu, OwnedDisk, Owners};
use super::who::Home;
use crate::error::Error;
use crate::fights::{Fights, Verdict};
use crate::find::wrong;

/// Where it is written down what there was before, below the folder of the book.
const RECORDS: &str = ".held";

/// Parts of a service's limits that another program may revert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Disk,
    Cpu,
}

impl Part {
    const fn words(self) -> &'static str {
        match self {
            Self::Disk => "its limits on disks",
            Self::Cpu => "its terms of the CPUs",
        }
    }
}

/// For whom something is put into force.
#[derive(Clone, Copy, Debug)]
pub(super) struct For<'a> {
    /// The name of the service.
    pub(super) id: &'a str,
    /// What it is, as it is written.
    pub(super) place: &'a str,
    pub(super) home: &'a Home,
    /// Whether its group is another one than when something was put into force last.
    pub(super) fresh: bool,
}

/// The decision on limits that are not as they were put into force.
enum Judged {
    /// Repaired, with this said.
    Repair(Option<String>),
    /// Left for a while, for this reason.
    Leave(String),
}

/// All that is put into force here.
#[derive(Debug)]
pub(super) struct Limits {
    folder: PathBuf,
    owners: Owners,
    sweepers: BTreeMap<String, Sweeper>,
    fights: Fights<(String, Part)>,
}

impl Limits {
    pub(super) fn new(folder: &Path) -> Self {
        let folder = folder.join(RECORDS);
        Self {
            owners: Owners::new(&folder),
            folder,
            sweepers: BTreeMap::new(),
            fights: Fights::default(),
        }
    }

    /// Decides on something that is not as it was put into force: whether it is repaired now, and what is said of it.
    fn judge(&mut self, of: For<'_>, part: Part) -> Judged {
        let now = Instant::now();
        let object = (of.id.to_owned(), part);
        if of.fresh {
            // The caller, or a new group, has made it so.
            self.fights.forget(|fight| *fight == object);
            return Judged::Repair(None);
        }
        let what = part.words();
        let goes_on =
            format!("another program keeps changing {what}: they are repaired less and less often");
        let was_on = self.fights.is_about(&object, now);
        match self.fights.judge(object, now) {
            Verdict::Wait(wait) => Judged::Leave(format!(
                "another program keeps changing {what}, which are not in force now; they are repaired again in {} s",
                wait.as_secs_f64().ceil()
            )),
            Verdict::Mend if !was_on => Judged::Repair(Some(format!(
                "another program had changed {what}: they are put right"
            ))),
            Verdict::Mend | Verdict::MendAndSay => Judged::Repair(Some(goes_on)),
        }
    }

    /// Those for whom something was put into force, and what they were then.
    pub(super) fn owners(&mut self) -> Result<Vec<(String, String)>, Error> {
        let owned = self.owners.all()?.iter();
        Ok(owned
            .map(|(id, one)| (id.clone(), one.place.clone()))
            .collect())
    }

    /// Puts into force what a service may have of disks, where it is not yet: all of it, or it has what
    /// it had. What is to be said of it, in words.
    ///
    /// # Errors
    /// It cannot have it, or the kernel or systemd refuses.
    pub(super) fn put_disk(
        &mut self,
        of: For<'_>,
        terms: &Terms,
        hierarchies: &Hierarchies,
    ) -> Result<Option<String>, Error> {
        let least = |rate: Option<u64>| rate.map(|rate| rate.max(DiskTerms::LEAST_BYTES));
        let wanted = [terms.read, terms.write].map(least);
        let For { id, home, .. } = of;
        let had = self.owners.all()?.get(id).and_then(|one| one.disk.clone());
        if wanted == [None; 2] {
            return match had {
                Some(had) => self.clear_disk(id, &had.target, hierarchies).map(|()| None),
                None => Ok(None),
            };
        }
        let target = home.disk.as_ref().map_err(|why| wrong(why.as_str()))?;
        // The group of one that was started again may have another name.
        let had = match had {
            Some(had) if had.target != *target => {
                self.clear_disk(id, &had.target, hierarchies)?;
                None
            }
            had => had,
        };
        let devices = Device::disks()?;
        let same = had.as_ref().is_some_and(|had| had.limits == wanted);
        if same && is_in_force(home.io.as_ref(), &devices, wanted)? {
            return Ok(None);
        }
        let again = match same {
            true => match self.judge(of, Part::Disk) {
                Judged::Leave(why) => return Ok(Some(why)),
                Judged::Repair(said) => said,
            },
            false => None,
        };
        let disk = Disk::open(hierarchies.clone(), &self.folder)?;
        let changes = changes(&disk, home.io.as_ref(), &devices, wanted)?;
        let owned = OwnedDisk {
            target: target.clone(),
            limits: wanted,
        };
        self.owners.change(id, |one| {
            of.place.clone_into(&mut one.place);
            one.disk = Some(owned);
        })?;
        for (terms, devices) in changes {
            if let Err(error) = disk.set(target, &devices, &terms) {
                if had.is_none() {
                    // Other devices may have theirs already.
                    given_back(disk.clear(target, None).map(drop))?;
                }
                self.owners.change(id, |one| one.disk = had)?;
                return Err(error.into());
            }
        }
        Ok(again)
    }

    fn clear_disk(
        &mut self,
        id: &str,
        target: &Target,
        hierarchies: &Hierarchies,
    ) -> Result<(), Error> {
        let disk = Disk::open(hierarchies.clone(), &self.folder)?;
        given_back(disk.clear(target, None).map(drop))?;
        self.owners.change(id, |one| one.disk = None)
    }

    /// The same of CPUs.
    ///
    /// # Errors
    /// As [`Limits::put_disk`].
    pub(super) fn put_cpu(
        &mut self,
        of: For<'_>,
        terms: &Terms,
        hierarchies: &Hierarchies,
    ) -> Result<Option<String>, Error> {
        let For { id, home, .. } = of;
        let wanted = terms.cpu.as_ref();
        let had = self.owners.all()?.get(id).and_then(|one| one.cpu.clone());
        let Some(wanted) = wanted.filter(|wanted| !wanted.is_empty()) else {
            return match had {
                Some(had) => self.clear_cpu(id, &had.target, hierarchies).map(|()| None),
                None => Ok(None),
            };
        };
        let target = home.cpu.as_ref().map_err(|why| wrong(why.as_str()))?;
        let had = match had {
            Some(had) if had.target != *target => {
                self.clear_cpu(id, &had.target, hierarchies)?;
                None
            }
            had => had,
        };
        let text = wanted.to_string();
        let cpu = Cpu::open(hierarchies.clone(), &self.folder)?;
        let same = had.as_ref().is_some_and(|had| had.terms == text);
        if same && cpu.holds(target, wanted)? {
            if of.fresh || !self.sweepers.contains_key(id) {
                self.sweep_for(id, &cpu, target, wanted)?;
            }
            return Ok(None);
        }
        let again = match same {
            true => match self.judge(of, Part::Cpu) {
                Judged::Leave(why) => return Ok(Some(why)),
                Judged::Repair(said) => said,
            },
            false => None,
        };
        let before: Option<CpuTerms> = had.as_ref().and_then(|had| had.terms.parse().ok());
        let less = before.is_some_and(|before| is_less(&before, wanted));
        let owned = OwnedCpu {
            target: target.clone(),
            terms: text,
        };
        self.owners.change(id, |one| {
            of.place.clone_into(&mut one.place);
            one.cpu = Some(owned);
        })?;
        if less {
            // What is wanted no more is as it was before, and the rest is set again.
            given_back(cpu.clear(target).map(drop))?;
        }
        if let Err(error) = cpu.set(target, wanted) {
            if let Some(before) = before.filter(|_| less) {
                cpu.set(target, &before)?;
            }
            self.owners.change(id, |one| one.cpu = had)?;
            return Err(error.into());
        }
        self.sweep_for(id, &cpu, target, wanted)?;
        Ok(again)
    }

    fn clear_cpu(
        &mut self,
        id: &str,
        target: &Target,
        hierarchies: &Hierarchies,
    ) -> Result<(), Error> {
        self.sweepers.remove(id);
        let cpu = Cpu::open(hierarchies.clone(), &self.folder)?;
        given_back(cpu.clear(target).map(drop))?;
        self.owners.change(id, |one| one.cpu = None)
    }

    /// Sees to it that threads that come later have a reserve as well.
    fn sweep_for(
        &mut self,
        id: &str,
        cpu: &Cpu,
        target: &Target,
        terms: &CpuTerms,
    ) -> Result<(), Error> {
        match terms.reserve {
            Change::To(_) => self.sweepers.insert(id.to_owned(), cpu.sweeper(target)?),
            _ => self.sweepers.remove(id),
        };
        Ok(())
    }

    /// Whether anybody has a reserve.
    pub(super) fn has_reserves(&self) -> bool {
        !self.sweepers.is_empty()
    }

    /// Reserves for threads that came; tells whose could not be, and why.
    pub(super) fn sweep(&mut self) -> BTreeMap<String, Option<String>> {
        let swept = self.sweepers.iter_mut().map(|(id, sweeper)| {
            let why = match sweeper.again() {
                Ok(_) => None,
                Err(error) if is_gone(&error) => None,
                Err(error) => Some(format!(
                    "threads that came later have no time reserved: {}",
                    bonsai_host::sentence(&error)
                )),
            };
            (id.clone(), why)
        });
        swept.collect()
    }

    /// Gives back what a service has: all is as it was before.
    ///
    /// # Errors
    /// If it cannot be; what remains is tried again when it is said again.
    pub(super) fn release(&mut self, id: &str, hierarchies: &Hierarchies) -> Result<(), Error> {
        self.sweepers.remove(id);
        self.fights.forget(|(of, _)| of == id);
        let Some(one) = self.owners.all()?.get(id).cloned() else {
            return Ok(());
        };
        let disk = match &one.disk {
            Some(had) => self.clear_disk(id, &had.target, hierarchies),
            None => Ok(()),
        };
        let cpu = match &one.cpu {
            Some(had) => self.clear_cpu(id, &had.target, hierarchies),
            None => Ok(()),
        };
        disk.and(cpu)
    }
}

/// Whether all devices have what is wanted. What is not wanted, and was not, is not ours to look at;
/// nor is a group that is not there yet.
fn is_in_force(
    group: Option<&Cgroup>,
    devices: &[Device],
    [read, write]: [Option<u64>; 2],
) -> Result<bool, Error> {
    let Some(limits) = group.map(limits_of).transpose()? else {
        return Ok(true);
    };
    let has = |device: &Device| {
        let now = limits.get(&device.number).copied().unwrap_or_default();
        read.is_none_or(|read| now.read_bytes == Some(read))
            && write.is_none_or(|write| now.write_bytes == Some(write))
    };
    Ok(devices.iter().all(has))
}

/// What is to be said to which devices, so that all have what is wanted. What is not wanted is what
/// there was before.
fn changes(
    disk: &Disk,
    group: Option<&Cgroup>,
    devices: &[Device],
    wanted: [Option<u64>; 2],
) -> Result<Vec<(DiskTerms, Vec<Device>)>, Error> {
    let seen = match group {
        Some(group) if wanted.contains(&None) => disk.look(Some(group.path()))?,
        _ => Vec::new(),
    };
    let before = |device: &Device| {
        let mut all = seen.iter().flat_map(|seen| &seen.devices);
        let of_it = all.find(|seen| seen.device.number == device.number);
        of_it.and_then(|seen| seen.before)
    };
    let one = |wanted: Option<u64>, before: Option<Option<u64>>| match (wanted, before) {
        (Some(bytes), _) | (None, Some(Some(bytes))) => Change::To(bytes),
        // It was never ours.
        (None, None) => Change::Keep,
        (None, Some(None)) => Change::Clear,
    };
    let mut changes: Vec<(DiskTerms, Vec<Device>)> = Vec::new();
    for device in devices {
        let before = before(device);
        let terms = DiskTerms {
            read_bytes: one(wanted[0], before.map(|before| before.read_bytes)),
            write_bytes: one(wanted[1], before.map(|before| before.write_bytes)),
            ..DiskTerms::default()
        };
        match changes.iter_mut().find(|(of, _)| *of == terms) {
            Some((_, of)) => of.push(device.clone()),
            None => changes.push((terms, vec![device.clone()])),
        }
    }
    Ok(changes)
}

/// Whether something is set by the first and left alone by the second.
fn is_less(before: &CpuTerms, after: &CpuTerms) -> bool {
    let less = |before: bool, after: bool| !before && after;
    less(before.weight.is_keep(), after.weight.is_keep())
        || less(before.quota.is_keep(), after.quota.is_keep())
        || less(before.reserve.is_keep(), after.reserve.is_keep())
}

/// Whether a target took its limits with it.
fn is_gone(error: &cgroup::Error) -> bool {
    matches!(
        error,
        cgroup::Error::NothingHeld { .. }
            | cgroup::Error::NoGroup { .. }
            | cgroup::Error::OtherHierarchy { .. }
            | cgroup::Error::Vanished { .. }
            | cgroup::Error::NoProcess { .. }
            | cgroup::Error::NoUnit { .. }
            | cgroup::Error::NotRunning { .. }
    )
}

fn given_back(done: Result<(), cgroup::Error>) -> Result<(), Error> {
    match done {
        Err(error) if !is_gone(&error) => Err(error.into()),
        _ => Ok(()),
    }
}
