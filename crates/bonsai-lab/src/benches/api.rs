//! What the daemon costs and how fast it answers: 1,000 services with 10 threads each, looked at
//! without requests and then under 500 requests a second.
//!
//! Services are ledgers that one process holds and counts in ([`crowd`]); daemon, socket and
//! requests are real. CPU is what the kernel has counted for the daemon's process (user and
//! system), memory what it says of its mappings at the end of each phase.

mod ask;
pub(crate) mod crowd;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bonsai_stats::percentile_nearest;
use serde::{Deserialize, Serialize};

use self::ask::{Kind, Took};
use self::crowd::Crowd;
use super::Benchmark;
use super::web::tree_cpu_ms;
use crate::child::Running;
use crate::context::Context;
use crate::daemon::Daemon;
use crate::load::{Conditions, Moment, doubt_of};
use crate::record::{Record, Sample};
use crate::report::{Section, Table, Verdict};
use crate::study::{estimate, median_or_zero, with_interval};

/// The benchmark "api".
#[derive(Debug)]
pub(crate) struct Api;

const SERVICES: u64 = 1000;
const THREADS: u32 = 10;
const PER_S: u64 = 500;

/// What is promised: p99 of answers, ms; CPU of one core; memory.
const MOST_MS: f64 = 10.0;
const MOST_CPU: f64 = 5.0;
const MOST_MB: f64 = 100.0;

/// How long making the services and adopting them may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// What is done once after the start (adopting, first histories) is over by then.
const SETTLED: Duration = Duration::from_secs(5);

/// Everything has a capacity, so that all of it is decided about.
const CONFIG: &str = "[capacity]\nread = \"1GB/s\"\nwrite = \"1GB/s\"\nsend = \"10Gbit/s\"\n\
                      recv = \"10Gbit/s\"\ncalls = \"10000000/s\"\n";

/// A part of a run.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Phase {
    crowd: Crowd,
    services: u64,
    /// Requests a second that were due.
    per_s: u64,
    wall_ms: u64,
    /// CPU of the daemon, user and system; in ticks of 10 ms.
    cpu_ms: u64,
    /// Decisions it made meanwhile.
    periods: u64,
    /// CPU time of the last decision, and of all work of the last period, as it says itself.
    decision_us: u64,
    work_us: u64,
    memory: Memory,
    /// Of each request what it was and how long it took, us.
    took: Vec<Took>,
}

/// Of `/proc/PID/smaps_rollup`, kB.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
struct Memory {
    /// All of its pages, also those that the services' own processes map.
    rss: u64,
    /// The same, each page divided by how many map it.
    pss: u64,
    /// Pages that nobody else maps.
    private: u64,
}

impl Benchmark for Api {
    fn name(&self) -> &'static str {
        "api"
    }

    fn about(&self) -> &'static str {
        "CPU and memory of the daemon with 1,000 services, and times of its answers"
    }

    fn run(&self, context: &mut Context) -> anyhow::Result<()> {
        let blocks = context.effort.of(1, 3, 5);
        let lasts = Duration::from_secs(context.effort.of(5, 20, 60));
        for crowd in Crowd::ALL {
            if !context.is_wanted(crowd.name()) {
                continue;
            }
            context.progress(&format!(
                "{}: {SERVICES} services of {THREADS} threads",
                crowd.name()
            ));
            let world = World::start(context, crowd)?;
            for block in 0..blocks {
                for per_s in [0, PER_S] {
                    context.progress(&format!("{} {block}, {per_s} requests/s", crowd.name()));
                    let seed = context.random.next_u64();
                    let (conditions, phase) = world.measure(crowd, per_s, lasts, seed)?;
                    context.sample(conditions, &phase)?;
                }
            }
        }
        Ok(())
    }

    fn report(&self, record: &Record) -> Section {
        report(&record.samples(self.name()), record.run.seed)
    }
}

/// Services and a daemon. They end with it, the daemon first.
struct World {
    daemon: Daemon,
    /// The daemon's process.
    pid: u32,
    crowd: Running,
}

impl World {
    fn start(context: &Context, crowd: Crowd) -> anyhow::Result<Self> {
        let mut daemon = Daemon::new(context, CONFIG)?;
        let mut hold = Command::new(std::env::current_exe()?);
        hold.arg("hold").arg(crowd.name());
        hold.args([SERVICES.to_string(), THREADS.to_string()]);
        hold.envs(daemon.environment());
        let mut crowd = Running::start(&mut hold)?;
        crowd.line(PATIENCE)?;
        let pid = daemon.run(PATIENCE)?;
        let world = Self { daemon, pid, crowd };
        let end = Instant::now() + PATIENCE;
        while world.status()?.services < SERVICES {
            context.check()?;
            anyhow::ensure!(Instant::now() < end, "the daemon does not see all services");
            thread::sleep(Duration::from_millis(100));
        }
        thread::sleep(SETTLED);
        Ok(world)
    }

    fn status(&self) -> anyhow::Result<Status> {
        Ok(serde_json::from_slice(&ask::once(
            &self.daemon.socket(),
            "/v1/status",
        )?)?)
    }

    fn measure(
        &self,
        crowd: Crowd,
        per_s: u64,
        lasts: Duration,
        seed: u64,
    ) -> anyhow::Result<(Conditions, Phase)> {
        let used = || (tree_cpu_ms(self.pid), tree_cpu_ms(self.crowd.pid()));
        let before = self.status()?;
        let (moment, start) = (Moment::now(), Instant::now());
        let (daemon, others) = used();
        let took = if per_s == 0 {
            thread::sleep(lasts);
            Vec::new()
        } else {
            ask::ask(&self.daemon.socket(), per_s, lasts, SERVICES, seed)?
        };
        let after = used();
        let wall_ms = u64::try_from(start.elapsed().as_millis())?;
        let cpu_ms = after.0 - daemon;
        let conditions = moment.until_now().less(cpu_ms + after.1 - others);
        let status = self.status()?;
        let phase = Phase {
            crowd,
            services: status.services,
            per_s,
            wall_ms,
            cpu_ms,
            periods: status.periods - before.periods,
            decision_us: status.decision_ns / 1000,
            work_us: status.work_ns / 1000,
            memory: memory(self.pid)?,
            took,
        };
        Ok((conditions, phase))
    }
}

/// Of what the daemon says of itself, what is used here.
#[derive(Debug, Deserialize)]
struct Status {
    services: u64,
    periods: u64,
    decision_ns: u64,
    work_ns: u64,
}

fn memory(pid: u32) -> anyhow::Result<Memory> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = fs::read_to_string(Path::new(&path)).with_context(|| path.clone())?;
    let kb = |name: &str| -> u64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let number = line.and_then(|line| line.split_ascii_whitespace().next());
        number.and_then(|number| number.parse().ok()).unwrap_or(0)
    };
    Ok(Memory {
        rss: kb("Rss:"),
        pss: kb("Pss:"),
        private: kb("Private_Clean:") + kb("Private_Dirty:"),
    })
}

impl Phase {
    /// Of one core, percent.
    fn cpu(&self) -> f64 {
        self.cpu_ms as f64 / self.wall_ms.max(1) as f64 * 100.0
    }
}

fn report(samples: &[Sample<Phase>], seed: u64) -> Section {
    let mut section = Section::default();
    section.text(format!(
        "{SERVICES} services of {THREADS} threads each, a decision each 100 ms. Quiet: one in ten does the same all \
         the time, the others nothing; moving: each does something else every period, and one in ten is held back."
    ));
    costs(&mut section, samples, seed);
    section.text(format!(
        "{PER_S} requests/s over the Unix socket on kept connections, each counted from when it was due."
    ));
    answers(&mut section, samples);
    section
}

fn costs(section: &mut Section, samples: &[Sample<Phase>], seed: u64) {
    let mut table = Table::new(&[
        "services",
        "requests/s",
        "CPU, % of a core",
        "periods/s",
        "RSS, MB",
        "PSS, MB",
        "private, MB",
        "doubt",
    ]);
    for (crowd, per_s) in Crowd::ALL.into_iter().flat_map(|c| [(c, 0), (c, PER_S)]) {
        let of: Vec<&Sample<Phase>> = samples
            .iter()
            .filter(|sample| sample.data.crowd == crowd && sample.data.per_s == per_s)
            .collect();
        if of.is_empty() {
            continue;
        }
        let cpu: Vec<f64> = of.iter().map(|sample| sample.data.cpu()).collect();
        let median = median_or_zero(&cpu);
        let cpu = estimate(&cpu, seed);
        let cpu_text = cpu
            .as_ref()
            .map_or_else(|| format!("{median:.1}"), |cpu| with_interval(cpu, 1));
        let mb = |kb: fn(&Memory) -> u64| {
            let most = of.iter().map(|sample| kb(&sample.data.memory)).max();
            most.unwrap_or(0) as f64 * 1024.0 / 1e6
        };
        let rss = mb(|memory| memory.rss);
        let wall_ms: u64 = of.iter().map(|sample| sample.data.wall_ms).sum();
        let periods: u64 = of.iter().map(|sample| sample.data.periods).sum();
        let doubt = doubt_of(of.iter().map(|sample| &sample.conditions));
        table.row(vec![
            crowd.name().to_owned(),
            per_s.to_string(),
            cpu_text.clone(),
            format!("{:.1}", periods as f64 * 1e3 / wall_ms.max(1) as f64),
            format!("{rss:.1}"),
            format!("{:.1}", mb(|memory| memory.pss)),
            format!("{:.1}", mb(|memory| memory.private)),
            doubt.clone().unwrap_or_default(),
        ]);
        if per_s == 0 {
            section.promise(
                format!("CPU of the daemon, {} services", crowd.name()),
                format!("{MOST_CPU} % of a core"),
                format!("{cpu_text} %"),
                match &cpu {
                    Some(cpu) => Verdict::at_most(cpu, MOST_CPU, doubt.as_ref()),
                    None => Verdict::of(median <= MOST_CPU, doubt.as_ref()),
                },
            );
        }
        section.promise(
            format!(
                "memory of the daemon, {} services, {per_s} requests/s",
                crowd.name()
            ),
            format!("{MOST_MB} MB"),
            format!("{rss:.1} MB"),
            // What others do takes no memory of it.
            Verdict::of(rss <= MOST_MB, None),
        );
    }
    section.table(table);
}

fn answers(section: &mut Section, samples: &[Sample<Phase>]) {
    let mut table = Table::new(&[
        "services", "request", "count", "p50, ms", "p99, ms", "most, ms", "doubt",
    ]);
    for crowd in Crowd::ALL {
        let of: Vec<&Sample<Phase>> = samples
            .iter()
            .filter(|sample| sample.data.crowd == crowd && sample.data.per_s > 0)
            .collect();
        let doubt = doubt_of(of.iter().map(|sample| &sample.conditions));
        let all = || of.iter().flat_map(|sample| &sample.data.took);
        for kind in Kind::ALL.map(Some).into_iter().chain([None]) {
            let ms: Vec<f64> = all()
                .filter(|(of, _)| kind.is_none_or(|kind| *of == kind))
                .map(|(_, us)| *us as f64 / 1e3)
                .collect();
            if ms.is_empty() {
                continue;
            }
            let part = |percent| percentile_nearest(&ms, percent).unwrap_or(0.0);
            let p99 = part(99.0);
            table.row(vec![
                crowd.name().to_owned(),
                kind.map_or("all of them", Kind::name).to_owned(),
                ms.len().to_string(),
                format!("{:.2}", part(50.0)),
                format!("{p99:.2}"),
                format!("{:.2}", part(100.0)),
                doubt.clone().unwrap_or_default(),
            ]);
            if kind.is_none() {
                section.promise(
                    format!("answers at {PER_S} requests/s, {} services", crowd.name()),
                    format!("p99 {MOST_MS} ms"),
                    format!("{p99:.2} ms"),
                    Verdict::of(p99 <= MOST_MS, doubt.as_ref()),
                );
            }
        }
    }
    section.table(table);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_promised_is_judged() {
        let phase = |per_s, cpu_ms, rss, us| Sample {
            conditions: Conditions::default(),
            data: Phase {
                crowd: Crowd::Quiet,
                services: SERVICES,
                per_s,
                wall_ms: 10_000,
                cpu_ms,
                periods: 100,
                decision_us: 700,
                work_us: 2000,
                memory: Memory {
                    rss,
                    pss: rss,
                    private: 1,
                },
                took: vec![(Kind::Status, us); 100],
            },
        };
        let verdicts = |samples: &[Sample<Phase>]| {
            let section = report(samples, 1);
            let verdicts = section.promises().iter().map(|p| p.verdict.clone());
            verdicts.collect::<Vec<_>>()
        };
        let good = [phase(0, 300, 60_000, 0), phase(PER_S, 900, 60_000, 3000)];
        assert_eq!(verdicts(&good), vec![Verdict::Kept; 4]);
        let bad = [
            phase(0, 3000, 160_000, 0),
            phase(PER_S, 900, 160_000, 30_000),
        ];
        assert_eq!(verdicts(&bad), vec![Verdict::Broken; 4]);
    }

    #[test]
    fn memory_is_that_of_a_process() {
        let own = memory(std::process::id()).expect("of this one");
        assert!(
            own.private > 0 && own.pss >= own.private && own.rss >= own.pss,
            "{own:?}"
        );
    }
}
