//! The figures of 002: what viewers lose, how long they wait and how that varies, beside everything; without
//! Bonsai on the left and with it on the right, on the same scales.

use std::path::Path;

use plotters::prelude::SeriesLabelPosition;

use super::super::audience::Seen;
use super::super::chart::{self, COLOURS, LIMIT, Line, PAPER, Panel, Style};
use super::super::server::Kind;
use super::stress::Stress;
use super::tables::{Stats, of_case, theirs};
use super::{Case, Measured, Scenario};
use crate::record::Sample;

/// What a panel shows.
#[derive(Clone, Copy)]
struct Show {
    name: &'static str,
    /// The threshold of top quality.
    most: f64,
    mean: fn(&Stats) -> f64,
    worst: Option<fn(&Stats) -> f64>,
    /// Which of the paper's columns.
    column: usize,
}

const SHOWN: [Show; 3] = [
    Show {
        name: "pictures lost, %",
        most: 0.1,
        mean: |stats| stats.loss,
        worst: None,
        column: 0,
    },
    Show {
        name: "longest gap, ms",
        most: 400.0,
        mean: |stats| stats.delay[0],
        worst: Some(|stats| stats.delay[2]),
        column: 4,
    },
    Show {
        name: "jitter, ms",
        most: 50.0,
        mean: |stats| stats.jitter[0],
        worst: Some(|stats| stats.jitter[2]),
        column: 2,
    },
];

pub(super) fn write(path: &Path, samples: &[Sample<Measured>]) -> anyhow::Result<()> {
    let mut panels = Vec::new();
    let kind = samples
        .first()
        .map_or(Kind::Classic, |sample| sample.data.case.kind);
    for scenario in [Scenario::Same, Scenario::Own] {
        let is_of_it = |sample: &Sample<Measured>| {
            (sample.data.case.kind, sample.data.case.scenario) == (kind, scenario)
        };
        if !samples.iter().any(is_of_it) {
            continue;
        }
        for show in SHOWN {
            let arms = [false, true].map(|with| values(samples, kind, scenario, show, with));
            // Both on one scale, or the right one would look like the left one.
            let values = arms
                .iter()
                .flatten()
                .flat_map(|value| [Some(value.mean), value.worst, value.theirs]);
            let top = values.flatten().fold(show.most, f64::max) * 1.3;
            for (with, values) in [false, true].into_iter().zip(&arms) {
                panels.push(panel(scenario, show, with, values, top));
            }
        }
    }
    chart::write(path, &panels, 2, (620, 230))
}

/// Of one stress.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Value {
    stress: Stress,
    mean: f64,
    worst: Option<f64>,
    theirs: Option<f64>,
}

fn values(
    samples: &[Sample<Measured>],
    kind: Kind,
    scenario: Scenario,
    show: Show,
    with: bool,
) -> Vec<Value> {
    let of = |stress: Stress| {
        // Beside nothing there is but one measurement.
        let case = Case {
            kind,
            scenario,
            stress,
            with: with && stress != Stress::None,
        };
        let found = of_case(samples, case);
        let seen: Vec<&Seen> = found.iter().map(|sample| &sample.data.seen).collect();
        let stats = Stats::of(&seen, "video")?;
        let theirs = theirs(scenario, stress).filter(|_| !with);
        Some(Value {
            stress,
            mean: (show.mean)(&stats),
            worst: show.worst.map(|worst| worst(&stats)),
            theirs: theirs.and_then(|theirs| theirs[0][show.column].parse().ok()),
        })
    };
    Stress::ALL.into_iter().filter_map(of).collect()
}

fn panel(scenario: Scenario, show: Show, with: bool, values: &[Value], top: f64) -> Panel {
    let at = |stress: Stress| Stress::ALL.iter().position(|of| *of == stress).unwrap_or(0) as f64;
    let end = Stress::ALL.len() as f64 - 0.4;
    let bars = |value: fn(&Value) -> Option<f64>, beside: f64| -> Vec<(f64, f64)> {
        values
            .iter()
            .filter_map(|of| Some((at(of.stress) + beside, value(of)?)))
            .collect()
    };
    let line = |name: &str, colour, style, points| Line {
        name: name.to_owned(),
        colour,
        style,
        points,
    };
    let is_pair = show.worst.is_some();
    let mut lines = vec![line(
        if is_pair { "mean of viewers" } else { "of all" },
        COLOURS[0],
        Style::Bars,
        bars(
            |of| Some(of.mean),
            if is_pair { -chart::HALF_BAR } else { 0.0 },
        ),
    )];
    if is_pair {
        lines.push(line(
            "worst",
            COLOURS[1],
            Style::Bars,
            bars(|of| of.worst, chart::HALF_BAR),
        ));
    }
    let paper = bars(|of| of.theirs, 0.0);
    if !paper.is_empty() {
        lines.push(line("the paper", PAPER, Style::Crosses, paper));
    }
    lines.push(line(
        "top quality",
        LIMIT,
        Style::Dashed,
        vec![(-0.6, show.most), (end, show.most)],
    ));
    let words = values.iter().map(|of| {
        (
            at(of.stress) - 0.35,
            top * 0.97,
            of.stress.name().to_owned(),
        )
    });
    let with = if with {
        "with Bonsai"
    } else {
        "without Bonsai"
    };
    Panel {
        title: format!("{}: {}, {with}", scenario.name(), show.name),
        x: ("", -0.6..end + 2.2),
        y: (show.name, 0.0..top),
        lines,
        words: words.collect(),
        legend: Some(SeriesLabelPosition::MiddleRight),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tables::tests::sample;
    use super::*;

    #[test]
    fn both_sides_have_one_scale_and_the_paper_is_on_the_left() {
        let samples = [
            sample(Stress::None, false, 0),
            sample(Stress::UdpSend, false, 5),
            sample(Stress::UdpSend, true, 0),
        ];
        let of = |with| values(&samples, Kind::Classic, Scenario::Same, SHOWN[0], with);
        let left = of(false);
        assert_eq!(left.len(), 2);
        assert_eq!((left[1].mean, left[1].theirs), (5.0, Some(60.0)));
        let right = of(true);
        assert_eq!(
            (right[0].stress, right[1].mean, right[1].theirs),
            (Stress::None, 0.0, None)
        );
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("vod.svg");
        write(&path, &samples).expect("a plot");
        let text = std::fs::read_to_string(path).expect("read");
        for word in ["without Bonsai", "with Bonsai", "UDP send", "the paper"] {
            assert!(text.contains(word), "{word}");
        }
    }
}
