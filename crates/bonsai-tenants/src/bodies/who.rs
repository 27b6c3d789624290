//! Who is who: from a [`Place`] to a process, an interface and control groups.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use bonsai_cgroup::{self as cgroup, Cgroup, Controller, Hierarchies, Version};
use bonsai_host::tenants::{self, GroupFolder, NsId, Tenants};
use bonsai_link::{Link, named};
use rustix::time::ClockId;

use super::place::Place;
use super::rooms::{Port, Rooms};
use crate::error::Error;
use crate::find::{Whose, find_in, of_tenant, wrong};
use crate::target::Target;

/// Processes of a group that are looked at for the first one.
const MOST: usize = 256;

/// What tells one from another of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    /// A process, and when it was started, clock ticks since the machine was.
    Process(u32, u64),
    /// A namespace, and its interface.
    Namespace(NsId, Option<(u64, u32)>),
    /// An interface, by the cookie of its namespace and its number.
    Interface(u64, u32),
    /// A control group, by its number.
    Group(u64),
}

impl Key {
    /// Whether both are of the same one. A namespace may be there before its interface is.
    pub(super) fn is_same(self, other: Self) -> bool {
        match (self, other) {
            (Self::Namespace(one, a), Self::Namespace(other, b)) => {
                one == other && (a == b || a.is_none() || b.is_none())
            }
            _ => self == other,
        }
    }
}

/// Where disk and CPU of one are counted and limited.
#[derive(Clone, Debug)]
pub(super) struct Home {
    /// Where its disk is counted.
    pub(super) io: Option<Cgroup>,
    /// The number of that group, which a later one of the same path has not.
    id: Option<u64>,
    /// What is limited of disks, or why nothing can be.
    pub(super) disk: Result<cgroup::Target, String>,
    /// The same of CPUs.
    pub(super) cpu: Result<cgroup::Target, String>,
}

impl Home {
    /// Whether its group has gone, and maybe another one of its path come.
    pub(super) fn has_gone(&self) -> bool {
        let id = self.io.as_ref().and_then(|io| io.id().ok());
        id != self.id
    }

    /// Of what has no group.
    pub(super) fn none(why: &str) -> Self {
        Self {
            io: None,
            id: None,
            disk: Err(why.to_owned()),
            cpu: Err(why.to_owned()),
        }
    }
}

/// One that is there.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) key: Key,
    /// Its leading process.
    pub(super) pid: Option<u32>,
    pub(super) uid: u32,
    /// When it began, ns since 1970, if that is known.
    pub(super) born_ns: Option<u64>,
    pub(super) port: Option<Port>,
    pub(super) turned: bool,
    pub(super) home: Home,
    /// Its group, if it is one: that by which it was found first.
    group: Option<Cgroup>,
    /// What of it cannot be seen, in words.
    pub(super) why: Option<String>,
}

/// The machine, at one moment.
pub(super) struct Machine<'a> {
    /// `None` where nobody asks for them.
    pub(super) tenants: Option<Tenants>,
    pub(super) hierarchies: Hierarchies,
    pub(super) rooms: &'a mut Rooms,
}

impl Machine<'_> {
    /// Finds one. `given` is the interface that is limited for it, and `known` what was found of it
    /// before.
    pub(super) fn find(
        &mut self,
        place: &Place,
        given: Option<(u64, u32)>,
        known: Option<&Found>,
    ) -> Result<Found, Error> {
        match place {
            Place::Group(target) => self.group(target, known),
            Place::Link(target) => match target.whose() {
                Whose::Ours => self.interface(target.interface().unwrap_or_default()),
                Whose::Of(_) => self.tenant(place, target, given, known),
                Whose::Group(target) => self.group(target, known),
            },
        }
    }

    fn interface(&mut self, name: &str) -> Result<Found, Error> {
        let room = self.rooms.ours;
        let link = match self.rooms.named(name) {
            Some(link) => link,
            // It says which may be meant.
            None => named(self.rooms.own().ok_or_else(no_room)?.1, name)?,
        };
        let turned = is_host_end(link);
        Ok(Found {
            key: Key::Interface(room, link.index),
            pid: None,
            uid: 0,
            born_ns: None,
            port: Some(Port {
                room,
                index: link.index,
                turned,
            }),
            turned,
            home: Home::none("an interface has no control group"),
            group: None,
            why: None,
        })
    }

    fn tenant(
        &mut self,
        place: &Place,
        target: &Target,
        given: Option<(u64, u32)>,
        known: Option<&Found>,
    ) -> Result<Found, Error> {
        let (Some(tenants), Whose::Of(who)) = (&self.tenants, target.whose()) else {
            return Err(no_room());
        };
        let found = tenants.find(who).map_err(of_tenant)?;
        let behind = &found.behind;
        let is_machine = matches!(who, tenants::Who::Machine(_));
        let process = behind.pid.zip(behind.start_ticks);
        let ours = self.rooms.ours;
        let there = |port: &Port| self.rooms.has(port.room, port.index);
        let port = given
            .map(|(room, index)| Port {
                room,
                index,
                turned: is_machine || room == ours,
            })
            .filter(there);
        let same = |key: Key| match (key, process, behind.netns) {
            (Key::Process(pid, start), Some(now), _) => (pid, start) == now,
            (Key::Namespace(id, _), _, Some(now)) => id == now,
            _ => false,
        };
        let before = known.filter(|known| same(known.key));
        let before = before.and_then(|known| known.port.filter(there));
        let (port, why) = match port.or(before) {
            Some(port) => (Some(port), None),
            None => match find_port(tenants, &found, target.interface(), self.rooms) {
                Ok(port) => (Some(port), None),
                Err(error) => (None, Some(error.sentence())),
            },
        };
        let key = match (place.has_disk(), process, behind.netns) {
            (true, Some((pid, start)), _) => Key::Process(pid, start),
            (_, _, Some(id)) => Key::Namespace(id, port.map(|port| (port.room, port.index))),
            (_, Some((pid, start)), None) => Key::Process(pid, start),
            _ => return Err(wrong(format!("{} cannot be looked at", behind.describe()))),
        };
        let home = match (place.has_disk(), behind.pid) {
            (true, Some(pid)) => {
                let who = behind.describe();
                home_of(tenants, &self.hierarchies, &found.groups, pid, &who)
            }
            _ => Home::none("a namespace has no control group"),
        };
        let born = |(_, start): (u32, u64)| started_ns(start);
        Ok(Found {
            key,
            pid: behind.pid,
            uid: behind.pid.map_or(0, user_of),
            born_ns: match key {
                Key::Process(..) => process.map(born),
                _ => None,
            },
            port,
            turned: false,
            home,
            group: None,
            why,
        })
    }

    fn group(&mut self, target: &cgroup::Target, known: Option<&Found>) -> Result<Found, Error> {
        // Whoever knows where a unit's group is need not ask systemd for it again.
        let before = known.and_then(|known| {
            let group = known.group.as_ref()?;
            let same = group.id().is_ok_and(|id| known.key == Key::Group(id));
            same.then(|| group.clone())
        });
        let group = match before {
            Some(group) => group,
            None => self
                .hierarchies
                .anywhere(target)
                .map_err(|error| absent(&error))?,
        };
        let key = Key::Group(group.id().map_err(|error| absent(&error))?);
        let same = known.filter(|known| known.key == key);
        let leads = same
            .and_then(|known| known.pid)
            .filter(|pid| is_there(*pid));
        let (pid, born_ns) = match leads {
            Some(pid) => (Some(pid), None),
            None => {
                let first = first_of(&group);
                (
                    first.map(|(_, pid)| pid),
                    first.map(|(start, _)| started_ns(start)),
                )
            }
        };
        let uid = match pid {
            Some(pid) => user_of(pid),
            None => fs::metadata(group.folder()).map_or(0, |folder| folder.uid()),
        };
        let io = self.hierarchies.group(Controller::Io, group.path()).ok();
        Ok(Found {
            key,
            pid,
            uid,
            born_ns,
            port: None,
            turned: false,
            home: Home {
                id: io.as_ref().and_then(|io| io.id().ok()),
                io,
                disk: Ok(target.clone()),
                cpu: Ok(target.clone()),
            },
            group: Some(group),
            why: None,
        })
    }
}

/// Finds the interface of somebody.
fn find_port(
    tenants: &Tenants,
    found: &tenants::Target,
    name: Option<&str>,
    rooms: &mut Rooms,
) -> Result<Port, Error> {
    let ours = rooms.ours;
    let (site, links) = rooms.own().ok_or_else(no_room)?;
    let at = find_in(tenants, found, name, site, links)?;
    let room = match &at.namespace {
        Some(namespace) => rooms.enter(namespace)?,
        None => ours,
    };
    Ok(Port {
        room,
        index: at.link.index,
        turned: at.swapped,
    })
}

/// Whether what a guest sends comes in here.
fn is_host_end(link: &Link) -> bool {
    matches!(link.kind.as_deref(), Some("veth" | "tun"))
}

/// The groups of a container or a machine, if they are its own.
fn home_of(
    tenants: &Tenants,
    hierarchies: &Hierarchies,
    folders: &[GroupFolder],
    pid: u32,
    who: &str,
) -> Home {
    let group = |controller| own_group(tenants, hierarchies, controller, folders, pid, who);
    let io = group(Controller::Io);
    let id = io.as_ref().ok().and_then(|io| io.id().ok());
    let target = |group: &Cgroup| cgroup::Target::Cgroup(group.path().to_owned());
    Home {
        id,
        disk: io.as_ref().map(target).map_err(Clone::clone),
        cpu: group(Controller::Cpu)
            .as_ref()
            .map(target)
            .map_err(Clone::clone),
        io: io.ok(),
    }
}

fn own_group(
    tenants: &Tenants,
    hierarchies: &Hierarchies,
    controller: Controller,
    folders: &[GroupFolder],
    pid: u32,
    who: &str,
) -> Result<Cgroup, String> {
    let words = |error: cgroup::Error| bonsai_host::sentence(&error);
    let hierarchy = hierarchies.with(controller).map_err(words)?;
    let name = controller.name(hierarchy.version);
    let is_it = |folder: &&GroupFolder| match (&folder.v1, hierarchy.version) {
        (None, Version::V2) => true,
        (Some(names), Version::V1) => names.split(',').any(|of| of == name),
        _ => false,
    };
    let folder = folders.iter().find(is_it).ok_or_else(|| {
        format!(
            "{who} is in no control group of its own with the controller {name}, but in that of \
             the whole machine"
        )
    })?;
    let path = folder.path.to_string_lossy();
    let group = hierarchies.group(controller, &path).map_err(words)?;
    let of_engine = tenants::mark(group.path()).is_some();
    if of_engine {
        return Ok(group);
    }
    let all = group.processes().map_err(words)?;
    match all
        .into_iter()
        .find(|other| !descends(tenants, *other, pid))
    {
        None => Ok(group),
        Some(other) => Err(format!(
            "{who} shares its control group {} with process {other}: start it in one of its own",
            tenants::plain(group.path())
        )),
    }
}

/// Whether a process is another one or was started by it. One that came since the look is.
fn descends(tenants: &Tenants, mut pid: u32, from: u32) -> bool {
    // Numbers that were given anew could make a circle.
    for _ in 0..64 {
        if pid == from {
            return true;
        }
        match tenants.processes.get(&pid) {
            Some(seen) => pid = seen.ppid,
            None => return pid != 0 && pid != 1,
        }
    }
    false
}

/// The process of a group that was started first: when, and which.
fn first_of(group: &Cgroup) -> Option<(u64, u32)> {
    let pids = group.processes().ok()?;
    let started = pids.into_iter().take(MOST).filter_map(|pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // proc_pid_stat(5): the name ends with the last bracket, the start is field 22.
        let (_, rest) = stat.rsplit_once(')')?;
        let start = rest.split_ascii_whitespace().nth(19)?.parse().ok()?;
        Some((start, pid))
    });
    started.min()
}

/// Whether a process is there.
pub(super) fn is_there(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

fn user_of(pid: u32) -> u32 {
    fs::metadata(format!("/proc/{pid}")).map_or(0, |folder| folder.uid())
}

/// When a process was started, ns since 1970, from clock ticks (100 a second) since the machine was.
fn started_ns(ticks: u64) -> u64 {
    let booted = super::unix_ns().saturating_sub(super::ns_of(ClockId::Boottime));
    booted + ticks.saturating_mul(10_000_000)
}

/// A group that is not there.
fn absent(error: &cgroup::Error) -> Error {
    Error::Absent(bonsai_host::sentence(error))
}

fn no_room() -> Error {
    wrong("the interfaces of this machine cannot be listed")
}

/// The places that need a look at all processes.
pub(super) fn need_tenants(places: &BTreeMap<String, Place>) -> bool {
    let far = |place: &Place| place.link().is_some_and(|of| of.whose() != Whose::Ours);
    places.values().any(far)
}
