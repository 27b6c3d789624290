//! From what a user says to what is needed to shape it.

use super::behind::{Behind, Kind, groups_of, of_process, pod_name};
use super::containers::{Container, States};
use super::group_files::{self, GroupFolder};
use super::groups::{Groups, is_id};
use super::look::Tenants;
use super::namespaces::{self, NsId};
use super::taps::Tap;
use super::{SHORTEST_ID, TenantError};

/// What a user names a tenant by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who<'a> {
    /// A container: its name, its ID, or the beginning of its ID; in Kubernetes also its pod or
    /// `namespace/pod`, and `namespace/pod/container`.
    Container(&'a str),
    /// A virtual machine, by its name.
    Machine(&'a str),
    /// A network namespace: its name, its file, or a process in it.
    Netns(&'a str),
    /// A process.
    Pid(u32),
    /// A control group: its path in its hierarchy, or its folder.
    Group(&'a str),
}

/// A tenant, and what can be shaped of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Who it is.
    pub behind: Behind,
    /// Interfaces that it holds, if it is a virtual machine.
    pub taps: Vec<Tap>,
    /// Folders of its control groups, version 2 first.
    pub groups: Vec<GroupFolder>,
    own: NsId,
    /// Whether its processes are in different network namespaces.
    scattered: bool,
}

/// Where a tenant meets the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Network {
    /// It is in a namespace: what is inside is its own, and so are the other ends of its veths.
    Namespace(NsId),
    /// It holds these interfaces, which are in the namespaces that they name.
    Taps(Vec<Tap>),
}

impl Target {
    /// Where it can be shaped at an interface.
    ///
    /// # Errors
    /// [`TenantError::SharesOurs`], [`TenantError::NoTap`], [`TenantError::NoOneNetns`] or
    /// [`TenantError::Hidden`] if nowhere.
    pub fn network(&self) -> Result<Network, TenantError> {
        let who = || self.behind.describe();
        if matches!(self.behind.kind, Kind::Machine { .. }) {
            return if self.taps.is_empty() {
                Err(TenantError::NoTap { who: who() })
            } else {
                Ok(Network::Taps(self.taps.clone()))
            };
        }
        let no_one = |why| Err(TenantError::NoOneNetns { who: who(), why });
        if self.scattered {
            return no_one("its processes are in several: name one of these");
        }
        match self.behind.netns {
            None if self.behind.pid.is_none() => no_one("no process is in it"),
            None => Err(TenantError::Hidden { who: who() }),
            Some(netns) if netns == self.own => Err(TenantError::SharesOurs { who: who() }),
            Some(netns) => Ok(Network::Namespace(netns)),
        }
    }
}

impl Tenants {
    /// Finds a tenant.
    ///
    /// A container's full ID counts before a name, and a name before the beginning of an ID, as
    /// with Docker; a beginning needs 6 digits.
    ///
    /// # Errors
    /// [`TenantError`] if there is none or more than one, or if the name cannot be one.
    pub fn find(&self, who: Who<'_>) -> Result<Target, TenantError> {
        match who {
            Who::Container(name) => self.container(name).map(|one| self.of_container(one)),
            Who::Machine(name) => self.machine(name),
            Who::Netns(name) => self.netns(name),
            Who::Pid(pid) => {
                let behind = self
                    .behind_process(pid)
                    .ok_or(TenantError::NoProcess { pid })?;
                Ok(self.target(behind))
            }
            Who::Group(path) => self.group(path),
        }
    }

    fn target(&self, behind: Behind) -> Target {
        let holds = |tap: &&Tap| Some(tap.pid) == behind.pid;
        let taps = match behind.kind {
            Kind::Machine { .. } => self.taps.iter().filter(holds).cloned().collect(),
            _ => Vec::new(),
        };
        let seen = behind.pid.and_then(|pid| self.processes.get(&pid));
        let groups = seen
            .map(|seen| groups_of(&behind.kind, seen))
            .unwrap_or_default();
        let groups = group_files::of_groups(&self.roots, &groups);
        Target {
            behind,
            taps,
            groups,
            own: self.own,
            scattered: false,
        }
    }

    fn of_container(&self, container: &Container) -> Target {
        self.target(self.behind_container(container))
    }

    fn container(&self, name: &str) -> Result<&Container, TenantError> {
        let digits = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_hexdigit());
        let is_start = digits && name.len() >= SHORTEST_ID;
        let start = name.to_ascii_lowercase();
        let by_id = |one: &Container| is_id(&start) && one.id.as_deref() == Some(&*start);
        let by_name = |one: &Container| one.name.as_deref() == Some(name);
        let by_pod = |one: &Container| {
            one.pod.as_ref().is_some_and(|pod| {
                let (short, full) = (&pod.name, pod_name(pod));
                let inside = one
                    .name
                    .as_ref()
                    .is_some_and(|inner| name == format!("{full}/{inner}"));
                inside || name == short || name == full
            })
        };
        let by_start =
            |one: &Container| is_start && one.id.as_ref().is_some_and(|id| id.starts_with(&start));
        let ways: [&dyn Fn(&Container) -> bool; 4] = [&by_id, &by_name, &by_pod, &by_start];
        for way in ways {
            let found: Vec<&Container> = self.containers.iter().filter(|one| way(one)).collect();
            let Some(first) = found.first() else { continue };
            // Containers of a pod share its network, so it does not matter which is meant.
            let together = |one: &&Container| {
                one.pod.is_some() && (&one.pod, one.netns) == (&first.pod, first.netns)
            };
            if found.len() == 1 || found.iter().all(together) {
                let worker = found.iter().find(|one| !one.sandbox).unwrap_or(first);
                return Ok(worker);
            }
            let candidates: Vec<String> = found.into_iter().map(candidate).collect();
            return Err(TenantError::ambiguous(name, &candidates));
        }
        Err(self.no_container(name, digits && !is_start))
    }

    fn no_container(&self, name: &str, is_short: bool) -> TenantError {
        let plain = super::plain;
        if !name.is_empty() && States::new(&self.roots).has(name) {
            return TenantError::NotRunning { name: plain(name) };
        }
        if is_short {
            return TenantError::ShortId { name: plain(name) };
        }
        let known: Vec<String> = self
            .containers
            .iter()
            .filter(|one| !one.sandbox)
            .map(short)
            .collect();
        TenantError::unknown("running container", name, &known)
    }

    fn machine(&self, name: &str) -> Result<Target, TenantError> {
        let machines = || {
            self.processes
                .values()
                .filter_map(|seen| Some((seen, seen.machine.as_ref()?)))
        };
        let mut found: Vec<_> = machines()
            .filter(|(_, machine)| machine.name.as_deref() == Some(name))
            .collect();
        // User-mode Linux is several processes; the parent of the others is the machine.
        let pids: Vec<u32> = found.iter().map(|(seen, _)| seen.pid).collect();
        found.retain(|(seen, _)| !pids.contains(&seen.ppid));
        match found.as_slice() {
            [] => {
                let known: Vec<String> = machines()
                    .filter_map(|(_, machine)| machine.name.clone())
                    .collect();
                Err(TenantError::unknown("virtual machine", name, &known))
            }
            [(seen, _)] => Ok(self.target(self.behind(seen))),
            many => {
                let candidates = many.iter().map(|(seen, _)| self.behind(seen).describe());
                let candidates: Vec<String> = candidates.collect();
                Err(TenantError::ambiguous(name, &candidates))
            }
        }
    }

    fn netns(&self, name: &str) -> Result<Target, TenantError> {
        let open = namespaces::open(&self.roots, name)?;
        // It was named as a namespace, so that is what is meant, whoever is in it.
        let kind = Kind::Namespace {
            name: name.to_owned(),
        };
        let namespace = self.namespaces.get(&open.id);
        let first = namespace.and_then(|namespace| self.processes.get(&namespace.first?));
        let mut behind = of_process(kind, first);
        behind.netns = Some(open.id);
        Ok(self.target(behind))
    }

    fn group(&self, named: &str) -> Result<Target, TenantError> {
        let refused = || TenantError::GroupName {
            name: super::plain(named),
        };
        if !named.starts_with('/')
            || named.contains('\0')
            || named.split('/').any(|part| part == "..")
        {
            return Err(refused());
        }
        let path = group_files::path_in_hierarchy(&self.roots, named);
        if path == "/" {
            return Err(refused());
        }
        let groups = group_files::existing(&self.roots, &path);
        if groups.is_empty() {
            return Err(TenantError::unknown("control group", named, &[]));
        }
        let inside = self
            .processes
            .values()
            .filter(|seen| seen.groups.are_in(&path));
        let mut inside: Vec<_> = inside.collect();
        inside.sort_by_key(|seen| (seen.start_ticks, seen.pid));
        let first = inside.first().copied();
        let scattered = inside
            .iter()
            .any(|seen| Some(seen.netns) != first.map(|first| first.netns));
        let mut behind = of_process(Kind::Group, first);
        let alone = Groups {
            v2: Some(path.clone()),
            v1: Vec::new(),
        };
        behind.unit = alone.unit().map(str::to_owned);
        behind.cgroup = Some(path);
        Ok(Target {
            behind,
            taps: Vec::new(),
            groups,
            own: self.own,
            scattered,
        })
    }
}

/// A container in a list of those that a name may mean.
fn candidate(one: &Container) -> String {
    let id = one.id.as_deref().and_then(|id| id.get(..12));
    let id = id.map(|id| format!(" {id}")).unwrap_or_default();
    format!("{} ({}{id}, PID {})", short(one), one.engine, one.pid)
}

fn short(one: &Container) -> String {
    let id = one.id.as_deref().and_then(|id| id.get(..12));
    let name = one.name.as_deref().or(id).unwrap_or_default();
    match &one.pod {
        Some(pod) => format!("{}/{name}", pod_name(pod)),
        None => name.to_owned(),
    }
}
