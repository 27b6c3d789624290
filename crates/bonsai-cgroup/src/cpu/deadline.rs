//! The deadline scheduler: time on a CPU that a thread always gets (sched(7), sched_setattr(2),
//! Documentation/scheduler/sched-deadline.rst).
//!
//! # Traps
//! - A deadline thread may not fork unless its children begin without the reservation, so that is
//!   asked for (`SCHED_FLAG_RESET_ON_FORK`); new threads then have none until somebody looks again.
//! - It is a bound, too: a thread that has used its time waits for the next period. What others have
//!   reserved and leave could be had by `SCHED_FLAG_RECLAIM`, which is not asked for: then a thread
//!   that never sleeps would have up to 95 % of a CPU before all that have reserved nothing.
//! - The kernel refuses a thread that may not run on all CPUs.

use std::fs;
use std::io;
use std::path::Path;

use bonsai_units::Reserve;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::file;

const SCHED_FIFO: u32 = 1;
const SCHED_DEADLINE: u32 = 6;
const SCHED_FLAG_RESET_ON_FORK: u64 = 1;

/// How a thread is scheduled: `struct sched_attr` as of Linux 3.14, without what came later.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Attr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

const SIZE: u32 = 48;
const _: () = assert!(size_of::<Attr>() == SIZE as usize);

impl Attr {
    fn reserving(reserve: Reserve) -> Self {
        Self {
            size: SIZE,
            policy: SCHED_DEADLINE,
            flags: SCHED_FLAG_RESET_ON_FORK,
            runtime: reserve.runtime_ns,
            deadline: reserve.period_ns,
            period: reserve.period_ns,
            ..Self::default()
        }
    }

    const fn is_deadline(&self) -> bool {
        self.policy == SCHED_DEADLINE
    }

    fn is_reserve(&self, reserve: Reserve) -> bool {
        self.is_deadline() && (self.runtime, self.period) == (reserve.runtime_ns, reserve.period_ns)
    }
}

/// A thread, told from later ones with its number by when it was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Thread {
    pub(super) pid: u32,
    pub(super) tid: u32,
    /// Clock ticks since the machine was started.
    started: u64,
}

/// A thread that has a reservation, and how it was scheduled before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Reserved {
    pub(super) thread: Thread,
    before: Attr,
}

/// The threads of a process; none if it has gone.
pub(super) fn threads(pid: u32) -> Vec<Thread> {
    let entries = fs::read_dir(format!("/proc/{pid}/task"));
    let entries = entries.into_iter().flatten().flatten();
    let tids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    tids.filter_map(|tid| {
        Some(Thread {
            pid,
            tid,
            started: started(pid, tid)?,
        })
    })
    .collect()
}

/// When a thread was started: field 22 of its `stat` (proc_pid_stat(5)). Its name, which may have
/// anything in it, ends with the last bracket.
fn started(pid: u32, tid: u32) -> Option<u64> {
    let stat = file::read(Path::new(&format!("/proc/{pid}/task/{tid}/stat"))).ok()?;
    let (_, after) = stat.rsplit_once(')')?;
    after.split_ascii_whitespace().nth(19)?.parse().ok()
}

impl Thread {
    /// When it was started, clock ticks since the machine was.
    pub(super) const fn started(self) -> u64 {
        self.started
    }

    fn lives(self) -> bool {
        started(self.pid, self.tid) == Some(self.started)
    }
}

impl Reserved {
    /// A thread as it is scheduled now, or as is said. `None` if it has ended.
    pub(super) fn of(thread: Thread, before: Option<Attr>) -> Option<Self> {
        let before = before.or_else(|| get(thread.tid).ok())?;
        Some(Self { thread, before })
    }

    /// Whether the thread lives, with that reservation.
    pub(super) fn holds(&self, reserve: Reserve) -> bool {
        self.thread.lives() && get(self.thread.tid).is_ok_and(|attr| attr.is_reserve(reserve))
    }

    /// Reserves time for the thread. Whoever has ended meanwhile needs none.
    pub(super) fn reserve(&self, reserve: Reserve) -> Result<(), Error> {
        let tid = self.thread.tid;
        match set(tid, &Attr::reserving(reserve)) {
            Ok(()) => Ok(()),
            Err(error) => match error.raw_os_error() {
                Some(libc::ESRCH) => Ok(()),
                Some(libc::EBUSY) => Err(Error::KernelFull {
                    reserve: reserve.to_string(),
                    tid,
                }),
                _ => Err(refused(self.thread, &error)),
            },
        }
    }
}

/// Schedules a thread as it was before, unless it has ended or somebody else has changed it since.
/// Says whether somebody has.
pub(super) fn restore(reserved: &Reserved) -> Result<bool, Error> {
    let tid = reserved.thread.tid;
    if !reserved.thread.lives() {
        return Ok(false);
    }
    let Ok(now) = get(tid) else {
        return Ok(false);
    };
    if !now.is_deadline() {
        return Ok(now != reserved.before);
    }
    let mut before = reserved.before;
    // The kernel tells everybody's slice, and takes it for one that was asked for.
    let own = get(0).map(|own| own.runtime).unwrap_or_default();
    if !before.is_deadline() && before.runtime == own {
        before.runtime = 0;
    }
    match set(tid, &before) {
        Err(error) if error.raw_os_error() != Some(libc::ESRCH) => Err(scheduler(tid, &error)),
        _ => Ok(false),
    }
}

/// How a new thread of a process would be scheduled had its maker no reservation: as its process
/// was, where all of that was alike. The kernel begins it with nice 0.
pub(super) fn inherited(of: &[Reserved], pid: u32) -> Option<Attr> {
    let mut befores = of
        .iter()
        .filter(|one| one.thread.pid == pid)
        .map(|one| one.before);
    let first = befores.next()?;
    befores.all(|other| other == first).then_some(first)
}

/// Whether this process may reserve that time, by trying it on a thread of its own.
pub(super) fn try_out(wanted: Reserve) -> Result<(), Error> {
    let tried = std::thread::spawn(move || {
        let tid = u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).unwrap_or(0);
        let own = threads(std::process::id());
        let thread = own.into_iter().find(|thread| thread.tid == tid);
        match thread.and_then(|thread| Reserved::of(thread, None)) {
            Some(own) => own.reserve(wanted),
            None => Ok(()),
        }
    });
    // A thread that panicked has tried nothing out; the reservation itself will tell.
    tried.join().unwrap_or(Ok(()))
}

/// Schedules the calling thread before all that are not of real time (`SCHED_FIFO`): for whoever
/// measures, and sleeps nearly all of the time. Its threads begin without it.
///
/// # Errors
/// It takes root (`CAP_SYS_NICE`).
pub fn go_first() -> io::Result<()> {
    let attr = Attr {
        size: SIZE,
        policy: SCHED_FIFO,
        flags: SCHED_FLAG_RESET_ON_FORK,
        priority: 1,
        ..Attr::default()
    };
    set(0, &attr)
}

/// CPUs that may be reserved, and how many there are: the kernel's bound for all real-time threads
/// of each CPU.
pub(super) fn room() -> (f64, usize) {
    let number = |name: &str| -> Option<i64> {
        let text = file::read(&Path::new("/proc/sys/kernel").join(name)).ok()?;
        text.trim().parse().ok()
    };
    let share = match (number("sched_rt_runtime_us"), number("sched_rt_period_us")) {
        // Without a bound there is still no more than all of it.
        (Some(-1), _) => 1.0,
        (Some(runtime), Some(period)) if period > 0 => runtime as f64 / period as f64,
        _ => 0.95,
    };
    let online = file::read(Path::new("/sys/devices/system/cpu/online")).unwrap_or_default();
    let cpus = listed(online.trim()).max(1);
    (share * cpus as f64, cpus)
}

/// How many a list such as `0-3,8` has.
fn listed(list: &str) -> usize {
    let one = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        Some(last.checked_sub(first)? + 1)
    };
    list.split(',').filter_map(one).sum()
}

/// Why the kernel said no: EPERM has three reasons.
fn refused(thread: Thread, error: &io::Error) -> Error {
    let tid = thread.tid;
    if error.raw_os_error() != Some(libc::EPERM) {
        return scheduler(tid, error);
    }
    let status = file::read(Path::new(&format!(
        "/proc/{}/task/{tid}/status",
        thread.pid
    )));
    let status = status.unwrap_or_default();
    let mut lines = status.lines();
    let list = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let allowed = listed(list.unwrap_or_default().trim());
    let (_, cpus) = room();
    let why = if allowed != 0 && allowed < cpus {
        format!(
            "it may run on {allowed} of {cpus} CPUs only, and the kernel reserves time for threads \
             that may run on all of them (taskset, cpuset)"
        )
    } else {
        "this takes root (CAP_SYS_NICE)".to_owned()
    };
    Error::Scheduler { tid, why }
}

fn scheduler(tid: u32, error: &io::Error) -> Error {
    Error::Scheduler {
        tid,
        why: error.to_string(),
    }
}

fn get(tid: u32) -> io::Result<Attr> {
    let mut attr = Attr::default();
    // SAFETY: the kernel writes at most SIZE bytes to `attr`, which has as many, all of which may
    // have any value.
    let done = unsafe { libc::syscall(libc::SYS_sched_getattr, tid, &raw mut attr, SIZE, 0) };
    if done == 0 {
        // What came later is told only to those who have room for it.
        attr.size = SIZE;
        Ok(attr)
    } else {
        Err(io::Error::last_os_error())
    }
}

fn set(tid: u32, attr: &Attr) -> io::Result<()> {
    // SAFETY: the kernel reads `attr`, whose size is its first field, and writes nothing.
    let done = unsafe { libc::syscall(libc::SYS_sched_setattr, tid, &raw const *attr, 0) };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_counted() {
        for (list, n) in [("0", 1), ("0-3", 4), ("0-1,4,6-7", 5), ("", 0), ("3-1", 0)] {
            assert_eq!(listed(list), n, "{list}");
        }
    }

    #[test]
    fn whoever_measures_goes_first() {
        let thread = std::thread::spawn(|| match go_first() {
            Ok(()) => {
                let own = get(0).expect("it is told");
                assert_eq!((own.policy, own.priority), (SCHED_FIFO, 1));
            }
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EPERM)),
        });
        thread.join().expect("it ended");
    }

    #[test]
    fn own_threads_are_found_and_not_deadline() {
        let own = threads(std::process::id());
        assert!(!own.is_empty());
        assert!(own.iter().any(|thread| thread.lives()));
        assert!(get(0).is_ok_and(|attr| !attr.is_deadline()));
        assert!(room().0 > 0.0);
    }
}
