//! Where limits are read and written: the files of a group, or the properties of a unit.

use std::time::{Duration, Instant};

use crate::device::{Device, DeviceNumber};
use crate::error::Error;
use crate::group::Cgroup;
use crate::hierarchy::{Controller, Hierarchies, Version};
use crate::record::Target;
use crate::systemd::{Property, Unit};
use crate::target::{self, Found};

use super::limits::{self, DiskLimits};
use super::{Escape, InForce};

/// The properties of a unit (systemd.resource-control(5)), in the order of `io.max`.
const PROPERTIES: [&str; 4] = [
    "IOReadBandwidthMax",
    "IOWriteBandwidthMax",
    "IOReadIOPSMax",
    "IOWriteIOPSMax",
];

/// How long systemd may take to write what it was told. It does so after it has answered.
const PATIENCE: Duration = Duration::from_secs(3);

/// Where the limits of a target are.
#[derive(Debug)]
pub(super) enum Place {
    Group(Cgroup),
    Unit { unit: Unit, group: Option<Cgroup> },
}

impl Place {
    pub(super) fn find(hierarchies: &Hierarchies, target: &Target) -> Result<Self, Error> {
        Ok(match target::find(hierarchies, Controller::Io, target)? {
            Found::Group(group) => Self::Group(group),
            Found::Unit { unit, group } => Self::Unit { unit, group },
        })
    }

    pub(super) fn target(&self) -> Target {
        match self {
            Self::Group(group) => Target::Cgroup(group.path().to_owned()),
            Self::Unit { unit, .. } => Target::Unit(unit.name.clone()),
        }
    }

    /// By which a group is told from a later one. Limits of units outlive their groups.
    pub(super) fn id(&self) -> Result<Option<u64>, Error> {
        match self {
            Self::Group(group) => group.id().map(Some),
            Self::Unit { .. } => Ok(None),
        }
    }

    pub(super) fn read(&self, device: &Device) -> Result<DiskLimits, Error> {
        match self {
            Self::Group(group) => in_files(group, device.number),
            Self::Unit { unit, .. } => {
                let mut four = [None; 4];
                for (i, property) in PROPERTIES.iter().enumerate() {
                    let entries = unit.devices(property)?;
                    let mut of_it = entries.iter().filter(|(path, _)| is_path_of(path, device));
                    // Of several for one device systemd writes the last one last.
                    four[i] = of_it.next_back().map(|(_, n)| *n).filter(|n| *n != u64::MAX);
                }
                Ok(DiskLimits::from_array(four))
            }
        }
    }

    pub(super) fn write(
        &self,
        device: &Device,
        now: &DiskLimits,
        wanted: &DiskLimits,
    ) -> Result<(), Error> {
        match self {
            Self::Group(group) => limits::write(group, device.number, now, wanted),
            Self::Unit { unit, .. } => {
                let mut properties = Vec::new();
                let (now, wanted) = (now.as_array(), wanted.as_array());
                for (i, property) in PROPERTIES.iter().enumerate() {
                    if now[i] == wanted[i] {
                        continue;
                    }
                    let entries = unit.devices(property)?;
                    let mut paths: Vec<String> = entries
                        .into_iter()
                        .map(|(path, _)| path)
                        .filter(|path| is_path_of(path, device))
                        .collect();
                    if paths.is_empty() {
                        paths.push(device.file().to_string_lossy().into_owned());
                    }
                    let n = wanted[i].unwrap_or(u64::MAX);
                    let entries = paths.into_iter().map(|path| (path, n)).collect();
                    properties.push((*property, Property::Devices(entries)));
                }
                unit.set(&properties)
            }
        }
    }

    /// Whether that is in force on a device: in the files of the kernel, and in what systemd shows.
    pub(super) fn verify(&self, device: &Device, wanted: &DiskLimits) -> Result<(), Error> {
        let differs = |found: DiskLimits| Error::NotTaken {
            target: format!("{} on {device}", self.target()),
            wanted: wanted.to_string(),
            found: found.to_string(),
        };
        let found = self.read(device)?;
        if found != *wanted {
            return Err(differs(found));
        }
        let Self::Unit {
            group: Some(group), ..
        } = self
        else {
            return Ok(());
        };
        let end = Instant::now() + PATIENCE;
        loop {
            // systemd enables the controller for the group when it is first needed.
            let found = match in_files(group, device.number) {
                Ok(found) => found,
                Err(Error::NotEnabled { .. } | Error::Vanished { .. }) => DiskLimits::default(),
                Err(error) => return Err(error),
            };
            if found == *wanted {
                return Ok(());
            }
            if Instant::now() >= end {
                return Err(differs(found));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// What is said after a change.
    pub(super) fn in_force(
        &self,
        changes: Vec<(Device, DiskLimits)>,
        changed_since: Vec<Device>,
    ) -> Result<InForce, Error> {
        let group = match self {
            Self::Group(group) => Some(group),
            Self::Unit { group, .. } => group.as_ref(),
        };
        let writes = changes
            .iter()
            .any(|(_, limits)| limits.write_bytes.is_some() || limits.write_calls.is_some());
        let escape = group.filter(|_| writes).and_then(|group| {
            let has_memory = || group.folder().join("memory.current").exists();
            match group.version() {
                Version::V1 => Some(Escape::BufferedV1),
                Version::V2 => (!has_memory()).then_some(Escape::BufferedWithoutMemory),
            }
        });
        Ok(InForce {
            target: self.target(),
            group: group.map(|group| group.path().to_owned()),
            version: group.map(Cgroup::version),
            devices: changes,
            changed_since,
            escape,
        })
    }
}

fn in_files(group: &Cgroup, number: DeviceNumber) -> Result<DiskLimits, Error> {
    Ok(limits::read(group)?
        .get(&number)
        .copied()
        .unwrap_or_default())
}

/// Whether a path in a property of a unit means a device.
fn is_path_of(path: &str, device: &Device) -> bool {
    Device::find(path).is_ok_and(|found| found.number == device.number)
}
