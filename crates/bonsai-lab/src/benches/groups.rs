//! Groups: how exactly weights are kept, how soon a member has its guarantee back, how
//! soon what one leaves is used, and what a call under a group costs that does not bind.

use std::fs;
use std::time::Duration;

use bonsai_ledger::Part;
use serde::{Deserialize, Serialize};

use super::Benchmark;
use super::exactness::flow::{Flow, Operation, run_flow};
use super::notes::{self, Notes, at, lag, pauses, until_full};
use crate::child::Running;
use crate::context::Context;
use crate::load::{Moment, doubt_of};
use crate::record::{Record, Sample};
use crate::report::{Section, Table, Verdict};
use crate::service::{Doors, group};
use crate::study::estimate;

/// The benchmark "groups".
#[derive(Debug)]
pub(crate) struct Groups;

/// What the group has, bytes/s: 100 Mbit/s.
const RATE: u64 = 12_500_000;

/// The bytes of a call: a packet.
const SIZE: &str = "1448";

const S: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;

/// A member comes back, or goes, this often, for so long: ms.
const ON_MS: u64 = 60;
const OFF_MS: u64 = 90;

/// How long a return, or what is left, is looked at: ns.
const LOOK: u64 = 30 * MS;

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(tag = "what", rename_all = "snake_case")]
enum Measured {
    /// Two greedy members: what each got in windows of 1 s.
    Weights {
        weights: [u64; 2],
        got: Vec<[u64; 2]>,
    },
    /// How far a returning member is behind its guarantee at most, ns, by return.
    Returns { lag_ns: Vec<u64> },
    /// When one goes: how long until the other one's rate in a millisecond is the whole one,
    /// and how far it is behind that at most, ns.
    Leaves {
        weights: [u64; 2],
        full_ns: Vec<u64>,
        lag_ns: Vec<u64>,
    },
    /// CPU time of a call, ns: bare, under a limit and under a group that do not bind.
    Cost { bare: f64, limit: f64, group: f64 },
}

impl Benchmark for Groups {
    fn name(&self) -> &'static str {
        "groups"
    }

    fn about(&self) -> &'static str {
        "weights, guarantees and borrowing of services in a group"
    }

    fn run(&self, context: &mut Context) -> anyhow::Result<()> {
        let repetitions = context.effort.of(1, 3, 7);
        let ms = context.effort.of(2_300, 3_300, 10_300);
        for _ in 0..repetitions {
            for weights in [[1, 3], [1, 1], [1, 10]] {
                let what = format!("weights {} and {}", weights[0], weights[1]);
                sampled(context, &what, |c| weights_of(c, weights, ms))?;
            }
            sampled(context, "returns", |c| returns(c, ms))?;
            for weights in [[9, 1], [1, 9]] {
                let what = format!("leaves {} and {}", weights[0], weights[1]);
                sampled(context, &what, |c| leaves(c, weights, ms))?;
            }
            sampled(context, "cost", cost)?;
        }
        Ok(())
    }

    fn report(&self, record: &Record) -> Section {
        report(&record.samples(self.name()), record.run.seed)
    }
}

fn sampled(
    context: &mut Context,
    what: &str,
    measure: impl FnOnce(&mut Context) -> anyhow::Result<Measured>,
) -> anyhow::Result<()> {
    if !context.is_wanted(what) {
        return Ok(());
    }
    context.progress(what);
    let before = Moment::now();
    let measured = measure(context)?;
    context.sample(before.until_now(), &measured)
}

/// Two members of one group at a time: what each has noted.
fn pair(
    context: &mut Context,
    parts: [Part; 2],
    args: [&[String]; 2],
    ms: u64,
) -> anyhow::Result<[Notes; 2]> {
    let (folder, group) = group(RATE)?;
    let mut running = Vec::new();
    // Each lives as long as its program.
    let mut services = Vec::new();
    for (i, (part, args)) in parts.into_iter().zip(args).enumerate() {
        let service = context.service::<&str>(Doors::Both, &[])?;
        service.join(&group, part)?;
        let path = folder.path().join(format!("notes-{i}"));
        fs::write(&path, "")?;
        let mut command = context.program("member")?;
        command.arg(&path).arg(SIZE).arg(ms.to_string()).args(args);
        service.enter(&mut command);
        running.push((Running::start_silent(&mut command)?, path));
        services.push(service);
    }
    let mut seen = Vec::new();
    for (program, path) in running {
        program.wait_for(Duration::from_millis(ms + 20_000))?;
        seen.push(notes::read(&path)?);
    }
    let unshaped: u64 = services
        .iter()
        .map(super::super::service::Service::unshaped)
        .sum();
    anyhow::ensure!(
        unshaped == 0,
        "{unshaped} calls went through without a decision"
    );
    let [a, b] = <[Notes; 2]>::try_from(seen).map_err(|_| anyhow::anyhow!("two members"))?;
    Ok([a, b])
}

const fn plain(weight: u64) -> Part {
    Part {
        weight,
        ..Part::PLAIN
    }
}

fn weights_of(context: &mut Context, weights: [u64; 2], ms: u64) -> anyhow::Result<Measured> {
    let [a, b] = pair(context, weights.map(plain), [&[], &[]], ms)?;
    let ends =
        |end: fn(&Notes) -> Option<&(u64, u64)>| [end(&a), end(&b)].map(|e| e.map_or(0, |e| e.0));
    let from = ends(|notes| notes.first()).into_iter().max().unwrap_or(0) + 100 * MS;
    let to = ends(|notes| notes.last()).into_iter().min().unwrap_or(0);
    let windows = (0..to.saturating_sub(from) / S).map(|i| from + i * S);
    let got = windows.map(|from| [&a, &b].map(|notes| at(notes, from + S) - at(notes, from)));
    Ok(Measured::Weights {
        weights,
        got: got.collect(),
    })
}

fn comes_and_goes() -> Vec<String> {
    vec![ON_MS.to_string(), OFF_MS.to_string()]
}

fn returns(context: &mut Context, ms: u64) -> anyhow::Result<Measured> {
    let rate = RATE / 4;
    let mine = Part {
        guarantee_milli: rate * 1000,
        ..Part::PLAIN
    };
    let [a, _] = pair(context, [mine, plain(100)], [&comes_and_goes(), &[]], ms)?;
    let pauses = pauses(&a, OFF_MS).into_iter();
    let lags = pauses.map(|(_, back)| lag(&a, back, rate, LOOK));
    Ok(Measured::Returns {
        lag_ns: lags.collect(),
    })
}

fn leaves(context: &mut Context, weights: [u64; 2], ms: u64) -> anyhow::Result<Measured> {
    let [a, b] = pair(context, weights.map(plain), [&comes_and_goes(), &[]], ms)?;
    let gone: Vec<u64> = pauses(&a, OFF_MS)
        .into_iter()
        .map(|(gone, _)| gone)
        .collect();
    Ok(Measured::Leaves {
        weights,
        full_ns: gone
            .iter()
            .map(|gone| until_full(&b, *gone, RATE, (MS, LOOK)))
            .collect(),
        lag_ns: gone.iter().map(|gone| lag(&b, *gone, RATE, LOOK)).collect(),
    })
}

fn cost(context: &mut Context) -> anyhow::Result<Measured> {
    let flow = Flow {
        operation: Operation::Write,
        size: 1448,
        threads: 1,
        processes: 1,
        warm: Duration::from_millis(50),
        length: Duration::from_millis(context.effort.of(200, 500, 1_000)),
        sample: Duration::ZERO,
    };
    const MUCH: u64 = 100_000_000_000;
    let limited = context.service(Doors::Both, &[format!("write={MUCH}B/s")])?;
    let (_folder, group) = group(MUCH)?;
    let member = context.service::<&str>(Doors::Both, &[])?;
    member.join(&group, Part::PLAIN)?;
    let mut cost = |service| -> anyhow::Result<f64> {
        let answers = run_flow(context, &flow, service)?;
        let calls: u64 = answers.iter().map(|a| a.calls).sum();
        let cpu: u64 = answers.iter().map(|a| a.cpu_ns).sum();
        Ok(cpu as f64 / calls.max(1) as f64)
    };
    Ok(Measured::Cost {
        bare: cost(None)?,
        limit: cost(Some(&limited))?,
        group: cost(Some(&member))?,
    })
}

/// How far the first one's share is from what its weight says, in each window.
fn errors(weights: [u64; 2], got: &[[u64; 2]]) -> Vec<f64> {
    let fair = weights[0] as f64 / (weights[0] + weights[1]) as f64;
    let shares = got.iter().map(|[a, b]| *a as f64 / (*a + *b).max(1) as f64);
    shares.map(|share| (share / fair - 1.0).abs()).collect()
}

/// The value that 99 % do not exceed.
fn p99(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = (values.len() * 99).div_ceil(100).saturating_sub(1);
    values.get(at).copied().unwrap_or(f64::NAN)
}

fn report(samples: &[Sample<Measured>], seed: u64) -> Section {
    let mut section = Section::default();
    section.text(
        "Services in a group of 100 Mbit/s, in calls of 1448 bytes. Weights: the error of the \
         first one's share in windows of 1 s. Returns: how far a member is behind its guarantee, \
         a quarter of the rate, in the 30 ms after a pause. When one goes: how long after its last \
         call a millisecond begins in which the other one has the whole rate, and how far it is \
         behind that at most in the 30 ms after that call.",
    );
    let mut table = Table::new(&["what", "n", "median", "p99", "most", "doubt"]);
    let doubt = doubt_of(samples.iter().map(|s| &s.conditions));
    let mut row =
        |section: &mut Section, what: &str, all: &[Vec<f64>], unit: &str, most_ok: Option<f64>| {
            let mut values = all.concat();
            // The promise is about each repetition.
            let highs: Vec<f64> = all.iter().map(|one| p99(&mut one.clone())).collect();
            let Some(middle) = estimate(&values, seed) else {
                return;
            };
            let shown = |value: f64| format!("{value:.2} {unit}");
            let all_high = p99(&mut values);
            table.row(vec![
                what.to_owned(),
                values.len().to_string(),
                shown(middle.median),
                shown(all_high),
                shown(values.last().copied().unwrap_or(all_high)),
                doubt.clone().unwrap_or_default(),
            ]);
            if let (Some(most), Some(high)) = (most_ok, estimate(&highs, seed)) {
                let verdict = Verdict::at_most(&high, most, doubt.as_ref());
                section.promise(
                    what,
                    format!("{most} {unit} (p99)"),
                    shown(high.median),
                    verdict,
                );
            }
        };
    let ms = |lags: &[u64]| lags.iter().map(|ns| *ns as f64 / 1e6).collect::<Vec<_>>();
    let of = |which: &dyn Fn(&Measured) -> Option<Vec<f64>>| -> Vec<Vec<f64>> {
        let found = samples.iter().filter_map(|sample| which(&sample.data));
        found.filter(|values| !values.is_empty()).collect()
    };
    let mut pairs: Vec<[u64; 2]> = Vec::new();
    for sample in samples {
        if let Measured::Weights { weights, .. } = &sample.data
            && !pairs.contains(weights)
        {
            pairs.push(*weights);
        }
    }
    for pair in pairs {
        let all = of(&|data| match data {
            Measured::Weights { weights, got } if *weights == pair => Some(
                errors(pair, got)
                    .iter()
                    .map(|error| error * 100.0)
                    .collect(),
            ),
            _ => None,
        });
        let what = format!("weights {} and {}", pair[0], pair[1]);
        row(&mut section, &what, &all, "%", Some(2.0));
    }
    let back = of(&|data| match data {
        Measured::Returns { lag_ns } => Some(ms(lag_ns)),
        _ => None,
    });
    row(
        &mut section,
        "guarantee after a return",
        &back,
        "ms",
        Some(5.0),
    );
    for pair in [[9, 1], [1, 9]] {
        let gone = |look: fn(&Measured) -> &[u64]| {
            of(&|data| match data {
                Measured::Leaves { weights, .. } if *weights == pair => Some(ms(look(data))),
                _ => None,
            })
        };
        let full = gone(|data| match data {
            Measured::Leaves { full_ns, .. } => full_ns,
            _ => &[],
        });
        let lag = gone(|data| match data {
            Measured::Leaves { lag_ns, .. } => lag_ns,
            _ => &[],
        });
        let who = format!(
            "one of weight {} has gone: the other, of {}, ",
            pair[0], pair[1]
        );
        row(
            &mut section,
            &format!("{who}has its rate after"),
            &full,
            "ms",
            None,
        );
        row(
            &mut section,
            &format!("{who}is behind by"),
            &lag,
            "ms",
            None,
        );
    }
    let more = |group: bool| {
        of(&|data| match data {
            Measured::Cost { bare, limit, .. } if !group => Some(vec![limit - bare]),
            Measured::Cost { bare, group, .. } => Some(vec![group - bare]),
            _ => None,
        })
    };
    let what = "a call under a limit that does not bind";
    row(&mut section, what, &more(false), "ns", None);
    let what = "a call under a group that does not bind";
    row(&mut section, what, &more(true), "ns", None);
    section.table(table);
    section
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_of_the_share() {
        let errors = errors([1, 3], &[[25, 75], [26, 74]]);
        assert!(
            errors[0] < 1e-9 && (errors[1] - 0.04).abs() < 1e-9,
            "{errors:?}"
        );
    }
}
