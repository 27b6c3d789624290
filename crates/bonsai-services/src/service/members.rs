//! Who belongs to a service: processes that mapped its ledger, that have it in
//! their environment, or that descend from one of these.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use bonsai_host::proc::{Process, Processes, has_mapped};
use bonsai_ledger::sync::Ordering;
use bonsai_ledger::{
    Ledger, Numbers, ProcessId, ProcessReport, identity_of, shows, thread_numbers,
};

use super::{LEDGER_VARIABLE, Service};
use crate::harmless;

/// A live process of a service.
#[derive(Clone, Debug)]
pub struct Member {
    /// The process.
    pub process: Process,
    /// Identity in the ledger, by the number in its own pid namespace.
    pub id: ProcessId,
    /// Its entry in the ledger, if it has one.
    pub entry: Option<ProcessReport>,
    /// Whether the interposer runs in it: it has mapped the ledger.
    pub entered: bool,
    /// The ledger that its environment names.
    pub named: Option<PathBuf>,
    /// Whether it is the service's maker, which counts there what it does for others: the server of an
    /// export.
    pub serves: bool,
}

impl Member {
    /// The number in `/proc` of a thread, by its number in the pid namespace of the process.
    pub fn thread(&self, tid: u32) -> Option<u32> {
        if self.id.pid == self.process.pid {
            return Some(tid);
        }
        thread_numbers(self.process.pid).get(&tid).copied()
    }

    /// The name of its program: what runs now, as far as that may be known.
    pub fn program(&self) -> String {
        let file = |path: &PathBuf| {
            path.file_name()
                .map(|name| name.to_string_lossy().into_owned())
        };
        let named =
            |entry: &ProcessReport| Some(entry.program.clone()).filter(|name| !name.is_empty());
        let exe = self.process.exe.as_ref().and_then(file);
        let name = exe.or_else(|| self.entry.as_ref().and_then(named));
        harmless(name.as_ref().unwrap_or(&self.process.comm))
    }
}

/// The processes of the machine at one instant, for questions about many services.
#[derive(Debug)]
pub struct Living {
    live: BTreeSet<u32>,
    /// The ledgers that their environments name.
    named: BTreeSet<PathBuf>,
}

impl Living {
    /// Those of now.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn now() -> anyhow::Result<Self> {
        let processes = Processes::read()?;
        let live = processes.iter().filter(|process| process.state != 'Z');
        let live: BTreeSet<u32> = live.map(|process| process.pid).collect();
        Ok(Self {
            named: live.iter().filter_map(|pid| named_ledger(*pid)).collect(),
            live,
        })
    }

    /// Whether any process of the service lives, apart from its `bonsai run`.
    #[must_use]
    pub fn any(&self, service: &Service) -> bool {
        let path = service.ledger_path();
        let ledger = Ledger::open(&path).ok();
        if let Some(ledger) = &ledger {
            let namespace = ledger.header.namespace.load(Ordering::Relaxed);
            // Processes of a pid namespace that is not seen from here may live.
            if !u32::try_from(namespace).is_ok_and(|made| made == 0 || shows(made)) {
                return true;
            }
            // The service's `bonsai run`, which does this otherwise, may have ended.
            ledger.reclaim_left();
        }
        // The table names nearly all; whoever is in it need not be looked for.
        let table = table(ledger.as_ref());
        let in_table = table.keys().filter(|pid| self.live.contains(*pid));
        let belongs = |pid: &u32| Facts::of(*pid, &path, true).belongs(&path);
        if in_table.into_iter().any(belongs) || self.named.contains(&path) {
            return true;
        }
        let complete =
            ledger.is_some_and(|ledger| ledger.header.processes_lost.load(Ordering::Relaxed) == 0);
        !complete
            && self
                .live
                .iter()
                .any(|pid| is_mapped(*pid, &path) == Some(true))
    }
}

/// Whether any process of the service lives, apart from its `bonsai run`.
///
/// # Errors
/// `/proc` cannot be read.
pub fn any(service: &Service) -> anyhow::Result<bool> {
    Ok(Living::now()?.any(service))
}

/// The live processes of a service, by ascending number. `keeper` is its maker, if that
/// lives: a `bonsai run`, which is not among them, or a server that is in the ledger's table.
///
/// # Errors
/// `/proc` cannot be read.
pub fn all(service: &Service, ledger: &Ledger, keeper: Option<u32>) -> anyhow::Result<Vec<Member>> {
    if let Some(enforced) = service.enforced() {
        return of_supervisor(enforced.supervisor, ledger);
    }
    let path = service.ledger_path();
    let processes = Processes::read()?;
    let mut table = table(Some(ledger));
    let mut members = BTreeMap::new();
    if let Some(server) = keeper.filter(|keeper| table.contains_key(keeper)) {
        let process = processes.iter().find(|process| process.pid == server);
        let member = process.map(|process| Member {
            serves: true,
            ..Facts::of(server, &path, true).member(process, table.remove(&server))
        });
        return Ok(member.into_iter().collect());
    }
    let lives = |process: &&Process| {
        process.state != 'Z' && Some(process.pid) != keeper && !is_helper(process, keeper)
    };
    for process in processes.iter().filter(lives) {
        let facts = Facts::of(process.pid, &path, table.contains_key(&process.pid));
        if facts.belongs(&path) {
            members.insert(
                process.pid,
                facts.member(process, table.remove(&process.pid)),
            );
        }
    }
    let roots: Vec<u32> = members.keys().copied().chain(keeper).collect();
    for root in roots {
        for process in processes.descendants(root).into_iter().filter(lives) {
            members.entry(process.pid).or_insert_with(|| {
                let mut facts = Facts::of(process.pid, &path, false);
                facts.entered = is_mapped(process.pid, &path) == Some(true);
                facts.member(process, None)
            });
        }
    }
    Ok(members.into_values().collect())
}

/// True for a helper of the keeper (`bonsai enter`), which puts the engine into programs of the service and belongs to it as little
/// as the keeper does.
fn is_helper(process: &Process, keeper: Option<u32>) -> bool {
    let program = |pid: u32| fs::read_link(format!("/proc/{pid}/exe")).ok();
    let enters = || {
        let line = fs::read(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
        line.split(|byte| *byte == 0).nth(1) == Some(b"enter")
    };
    keeper.is_some_and(|keeper| {
        process.ppid == keeper && enters() && program(process.pid) == program(keeper)
    })
}

/// The processes of an enforced service: all that descend from its supervisor, which
/// adopts those whose parents have ended.
fn of_supervisor(supervisor: u32, ledger: &Ledger) -> anyhow::Result<Vec<Member>> {
    let processes = Processes::read()?;
    let mut table = table(Some(ledger));
    let living = processes.descendants(supervisor).into_iter();
    let mut members: Vec<Member> = living
        .filter(|process| process.state != 'Z')
        .map(|process| {
            let entry = table.remove(&process.pid);
            Member {
                process: process.clone(),
                id: id(process, entry.as_ref()),
                entry,
                entered: true,
                named: None,
                serves: false,
            }
        })
        .collect();
    members.sort_by_key(|member| member.process.pid);
    Ok(members)
}

/// The entries of a ledger by their numbers in `/proc`; those of pid namespaces that are not seen
/// from here, and of processes that have ended there, have none.
fn table(ledger: Option<&Ledger>) -> BTreeMap<u32, ProcessReport> {
    let entries = ledger
        .map(|ledger| ledger.process_table())
        .unwrap_or_default();
    let numbers = Numbers::of(entries.iter().map(|entry| entry.id));
    let with_number = |entry: ProcessReport| {
        let number = numbers.number(entry.id).filter(|_| !entry.id.has_ended())?;
        Some((number, entry))
    };
    entries.into_iter().filter_map(with_number).collect()
}

/// The identity of a process: that of its entry, else as `/proc` knows it.
fn id(process: &Process, entry: Option<&ProcessReport>) -> ProcessId {
    let known = || identity_of(process.pid);
    let gone = ProcessId {
        pid: process.pid,
        namespace: 0,
    };
    entry.map(|entry| entry.id).or_else(known).unwrap_or(gone)
}

/// What ties a process to a service.
struct Facts {
    named: Option<PathBuf>,
    entered: bool,
}

impl Facts {
    fn of(pid: u32, ledger: &Path, in_table: bool) -> Self {
        let named = named_ledger(pid);
        // Reading the mappings costs more, and a number in the table may have
        // come round to another process.
        let candidate = in_table || named.as_deref() == Some(ledger);
        // What may not be read belongs to another user: if it is in the table, it
        // was one of ours and has changed its user since.
        let entered = candidate && is_mapped(pid, ledger).unwrap_or(in_table);
        Self { named, entered }
    }

    fn belongs(&self, ledger: &Path) -> bool {
        self.entered || self.named.as_deref() == Some(ledger)
    }

    fn member(self, process: &Process, entry: Option<ProcessReport>) -> Member {
        Member {
            process: process.clone(),
            id: id(process, entry.as_ref()),
            entry,
            entered: self.entered,
            named: self.named,
            serves: false,
        }
    }
}

/// Whether a process has mapped the ledger; `None` if that may not be known.
fn is_mapped(pid: u32, ledger: &Path) -> Option<bool> {
    has_mapped(pid, ledger)
        .ok()
        .map(|mapped| mapped == Some(true))
}

/// The ledger that the environment of a process names, as it was when its
/// program started; `None` also if it may not be read.
fn named_ledger(pid: u32) -> Option<PathBuf> {
    variable(pid, LEDGER_VARIABLE).map(PathBuf::from)
}

/// A variable in the environment with which a process started its program.
pub fn variable(pid: u32, name: &str) -> Option<std::ffi::OsString> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    environment.split(|byte| *byte == 0).find_map(|entry| {
        let value = entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
        Some(OsStr::from_bytes(value).to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_with_the_ledger_in_its_environment_belongs_to_the_service() {
        let folder = tempfile::tempdir().expect("a folder");
        let service = Service {
            name: "a".to_owned(),
            folder: folder.path().to_owned(),
        };
        let ledger = Ledger::create(&service.ledger_path(), "a").expect("a ledger");
        assert!(!any(&service).expect("looked"));
        let mut child = Command::new("/bin/cat")
            .env(LEDGER_VARIABLE, service.ledger_path())
            .stdin(Stdio::piped())
            .spawn()
            .expect("cat");
        let pid = child.id();
        // posix_spawn returns after the exec, so the environment is the new one.
        assert!(any(&service).expect("looked"));
        let members = all(&service, &ledger, None).expect("looked");
        let found: Vec<_> = members.iter().map(|m| (m.process.pid, m.entered)).collect();
        assert_eq!(found, [(pid, false)]);
        drop(child.stdin.take());
        child.wait().expect("ended");
        assert!(!any(&service).expect("looked"));
    }

    #[test]
    fn descendants_of_the_keeper_belong_to_the_service_and_it_does_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let service = Service {
            name: "a".to_owned(),
            folder: folder.path().to_owned(),
        };
        let ledger = Ledger::create(&service.ledger_path(), "a").expect("a ledger");
        let mut child = Command::new("/bin/cat")
            .stdin(Stdio::piped())
            .spawn()
            .expect("cat");
        let keeper = std::process::id();
        let members = all(&service, &ledger, Some(keeper)).expect("looked");
        let has = |pid| members.iter().any(|member| member.process.pid == pid);
        assert!(has(child.id()));
        assert!(!has(keeper));
        drop(child.stdin.take());
        child.wait().expect("ended");
    }
}
