//! What a viewer gets of a stream, packet by packet.
//!
//! ```text
//!   packet (when, number, media time) ──> Sequence: lost, doubled, out of order; bursts
//!                                     ──> gaps between packets
//!                                     ──> Jitter, by both readings, and in the order of decoding
//!                                     ──> Pace: lag behind the media clock       ──> StreamReport
//!   sender report ───────────────────────^                                            └> Verdict
//! ```
//! One for each track of each viewer: pictures and sound apart.
//!
//! # Invariants
//! 1. A packet is received or a stray. Of those received, each number counts once, and again as a
//!    duplicate.
//! 2. A sender that starts again, with another SSRC or other numbers, is another episode of the same
//!    stream: nothing between the two is lost, and the time between is a gap.
//! 3. Nothing is allocated once it is made. Times are of one clock, and may come out of order.

mod bursts;
mod decoded;
mod jitter;
mod order;
mod pace;
mod sequence;
mod verdict;

use hdrhistogram::Histogram;
use serde::Serialize;

use self::decoded::Decoded;
use self::jitter::Jitter;
use self::order::Order;
use self::pace::Pace;
use self::sequence::{Place, Sequence};
use crate::seen::Counted;

pub use self::bursts::BurstReport;
pub use self::jitter::JitterReport;
pub use self::verdict::{Criterion, Thresholds, Verdict};

/// Gaps are told apart up to a minute, in microseconds, within 1 %.
const LONGEST_GAP_US: u64 = 60_000_000;
const DIGITS: u8 = 2;

/// A packet as it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// When, nanoseconds of any clock.
    pub at_ns: u64,
    /// Who sent it (RFC 3550, 5.1).
    pub ssrc: u32,
    /// Its number.
    pub sequence: u16,
    /// Its media time, ticks of the stream's clock.
    pub timestamp: u32,
    /// Bytes of payload.
    pub payload: u32,
}

/// A stream's meter.
#[derive(Clone, Debug)]
pub struct Meter {
    ns_per_tick: f64,
    asked_ns: u64,
    ssrc: Option<u32>,
    /// Another sender, and the number that it would go on with.
    suspect: Option<(u32, u16)>,
    sequence: Sequence,
    first_ns: Option<u64>,
    last_ns: u64,
    received: u64,
    duplicates: u64,
    reordered: u64,
    strays: u64,
    bytes: u64,
    gaps: Histogram<u32>,
    gap_max_ns: u64,
    gaps_over: u64,
    all: Jitter,
    pictures: Jitter,
    order: Order,
    decoded: Decoded,
    pace: Pace,
    dropped_here: u64,
}

/// What a viewer got of a stream.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StreamReport {
    /// Packets that should have come.
    pub expected: u64,
    /// Packets that came, with duplicates, without strays.
    pub received: u64,
    /// Packets that did not come.
    pub lost: u64,
    /// The part of the expected that is lost, 0 to 1.
    pub loss: f64,
    /// Packets that came again.
    pub duplicates: u64,
    /// Packets that came after one with a larger number (RFC 4737).
    pub reordered: u64,
    /// Packets that belong to nothing.
    pub strays: u64,
    /// How often the sender began anew.
    pub restarts: u32,
    /// Bytes of payload.
    pub bytes: u64,
    /// From asking to the first packet, nanoseconds.
    pub startup_ns: Option<u64>,
    /// From the first packet on, nanoseconds.
    pub elapsed_ns: u64,
    /// Bits of payload a second.
    pub bits_per_sec: f64,
    /// The longest time between two packets, nanoseconds; also from the last one on.
    pub gap_max_ns: u64,
    /// Times between two packets, nanoseconds: the median,
    pub gap_p50_ns: u64,
    /// and what 99 of 100 are below.
    pub gap_p99_ns: u64,
    /// How often it was longer than 400 ms.
    pub gaps_over_400_ms: u64,
    /// Jitter, where each packet counts.
    pub jitter_packets: JitterReport,
    /// Jitter, where the first packet of each media time counts, as that of openRTSP.
    pub jitter_pictures: JitterReport,
    /// The same in the order in which pictures are decoded: that some are shown behind others that come after
    /// them is none. Without such pictures it is the same, but for the last four. Thresholds go by it.
    pub jitter_decoded: JitterReport,
    /// Of the lag, what is not known: films of variable rate with pictures out of order, nanoseconds.
    pub uncertain_ns: f64,
    /// Behind the media clock at the end, nanoseconds.
    pub lag_ns: f64,
    /// The most that it ever was.
    pub lag_max_ns: f64,
    /// Packets that came more than 400 ms after their media time.
    pub late_packets: u64,
    /// How far the media is at the end, nanoseconds from its first packet on: the last packet plays until the next is
    /// due, if it does not end before.
    pub media_ns: f64,
    /// What all that came plays, nanoseconds, to the end of the last packet: bytes over it are the stream's own
    /// rate, also where that varies.
    pub covered_ns: f64,
    /// Media time over time: 1 is as it should be, less is slow motion.
    pub pace: f64,
    /// How much faster the sender's clock is than ours, parts per million, if it is known.
    pub drift_ppm: Option<f64>,
    /// Losses as bursts and gaps (RFC 3611).
    pub bursts: BurstReport,
    /// Packets that came and were dropped in this machine: then this says nothing of the sender.
    pub dropped_here: u64,
}

impl Meter {
    /// One of a stream with so many ticks a second that was asked for at that time.
    ///
    /// # Panics
    /// If the clock has no ticks.
    #[must_use]
    pub fn new(clock_rate: u32, asked_ns: u64) -> Self {
        assert!(clock_rate > 0, "a clock has ticks");
        let gaps = Histogram::new_with_bounds(1, LONGEST_GAP_US, DIGITS);
        Self {
            ns_per_tick: 1e9 / f64::from(clock_rate),
            asked_ns,
            ssrc: None,
            suspect: None,
            sequence: Sequence::new(),
            first_ns: None,
            last_ns: 0,
            received: 0,
            duplicates: 0,
            reordered: 0,
            strays: 0,
            bytes: 0,
            gaps: gaps.expect("bounds of a histogram"),
            gap_max_ns: 0,
            gaps_over: 0,
            all: Jitter::default(),
            pictures: Jitter::default(),
            order: Order::default(),
            decoded: Decoded::default(),
            pace: Pace::default(),
            dropped_here: 0,
        }
    }

    /// A packet has come.
    pub fn arrive(&mut self, packet: &Packet) {
        if self.ssrc != Some(packet.ssrc) && !self.changes_sender(packet) {
            self.strays += 1;
            return;
        }
        let place = self.sequence.arrive(packet.sequence);
        match place {
            Place::Stray => {
                self.strays += 1;
                return;
            }
            Place::Duplicate => self.duplicates += 1,
            Place::Late => self.reordered += 1,
            Place::First => self.begin(),
            Place::Next => {}
        }
        self.received += 1;
        self.bytes += u64::from(packet.payload);
        self.gap(packet.at_ns);
        self.all
            .arrive(packet.at_ns, packet.timestamp, self.ns_per_tick);
        if self.pictures.timestamp() != Some(packet.timestamp) {
            self.pictures
                .arrive(packet.at_ns, packet.timestamp, self.ns_per_tick);
        }
        // Who comes late or again has a time that may have been given.
        if matches!(place, Place::First | Place::Next)
            && let Some((at_ns, timestamp)) = self.order.arrive(packet.at_ns, packet.timestamp)
        {
            self.decoded.arrive(at_ns, timestamp, self.ns_per_tick);
        }
        if place != Place::Duplicate {
            self.pace
                .arrive(packet.at_ns, packet.timestamp, self.ns_per_tick);
        }
    }

    /// A report of the sender has come: its clock, nanoseconds since any day.
    pub fn told(&mut self, ssrc: u32, at_ns: u64, ntp_ns: u64) {
        if self.ssrc == Some(ssrc) {
            self.pace.told(at_ns, ntp_ns);
        }
    }

    /// A packet of somebody else has come.
    pub fn stray(&mut self) {
        self.strays += 1;
    }

    /// So many packets more were dropped in this machine, after they had come.
    pub fn dropped_here(&mut self, packets: u64) {
        self.dropped_here += packets;
    }

    /// Packets that came so far.
    #[must_use]
    pub const fn received(&self) -> u64 {
        self.received
    }

    /// Bytes of payload that came so far.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The largest number that came, with its cycles (RFC 3550, 6.4.1).
    #[must_use]
    pub fn largest(&self) -> u32 {
        self.sequence.largest()
    }

    /// Media time that came so far, nanoseconds.
    #[must_use]
    pub fn media_ns(&self) -> u64 {
        self.pace.media_ns(self.ns_per_tick)
    }

    /// When the first packet came, if any did.
    #[must_use]
    pub const fn first_ns(&self) -> Option<u64> {
        self.first_ns
    }

    /// When the last packet came, if any did.
    #[must_use]
    pub fn last_ns(&self) -> Option<u64> {
        self.first_ns.map(|_| self.last_ns)
    }

    /// Packets that should have come so far, and those that did not, both modulo 2^32.
    #[must_use]
    pub fn counted(&self) -> Counted {
        let expected = self.sequence.expected();
        let low = |count: u64| u32::try_from(count & 0xffff_ffff).unwrap_or(0);
        Counted {
            expected: low(expected),
            lost: low(expected - self.sequence.unique),
        }
    }

    /// Jitter of packets at this moment, and how far the stream is behind the media's clock, nanoseconds.
    #[must_use]
    pub fn glimpse(&self, now_ns: u64) -> (f64, f64) {
        let pace = self.pace.report(now_ns, self.ns_per_tick);
        (
            self.all.report().last_ns,
            pace.map_or(0.0, |pace| pace.lag_ns),
        )
    }

    /// What it comes to at a time: now, while more is to come, or when the stream ended.
    #[must_use]
    pub fn report(&self, now_ns: u64) -> StreamReport {
        let expected = self.sequence.expected();
        let lost = expected - self.sequence.unique;
        let elapsed_ns = self
            .first_ns
            .map_or(0, |first| now_ns.saturating_sub(first));
        let silent = self
            .first_ns
            .map_or(0, |_| now_ns.saturating_sub(self.last_ns));
        let pace = self.pace.report(now_ns, self.ns_per_tick);
        let gap = |percent| self.gaps.value_at_quantile(percent) * 1000;
        StreamReport {
            expected,
            received: self.received,
            lost,
            loss: ratio(lost, expected),
            duplicates: self.duplicates,
            reordered: self.reordered,
            strays: self.strays,
            restarts: self.sequence.episodes.saturating_sub(1),
            bytes: self.bytes,
            startup_ns: self.first_ns.map(|at| at.saturating_sub(self.asked_ns)),
            elapsed_ns,
            bits_per_sec: ratio(self.bytes * 8, elapsed_ns) * 1e9,
            gap_max_ns: self.gap_max_ns.max(silent),
            gap_p50_ns: gap(0.5),
            gap_p99_ns: gap(0.99),
            gaps_over_400_ms: self.gaps_over + u64::from(silent > pace::LATE_NS),
            jitter_packets: self.all.report(),
            jitter_pictures: self.pictures.report(),
            jitter_decoded: self.decoded.report(),
            uncertain_ns: self
                .pace
                .uncertain_ns(self.decoded.uneven(), self.ns_per_tick),
            lag_ns: pace.map_or(0.0, |pace| pace.lag_ns),
            lag_max_ns: pace.map_or(0.0, |pace| pace.max_lag_ns),
            late_packets: self.pace.late,
            media_ns: pace.map_or(0.0, |pace| pace.media_ns),
            covered_ns: pace.map_or(0.0, |pace| pace.covered_ns),
            pace: pace.map_or(0.0, |pace| pace.pace),
            drift_ppm: self.pace.drift_ppm(),
            bursts: self.sequence.bursts().report(),
            dropped_here: self.dropped_here,
        }
    }

    /// Whether a packet of somebody else is the second in a row: then that one is the sender now.
    fn changes_sender(&mut self, packet: &Packet) -> bool {
        let follows = (packet.ssrc, packet.sequence);
        if self.ssrc.is_some() && self.suspect != Some(follows) {
            self.suspect = Some((packet.ssrc, packet.sequence.wrapping_add(1)));
            return false;
        }
        (self.ssrc, self.suspect) = (Some(packet.ssrc), None);
        self.sequence.forget();
        true
    }

    /// What comes from here on is of another episode.
    fn begin(&mut self) {
        self.all.forget();
        self.pictures.forget();
        self.order.forget();
        self.decoded.forget();
        self.pace.forget();
    }

    fn gap(&mut self, at_ns: u64) {
        if self.first_ns.is_none() {
            self.first_ns = Some(at_ns);
        } else {
            let gap = at_ns.saturating_sub(self.last_ns);
            self.gap_max_ns = self.gap_max_ns.max(gap);
            self.gaps_over += u64::from(gap > pace::LATE_NS);
            self.gaps.saturating_record((gap / 1000).max(1));
        }
        self.last_ns = self.last_ns.max(at_ns);
    }
}

#[expect(clippy::cast_precision_loss, reason = "packets and bytes of a stream")]
fn ratio(of: u64, all: u64) -> f64 {
    match all {
        0 => 0.0,
        all => of as f64 / all as f64,
    }
}

#[cfg(test)]
mod tests;
