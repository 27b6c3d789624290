//! A rate at the uplink, from 10 Mbit/s to 5 Gbit/s, for connections and datagrams that want more: the
//! mean, and the worst second.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::super::Benchmark;
use super::counted::Counted;
use super::stage::{Part, Stage, one_queue, pass, shapers, stop, too_much};
use super::{both, mbit, shown};
use crate::context::{Context, Effort};
use crate::load::Moment;
use crate::net::shaper::{Make, is_ours};
use crate::net::traffic::{Listen, Outcome, Protocol, SendSpec};
use crate::record::{Record, Sample};
use crate::report::{Section, Table, Verdict};
use crate::service::monotonic_ns;
use crate::study::percent;

/// The benchmark "link-accuracy".
#[derive(Debug)]
pub(crate) struct Accuracy;

/// The mean is off by so much at most.
const MOST_OFF: f64 = 0.001;
/// So much at 10 Mbit/s and below: 64 KiB that are handed down at once are 0.5 % of ten seconds there.
const MOST_OFF_SLOW: f64 = 0.003;
const SLOW: u64 = mbit(10);
/// A second of datagrams, and of one connection.
const MOST_SECOND_UDP: f64 = 0.005;
const MOST_SECOND_TCP: f64 = 0.035;
/// Where less was measured, nothing is said of the promises, s.
const LEAST_SECONDS: f64 = 9.0;
const SETTLING: Duration = Duration::from_secs(1);
const S: u64 = 1_000_000_000;

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Measured {
    shaper: String,
    /// Bytes of layer 2 a second.
    rate: u64,
    traffic: String,
    protocol: Protocol,
    flows: u16,
    /// The class's counter, after settling.
    counted: Counted,
    outcome: Outcome,
}

fn rates(effort: Effort) -> &'static [u64] {
    match effort {
        Effort::Quick => &[10, 100, 1_000],
        Effort::Normal => &[10, 100, 1_000, 5_000],
        Effort::Full => &[10, 20, 30, 50, 100, 300, 500, 1_000, 2_000, 5_000],
    }
}

fn traffics(effort: Effort, rate: u64, length: Duration) -> Vec<(String, SendSpec)> {
    let tcp = |flows, congestion: &str| {
        let name = format!("TCP {congestion} x {flows}");
        (name, SendSpec::tcp(flows, congestion, length))
    };
    let udp = |flows: u16| {
        let mut spec = too_much(rate, length);
        spec.flows = flows;
        (format!("UDP x {flows}"), spec)
    };
    if effort == Effort::Quick {
        return vec![udp(1), tcp(1, "cubic"), tcp(16, "bbr")];
    }
    vec![
        udp(1),
        udp(16),
        tcp(1, "cubic"),
        tcp(16, "cubic"),
        tcp(1, "bbr"),
        tcp(16, "bbr"),
    ]
}

impl Benchmark for Accuracy {
    fn name(&self) -> &'static str {
        "link-accuracy"
    }

    fn about(&self) -> &'static str {
        "a rate at an interface: mean and worst second, 10 Mbit/s to 5 Gbit/s"
    }

    fn run(&self, context: &mut Context) -> anyhow::Result<()> {
        let length = Duration::from_secs(context.effort.of(2, 10, 10));
        for make in shapers(context)? {
            for rate in rates(context.effort) {
                for (traffic, spec) in traffics(context.effort, mbit(*rate), length + SETTLING * 2)
                {
                    let what = format!("{}, {rate} Mbit/s, {traffic}", make().name());
                    if context.is_wanted(&what) {
                        context.progress(&what);
                        measure(context, make, (mbit(*rate), length), (traffic, spec))?;
                    }
                }
            }
        }
        Ok(())
    }

    fn report(&self, record: &Record) -> Section {
        report(&record.samples(self.name()))
    }
}

fn measure(
    context: &mut Context,
    make: Make,
    (rate, length): (u64, Duration),
    (traffic, spec): (String, SendSpec),
) -> anyhow::Result<()> {
    let stage = match Stage::new(make, 1, one_queue(rate)) {
        Ok(stage) => stage,
        Err(error) => return context.skip(traffic, format!("{error:#}")),
    };
    let before = Moment::now();
    let parts: [Part; 1] = [(0, spec.clone())];
    let running = stage.start(&parts, Listen::default())?;
    pass(context, SETTLING)?;
    let end = monotonic_ns() + u64::try_from(length.as_nanos())?;
    let counted = stage.watch(context, end, Duration::from_millis(100))?;
    let outcome = stop(running)?.pop().unwrap_or_default();
    let measured = Measured {
        shaper: stage.shaper.name().to_owned(),
        rate,
        traffic,
        protocol: spec.protocol,
        flows: spec.flows,
        counted,
        outcome: outcome.brief(10),
    };
    context.sample(before.until_now(), &measured)
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Judged {
    /// Bytes a second of layer 2.
    mean: f64,
    /// The second furthest from the rate.
    worst: f64,
    /// Bytes a second of payload, at the receiver.
    payload: f64,
    /// CPU time of both ends, s for each Gbit.
    cpu: f64,
    /// Whether it was measured for long enough.
    is_long: bool,
}

fn judge(measured: &Measured) -> Option<Judged> {
    let rate = measured.rate as f64;
    let (sent, received) = (&measured.outcome.sent, &measured.outcome.received);
    let total = received.total();
    // Whatever shapes without counting is judged by what came.
    let (from, to) = match (measured.counted.0.first(), measured.counted.0.last()) {
        (Some((from, _)), Some((to, _))) => (*from, *to),
        _ => (sent.from_ns + S, sent.to_ns),
    };
    let came = received.series.rate(from, to);
    let mean = measured.counted.mean().unwrap_or(came);
    let worst = measured.counted.worst(S, rate);
    let worst = worst.or_else(|| received.series.worst_window((from, to), S, rate))?;
    let gbit = total.layer2 as f64 * 8.0 / 1e9;
    Some(Judged {
        mean,
        worst,
        payload: came * total.payload as f64 / total.layer2.max(1) as f64,
        cpu: (sent.cpu_s + received.cpu_s) / gbit.max(1e-9),
        is_long: to.saturating_sub(from) as f64 / 1e9 >= LEAST_SECONDS,
    })
}

fn report(samples: &[Sample<Measured>]) -> Section {
    let mut section = Section::default();
    section.text(
        "Mbit/s of layer 2 as the class counts them, from the second second on; payload as the receiver gets it. \
         Datagrams come at 1.2 times the rate. Promises are judged where ten seconds were measured.",
    );
    let mut table = Table::new(&[
        "shaper",
        "rate",
        "traffic",
        "mean",
        "off",
        "worst 1 s",
        "payload",
        "again",
        "CPU s/Gbit",
        "doubt",
    ]);
    for sample in samples {
        let measured = &sample.data;
        let Some(judged) = judge(measured) else {
            continue;
        };
        let rate = measured.rate as f64;
        let sender = (measured.protocol == Protocol::Udp)
            .then(|| measured.outcome.sent.achieved())
            .flatten()
            .filter(|part| *part < 0.9)
            .map(|part| {
                format!(
                    "the sender brought {:.0} % of 1.2 times the rate",
                    part * 100.0
                )
            });
        let doubt = both(sample.conditions.doubt(), sender);
        let (off, second) = (judged.mean / rate - 1.0, judged.worst / rate - 1.0);
        table.row(vec![
            measured.shaper.clone(),
            shown(rate),
            measured.traffic.clone(),
            shown(judged.mean),
            percent(off, 3),
            percent(second, 2),
            shown(judged.payload),
            if measured.protocol == Protocol::Tcp {
                measured.outcome.sent.retransmitted().to_string()
            } else {
                String::new()
            },
            format!("{:.3}", judged.cpu),
            doubt.clone().unwrap_or_default(),
        ]);
        if !judged.is_long || !is_ours(&measured.shaper) {
            continue;
        }
        let what = format!(
            "{}, {} Mbit/s, {}",
            measured.shaper,
            shown(rate),
            measured.traffic
        );
        let most = if measured.rate <= SLOW {
            MOST_OFF_SLOW
        } else {
            MOST_OFF
        };
        section.promise(
            format!("{what}: the mean"),
            format!("within {:.1} %", most * 100.0),
            percent(off, 3),
            Verdict::of(off.abs() <= most, doubt.as_ref()),
        );
        let most = match (measured.protocol, measured.flows) {
            (Protocol::Udp, _) => Some(MOST_SECOND_UDP),
            (Protocol::Tcp, 1) => Some(MOST_SECOND_TCP),
            (Protocol::Tcp, _) => None,
        };
        if let Some(most) = most {
            section.promise(
                format!("{what}: the worst second"),
                format!("within {:.1} %", most * 100.0),
                percent(second, 2),
                Verdict::of(second.abs() <= most, doubt.as_ref()),
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

    /// Ten seconds of a counter that grows by so much each tenth of a second, and in one of them not.
    fn measured(rate: u64, tenth: u64, pause: Option<usize>) -> Measured {
        let mut bytes = 0;
        let readings = (0..=100_usize).map(|i| {
            let now = (i as u64 * S / 10, bytes);
            bytes += if pause == Some(i) { 0 } else { tenth };
            now
        });
        Measured {
            shaper: crate::net::shaper::OURS.to_owned(),
            rate,
            traffic: "UDP x 1".to_owned(),
            protocol: Protocol::Udp,
            flows: 1,
            counted: Counted(readings.collect()),
            outcome: Outcome::default(),
        }
    }

    #[test]
    fn a_rate_is_kept_or_broken_by_its_counter() {
        let verdicts = |measured: Measured| -> Vec<bool> {
            let sample = Sample {
                conditions: Conditions::default(),
                data: measured,
            };
            let section = report(&[sample]);
            let promises = section.promises().iter();
            promises.map(|p| p.verdict == Verdict::Kept).collect()
        };
        // Rate, bytes each tenth of a second, a pause; mean, worst second.
        let table = [
            (mbit(100), 1_250_000, None, [true, true]),
            (mbit(100), 1_251_000, None, [true, true]),
            (mbit(100), 1_252_500, None, [false, true]),
            (mbit(10), 125_300, None, [true, true]),
            (mbit(10), 125_500, None, [false, true]),
            (mbit(100), 1_250_000, Some(50), [false, false]),
        ];
        for (rate, tenth, pause, expected) in table {
            let found = verdicts(measured(rate, tenth, pause));
            assert_eq!(found, expected, "{rate} {tenth} {pause:?}");
        }
        let mut short = measured(mbit(100), 1, None);
        short.counted.0.truncate(20);
        assert!(verdicts(short).is_empty());
    }
}
