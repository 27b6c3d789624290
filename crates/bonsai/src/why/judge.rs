//! Why a service is as slow as it is: the judgement. Pure: no clock, no I/O.
//!
//! # Rules
//! 1. A thread that spent less than 1 % of its time on anything but sleep of its own
//!    choice was *idle throughout*: it is left out, as long as another one was not.
//! 2. Of what is left, whatever took the most time is the cause: a limit, the disk,
//!    the network, or the CPU. What took less than [`LEAST`] of one thread's window
//!    is none.
//! 3. The CPU is a cause only where there was too little of it: one thread ran or
//!    wanted to for half of the window, or threads waited for a CPU for a fifth of
//!    it, or all of them together worked more than half a window and more than they
//!    were idle. Work that is done between two pauses makes nobody wait.
//! 4. Without a cause, the service is idle if one of its threads waits for clients,
//!    and otherwise waits for something inside of itself.

use serde::Serialize;

use super::say::sentence;
use super::spent::Spent;

/// The part of one thread's window below which nothing is a cause.
const LEAST: f64 = 0.05;

/// The part of its time below which a thread counts as idle throughout.
const IDLE: f64 = 0.01;

/// Time spent waiting for one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LimitTime {
    /// Its name.
    pub(crate) name: String,
    /// Its rate for people, without blanks: `40Mbit/s`.
    pub(crate) rate: String,
    /// The time, ns.
    pub(crate) waited_ns: u64,
}

/// The queues of a service's TCP connections at the end of the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Queues {
    /// Connections.
    pub(crate) connections: u64,
    /// Of these, with bytes in the send queue throughout.
    pub(crate) stuck: u64,
    /// Bytes in send queues.
    pub(crate) unsent: u64,
    /// Bytes in receive queues.
    pub(crate) unread: u64,
}

/// What was seen of a service in a window: everything that the verdict depends on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// The service.
    pub(crate) service: String,
    /// The window, ns.
    pub(crate) window_ns: u64,
    /// What each thread spent its time on.
    pub(crate) threads: Vec<Spent>,
    /// Time waited for each limit in force, as the ledger counts it.
    pub(crate) limits: Vec<LimitTime>,
    /// Time waited for limits that were lifted meanwhile, ns.
    pub(crate) lifted_ns: u64,
    /// Queues of its connections, if they may be known.
    pub(crate) queues: Option<Queues>,
}

/// Why a service is as slow as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Cause {
    /// Limits.
    Bonsai,
    /// Block devices and file systems.
    Disk,
    /// Its own work, or too few CPUs.
    Cpu,
    /// Peers that do not read, or do not answer.
    Network,
    /// It has nothing to do.
    Idle,
    /// Its own threads, children, timers and pipes.
    Itself,
    /// It has no threads.
    Gone,
}

/// The judgement.
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    /// The cause.
    pub(crate) cause: Cause,
    /// In one sentence.
    pub(crate) sentence: String,
    /// The sum over all threads that were not idle throughout; over all, if all were.
    pub(crate) spent: Spent,
    /// Time waited for limits, ns.
    pub(crate) limited_ns: u64,
    /// Threads in that sum.
    pub(crate) engaged: usize,
    /// Threads that were idle throughout.
    pub(crate) idle: usize,
}

impl Verdict {
    /// A time as a share of that of all threads in the sum, 0 to 1.
    pub(crate) fn share(&self, ns: u64) -> f64 {
        share(ns, self.spent.total_ns)
    }
}

/// Judges.
pub(crate) fn judge(seen: &Seen) -> Verdict {
    let engaged: Vec<&Spent> = seen.threads.iter().filter(|t| is_engaged(t)).collect();
    let idle = seen.threads.len() - engaged.len();
    let (counted, idle) = if engaged.is_empty() {
        (seen.threads.iter().collect(), 0)
    } else {
        (engaged, idle)
    };
    let mut spent = Spent::default();
    for thread in &counted {
        spent.add(thread);
    }
    let limits = seen.limits.iter().map(|limit| limit.waited_ns);
    let limited_ns = limits.fold(seen.lifted_ns, u64::saturating_add);
    let mut verdict = Verdict {
        cause: Cause::Gone,
        sentence: String::new(),
        spent,
        limited_ns,
        engaged: counted.len(),
        idle,
    };
    verdict.cause = cause(seen, &verdict);
    verdict.sentence = sentence(seen, &verdict);
    verdict
}

fn is_engaged(thread: &Spent) -> bool {
    share(thread.held_ns(), thread.total_ns) >= IDLE
}

/// A time as a share of another one, 0 to 1.
pub(super) fn share(ns: u64, of: u64) -> f64 {
    if of == 0 {
        0.0
    } else {
        (ns as f64 / of as f64).min(1.0)
    }
}

fn cause(seen: &Seen, verdict: &Verdict) -> Cause {
    let spent = &verdict.spent;
    if seen.threads.is_empty() {
        return Cause::Gone;
    }
    let cpu_ns = if lacks_cpu(seen, spent) {
        spent.cpu_ns()
    } else {
        0
    };
    let candidates = [
        (verdict.limited_ns, Cause::Bonsai),
        (spent.any_disk_ns(), Cause::Disk),
        (spent.network_ns(), Cause::Network),
        (cpu_ns, Cause::Cpu),
    ];
    let most = candidates.into_iter().max_by_key(|(ns, _)| *ns);
    match most {
        Some((ns, cause)) if ns as f64 >= LEAST * seen.window_ns as f64 => cause,
        _ if seen.threads.iter().any(|t| t.clients_ns > t.total_ns / 2) => Cause::Idle,
        _ => Cause::Itself,
    }
}

/// Rule 3.
fn lacks_cpu(seen: &Seen, spent: &Spent) -> bool {
    let window = seen.window_ns;
    let busiest = seen.threads.iter().map(Spent::cpu_ns).max().unwrap_or(0);
    let queued = spent.queued_ns.unwrap_or(0);
    let cpu = spent.cpu_ns();
    busiest >= window / 2 || queued >= window / 5 || (cpu >= window / 2 && cpu > spent.clients_ns)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::why) const S: u64 = 1_000_000_000;
    pub(in crate::why) const MS: u64 = 1_000_000;

    /// A thread that spent a second: on what `with` sets.
    pub(in crate::why) fn thread(with: impl FnOnce(&mut Spent)) -> Spent {
        let mut spent = Spent {
            total_ns: S,
            queued_ns: Some(0),
            ..Spent::default()
        };
        with(&mut spent);
        spent
    }

    pub(in crate::why) fn seen(threads: Vec<Spent>) -> Seen {
        Seen {
            service: "vod".to_owned(),
            window_ns: S,
            threads,
            ..Seen::default()
        }
    }

    pub(in crate::why) fn limit(name: &str, rate: &str, waited_ns: u64) -> LimitTime {
        LimitTime {
            name: name.to_owned(),
            rate: rate.to_owned(),
            waited_ns,
        }
    }

    pub(in crate::why) fn idler() -> Spent {
        thread(|t| t.clients_ns = S)
    }

    #[test]
    fn work_between_pauses_is_no_lack_of_cpu() {
        let worker = |ran_ms: u64| {
            thread(|t| {
                t.ran_ns = ran_ms * MS;
                t.clients_ns = S - t.ran_ns;
            })
        };
        // One thread works most of the time; several work a little; many a little.
        for (threads, cause) in [
            (vec![worker(600)], Cause::Cpu),
            (vec![worker(300)], Cause::Idle),
            (vec![worker(100); 8], Cause::Idle),
            (vec![worker(450); 3], Cause::Idle),
        ] {
            assert_eq!(judge(&seen(threads)).cause, cause);
        }
        let waits = thread(|t| {
            t.queued_ns = Some(250 * MS);
            t.ran_ns = 100 * MS;
            t.clients_ns = 650 * MS;
        });
        assert_eq!(judge(&seen(vec![waits])).cause, Cause::Cpu);
    }

    #[test]
    fn the_largest_cause_wins_and_little_is_none() {
        let mut both = seen(vec![thread(|t| {
            t.disk_ns = 300 * MS;
            t.limit_ns = 400 * MS;
        })]);
        both.limits = vec![limit("read", "1MB/s", 400 * MS)];
        assert_eq!(judge(&both).cause, Cause::Bonsai);
        both.limits[0].waited_ns = 200 * MS;
        assert_eq!(judge(&both).cause, Cause::Disk);
        let mut little = seen(vec![idler()]);
        little.limits = vec![limit("read", "1MB/s", 40 * MS)];
        assert_eq!(judge(&little).cause, Cause::Idle);
        // What is missing is not zero: without the schedulers' count work still shows.
        let bare = thread(|t| {
            t.queued_ns = None;
            t.ran_ns = 900 * MS;
        });
        assert_eq!(judge(&seen(vec![bare])).cause, Cause::Cpu);
    }
}
