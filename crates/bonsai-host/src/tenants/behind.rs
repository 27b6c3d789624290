//! Who is behind an interface, in one value.

use super::containers::{Container, Engine, Pod};
use super::groups::Groups;
use super::look::{Seen, Tenants};
use super::machines::{Hypervisor, Machine};
use super::namespaces::NsId;
use super::taps::{Tap, TapKind};
use super::words::plain;

/// Digits of a container's ID that are shown where it has no name: as many as Docker shows.
const SHOWN_ID: usize = 12;

/// What a tenant is. Names are any text: [`Behind::describe`] cleans them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// A process.
    Process,
    /// A container.
    Container {
        /// What runs it.
        engine: Engine,
        /// 64 hexadecimal digits, for engines with IDs.
        id: Option<String>,
        /// Its name, where it could be read.
        name: Option<String>,
        /// Its pod of Kubernetes.
        pod: Option<Pod>,
        /// How many more containers are in the same network namespace.
        others: usize,
    },
    /// A virtual machine.
    Machine {
        /// What runs it.
        hypervisor: Hypervisor,
        /// Its name, if it has one.
        name: Option<String>,
        /// Whether libvirt manages it.
        libvirt: bool,
    },
    /// A network namespace with a name.
    Namespace {
        /// Its name in `/run/netns`, or its path.
        name: String,
    },
    /// A control group.
    Group,
}

/// A tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Behind {
    /// What it is.
    pub kind: Kind,
    /// Its process: the machine itself, the first one of a container, namespace or group.
    pub pid: Option<u32>,
    /// When that process started, in clock ticks since the machine did.
    pub start_ticks: Option<u64>,
    /// That process's program. Any text.
    pub program: Option<String>,
    /// The network namespace that it is in.
    pub netns: Option<NsId>,
    /// Its control group, as a path in the hierarchy of version 2, or of systemd; of a container or
    /// a machine, the one around all of it. `None` for the root, and for a namespace.
    pub cgroup: Option<String>,
    /// Its unit of systemd.
    pub unit: Option<String>,
}

impl Behind {
    /// Who it is in a few words, fit for a terminal whatever the names.
    #[must_use]
    pub fn describe(&self) -> String {
        let program = self.program.as_deref().map(plain);
        let process = match (&program, self.pid) {
            (Some(program), Some(pid)) => Some(format!("{program}, PID {pid}")),
            _ => None,
        };
        match &self.kind {
            Kind::Process => {
                let pid = self.pid.unwrap_or_default();
                let unit = self.unit.as_deref().map(plain);
                let unit = unit.map(|unit| format!(" of {unit}")).unwrap_or_default();
                format!(
                    "{} (PID {pid}){unit}",
                    program.as_deref().unwrap_or("process")
                )
            }
            Kind::Container {
                engine,
                id,
                name,
                pod,
                others,
            } => {
                let name = container_name(id.as_deref(), name.as_deref());
                let pod = pod
                    .as_ref()
                    .map(|pod| format!(" of pod {}", plain(&pod_name(pod))));
                let more = if *others > 0 {
                    format!(" and {others} more")
                } else {
                    String::new()
                };
                format!(
                    "container {}{} ({engine}){more}",
                    plain(&name),
                    pod.unwrap_or_default()
                )
            }
            Kind::Machine {
                hypervisor,
                name,
                libvirt,
            } => {
                let name = name
                    .as_deref()
                    .map_or_else(|| "without a name".to_owned(), plain);
                let by = if *libvirt { " by libvirt" } else { "" };
                let pid = self.pid.unwrap_or_default();
                format!("machine {name} ({hypervisor}{by}, PID {pid})")
            }
            Kind::Namespace { name } => {
                let process = process
                    .map(|process| format!(" ({process})"))
                    .unwrap_or_default();
                format!("namespace {}{process}", plain(name))
            }
            Kind::Group => {
                let group = self.cgroup.as_deref().unwrap_or("/");
                match self.unit.as_deref().filter(|unit| group.ends_with(unit)) {
                    Some(unit) => format!("unit {}", plain(unit)),
                    None => format!("control group {}", plain(group)),
                }
            }
        }
    }
}

pub(super) fn pod_name(pod: &Pod) -> String {
    format!("{}/{}", pod.namespace, pod.name)
}

fn container_name(id: Option<&str>, name: Option<&str>) -> String {
    let id = id.map(|id| id.get(..SHOWN_ID).unwrap_or(id));
    name.or(id).unwrap_or("without a name").to_owned()
}

/// Whether a program in a container's group is not in the container, but runs it.
pub(super) fn is_supervisor(engine: Engine, program: &str) -> bool {
    match engine {
        Engine::Nspawn => program == "systemd-nspawn",
        Engine::LibvirtLxc => program == "libvirt_lxc",
        _ => false,
    }
}

impl Tenants {
    /// Who holds the TUN or TAP interface `name` of the namespace `netns`: a machine if one does,
    /// otherwise the process that started first, as what it is.
    #[must_use]
    pub fn behind_tap(&self, name: &str, netns: NsId) -> Option<Behind> {
        self.holder(|tap| tap.netns == Some(netns) && tap.name.as_deref() == Some(name))
    }

    /// Who holds the macvtap with this interface index, in the namespace `netns`.
    #[must_use]
    pub fn behind_macvtap(&self, index: u32, netns: NsId) -> Option<Behind> {
        self.holder(|tap| tap.netns == Some(netns) && tap.kind == TapKind::MacVtap { index })
    }

    fn holder(&self, is: impl Fn(&Tap) -> bool) -> Option<Behind> {
        // Taps are in the order of their holders' starts.
        let holders = self.taps.iter().filter(|tap| is(tap));
        let holders = holders.filter_map(|tap| self.processes.get(&tap.pid));
        let best = holders.min_by_key(|seen| (seen.machine.is_none(), seen.container.is_none()))?;
        Some(self.behind(best))
    }

    /// Who is in the namespace `id`: the container that is, the first one of several; otherwise
    /// the namespace by its name, or else its first process. `None` for the namespace of this
    /// process, which is the machine itself, and for one that nobody is in and that has no name.
    #[must_use]
    pub fn behind_netns(&self, id: NsId) -> Option<Behind> {
        let namespace = self
            .namespaces
            .get(&id)
            .filter(|namespace| !namespace.own)?;
        let mut inside = self.containers.iter().filter(|one| one.netns == Some(id));
        // The one that only holds the namespace has no more to say than those that work in it.
        let main = inside
            .clone()
            .find(|one| !one.sandbox)
            .or_else(|| inside.next());
        if let Some(main) = main {
            return Some(self.behind_container(main));
        }
        let first = namespace.first.and_then(|pid| self.processes.get(&pid));
        match namespace.names.first() {
            Some((name, _)) => {
                let kind = Kind::Namespace { name: name.clone() };
                Some(Behind {
                    netns: Some(id),
                    ..of_process(kind, first)
                })
            }
            None => Some(self.behind(first?)),
        }
    }

    /// Who the process `pid` is: a machine, a process of a container, or a process.
    #[must_use]
    pub fn behind_process(&self, pid: u32) -> Option<Behind> {
        self.processes.get(&pid).map(|seen| self.behind(seen))
    }

    pub(super) fn behind(&self, seen: &Seen) -> Behind {
        let container = seen.container.and_then(|at| self.containers.get(at));
        let kind = match (&seen.machine, container) {
            (Some(machine), _) => machine_kind(machine),
            (None, Some(container)) => self.container_kind(container),
            (None, None) => Kind::Process,
        };
        of_process(kind, Some(seen))
    }

    pub(super) fn behind_container(&self, container: &Container) -> Behind {
        let seen = self.processes.get(&container.pid);
        let kind = self.container_kind(container);
        Behind {
            netns: container.netns,
            pid: Some(container.pid),
            ..of_process(kind, seen)
        }
    }

    fn container_kind(&self, container: &Container) -> Kind {
        let together = |one: &&Container| {
            one.netns.is_some() && one.netns == container.netns && one.netns != Some(self.own)
        };
        let workers = self
            .containers
            .iter()
            .filter(together)
            .filter(|one| !one.sandbox);
        Kind::Container {
            engine: container.engine,
            id: container.id.clone(),
            name: container.name.clone(),
            pod: container.pod.clone(),
            others: workers.count().saturating_sub(1),
        }
    }
}

fn machine_kind(machine: &Machine) -> Kind {
    Kind::Machine {
        hypervisor: machine.hypervisor,
        name: machine.name.clone(),
        libvirt: machine.libvirt,
    }
}

pub(super) fn of_process(kind: Kind, seen: Option<&Seen>) -> Behind {
    let groups = seen.map(|seen| groups_of(&kind, seen));
    let groups = groups.as_ref();
    Behind {
        kind,
        pid: seen.map(|seen| seen.pid),
        start_ticks: seen.map(|seen| seen.start_ticks),
        program: seen.map(|seen| seen.program.clone()),
        netns: seen.and_then(|seen| seen.netns),
        cgroup: groups.and_then(|groups| groups.main().map(str::to_owned)),
        unit: groups.and_then(|groups| groups.unit().map(str::to_owned)),
    }
}

/// The control groups of a tenant of which this is a process: a namespace has none.
pub(super) fn groups_of(kind: &Kind, seen: &Seen) -> Groups {
    match kind {
        Kind::Namespace { .. } => Groups::default(),
        Kind::Container { .. } | Kind::Machine { .. } => seen.groups.of_tenant(),
        Kind::Process | Kind::Group => seen.groups.clone(),
    }
}
