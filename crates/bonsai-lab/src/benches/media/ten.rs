//! Ten servers with 80 to 800 streams, bare and as services under limits that they do not reach (000, 6.2):
//! what it costs. The servers have one processor; where that is not enough, bare or not, what is compared is
//! what it carries.

use std::path::Path;
use std::time::Duration;

use plotters::prelude::SeriesLabelPosition;
use serde::{Deserialize, Serialize};

use super::super::Benchmark;
use super::audience::{Ask, Seen, watch_all};
use super::chart::{self, COLOURS, Line, Panel, Style};
use super::clip::{KEY_FRAMES, NAME, Shelf};
use super::server::{Kind, Served, Start};
use super::{Cores, together};
use crate::context::{Context, Effort};
use crate::load::{Moment, doubt_of};
use crate::record::{Record, Sample};
use crate::report::{Section, Table, Verdict};
use crate::study::{Pairing, median_or_zero, percent, with_interval};

/// The benchmark "media-ten".
#[derive(Debug)]
pub(crate) struct Ten;

const SERVERS: u32 = 10;
/// Less than this part of the I/O rate cannot be told from none, on any machine.
const LEAST_RATIO: f64 = 0.995;
/// A server of 80 streams sends 20 MB/s.
const LIMITS: [&str; 2] = ["read=100MB/s", "send=100MB/s"];

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Measured {
    kind: Kind,
    /// Of all servers together.
    streams: u32,
    round: u32,
    /// Whether they were services.
    limited: bool,
    servers: Vec<Seen>,
    served: Vec<Served>,
}

impl Measured {
    /// Bytes of RTP a second of all servers, while all watched; `None` where there was no such time.
    fn rate(&self) -> Option<f64> {
        self.servers
            .iter()
            .map(|seen| Some(seen.steady()?.rate))
            .sum()
    }

    /// CPU time of all servers, s for each GB that was sent.
    fn cpu_per_gb(&self) -> f64 {
        let bytes: u64 = self
            .servers
            .iter()
            .filter_map(|seen| seen.points.last())
            .map(|point| point.bytes)
            .sum();
        let cpu: f64 = self.served.iter().map(|served| served.cpu_s).sum();
        cpu * 1e9 / bytes.max(1) as f64
    }

    /// CPU of all servers, in percent of a core.
    fn cpu(&self) -> f64 {
        let cpu: f64 = self.served.iter().map(|served| served.cpu_s).sum();
        let elapsed = self
            .servers
            .iter()
            .map(|seen| seen.elapsed_s)
            .fold(0.0, f64::max);
        cpu * 100.0 / elapsed.max(1e-9)
    }

    /// The client's processor, of one core.
    fn client(&self) -> f64 {
        let cpu: f64 = self.servers.iter().map(|seen| seen.cpu_s).sum();
        let elapsed = self
            .servers
            .iter()
            .map(|seen| seen.elapsed_s)
            .fold(0.0, f64::max);
        cpu / elapsed.max(1e-9)
    }

    fn doubt(&self) -> Option<String> {
        let all = Seen {
            busiest: self.client(),
            dropped_here: self.servers.iter().map(|seen| seen.dropped_here).sum(),
            ..Seen::default()
        };
        let failed = self.servers.iter().find_map(Seen::failures);
        together([failed, all.own_fault()])
    }
}

impl Benchmark for Ten {
    fn name(&self) -> &'static str {
        "media-ten"
    }

    fn about(&self) -> &'static str {
        "10 servers with 80 to 800 streams, bare and as services: what the paper finds no loss in"
    }

    fn run(&self, context: &mut Context) -> anyhow::Result<()> {
        let length = Duration::from_secs(context.effort.of(5, 8, 15));
        let rounds = context.effort.of(1, 3, 7);
        let counts = match context.effort {
            Effort::Quick => &[80, 400][..],
            Effort::Normal => &[80, 200, 400, 800],
            Effort::Full => &[80, 160, 240, 320, 400, 480, 560, 640, 720, 800],
        };
        let kinds = context.effort.of(
            &[Kind::Classic][..],
            &[Kind::Classic, Kind::Fast],
            &[Kind::Classic, Kind::Fast],
        );
        let shelf = match Shelf::make(context, length.as_secs() + 2) {
            Ok(shelf) => shelf,
            Err(error) => return context.skip("all of it", format!("{error:#}")),
        };
        for kind in kinds {
            for streams in counts {
                for round in 0..rounds {
                    let mut arms = [false, true];
                    context.shuffle(&mut arms);
                    for limited in arms {
                        let how = if limited { "as services" } else { "bare" };
                        let what = format!("{}, {streams} streams, {how}", kind.name());
                        if context.is_wanted(&what) {
                            context.progress(&what);
                            measure(context, &shelf, (*kind, *streams, round, limited), length)?;
                        }
                    }
                }
            }
        }
        if let Some(figure) = context.figure.clone() {
            let record = Record::read(&context.recorder.path)?;
            write(&figure, &record.samples(self.name()))?;
            context.progress(&format!("figure: {}", figure.display()));
        }
        Ok(())
    }

    fn report(&self, record: &Record) -> Section {
        report(&record.samples(self.name()), record.run.seed)
    }
}

fn measure(
    context: &mut Context,
    shelf: &Shelf,
    (kind, streams, round, limited): (Kind, u32, u32, bool),
    length: Duration,
) -> anyhow::Result<()> {
    let before = Moment::now();
    let cores = Cores::find();
    let mut servers = Vec::new();
    for number in 0..SERVERS {
        let name = format!("media-{number}");
        let options = ["--name", &name, "--limit", LIMITS[0], "--limit", LIMITS[1]];
        let start = Start {
            kind,
            shelf,
            service: limited.then(|| options.map(str::to_owned).to_vec()),
            core: cores.server,
            room: None,
        };
        servers.push(start.start(context)?);
    }
    let asks: Vec<Ask<'_>> = (0..SERVERS)
        .zip(&servers)
        .map(|(number, server)| Ask {
            url: server.url(NAME),
            server: server.at,
            viewers: streams / SERVERS,
            within: KEY_FRAMES,
            // Not all at the same moments.
            after: KEY_FRAMES * number / (streams.max(1)),
            length,
            room: None,
            core: cores.viewers,
        })
        .collect();
    let seen = watch_all(&asks)?;
    let mut served = Vec::new();
    for server in servers {
        served.extend(server.end()?);
    }
    let measured = Measured {
        kind,
        streams,
        round,
        limited,
        servers: seen,
        served,
    };
    context.sample(before.until_now(), &measured)
}

/// The combinations, in the order in which they were measured.
fn cells(samples: &[Sample<Measured>]) -> Vec<(Kind, u32)> {
    let mut cells = Vec::new();
    for sample in samples {
        let cell = (sample.data.kind, sample.data.streams);
        if !cells.contains(&cell) {
            cells.push(cell);
        }
    }
    cells
}

/// A number of each round, bare and as services.
fn pairs(
    samples: &[&Sample<Measured>],
    value: impl Fn(&Measured) -> Option<f64>,
) -> Vec<(f64, f64)> {
    let of = |round: u32, limited: bool| {
        let mut all = samples.iter().map(|sample| &sample.data);
        value(all.find(|data| data.round == round && data.limited == limited)?)
    };
    let bare = samples.iter().filter(|sample| !sample.data.limited);
    bare.filter_map(|sample| {
        let round = sample.data.round;
        Some((of(round, false)?, of(round, true)?))
    })
    .collect()
}

fn report(samples: &[Sample<Measured>], seed: u64) -> Section {
    let mut section = Section::default();
    section.text(format!(
        "{SERVERS} of `bonsai serve` on one processor, each with a tenth of the streams; bare, and as services under \
         limits of 100 MB/s on what they read and send. Mbit/s of RTP of all of them, from a second after all viewers \
         have come; CPU of all servers in percent of a core, and the ratio of CPU time for each byte; lateness of the worst server, 99 % of \
         pictures. The paper: no observable reduction."
    ));
    let mut table = Table::new(&[
        "server",
        "streams",
        "",
        "Mbit/s",
        "ratio",
        "CPU, %",
        "CPU ratio",
        "late p99, ms",
        "lag, s",
        "lost",
        "client, %",
        "doubt",
    ]);
    for (kind, streams) in cells(samples) {
        let is_of_it =
            |sample: &&Sample<Measured>| (sample.data.kind, sample.data.streams) == (kind, streams);
        let of_it: Vec<&Sample<Measured>> = samples.iter().filter(is_of_it).collect();
        let rates = pairs(&of_it, Measured::rate);
        let ratio = |pairs: &[(f64, f64)]| {
            let ratios: Vec<f64> = pairs.iter().map(|(bare, service)| service / bare).collect();
            median_or_zero(&ratios)
        };
        let doubt = together([
            of_it.iter().find_map(|sample| sample.data.doubt()),
            doubt_of(of_it.iter().map(|sample| &sample.conditions)),
        ]);
        for limited in [false, true] {
            let arm: Vec<&Measured> = of_it
                .iter()
                .map(|sample| &sample.data)
                .filter(|data| data.limited == limited)
                .collect();
            let median = |value: &dyn Fn(&Measured) -> f64| {
                let values: Vec<f64> = arm.iter().map(|data| value(data)).collect();
                median_or_zero(&values)
            };
            let seen = || arm.iter().flat_map(|data| &data.servers);
            let only = |text: String| if limited { text } else { String::new() };
            table.row(vec![
                kind.name().to_owned(),
                streams.to_string(),
                if limited { "services" } else { "bare" }.to_owned(),
                format!(
                    "{:.2}",
                    median(&|data| data.rate().unwrap_or(0.0)) * 8.0 / 1e6
                ),
                only(format!("{:.4}", ratio(&rates))),
                format!("{:.1}", median(&Measured::cpu)),
                only(format!(
                    "{:.3}",
                    ratio(&pairs(&of_it, |data| Some(data.cpu_per_gb())))
                )),
                format!("{:.2}", median(&late_ms)),
                format!("{:.2}", seen().map(Seen::lag_s).fold(0.0, f64::max)),
                seen().map(Seen::lost).sum::<u64>().to_string(),
                format!("{:.0}", median(&Measured::client) * 100.0),
                doubt.clone().unwrap_or_default(),
            ]);
        }
        let what = format!(
            "{}, {streams} streams: I/O rate over that of bare servers",
            kind.name()
        );
        let allowed = format!("{LEAST_RATIO}");
        match Pairing::of(&rates, seed) {
            Some(pairing) => section.promise(
                what,
                allowed,
                with_interval(&pairing.ratio, 4),
                Verdict::at_least(&pairing.ratio, LEAST_RATIO, doubt.as_ref()),
            ),
            // One round has no interval.
            None if !rates.is_empty() => section.promise(
                what,
                allowed,
                format!("{:.4} ({})", ratio(&rates), percent(ratio(&rates) - 1.0, 2)),
                Verdict::of(ratio(&rates) >= LEAST_RATIO, doubt.as_ref()),
            ),
            None => {}
        }
    }
    section.table(table);
    section
}

fn late_ms(data: &Measured) -> f64 {
    let late = data.served.iter().map(|served| served.late_p99_ns).max();
    late.unwrap_or(0) as f64 / 1e6
}

fn write(path: &Path, samples: &[Sample<Measured>]) -> anyhow::Result<()> {
    let rate = |data: &Measured| data.rate().unwrap_or(0.0) * 8.0 / 1e6;
    let panels = [
        panel(samples, ("What ten servers send", "Mbit/s"), &rate),
        panel(
            samples,
            ("CPU of ten servers", "% of a core"),
            &Measured::cpu,
        ),
    ];
    chart::write(path, &panels, 2, (560, 380))
}

/// A number over streams: of each kind of server, bare and as services.
fn panel(
    samples: &[Sample<Measured>],
    (title, unit): (&str, &'static str),
    value: &dyn Fn(&Measured) -> f64,
) -> Panel {
    let mut lines = Vec::new();
    for kind in [Kind::Classic, Kind::Fast] {
        for limited in [false, true] {
            let points = medians(samples, (kind, limited), value);
            if points.is_empty() {
                continue;
            }
            let how = if limited { "as services" } else { "bare" };
            lines.push(Line {
                name: format!("{}, {how}", kind.name()),
                colour: COLOURS[lines.len() % COLOURS.len()],
                style: Style::Dots,
                points,
            });
        }
    }
    let points = || lines.iter().flat_map(|line| &line.points);
    let end = points().map(|point| point.0).fold(1.0, f64::max) * 1.1;
    let top = points().map(|point| point.1).fold(1.0, f64::max) * 1.25;
    Panel {
        title: title.to_owned(),
        x: ("streams", 0.0..end),
        y: (unit, 0.0..top),
        lines,
        words: Vec::new(),
        legend: Some(SeriesLabelPosition::UpperLeft),
    }
}

/// For each number of streams the median of all rounds.
fn medians(
    samples: &[Sample<Measured>],
    (kind, limited): (Kind, bool),
    value: &dyn Fn(&Measured) -> f64,
) -> Vec<(f64, f64)> {
    let all = cells(samples).into_iter().filter(|(of, _)| *of == kind);
    let points = all.filter_map(|(_, streams)| {
        let of_it = samples.iter().map(|sample| &sample.data);
        let of_it = of_it
            .filter(|data| (data.kind, data.streams, data.limited) == (kind, streams, limited));
        let values: Vec<f64> = of_it.map(value).collect();
        Some((f64::from(streams), bonsai_stats::median(&values)?))
    });
    points.collect()
}

#[cfg(test)]
mod tests {
    use super::super::audience::Viewer;
    use super::super::audience::tests::{points, track};
    use super::*;
    use crate::load::Conditions;

    fn sample(round: u32, limited: bool, rate: u64) -> Sample<Measured> {
        let viewer = Viewer {
            failure: None,
            tracks: vec![track("video", 0.0)],
        };
        let seen = Seen {
            viewers: vec![viewer; 8],
            points: points(8, rate, 8),
            elapsed_s: 8.0,
            ..Seen::default()
        };
        let served = Served {
            cpu_s: if limited { 0.044 } else { 0.04 },
            ..Served::default()
        };
        Sample {
            conditions: Conditions::default(),
            data: Measured {
                kind: Kind::Classic,
                streams: 80,
                round,
                limited,
                servers: vec![seen; 10],
                served: vec![served; 10],
            },
        }
    }

    #[test]
    fn services_are_compared_with_bare_servers_of_their_round() {
        let verdict = |rates: &[(u64, u64)]| {
            let samples: Vec<_> = (0..)
                .zip(rates)
                .flat_map(|(round, (bare, service))| {
                    [sample(round, false, *bare), sample(round, true, *service)]
                })
                .collect();
            let section = report(&samples, 1);
            (section.promises()[0].verdict.clone(), section.markdown())
        };
        let (kept, text) = verdict(&[(2_000_000, 2_000_000); 3]);
        assert_eq!(kept, Verdict::Kept);
        assert!(text.contains("| 160.00 | 1.0000 | 5.5 | 1.100 |"), "{text}");
        assert_eq!(verdict(&[(2_000_000, 1_900_000); 3]).0, Verdict::Broken);
        assert_eq!(
            verdict(&[(2_000_000, 1_999_000)]).0,
            Verdict::Kept,
            "a single round"
        );
    }

    #[test]
    fn the_figure_has_rate_and_cpu() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("ten.svg");
        write(
            &path,
            &[sample(0, false, 2_000_000), sample(0, true, 2_000_000)],
        )
        .expect("a plot");
        let text = std::fs::read_to_string(path).expect("read");
        assert!(
            text.contains("What ten servers send") && text.contains("as services"),
            "{text}"
        );
    }
}
