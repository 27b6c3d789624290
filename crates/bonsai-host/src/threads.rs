//! Threads: what each has used, waited for, and does right now.
//!
//! Sources, all below `/proc/PID/task/TID/`:
//! - `stat` (proc(5)): state, start, CPU time and, where the kernel keeps it, the time spent
//!   waiting for block devices;
//! - `schedstat` (Documentation/scheduler/sched-stats.rst): time on a CPU and time waiting for one,
//!   in ns;
//! - `syscall` (proc(5)): the call that it is blocked in. Who may not trace the process
//!   (`kernel.yama.ptrace_scope`, another user) may not read it.
//!
//! Whatever cannot be read is `None`: a caller must not take it for zero.

use std::fs;
use std::path::Path;

/// Clock ticks of `/proc/PID/stat` per second (`USER_HZ`, the same everywhere).
pub const TICKS_PER_S: u64 = 100;

/// What a thread does at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// It runs, or is about to.
    Running,
    /// It is blocked in a system call: its number and first argument.
    Call(u32, u64),
    /// It is blocked elsewhere, such as in a page fault.
    Fault,
    /// May not be known.
    Unknown,
}

/// A thread at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Process id.
    pub pid: u32,
    /// Thread id.
    pub tid: u32,
    /// The state letter of proc(5).
    pub state: char,
    /// What it does.
    pub doing: Doing,
    /// When it started, clock ticks since the machine did.
    pub start_ticks: u64,
    /// CPU time in user and kernel mode, clock ticks.
    pub cpu_ticks: u64,
    /// Time spent waiting for block devices and swapping, clock ticks. 0 where
    /// [`delay_accounting`] is off.
    pub block_ticks: u64,
    /// Time on a CPU, ns.
    pub ran_ns: Option<u64>,
    /// Time that it could have run and had no CPU, ns.
    pub queued_ns: Option<u64>,
}

/// The threads of a process; none if it has ended.
#[must_use]
pub fn threads(pid: u32) -> Vec<Thread> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    let tids = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    tids.filter_map(|tid| thread(pid, tid)).collect()
}

/// A thread, if it lives.
#[must_use]
pub fn thread(pid: u32, tid: u32) -> Option<Thread> {
    let folder = format!("/proc/{pid}/task/{tid}");
    let text = |name: &str| {
        let bytes = fs::read(Path::new(&folder).join(name)).ok()?;
        // A thread can have any name.
        Some(String::from_utf8_lossy(&bytes).into_owned())
    };
    let mut thread = parse_stat(&text("stat")?, pid, tid)?;
    if matches!(thread.state, 'Z' | 'X') {
        return None;
    }
    thread.doing = text("syscall").map_or(Doing::Unknown, |text| parse_syscall(&text));
    if let Some((ran, queued)) = text("schedstat").and_then(|text| parse_schedstat(&text)) {
        (thread.ran_ns, thread.queued_ns) = (Some(ran), Some(queued));
    }
    Some(thread)
}

/// Whether the kernel keeps the time that threads wait for block devices
/// (`kernel.task_delayacct`; Documentation/accounting/delay-accounting.rst). `None` where it
/// cannot: before Linux 5.14, or built without.
#[must_use]
pub fn delay_accounting() -> Option<bool> {
    let text = fs::read_to_string("/proc/sys/kernel/task_delayacct").ok()?;
    Some(text.trim() != "0")
}

fn parse_stat(stat: &str, pid: u32, tid: u32) -> Option<Thread> {
    // The name may hold blanks and parentheses.
    let (_, rest) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    // proc(5) counts from 1 and with PID and name: state is its third field.
    let field = |number: usize| fields.get(number - 3).copied();
    let number = |at: usize| field(at)?.parse::<u64>().ok();
    Some(Thread {
        pid,
        tid,
        state: field(3)?.chars().next()?,
        doing: Doing::Unknown,
        cpu_ticks: number(14)?.saturating_add(number(15)?),
        start_ticks: number(22)?,
        block_ticks: number(42)?,
        ran_ns: None,
        queued_ns: None,
    })
}

fn parse_schedstat(text: &str) -> Option<(u64, u64)> {
    let mut fields = text.split_ascii_whitespace().map(str::parse);
    Some((fields.next()?.ok()?, fields.next()?.ok()?))
}

fn parse_syscall(text: &str) -> Doing {
    let mut fields = text.split_ascii_whitespace();
    match fields.next() {
        Some("running") => Doing::Running,
        Some("-1") => Doing::Fault,
        Some(number) => {
            let argument = fields
                .next()
                .and_then(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok());
            match (number.parse(), argument) {
                (Ok(number), Some(argument)) => Doing::Call(number, argument),
                _ => Doing::Unknown,
            }
        }
        None => Doing::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_stat_are_counted_as_in_the_manual() {
        let numbers: Vec<String> = (4..=52).map(|n| (n * 10).to_string()).collect();
        let stat = format!("7 (a) R (b) D {}", numbers.join(" "));
        let thread = parse_stat(&stat, 7, 8).expect("a thread");
        assert_eq!((thread.pid, thread.tid, thread.state), (7, 8, 'D'));
        assert_eq!(
            (thread.cpu_ticks, thread.start_ticks, thread.block_ticks),
            (140 + 150, 220, 420)
        );
        assert_eq!(parse_stat("7 (a) S 1 2", 7, 8), None);
    }

    #[test]
    fn calls_and_what_is_none() {
        assert_eq!(parse_syscall("running\n"), Doing::Running);
        assert_eq!(parse_syscall("-1 0x7f 0x7e\n"), Doing::Fault);
        assert_eq!(
            parse_syscall("44 0x5 0x7f00 0x10 0x0 0x0 0x0 0x7f 0x7e\n"),
            Doing::Call(44, 5)
        );
        assert_eq!(parse_syscall(""), Doing::Unknown);
        assert_eq!(parse_schedstat("12 34 5\n"), Some((12, 34)));
        assert_eq!(parse_schedstat("12\n"), None);
    }
}
