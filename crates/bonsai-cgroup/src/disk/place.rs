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
    Unit {
        unit: Unit,
        /// Of its group, where it runs. With version 1 systemd makes it in the hierarchy of a
        /// controller when something is set there.
        path: Option<String>,
        hierarchies: Hierarchies,
    },
}

impl Place {
    pub(super) fn find(hierarchies: &Hierarchies, target: &Target) -> Result<Self, Error> {
        Ok(match target::find(hierarchies, Controller::Io, target)? {
            Found::Group(group) => Self::Group(group),
            Found::Unit { unit, path } => Self::Unit {
                unit,
                path,
                hierarchies: hierarchies.clone(),
            },
        })
    }

    fn group(&self) -> Option<Cgroup> {
        match self {
            Self::Group(group) => Some(group.clone()),
            Self::Unit {
                path, hierarchies, ..
            } => {
                let path = path.as_deref()?;
                hierarchies.group(Controller::Io, path).ok()
            }
        }
    }

    /// The group of a unit, which systemd makes a moment after it was told; none of one that does
    /// not run.
    fn group_to_come(&self) -> Option<Cgroup> {
        let Self::Unit { path: Some(_), .. } = self else {
            return self.group();
        };
        let end = Instant::now() + PATIENCE;
        loop {
            let group = self.group();
            if group.is_some() || Instant::now() >= end {
                return group;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
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
                    four[i] = of_it
                        .next_back()
                        .map(|(_, n)| *n)
                        .filter(|n| *n != u64::MAX);
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
                unit.set(&properties)?;
                self.calls_of_v1(device, now, wanted)
            }
        }
    }

    /// With version 1 systemd writes limits on bytes and none on calls, and leaves those alone that
    /// somebody else has written.
    fn calls_of_v1(
        &self,
        device: &Device,
        now: [Option<u64>; 4],
        wanted: [Option<u64>; 4],
    ) -> Result<(), Error> {
        if now[2..] == wanted[2..] {
            return Ok(());
        }
        let Some(group) = self
            .group_to_come()
            .filter(|group| group.version() == Version::V1)
        else {
            return Ok(());
        };
        let now = in_files(&group, device.number)?;
        let calls = DiskLimits {
            read_calls: wanted[2],
            write_calls: wanted[3],
            ..now
        };
        limits::write(&group, device.number, &now, &calls)
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
        if matches!(self, Self::Group(_)) {
            return Ok(());
        }
        let Some(group) = self.group_to_come() else {
            return Ok(());
        };
        let end = Instant::now() + PATIENCE;
        loop {
            // systemd enables the controller for the group when it is first needed.
            let found = match in_files(&group, device.number) {
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
        let group = self.group();
        let any = |limited: fn(&DiskLimits) -> bool| changes.iter().any(|(_, one)| limited(one));
        let mut escapes = Vec::new();
        if let Some(group) = &group {
            let is_v1 = group.version() == Version::V1;
            if any(|one| one.write_bytes.is_some() || one.write_calls.is_some()) {
                if is_v1 {
                    escapes.push(Escape::BufferedV1);
                } else if !group.folder().join("memory.current").exists() {
                    escapes.push(Escape::BufferedWithoutMemory);
                }
            }
            let calls = any(|one| one.read_calls.is_some() || one.write_calls.is_some());
            if is_v1 && calls && matches!(self, Self::Unit { .. }) {
                escapes.push(Escape::CallsOfUnitV1);
            }
        }
        Ok(InForce {
            target: self.target(),
            version: group.as_ref().map(Cgroup::version),
            group: group.map(|group| group.path().to_owned()),
            devices: changes,
            changed_since,
            escapes,
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
