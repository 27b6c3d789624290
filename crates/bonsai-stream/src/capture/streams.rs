//! Which datagrams are streams.
//!
//! A stream is known by two packets in a row (RFC 3550, A.1: probation). Until then, and until its clock is
//! known, its packets are kept.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use bonsai_media::meter::{Meter, Packet, Thresholds};
use bonsai_media::rtcp::{self, Said};
use bonsai_media::rtp;

use super::frames::Datagram;
use super::{ClockBy, Clocks, Stream};

/// More than that are not looked at: any datagram of others may look like a packet once.
const MOST: usize = 1 << 16;
/// So many packets are kept until a clock is guessed.
const KEPT: usize = 200;
/// Guesses rest on so much time, nanoseconds.
const ENOUGH: u64 = 1_000_000_000;

/// Clocks that streams have (RFC 3551, table 1 and 5; of AAC and Opus its sampling rate).
const USUAL: [u32; 10] = [
    8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000, 90_000,
];

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    from: SocketAddr,
    to: SocketAddr,
    ssrc: u32,
}

struct Candidate {
    key: Key,
    payload_type: u8,
    next: u16,
    is_stream: bool,
    kept: Vec<Packet>,
    meter: Option<(Meter, u32, ClockBy)>,
}

/// All that may be streams.
pub(super) struct Streams<'a> {
    clocks: &'a Clocks,
    all: Vec<Candidate>,
    places: HashMap<Key, usize>,
    senders: HashMap<(IpAddr, IpAddr, u32), usize>,
}

impl<'a> Streams<'a> {
    pub(super) fn new(clocks: &'a Clocks) -> Self {
        Self {
            clocks,
            all: Vec::new(),
            places: HashMap::new(),
            senders: HashMap::new(),
        }
    }

    /// A datagram has come.
    pub(super) fn take(&mut self, at_ns: u64, datagram: &Datagram<'_>) {
        let [first, second, ..] = datagram.bytes else {
            return;
        };
        if first >> 6 != 2 {
            return;
        }
        // Reports are told from packets by that (RFC 5761, section 4).
        if (192..=223).contains(second) {
            rtcp::read(datagram.bytes, |said| self.told(at_ns, datagram, said));
            return;
        }
        let payload_type = second & 0x7f;
        let Some(mut packet) = rtp::read(datagram.bytes, at_ns, payload_type) else {
            return;
        };
        packet.payload += datagram.missing;
        let key = Key {
            from: datagram.from,
            to: datagram.to,
            ssrc: packet.ssrc,
        };
        let place = match self.places.get(&key) {
            Some(place) => *place,
            None if self.all.len() >= MOST => return,
            None => self.add(key, payload_type),
        };
        self.all[place].take(&packet, payload_type, self.clocks);
    }

    fn add(&mut self, key: Key, payload_type: u8) -> usize {
        let place = self.all.len();
        self.places.insert(key, place);
        let sender = (key.from.ip(), key.to.ip(), key.ssrc);
        self.senders.entry(sender).or_insert(place);
        self.all.push(Candidate {
            key,
            payload_type,
            next: 0,
            is_stream: false,
            kept: Vec::new(),
            meter: None,
        });
        place
    }

    fn told(&mut self, at_ns: u64, datagram: &Datagram<'_>, said: Said) {
        let Said::Report { ssrc, ntp, .. } = said else {
            return;
        };
        let sender = (datagram.from.ip(), datagram.to.ip(), ssrc);
        let place = self.senders.get(&sender);
        if let Some((meter, ..)) = place.and_then(|place| self.all[*place].meter.as_mut()) {
            meter.told(ssrc, at_ns, Said::ntp_ns(ntp));
        }
    }

    /// All streams there were.
    pub(super) fn end(self, thresholds: &Thresholds) -> Vec<Stream> {
        let clocks = self.clocks;
        let streams = self.all.into_iter().filter(|one| one.is_stream);
        let streams = streams.filter_map(|mut one| {
            one.settle(clocks);
            let (meter, clock_rate, clock_by) = one.meter?;
            let stream = meter.report(meter.last_ns()?);
            Some(Stream {
                from: one.key.from,
                to: one.key.to,
                ssrc: one.key.ssrc,
                payload_type: one.payload_type,
                clock_rate,
                clock_by,
                verdict: thresholds.judge(&stream),
                stream,
            })
        });
        streams.collect()
    }
}

impl Candidate {
    fn take(&mut self, packet: &Packet, payload_type: u8, clocks: &Clocks) {
        let follows = !self.kept.is_empty() && packet.sequence == self.next;
        self.is_stream |= follows && payload_type == self.payload_type;
        self.next = packet.sequence.wrapping_add(1);
        if let Some((meter, ..)) = &mut self.meter {
            return meter.arrive(packet);
        }
        if !self.is_stream {
            // What came before the two in a row is not known to be of it.
            self.kept.clear();
            self.payload_type = payload_type;
        }
        self.kept.push(*packet);
        if self.is_stream && (self.is_clock_known(clocks) || self.is_enough()) {
            self.settle(clocks);
        }
    }

    fn is_clock_known(&self, clocks: &Clocks) -> bool {
        self.clock(clocks).is_some()
    }

    fn is_enough(&self) -> bool {
        let times = self.kept.first().zip(self.kept.last());
        let passed = times.map_or(0, |(first, last)| last.at_ns.saturating_sub(first.at_ns));
        self.kept.len() >= KEPT && passed >= ENOUGH || self.kept.len() >= KEPT * 100
    }

    fn clock(&self, clocks: &Clocks) -> Option<(u32, ClockBy)> {
        let told = clocks.get(&self.payload_type);
        told.map(|rate| (*rate, ClockBy::Told)).or_else(|| {
            let rate = bonsai_media::description::clock_of(self.payload_type)?;
            Some((rate, ClockBy::PayloadType))
        })
    }

    /// Its clock is known or guessed: what was kept goes to its meter.
    fn settle(&mut self, clocks: &Clocks) {
        let (None, Some(first)) = (&self.meter, self.kept.first()) else {
            return;
        };
        let known = self.clock(clocks);
        let (rate, by) = known.unwrap_or_else(|| (guess(&self.kept), ClockBy::Packets));
        let mut meter = Meter::new(rate, first.at_ns);
        for packet in self.kept.drain(..) {
            meter.arrive(&packet);
        }
        self.kept.shrink_to_fit();
        self.meter = Some((meter, rate, by));
    }
}

/// The usual clock that is nearest to how fast timestamps go.
fn guess(packets: &[Packet]) -> u32 {
    let (Some(first), Some(last)) = (packets.first(), packets.last()) else {
        return 90_000;
    };
    let ticks = last.timestamp.wrapping_sub(first.timestamp).cast_signed();
    let ns = last.at_ns.saturating_sub(first.at_ns);
    if ticks <= 0 || ns == 0 {
        return 90_000;
    }
    let rate = f64::from(ticks) * 1e9 / ns as f64;
    let far = |usual: &u32| (f64::from(*usual) / rate).ln().abs();
    let nearest = USUAL.iter().min_by(|a, b| far(a).total_cmp(&far(b)));
    nearest.copied().unwrap_or(90_000)
}
