//! Fig. 12 of 000 with a real media server: what it reads and sends for 50 viewers, without a limit and under
//! one of 10 MB/s on each. (`paper-fig12` has the same with a program that does nothing but its I/O.)
//!
//! What it reads is what the kernel counts for its process, what it sends is what its viewers get.

use std::path::Path;
use std::time::Duration;

use plotters::prelude::SeriesLabelPosition;
use serde::{Deserialize, Serialize};

use super::super::Benchmark;
use super::audience::{Ask, Point, Seen, watch_all};
use super::chart::{self, COLOURS, LIMIT as LIMIT_COLOUR, Line, Panel, Style};
use super::clip::{KEY_FRAMES, NAME, Shelf};
use super::server::{Kind, Start};
use super::{Cores, together};
use crate::context::Context;
use crate::load::Moment;
use crate::record::{Record, Sample};
use crate::report::{Section, Table, Verdict};
use crate::service::monotonic_ns;
use crate::study::percent;

/// The benchmark "media-fig12".
#[derive(Debug)]
pub(crate) struct Fig12;

const VIEWERS: u32 = 50;
const LIMIT: f64 = 10e6;
const LIMITS: [&str; 2] = ["read=10MB/s", "send=10MB/s"];
const MOST_OFF: f64 = 0.01;
/// How often the kernel's count is looked at.
const LOOK: Duration = Duration::from_millis(100);
const SECOND: u64 = 1_000_000_000;

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Measured {
    limited: bool,
    /// Bytes that the server had read at instants of the monotonic clock.
    read: Vec<(u64, u64)>,
    seen: Seen,
}

impl Benchmark for Fig12 {
    fn name(&self) -> &'static str {
        "media-fig12"
    }

    fn about(&self) -> &'static str {
        "a media server's I/O for 50 viewers, limit 10 MB/s: the paper's Fig. 12"
    }

    fn run(&self, context: &mut Context) -> anyhow::Result<()> {
        let length = Duration::from_secs(context.effort.of(8, 20, 60));
        let shelf = match Shelf::make(context, length.as_secs() + 2) {
            Ok(shelf) => shelf,
            Err(error) => return context.skip("all of it", format!("{error:#}")),
        };
        for limited in [false, true] {
            context.progress(if limited { "limit 10 MB/s" } else { "no limit" });
            measure(context, &shelf, limited, length)?;
        }
        if let Some(figure) = context.figure.clone() {
            let record = Record::read(&context.recorder.path)?;
            write(&figure, &record.samples(self.name()))?;
            context.progress(&format!("figure: {}", figure.display()));
        }
        Ok(())
    }

    fn report(&self, record: &Record) -> Section {
        report(&record.samples(self.name()))
    }
}

fn measure(
    context: &mut Context,
    shelf: &Shelf,
    limited: bool,
    length: Duration,
) -> anyhow::Result<()> {
    let before = Moment::now();
    let cores = Cores::find();
    let options = [
        "--name", "media", "--limit", LIMITS[0], "--limit", LIMITS[1],
    ];
    let start = Start {
        kind: Kind::Classic,
        shelf,
        service: limited.then(|| options.map(str::to_owned).to_vec()),
        core: cores.server,
        room: None,
    };
    let server = start.start(context)?;
    let ask = [Ask {
        url: server.url(NAME),
        server: server.at,
        viewers: VIEWERS,
        within: KEY_FRAMES,
        after: Duration::ZERO,
        length,
        room: None,
        core: cores.viewers,
    }];
    let pid = server.pid();
    let (seen, read) = std::thread::scope(|scope| {
        let watching = scope.spawn(|| watch_all(&ask));
        let mut read = Vec::new();
        while !watching.is_finished() {
            let at = monotonic_ns();
            read.push((at, bytes_read(pid)));
            std::thread::sleep(LOOK);
        }
        (watching.join(), read)
    });
    let seen = seen.map_err(|_| anyhow::anyhow!("a viewer has panicked"))??;
    drop(server);
    let measured = Measured {
        limited,
        read,
        seen: seen.into_iter().next().unwrap_or_default(),
    };
    context.sample(before.until_now(), &measured)
}

/// Bytes that a process and its descendants have read, from the page cache as well (proc_pid_io(5): `rchar`).
fn bytes_read(pid: u32) -> u64 {
    let Ok(all) = bonsai_host::proc::Processes::read() else {
        return 0;
    };
    let pids = all.descendants(pid).into_iter().map(|process| process.pid);
    let of = |pid: u32| -> Option<u64> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("rchar: "))?;
        line.parse().ok()
    };
    pids.chain([pid]).filter_map(of).sum()
}

/// Bytes a second in each whole second of a span, of a count at instants.
fn each_second(counts: &[(u64, u64)], from: u64, to: u64) -> Vec<f64> {
    let marks: Vec<f64> = (0..)
        .map(|i| from + i * SECOND)
        .take_while(|at| *at <= to)
        .filter_map(|at| count_at(counts, at))
        .collect();
    marks.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

/// What was counted by an instant, between two looks as if it went evenly.
fn count_at(counts: &[(u64, u64)], at: u64) -> Option<f64> {
    let after = counts.iter().position(|(then, _)| *then >= at)?;
    let (to, more) = counts[after];
    if to == at {
        return Some(more as f64);
    }
    let (from, less) = *counts.get(after.checked_sub(1)?)?;
    let part = (at - from) as f64 / (to - from) as f64;
    Some(less as f64 + part * (more - less) as f64)
}

impl Measured {
    fn sent(&self) -> Vec<(u64, u64)> {
        let of = |point: &Point| (point.at_ns, point.bytes);
        self.seen.points.iter().map(of).collect()
    }

    /// Bytes a second that were read and sent, second by second, once all watched.
    fn rates(&self) -> Option<[Vec<f64>; 2]> {
        let steady = self.seen.steady()?;
        let span = (steady.from_ns, steady.to_ns);
        Some([self.read.clone(), self.sent()].map(|counts| each_second(&counts, span.0, span.1)))
    }
}

const fn shown(limited: bool) -> &'static str {
    if limited { "limit 10 MB/s" } else { "no limit" }
}

fn report(samples: &[Sample<Measured>]) -> Section {
    let mut section = Section::default();
    section.text(format!(
        "`bonsai serve` with {VIEWERS} viewers, without a limit and under limits of 10 MB/s on what it reads and on \
         what it sends; MB/s from a second after all have come. Of what it sends, 1 % are headers that it does not read."
    ));
    let mut table = Table::new(&[
        "",
        "",
        "mean",
        "least second",
        "most second",
        "lag, s",
        "lost",
        "the paper",
        "doubt",
    ]);
    for sample in samples {
        let Measured { limited, seen, .. } = &sample.data;
        let doubt = together([
            seen.failures(),
            seen.own_fault(),
            sample.conditions.doubt_but_gaps(),
        ]);
        let what = shown(*limited);
        let Some(rates) = sample.data.rates() else {
            let why = "there was no time in which all watched".to_owned();
            let why = together([seen.failures(), Some(why)]).unwrap_or_default();
            section.promise(what, "a rate", "none", Verdict::Doubtful(why));
            continue;
        };
        for (name, rates) in ["read", "sent"].into_iter().zip(&rates) {
            let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
            let most = rates.iter().copied().fold(0.0, f64::max);
            table.row(vec![
                what.to_owned(),
                name.to_owned(),
                format!("{:.3}", bonsai_stats::mean(rates).unwrap_or(0.0) / 1e6),
                format!("{:.3}", least / 1e6),
                format!("{:.3}", most / 1e6),
                format!("{:.2}", seen.lag_s()),
                seen.lost().to_string(),
                if *limited { "10.0" } else { "12.5" }.to_owned(),
                doubt.clone().unwrap_or_default(),
            ]);
            if *limited {
                // It has more to send all the time; of what it reads, the same without headers.
                let is_sent = name == "sent";
                let holds = most <= LIMIT * (1.0 + MOST_OFF)
                    && (!is_sent || least >= LIMIT * (1.0 - MOST_OFF));
                let worst = if is_sent && LIMIT - least > most - LIMIT {
                    least
                } else {
                    most
                };
                section.promise(
                    format!("{what}, {name}: each second"),
                    if is_sent {
                        "10 MB/s within 1 %"
                    } else {
                        "at most 10 MB/s, within 1 %"
                    },
                    format!(
                        "{:.3} MB/s ({})",
                        worst / 1e6,
                        percent(worst / LIMIT - 1.0, 2)
                    ),
                    Verdict::of(holds, doubt.as_ref()),
                );
            }
        }
        if !limited {
            section.promise(
                "no limit: full rate for all viewers",
                "pace 0.99, none lost",
                format!("pace {:.3}, {} lost", seen.pace(), seen.lost()),
                Verdict::of(seen.is_at_full_rate(), doubt.as_ref()),
            );
        }
    }
    section.table(table);
    section
}

fn write(path: &Path, samples: &[Sample<Measured>]) -> anyhow::Result<()> {
    let panels: Vec<Panel> = samples.iter().map(|sample| panel(&sample.data)).collect();
    chart::write(path, &panels, 1, (900, 320))
}

fn panel(data: &Measured) -> Panel {
    let begin = data.read.first().map_or(0, |(at, _)| *at);
    let end = data.read.last().map_or(SECOND, |(at, _)| *at);
    let length = end.saturating_sub(begin) as f64 / 1e9;
    let stairs = |counts: &[(u64, u64)]| -> Vec<(f64, f64)> {
        // The client counts twice a second.
        let halves: Vec<(u64, f64)> = (0..)
            .map(|i| begin + i * SECOND / 2)
            .take_while(|at| *at <= end)
            .filter_map(|at| Some((at, count_at(counts, at)?)))
            .collect();
        let steps = halves.windows(2).flat_map(|pair| {
            let at = |ns: u64| (ns - begin) as f64 / 1e9;
            let rate = (pair[1].1 - pair[0].1) * 2.0 / 1e6;
            [(at(pair[0].0), rate), (at(pair[1].0), rate)]
        });
        steps.collect()
    };
    let line = |name: &str, colour, style, points| Line {
        name: name.to_owned(),
        colour,
        style,
        points,
    };
    let level = |rate: f64| vec![(0.0, rate / 1e6), (length, rate / 1e6)];
    let offered = data.seen.full_rate().unwrap_or(0.0) * f64::from(VIEWERS);
    let mut lines = vec![
        line("read", COLOURS[1], Style::Line, stairs(&data.read)),
        line("sent", COLOURS[0], Style::Line, stairs(&data.sent())),
        line(
            "asked for",
            crate::plot::GREY,
            Style::Dashed,
            level(offered),
        ),
    ];
    if data.limited {
        lines.push(line(
            "limit 10 MB/s",
            LIMIT_COLOUR,
            Style::Dashed,
            level(LIMIT),
        ));
    }
    Panel {
        title: format!(
            "({}) {}",
            if data.limited { "b" } else { "a" },
            shown(data.limited)
        ),
        x: ("time, s", 0.0..length.max(1.0)),
        y: ("MB/s", 0.0..16.0),
        lines,
        words: Vec::new(),
        legend: Some(SeriesLabelPosition::LowerRight),
    }
}

#[cfg(test)]
mod tests {
    use super::super::audience::Viewer;
    use super::super::audience::tests::{points, track};
    use super::*;
    use crate::load::Conditions;

    fn sample(limited: bool, rate: u64, lag_s: f64) -> Sample<Measured> {
        let viewer = Viewer {
            failure: None,
            tracks: vec![track("video", lag_s)],
        };
        let seen = Seen {
            viewers: vec![viewer; usize::try_from(VIEWERS).expect("few")],
            points: points(VIEWERS, rate, 8),
            ..Seen::default()
        };
        let read = (0..80).map(|i| (i * SECOND / 10, i * rate / 10)).collect();
        Sample {
            conditions: Conditions::default(),
            data: Measured {
                limited,
                read,
                seen,
            },
        }
    }

    #[test]
    fn counts_become_rates_between_looks() {
        let counts: Vec<(u64, u64)> = (0..10).map(|i| (i * 300_000_000, i * 3_000_000)).collect();
        let rates = each_second(&counts, 150_000_000, 2_500_000_000);
        assert_eq!(rates.len(), 2);
        assert!(
            rates.iter().all(|rate| (rate - 1e7).abs() < 1.0),
            "{rates:?}"
        );
        assert_eq!(count_at(&counts, 9 * SECOND), None);
        assert!(each_second(&[], 0, SECOND).is_empty());
    }

    #[test]
    fn each_second_is_held_against_the_limit() {
        let verdicts = |sample| {
            let section = report(&[sample]);
            section
                .promises()
                .iter()
                .map(|p| p.verdict.clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            verdicts(sample(true, 10_000_000, 2.0)),
            [Verdict::Kept, Verdict::Kept]
        );
        assert_eq!(
            verdicts(sample(true, 10_200_000, 2.0)),
            [Verdict::Broken, Verdict::Broken]
        );
        // What is read is without headers.
        assert_eq!(
            verdicts(sample(true, 9_800_000, 2.0)),
            [Verdict::Kept, Verdict::Broken]
        );
        assert_eq!(verdicts(sample(false, 12_500_000, 0.0)), [Verdict::Kept]);
        assert_eq!(verdicts(sample(false, 9_000_000, 2.0)), [Verdict::Broken]);
    }

    #[test]
    fn what_a_process_reads_is_counted() {
        let own = std::process::id();
        let before = bytes_read(own);
        let text = std::fs::read("/proc/self/status").expect("read").len() as u64;
        assert!(bytes_read(own) >= before + text);
    }

    #[test]
    fn the_figure_has_both_panels() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("fig12.svg");
        let samples = [
            sample(false, 12_500_000, 0.0),
            sample(true, 10_000_000, 2.0),
        ];
        write(&path, &samples).expect("a plot");
        let text = std::fs::read_to_string(path).expect("read");
        assert!(
            text.contains("(a) no limit") && text.contains("(b) limit 10 MB/s"),
            "{text}"
        );
    }
}
