//! What the history costs: bytes on disk of a day, time of a tick, and times of queries.
//!
//! Services are synthetic: their rates follow the time of day, with noise from second to second
//! and bursts; a third of them is under a limit that binds in the evening. Each has two or three
//! resources at work. Ticks are written as fast as they are taken, so the figures hold for a
//! machine that does nothing else in between; a real one has a second for each.

use std::path::Path;
use std::time::Instant;

use bonsai_history::{History, Options, Point, Query, Reader, Sample as Seen, State, Tick, Which};
use bonsai_stats::{SplitMix64, percentile_nearest as percentile};
use bonsai_units::Resource;
use serde::{Deserialize, Serialize};

use super::Benchmark;
use crate::context::Context;
use crate::load::{Moment, doubt_of};
use crate::record::{Record, Sample};
use crate::report::{Section, Table, Verdict};
use crate::service::thread_cpu_ns;
use crate::study::{estimate, with_interval};

/// The benchmark "history".
#[derive(Debug)]
pub(crate) struct HistoryCost;

const SERVICES: usize = 100;
/// Those of them that have a week.
const EARLIER: u64 = 10;
/// A Thursday's midnight, UTC.
const MIDNIGHT: u64 = 1_767_225_600;
const DAY: u64 = 86_400;
/// What is promised of a day of 100 services.
const MOST_BYTES: u64 = 200_000_000;
/// What is promised of a query of one day.
const MOST_QUERY_MS: f64 = 50.0;
/// Points of a query.
const POINTS: usize = 2000;

/// A line of the record.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum Measured {
    /// An hour of ticks, each in ns.
    Ticks {
        hour: u64,
        ns: Vec<u64>,
        /// CPU of all of them.
        cpu_ns: u64,
    },
    /// After so many seconds: bytes of pages that they use, of the file, and of the WAL.
    Size {
        seconds: u64,
        services: usize,
        points: u64,
        used: u64,
        file: u64,
        wal: u64,
    },
    /// Queries of a kind, each in ms, and in ms of CPU; and the slots of the last answer.
    Queries {
        kind: String,
        ms: Vec<f64>,
        cpu_ms: Vec<f64>,
        slots: usize,
    },
}

impl Benchmark for HistoryCost {
    fn name(&self) -> &'static str {
        "history"
    }

    fn about(&self) -> &'static str {
        "bytes of a day of 100 services, time of a tick, times of queries"
    }

    fn run(&self, context: &mut Context) -> anyhow::Result<()> {
        // The quick one has an hour and a half, so that everything becomes blocks once.
        let seconds = context.effort.of(5400, DAY, 7 * DAY);
        let folder = context.scratch().join("history");
        let options = Options {
            // A week of seconds is more than the default bound keeps.
            points_bytes: context.effort.of(512, 512, 2048) << 20,
            ..Options::default()
        };
        let mut history = History::open(&folder, options)?;
        let mut world = World::new(context.random.below(1 << 32));
        let week_before = context.effort.of(false, true, false);
        if week_before {
            earlier(context, &mut history, &mut world)?;
        }
        let (before, _, _) = history.status().points_bytes;
        let earlier = history.status().counters.written_ticks;
        let mut points = 0;
        for hour in 0..seconds.div_ceil(3600) {
            context.check()?;
            let before = Moment::now();
            let (mut ns, mut cpu_ns) = (Vec::new(), 0);
            for second in hour * 3600..seconds.min((hour + 1) * 3600) {
                let tick = world.tick(MIDNIGHT + second);
                points += tick.points.len() as u64;
                let (from, cpu) = (Instant::now(), thread_cpu_ns());
                history.tick(&tick);
                cpu_ns += thread_cpu_ns() - cpu;
                ns.push(u64::try_from(from.elapsed().as_nanos()).unwrap_or(u64::MAX));
            }
            context.sample(before.until_now(), &Measured::Ticks { hour, ns, cpu_ns })?;
        }
        let status = history.status();
        anyhow::ensure!(status.points == State::Writing, "{:?}", status.points);
        let written = status.counters.written_ticks - earlier;
        anyhow::ensure!(
            written == seconds,
            "{written} of {seconds} ticks were written"
        );
        let (used, file, wal) = status.points_bytes;
        let size = Measured::Size {
            seconds,
            services: SERVICES,
            points,
            used: used - before,
            file,
            wal,
        };
        context.sample(Moment::now().until_now(), &size)?;
        let known = if week_before { 7 * DAY } else { seconds };
        queries(context, &folder, seconds, known.max(DAY))
    }

    fn report(&self, record: &Record) -> Section {
        report(&record.samples(self.name()), record.run.seed)
    }
}

/// Six days before the one that is measured, one second of each minute and a few services: blocks
/// of minutes are as many and as long as they would be of all seconds.
fn earlier(context: &Context, history: &mut History, world: &mut World) -> anyhow::Result<()> {
    for second in (MIDNIGHT - 6 * DAY..MIDNIGHT).step_by(60) {
        let mut tick = world.tick(second);
        tick.points.retain(|point| *point.service < *name(EARLIER));
        history.tick(&tick);
        if second % DAY == 0 {
            context.check()?;
        }
    }
    Ok(())
}

/// Queries of spans up to what was written, each of some service in turn.
fn queries(context: &mut Context, folder: &Path, seconds: u64, known: u64) -> anyhow::Result<()> {
    let rounds = context.effort.of(50, 300, 1000);
    let end = MIDNIGHT + seconds;
    let week = 7 * DAY;
    let kinds = [
        ("30 min at 1 s", 1800, Some(())),
        ("16 h at 30 s", 16 * 3600, Some(())),
        ("day", DAY, Some(())),
        ("day, all services", DAY, None),
        ("week", week, Some(())),
    ];
    let reader = Reader::new(folder);
    for (kind, span, one) in kinds {
        if span > known || !context.is_wanted(kind) {
            context.skip(kind, "that long a time was not written")?;
            continue;
        }
        let before = Moment::now();
        let (mut ms, mut cpu_ms, mut slots) = (Vec::new(), Vec::new(), 0);
        for _ in 0..rounds {
            let service = context
                .random
                .below(if span > DAY { EARLIER } else { SERVICES as u64 });
            let query = Query {
                which: one.map_or(Which::Total, |()| Which::Service(name(service))),
                resource: Resource::Send,
                from: end.saturating_sub(span),
                to: end,
                points: POINTS,
            };
            let (from, cpu) = (Instant::now(), thread_cpu_ns());
            slots = reader.series(&query)?.slots.len();
            ms.push(from.elapsed().as_secs_f64() * 1e3);
            cpu_ms.push((thread_cpu_ns() - cpu) as f64 / 1e6);
        }
        let kind = kind.to_owned();
        context.sample(
            before.until_now(),
            &Measured::Queries {
                kind,
                ms,
                cpu_ms,
                slots,
            },
        )?;
    }
    Ok(())
}

fn name(service: u64) -> String {
    format!("service-{service:03}")
}

/// Services that do what services do.
struct World {
    random: SplitMix64,
    services: Vec<Service>,
}

struct Service {
    name: std::sync::Arc<str>,
    /// Of each resource the mean rate at noon, units per second; 0 is not used.
    rates: [u64; Resource::COUNT],
    /// Of each a limit, units per second.
    limits: [Option<u64>; Resource::COUNT],
    /// When its day begins, s.
    shift: u64,
    /// Seconds that a burst still lasts.
    burst: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = SplitMix64::new(seed);
        let services = (0..SERVICES as u64).map(|i| {
            let mut rates = [0; Resource::COUNT];
            rates[Resource::Send.index()] = 100_000 << random.below(7);
            // Two or three at work.
            if i % 2 == 0 {
                rates[Resource::Read.index()] = 200_000 << random.below(6);
            }
            rates[Resource::Calls.index()] = 50 << random.below(6);
            let limit = |rate: u64| (i % 3 == 0).then_some(rate * 5 / 4);
            Service {
                name: name(i).into(),
                rates,
                limits: rates.map(|rate| if rate == 0 { None } else { limit(rate) }),
                shift: random.below(4) * 3600,
                burst: 0,
            }
        });
        let services = services.collect();
        Self { random, services }
    }

    fn tick(&mut self, second: u64) -> Tick {
        let random = &mut self.random;
        let mut points = Vec::with_capacity(3 * SERVICES);
        for service in &mut self.services {
            let of_day = ((second + service.shift) % DAY) as f64 / DAY as f64;
            // Least at night, a fifth of the most.
            let tide = 0.6 - 0.4 * (of_day * std::f64::consts::TAU).cos();
            service.burst = match service.burst {
                0 if random.below(300) == 0 => 1 + random.below(30),
                left => left.saturating_sub(1),
            };
            let burst = if service.burst > 0 { 2.0 } else { 1.0 };
            for resource in Resource::ALL {
                let mean = service.rates[resource.index()];
                if mean == 0 {
                    continue;
                }
                // The sum of four is bell-shaped, with a deviation of a seventh.
                let noise: f64 = (0..4).map(|_| random.below(1000) as f64 / 2000.0).sum();
                let asked = (mean as f64 * tide * burst * noise * 1000.0).round();
                let sample = seen(whole(asked), service.limits[resource.index()], random);
                let service = std::sync::Arc::clone(&service.name);
                points.push(Point {
                    service,
                    resource,
                    sample,
                });
            }
        }
        Tick { second, points }
    }
}

/// What is seen of a service that asks for so much (milli units) under a limit (units).
fn seen(asked: u64, limit: Option<u64>, random: &mut SplitMix64) -> Seen {
    let milli = limit.map(|limit| limit * 1000);
    let most = milli.unwrap_or(u64::MAX);
    let short = asked.saturating_sub(most);
    let got = match short {
        0 => asked,
        // Calls end before and after the second.
        _ => most - random.below(most / 100 + 1),
    };
    let waited = if short > 0 {
        1 + random.below(900_000_000)
    } else {
        0
    };
    Seen {
        asked,
        got,
        limit: milli,
        guarantee: milli.map_or(0, |milli| milli / 2),
        waited_ns: waited,
        waits: waited.div_ceil(20_000_000),
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "rates are positive and far below 2^64"
)]
fn whole(value: f64) -> u64 {
    value as u64
}

fn report(samples: &[Sample<Measured>], seed: u64) -> Section {
    let mut section = Section::default();
    sizes(&mut section, samples);
    ticks(&mut section, samples, seed);
    let mut table = Table::new(&[
        "query of 2,000 points",
        "slots",
        "p50, ms",
        "p99, ms",
        "CPU p50, ms",
        "CPU p99, ms",
        "doubt",
    ]);
    for sample in samples {
        let Measured::Queries {
            kind,
            ms,
            cpu_ms,
            slots,
        } = &sample.data
        else {
            continue;
        };
        let doubt = sample.conditions.doubt();
        let p99 = percentile(ms, 99.0).unwrap_or(0.0);
        table.row(vec![
            kind.clone(),
            slots.to_string(),
            format!("{:.2}", percentile(ms, 50.0).unwrap_or(0.0)),
            format!("{p99:.2}"),
            format!("{:.2}", percentile(cpu_ms, 50.0).unwrap_or(0.0)),
            format!("{:.2}", percentile(cpu_ms, 99.0).unwrap_or(0.0)),
            doubt.clone().unwrap_or_default(),
        ]);
        section.promise(
            format!("query: {kind}"),
            format!("p99 {MOST_QUERY_MS} ms"),
            format!("{p99:.2} ms"),
            Verdict::of(p99 <= MOST_QUERY_MS, doubt.as_ref()),
        );
    }
    section.table(table);
    section
}

fn sizes(section: &mut Section, samples: &[Sample<Measured>]) {
    for sample in samples {
        let Measured::Size {
            seconds,
            services,
            points,
            used,
            file,
            wal,
        } = sample.data
        else {
            continue;
        };
        let per_day = (used as f64 / seconds as f64 * DAY as f64).round();
        section.text(format!(
            "{services} services, {seconds} s, {points} points: {used} B in use, file {file} B, WAL {wal} B; \
             {:.2} B per point, {per_day} B per day.",
            used as f64 / points as f64
        ));
        section.promise(
            "bytes of a day of 100 services".to_owned(),
            format!("{MOST_BYTES} B"),
            format!("{per_day} B"),
            Verdict::of(per_day <= MOST_BYTES as f64, None),
        );
    }
}

fn ticks(section: &mut Section, samples: &[Sample<Measured>], seed: u64) {
    let hours = samples.iter().filter_map(|sample| match &sample.data {
        Measured::Ticks { ns, cpu_ns, .. } => Some((ns, (*cpu_ns, &sample.conditions))),
        _ => None,
    });
    let (ticks, others): (Vec<_>, Vec<_>) = hours.unzip();
    let us = |ns: &u64| *ns as f64 / 1e3;
    let all: Vec<f64> = ticks.iter().flat_map(|ns| ns.iter().map(us)).collect();
    if all.is_empty() {
        return;
    }
    let of = |part: f64| percentile(&all, part).unwrap_or(0.0);
    let means = ticks
        .iter()
        .map(|ns| ns.iter().map(us).sum::<f64>() / ns.len().max(1) as f64);
    let means: Vec<f64> = means.collect();
    let mean =
        estimate(&means, seed).map_or_else(|| format!("{:.0}", means[0]), |m| with_interval(&m, 0));
    section.text(format!(
        "A tick takes {mean} us on average (median of hours); p50 {:.0}, p99 {:.0}, most {:.0} us; \
         {:.0} us of CPU. {}",
        of(50.0),
        of(99.0),
        all.iter().copied().fold(0.0, f64::max),
        others.iter().map(|(cpu_ns, _)| us(cpu_ns)).sum::<f64>() / all.len() as f64,
        doubt_of(others.into_iter().map(|(_, conditions)| conditions)).unwrap_or_default()
    ));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Conditions;

    #[test]
    fn services_are_as_they_are_said_to_be() {
        let mut world = World::new(7);
        let ticks: Vec<Tick> = (0..DAY)
            .step_by(600)
            .map(|s| world.tick(MIDNIGHT + s))
            .collect();
        for tick in &ticks {
            let per_service = tick.points.len() as f64 / SERVICES as f64;
            assert!((2.0..=3.0).contains(&per_service), "{per_service}");
        }
        let all: Vec<Seen> = ticks
            .iter()
            .flat_map(|t| t.points.iter().map(|p| p.sample))
            .collect();
        let waited = all.iter().filter(|seen| seen.waited_ns > 0).count();
        assert!(
            waited > all.len() / 100 && waited < all.len() / 4,
            "{waited} of {}",
            all.len()
        );
        assert!(all.iter().all(|seen| seen.got <= seen.asked));
        assert!(
            all.iter()
                .all(|seen| seen.limit.is_none_or(|limit| seen.got <= limit))
        );
    }

    #[test]
    fn what_is_promised_is_judged() {
        let sample = |data| Sample {
            conditions: Conditions::default(),
            data,
        };
        let size = |used| {
            sample(Measured::Size {
                seconds: DAY,
                services: SERVICES,
                points: 20_000_000,
                used,
                file: used,
                wal: 0,
            })
        };
        let queries = |ms| {
            sample(Measured::Queries {
                kind: "day".to_owned(),
                ms: vec![ms; 10],
                cpu_ms: vec![ms; 10],
                slots: 1440,
            })
        };
        let verdicts = |samples: &[Sample<Measured>]| {
            let section = report(samples, 1);
            let verdicts = section.promises().iter().map(|p| p.verdict.clone());
            verdicts.collect::<Vec<_>>()
        };
        assert_eq!(
            verdicts(&[size(100 << 20), queries(3.0)]),
            [Verdict::Kept, Verdict::Kept]
        );
        assert_eq!(
            verdicts(&[size(300 << 20), queries(60.0)]),
            [Verdict::Broken, Verdict::Broken]
        );
        assert!(
            verdicts(&[sample(Measured::Ticks {
                hour: 0,
                ns: vec![],
                cpu_ns: 0
            })])
            .is_empty()
        );
    }
}
