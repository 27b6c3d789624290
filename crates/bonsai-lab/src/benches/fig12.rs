//! Fig. 12 of the paper "Support for enterprise consolidation of I/O bound
//! services": a server whose clients ask for 12.5 MB/s, without a limit and under
//! one of 10 MB/s on what it reads and on what it sends.

mod plot;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Benchmark;
use crate::child::Running;
use crate::context::Context;
use crate::load::{Control, Moment};
use crate::record::{Record, Sample};
use crate::report::{Section, Table, Verdict};
use crate::service::{Doors, monotonic_ns};
use crate::study::percent;

/// The benchmark "paper-fig12".
#[derive(Debug)]
pub(crate) struct Fig12;

/// 50 clients, 25 times a second 10 000 bytes each: 12.5 MB/s.
const STREAMS: u32 = 50;
const FRAME: u32 = 10_000;
const FRAMES_PER_SECOND: u32 = 25;
const OFFERED: f64 = 12.5e6;
const LIMIT: f64 = 10e6;
const LIMITS: [&str; 2] = ["read=10MB/s", "send=10MB/s"];
/// At the start every client comes, and a new bucket holds its burst.
const SETTLING_S: usize = 1;
const BIN_MS: usize = 10;
const MOST_SECOND: f64 = 0.01;

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Measured {
    limited: bool,
    streams: Streams,
}

/// Bytes in bins of 10 ms: see `streams.c`.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Streams {
    read: Vec<u64>,
    sent: Vec<u64>,
}

impl Benchmark for Fig12 {
    fn name(&self) -> &'static str {
        "paper-fig12"
    }

    fn about(&self) -> &'static str {
        "12.5 MB/s offered, limit 10 MB/s: the paper's Fig. 12"
    }

    fn run(&self, context: &mut Context) -> anyhow::Result<()> {
        let seconds = context.effort.of(5, 20, 60);
        let file = context.file(64 << 20)?;
        for limited in [false, true] {
            context.progress(if limited { "limit 10 MB/s" } else { "no limit" });
            let service = limited
                .then(|| context.service(Doors::Both, &LIMITS))
                .transpose()?;
            let length = Duration::from_secs(seconds);
            let before = Moment::now();
            let control = Control::start();
            let start = monotonic_ns() + 300_000_000;
            let mut command = context.program("streams")?;
            command
                .args([STREAMS, FRAME, FRAMES_PER_SECOND].map(|n| n.to_string()))
                .args([start.to_string(), length.as_nanos().to_string()])
                .arg(&file);
            if let Some(service) = &service {
                service.enter(&mut command);
            }
            let text = Running::start(&mut command)?.finish(length + Duration::from_secs(20))?;
            let mut conditions = before.until_now();
            conditions.gaps = control.finish();
            context.sample(
                conditions,
                &Measured {
                    limited,
                    streams: serde_json::from_str(&text)?,
                },
            )?;
        }
        if let Some(figure) = context.figure.clone() {
            let record = Record::read(&context.recorder.path)?;
            let of = |limited| -> Option<Vec<u64>> {
                let samples: Vec<Sample<Measured>> = record.samples(self.name());
                samples
                    .into_iter()
                    .find(|s| s.data.limited == limited)
                    .map(|s| s.data.streams.sent)
            };
            let (Some(bare), Some(limited)) = (of(false), of(true)) else {
                anyhow::bail!("the record has not both runs");
            };
            plot::write(&figure, &bare, &limited)?;
            context.progress(&format!("figure: {}", figure.display()));
        }
        Ok(())
    }

    fn report(&self, record: &Record) -> Section {
        report(&record.samples(self.name()))
    }
}

/// MB/s in windows of so many bins, without the settling time.
fn rates(bins: &[u64], window_ms: usize) -> Vec<f64> {
    let settled = bins.get(SETTLING_S * 1_000 / BIN_MS..).unwrap_or_default();
    let seconds = window_ms as f64 / 1e3;
    settled
        .chunks_exact(window_ms / BIN_MS)
        .map(|bins| bins.iter().sum::<u64>() as f64 / seconds)
        .collect()
}

/// The value furthest from `from`.
fn furthest(values: &[f64], from: f64) -> f64 {
    let error = |value: &f64| (value - from).abs();
    values
        .iter()
        .copied()
        .max_by(|a, b| error(a).total_cmp(&error(b)))
        .unwrap_or(from)
}

fn report(samples: &[Sample<Measured>]) -> Section {
    let mut section = Section::default();
    section.text(format!(
        "{STREAMS} streams read and send {FRAME} bytes {FRAMES_PER_SECOND} times a second: {:.1} MB/s offered. \
         MB/s after the first second.",
        OFFERED / 1e6
    ));
    let mut table = Table::new(&[
        "",
        "",
        "mean",
        "worst second",
        "worst 100 ms",
        "paper",
        "doubt",
    ]);
    for sample in samples {
        let Measured { limited, streams } = &sample.data;
        let doubt = sample.conditions.doubt();
        let expected = if *limited { LIMIT } else { OFFERED };
        let shown = if *limited {
            "limit 10 MB/s"
        } else {
            "no limit"
        };
        for (what, bins) in [("read", &streams.read), ("sent", &streams.sent)] {
            let seconds = rates(bins, 1_000);
            let mean = bonsai_stats::mean(&seconds).unwrap_or(0.0);
            let worst = furthest(&seconds, expected);
            let mb =
                |rate: f64| format!("{:.3} ({})", rate / 1e6, percent(rate / expected - 1.0, 2));
            table.row(vec![
                shown.to_owned(),
                what.to_owned(),
                mb(mean),
                mb(worst),
                mb(furthest(&rates(bins, 100), expected)),
                format!("{:.1}", expected / 1e6),
                doubt.clone().unwrap_or_default(),
            ]);
            let holds = (worst / expected - 1.0).abs() <= MOST_SECOND;
            section.promise(
                format!("{shown}, {what}: each second"),
                format!("{:.1} MB/s within 1 %", expected / 1e6),
                format!("{:.3} MB/s", worst / 1e6),
                Verdict::of(holds, doubt.as_ref()),
            );
        }
    }
    section.table(table);
    section
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Conditions;

    fn sample(limited: bool, per_bin: u64) -> Sample<Measured> {
        let bins = vec![per_bin; 500];
        let streams = Streams {
            read: bins.clone(),
            sent: bins,
        };
        Sample {
            conditions: Conditions::default(),
            data: Measured { limited, streams },
        }
    }

    #[test]
    fn each_run_is_held_against_its_own_rate() {
        let section = report(&[sample(false, 125_000), sample(true, 100_000)]);
        assert!(
            section
                .promises()
                .iter()
                .all(|p| p.verdict == Verdict::Kept),
            "{:?}",
            section.promises()
        );
        let loose = report(&[sample(true, 102_000)]);
        assert!(
            loose
                .promises()
                .iter()
                .all(|p| p.verdict == Verdict::Broken)
        );
    }

    #[test]
    fn the_plot_is_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("figures/a.svg");
        plot::write(&path, &[125_000; 500], &[100_000; 500]).expect("a plot");
        let text = std::fs::read_to_string(path).expect("read");
        assert!(
            text.starts_with("<svg") && text.contains("limit 10 MB/s"),
            "{text}"
        );
    }
}
