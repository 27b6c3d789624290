//! DNBA's third experiment: a download of 1 GB beside 80 streams of 1 Mbit/s that last a minute, over a
//! link of 100 Mbit/s. The paper's download takes 440 s where the streams' part is fixed, and 147 s where
//! somebody at a console gives it away after the minute.
//!
//! All times and the file are shorter by the same factor: 4, or 20 in a quick run.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::super::Benchmark;
use super::flows::{self, Panel};
use super::stage::{Part, Stage, finish, one_queue, plan, shapers};
use super::{both, mbit};
use crate::context::Context;
use crate::load::Moment;
use crate::net::packet::udp_frame;
use crate::net::shaper::{Limits, Make, Plan, is_ours};
use crate::net::traffic::{Listen, Outcome, SendSpec};
use crate::record::{Record, Sample};
use crate::report::{Section, Table, Verdict};
use crate::service::monotonic_ns;
use crate::study::percent;

/// The benchmark "link-media".
#[derive(Debug)]
pub(crate) struct Media;

const LINK: u64 = mbit(100);
const STREAMS: u16 = 80;
/// Payload of a datagram.
const MESSAGE: u32 = 1_400;
/// What all streams take of layer 2, bytes a second: 1 Mbit/s of payload each.
const OFFERED: u64 = STREAMS as u64 * 125_000 * udp_frame(MESSAGE as u64) / MESSAGE as u64;
/// Their guarantee: a little more than they send.
const GUARANTEE: u64 = mbit(84);
const STREAM_SECONDS: u64 = 60;
const FILE: u64 = 1_000_000_000;
/// Of a TCP frame, what is payload.
const PAYLOAD: f64 = 1_448.0 / 1_514.0;
/// The download takes so much longer than it has to at most.
const MOST_OVER: f64 = 0.01;
/// Of what is drawn, and the end of the download is known by, ms.
const BIN_MS: usize = 20;
/// At smaller scales a connection's first moments are more than that.
const LARGEST_SCALE: u64 = 4;

/// How the link is shared.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Arm {
    /// One queue for all.
    NoLimits,
    /// The streams' part is theirs, whether they use it or not.
    Static,
    /// The streams have a guarantee; what they leave is the download's. Nobody is at a console.
    Guarantee,
}

impl Arm {
    const fn name(self) -> &'static str {
        match self {
            Self::NoLimits => "no limits",
            Self::Static => "static",
            Self::Guarantee => "guarantee",
        }
    }

    /// How long the paper's download takes.
    const fn paper(self) -> &'static str {
        match self {
            Self::NoLimits => "106 s",
            Self::Static => "440 s",
            Self::Guarantee => "147 s, by hand",
        }
    }

    fn plan(self) -> Plan {
        let limits = |guarantee, ceiling| Limits {
            guarantee,
            ceiling,
            weight: 1,
        };
        let rest = LINK - GUARANTEE;
        match self {
            Self::NoLimits => one_queue(LINK),
            Self::Static => plan(LINK, &[limits(GUARANTEE, GUARANTEE), limits(rest, rest)]),
            Self::Guarantee => plan(LINK, &[limits(GUARANTEE, LINK), limits(rest, LINK)]),
        }
    }
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Measured {
    shaper: String,
    arm: Arm,
    /// Times and the file are smaller by so much.
    scale: u64,
    /// The common start, ns.
    start_ns: u64,
    media: Outcome,
    bulk: Outcome,
}

impl Benchmark for Media {
    fn name(&self) -> &'static str {
        "link-media"
    }

    fn about(&self) -> &'static str {
        "1 GB beside 80 streams of 1 Mbit/s: the paper's 440 s and 147 s"
    }

    fn run(&self, context: &mut Context) -> anyhow::Result<()> {
        let scale = context.effort.of(20, 4, 4);
        let arms = context.effort.of(
            &[Arm::NoLimits, Arm::Guarantee][..],
            &[Arm::NoLimits, Arm::Guarantee],
            &[Arm::NoLimits, Arm::Static, Arm::Guarantee],
        );
        for make in shapers(context)? {
            for arm in arms {
                let what = format!("{}, {}", make().name(), arm.name());
                if context.is_wanted(&what) {
                    context.progress(&what);
                    measure(context, make, *arm, scale)?;
                }
            }
        }
        if let Some(figure) = context.figure.clone() {
            let record = Record::read(&context.recorder.path)?;
            flows::write(&figure, &panels(&record.samples(self.name())))?;
            context.progress(&format!("figure: {}", figure.display()));
        }
        Ok(())
    }

    fn report(&self, record: &Record) -> Section {
        report(&record.samples(self.name()))
    }
}

fn measure(context: &mut Context, make: Make, arm: Arm, scale: u64) -> anyhow::Result<()> {
    let stage = match Stage::new(make, 2, arm.plan()) {
        Ok(stage) => stage,
        Err(error) => return context.skip(make().name(), format!("{error:#}")),
    };
    let before = Moment::now();
    let start_ns = monotonic_ns() + 200_000_000;
    let length = Duration::from_millis(STREAM_SECONDS * 1_000 / scale);
    let mut media = SendSpec::udp(Some(OFFERED), length);
    (media.flows, media.message, media.start_ns) = (STREAMS, MESSAGE, Some(start_ns));
    let mut bulk = SendSpec::tcp(1, "cubic", Duration::from_secs(3_000 / scale));
    (bulk.bytes, bulk.start_ns) = (Some(FILE / scale), Some(start_ns));
    let parts: [Part; 2] = [(0, media), (1, bulk)];
    let running = stage.start(&parts, Listen::default())?;
    let mut outcomes = finish(context, running)?.into_iter();
    let measured = Measured {
        shaper: stage.shaper.name().to_owned(),
        arm,
        scale,
        start_ns,
        media: outcomes.next().unwrap_or_default().brief(BIN_MS),
        bulk: outcomes.next().unwrap_or_default().brief(BIN_MS),
    };
    context.sample(before.until_now(), &measured)
}

/// The least time in which a file can be had over a link that streams use for a while, s. Rates are of
/// layer 2, bytes a second.
fn optimum(file: f64, link: f64, media: f64, media_seconds: f64) -> f64 {
    let beside = (link - media) * PAYLOAD;
    if file <= beside * media_seconds {
        return file / beside;
    }
    media_seconds + (file - beside * media_seconds) / (link * PAYLOAD)
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Judged {
    /// The download, in seconds of the paper's scale.
    seconds: f64,
    /// The least that is possible.
    optimum: f64,
    /// Of the streams' datagrams.
    lost: f64,
}

fn judge(measured: &Measured) -> Judged {
    let Measured {
        scale,
        start_ns,
        media,
        bulk,
        ..
    } = measured;
    let scale = *scale as f64;
    let series = &bulk.received.series;
    // The last bytes came in the last bin.
    let end = series.origin_ns + series.bins.len() as u64 * series.bin_ns;
    let seconds = end.saturating_sub(*start_ns) as f64 / 1e9;
    let media_seconds = media.sent.to_ns.saturating_sub(media.sent.from_ns) as f64 / 1e9;
    let offered = media.sent.layer2 as f64 / media_seconds.max(1e-9);
    let file = bulk.sent.payload as f64;
    let sent: u64 = media.sent.flows.iter().sum();
    Judged {
        seconds: seconds * scale,
        optimum: optimum(file, LINK as f64, offered, media_seconds) * scale,
        lost: media.lost() as f64 / sent.max(1) as f64,
    }
}

/// Of the first shaper.
fn panels(samples: &[Sample<Measured>]) -> Vec<Panel<'_>> {
    let all = samples.iter().map(|sample| &sample.data);
    let first = samples.first().map(|sample| &sample.data.shaper);
    let of_it = all.filter(|measured| Some(&measured.shaper) == first);
    let panels = of_it.map(|measured| Panel {
        title: format!(
            "{}: {}, 1/{} of the time; the paper: {}",
            measured.arm.name(),
            measured.shaper,
            measured.scale,
            measured.arm.paper()
        ),
        flows: vec![
            ("streams".to_owned(), &measured.media.received.series),
            ("download".to_owned(), &measured.bulk.received.series),
        ],
        marks: &[],
    });
    panels.collect()
}

fn report(samples: &[Sample<Measured>]) -> Section {
    let mut section = Section::default();
    section.text(format!(
        "A link of 100 Mbit/s; {STREAMS} streams of 1 Mbit/s ({:.1} Mbit/s of layer 2) for {STREAM_SECONDS} s, a \
         download of 1 GB from their start on, TCP cubic. Run with times and file smaller by a factor; times are \
         multiplied by it. The optimum: all that the streams leave, and then all.",
        super::in_mbit(OFFERED as f64)
    ));
    let mut table = Table::new(&[
        "shaper",
        "allocation",
        "scale",
        "download, s",
        "optimum, s",
        "over",
        "media lost",
        "media p50 / p99 / most, ms",
        "the paper",
        "doubt",
    ]);
    for sample in samples {
        let measured = &sample.data;
        let judged = judge(measured);
        let doubt = both(sample.conditions.doubt(), measured.media.doubt());
        let over = judged.seconds / judged.optimum - 1.0;
        let [p50, p99, most] = [50.0, 99.0, 100.0].map(|p| measured.media.received.delays.ms(p));
        table.row(vec![
            measured.shaper.clone(),
            measured.arm.name().to_owned(),
            format!("1/{}", measured.scale),
            format!("{:.1}", judged.seconds),
            format!("{:.1}", judged.optimum),
            percent(over, 2),
            format!("{:.3} %", judged.lost * 100.0),
            format!("{p50:.2} / {p99:.2} / {most:.2}"),
            measured.arm.paper().to_owned(),
            doubt.clone().unwrap_or_default(),
        ]);
        if measured.arm != Arm::Guarantee || !is_ours(&measured.shaper) {
            continue;
        }
        if measured.scale <= LARGEST_SCALE {
            section.promise(
                format!("{}: the download, over the optimum", measured.shaper),
                format!("{:.0} %", MOST_OVER * 100.0),
                percent(over, 2),
                Verdict::of(over <= MOST_OVER, doubt.as_ref()),
            );
        }
        section.promise(
            format!("{}: datagrams of streams that were lost", measured.shaper),
            "0",
            measured.media.lost().to_string(),
            Verdict::of(measured.media.lost() == 0, measured.media.doubt().as_ref()),
        );
    }
    section.table(table);
    section
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_optimum_is_that_of_the_papers_numbers() {
        let of = |file, media_seconds| optimum(file, 12.5e6, mbit(1) as f64 * 82.55, media_seconds);
        // As computed by hand: (8000 - 60 * 17.45 * 0.956) / 95.6 + 60.
        let found = of(1e9, 60.0);
        assert!((found - 133.2).abs() < 0.1, "{found}");
        // A file that is through before the streams are; and none of them at all.
        let short = of(1e6, 60.0);
        assert!(
            (short - 1e6 / (17.45 * 125_000.0 * PAYLOAD)).abs() < 1e-6,
            "{short}"
        );
        let alone = of(1e9, 0.0);
        assert!((alone - 83.6).abs() < 0.1, "{alone}");
        // A quarter of everything is a quarter of the time.
        assert!((of(0.25e9, 15.0) * 4.0 - found).abs() < 1e-6);
        assert!((super::super::in_mbit(OFFERED as f64) - 82.4).abs() < 0.1);
    }
}
