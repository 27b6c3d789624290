//! What the record says of viewers under limits.

use std::path::Path;

use plotters::prelude::SeriesLabelPosition;

use super::super::audience::Seen;
use super::super::chart::{self, COLOURS, LIMIT, Line, PAPER, Panel, Style};
use super::super::clip::PICTURES;
use super::super::server::Kind;
use super::super::{kbit, latest_ms, together};
use super::{Cell, LIMITS, Measured};
use crate::record::Sample;
use crate::report::{Section, Table, Verdict};
use crate::study::percent;

/// So far from the limit's part at most.
const MOST_OFF: f64 = 0.01;
/// Less than this between two packets, ms.
const MOST_GAP_MS: f64 = 100.0;
/// A server that shares evenly what it may send sends a picture that often, ms; where that is nearer to what
/// is promised, it is the limit that makes the gaps.
const MOST_EVEN_MS: f64 = 85.0;
/// Nearer to its limit than that, it is neither above nor below.
const NEAR: f64 = 0.02;
/// What the paper's viewers get under 10 MB/s, kbit/s.
const THEIRS: [(u32, f64); 4] = [(40, 1_986.0), (50, 1_600.0), (70, 1_140.0), (100, 800.0)];

/// Where a server is: below its limit, at it, or between.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Side {
    Below,
    Near,
    AtLimit,
}

/// What follows for one server.
#[derive(Clone, Copy, Debug)]
struct Judged {
    side: Side,
    /// Bytes of RTP a second of each viewer: got, of a server that holds nothing back, and the limit's part.
    got: f64,
    full: f64,
    part: f64,
}

impl Judged {
    fn of(cell: Cell, seen: &Seen) -> Option<Self> {
        let viewers = f64::from(cell.viewers);
        let part = cell.limit as f64 / viewers;
        let full = seen.full_rate()?;
        let side = match full / part {
            over if over > 1.0 + NEAR => Side::AtLimit,
            over if over < 1.0 - NEAR => Side::Below,
            _ => Side::Near,
        };
        let got = seen.steady()?.rate / viewers;
        Some(Self {
            side,
            got,
            full,
            part,
        })
    }

    fn expected(&self) -> f64 {
        self.part.min(self.full)
    }

    fn off(&self) -> f64 {
        self.got / self.expected() - 1.0
    }

    /// Between two pictures of a server that shares evenly, ms.
    fn even_ms(&self) -> f64 {
        1e3 / f64::from(PICTURES) * self.full / self.expected()
    }
}

fn theirs(cell: Cell) -> Option<f64> {
    let found = THEIRS.iter().find(|(viewers, _)| *viewers == cell.viewers);
    found
        .filter(|_| cell.limit == LIMITS[0])
        .map(|(_, rate)| *rate)
}

pub(super) fn report(samples: &[Sample<Measured>]) -> Section {
    let mut section = Section::default();
    section.text(format!(
        "Two servers at a time (*alone*: one), each under a limit of what it sends, each with so many viewers of a clip of \
         {PICTURES} pictures a second and sound. kbit/s of RTP for each viewer, from a second after all have come: the \
         mean, the share of the limit or the clip's own rate, whichever is less, and the slowest and the fastest viewer \
         of all that they watched. *Gap*: the longest between two packets of a stream; *even*: between two pictures of a server that \
         shares evenly what it may send. *Lag*: behind the media clock. *Top quality*: viewers by the four criteria of 002, \
         and by lag and pace as well.",
    ));
    let mut table = Table::new(&[
        "server",
        "limit",
        "viewers",
        "kbit/s",
        "share",
        "off",
        "viewers from to",
        "gap, ms",
        "even, ms",
        "lag, s",
        "lost",
        "top quality",
        "CPU, %",
        "the paper",
        "doubt",
    ]);
    for sample in samples {
        let doubt = doubt(sample);
        for (number, seen) in sample.data.servers.iter().enumerate() {
            table.row(row(sample, number, seen, doubt.as_ref()));
            promise(&mut section, sample, number, seen, doubt.as_ref());
        }
    }
    section.table(table);
    section
}

/// Why all of it may be something else's.
fn doubt(sample: &Sample<Measured>) -> Option<String> {
    let busy: f64 = sample.data.servers.iter().map(|seen| seen.busiest).sum();
    let all = Seen {
        busiest: busy,
        dropped_here: sample
            .data
            .servers
            .iter()
            .map(|seen| seen.dropped_here)
            .sum(),
        ..Seen::default()
    };
    together([all.own_fault(), sample.conditions.doubt_but_gaps()])
}

fn row(
    sample: &Sample<Measured>,
    number: usize,
    seen: &Seen,
    doubt: Option<&String>,
) -> Vec<String> {
    let cell = sample.data.cell();
    let judged = Judged::of(cell, seen);
    let of = |value: fn(&Judged) -> f64, digits: usize| {
        judged.map_or("-".to_owned(), |judged| {
            format!("{:.digits$}", value(&judged))
        })
    };
    let quality = seen.quality();
    let (least, most) = seen.spread();
    let cpu = sample.data.cpu_ms.get(number).copied().unwrap_or(0) as f64;
    vec![
        cell.name(),
        crate::study::rate(cell.limit),
        cell.viewers.to_string(),
        of(|judged| kbit(judged.got), 1),
        of(|judged| kbit(judged.expected()), 1),
        judged.map_or("-".to_owned(), |judged| percent(judged.off(), 2)),
        format!("{:.0} {:.0}", kbit(least), kbit(most)),
        format!("{:.1}", seen.gap_ms()),
        of(Judged::even_ms, 1),
        format!("{:.2}", seen.lag_s()),
        seen.lost().to_string(),
        format!("{}, {} of {}", quality.paper, quality.honest, quality.all),
        format!("{:.0}", cpu / 10.0 / seen.elapsed_s.max(1e-3)),
        theirs(cell).map_or(String::new(), |rate| format!("{rate:.0}")),
        together([seen.failures(), doubt.cloned()]).unwrap_or_default(),
    ]
}

fn promise(
    section: &mut Section,
    sample: &Sample<Measured>,
    number: usize,
    seen: &Seen,
    doubt: Option<&String>,
) {
    let cell = sample.data.cell();
    // Who leaves pictures out sends what is left of them.
    if cell.kind == Kind::Dropping {
        return;
    }
    let what = format!("{}, server {}", cell.text(), number + 1);
    let failed = seen.failures();
    let Some(judged) = Judged::of(cell, seen) else {
        let why = failed.unwrap_or_else(|| "there was no time in which all watched".to_owned());
        return section.promise(
            format!("{what}: rate"),
            "a rate",
            "none",
            Verdict::Doubtful(why),
        );
    };
    match judged.side {
        Side::Near => {}
        Side::Below => section.promise(
            format!("{what}: full rate below the limit"),
            "pace 0.99, none lost",
            format!("pace {:.3}, {} lost", seen.pace(), seen.lost()),
            Verdict::of(seen.is_at_full_rate(), doubt),
        ),
        Side::AtLimit => section.promise(
            format!("{what}: rate over the limit's share"),
            format!("{:.1} kbit/s within 1 %", kbit(judged.part)),
            percent(judged.off(), 2),
            Verdict::of(judged.off().abs() <= MOST_OFF, doubt),
        ),
    }
    if !cell.kind.is_ours() || judged.side == Side::Below || judged.even_ms() > MOST_EVEN_MS {
        return;
    }
    let gap = seen.gap_ms();
    let late = latest_ms(&sample.conditions);
    // A gap that the machine made as well says nothing.
    let excuse =
        (gap - late < MOST_GAP_MS).then(|| format!("the control thread was {late:.0} ms late"));
    section.promise(
        format!("{what}: longest gap"),
        format!("{MOST_GAP_MS:.0} ms"),
        format!("{gap:.1} ms"),
        Verdict::of(
            gap < MOST_GAP_MS,
            excuse.or_else(|| doubt.cloned()).as_ref(),
        ),
    );
}

/// Kilobits a second of each viewer over viewers: the paper's, what the limits give, and what came.
pub(super) fn write(path: &Path, samples: &[Sample<Measured>]) -> anyhow::Result<()> {
    const MOST_VIEWERS: f64 = 110.0;
    const TOP: f64 = 2_400.0;
    let full = samples
        .iter()
        .flat_map(|sample| &sample.data.servers)
        .find_map(Seen::full_rate);
    let full = kbit(full.unwrap_or(0.0));
    let mut lines = Vec::new();
    for limit in LIMITS {
        let share = |viewers: u32| {
            (
                f64::from(viewers),
                full.min(kbit(limit as f64 / f64::from(viewers))),
            )
        };
        lines.push(Line {
            name: if limit == LIMITS[0] {
                "the limit's share".to_owned()
            } else {
                String::new()
            },
            colour: LIMIT,
            style: Style::Dashed,
            points: (5..110).map(share).collect(),
        });
    }
    let group = |data: &Measured| (data.cell().name(), data.limit);
    let mut groups: Vec<(String, u64)> = Vec::new();
    for sample in samples {
        let group = group(&sample.data);
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    for (number, (name, limit)) in groups.into_iter().enumerate() {
        let of_it = samples.iter().map(|sample| &sample.data);
        let of_it = of_it.filter(|data| group(data) == (name.clone(), limit));
        let mut points: Vec<(f64, f64)> = of_it.filter_map(mean).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        lines.push(Line {
            name: format!("{name}, {}", crate::study::rate(limit)),
            colour: COLOURS[number % COLOURS.len()],
            style: Style::Dots,
            points,
        });
    }
    lines.push(Line {
        name: "the paper, 10 MB/s".to_owned(),
        colour: PAPER,
        style: Style::Crosses,
        points: THEIRS
            .map(|(viewers, rate)| (f64::from(viewers), rate))
            .to_vec(),
    });
    let panel = Panel {
        title: "What each viewer gets of two servers, each under a limit".to_owned(),
        x: ("viewers of each server", 0.0..MOST_VIEWERS),
        y: ("kbit/s of a viewer", 0.0..TOP),
        lines,
        words: Vec::new(),
        legend: Some(SeriesLabelPosition::UpperRight),
    };
    chart::write(path, &[panel], 1, (900, 520))
}

/// Viewers of a server, and kbit/s that one gets, of both servers.
fn mean(data: &Measured) -> Option<(f64, f64)> {
    let rates: Vec<f64> = data
        .servers
        .iter()
        .filter_map(|seen| Some(seen.steady()?.rate / f64::from(data.viewers)))
        .collect();
    Some((f64::from(data.viewers), kbit(bonsai_stats::mean(&rates)?)))
}

#[cfg(test)]
mod tests {
    use super::super::super::audience::Viewer;
    use super::super::super::audience::tests::{points, track};
    use super::*;
    use crate::load::Conditions;

    /// A server whose viewers get so many bytes a second, all together. Each asks for half a million.
    fn sample(viewers: u32, rate: u64, lag_s: f64) -> Sample<Measured> {
        let viewer = Viewer {
            failure: None,
            tracks: vec![track("video", lag_s), track("audio", lag_s)],
        };
        let seen = Seen {
            viewers: vec![viewer; usize::try_from(viewers).expect("few")],
            points: points(viewers, rate, 8),
            elapsed_s: 8.0,
            ..Seen::default()
        };
        Sample {
            conditions: Conditions::default(),
            data: Measured {
                kind: Kind::Classic,
                limit: 10_000_000,
                viewers,
                servers: vec![seen.clone(), seen],
                cpu_ms: vec![800, 800],
            },
        }
    }

    fn verdicts(sample: Sample<Measured>) -> Vec<Verdict> {
        let section = report(&[sample]);
        section
            .promises()
            .iter()
            .map(|p| p.verdict.clone())
            .collect()
    }

    #[test]
    fn above_the_limit_the_share_counts_and_below_it_the_clips_rate() {
        // 40 viewers want 20 MB/s of 10: half the pace, so that a picture comes each 67 ms.
        let share = verdicts(sample(40, 10_000_000, 2.0));
        assert_eq!(share, vec![Verdict::Kept; 4], "both servers: rate and gap");
        let fast = verdicts(sample(40, 10_200_000, 2.0));
        assert_eq!(
            fast,
            [
                Verdict::Broken,
                Verdict::Kept,
                Verdict::Broken,
                Verdict::Kept
            ]
        );
        // Ten want half of it.
        assert_eq!(
            verdicts(sample(10, 5_000_000, 0.0)),
            [Verdict::Kept, Verdict::Kept]
        );
        assert_eq!(
            verdicts(sample(10, 4_000_000, 2.0)),
            [Verdict::Broken, Verdict::Broken]
        );
    }

    #[test]
    fn what_a_client_or_the_machine_did_is_no_servers_fault() {
        let mut busy = sample(40, 9_000_000, 2.0);
        busy.data.servers[0].busiest = 0.5;
        busy.data.servers[1].busiest = 0.5;
        assert!(
            matches!(verdicts(busy)[0], Verdict::Doubtful(_)),
            "one processor for both"
        );
        let mut hole = sample(40, 10_000_000, 2.0);
        hole.data.servers[0].viewers[7].tracks[0].gap_max_ns = 150_000_000;
        assert_eq!(verdicts(hole.clone())[1], Verdict::Broken);
        hole.conditions.gaps = vec![(0, 80_000_000)];
        assert!(matches!(verdicts(hole)[1], Verdict::Doubtful(_)));
        let mut failed = sample(40, 10_000_000, 2.0);
        failed.data.servers[0].points.clear();
        failed.data.servers[0].viewers[3].failure = Some("SETUP: 453".to_owned());
        let Verdict::Doubtful(why) = &verdicts(failed)[0] else {
            panic!("it is not known");
        };
        assert!(why.contains("453"), "{why}");
    }

    #[test]
    fn the_figure_has_the_papers_points() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("fig11.svg");
        write(
            &path,
            &[sample(40, 10_000_000, 2.0), sample(50, 10_000_000, 2.0)],
        )
        .expect("a plot");
        let text = std::fs::read_to_string(path).expect("read");
        assert!(
            text.contains("the paper, 10 MB/s") && text.contains("bonsai serve"),
            "{text}"
        );
    }
}
