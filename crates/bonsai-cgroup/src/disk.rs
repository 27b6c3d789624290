//! Limits on block devices of control groups and units: set, read back, undone.

mod limits;
mod place;
mod usage;

use std::path::Path;

use bonsai_units::DiskTerms;
use serde::{Deserialize, Serialize};

use crate::device::{Device, DeviceNumber};
use crate::error::Error;
use crate::hierarchy::{Controller, Hierarchies, Version};
use crate::record::{Holder, Record, Records, Target};
use crate::systemd::is_unit_name;

pub use limits::{DiskLimits, read as limits_of};
pub use usage::{DiskUse, Pressure, moved as moved_of, pressure as pressure_of, usage as usage_of};

use place::Place;

/// What a limit does not hold for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Escape {
    /// Version 1 does not know whose the pages are that the kernel writes back later.
    BufferedV1,
    /// Nor does version 2 without the controller `memory`.
    BufferedWithoutMemory,
    /// With version 1 systemd writes no limits on calls.
    CallsOfUnitV1,
}

impl Escape {
    /// In words.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::BufferedV1 => {
                "control groups of version 1 limit direct and synchronous writes only: what a \
                 program writes into the page cache the kernel writes to disk later, without limit"
            }
            Self::BufferedWithoutMemory => {
                "the group has no controller memory, without which the kernel does not know whose \
                 pages it writes back: only direct and synchronous writes are limited"
            }
            Self::CallsOfUnitV1 => {
                "with control groups of version 1 systemd itself limits bytes only: the limit on \
                 calls is set on the unit's group, and ends when the unit is restarted"
            }
        }
    }
}

/// What a target has after a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InForce {
    /// The target: a unit also where its control group was named.
    pub target: Target,
    /// The path of its control group; a unit that does not run has none.
    pub group: Option<String>,
    /// The version of its hierarchy, where it has a group.
    pub version: Option<Version>,
    /// The devices that were changed, and the limits on them that are in force now.
    pub devices: Vec<(Device, DiskLimits)>,
    /// Of these, what somebody else had changed since Bonsai set it.
    pub changed_since: Vec<Device>,
    /// What the limits do not hold for.
    pub escapes: Vec<Escape>,
}

/// A group, and what it has and does on each device.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The path of the group.
    pub group: String,
    /// The version of its hierarchy.
    pub version: Version,
    /// On each device with a limit, or of which something was moved.
    pub devices: Vec<SeenDevice>,
    /// How long it waited for devices, where the kernel keeps that.
    pub pressure: Option<Pressure>,
}

/// What a group has and does on a device.
#[derive(Clone, Debug)]
pub struct SeenDevice {
    /// The device.
    pub device: Device,
    /// The limits in force.
    pub limits: DiskLimits,
    /// Who has set them.
    pub holder: Holder,
    /// What was there before Bonsai's, if these are Bonsai's.
    pub before: Option<DiskLimits>,
    /// What was moved since the group was made.
    pub total: DiskUse,
}

/// What the record of a target holds: a line for each device.
type Held = Vec<HeldDevice>;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct HeldDevice {
    number: String,
    name: String,
    before: DiskLimits,
    set: DiskLimits,
}

impl HeldDevice {
    fn device(&self) -> Option<Device> {
        Some(Device {
            number: self.number.parse().ok()?,
            name: self.name.clone(),
        })
    }
}

/// The limits on disks of this machine.
#[derive(Clone, Debug)]
pub struct Disk {
    hierarchies: Hierarchies,
    records: Records,
}

impl Disk {
    /// With records in a folder, which is made if it is missing.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub fn open(hierarchies: Hierarchies, folder: &Path) -> Result<Self, Error> {
        Ok(Self {
            hierarchies,
            records: Records::open(folder, "disk")?,
        })
    }

    /// Changes the limits of a target on devices: all of it, or nothing and an error.
    ///
    /// # Errors
    /// There is no such target, it cannot be limited, or the kernel or systemd refuses.
    pub fn set(
        &self,
        target: &Target,
        devices: &[Device],
        terms: &DiskTerms,
    ) -> Result<InForce, Error> {
        let _lock = self.records.lock()?;
        let place = Place::find(&self.hierarchies, target)?;
        let target = place.target();
        let old: Option<Record<Held>> = self.records.load(&target, place.id()?)?;
        let mut record = match &old {
            Some(record) => record.clone(),
            None => self
                .records
                .new_record(target.clone(), place.id()?, Vec::new()),
        };
        let mut changes = Vec::new();
        for device in devices {
            let now = place.read(device)?;
            let wanted = now.with(terms);
            let number = device.number.to_string();
            match record.held.iter_mut().find(|held| held.number == number) {
                Some(held) => held.set = wanted,
                None => record.held.push(HeldDevice {
                    number,
                    name: device.name.clone(),
                    before: now,
                    set: wanted,
                }),
            }
            changes.push((device.clone(), wanted));
        }
        // Before the change, so that whoever comes after a crash knows what to restore.
        self.records.save(&record)?;
        if let Err(error) = apply(&place, &changes) {
            match old {
                Some(old) => self.records.save(&old)?,
                None => self.records.remove(&target)?,
            }
            return Err(error);
        }
        place.in_force(changes, Vec::new())
    }

    /// Restores what a target had before Bonsai first limited it, on some devices or on all.
    ///
    /// # Errors
    /// Nothing is held there, or it cannot be restored: then all stays as it is.
    pub fn clear(&self, target: &Target, devices: Option<&[Device]>) -> Result<InForce, Error> {
        let _lock = self.records.lock()?;
        let place = Place::find(&self.hierarchies, target).inspect_err(|error| {
            // Its limits went with it.
            if matches!(error, Error::NoGroup { .. }) {
                let _ = self.records.remove(target);
            }
        })?;
        let target = place.target();
        let nothing = |what: String| Error::NothingHeld { target: what };
        let record: Option<Record<Held>> = self.records.load(&target, place.id()?)?;
        let mut record = record.ok_or_else(|| nothing(target.to_string()))?;
        let chosen = |held: &HeldDevice| {
            devices.is_none_or(|devices| {
                let mut numbers = devices.iter().map(|device| device.number.to_string());
                numbers.any(|number| number == held.number)
            })
        };
        let (gone, kept): (Held, Held) = record.held.into_iter().partition(chosen);
        if gone.is_empty() {
            let names = devices.unwrap_or_default().iter();
            let names: Vec<&str> = names.map(|device| device.name.as_str()).collect();
            return Err(nothing(format!("{} of {target}", names.join(", "))));
        }
        let mut changes = Vec::new();
        let mut changed_since = Vec::new();
        for held in &gone {
            let Some(device) = held.device() else {
                continue;
            };
            // A disk that was unplugged has taken its limits with it.
            if !device.is_there() {
                continue;
            }
            if place.read(&device)? != held.set {
                changed_since.push(device.clone());
            }
            changes.push((device, held.before));
        }
        apply(&place, &changes)?;
        record.held = kept;
        if record.held.is_empty() {
            self.records.remove(&target)?;
        } else {
            self.records.save(&record)?;
        }
        place.in_force(changes, changed_since)
    }

    /// Looks at one group, or at all that have limits or have moved anything.
    ///
    /// # Errors
    /// There is no such group, or no hierarchy with the controller. Groups that vanish
    /// meanwhile are left out.
    pub fn look(&self, only: Option<&str>) -> Result<Vec<Seen>, Error> {
        let groups = match only {
            Some(path) => vec![self.hierarchies.group(Controller::Io, path)?],
            None => self
                .hierarchies
                .with(Controller::Io)?
                .groups(Controller::Io),
        };
        let records = self.records_of_those_that_live()?;
        let mut seen = Vec::new();
        for group in groups {
            let limits = match limits::read(&group) {
                Ok(limits) => limits,
                Err(error) if only.is_some() => return Err(error),
                // The root, groups without the controller, and those that have gone.
                Err(_) => continue,
            };
            let used = usage::usage(&group).unwrap_or_default();
            let id = group.id().ok();
            let is_of = |record: &&Record<Held>| match &record.target {
                Target::Cgroup(path) => path == group.path() && record.id == id,
                Target::Unit(unit) => {
                    let name = group.path().rsplit('/').next();
                    name == Some(unit) && is_unit_name(unit)
                }
                Target::Process(_) => false,
            };
            let record = records.iter().find(is_of);
            let mut numbers: Vec<DeviceNumber> =
                limits.keys().chain(used.keys()).copied().collect();
            numbers.sort();
            numbers.dedup();
            let devices = numbers.into_iter().map(|number| {
                let limits = limits.get(&number).copied().unwrap_or_default();
                let held = record.map(|record| record.held.iter());
                let held =
                    held.and_then(|mut all| all.find(|one| one.number == number.to_string()));
                SeenDevice {
                    device: Device::named(number),
                    limits,
                    holder: holder(held, &limits),
                    before: held.map(|held| held.before),
                    total: used.get(&number).copied().unwrap_or_default(),
                }
            });
            let devices: Vec<SeenDevice> = devices.collect();
            if only.is_some() || !devices.is_empty() {
                seen.push(Seen {
                    pressure: usage::pressure(&self.hierarchies, &group),
                    group: group.path().to_owned(),
                    version: group.version(),
                    devices,
                });
            }
        }
        Ok(seen)
    }

    /// All records; those of groups that have gone are removed.
    fn records_of_those_that_live(&self) -> Result<Vec<Record<Held>>, Error> {
        let _lock = self.records.lock()?;
        let (live, gone): (Vec<_>, Vec<_>) =
            self.records
                .all()
                .into_iter()
                .partition(|record: &Record<Held>| match &record.target {
                    Target::Cgroup(path) => self
                        .hierarchies
                        .group(Controller::Io, path)
                        .is_ok_and(|group| group.id().ok() == record.id),
                    _ => true,
                });
        for record in gone {
            self.records.remove(&record.target)?;
        }
        Ok(live)
    }
}

fn holder(held: Option<&HeldDevice>, limits: &DiskLimits) -> Holder {
    match held {
        Some(held) if held.set == *limits => Holder::Bonsai,
        Some(_) => Holder::OtherSince,
        None if limits.is_unlimited() => Holder::Nobody,
        None => Holder::Other,
    }
}

/// Puts limits into force on all devices, reads them back, and undoes everything if anything
/// fails.
fn apply(place: &Place, changes: &[(Device, DiskLimits)]) -> Result<(), Error> {
    let mut before = Vec::new();
    let mut done = || -> Result<(), Error> {
        for (device, wanted) in changes {
            let now = place.read(device)?;
            before.push((device, now));
            if now != *wanted {
                place.write(device, &now, wanted)?;
            }
        }
        for (device, wanted) in changes {
            place.verify(device, wanted)?;
        }
        Ok(())
    };
    let Err(cause) = done() else {
        return Ok(());
    };
    // What cannot be taken back keeps no other device from it.
    let mut failed = Ok(());
    for (device, was) in before.into_iter().rev() {
        let undone = place.read(device).and_then(|now| {
            if now == was {
                Ok(())
            } else {
                place.write(device, &now, &was)
            }
        });
        if !matches!(undone, Err(Error::Vanished { .. })) {
            failed = failed.and(undone);
        }
    }
    Err(match failed {
        Ok(()) => cause,
        Err(undo) => Error::NotUndone {
            cause: Box::new(cause),
            undo: Box::new(undo),
        },
    })
}
