//! How many streams of 2 Mbit/s a server carries on one processor, Bonsai's and others' in turns: the most
//! viewers that all have top quality, found as `bonsai watch --find-max` does it; how late pictures are, and
//! what a session takes.
//!
//! Servers and viewers are on one machine, so that the server's processor also does what the kernel does for
//! packets that are received, which of viewers elsewhere it would not.

use std::time::Duration;

use bonsai_media::search::Search;
use serde::{Deserialize, Serialize};

use super::super::Benchmark;
use super::audience::{Ask, Seen, watch_all};
use super::clip::{NAME, Shelf};
use super::server::{Kind, Served, Server, Start};
use super::{Cores, latest_ms, together};
use crate::context::{Context, Effort};
use crate::load::{Control, Moment, doubt_of};
use crate::record::{Record, Sample};
use crate::report::{Section, Table, Verdict};
use crate::service::monotonic_ns;
use crate::study::{estimate, median_or_zero, with_interval};

/// The benchmark "media-server".
#[derive(Debug)]
pub(crate) struct Capacity;

/// Viewers come at that rate, so that to come is no load of its own; and not at a divisor of the time
/// between two pictures, as all of them would be due at a few instants.
const ARRIVALS: u32 = 197;
/// From the last one's coming to the measurement.
const SETTLING: Duration = Duration::from_secs(1);
/// What is promised: streams of a core, and below a part of it that a server is used for, how late pictures
/// are; memory of a session.
const CLASSIC: f64 = 800.0;
const FAST: f64 = 2_500.0;
const BELOW: f64 = 0.7;
const LATE_P99_MS: f64 = 1.0;
const LATE_MAX_MS: f64 = 5.0;
const SESSION_KIB: f64 = 64.0;

/// Each server, and from how many viewers on it is tried.
const KINDS: [(Kind, u32); 4] = [
    (Kind::Classic, 250),
    (Kind::Fast, 500),
    (Kind::Gstreamer, 50),
    (Kind::Vlc, 50),
];

/// A try.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Measured {
    kind: Kind,
    round: u32,
    viewers: u32,
    /// Viewers with top quality by 002's criteria, and by lag and pace as well.
    paper: usize,
    honest: usize,
    short_of: String,
    lost: u64,
    gap_ms: f64,
    lag_s: f64,
    /// Of the server while all watched, of one core.
    cpu: f64,
    /// What it says at its end.
    served: Option<Served>,
    /// Memory of a session, bytes.
    session_bytes: f64,
    own_fault: Option<String>,
    /// How late the control thread was at most, ms: what the machine did to all.
    late_control_ms: f64,
}

impl Measured {
    fn is_good(&self) -> bool {
        self.honest == usize::try_from(self.viewers).unwrap_or(usize::MAX)
    }
}

impl Benchmark for Capacity {
    fn name(&self) -> &'static str {
        "media-server"
    }

    fn about(&self) -> &'static str {
        "streams of 2 Mbit/s that a server carries on a core, lateness, memory: ours, GStreamer's, VLC"
    }

    fn run(&self, context: &mut Context) -> anyhow::Result<()> {
        let length = Duration::from_secs(context.effort.of(4, 8, 20));
        let rounds = context.effort.of(1, 3, 5);
        let shelf = match Shelf::make(context, length.as_secs() + 30) {
            Ok(shelf) => shelf,
            Err(error) => return context.skip("all of it", format!("{error:#}")),
        };
        let mut missing: Vec<Kind> = Vec::new();
        for round in 0..rounds {
            let mut kinds = KINDS;
            context.shuffle(&mut kinds);
            for (kind, first) in kinds {
                if !context.is_wanted(kind.name()) || missing.contains(&kind) {
                    continue;
                }
                if let Some(why) = kind.missing() {
                    missing.push(kind);
                    context.skip(kind.name(), why)?;
                    continue;
                }
                if let Err(error) = search(context, &shelf, (kind, round, first), length) {
                    context.check()?;
                    anyhow::ensure!(!kind.is_ours(), error);
                    missing.push(kind);
                    context.skip(kind.name(), format!("{error:#}"))?;
                }
            }
        }
        Ok(())
    }

    fn report(&self, record: &Record) -> Section {
        report(&record.samples(self.name()), record.run.seed)
    }
}

/// Finds the most viewers.
fn search(
    context: &mut Context,
    shelf: &Shelf,
    (kind, round, first): (Kind, u32, u32),
    length: Duration,
) -> anyhow::Result<()> {
    let again = match context.effort {
        Effort::Quick => 1,
        _ => 2,
    };
    let mut search = Search::new(first, 4_000, again);
    let mut worst = first;
    while let Some(viewers) = search.next() {
        context.progress(&format!("{}, {viewers} viewers", kind.name()));
        let measured = try_out(context, shelf, (kind, round, viewers), length)?;
        // As close as a tenth is close enough: machines are not alike from one minute to the next.
        let is_good = measured.is_good();
        search.told(is_good);
        if is_good {
            worst = worst.max(viewers);
        } else if viewers <= worst + worst / 10 {
            break;
        }
    }
    Ok(())
}

fn try_out(
    context: &mut Context,
    shelf: &Shelf,
    (kind, round, viewers): (Kind, u32, u32),
    length: Duration,
) -> anyhow::Result<Measured> {
    let before = Moment::now();
    let cores = Cores::find();
    let start = Start {
        kind,
        shelf,
        service: None,
        core: cores.server,
        room: None,
    };
    let server = start.start(context)?;
    let empty = memory(&server);
    let within = Duration::from_secs_f64(f64::from(viewers) / f64::from(ARRIVALS));
    let ask = Ask {
        url: server.url(NAME),
        server: server.at,
        viewers,
        within,
        after: Duration::ZERO,
        length: within + SETTLING + length,
        room: None,
        core: cores.viewers,
    };
    let control = Control::start();
    // While all watch: from a second after the last has come until the first leaves.
    let (seen, (cpu, full)) = std::thread::scope(|scope| {
        let look = scope.spawn(|| {
            std::thread::sleep(within + SETTLING);
            let (from, cpu) = (monotonic_ns(), server.cpu_ms());
            std::thread::sleep(length);
            let (to, used) = (monotonic_ns(), server.cpu_ms() - cpu);
            (used as f64 * 1e6 / (to - from) as f64, memory(&server))
        });
        let seen = watch_all(&[ask]);
        let looked = look.join().unwrap_or_default();
        (seen, looked)
    });
    let gaps = control.finish();
    let seen = Seen::of_all(seen?);
    let served = server.end()?;
    let mut conditions = before.until_now();
    conditions.gaps = gaps;
    let quality = seen.quality();
    let measured = Measured {
        kind,
        round,
        viewers,
        paper: quality.paper,
        honest: quality.honest,
        short_of: together([
            seen.failures(),
            Some(seen.short_of()).filter(|of| !of.is_empty()),
        ])
        .unwrap_or_default(),
        lost: seen.lost(),
        gap_ms: seen.gap_ms(),
        lag_s: seen.lag_s(),
        cpu,
        served,
        session_bytes: full.saturating_sub(empty) as f64 / f64::from(viewers),
        own_fault: seen.own_fault(),
        late_control_ms: latest_ms(&conditions),
    };
    context.sample(conditions, &measured)?;
    Ok(measured)
}

/// Bytes of memory that a server has.
fn memory(server: &Server) -> u64 {
    let path = format!("/proc/{}/status", server.pid());
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

fn report(samples: &[Sample<Measured>], seed: u64) -> Section {
    let mut section = Section::default();
    section.text(
        "Each server on one processor with as many viewers of 2 Mbit/s (pictures and sound) as all have top quality: loss \
         <= 0.1 %, gap < 400 ms, jitter <= 50 ms, no reordering, lag <= 1 s, pace >= 0.99; doubled until it is too many, then \
         halved. The median over rounds. The processor also receives: the viewers are on the same machine. Lateness of \
         the largest try that used less than 70 % of the processor.",
    );
    let mut table = Table::new(&[
        "server",
        "streams",
        "then: CPU, %",
        "the next: short of",
        "below 70 %: streams",
        "late p99, ms",
        "late max, ms",
        "KiB a session",
        "doubt",
    ]);
    for (kind, _) in KINDS {
        let of_it: Vec<_> = samples.iter().filter(|of| of.data.kind == kind).collect();
        if of_it.is_empty() {
            continue;
        }
        let doubt = together([
            of_it.iter().find_map(|of| of.data.own_fault.clone()),
            doubt_of(of_it.iter().map(|sample| &sample.conditions)),
        ]);
        let found = Found::of(&of_it);
        table.row(found.row(kind, doubt.as_deref()));
        found.promise(&mut section, kind, seed, doubt.as_ref());
    }
    section.table(table);
    section
}

/// What the tries of a server come to.
struct Found<'a> {
    /// Of each round, the largest that was good.
    most: Vec<&'a Measured>,
    /// The smallest that was not.
    not: Option<&'a Measured>,
    /// Of each round, the largest good one below that part of a processor.
    below: Vec<&'a Measured>,
    /// Memory of a session, KiB, of each good try of many.
    session_kib: Vec<f64>,
}

impl<'a> Found<'a> {
    fn of(samples: &[&'a Sample<Measured>]) -> Self {
        let all = || samples.iter().map(|sample| &sample.data);
        let mut rounds: Vec<u32> = all().map(|data| data.round).collect();
        rounds.sort_unstable();
        rounds.dedup();
        let largest = |is_of: &dyn Fn(&Measured) -> bool| -> Vec<&'a Measured> {
            let of = |round: u32| {
                let tries = all().filter(|data| data.round == round && data.is_good());
                tries
                    .filter(|data| is_of(data))
                    .max_by_key(|data| data.viewers)
            };
            rounds.iter().filter_map(|round| of(*round)).collect()
        };
        Self {
            most: largest(&|_| true),
            not: all()
                .filter(|data| !data.is_good())
                .min_by_key(|data| data.viewers),
            below: largest(&|data| data.cpu < BELOW),
            session_kib: all()
                .filter(|data| data.is_good() && data.viewers >= 100)
                .map(|data| data.session_bytes / 1024.0)
                .collect(),
        }
    }

    fn streams(&self) -> Vec<f64> {
        self.most
            .iter()
            .map(|data| f64::from(data.viewers))
            .collect()
    }

    fn late(&self, value: impl Fn(&Served) -> u64) -> Vec<f64> {
        let served = self.below.iter().filter_map(|data| data.served.as_ref());
        served.map(|served| value(served) as f64 / 1e6).collect()
    }

    fn row(&self, kind: Kind, doubt: Option<&str>) -> Vec<String> {
        let shown = |values: &[f64], digits: usize| match bonsai_stats::median(values) {
            Some(median) => format!("{median:.digits$}"),
            None => String::new(),
        };
        let cpu: Vec<f64> = self.most.iter().map(|data| data.cpu * 100.0).collect();
        let below: Vec<f64> = self
            .below
            .iter()
            .map(|data| f64::from(data.viewers))
            .collect();
        let not = self
            .not
            .map(|data| format!("{}: {}", data.viewers, data.short_of));
        vec![
            kind.name().to_owned(),
            shown(&self.streams(), 0),
            shown(&cpu, 0),
            not.unwrap_or_default(),
            shown(&below, 0),
            shown(&self.late(|of| of.late_p99_ns), 2),
            shown(&self.late(|of| of.late_max_ns), 2),
            shown(&self.session_kib, 1),
            doubt.unwrap_or_default().to_owned(),
        ]
    }

    fn promise(&self, section: &mut Section, kind: Kind, seed: u64, doubt: Option<&String>) {
        if !kind.is_ours() {
            return;
        }
        let name = kind.name();
        let least = if kind == Kind::Fast { FAST } else { CLASSIC };
        if let Some(streams) = estimate(&self.streams(), seed) {
            section.promise(
                format!("{name}: streams on a core"),
                format!("at least {least:.0}"),
                with_interval(&streams, 0),
                Verdict::at_least(&streams, least, doubt),
            );
        } else if !self.most.is_empty() {
            let streams = median_or_zero(&self.streams());
            section.promise(
                format!("{name}: streams on a core"),
                format!("at least {least:.0}"),
                format!("{streams:.0}"),
                Verdict::of(streams >= least, doubt),
            );
        }
        let values = [
            (
                "lateness p99 below 70 %, ms",
                self.late(|of| of.late_p99_ns),
                LATE_P99_MS,
            ),
            (
                "lateness at most below 70 %, ms",
                self.late(|of| of.late_max_ns),
                LATE_MAX_MS,
            ),
            (
                "memory of a session, KiB",
                self.session_kib.clone(),
                SESSION_KIB,
            ),
        ];
        for (what, values, most) in values {
            if values.is_empty() {
                continue;
            }
            let median = median_or_zero(&values);
            section.promise(
                format!("{name}: {what}"),
                format!("{most}"),
                format!("{median:.2}"),
                Verdict::of(median <= most, doubt),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Conditions;

    fn sample(kind: Kind, viewers: u32, honest: usize, cpu: f64) -> Sample<Measured> {
        Sample {
            conditions: Conditions::default(),
            data: Measured {
                kind,
                round: 0,
                viewers,
                paper: honest,
                honest,
                short_of: "lag 7".to_owned(),
                lost: 0,
                gap_ms: 40.0,
                lag_s: 0.01,
                cpu,
                served: Some(Served {
                    late_p99_ns: 400_000,
                    late_max_ns: 2_000_000,
                    ..Served::default()
                }),
                session_bytes: 8192.0,
                own_fault: None,
                late_control_ms: 0.1,
            },
        }
    }

    #[test]
    fn the_most_is_what_all_saw_well_and_lateness_is_that_of_a_server_with_room() {
        let samples = [
            sample(Kind::Classic, 500, 500, 0.5),
            sample(Kind::Classic, 900, 900, 0.9),
            sample(Kind::Classic, 1000, 993, 1.0),
            sample(Kind::Vlc, 100, 100, 0.7),
        ];
        let section = report(&samples, 1);
        let text = section.markdown();
        assert!(
            text.contains("| bonsai serve | 900 | 90 | 1000: lag 7 | 500 | 0.40 | 2.00 | 8.0 |"),
            "{text}"
        );
        assert!(text.contains("| VLC | 100 |"), "{text}");
        let promises = section.promises();
        assert_eq!(promises.len(), 4, "of ours alone");
        assert!(
            promises.iter().all(|of| of.verdict == Verdict::Kept),
            "{text}"
        );
        let few = report(&[sample(Kind::Fast, 2_000, 2_000, 0.9)], 1);
        assert_eq!(few.promises()[0].verdict, Verdict::Broken);
    }
}
