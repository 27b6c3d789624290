//! What a target is on this machine: the files of a group, or a unit of systemd.

use crate::error::Error;
use crate::group::Cgroup;
use crate::hierarchy::{Controller, Hierarchies};
use crate::record::Target;
use crate::systemd::{Systemd, Unit, is_unit_name, systemd_runs};

#[derive(Debug)]
pub(crate) enum Found {
    Group(Cgroup),
    /// A unit, and the path of its group where it runs.
    Unit {
        unit: Unit,
        path: Option<String>,
    },
}

/// Finds a target. A group that systemd made for one of its units is found as that unit.
pub(crate) fn find(
    hierarchies: &Hierarchies,
    controller: Controller,
    target: &Target,
) -> Result<Found, Error> {
    match target {
        Target::Unit(name) => {
            if !systemd_runs() {
                return Err(Error::NoSystemd { unit: name.clone() });
            }
            let unit = Systemd::connect()?.unit(name)?;
            let path = unit.group()?;
            Ok(Found::Unit { unit, path })
        }
        Target::Process(pid) => {
            let group = hierarchies.of_process(controller, *pid)?;
            Ok(Found::Group(group))
        }
        Target::Cgroup(path) => {
            if let Some(unit) = unit_of(&hierarchies.path(path)?)? {
                let path = unit.group()?;
                return Ok(Found::Unit { unit, path });
            }
            hierarchies.group(controller, path).map(Found::Group)
        }
    }
}

impl Hierarchies {
    /// The group of a target, in whatever hierarchy it is: to see whether it is there, and who is in
    /// it. One with disks comes first, then one with CPUs, then version 2.
    ///
    /// # Errors
    /// There is no such group or process, or the unit does not run.
    pub fn anywhere(&self, target: &Target) -> Result<Cgroup, Error> {
        let path = match target {
            Target::Cgroup(path) => self.path(path)?,
            Target::Process(pid) => return self.of_process(Controller::Io, *pid),
            Target::Unit(name) => match find(self, Controller::Io, target)? {
                Found::Unit {
                    path: Some(path), ..
                } => path,
                _ => return Err(Error::NotRunning { unit: name.clone() }),
            },
        };
        let first = self.group(Controller::Io, &path);
        first
            .or_else(|error| self.group(Controller::Cpu, &path).map_err(|_| error))
            .or_else(|error| {
                let mut others = self.all.iter().rev();
                let group = others.find_map(|one| one.place(Controller::Io, &path).ok());
                group.filter(|group| group.folder().is_dir()).ok_or(error)
            })
    }
}

/// The unit whose group has a path; none where somebody else made it, such as a container's
/// manager or that of a user.
fn unit_of(path: &str) -> Result<Option<Unit>, Error> {
    if !systemd_runs() || !is_unit_name(path) {
        return Ok(None);
    }
    let name = path.rsplit('/').next().unwrap_or_default();
    let unit = match Systemd::connect()?.unit(name) {
        Ok(unit) => unit,
        Err(Error::NoUnit { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    let is_its = unit.group()?.as_deref() == Some(path);
    Ok(is_its.then_some(unit))
}
