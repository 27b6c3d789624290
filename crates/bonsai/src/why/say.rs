//! The judgement in one sentence. Pure: no clock, no I/O.

use bonsai_services::group::DAEMON_POOL;
use bonsai_units::{Bytes, Resource, format_duration_ns};

use super::judge::{Cause, Queues, Seen, Verdict, share};
use super::spent::Spent;

/// What raises a limit, of a service or of its group.
fn raise(service: &str, limit: &str) -> String {
    let shared = limit.strip_prefix("group ");
    match shared.and_then(|shared| shared.split_once(' ')) {
        // The daemon sets back what is changed of its pool.
        Some((DAEMON_POOL, name)) => {
            let shared = Resource::ALL.into_iter().find(|of| of.class() == name);
            let capacity = shared.map_or(name, |of| of.name());
            format!(
                "bonsai config set capacity.{capacity}=RATE, its guarantee in it with: bonsai set {service} --guarantee \
                 {name}=RATE, its own limit with: bonsai set {service} {name}=RATE"
            )
        }
        Some((group, name)) => format!(
            "bonsai group set {group} {name}=RATE, or its part of it with: bonsai set {service} \
             --guarantee {name}=RATE"
        ),
        None => format!("bonsai set {service} {limit}=RATE"),
    }
}

/// The answer in one sentence.
pub(super) fn sentence(seen: &Seen, verdict: &Verdict) -> String {
    let service = &seen.service;
    let (spent, last) = (&verdict.spent, last(seen.window_ns));
    let percent = |ns: u64| percent(verdict.share(ns));
    match verdict.cause {
        Cause::Bonsai => {
            let most = seen.limits.iter().max_by_key(|limit| limit.waited_ns);
            match most.filter(|limit| limit.waited_ns >= seen.lifted_ns) {
                Some(limit) => format!(
                    "{service} is slow because of Bonsai: its threads spent {} of {last} waiting \
                     for the limit {}={} (raise it with: {})",
                    percent(limit.waited_ns),
                    limit.name,
                    limit.rate,
                    raise(service, &limit.name)
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
            crate::why::say::percent(most_waiting(&seen.threads))
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
    use crate::why::judge::judge;
    use crate::why::judge::tests::{MS, S, idler, limit, seen, thread};

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
    fn a_limit_of_the_daemons_pool_is_raised_by_the_daemon() {
        let advice = raise("vod", "group daemon-pool write");
        assert_eq!(
            advice,
            "bonsai config set capacity.write=RATE, its guarantee in it with: bonsai set vod --guarantee write=RATE, its own limit \
             with: bonsai set vod write=RATE"
        );
        assert!(
            raise("vod", "group daemon-pool all")
                .starts_with("bonsai config set capacity.calls=RATE")
        );
        assert!(raise("vod", "group g send").starts_with("bonsai group set g send=RATE"));
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
