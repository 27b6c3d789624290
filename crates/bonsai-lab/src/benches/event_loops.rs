//! What one greedy connection costs the others of a server in an event loop, and what
//! event loops lose by limits that do not bind.
//!
//! Each server runs under a limit per stream, and serves a crowd of connections whose
//! requests come evenly spread over time; in half of the turns one more connection takes
//! as much as it can get. A latency is counted from when its request was due, so that a
//! server that stands still is seen by all who wait meanwhile.

mod server;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use self::server::{Kind, Server};
use super::Benchmark;
use super::web::Wrap;
use crate::child::Running;
use crate::context::Context;
use crate::load::{Moment, doubt_of};
use crate::record::{Record, Sample};
use crate::report::{Section, Table, Verdict};
use crate::service::{Doors, Service};
use crate::study::{Pairing, with_interval};

/// The benchmark "event-loops".
#[derive(Debug)]
pub(crate) struct EventLoops;

/// The others' 99th percentile with a greedy one, over that without.
const SLOWER: f64 = 1.2;

/// The server's CPU time with a greedy one, over that without.
const CPU: f64 = 1.1;

/// The throughput under limits that do not bind, over bare.
const LEAST: f64 = 0.97;

/// What each connection may take.
const PER_STREAM: [&str; 1] = ["send/stream=1MB/s"];

const LOOSE: [&str; 2] = ["send=20GB/s", "recv=20GB/s"];
const LOOSE_STREAMS: [&str; 2] = ["send/stream=20GB/s", "recv/stream=20GB/s"];

/// Files that nobody opens: what limits on some descriptors cost the others.
const ELSEWHERE: [&str; 1] = ["read@/nowhere/**=1MB/s"];

/// What a client got, and what that took of the server; times in ns.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
struct Got {
    answers: u64,
    failures: u64,
    unanswered: u64,
    ns: u64,
    p50: u64,
    p99: u64,
    max: u64,
    greedy_bytes: u64,
    #[serde(default)]
    cpu_ns: u64,
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Variant {
    Bare,
    On,
    Streams,
    Elsewhere,
}

const VARIANTS: [Variant; 4] = [
    Variant::Bare,
    Variant::On,
    Variant::Streams,
    Variant::Elsewhere,
];

/// One round.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum Round {
    /// The same crowd alone, and with a greedy connection.
    Greedy {
        server: Kind,
        connections: u32,
        alone: Got,
        beside: Got,
    },
    /// A crowd that asks again at once, of nginx.
    Throughput {
        session: u32,
        connections: u32,
        measured: Vec<(Variant, Got)>,
    },
}

impl Benchmark for EventLoops {
    fn name(&self) -> &'static str {
        "event-loops"
    }

    fn about(&self) -> &'static str {
        "what one greedy connection costs the others of an event loop, and limits that do not bind"
    }

    fn run(&self, context: &mut Context) -> anyhow::Result<()> {
        server::raise_descriptors();
        let connections = context.effort.of(200, 1000, 1000);
        for kind in server::ALL {
            if !context.is_wanted(&format!("greedy, {kind}")) {
                continue;
            }
            if kind.program().is_none() {
                context.skip(format!("greedy, {kind}"), "it is not installed")?;
                continue;
            }
            context.progress(&format!("greedy, {kind}"));
            greedy(context, kind, connections)?;
        }
        if context.is_wanted("throughput, nginx") && Kind::Nginx.program().is_some() {
            let (sessions, rounds) = context.effort.of((2, 4), (8, 10), (20, 15));
            for session in 0..sessions {
                context.progress(&format!("throughput, nginx, {session}"));
                throughput(context, session, rounds, connections)?;
            }
        }
        Ok(())
    }

    fn report(&self, record: &Record) -> Section {
        report(&record.samples(self.name()), record.run.seed)
    }
}

/// Starts a server on the last CPU.
fn start(context: &mut Context, kind: Kind, service: Option<&Service>) -> anyhow::Result<Server> {
    let environment = service.into_iter().flat_map(Service::environment);
    let wrap = Wrap {
        environment: environment
            .map(|(name, value)| (name.to_owned(), value))
            .collect(),
        cpu: Some(crate::facts::cpus() - 1),
        ..Wrap::default()
    };
    server::start(context, kind, &wrap)
}

/// Lets a crowd ask a server for so long.
fn crowd(
    context: &mut Context,
    server: &Server,
    (connections, rate): (u32, u32),
    time: Duration,
    is_greedy: bool,
) -> anyhow::Result<Got> {
    let program = context.program_path("crowd")?;
    let (small, big) = server.kind.asked();
    let words = [
        program.to_string_lossy().into_owned(),
        server.port.to_string(),
        server.kind.protocol().to_owned(),
        connections.to_string(),
        rate.to_string(),
        time.as_millis().to_string(),
        small.to_owned(),
        if is_greedy { big } else { "" }.to_owned(),
    ];
    let wrap = Wrap {
        cpu: Some(crate::facts::cpus().saturating_sub(2)),
        ..Wrap::default()
    };
    let mut command = wrap.command(context, None, &words)?;
    let before = server.cpu_ns();
    let answer = Running::start(&mut command)?.finish(time + Duration::from_secs(60))?;
    let got: Got = serde_json::from_str(&answer)?;
    anyhow::ensure!(got.answers > 0, "{} gave no answers", server.kind);
    Ok(Got {
        cpu_ns: server.cpu_ns().saturating_sub(before),
        ..got
    })
}

fn greedy(context: &mut Context, kind: Kind, connections: u32) -> anyhow::Result<()> {
    let service = context.service(Doors::Both, &PER_STREAM)?;
    let server = start(context, kind, Some(&service))?;
    let (rounds, ms) = context.effort.of((2, 1000), (10, 3000), (20, 5000));
    let time = Duration::from_millis(ms);
    let load = (connections, kind.rate());
    // The first answers are slower.
    crowd(context, &server, load, time / 4, true)?;
    for _ in 0..rounds {
        let before = Moment::now();
        let used = server.cpu_ns();
        let mut order = [false, true];
        context.shuffle(&mut order);
        let (mut alone, mut beside) = (Got::default(), Got::default());
        for is_greedy in order {
            let got = crowd(context, &server, load, time, is_greedy)?;
            *(if is_greedy { &mut beside } else { &mut alone }) = got;
        }
        let own = server.cpu_ns().saturating_sub(used) / 1_000_000;
        let round = Round::Greedy {
            server: kind,
            connections,
            alone,
            beside,
        };
        context.sample(before.until_now().less(own), &round)?;
    }
    Ok(())
}

fn throughput(
    context: &mut Context,
    session: u32,
    rounds: u32,
    connections: u32,
) -> anyhow::Result<()> {
    let mut servers = Vec::new();
    for variant in VARIANTS {
        let service = match variant {
            Variant::Bare => None,
            Variant::On => Some(context.service(Doors::Both, &LOOSE)?),
            Variant::Streams => Some(context.service(Doors::Both, &LOOSE_STREAMS)?),
            Variant::Elsewhere => Some(context.service(Doors::Both, &ELSEWHERE)?),
        };
        if let (Variant::On, Some(service)) = (variant, &service) {
            service.serve_event_loops()?;
        }
        let server = start(context, Kind::Nginx, service.as_ref())?;
        servers.push((variant, service, server));
    }
    let time = Duration::from_millis(400);
    for round in 0..=rounds {
        let before = Moment::now();
        let used = |servers: &[(Variant, Option<Service>, Server)]| -> u64 {
            servers.iter().map(|(_, _, s)| s.cpu_ns()).sum()
        };
        let used_before = used(&servers);
        let mut order: Vec<usize> = (0..servers.len()).collect();
        context.shuffle(&mut order);
        let mut measured = Vec::new();
        for index in order {
            let (variant, _, server) = &servers[index];
            let got = crowd(context, server, (connections, 0), time, false)?;
            measured.push((*variant, got));
        }
        let own = used(&servers).saturating_sub(used_before) / 1_000_000;
        // The first answers are slower.
        if round > 0 {
            let round = Round::Throughput {
                session,
                connections,
                measured,
            };
            context.sample(before.until_now().less(own), &round)?;
        }
    }
    for (_, service, _) in &servers {
        let unshaped = service.as_ref().map_or(0, Service::unshaped);
        anyhow::ensure!(unshaped == 0, "{unshaped} calls were not decided on");
    }
    Ok(())
}

fn report(samples: &[Sample<Round>], seed: u64) -> Section {
    let mut section = Section::default();
    greedy_report(samples, seed, &mut section);
    throughput_report(samples, seed, &mut section);
    section
}

fn greedy_report(samples: &[Sample<Round>], seed: u64, section: &mut Section) {
    let mut table = Table::new(&[
        "server",
        "requests/s",
        "p99 alone, ms",
        "p99 beside a greedy one",
        "server's CPU",
        "greedy, MB/s",
        "failures",
        "doubt",
    ]);
    let mut crowd = 0;
    for kind in server::ALL {
        let of: Vec<_> = samples
            .iter()
            .filter_map(|sample| match &sample.data {
                Round::Greedy {
                    server,
                    connections,
                    alone,
                    beside,
                } if *server == kind => Some((sample, *connections, *alone, *beside)),
                _ => None,
            })
            .collect();
        let pair = |what: &dyn Fn(Got) -> f64| {
            let pairs: Vec<_> = of.iter().map(|(_, _, a, b)| (what(*a), what(*b))).collect();
            Pairing::of(&pairs, seed)
        };
        let per_answer = |got: Got| got.cpu_ns as f64 / got.answers.max(1) as f64;
        let (Some(p99), Some(cpu)) = (pair(&|got| got.p99 as f64 / 1e6), pair(&per_answer)) else {
            continue;
        };
        crowd = of.iter().map(|(_, n, ..)| *n).max().unwrap_or(0);
        let doubt = doubt_of(of.iter().map(|(sample, ..)| &sample.conditions));
        let greedy: Vec<f64> = of
            .iter()
            .map(|(_, _, _, b)| b.greedy_bytes as f64 * 1e3 / b.ns.max(1) as f64)
            .collect();
        let bad = |got: &Got| got.failures + got.unanswered;
        let failures: u64 = of.iter().map(|(_, _, a, b)| bad(a) + bad(b)).sum();
        table.row(vec![
            kind.to_string(),
            kind.rate().to_string(),
            with_interval(&p99.base, 2),
            with_interval(&p99.ratio, 3),
            with_interval(&cpu.ratio, 3),
            format!("{:.3}", bonsai_stats::median(&greedy).unwrap_or(0.0)),
            failures.to_string(),
            doubt.clone().unwrap_or_default(),
        ]);
        section.promise(
            format!("{kind}: the others' p99 beside a greedy connection"),
            format!("at most {SLOWER} of that without"),
            with_interval(&p99.ratio, 3),
            Verdict::at_most(&p99.ratio, SLOWER, doubt.as_ref()),
        );
        section.promise(
            format!("{kind}: CPU of the server beside a greedy connection"),
            format!("at most {CPU} of that without"),
            with_interval(&cpu.ratio, 3),
            Verdict::at_most(&cpu.ratio, CPU, doubt.as_ref()),
        );
    }
    if crowd > 0 {
        section.text(format!(
            "{crowd} connections under {}, whose requests are evenly spread; latencies from when a \
             request was due. CPU per answer; with the greedy connection's own.",
            PER_STREAM.join(", ")
        ));
        section.table(table);
    }
}

fn throughput_report(samples: &[Sample<Round>], seed: u64, section: &mut Section) {
    let of: Vec<_> = samples
        .iter()
        .filter_map(|sample| match &sample.data {
            Round::Throughput {
                session,
                connections,
                measured,
            } => Some((sample, *session, *connections, measured)),
            Round::Greedy { .. } => None,
        })
        .collect();
    let Some((_, _, crowd, _)) = of.first() else {
        return;
    };
    let mut sessions: Vec<u32> = of.iter().map(|(_, session, ..)| *session).collect();
    sessions.dedup();
    let speed = |session: u32, variant: Variant| {
        let rounds = of.iter().filter(|(_, s, ..)| *s == session);
        let speeds: Vec<f64> = rounds
            .filter_map(|(.., measured)| measured.iter().find(|(v, _)| *v == variant))
            .map(|(_, got)| got.answers as f64 * 1e9 / got.ns.max(1) as f64)
            .collect();
        bonsai_stats::median(&speeds)
    };
    let doubt = doubt_of(of.iter().map(|(sample, ..)| &sample.conditions));
    let mut table = Table::new(&["nginx under", "bare, requests/s", "of bare", "doubt"]);
    for (variant, limits) in [
        (Variant::On, &LOOSE[..]),
        (Variant::Streams, &LOOSE_STREAMS),
        (Variant::Elsewhere, &ELSEWHERE),
    ] {
        let both =
            |session: &u32| Some((speed(*session, Variant::Bare)?, speed(*session, variant)?));
        let pairs: Vec<_> = sessions.iter().filter_map(both).collect();
        let Some(pairing) = Pairing::of(&pairs, seed) else {
            continue;
        };
        let what = match variant {
            Variant::On => format!("--event-loops on, {}", limits.join(", ")),
            _ => limits.join(", "),
        };
        table.row(vec![
            what.clone(),
            with_interval(&pairing.base, 0),
            with_interval(&pairing.ratio, 3),
            doubt.clone().unwrap_or_default(),
        ]);
        if variant == Variant::Elsewhere {
            // Each file is looked up when it is opened, which nginx does for each request.
            continue;
        }
        section.promise(
            format!("nginx, {crowd} connections, {what}"),
            format!("at least {LEAST} of bare"),
            with_interval(&pairing.ratio, 3),
            Verdict::at_least(&pairing.ratio, LEAST, doubt.as_ref()),
        );
    }
    section.table(table);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Conditions;

    fn sample(data: Round) -> Sample<Round> {
        Sample {
            conditions: Conditions::default(),
            data,
        }
    }

    fn verdicts(samples: &[Sample<Round>]) -> Vec<Verdict> {
        let section = report(samples, 1);
        section
            .promises()
            .iter()
            .map(|p| p.verdict.clone())
            .collect()
    }

    #[test]
    fn a_stall_of_the_others_is_found() {
        let got = |p99: u64, cpu_ns: u64| Got {
            answers: 1000,
            p99,
            cpu_ns,
            ns: 1_000_000_000,
            ..Got::default()
        };
        let round = |i: u64, slower: u64| {
            sample(Round::Greedy {
                server: Kind::Redis,
                connections: 1000,
                alone: got(1_000_000 + i, 50_000_000),
                beside: got((1_000_000 + i) * slower / 10, 51_000_000),
            })
        };
        let of = |slower| verdicts(&(0..8).map(|i| round(i, slower)).collect::<Vec<_>>());
        assert_eq!(of(11), [Verdict::Kept, Verdict::Kept]);
        assert_eq!(of(30), [Verdict::Broken, Verdict::Kept]);
    }

    #[test]
    fn a_loss_of_throughput_is_found() {
        let round = |session: u32, on: u64| {
            let got = |answers| Got {
                answers,
                ns: 1_000_000_000,
                ..Got::default()
            };
            let measured = vec![
                (Variant::Bare, got(1000 + u64::from(session))),
                (Variant::On, got(on)),
                (Variant::Streams, got(990)),
            ];
            sample(Round::Throughput {
                session,
                connections: 1000,
                measured,
            })
        };
        let samples: Vec<_> = (0..8).map(|session| round(session, 900)).collect();
        assert_eq!(verdicts(&samples), [Verdict::Broken, Verdict::Kept]);
    }
}
