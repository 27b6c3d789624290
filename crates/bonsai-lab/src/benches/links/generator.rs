//! The generator itself: what it reaches on a link that nobody shapes, how exact its rates are against
//! the kernel's own counters, and what delays it shows where there are none.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::super::Benchmark;
use super::stage::finish;
use super::{both, in_mbit, mbit, shown};
use crate::child::is_installed;
use crate::context::Context;
use crate::load::Moment;
use crate::net::iperf::{self, Opinion};
use crate::net::rooms::{ENDPOINT, Pair, Wire};
use crate::net::traffic::{Listen, Outcome, Protocol, SendSpec, Traffic};
use crate::record::{Record, Sample};
use crate::report::{Section, Table, Verdict};
use crate::study::percent;

/// The benchmark "link-generator".
#[derive(Debug)]
pub(crate) struct Generator;

/// What is sent differs from the rate asked for by so much at most.
const MOST_OFF: f64 = 0.001;
/// Most bytes of ARP and the like meanwhile.
const OTHER_BYTES: u64 = 1_000;

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Measured {
    what: String,
    spec: SendSpec,
    outcome: Outcome,
    /// What the sender's interface has counted; headers of segments that travel as one only once.
    counted: u64,
    opinion: Option<Opinion>,
}

fn cases(length: Duration) -> Vec<(String, SendSpec)> {
    let mut all = Vec::new();
    for rate in [10, 100, 300] {
        let spec = SendSpec::udp(Some(mbit(rate)), length);
        all.push((format!("UDP {rate} Mbit/s"), spec));
    }
    for rate in [1_000, 5_000] {
        let mut spec = SendSpec::udp(Some(mbit(rate)), length);
        spec.segments = 32;
        all.push((format!("UDP {rate} Mbit/s, 32 at once"), spec));
    }
    all.push(("UDP, all that goes".to_owned(), SendSpec::udp(None, length)));
    let mut whole = SendSpec::udp(None, length);
    whole.segments = 32;
    all.push(("UDP, all that goes, 32 at once".to_owned(), whole));
    for flows in [1, 16] {
        let spec = SendSpec::tcp(flows, "cubic", length);
        all.push((format!("TCP, all that goes, {flows} flows"), spec));
    }
    all
}

impl Benchmark for Generator {
    fn name(&self) -> &'static str {
        "link-generator"
    }

    fn about(&self) -> &'static str {
        "the traffic generator itself, on a link that nobody shapes"
    }

    fn run(&self, context: &mut Context) -> anyhow::Result<()> {
        let pair = match Pair::new(Wire::default()) {
            Ok(pair) => pair,
            Err(error) => return context.skip("all of it", format!("{error:#}")),
        };
        let seconds = context.effort.of(1, 5, 10);
        let has_iperf = is_installed("iperf3");
        if !has_iperf {
            context.skip("what iperf3 says", "iperf3 is not installed")?;
        }
        for (what, spec) in cases(Duration::from_secs(seconds)) {
            if !context.is_wanted(&what) {
                continue;
            }
            context.progress(&what);
            let before = Moment::now();
            let counted = pair.client.counters(ENDPOINT)?.tx_bytes;
            let traffic = Traffic::start(&pair.client, pair.server(), &spec, Listen::default())?;
            let outcome = finish(context, vec![traffic])?.pop().unwrap_or_default();
            let counted = pair.client.counters(ENDPOINT)?.tx_bytes - counted;
            let conditions = before.until_now();
            let opinion = (has_iperf && spec.protocol == Protocol::Tcp)
                .then(|| {
                    let ask = iperf::Ask {
                        flows: spec.flows,
                        congestion: "cubic",
                        seconds,
                    };
                    iperf::run(&pair.client, pair.server(), ask)
                })
                .transpose()?;
            let measured = Measured {
                what,
                spec,
                outcome: outcome.brief(10),
                counted,
                opinion,
            };
            context.sample(conditions, &measured)?;
        }
        Ok(())
    }

    fn report(&self, record: &Record) -> Section {
        report(&record.samples(self.name()))
    }
}

/// What follows from one of them.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Judged {
    /// Bytes of layer 2 a second that came.
    rate: f64,
    /// Packets a second.
    packets: f64,
    /// Against what was asked for.
    off: Option<f64>,
    /// What the kernel counted against what the sender says; `None` where it cannot be compared.
    counted_off: Option<f64>,
}

fn judge(measured: &Measured) -> Judged {
    let Measured {
        spec,
        outcome,
        counted,
        ..
    } = measured;
    let sent = &outcome.sent;
    let total = outcome.received.total();
    let seconds = (sent.to_ns.saturating_sub(sent.from_ns)).max(1) as f64 / 1e9;
    let comparable = spec.protocol == Protocol::Udp && spec.segments == 1;
    let beyond = counted.saturating_sub(sent.layer2);
    let counted_off = if beyond <= OTHER_BYTES && *counted >= sent.layer2 {
        0.0
    } else {
        *counted as f64 / sent.layer2.max(1) as f64 - 1.0
    };
    Judged {
        rate: total.layer2 as f64 / seconds,
        packets: total.packets as f64 / seconds,
        off: sent.achieved().map(|part| part - 1.0),
        counted_off: comparable.then_some(counted_off),
    }
}

fn report(samples: &[Sample<Measured>]) -> Section {
    let mut section = Section::default();
    section.text(
        "Between two namespaces, over a veth with an MTU of 1500; datagrams of 1400 bytes. Mbit/s of layer 2; \
         delays from the call that sends to the kernel's time stamp of the arrival.",
    );
    let mut table = Table::new(&[
        "traffic",
        "Mbit/s",
        "packets/s",
        "off the rate",
        "kernel counted",
        "lost",
        "p50 / p99 / most, ms",
        "CPU s, sender / receiver",
        "iperf3, payload",
        "doubt",
    ]);
    for sample in samples {
        let Measured {
            what,
            outcome,
            opinion,
            ..
        } = &sample.data;
        let judged = judge(&sample.data);
        let (sent, received) = (&outcome.sent, &outcome.received);
        let doubt = both(sample.conditions.doubt(), outcome.doubt());
        let is_udp = sent.connections.is_empty();
        let delays = &received.delays;
        let text = |off: Option<f64>| off.map_or(String::new(), |off| percent(off, 3));
        table.row(vec![
            what.clone(),
            shown(judged.rate),
            if is_udp {
                format!("{:.0}", judged.packets)
            } else {
                String::new()
            },
            text(judged.off),
            text(judged.counted_off),
            if is_udp {
                outcome.lost().to_string()
            } else {
                format!("{} again", sent.retransmitted())
            },
            if is_udp {
                let [p50, p99, most] = [50.0, 99.0, 100.0].map(|p| delays.ms(p));
                format!("{p50:.3} / {p99:.3} / {most:.3}")
            } else {
                String::new()
            },
            format!("{:.2} / {:.2}", sent.cpu_s, received.cpu_s),
            opinion.map_or(String::new(), |o| format!("{:.0}", in_mbit(o.payload))),
            doubt.clone().unwrap_or_default(),
        ]);
        for (part, off) in [
            ("what was sent, of the rate", judged.off),
            ("what the kernel counted, of that", judged.counted_off),
        ] {
            let Some(off) = off else { continue };
            section.promise(
                format!("{what}: {part}"),
                "within 0.1 %",
                percent(off, 3),
                Verdict::of(off.abs() <= MOST_OFF, doubt.as_ref()),
            );
        }
    }
    section.table(table);
    section
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::meter::Counts;
    use crate::net::traffic::{Received, Sent};

    fn measured(layer2: u64, counted: u64) -> Measured {
        let counts = Counts {
            packets: 1_000,
            layer2,
            ..Counts::default()
        };
        Measured {
            what: "UDP".to_owned(),
            spec: SendSpec::udp(Some(1_000_000), Duration::from_secs(1)),
            outcome: Outcome {
                sent: Sent {
                    layer2,
                    to_ns: 1_000_000_000,
                    desired: Some(1_000_000.0),
                    ..Sent::new(1)
                },
                received: Received {
                    flows: vec![counts],
                    ..Received::default()
                },
            },
            counted,
            opinion: None,
        }
    }

    #[test]
    fn the_generator_is_held_against_the_rate_and_the_kernel() {
        // Layer 2, counted; off the rate, off the count.
        let table = [
            (1_000_000, 1_000_084, 0.0, 0.0),
            (999_000, 999_000, -0.001, 0.0),
            (1_000_000, 990_000, 0.0, -0.01),
            (1_000_000, 1_010_000, 0.0, 0.01),
        ];
        for (layer2, counted, off, counted_off) in table {
            let judged = judge(&measured(layer2, counted));
            let near = |found: Option<f64>, value: f64| (found.unwrap_or(9.0) - value).abs() < 1e-9;
            assert!(near(judged.off, off), "{judged:?}");
            assert!(near(judged.counted_off, counted_off), "{judged:?}");
        }
    }
}
