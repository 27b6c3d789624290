//! Fig. 9 and 10 of the paper "Guaranteeing QoS of media-based applications in virtualized
//! environment": a video server with 80 and with 50 streams beside a bulk download, over one link
//! that both together overload; alone, without an allocation, and with a static and a dynamic one
//! of `bonsai daemon`.
//!
//! The link is the loopback of a network namespace, 20 MB/s instead of 100 Mbit/s. Without an
//! allocation it serves both in turn, as the paper's does its two machines. Streams are a
//! hundredth of it each, as there, and the file is as much of what it carries in the time of the
//! streams. All times are shorter by the same factor.

mod plot;
mod turn;

use serde::{Deserialize, Serialize};

use self::turn::{Turn, turn};
use super::Benchmark;
use super::network::Network;
use crate::context::Context;
use crate::load::{Moment, doubt_of};
use crate::record::{Record, Sample};
use crate::report::{Section, Table, Verdict};
use crate::study::{median_or_zero, percent};

/// The benchmark "paper-shares".
#[derive(Debug)]
pub(crate) struct Shares;

/// What the daemon is told that there is, bytes/s: payload.
const CAPACITY: u64 = 20_000_000;
/// What the link takes with all headers, 1514 bytes for 1448 of TCP, and one or two percent beyond
/// that: so queues are where the allocation is, not in the link.
const LINK: u64 = 21_300_000;
const FRAME: u32 = 8_000;
const FRAMES_PER_SECOND: u32 = 25;
/// Bytes/s.
const STREAM: u64 = 200_000;
/// The guarantee is so much above what the streams are said to send, thousandths.
const MARGIN: u64 = 10;
const BIN_NS: u64 = 10_000_000;
/// At the start all come at once, and buckets hold their bursts. Whole frames.
const SETTLING_NS: u64 = 600_000_000;
const END_BINS: usize = 40;

/// The paper's file takes so many times the time of its streams on an idle link.
const FILE_OVER_STREAMS: (u64, u64) = (86, 60);

const MOST_OFF: f64 = 0.005;
const LEAST_LEFT: f64 = 0.98;

/// How the link is shared.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Allocation {
    /// It is not: each has it for itself.
    Alone,
    /// As it happens.
    None,
    /// By the daemon.
    Static,
    Dynamic,
}

const SHARED: [Allocation; 3] = [Allocation::None, Allocation::Static, Allocation::Dynamic];
const STREAMS: [u32; 2] = [80, 50];

impl Allocation {
    const fn name(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::None => "none",
            Self::Static => "static",
            Self::Dynamic => "dynamic",
        }
    }
}

/// One turn.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Measured {
    round: u32,
    allocation: Allocation,
    /// No streams: the download alone.
    streams: Option<u32>,
    media: Option<Media>,
    bulk: Option<Bulk>,
}

/// What viewers got: see `audience.c`.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Media {
    bins: Vec<u64>,
    each: Vec<u64>,
}

/// What the download got: instants since the start of the streams, of its first byte and its last.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Bulk {
    from_ns: u64,
    to_ns: u64,
    bins: Vec<u64>,
}

impl Benchmark for Shares {
    fn name(&self) -> &'static str {
        "paper-shares"
    }

    fn about(&self) -> &'static str {
        "media beside a bulk download on one link: the paper's Fig. 9 and 10"
    }

    fn run(&self, context: &mut Context) -> anyhow::Result<()> {
        let rounds = context.effort.of(1, 2, 3);
        let seconds = context.effort.of(2, 3, 4);
        let network = match Network::in_turn(LINK) {
            Ok(network) => network,
            Err(error) => return context.skip("all of it", format!("no link: {error:#}")),
        };
        let (file, streams) = FILE_OVER_STREAMS;
        let file = usize::try_from(seconds * CAPACITY * file / streams)?;
        let folder = super::web::folder(context, "bulk", &[("bulk", file)])?;
        for round in 0..rounds {
            let mut turns: Vec<(Allocation, Option<u32>)> = vec![(Allocation::Alone, None)];
            for streams in STREAMS {
                let allocations = SHARED.into_iter().chain([Allocation::Alone]);
                turns.extend(allocations.map(|allocation| (allocation, Some(streams))));
            }
            context.shuffle(&mut turns);
            for (allocation, streams) in turns {
                let who = streams.map_or("bulk".to_owned(), |n| format!("{n} streams"));
                let what = format!("{who}, {}", allocation.name());
                if !context.is_wanted(&what) {
                    continue;
                }
                context.progress(&what);
                let before = Moment::now();
                let (media, bulk) = turn(
                    context,
                    &network,
                    &Turn {
                        allocation,
                        streams,
                        seconds,
                        folder: &folder,
                    },
                )?;
                let measured = Measured {
                    round,
                    allocation,
                    streams,
                    media,
                    bulk,
                };
                context.sample(before.until_now(), &measured)?;
            }
        }
        if let Some(figure) = context.figure.clone() {
            let record = Record::read(&context.recorder.path)?;
            plot::write(&figure, &record.samples(self.name()))?;
            context.progress(&format!("figure: {}", figure.display()));
        }
        Ok(())
    }

    fn report(&self, record: &Record) -> Section {
        report(&record.samples(self.name()))
    }
}

impl Measured {
    /// Of all streams together, bytes/s, once all have begun. What had come by an end is the mean
    /// over a time before or after it, so that nothing hangs on the last moment.
    fn media_rate(&self) -> Option<f64> {
        let bins = &self.media.as_ref()?.bins;
        let settled = usize::try_from(SETTLING_NS / BIN_NS).ok()?;
        let sums: Vec<f64> = bins
            .iter()
            .scan(0, |sum, bytes| {
                *sum += bytes;
                Some(*sum as f64)
            })
            .skip(settled)
            .collect();
        let (first, last) = (sums.get(..END_BINS)?, sums.get(sums.len() - END_BINS..)?);
        let gone = (sums.len() - END_BINS) as f64 * BIN_NS as f64 / 1e9;
        Some((bonsai_stats::mean(last)? - bonsai_stats::mean(first)?) / gone)
    }

    /// The stream that got least, over the mean.
    fn worst_stream(&self) -> Option<f64> {
        let each = &self.media.as_ref()?.each;
        let mean = each.iter().sum::<u64>() as f64 / each.len().max(1) as f64;
        Some(each.iter().copied().min()? as f64 / mean.max(1.0))
    }

    fn seconds(&self) -> Option<f64> {
        let bulk = self.bulk.as_ref()?;
        Some(bulk.to_ns.saturating_sub(bulk.from_ns) as f64 / 1e9)
    }

    fn bulk_bytes(&self) -> u64 {
        self.bulk.iter().flat_map(|bulk| &bulk.bins).sum()
    }

    /// What the download got of what the streams left of a rate in its time.
    fn of_what_is_left(&self, rate: f64) -> Option<f64> {
        let bulk = self.bulk.as_ref()?;
        let first = usize::try_from(bulk.from_ns / BIN_NS).ok()?;
        let bins = self.media.iter().flat_map(|media| &media.bins);
        let until = usize::try_from(bulk.to_ns / BIN_NS).ok()?;
        let media: u64 = bins.take(until).skip(first).sum();
        let left = rate * self.seconds()? - media as f64;
        Some(self.bulk_bytes() as f64 / left.max(1.0))
    }
}

/// All turns of an allocation and a number of streams.
struct Cell<'a>(Vec<&'a Measured>);

impl<'a> Cell<'a> {
    fn of(all: &'a [Sample<Measured>], allocation: Allocation, streams: Option<u32>) -> Self {
        let found = all.iter().map(|sample| &sample.data);
        let is_it = |m: &&Measured| m.allocation == allocation && m.streams == streams;
        Self(found.filter(is_it).collect())
    }

    fn values(&self, value: impl Fn(&Measured) -> Option<f64>) -> Vec<f64> {
        self.0.iter().filter_map(|m| value(m)).collect()
    }

    /// Over another cell, round by round.
    fn over(&self, base: &Self, value: impl Fn(&Measured) -> Option<f64>) -> Vec<f64> {
        let of_base = |round| base.0.iter().find(|m| m.round == round);
        self.values(|m| Some(value(m)? / value(of_base(m.round)?)?))
    }
}

/// The median and, of several, the spread.
fn spread(values: &[f64], shown: impl Fn(f64) -> String) -> String {
    let Some(least) = values.iter().copied().reduce(f64::min) else {
        return String::new();
    };
    let most = values.iter().copied().fold(least, f64::max);
    let middle = shown(median_or_zero(values));
    if values.len() < 2 {
        return middle;
    }
    format!("{middle} ({} to {})", shown(least), shown(most))
}

fn report(samples: &[Sample<Measured>]) -> Section {
    let mut section = Section::default();
    let doubt = doubt_of(samples.iter().map(|sample| &sample.conditions));
    let link = Cell::of(samples, Allocation::Alone, None)
        .values(|m| Some(m.bulk_bytes() as f64 / m.seconds()?));
    section.text(format!(
        "A link that carries {} MB/s for a download alone; the daemon is told {:.1}. Streams of {:.0} kbit/s; the \
         guarantee is {:.0} % above them, and a static allocation gives the download the rest. Median, and least to \
         most of all rounds. Left over is what the streams did not get of the daemon's capacity.",
        spread(&link, |rate| format!("{:.2}", rate / 1e6)),
        CAPACITY as f64 / 1e6,
        STREAM as f64 * 8.0 / 1e3,
        MARGIN as f64 / 10.0,
    ));
    let mut table = Table::new(&[
        "streams",
        "allocation",
        "kbit/s a stream",
        "of alone",
        "worst stream",
        "download, s",
        "over static",
        "of what is left",
        "doubt",
    ]);
    for streams in STREAMS {
        let cell = |allocation| Cell::of(samples, allocation, Some(streams));
        let (alone, fixed) = (cell(Allocation::Alone), cell(Allocation::Static));
        for allocation in [Allocation::Alone].into_iter().chain(SHARED) {
            let this = cell(allocation);
            if this.0.is_empty() {
                continue;
            }
            let media = this.over(&alone, Measured::media_rate);
            let left = this.values(|m| m.of_what_is_left(CAPACITY as f64));
            let per_stream = |m: &Measured| Some(m.media_rate()? / f64::from(streams) * 8.0 / 1e3);
            table.row(vec![
                streams.to_string(),
                allocation.name().to_owned(),
                spread(&this.values(per_stream), |rate| format!("{rate:.1}")),
                spread(&media, |part| percent(part - 1.0, 2)),
                spread(&this.values(Measured::worst_stream), |part| {
                    percent(part - 1.0, 2)
                }),
                spread(&this.values(Measured::seconds), |s| format!("{s:.2}")),
                spread(&this.over(&fixed, Measured::seconds), |part| {
                    format!("{part:.3}")
                }),
                spread(&left, |part| format!("{part:.3}")),
                doubt.clone().unwrap_or_default(),
            ]);
            promises(
                &mut section,
                (allocation, streams),
                (&media, &left),
                doubt.as_ref(),
            );
        }
    }
    section.table(table);
    section
}

fn promises(
    section: &mut Section,
    (allocation, streams): (Allocation, u32),
    (media, left): (&[f64], &[f64]),
    doubt: Option<&String>,
) {
    if !matches!(allocation, Allocation::Static | Allocation::Dynamic) || media.is_empty() {
        return;
    }
    let name = allocation.name();
    let off = median_or_zero(media) - 1.0;
    section.promise(
        format!("{streams} streams, {name}: their rate, of that alone"),
        format!("within {:.1} %", MOST_OFF * 100.0),
        percent(off, 2),
        Verdict::of(off.abs() <= MOST_OFF, doubt),
    );
    if allocation == Allocation::Dynamic {
        let got = median_or_zero(left);
        section.promise(
            format!("{streams} streams, {name}: the download, of what is left over time"),
            format!("{LEAST_LEFT}"),
            format!("{got:.3}"),
            Verdict::of(got >= LEAST_LEFT, doubt),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Conditions;

    /// Two seconds of media at a rate; a download of three.
    fn sample(allocation: Allocation, media: u64, bulk: u64) -> Sample<Measured> {
        let of = |rate: u64, bins| vec![rate / 100; bins];
        Sample {
            conditions: Conditions::default(),
            data: Measured {
                round: 0,
                allocation,
                streams: Some(80),
                media: Some(Media {
                    bins: of(media, 200),
                    each: vec![media / 80; 80],
                }),
                bulk: (allocation != Allocation::Alone).then(|| Bulk {
                    from_ns: 0,
                    to_ns: 3_000_000_000,
                    bins: of(bulk, 300),
                }),
            },
        }
    }

    fn verdicts(samples: &[Sample<Measured>]) -> Vec<Verdict> {
        let section = report(samples);
        let all = section.promises().iter();
        all.map(|promise| promise.verdict.clone()).collect()
    }

    #[test]
    fn media_and_bulk_are_held_against_what_they_should_have() {
        let alone = sample(Allocation::Alone, 16_000_000, 0);
        // Left over are 60 - 32 MB in three seconds.
        let good = sample(Allocation::Dynamic, 16_000_000, 14_000_000 * 2 / 3);
        assert_eq!(
            verdicts(&[alone.clone(), good]),
            [Verdict::Kept, Verdict::Kept]
        );
        let bad = sample(Allocation::Dynamic, 15_800_000, 13_000_000 * 2 / 3);
        assert_eq!(
            verdicts(&[alone.clone(), bad]),
            [Verdict::Broken, Verdict::Broken]
        );
        let none = sample(Allocation::None, 8_000_000, 12_000_000);
        assert!(verdicts(&[alone, none]).is_empty(), "nothing is promised");
    }

    #[test]
    fn the_plot_is_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("figures/a.svg");
        let all: Vec<_> = [Allocation::Alone]
            .into_iter()
            .chain(SHARED)
            .map(|allocation| sample(allocation, 16_000_000, 4_000_000))
            .collect();
        plot::write(&path, &all).expect("a plot");
        let text = std::fs::read_to_string(path).expect("read");
        assert!(
            text.starts_with("<svg") && text.contains("80 streams, dynamic"),
            "{text}"
        );
    }
}
