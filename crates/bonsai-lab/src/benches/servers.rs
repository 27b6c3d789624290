//! What a server under load loses by limits that do not bind.
//!
//! A bare server and one in a service per way of entering run at the same time, all
//! on one CPU; a client on another CPU turns to each of them in a random order, and
//! the others rest meanwhile. Each *session* starts the servers anew, as two
//! processes of the same program are never equally fast; intervals are those of the
//! median over sessions.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Benchmark;
use super::web::{self, Fetched, Kind, Web, Wrap};
use crate::context::Context;
use crate::load::{Moment, doubt_of};
use crate::record::{Record, Sample};
use crate::report::{Section, Table, Verdict};
use crate::service::{Doors, Service};
use crate::study::{Pairing, median_or_zero, with_interval};

/// The benchmark "servers".
#[derive(Debug)]
pub(crate) struct Servers;

/// At least such a part of the bare throughput.
const LEAST: f64 = 0.98;

/// Far more than one CPU can serve.
const LIMITS: [&str; 4] = [
    "read=20GB/s",
    "send=20GB/s",
    "recv=20GB/s",
    "accept=10000000/s",
];

const CONNECTIONS: u32 = 16;
/// Python's server lets five connections wait, and a sixth comes again in a second.
const FEW_CONNECTIONS: u32 = 4;
const FILES: [(&str, usize); 2] = [("1KiB", 1 << 10), ("1MiB", 1 << 20)];
const LOADS: [(Kind, &str); 5] = [
    (Kind::Nginx, "1KiB"),
    (Kind::Nginx, "1MiB"),
    (Kind::Python, "1KiB"),
    (Kind::Python, "1MiB"),
    (Kind::Java, "1KiB"),
];

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Variant {
    Bare,
    First,
    Both,
}

const VARIANTS: [Variant; 3] = [Variant::Bare, Variant::First, Variant::Both];

/// One round.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Round {
    session: u32,
    server: Kind,
    file: String,
    /// In the order of measurement.
    measured: Vec<(Variant, Fetched)>,
}

impl Benchmark for Servers {
    fn name(&self) -> &'static str {
        "servers"
    }

    fn about(&self) -> &'static str {
        "throughput of web servers under limits that do not bind, over bare"
    }

    fn run(&self, context: &mut Context) -> anyhow::Result<()> {
        let folder = web::folder(context, "served", &FILES)?;
        let (sessions, rounds) = context.effort.of((3, 4), (10, 10), (30, 15));
        let loads = context.effort.of(2, LOADS.len(), LOADS.len());
        for (kind, file) in LOADS.into_iter().take(loads) {
            if !context.is_wanted(&format!("{kind}, {file}")) {
                continue;
            }
            if kind.program().is_none() {
                context.skip(
                    format!("{kind}, {file}"),
                    format!("{kind} is not installed"),
                )?;
                continue;
            }
            context.progress(&format!("{kind}, {file}"));
            // Java compiles for seconds at each start.
            let sessions = if kind == Kind::Java {
                sessions / 3
            } else {
                sessions
            };
            for session in 0..sessions {
                measure(context, (kind, file), &folder, session, rounds)?;
            }
        }
        Ok(())
    }

    fn report(&self, record: &Record) -> Section {
        report(&record.samples(self.name()), record.run.seed)
    }
}

fn measure(
    context: &mut Context,
    (kind, file): (Kind, &str),
    folder: &std::path::Path,
    session: u32,
    rounds: u32,
) -> anyhow::Result<()> {
    let cpus = crate::facts::cpus();
    // With one CPU, client and server share it.
    let (server_cpu, client_cpu) = (cpus - 1, cpus.saturating_sub(2));
    let mut servers: Vec<(Variant, Option<Service>, Web)> = Vec::new();
    for variant in VARIANTS {
        let service = match variant {
            Variant::Bare => None,
            Variant::First => Some(context.service(Doors::First, &LIMITS)?),
            Variant::Both => Some(context.service(Doors::Both, &LIMITS)?),
        };
        let environment = service.iter().flat_map(Service::environment);
        let environment = environment
            .map(|(name, value)| (name.to_owned(), value))
            .collect();
        let wrap = Wrap {
            environment,
            cpu: Some(server_cpu),
            ..Wrap::default()
        };
        let server = web::serve(context, kind, folder, &wrap)?;
        servers.push((variant, service, server));
    }
    let client = Wrap {
        cpu: Some(client_cpu),
        ..Wrap::default()
    };
    let connections = if kind == Kind::Python {
        FEW_CONNECTIONS
    } else {
        CONNECTIONS
    };
    // Short, so that what disturbs the machine hits all of them.
    let time = Duration::from_millis(120);
    // The first answers of a server are slower: it compiles, and fills its caches.
    for (_, _, server) in &servers {
        web::fetch(
            context,
            &client,
            server.port,
            file,
            connections,
            Some(3 * time),
        )?;
    }
    for _ in 0..rounds {
        let before = Moment::now();
        let used = |servers: &[(Variant, Option<Service>, Web)]| -> u64 {
            servers
                .iter()
                .map(|(_, _, server)| web::tree_cpu_ms(server.running.pid()))
                .sum()
        };
        let used_before = used(&servers);
        let mut order: Vec<usize> = (0..servers.len()).collect();
        context.shuffle(&mut order);
        let mut measured = Vec::new();
        for index in order {
            let (variant, _, server) = &servers[index];
            let got = web::fetch(context, &client, server.port, file, connections, Some(time))?;
            anyhow::ensure!(got.answers > 0, "{kind} gave no answers");
            measured.push((*variant, got));
        }
        // The servers live on, so their CPU was counted for that of others.
        let conditions = before
            .until_now()
            .less(used(&servers).saturating_sub(used_before));
        context.sample(
            conditions,
            &Round {
                session,
                server: kind,
                file: file.to_owned(),
                measured,
            },
        )?;
    }
    for (_, service, _) in &servers {
        if let Some(service) = service {
            let (attached, _) = service.attached();
            anyhow::ensure!(attached > 0, "{kind} did not attach to its service");
            anyhow::ensure!(
                service.unshaped() == 0,
                "{} calls of {kind} were not decided on",
                service.unshaped()
            );
        }
    }
    Ok(())
}

fn report(samples: &[Sample<Round>], seed: u64) -> Section {
    let mut section = Section::default();
    let mut table = Table::new(&[
        "server",
        "file",
        "bare, requests/s",
        "bare, MB/s",
        "first door",
        "both doors",
        "failures",
        "doubt",
    ]);
    let mut loads: Vec<(Kind, &str)> = samples
        .iter()
        .map(|s| (s.data.server, s.data.file.as_str()))
        .collect();
    loads.dedup();
    for (kind, file) in loads {
        let of: Vec<&Sample<Round>> = samples
            .iter()
            .filter(|s| s.data.server == kind && s.data.file == file)
            .collect();
        let find = |round: &Round, variant| {
            round
                .measured
                .iter()
                .find(|(v, _)| *v == variant)
                .map(|(_, got)| *got)
        };
        let per_second = |got: Fetched, what: u64| what as f64 * 1e9 / got.ns.max(1) as f64;
        let mut sessions: Vec<u32> = of.iter().map(|s| s.data.session).collect();
        sessions.dedup();
        // Requests/s of a variant in a session.
        let speed = |session: u32, variant| {
            let rounds = of.iter().filter(|s| s.data.session == session);
            let speeds: Vec<f64> = rounds
                .filter_map(|s| find(&s.data, variant))
                .map(|got| per_second(got, got.answers))
                .collect();
            bonsai_stats::median(&speeds)
        };
        let pair = |variant| {
            let both =
                |session: &u32| Some((speed(*session, Variant::Bare)?, speed(*session, variant)?));
            let pairs: Vec<_> = sessions.iter().filter_map(both).collect();
            Pairing::of(&pairs, seed)
        };
        let (Some(first), Some(both)) = (pair(Variant::First), pair(Variant::Both)) else {
            continue;
        };
        let doubt = doubt_of(of.iter().map(|s| &s.conditions));
        let bytes: Vec<f64> = of
            .iter()
            .filter_map(|s| find(&s.data, Variant::Bare))
            .map(|got| per_second(got, got.bytes) / 1e6)
            .collect();
        let failures: u64 = of
            .iter()
            .flat_map(|s| &s.data.measured)
            .map(|(_, got)| got.failures)
            .sum();
        table.row(vec![
            kind.to_string(),
            file.to_owned(),
            with_interval(&both.base, 0),
            format!("{:.1}", median_or_zero(&bytes)),
            with_interval(&first.ratio, 3),
            with_interval(&both.ratio, 3),
            failures.to_string(),
            doubt.clone().unwrap_or_default(),
        ]);
        for (name, pairing) in [("first door", first), ("both doors", both)] {
            section.promise(
                format!("{kind}, {file}, {name}"),
                format!("ratio {LEAST}"),
                with_interval(&pairing.ratio, 3),
                Verdict::at_least(&pairing.ratio, LEAST, doubt.as_ref()),
            );
        }
    }
    section.text(format!(
        "{CONNECTIONS} connections ({FEW_CONNECTIONS} with Python), server and client each on a CPU of its own. Limits that do not bind: {}. \
         Ratios of requests/s within a session.",
        LIMITS.join(", ")
    ));
    section.table(table);
    section
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Conditions;

    #[test]
    fn slower_servers_are_found() {
        let round = |session: u32, bare: u64, both: u64| {
            let got = |answers| Fetched {
                answers,
                bytes: answers,
                ns: 1_000_000_000,
                failures: 0,
            };
            let measured = vec![
                (Variant::Both, got(both)),
                (Variant::Bare, got(bare)),
                (Variant::First, got(bare)),
            ];
            let data = Round {
                session,
                server: Kind::Nginx,
                file: "1KiB".to_owned(),
                measured,
            };
            Sample {
                conditions: Conditions::default(),
                data,
            }
        };
        let section = report(
            &[round(0, 1000, 900), round(1, 1010, 905), round(2, 990, 890)],
            1,
        );
        let verdicts: Vec<_> = section
            .promises()
            .iter()
            .map(|p| p.verdict.clone())
            .collect();
        assert_eq!(verdicts, [Verdict::Kept, Verdict::Broken]);
    }
}
