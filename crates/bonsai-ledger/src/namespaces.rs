//! Processes of a ledger, found in `/proc`: each by its number in its own pid namespace and by that
//! namespace, never by the number alone.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::sync::OnceLock;

use crate::identity::{ProcessId, short_namespace};
use crate::layout::Segment;
use crate::sync::Ordering;

/// The pid namespace of this process; 0 where that is not known.
#[must_use]
pub fn own_namespace() -> u32 {
    static OWN: OnceLock<u32> = OnceLock::new();
    *OWN.get_or_init(|| namespace_of("self").unwrap_or(0))
}

/// Identity of this process.
#[must_use]
pub fn own_process() -> ProcessId {
    ProcessId {
        pid: std::process::id(),
        namespace: own_namespace(),
    }
}

/// The pid namespace of a process of `/proc`; `None` where it may not be read.
fn namespace_of(process: &str) -> Option<u32> {
    let link = std::fs::metadata(format!("/proc/{process}/ns/pid")).ok()?;
    u32::try_from(link.ino()).ok()
}

/// Reads a file of `/proc`, whose length is not known before. With room for all of it the kernel is asked twice instead of
/// ten times, for 32 bytes at first, each of which may make the text anew.
///
/// # Errors
/// As of `std::fs::read`.
pub fn read_proc(path: &str) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(1 << 14);
    std::fs::File::open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The numbers of a process or thread (`/proc/PROCESS/status`), from the namespace of `/proc` to
/// its own.
fn numbers_of(process: &str) -> std::io::Result<Vec<u32>> {
    let status = read_proc(&format!("/proc/{process}/status"))?;
    let status = String::from_utf8_lossy(&status);
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let numbers = numbers.unwrap_or_default().split_ascii_whitespace();
    Ok(numbers.map_while(|number| number.parse().ok()).collect())
}

/// The last of these: the number in its own namespace.
fn innermost(process: &str) -> Option<u32> {
    numbers_of(process).ok()?.last().copied()
}

/// The namespace that the numbers of `/proc` belong to; 0 where that is not known, because `/proc`
/// is that of a namespace above.
fn shown_namespace() -> u32 {
    static SHOWN: OnceLock<u32> = OnceLock::new();
    *SHOWN.get_or_init(|| match numbers_of("self") {
        Ok(numbers) if numbers.len() == 1 => own_namespace(),
        _ => 0,
    })
}

/// True where `/proc` shows the processes of a namespace and of those below it: its own, or the first
/// one of the machine, which is above all.
#[must_use]
pub fn shows(namespace: u32) -> bool {
    /// `PROC_PID_INIT_INO` of `linux/proc_ns.h`.
    const FIRST: u32 = 0xefff_fffc;
    let shown = shown_namespace();
    shown != 0 && (shown == namespace || shown == FIRST)
}

/// The identity of a process or thread of `/proc`; `None` if there is none.
#[must_use]
pub fn identity_of(number: u32) -> Option<ProcessId> {
    let name = number.to_string();
    Some(ProcessId {
        pid: innermost(&name)?,
        namespace: namespace_of(&name).unwrap_or(0),
    })
}

/// The threads of a process of `/proc`: from their numbers in its namespace to those in `/proc`.
#[must_use]
pub fn thread_numbers(process: u32) -> BTreeMap<u32, u32> {
    let threads = std::fs::read_dir(format!("/proc/{process}/task"));
    let threads = threads.into_iter().flatten().flatten();
    let number = |thread: std::fs::DirEntry| {
        let name = thread.file_name().into_string().ok()?;
        let inner = innermost(&format!("{process}/task/{name}"))?;
        Some((inner, name.parse().ok()?))
    };
    threads.filter_map(number).collect()
}

/// The number in `/proc` of a process or thread, if it is there.
#[must_use]
pub fn number_of(id: ProcessId) -> Option<u32> {
    let numbers = Numbers::of([id].into_iter());
    let thread = || {
        let is_beside = |process: &&ProcessId| process.namespace == id.namespace;
        let beside = numbers.foreign.keys().filter(is_beside);
        let mut beside = beside.filter_map(|process| numbers.number(*process));
        beside.find_map(|process| thread_numbers(process).get(&id.pid).copied())
    };
    numbers.number(id).or_else(thread)
}

/// True for an error of a process that has ended while it was read.
fn has_ended(error: &std::io::Error) -> bool {
    let gone = [rustix::io::Errno::NOENT, rustix::io::Errno::SRCH];
    gone.iter()
        .any(|gone| error.raw_os_error() == Some(gone.raw_os_error()))
}

/// Where the processes of some pid namespaces are in `/proc`.
#[derive(Clone, Debug, Default)]
pub struct Numbers {
    /// The namespace of `/proc`.
    shown: u32,
    /// Processes of other namespaces.
    foreign: BTreeMap<ProcessId, u32>,
    /// Numbers and short namespaces of all of these.
    living: BTreeSet<(u32, u32)>,
    /// Numbers of processes below the namespace of `/proc` whose own one may not be read.
    hidden: BTreeSet<u32>,
    /// False where `/proc` hides processes (`hidepid=`).
    is_complete: bool,
}

impl Numbers {
    /// Looks for the namespaces of these processes. `/proc` is read where one is of another
    /// namespace than that of `/proc`.
    #[must_use]
    pub fn of(processes: impl Iterator<Item = ProcessId>) -> Self {
        let namespaces = processes.map(|process| short_namespace(process.namespace));
        Self::of_namespaces(namespaces)
    }

    /// Looks for these namespaces, in their short form.
    #[must_use]
    pub fn of_namespaces(namespaces: impl Iterator<Item = u32>) -> Self {
        let mut numbers = Self {
            shown: shown_namespace(),
            ..Self::default()
        };
        let shown = short_namespace(numbers.shown);
        let is_foreign =
            |namespace: &u32| *namespace > crate::identity::ENDED && *namespace != shown;
        let wanted: BTreeSet<u32> = namespaces.filter(is_foreign).collect();
        if !wanted.is_empty() {
            let shows_others = std::fs::exists("/proc/1/status").unwrap_or(false);
            numbers.is_complete = numbers.look(&wanted).is_ok() && shows_others;
        }
        numbers
    }

    fn look(&mut self, wanted: &BTreeSet<u32>) -> std::io::Result<()> {
        for entry in std::fs::read_dir("/proc")? {
            let Some(name) = entry?.file_name().into_string().ok() else {
                continue;
            };
            let Ok(number) = name.parse::<u32>() else {
                continue;
            };
            let namespace = namespace_of(&name);
            if namespace.is_some_and(|namespace| !wanted.contains(&short_namespace(namespace))) {
                continue;
            }
            let numbers = match numbers_of(&name) {
                Ok(numbers) => numbers,
                Err(error) if has_ended(&error) => continue,
                Err(error) => return Err(error),
            };
            let Some(pid) = numbers.last().copied() else {
                continue;
            };
            match namespace {
                Some(namespace) => {
                    self.foreign.insert(ProcessId { pid, namespace }, number);
                    self.living.insert((pid, short_namespace(namespace)));
                }
                None if numbers.len() > 1 => drop(self.hidden.insert(pid)),
                None => {}
            }
        }
        Ok(())
    }

    /// The number in `/proc` of a process of the ledger, if it is there.
    #[must_use]
    pub fn number(&self, process: ProcessId) -> Option<u32> {
        if process.namespace == self.shown || process.namespace == 0 {
            return Some(process.pid);
        }
        self.foreign.get(&process).copied()
    }

    /// True where there is certainly no process of that number in that short namespace, which is
    /// below the one of `/proc`.
    #[must_use]
    pub fn is_gone(&self, pid: u32, namespace: u32) -> bool {
        self.is_complete && !self.living.contains(&(pid, namespace)) && !self.hidden.contains(&pid)
    }
}

impl Segment {
    /// Frees what processes of other pid namespaces have left. Nothing is done where `/proc` is not
    /// that of the namespace in which the service was made, which is above all of its members'.
    pub fn reclaim_left(&self) {
        let own = own_namespace();
        let made = self.header.namespace.load(Ordering::Relaxed);
        if own == 0 || shown_namespace() != own || made != u64::from(own) {
            return;
        }
        let wanted: BTreeSet<u32> = self.foreign_namespaces(own).collect();
        self.reclaim(own, || {
            let numbers = Numbers::of_namespaces(wanted.iter().copied());
            move |pid, namespace| numbers.is_gone(pid, namespace)
        });
    }
}
