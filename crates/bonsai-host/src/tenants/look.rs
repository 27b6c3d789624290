//! One pass over `/proc`.

use std::collections::BTreeMap;
use std::fs::File;
use std::mem::MaybeUninit;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RawDir, readlinkat_raw};

use super::behind::is_supervisor;
use super::containers::{Container, Engine, Known, States, of_monitor};
use super::groups::{self, Groups, Mark};
use super::machines::{self, Machine};
use super::namespaces::{self, Namespace, NsId};
use super::roots::{Roots, read_of_process};
use super::taps::{self, Tap};
use super::words::file_name;
use crate::Error;

/// Longest command line that is read. Those of machines with many disks have 10 KB.
const LONGEST_COMMAND: usize = 1 << 20;

/// A process at the time of the look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Process ID.
    pub pid: u32,
    /// Process ID of the parent.
    pub ppid: u32,
    /// When it started, in clock ticks since the machine did; with `pid` it tells it from a later one.
    pub start_ticks: u64,
    /// Name of the program, as the process has it. Any text.
    pub program: String,
    /// Network namespace of its main thread; `None` if it may not be read.
    pub netns: Option<NsId>,
    /// Its control groups.
    pub groups: Groups,
    /// Its container: a position in [`Tenants::containers`].
    pub container: Option<usize>,
    /// The virtual machine that it is.
    pub machine: Option<Machine>,
}

/// The machine's namespaces, interfaces of processes, containers and machines, at one moment.
#[derive(Clone, Debug)]
pub struct Tenants {
    pub(super) roots: Roots,
    /// The network namespace of this process.
    pub own: NsId,
    /// Namespaces, by identity.
    pub namespaces: BTreeMap<NsId, Namespace>,
    /// TUN, TAP and macvtap interfaces that are held by a process.
    pub taps: Vec<Tap>,
    /// Running containers, by the start of their first process.
    pub containers: Vec<Container>,
    /// Processes by PID, without kernel threads and zombies.
    pub processes: BTreeMap<u32, Seen>,
    /// How many processes' namespaces could not be read, for want of rights.
    pub hidden: usize,
}

/// What a process's files tell, before they are put together.
struct Found {
    seen: Seen,
    mark: Option<(Mark, bool)>,
    monitor: Option<(String, String)>,
    taps: Vec<Tap>,
}

impl Tenants {
    /// Looks at the machine.
    ///
    /// # Errors
    /// [`Error::Read`] if procfs is not there, or has no network namespace of this process.
    pub fn look(roots: &Roots) -> Result<Self, Error> {
        Self::look_at(roots, true)
    }

    /// As [`Tenants::look`], without the descriptors of processes: for whoever knows that no TUN,
    /// TAP or macvtap interface is of interest. `taps` is empty.
    ///
    /// # Errors
    /// As [`Tenants::look`].
    pub fn look_without_taps(roots: &Roots) -> Result<Self, Error> {
        Self::look_at(roots, false)
    }

    fn look_at(roots: &Roots, taps: bool) -> Result<Self, Error> {
        let own = roots.proc.join("self/ns/net");
        let stat = rustix::fs::statat(CWD, &own, AtFlags::empty());
        let own = NsId::of(&stat.map_err(|errno| Error::read(&own, errno))?);
        let mut found = scan(roots, taps)?;
        found.sort_by_key(|one| (one.seen.start_ticks, one.seen.pid));

        let libvirt = machines::of_libvirt(roots);
        for one in &mut found {
            of_libvirt(one, &libvirt);
        }
        let mut tenants = Self {
            roots: roots.clone(),
            own,
            namespaces: BTreeMap::new(),
            taps: found
                .iter_mut()
                .flat_map(|one| std::mem::take(&mut one.taps))
                .collect(),
            containers: containers(roots, &mut found),
            hidden: found.iter().filter(|one| one.seen.netns.is_none()).count(),
            processes: BTreeMap::new(),
        };
        tenants.namespaces = all_namespaces(roots, own, &found, &tenants.taps);
        tenants.processes = found
            .into_iter()
            .map(|one| (one.seen.pid, one.seen))
            .collect();
        Ok(tenants)
    }
}

fn scan(roots: &Roots, taps: bool) -> Result<Vec<Found>, Error> {
    let read = |errno| Error::read(&roots.proc, errno);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let proc = rustix::fs::open(&roots.proc, flags, Mode::empty()).map_err(read)?;
    let mut buffer = Box::new([MaybeUninit::uninit(); 32 << 10]);
    let mut entries = RawDir::new(&proc, &mut buffer[..]);
    let mut found = Vec::new();
    while let Some(entry) = entries.next() {
        let entry = entry.map_err(read)?;
        let pid = entry
            .file_name()
            .to_str()
            .ok()
            .and_then(|name| name.parse().ok());
        let Some(pid) = pid else { continue };
        // All files of a process are reached by its folder, so that they are of one process.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        if let Ok(folder) = rustix::fs::openat(&proc, entry.file_name(), flags, Mode::empty()) {
            let folder = File::from(folder);
            let Some(mut one) = process(&folder, pid) else {
                continue;
            };
            if taps {
                one.taps = taps::of_process(&folder, pid, one.seen.netns, roots.is_live());
            }
            found.push(one);
        }
    }
    Ok(found)
}

/// `None` if it has ended, or is a kernel thread or a zombie.
fn process(folder: &File, pid: u32) -> Option<Found> {
    let stat = read_of_process(folder, "stat", 4096).ok()?;
    let (program, ppid, start_ticks) = parse_stat(&String::from_utf8_lossy(&stat))?;
    let groups = read_of_process(folder, "cgroup", 64 << 10).ok()?;
    let groups = groups::parse(&groups);
    let netns = rustix::fs::statat(folder, "ns/net", AtFlags::empty()).ok();
    let netns = netns.map(|stat| NsId::of(&stat));
    let executable = executable(folder).unwrap_or_else(|| program.clone());
    let hypervisor = machines::hypervisor(&executable);
    let command = || read_of_process(folder, "cmdline", LONGEST_COMMAND).ok();
    let machine = hypervisor.and_then(|kind| machines::machine(kind, &command()?));
    let is_monitor = program == "conmon";
    let monitor = is_monitor
        .then(command)
        .flatten()
        .and_then(|line| of_monitor(&line));
    Some(Found {
        mark: groups.mark(),
        monitor,
        taps: Vec::new(),
        seen: Seen {
            pid,
            ppid,
            start_ticks,
            program,
            netns,
            groups,
            container: None,
            machine,
        },
    })
}

fn executable(folder: &File) -> Option<String> {
    let mut path = [MaybeUninit::uninit(); 4096];
    let (path, _) = readlinkat_raw(folder, "exe", &mut path[..]).ok()?;
    Some(file_name(path))
}

/// Program, parent and start of a process that runs a program.
fn parse_stat(stat: &str) -> Option<(String, u32, u64)> {
    // include/linux/sched.h
    const PF_KTHREAD: u32 = 0x0020_0000;
    // The name may hold blanks and parentheses; its own are the outermost.
    let (_, rest) = stat.split_once(" (")?;
    let (program, rest) = rest.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    // proc_pid_stat(5) counts from 1 and with PID and name: state is its third field.
    let field = |number: usize| fields.get(number - 3).copied();
    let flags: u32 = field(9)?.parse().ok()?;
    if flags & PF_KTHREAD != 0 || matches!(field(3)?, "Z" | "X") {
        return None;
    }
    Some((
        program.to_owned(),
        field(4)?.parse().ok()?,
        field(22)?.parse().ok()?,
    ))
}

/// Adds what libvirt says of a machine.
fn of_libvirt(one: &mut Found, names: &BTreeMap<u32, String>) {
    let Some(machine) = &mut one.seen.machine else {
        return;
    };
    let by_file = names.get(&one.seen.pid);
    let by_group = match &one.mark {
        Some((Mark::Guest(name), _)) => Some(name),
        _ => None,
    };
    machine.libvirt = by_file.or(by_group).is_some();
    // Names of groups are cut, and a machine can be renamed by its monitor: the file is newest.
    if let Some(name) = by_file {
        machine.name = Some(name.clone());
    } else if machine.name.is_none() {
        machine.name = by_group.cloned();
    }
}

/// What makes a container one: its engine, and ID or name.
type Key = (Engine, Option<String>, Option<String>);

/// The containers of processes, which are sorted by their start.
fn containers(roots: &Roots, found: &mut [Found]) -> Vec<Container> {
    let mut states = States::new(roots);
    let mut known: BTreeMap<Key, usize> = BTreeMap::new();
    let mut containers: Vec<Container> = Vec::new();
    let monitors: BTreeMap<u32, (String, String)> = found
        .iter_mut()
        .filter_map(|one| Some((one.seen.pid, one.monitor.take()?)))
        .collect();
    for one in found {
        let key = match one.mark.take() {
            Some((_, true)) | Some((Mark::Guest(_), _)) | None => continue,
            Some((Mark::Id(engine, id), _)) => (engine, Some(id), None),
            Some((Mark::Name(engine, name), _)) => (engine, None, Some(name)),
        };
        if is_supervisor(key.0, &one.seen.program) {
            continue;
        }
        let at = *known.entry(key).or_insert_with_key(|key| {
            let (engine, id, name) = key;
            let says = id
                .as_ref()
                .map(|id| states.known(*engine, id))
                .unwrap_or_default();
            // Any process can call itself a monitor; one that is the parent at least runs it.
            let monitor = monitors.get(&one.seen.ppid);
            let monitor = monitor.filter(|(of, _)| Some(of) == id.as_ref());
            let monitor = monitor.map(|(_, name)| name.clone());
            let Known {
                engine: by,
                name: written,
                pod,
                sandbox,
            } = says;
            containers.push(Container {
                engine: by.unwrap_or(*engine),
                id: id.clone(),
                name: written.or(monitor).or_else(|| name.clone()),
                pod,
                sandbox,
                pid: one.seen.pid,
                netns: one.seen.netns,
            });
            containers.len() - 1
        });
        one.seen.container = Some(at);
    }
    containers
}

fn all_namespaces(
    roots: &Roots,
    own: NsId,
    found: &[Found],
    taps: &[Tap],
) -> BTreeMap<NsId, Namespace> {
    let mut all = BTreeMap::new();
    let new = |id| Namespace {
        id,
        own: id == own,
        names: Vec::new(),
        processes: 0,
        first: None,
    };
    for one in found {
        let Some(id) = one.seen.netns else { continue };
        let namespace = all.entry(id).or_insert_with(|| new(id));
        namespace.processes += 1;
        namespace.first.get_or_insert(one.seen.pid);
    }
    for (id, names) in namespaces::names(roots, own) {
        all.entry(id).or_insert_with(|| new(id)).names = names;
    }
    // One that only an interface of a process is in.
    for id in taps.iter().filter_map(|tap| tap.netns) {
        all.entry(id).or_insert_with(|| new(id));
    }
    all
}

impl Tenants {
    /// Opens a namespace that was seen, by one of its names or through a process in it.
    ///
    /// # Errors
    /// [`super::TenantError::Gone`] if it is not found any more, or may not be opened.
    pub fn open_netns(&self, id: NsId) -> Result<namespaces::OpenNetns, super::TenantError> {
        let opened = |path: &Path| {
            namespaces::open_path(path)
                .ok()
                .filter(|open| open.id == id)
        };
        let names = self
            .namespaces
            .get(&id)
            .into_iter()
            .flat_map(|namespace| &namespace.names);
        if let Some(open) = names.map(|(_, path)| path).find_map(|path| opened(path)) {
            return Ok(open);
        }
        let inside = self
            .processes
            .values()
            .filter(|seen| seen.netns == Some(id));
        let mut paths = inside.map(|seen| self.roots.proc.join(format!("{}/ns/net", seen.pid)));
        let found = paths.find_map(|path| opened(&path));
        found.ok_or(super::TenantError::Gone { inode: id.inode })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_threads_and_zombies_have_no_program() {
        let stat = |flags: &str, state: &str| {
            parse_stat(&format!(
                "42 (a) b) {state} 7 42 42 0 -1 {flags} 1 0 0 0 0 0 0 0 20 0 3 0 991 1\n"
            ))
        };
        assert_eq!(stat("4194304", "S"), Some(("a) b".to_owned(), 7, 991)));
        assert_eq!(stat("2129984", "S"), None);
        assert_eq!(stat("4194304", "Z"), None);
        assert_eq!(parse_stat("42 (a) S 7"), None);
        assert_eq!(parse_stat(""), None);
    }
}
