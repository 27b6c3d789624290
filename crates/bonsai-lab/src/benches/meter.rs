//! What a packet costs the viewer's meter: alone, where packets of many streams come in turns, and read from
//! a capture file.

use bonsai_media::meter::{Meter, Packet, Thresholds};
use bonsai_stats::SplitMix64;
use bonsai_stream::capture::{Clocks, read};
use serde::{Deserialize, Serialize};

use super::Benchmark;
use crate::context::Context;
use crate::load::{Moment, doubt_of};
use crate::record::{Record, Sample};
use crate::report::{Section, Table, Verdict};
use crate::service::thread_cpu_ns;
use crate::study::{estimate, median_or_zero, with_interval};

/// The benchmark "media-meter".
#[derive(Debug)]
pub(crate) struct MeterCost;

/// A packet costs at most that, ns: a million of them a second on a core.
const MOST_NS: f64 = 1_000.0;
/// Packets of a sample.
const PACKETS: u32 = 400_000;
/// Packets of a stream of 2 Mbit/s, and of a picture.
const PER_SECOND: u32 = 250;
const PER_PICTURE: u32 = 10;
/// What is captured of each: its headers, as with `tcpdump -s 96`.
const CAPTURED: usize = 96;

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum From {
    Memory,
    Capture,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Measured {
    from: From,
    streams: u32,
    /// CPU time of a packet, ns.
    packet_ns: f64,
}

const CELLS: [(From, u32); 4] = [
    (From::Memory, 1),
    (From::Memory, 2_000),
    (From::Capture, 1),
    (From::Capture, 2_000),
];

impl Benchmark for MeterCost {
    fn name(&self) -> &'static str {
        "media-meter"
    }

    fn about(&self) -> &'static str {
        "CPU time of a packet in the viewer's meter, and read from a capture"
    }

    fn run(&self, context: &mut Context) -> anyhow::Result<()> {
        let rounds = context.effort.of(3, 10, 30);
        for _ in 0..rounds {
            for (from, streams) in CELLS {
                let what = describe(from, streams);
                if !context.is_wanted(&what) {
                    continue;
                }
                context.progress(&what);
                let seed = context.random.next_u64();
                let before = Moment::now();
                let measured = measure(from, streams, seed)?;
                context.sample(before.until_now(), &measured)?;
            }
        }
        Ok(())
    }

    fn report(&self, record: &Record) -> Section {
        report(&record.samples(self.name()), record.run.seed)
    }
}

fn describe(from: From, streams: u32) -> String {
    let from = match from {
        From::Memory => "from memory",
        From::Capture => "from a capture",
    };
    match streams {
        1 => format!("{from}, a stream"),
        many => format!("{from}, {many} streams in turns"),
    }
}

/// The n-th packet of all: streams in turns, each as even as a film, one packet in a thousand lost.
fn packets(streams: u32, seed: u64) -> impl Iterator<Item = (u32, Packet)> {
    let mut random = SplitMix64::new(seed);
    (0..PACKETS).filter_map(move |n| {
        let (stream, turn) = (n % streams, n / streams);
        let at_ns = u64::from(turn) * 1_000_000_000 / u64::from(PER_SECOND) + random.below(100_000);
        let is_lost = turn > 2 && random.below(1_000) == 0;
        (!is_lost).then(|| {
            let packet = Packet {
                at_ns,
                ssrc: stream,
                sequence: u16::try_from(turn & 0xffff).unwrap_or(0),
                timestamp: turn / PER_PICTURE * 3_600,
                payload: 1_000,
            };
            (stream, packet)
        })
    })
}

fn measure(from: From, streams: u32, seed: u64) -> anyhow::Result<Measured> {
    let packets: Vec<(u32, Packet)> = packets(streams, seed).collect();
    let count = packets.len();
    let cpu_ns = match from {
        From::Memory => {
            let mut meters: Vec<Meter> = (0..streams).map(|_| Meter::new(90_000, 0)).collect();
            let before = thread_cpu_ns();
            for (stream, packet) in &packets {
                meters[*stream as usize].arrive(packet);
            }
            let after = thread_cpu_ns();
            let came: u64 = meters.iter().map(Meter::received).sum();
            anyhow::ensure!(came == count as u64, "{came} of {count} packets came");
            after - before
        }
        From::Capture => {
            let file = capture(&packets);
            let before = thread_cpu_ns();
            let clocks = Clocks::from([(96, 90_000)]);
            let found = read(&file[..], &clocks, &Thresholds::default())?;
            let after = thread_cpu_ns();
            let came: u64 = found.streams.iter().map(|of| of.stream.received).sum();
            anyhow::ensure!(came == count as u64, "{came} of {count} packets were found");
            after - before
        }
    };
    Ok(Measured {
        from,
        streams,
        packet_ns: cpu_ns as f64 / count as f64,
    })
}

/// A capture of them: pcap with nanoseconds, Ethernet, IPv4, UDP.
fn capture(packets: &[(u32, Packet)]) -> Vec<u8> {
    let header = [0xa1b2_3c4d_u32, 4 << 16 | 2, 0, 0, 96, 1];
    let mut file = header.map(u32::to_le_bytes).concat();
    file.reserve(packets.len() * (16 + CAPTURED));
    for (stream, packet) in packets {
        let bytes = |ns: u64| u32::try_from(ns).unwrap_or(u32::MAX).to_le_bytes();
        file.extend(bytes(packet.at_ns / 1_000_000_000));
        file.extend(bytes(packet.at_ns % 1_000_000_000));
        file.extend(bytes(CAPTURED as u64));
        file.extend(bytes(1_054));
        file.extend(frame(*stream, packet));
    }
    file
}

/// The first bytes of a frame.
fn frame(stream: u32, packet: &Packet) -> [u8; CAPTURED] {
    let mut frame = [0; CAPTURED];
    let mut put = |at: usize, bytes: &[u8]| frame[at..at + bytes.len()].copy_from_slice(bytes);
    // Ethernet: IPv4.
    put(12, &[8, 0]);
    // IPv4: 20 bytes of header, its length, UDP, addresses.
    put(14, &[0x45, 0]);
    put(16, &1_040_u16.to_be_bytes());
    put(22, &[64, 17]);
    put(26, &[10, 0, 0, 1, 10, 0, 0, 2]);
    // UDP: ports, length.
    put(34, &6_970_u16.to_be_bytes());
    let port = 0x4000 | u16::try_from(stream).unwrap_or(0);
    put(36, &port.to_be_bytes());
    put(38, &1_020_u16.to_be_bytes());
    // RTP.
    put(42, &[0x80, 96]);
    put(44, &packet.sequence.to_be_bytes());
    put(46, &packet.timestamp.to_be_bytes());
    put(50, &packet.ssrc.to_be_bytes());
    frame
}

fn report(samples: &[Sample<Measured>], seed: u64) -> Section {
    let mut section = Section::default();
    section.text(
        "ns of CPU time a packet, the median with its interval: loss, gaps, both readings of jitter, lag and pace of each \
         stream; from a capture also the frames and headers of the file.",
    );
    let mut table = Table::new(&["", "ns a packet", "packets a second on a core", "doubt"]);
    for (from, streams) in CELLS {
        let is_it = |of: &&Sample<Measured>| of.data.from == from && of.data.streams == streams;
        let of: Vec<_> = samples.iter().filter(is_it).collect();
        let values: Vec<f64> = of.iter().map(|sample| sample.data.packet_ns).collect();
        let Some(median) = estimate(&values, seed) else {
            continue;
        };
        let doubt = doubt_of(of.iter().map(|sample| &sample.conditions));
        table.row(vec![
            describe(from, streams),
            with_interval(&median, 0),
            format!("{:.1} million", 1e3 / median_or_zero(&values)),
            doubt.clone().unwrap_or_default(),
        ]);
        section.promise(
            describe(from, streams),
            format!("{MOST_NS:.0} ns"),
            format!("{} ns", with_interval(&median, 0)),
            Verdict::at_most(&median, MOST_NS, doubt.as_ref()),
        );
    }
    section.table(table);
    section
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_is_all_of_it() {
        let measured: Vec<_> = CELLS
            .iter()
            .map(|(from, streams)| Sample {
                conditions: crate::load::Conditions::default(),
                data: measure(*from, *streams, 1).expect("measured"),
            })
            // An interval is of two at least.
            .flat_map(|sample| [sample.clone(), sample])
            .collect();
        let text = report(&measured, 1).terminal();
        assert!(
            text.contains("from a capture, 2000 streams in turns"),
            "{text}"
        );
    }
}
