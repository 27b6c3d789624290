//! How soon `bonsai daemon` reacts, and what its control costs, where services share in the pool
//! and where each has a plain limit.
//!
//! # What is promised
//! 1. A guaranteed service that was idle and returns has its full rate within a period and 5 ms.
//! 2. What one that falls silent leaves is in use within two periods.
//! 3. Less than 0.1 % of the capacity is lost while allocations change, as in the experiment of
//!    the paper "Guaranteeing QoS of media-based applications in virtualized environment" (0.277 %
//!    there): four greedy services, three of them under ceilings that are changed three times.
//! 4. In the pool, the same while demand comes and goes. A plain limit follows it only once it
//!    was seen, so there the loss is shown and not promised.

mod runs;

use serde::{Deserialize, Serialize};

use self::runs::{alternating, reallocated};
use super::Benchmark;
use crate::context::Context;
use crate::load::{Control, Moment, doubt_of};
use crate::record::{Record, Sample};
use crate::report::{Section, Table, Verdict};
use crate::study::median_or_zero;

/// The benchmark "reaction".
#[derive(Debug)]
pub(crate) struct Reaction;

/// What there is, bytes/s: 100 Mbit/s.
const CAPACITY: u64 = 12_500_000;
/// What the service that comes and goes is guaranteed.
const GUARANTEE: u64 = 10_000_000;
const PERIOD_MS: f64 = 100.0;
const MOST_RETURN_MS: f64 = PERIOD_MS + 5.0;
const MOST_LENT_MS: f64 = 2.0 * PERIOD_MS;
const MOST_LOST: f64 = 0.001;

/// How shares are put into force.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Way {
    Pool,
    Limits,
}

const WAYS: [Way; 2] = [Way::Pool, Way::Limits];

impl Way {
    const fn name(self) -> &'static str {
        match self {
            Self::Pool => "the pool",
            Self::Limits => "plain limits",
        }
    }
}

/// One run.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(tag = "what", rename_all = "snake_case")]
enum Measured {
    /// A guaranteed service comes and goes beside a greedy one.
    Alternating {
        way: Way,
        /// By return: how long until it has its guarantee, and how far it is behind that at
        /// most, ns.
        return_ns: Vec<u64>,
        behind_ns: Vec<u64>,
        /// By going: how long until the other has everything, ns.
        lent_ns: Vec<u64>,
        run: Run,
    },
    /// Greedy services whose ceilings are changed.
    Reallocated { way: Way, run: Run },
}

/// What all got together.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Run {
    /// Bytes/s.
    together: f64,
    /// Of each service, in windows of 20 ms.
    got: Vec<Vec<u64>>,
}

impl Measured {
    const fn way(&self) -> Way {
        match self {
            Self::Alternating { way, .. } | Self::Reallocated { way, .. } => *way,
        }
    }

    /// The part of the capacity that nobody got; below zero, where somebody got more.
    fn lost(&self) -> f64 {
        let (Self::Alternating { run, .. } | Self::Reallocated { run, .. }) = self;
        1.0 - run.together / CAPACITY as f64
    }
}

impl Benchmark for Reaction {
    fn name(&self) -> &'static str {
        "reaction"
    }

    fn about(&self) -> &'static str {
        "how soon the daemon reacts, and what its control costs"
    }

    fn run(&self, context: &mut Context) -> anyhow::Result<()> {
        let rounds = context.effort.of(1, 3, 5);
        let seconds = context.effort.of(8, 12, 12);
        for _ in 0..rounds {
            let mut turns: Vec<(Way, bool)> = WAYS
                .into_iter()
                .flat_map(|way| [(way, true), (way, false)])
                .collect();
            context.shuffle(&mut turns);
            for (way, alternates) in turns {
                let what = if alternates {
                    "demand comes and goes"
                } else {
                    "ceilings are changed"
                };
                let what = format!("{}, {what}", way.name());
                if !context.is_wanted(&what) {
                    continue;
                }
                context.progress(&what);
                let before = Moment::now();
                let control = Control::start();
                let measured = if alternates {
                    alternating(context, way, seconds)?
                } else {
                    reallocated(context, way, seconds)?
                };
                let mut conditions = before.until_now();
                conditions.gaps = control.finish();
                context.sample(conditions, &measured)?;
            }
        }
        Ok(())
    }

    fn report(&self, record: &Record) -> Section {
        report(&record.samples(self.name()))
    }
}

/// The value that 99 % do not exceed.
fn p99(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (sorted.len() * 99).div_ceil(100).saturating_sub(1);
    sorted.get(at).copied().unwrap_or(f64::NAN)
}

fn ms(all: &[u64]) -> Vec<f64> {
    all.iter().map(|ns| *ns as f64 / 1e6).collect()
}

fn report(samples: &[Sample<Measured>]) -> Section {
    let mut section = Section::default();
    section.text(format!(
        "Services that write calls of 1448 bytes; capacity {:.1} MB/s, period {PERIOD_MS} ms. One comes and goes that \
         is guaranteed {:.1} MB/s, beside a greedy one: a rate is there where a window of 20 ms begins that has nine \
         tenths of it. Or four are greedy, and the ceilings of three (10, 20 and 30 %) change round three times. Lost is \
         what is missing to the capacity, of all together.",
        CAPACITY as f64 / 1e6,
        GUARANTEE as f64 / 1e6
    ));
    let doubt = doubt_of(samples.iter().map(|sample| &sample.conditions));
    let mut times = Table::new(&["enforced by", "what", "n", "median", "p99", "most", "doubt"]);
    let mut losses = Table::new(&["enforced by", "what", "n", "lost", "least", "most", "paper"]);
    for way in WAYS {
        let mine: Vec<&Measured> = samples.iter().map(|sample| &sample.data).collect();
        let mine: Vec<&Measured> = mine.into_iter().filter(|m| m.way() == way).collect();
        let of = |value: fn(&Measured) -> &[u64]| -> Vec<f64> {
            mine.iter().flat_map(|m| ms(value(m))).collect()
        };
        reactions(
            (&mut section, &mut times),
            way,
            [of(returns), of(behind), of(lent)],
            doubt.as_ref(),
        );
        for (alternates, what, paper) in [
            (true, "demand comes and goes", ""),
            (false, "ceilings are changed", "0.277 %"),
        ] {
            let of_kind = |m: &&&Measured| matches!(m, Measured::Alternating { .. }) == alternates;
            let lost: Vec<f64> = mine.iter().filter(of_kind).map(|m| m.lost()).collect();
            if lost.is_empty() {
                continue;
            }
            let shown = |part: f64| format!("{:.3} %", part * 100.0);
            let middle = median_or_zero(&lost);
            losses.row(vec![
                way.name().to_owned(),
                what.to_owned(),
                lost.len().to_string(),
                shown(middle),
                shown(lost.iter().copied().fold(f64::INFINITY, f64::min)),
                shown(lost.iter().copied().fold(f64::NEG_INFINITY, f64::max)),
                paper.to_owned(),
            ]);
            if way == Way::Pool || !alternates {
                section.promise(
                    format!("{}, {what}: lost", way.name()),
                    shown(MOST_LOST),
                    shown(middle),
                    Verdict::of(middle < MOST_LOST, doubt.as_ref()),
                );
            }
        }
    }
    section.table(times);
    section.table(losses);
    section
}

fn returns(measured: &Measured) -> &[u64] {
    match measured {
        Measured::Alternating { return_ns, .. } => return_ns,
        Measured::Reallocated { .. } => &[],
    }
}

fn behind(measured: &Measured) -> &[u64] {
    match measured {
        Measured::Alternating { behind_ns, .. } => behind_ns,
        Measured::Reallocated { .. } => &[],
    }
}

fn lent(measured: &Measured) -> &[u64] {
    match measured {
        Measured::Alternating { lent_ns, .. } => lent_ns,
        Measured::Reallocated { .. } => &[],
    }
}

fn reactions(
    (section, table): (&mut Section, &mut Table),
    way: Way,
    values: [Vec<f64>; 3],
    doubt: Option<&String>,
) {
    let kinds = [
        (
            "one that returns has its guarantee after",
            Some(MOST_RETURN_MS),
        ),
        ("one that returns is behind its guarantee by", None),
        (
            "one has gone: the other has everything after",
            Some(MOST_LENT_MS),
        ),
    ];
    for ((what, most), values) in kinds.into_iter().zip(values) {
        if values.is_empty() {
            continue;
        }
        let shown = |value: f64| format!("{value:.2} ms");
        let high = p99(&values);
        table.row(vec![
            way.name().to_owned(),
            what.to_owned(),
            values.len().to_string(),
            shown(median_or_zero(&values)),
            shown(high),
            shown(values.iter().copied().fold(0.0, f64::max)),
            doubt.cloned().unwrap_or_default(),
        ]);
        if let Some(most) = most {
            section.promise(
                format!("{}: {what}", way.name()),
                format!("{most:.0} ms (p99)"),
                shown(high),
                Verdict::of(high <= most, doubt),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Conditions;

    fn sample(data: Measured) -> Sample<Measured> {
        Sample {
            conditions: Conditions::default(),
            data,
        }
    }

    fn alternating(way: Way, return_ms: u64, lent_ms: u64, part: f64) -> Sample<Measured> {
        sample(Measured::Alternating {
            way,
            return_ns: vec![return_ms * 1_000_000; 20],
            behind_ns: vec![0; 20],
            lent_ns: vec![lent_ms * 1_000_000; 20],
            run: run(part),
        })
    }

    fn run(part: f64) -> Run {
        Run {
            together: CAPACITY as f64 * part,
            got: Vec::new(),
        }
    }

    fn kept(samples: &[Sample<Measured>]) -> Vec<bool> {
        let section = report(samples);
        let all = section.promises().iter();
        all.map(|promise| promise.verdict == Verdict::Kept)
            .collect()
    }

    #[test]
    fn reactions_are_held_against_periods() {
        assert_eq!(kept(&[alternating(Way::Pool, 0, 5, 0.9995)]), [true; 3]);
        assert_eq!(kept(&[alternating(Way::Pool, 106, 201, 0.998)]), [false; 3]);
        // What plain limits lose while they do not know yet is shown only.
        assert_eq!(kept(&[alternating(Way::Limits, 104, 199, 0.9)]), [true; 2]);
    }

    #[test]
    fn ceilings_that_change_lose_nothing() {
        let of = |way, part| {
            sample(Measured::Reallocated {
                way,
                run: run(part),
            })
        };
        assert_eq!(
            kept(&[of(Way::Pool, 0.9995), of(Way::Limits, 0.997)]),
            [true, false]
        );
    }
}
