//! The tables of 002, and what follows.

use super::super::audience::{Seen, Track};
use super::super::{latest_ms, together};
use super::stress::Stress;
use super::{Base, Case, Measured, Scenario};
use crate::record::Sample;
use crate::report::{Section, Table, Verdict};

/// What a gap may be for top quality, ms.
const MOST_GAP_MS: f64 = 400.0;

/// A row of the paper's tables: of pictures, then of sound: loss in %, mean and largest jitter, mean of the
/// viewers' largest delays and the largest, ms; deviations where it has them.
pub(super) type Theirs = [[&'static str; 5]; 2];

/// What the paper has, of all viewers.
pub(super) const fn theirs(scenario: Scenario, stress: Stress) -> Option<Theirs> {
    Some(match (scenario, stress) {
        (Scenario::Same, Stress::None) => [
            ["0", "0.23 ± 0.39", "1.95", "68 ± 17", "129"],
            ["0", "0.21 ± 0.29", "1.51", "60 ± 20", "131"],
        ],
        (Scenario::Same, Stress::Fileserver) => [
            ["0", "0.13 ± 0.09", "0.58", "89 ± 45", "289"],
            ["0", "0.15 ± 0.17", "0.99", "80 ± 45", "279"],
        ],
        (Scenario::Same, Stress::Webserver) => [
            ["0", "0.18 ± 0.32", "2.05", "82 ± 43", "225"],
            ["0", "0.21 ± 0.26", "1.20", "73 ± 45", "212"],
        ],
        (Scenario::Same, Stress::TcpSend) => [
            ["0.45", "7.16", "7.68", "94", "181"],
            ["0.09", "7.41", "8.95", "88", "192"],
        ],
        (Scenario::Same, Stress::TcpReceive) => [
            ["0", "0.10", "0.54", "69", "96"],
            ["0", "0.13", "0.77", "53", "79"],
        ],
        (Scenario::Same, Stress::UdpSend) => [
            ["60", "1.09", "5.41", "127", "226"],
            ["26", "0.76", "2.47", "186", "302"],
        ],
        (Scenario::Same, Stress::UdpReceive) => [
            ["0", "0.18", "0.64", "142", "291"],
            ["0", "0.33", "2.72", "140", "304"],
        ],
        // Of the second scenario it has plots, and says what is in them.
        (Scenario::Own, Stress::None) => {
            [["0", "< 1", "", "100 to 200", ""], ["0", "", "", "", ""]]
        }
        (Scenario::Own, Stress::Fileserver) => [
            ["0", "< 3", "", "2000 to 3000", "4000 to 6000"],
            ["0", "", "", "", ""],
        ],
        (Scenario::Own, Stress::Webserver) => [
            ["0", "< 3", "", "", "10000 to 20000"],
            ["0", "", "", "", ""],
        ],
        (Scenario::Own, Stress::TcpSend) => [["0", "6 to 7", "", "", ""], ["0", "", "", "", ""]],
        (Scenario::Own, Stress::UdpSend) => [
            ["25 to 50", "low", "", "high", ""],
            ["10 to 30", "", "", "", ""],
        ],
        (Scenario::Own, Stress::TcpReceive | Stress::UdpReceive) => {
            [["0", "low", "", "", ""], ["0", "", "", "", ""]]
        }
    })
}

/// Of a kind of tracks of all viewers and rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Stats {
    /// Of all packets, percent.
    pub(super) loss: f64,
    /// Mean, standard deviation over viewers and the largest, ms.
    pub(super) jitter: [f64; 3],
    /// Of the longest gap of each viewer, ms: mean, deviation, the longest.
    pub(super) delay: [f64; 3],
}

impl Stats {
    pub(super) fn of(seen: &[&Seen], kind: &str) -> Option<Self> {
        let tracks = seen
            .iter()
            .flat_map(|seen| seen.tracks())
            .filter(|track| track.kind == kind);
        let tracks: Vec<&Track> = tracks.collect();
        let over = |value: &dyn Fn(&Track) -> f64| -> Vec<f64> {
            tracks.iter().map(|track| value(track)).collect()
        };
        let sum = |value: &dyn Fn(&Track) -> u64| {
            tracks.iter().map(|track| value(track)).sum::<u64>() as f64
        };
        let spread = |values: &[f64], most: f64| {
            Some([bonsai_stats::mean(values)?, deviation(values), most])
        };
        let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
        let jitters = over(&|track| track.jitter_mean_ns / 1e6);
        let delays = over(&|track| track.gap_max_ns as f64 / 1e6);
        Some(Self {
            loss: sum(&|track| track.lost) * 100.0 / sum(&|track| track.expected).max(1.0),
            jitter: spread(&jitters, most(&over(&|track| track.jitter_max_ns / 1e6)))?,
            delay: spread(&delays, most(&delays))?,
        })
    }

    fn cells(&self) -> [String; 5] {
        let ([jitter, jitters, jitter_most], [delay, delays, delay_most]) =
            (self.jitter, self.delay);
        [
            format!("{:.3}", self.loss),
            format!("{jitter:.2} ± {jitters:.2}"),
            format!("{jitter_most:.2}"),
            format!("{delay:.0} ± {delays:.0}"),
            format!("{delay_most:.0}"),
        ]
    }
}

/// The standard deviation of a sample, 0 of one value.
fn deviation(values: &[f64]) -> f64 {
    let mean = bonsai_stats::mean(values).unwrap_or(0.0);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / (values.len().max(2) - 1) as f64).sqrt()
}

/// The measurements of a case.
pub(super) fn of_case(samples: &[Sample<Measured>], case: Case) -> Vec<&Sample<Measured>> {
    samples
        .iter()
        .filter(|sample| sample.data.case == case)
        .collect()
}

const HEAD: [&str; 12] = [
    "beside",
    "",
    "video lost, %",
    "jitter",
    "most",
    "delay",
    "most",
    "audio lost, %",
    "jitter",
    "most",
    "delay",
    "most",
];

pub(super) fn report(samples: &[Sample<Measured>], base: Option<&Base>) -> Section {
    let mut section = Section::default();
    section.text(
        "A media server and something beside it share a processor, a disk and a link of 100 Mbit/s; viewers of 2 Mbit/s \
         are outside. *Without*: nothing but the kernel. *With*: `bonsai link set` guarantees the media server what its viewers take, \
         `bonsai run --cpu` gives it a large weight, and `bonsai run --limit` holds who reads and writes files to 20 MB/s. \
         As in the paper: *jitter* (RFC 3550, the first packet of each picture) as the mean over viewers and the largest ever, ms; *delay*, the longest time \
         between two packets, as the mean over viewers and the longest, ms. The paper's server had 12 viewers of 3.2 Mbit/s, or 15 of their own videos.",
    );
    if let Some(base) = base {
        section.text(searched(base));
    }
    let mut kinds = Vec::new();
    for sample in samples {
        if !kinds.contains(&sample.data.case.kind) {
            kinds.push(sample.data.case.kind);
        }
    }
    for kind in kinds {
        for scenario in [Scenario::Same, Scenario::Own] {
            let parts: &[(&str, &[Stress])] = match scenario {
                Scenario::Same => &[
                    ("Table 1, beside nothing", &Stress::ALL[..1]),
                    ("Table 2, disk", &Stress::ALL[1..3]),
                    ("Table 3, network", &Stress::ALL[3..]),
                ],
                Scenario::Own => &[("", &Stress::ALL)],
            };
            for (title, stresses) in parts {
                let mut table = Table::new(&HEAD);
                let mut count = 0;
                for stress in *stresses {
                    for with in [false, true] {
                        let case = Case {
                            kind,
                            scenario,
                            stress: *stress,
                            with,
                        };
                        count += rows(&mut table, samples, case);
                    }
                }
                if count > 0 {
                    let title = [scenario.name(), title].map(str::to_owned);
                    let title: Vec<String> =
                        title.into_iter().filter(|part| !part.is_empty()).collect();
                    section.text(format!("{} ({}).", title.join(": "), kind.name()));
                    section.table(table);
                }
            }
        }
    }
    quality(&mut section, samples);
    section
}

/// Adds what the paper has and what was measured; how many measurements there were.
fn rows(table: &mut Table, samples: &[Sample<Measured>], case: Case) -> usize {
    let found = of_case(samples, case);
    if found.is_empty() {
        return 0;
    }
    if let Some(theirs) = theirs(case.scenario, case.stress).filter(|_| !case.with) {
        let mut row = vec![case.stress.name().to_owned(), "the paper".to_owned()];
        row.extend(theirs.concat().into_iter().map(str::to_owned));
        table.row(row);
    }
    let seen: Vec<&Seen> = found.iter().map(|sample| &sample.data.seen).collect();
    let mut row = vec![case.stress.name().to_owned(), arm(case).to_owned()];
    for kind in ["video", "audio"] {
        match Stats::of(&seen, kind) {
            Some(stats) => row.extend(stats.cells()),
            None => row.extend(std::iter::repeat_n("-".to_owned(), 5)),
        }
    }
    table.row(row);
    found.len()
}

const fn arm(case: Case) -> &'static str {
    match (case.stress, case.with) {
        (Stress::None, _) => "alone",
        (_, false) => "without",
        (_, true) => "with",
    }
}

fn searched(base: &Base) -> String {
    let tries = base.tries.iter();
    let tries: Vec<String> = tries
        .map(|(viewers, good, _)| format!("{viewers}: {good}"))
        .collect();
    let found = match (base.found, base.too_many) {
        (None, _) => "not even the fewest had top quality".to_owned(),
        (Some((viewers, times)), None) => format!("{viewers}, {times} times; more were not tried"),
        (Some((viewers, times)), Some(many)) => {
            format!("{viewers}, {times} times; {many} are too many")
        }
    };
    format!(
        "The largest number of viewers that all have top quality beside nothing: {found}. Viewers that were tried, and \
         those of them with top quality: {}.",
        tries.join(", ")
    )
}

/// Who has top quality, beside what, and what that costs others.
fn quality(section: &mut Section, samples: &[Sample<Measured>]) {
    section.text(
        "Viewers of top quality by the paper's four criteria (loss at most 0.1 %, gaps below 400 ms, jitter at most 50 ms, \
         no reordering), and by two more that see slow motion (at most 1 s behind the media clock, at least 0.99 of its pace).",
    );
    let mut table = Table::new(&[
        "server",
        "",
        "beside",
        "",
        "by four",
        "by six",
        "of",
        "short of",
        "lag, s",
        "pace",
        "stress, MB/s",
        "doubt",
    ]);
    let mut cases: Vec<Case> = Vec::new();
    for sample in samples {
        if !cases.contains(&sample.data.case) {
            cases.push(sample.data.case);
        }
    }
    cases.sort_by_key(|case| {
        (
            case.kind.name(),
            case.scenario == Scenario::Own,
            case.stress,
            case.with,
        )
    });
    for case in cases {
        let found = of_case(samples, case);
        let doubt = found.iter().find_map(|sample| doubt(sample, samples));
        let seen = || found.iter().map(|sample| &sample.data.seen);
        let (mut all, mut paper, mut honest) = (0, 0, 0);
        for quality in seen().map(Seen::quality) {
            (all, paper, honest) = (
                all + quality.all,
                paper + quality.paper,
                honest + quality.honest,
            );
        }
        let short: Vec<String> = seen()
            .map(Seen::short_of)
            .filter(|short| !short.is_empty())
            .collect();
        let rates: Vec<f64> = found
            .iter()
            .filter_map(|sample| sample.data.stress_rate)
            .collect();
        table.row(vec![
            case.kind.name().to_owned(),
            if case.scenario == Scenario::Same {
                "1"
            } else {
                "2"
            }
            .to_owned(),
            case.stress.name().to_owned(),
            arm(case).to_owned(),
            paper.to_string(),
            honest.to_string(),
            all.to_string(),
            together([seen().find_map(Seen::failures), short.first().cloned()]).unwrap_or_default(),
            format!("{:.2}", seen().map(Seen::lag_s).fold(0.0, f64::max)),
            format!(
                "{:.3}",
                seen().map(Seen::pace).fold(f64::INFINITY, f64::min)
            ),
            bonsai_stats::mean(&rates).map_or(String::new(), |rate| format!("{:.2}", rate / 1e6)),
            doubt.clone().unwrap_or_default(),
        ]);
        if !case.with && case.stress != Stress::None {
            continue;
        }
        section.promise(
            format!(
                "{}, {}, beside {}, {}: top quality",
                case.kind.name(),
                case.scenario.name(),
                case.stress.name(),
                arm(case)
            ),
            "all viewers, by all six",
            format!("{honest} of {all}"),
            Verdict::of(honest == all && all > 0, doubt.as_ref()),
        );
    }
    section.table(table);
}

/// Why what viewers saw may be neither the server's nor the stress's doing.
fn doubt(sample: &Sample<Measured>, samples: &[Sample<Measured>]) -> Option<String> {
    let case = sample.data.case;
    let alone = Case {
        stress: Stress::None,
        with: false,
        ..case
    };
    let was_bad = |base: &&Sample<Measured>| {
        let quality = base.data.seen.quality();
        quality.honest < quality.all
    };
    let base = of_case(samples, alone).into_iter().find(was_bad);
    let base = base.filter(|_| case.stress != Stress::None);
    let late = latest_ms(&sample.conditions);
    together([
        sample.data.seen.own_fault(),
        base.map(|_| "not all had top quality beside nothing".to_owned()),
        (late >= MOST_GAP_MS).then(|| format!("the control thread was {late:.0} ms late")),
        sample.conditions.doubt_but_gaps(),
    ])
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::super::audience::Viewer;
    use super::super::super::audience::tests::track;
    use super::super::super::server::Kind;
    use super::*;
    use crate::load::Conditions;

    /// Ten viewers, of whom some lose a tenth of their packets.
    pub(in crate::benches::media::vod) fn sample(
        stress: Stress,
        with: bool,
        losers: usize,
    ) -> Sample<Measured> {
        let viewer = |number: usize| {
            let mut track = track("video", 0.0);
            (track.gap_max_ns, track.jitter_mean_ns, track.jitter_max_ns) = (100_000_000, 1e6, 5e6);
            if number < losers {
                track.lost = track.expected / 10;
                track.gap_max_ns *= 3;
                track.paper = false;
                track.broken = vec!["loss".to_owned()];
            }
            Viewer {
                failure: None,
                tracks: vec![track],
            }
        };
        let seen = Seen {
            viewers: (0..10).map(viewer).collect(),
            ..Seen::default()
        };
        Sample {
            conditions: Conditions::default(),
            data: Measured {
                case: Case {
                    kind: Kind::Classic,
                    scenario: Scenario::Same,
                    stress,
                    with,
                },
                round: 0,
                viewers: 10,
                seen,
                stress_rate: Some(1e7),
                served: None,
            },
        }
    }

    #[test]
    fn what_the_paper_has_stands_above_what_was_measured() {
        let all = [
            sample(Stress::None, false, 0),
            sample(Stress::UdpSend, false, 5),
            sample(Stress::UdpSend, true, 0),
        ];
        let section = report(&all, None);
        let text = section.markdown();
        for row in [
            "| nothing | the paper | 0 | 0.23 ± 0.39 | 1.95 | 68 ± 17 | 129 |",
            "| nothing | alone | 0.000 | 1.00 ± 0.00 | 5.00 | 100 ± 0 | 100 | - |",
            "| UDP send | the paper | 60 | 1.09 | 5.41 | 127 | 226 |",
            "| UDP send | without | 5.000 | 1.00 ± 0.00 | 5.00 | 200 ± 105 | 300 |",
            "| UDP send | with | 0.000 |",
            "| UDP send | without | 5 | 5 | 10 | loss 5 | 0.00 | 1.000 | 10.00 |",
        ] {
            assert!(text.contains(row), "{row}: {text}");
        }
        assert!(
            !text.contains("Table 2"),
            "nothing of it was measured: {text}"
        );
        let verdicts: Vec<&Verdict> = section.promises().iter().map(|p| &p.verdict).collect();
        assert_eq!(
            verdicts,
            [&Verdict::Kept, &Verdict::Kept],
            "without Bonsai nothing is promised"
        );
    }

    #[test]
    fn a_promise_is_broken_unless_the_viewers_were_short_of_something_alone() {
        let verdict = |alone: usize, with: usize| {
            let all = [
                sample(Stress::None, false, alone),
                sample(Stress::UdpSend, true, with),
            ];
            report(&all, None).promises()[1].verdict.clone()
        };
        assert_eq!(verdict(0, 0), Verdict::Kept);
        assert_eq!(verdict(0, 1), Verdict::Broken);
        assert!(matches!(verdict(1, 1), Verdict::Doubtful(_)));
    }

    #[test]
    fn the_search_is_told() {
        let base = Base {
            tries: vec![(36, 36, String::new()), (60, 0, "loss 60".to_owned())],
            found: Some((44, 3)),
            too_many: Some(45),
        };
        let text = report(&[], Some(&base)).markdown();
        assert!(
            text.contains("44, 3 times; 45 are too many") && text.contains("36: 36, 60: 0"),
            "{text}"
        );
    }
}
