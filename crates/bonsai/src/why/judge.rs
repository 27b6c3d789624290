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

use bonsai_units::{Bytes, format_duration_ns};
use serde::Serialize;

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

fn share(ns: u64, of: u64) -> f64 {
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

fn sentence(seen: &Seen, verdict: &Verdict) -> String {
    let service = &seen.service;
    let (spent, last) = (&verdict.spent, last(seen.window_ns));
    let percent = |ns: u64| percent(verdict.share(ns));
    match verdict.cause {
        Cause::Bonsai => {
            let most = seen.limits.iter().max_by_key(|limit| limit.waited_ns);
            match most.filter(|limit| limit.waited_ns >= seen.lifted_ns) {
                Some(limit) => format!(
                    "{service} is slow because of Bonsai: its threads spent {} of {last} waiting \
                     for the limit {}={} (raise it with: bonsai set {service} {}=RATE)",
                    percent(limit.waited_ns),
                    limit.name,
                    limit.rate,
                    limit.name
                ),
                None => format!(
                    "{service} was slow because of Bonsai: its threads spent {} of {last} waiting \
                     for a limit that has been lifted meanwhile",
                    percent(seen.lifted_ns)
                ),
            }
        }
        Cause::Disk => format!(
            "{service} is slow because of the disk: its threads spent {} of {last} waiting for \
             block devices and file systems",
            percent(spent.any_disk_ns())
        ),
        Cause::Network if spent.peer_answers_ns > spent.peer_reads_ns => format!(
            "{service} is slow because of the network: its threads spent {} of {last} waiting for \
             answers of those it has connected to",
            percent(spent.peer_answers_ns)
        ),
        Cause::Network => format!(
            "{service} is slow because of the network: its threads spent {} of {last} waiting for \
             peers to take what was sent{}",
            percent(spent.peer_reads_ns),
            stuck(seen.queues)
        ),
        Cause::Cpu => match spent.queued_ns {
            Some(queued) if queued > spent.cpu_ns() / 4 => format!(
                "{service} is slow because of the CPU: its threads spent {} of {last} working and \
                 {} waiting for a free CPU",
                percent(spent.ran_ns),
                percent(queued)
            ),
            _ => format!(
                "{service} is slow because of its own CPU use: its threads spent {} of {last} \
                 working",
                percent(spent.ran_ns)
            ),
        },
        Cause::Idle => format!(
            "{service} is idle: it spent {} of {last} waiting for clients and input",
            self::percent(most_waiting(&seen.threads))
        ),
        Cause::Itself if spent.unknown_ns > spent.inside_ns => format!(
            "{service} is not held back by Bonsai, the disk or the CPU: its threads slept for {} \
             of {last}, and for what may not be read here",
            percent(spent.unknown_ns)
        ),
        Cause::Itself => format!(
            "{service} is not held back by Bonsai, the disk, the network or the CPU: its threads \
             spent {} of {last} waiting for timers, children, pipes or each other",
            percent(spent.inside_ns)
        ),
        Cause::Gone => format!("{service} has no thread that could be seen in {last}"),
    }
}

/// The largest share that a thread spent waiting for clients: of those who work for a
/// service others are told by it, and wait for that.
fn most_waiting(threads: &[Spent]) -> f64 {
    let shares = threads.iter().map(|t| share(t.clients_ns, t.total_ns));
    shares.fold(0.0, f64::max)
}

fn stuck(queues: Option<Queues>) -> String {
    match queues {
        Some(queues) if queues.stuck > 0 => format!(
            " ({} in the send queues of {} of {} TCP connections)",
            Bytes(queues.unsent).human(),
            queues.stuck,
            queues.connections
        ),
        _ => String::new(),
    }
}

/// The window, as the middle of a sentence.
fn last(window_ns: u64) -> String {
    // Nobody waits for exactly a second.
    if (995_000_000..1_250_000_000).contains(&window_ns) {
        "the last second".to_owned()
    } else {
        format!("the last {}", format_duration_ns(window_ns))
    }
}

/// A share of 0 to 1 for people.
pub(crate) fn percent(share: f64) -> String {
    if (0.000_1..0.1).contains(&share) {
        format!("{:.1} %", share * 100.0)
    } else {
        format!("{:.0} %", share * 100.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;
    const MS: u64 = 1_000_000;

    /// A thread that spent a second: on what `with` sets.
    fn thread(with: impl FnOnce(&mut Spent)) -> Spent {
        let mut spent = Spent {
            total_ns: S,
            queued_ns: Some(0),
            ..Spent::default()
        };
        with(&mut spent);
        spent
    }

    fn seen(threads: Vec<Spent>) -> Seen {
        Seen {
            service: "vod".to_owned(),
            window_ns: S,
            threads,
            ..Seen::default()
        }
    }

    fn limit(name: &str, rate: &str, waited_ns: u64) -> LimitTime {
        LimitTime {
            name: name.to_owned(),
            rate: rate.to_owned(),
            waited_ns,
        }
    }

    fn idler() -> Spent {
        thread(|t| t.clients_ns = S)
    }

    #[test]
    fn a_limit_is_named_with_the_share_of_those_who_work() {
        let held = thread(|t| {
            t.limit_ns = 700 * MS;
            t.ran_ns = 100 * MS;
            t.clients_ns = 200 * MS;
        });
        let mut threads = vec![idler(); 63];
        threads.push(held);
        let mut seen = seen(threads);
        seen.limits = vec![
            limit("open", "5/s", 10 * MS),
            limit("send", "40Mbit/s", 710 * MS),
        ];
        let verdict = judge(&seen);
        assert_eq!(
            (verdict.cause, verdict.engaged, verdict.idle),
            (Cause::Bonsai, 1, 63)
        );
        assert_eq!(
            verdict.sentence,
            "vod is slow because of Bonsai: its threads spent 71 % of the last second waiting for \
             the limit send=40Mbit/s (raise it with: bonsai set vod send=RATE)"
        );
        seen.lifted_ns = 800 * MS;
        let text = judge(&seen).sentence;
        assert!(text.contains("80 % of the last second waiting for a limit that has been lifted"));
    }

    #[test]
    fn each_cause_has_its_sentence() {
        let table: [(Spent, Cause, &str); 9] = [
            (
                thread(|t| {
                    t.disk_ns = 600 * MS;
                    t.ran_ns = 300 * MS;
                }),
                Cause::Disk,
                "vod is slow because of the disk: its threads spent 60 % of the last second \
                 waiting for block devices and file systems",
            ),
            (
                thread(|t| {
                    t.counted_disk_ns = 550 * MS;
                    t.inside_ns = S;
                }),
                Cause::Disk,
                "vod is slow because of the disk: its threads spent 55 % of the last second \
                 waiting for block devices and file systems",
            ),
            (
                thread(|t| {
                    t.ran_ns = 490 * MS;
                    t.queued_ns = Some(500 * MS);
                }),
                Cause::Cpu,
                "vod is slow because of the CPU: its threads spent 49 % of the last second working \
                 and 50 % waiting for a free CPU",
            ),
            (
                thread(|t| t.ran_ns = 970 * MS),
                Cause::Cpu,
                "vod is slow because of its own CPU use: its threads spent 97 % of the last second \
                 working",
            ),
            (
                thread(|t| t.peer_reads_ns = 980 * MS),
                Cause::Network,
                "vod is slow because of the network: its threads spent 98 % of the last second \
                 waiting for peers to take what was sent",
            ),
            (
                thread(|t| t.peer_answers_ns = 980 * MS),
                Cause::Network,
                "vod is slow because of the network: its threads spent 98 % of the last second \
                 waiting for answers of those it has connected to",
            ),
            (
                thread(|t| {
                    t.clients_ns = 988 * MS;
                    t.ran_ns = 12 * MS;
                }),
                Cause::Idle,
                "vod is idle: it spent 99 % of the last second waiting for clients and input",
            ),
            (
                thread(|t| t.inside_ns = S),
                Cause::Itself,
                "vod is not held back by Bonsai, the disk, the network or the CPU: its threads \
                 spent 100 % of the last second waiting for timers, children, pipes or each other",
            ),
            (
                thread(|t| t.unknown_ns = S),
                Cause::Itself,
                "vod is not held back by Bonsai, the disk or the CPU: its threads slept for 100 % \
                 of the last second, and for what may not be read here",
            ),
        ];
        for (spent, cause, sentence) in table {
            let verdict = judge(&seen(vec![spent]));
            assert_eq!((verdict.cause, &*verdict.sentence), (cause, sentence));
        }
        let none = judge(&seen(Vec::new()));
        assert_eq!(none.cause, Cause::Gone);
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

    #[test]
    fn stuck_queues_are_counted_in_the_sentence() {
        let mut seen = seen(vec![thread(|t| t.peer_reads_ns = S)]);
        seen.queues = Some(Queues {
            connections: 3,
            stuck: 1,
            unsent: 2_500_000,
            unread: 0,
        });
        let text = judge(&seen).sentence;
        assert!(
            text.ends_with("(2.5 MB in the send queues of 1 of 3 TCP connections)"),
            "{text}"
        );
    }
}
