//! Reports of senders and receivers (RTCP, RFC 3550, section 6).

use rtcp_types::{
    Bye, Compound, Packet, ReceiverReport, ReportBlock, RtcpPacketWriterExt as _, RtcpWriteError,
    Sdes, SdesChunk, SdesItem, SenderReport,
};

use crate::meter::StreamReport;

/// What a sender says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// A report: the sender's clock.
    Report {
        /// Who.
        ssrc: u32,
        /// Its clock, NTP: seconds in the upper half.
        ntp: u64,
        /// The media time of that, ticks.
        timestamp: u32,
    },
    /// It has ended.
    Bye(u32),
}

impl Said {
    /// The sender's clock, nanoseconds since 1900.
    #[must_use]
    pub const fn ntp_ns(ntp: u64) -> u64 {
        let seconds = (ntp >> 32) * 1_000_000_000;
        seconds + (((ntp & 0xffff_ffff) * 1_000_000_000) >> 32)
    }
}

/// What is said in a packet; what else is in it, or cannot be read, is passed over.
pub fn read(bytes: &[u8], mut each: impl FnMut(Said)) {
    let Ok(compound) = Compound::parse(bytes) else {
        return;
    };
    for packet in compound.flatten() {
        match packet {
            Packet::Sr(report) => each(Said::Report {
                ssrc: report.ssrc(),
                ntp: report.ntp_timestamp(),
                timestamp: report.rtp_timestamp(),
            }),
            Packet::Bye(bye) => bye.ssrcs().for_each(|ssrc| each(Said::Bye(ssrc))),
            _ => {}
        }
    }
}

/// Of whom a receiver reports, and the last report that it had from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct About {
    /// The sender.
    pub ssrc: u32,
    /// The largest number that came, with its cycles.
    pub largest: u32,
    /// When the last report of it came, nanoseconds, and its clock then.
    pub told: Option<(u64, u64)>,
}

/// A receiver's report with its name, as long as it fits.
///
/// # Errors
/// The buffer is too small.
pub fn write(
    buffer: &mut [u8],
    own: u32,
    name: &str,
    about: &About,
    stream: &StreamReport,
    since: Option<&StreamReport>,
    (now_ns, ns_per_tick): (u64, f64),
) -> Result<usize, RtcpWriteError> {
    let (expected, lost) = since.map_or((0, 0), |since| (since.expected, since.lost));
    let expected = stream.expected.saturating_sub(expected);
    let lost = stream.lost.saturating_sub(lost);
    let fraction = (lost * 256).checked_div(expected).unwrap_or(0).min(255);
    let told = about.told.map_or((0, 0), |(at, ntp)| {
        let middle = u32::try_from((ntp >> 16) & 0xffff_ffff).unwrap_or(0);
        // 1/65,536 of a second (RFC 3550, 6.4.1: DLSR).
        let delay = u128::from(now_ns.saturating_sub(at)) * 65_536 / 1_000_000_000;
        (middle, u32::try_from(delay).unwrap_or(u32::MAX))
    });
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a number of ticks, which is not negative and ends at the largest there is"
    )]
    let jitter = (stream.jitter_packets.last_ns / ns_per_tick) as u32;
    let block = ReportBlock::builder(about.ssrc)
        .fraction_lost(u8::try_from(fraction).unwrap_or(u8::MAX))
        .cumulative_lost(u32::try_from(stream.lost.min(0x7f_ffff)).unwrap_or(0))
        .extended_sequence_number(about.largest)
        .interarrival_jitter(jitter)
        .last_sender_report_timestamp(told.0)
        .delay_since_last_sender_report_timestamp(told.1);
    let chunk = SdesChunk::builder(own).add_item(SdesItem::builder(SdesItem::CNAME, name));
    let report = ReceiverReport::builder(own).add_report_block(block);
    let compound = Compound::builder()
        .add_packet(report)
        .add_packet(Sdes::builder().add_chunk(chunk));
    compound.write_into(buffer)
}

/// What a sender has sent, for its report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Who.
    pub ssrc: u32,
    /// Its clock, NTP: seconds since 1900 in the upper half.
    pub ntp: u64,
    /// The media time of that, ticks.
    pub timestamp: u32,
    /// Packets so far; it wraps.
    pub packets: u32,
    /// Bytes of payload so far; it wraps.
    pub bytes: u32,
}

impl Sent {
    /// A clock that counts nanoseconds since 1970, as NTP says it.
    #[must_use]
    pub fn ntp(unix_ns: u64) -> u64 {
        // From 1900 to 1970 (RFC 868).
        let seconds = unix_ns / 1_000_000_000 + 2_208_988_800;
        let fraction = (unix_ns % 1_000_000_000) << 32;
        (seconds << 32) | (fraction / 1_000_000_000)
    }
}

/// A sender's report with its name, and with its farewell where it ends.
///
/// # Errors
/// The buffer is too small.
pub fn write_sent(
    buffer: &mut [u8],
    name: &str,
    sent: &Sent,
    ends: bool,
) -> Result<usize, RtcpWriteError> {
    let report = SenderReport::builder(sent.ssrc)
        .ntp_timestamp(sent.ntp)
        .rtp_timestamp(sent.timestamp)
        .packet_count(sent.packets)
        .octet_count(sent.bytes);
    let chunk = SdesChunk::builder(sent.ssrc).add_item(SdesItem::builder(SdesItem::CNAME, name));
    let compound = Compound::builder()
        .add_packet(report)
        .add_packet(Sdes::builder().add_chunk(chunk));
    match ends {
        false => compound.write_into(buffer),
        true => compound
            .add_packet(Bye::builder().add_source(sent.ssrc))
            .write_into(buffer),
    }
}

/// What a receiver says of a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The sender.
    pub ssrc: u32,
    /// The part that was lost since the last report, of 256.
    pub lost_of_256: u8,
    /// Packets that were lost in all, as far as that is positive.
    pub lost: u32,
    /// The largest number that came, with its cycles.
    pub largest: u32,
    /// Jitter, ticks of the stream's clock.
    pub jitter: u32,
    /// The middle of the clock in the sender's last report that came, and how long ago that was, both in
    /// 1/65,536 s; 0 where none came.
    pub told: (u32, u32),
}

impl Received {
    /// The longest way there and back that is believed, 1/65,536 s.
    const LONGEST: u32 = 60 << 16;

    /// The way there and back (RFC 3550, 6.4.1), nanoseconds, when that comes to a sender at a time of its
    /// clock; `None` where the receiver had no report, or the clock was set.
    #[must_use]
    pub fn round_trip_ns(&self, ntp: u64) -> Option<u64> {
        let (last, since) = self.told;
        let now = u32::try_from((ntp >> 16) & 0xffff_ffff).unwrap_or(0);
        let trip = now.wrapping_sub(last).wrapping_sub(since);
        (last != 0 && trip <= Self::LONGEST).then(|| (u64::from(trip) * 1_000_000_000) >> 16)
    }
}

/// What receivers say of senders in a packet; what else is in it, or cannot be read, is passed over.
pub fn read_received(bytes: &[u8], mut each: impl FnMut(Received)) {
    let mut block = |of: ReportBlock<'_>| {
        // 24 bits with a sign (RFC 3550, 6.4.1): whoever got more than there was lost nothing.
        let lost = of.cumulative_lost() & 0xff_ffff;
        each(Received {
            ssrc: of.ssrc(),
            lost_of_256: of.fraction_lost(),
            lost: if lost > 0x7f_ffff { 0 } else { lost },
            largest: of.extended_sequence_number(),
            jitter: of.interarrival_jitter(),
            told: (
                of.last_sender_report_timestamp(),
                of.delay_since_last_sender_report_timestamp(),
            ),
        });
    };
    let Ok(compound) = Compound::parse(bytes) else {
        return;
    };
    for packet in compound.flatten() {
        match packet {
            Packet::Rr(report) => report.report_blocks().for_each(&mut block),
            Packet::Sr(report) => report.report_blocks().for_each(&mut block),
            _ => {}
        }
    }
}

/// Half to one and a half times as long (RFC 3550, 6.2 and 6.3.1): reports of many streams that began at once come
/// apart from each other.
#[must_use]
pub fn apart(interval_ns: u64, ssrc: u32, now: u64) -> u64 {
    // Finaliser of SplitMix64: each bit of the time and the source moves all bits.
    let mut mixed = now ^ u64::from(ssrc) << 32;
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    let part = (mixed ^ mixed >> 31) % 1024;
    interval_ns / 2 + interval_ns / 1024 * part
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reports_of_many_come_apart() {
        let second = 1_000_000_000;
        let mut of = [0; 10];
        for ssrc in 0..10_000 {
            let length = apart(5 * second, ssrc, 77 * second);
            assert!(
                (second * 5 / 2..second * 15 / 2).contains(&length),
                "{length}"
            );
            of[usize::try_from((length - second * 5 / 2) / (second / 2)).expect("small")] += 1;
        }
        assert!(of.iter().all(|count| (800..1200).contains(count)), "{of:?}");
    }

    const SENT: Sent = Sent {
        ssrc: 7,
        ntp: (5 << 32) | (1 << 31),
        timestamp: 90_000,
        packets: 3,
        bytes: 4_000,
    };

    #[test]
    fn a_report_that_is_written_is_read() {
        for ends in [false, true] {
            let mut buffer = [0; 128];
            let length = write_sent(&mut buffer, "bonsai", &SENT, ends).expect("room");
            let mut said = Vec::new();
            read(&buffer[..length], |one| said.push(one));
            let report = Said::Report {
                ssrc: 7,
                ntp: SENT.ntp,
                timestamp: 90_000,
            };
            let expected: &[_] = if ends {
                &[report, Said::Bye(7)]
            } else {
                &[report]
            };
            assert_eq!(said, expected);
        }
        write_sent(&mut [0; 40], "bonsai", &SENT, true).expect_err("no room");
    }

    #[test]
    fn the_clock_is_that_of_ntp() {
        // 1970-01-01 00:00:00.5.
        assert_eq!(Sent::ntp(500_000_000), (2_208_988_800 << 32) | (1 << 31));
        assert_eq!(
            Said::ntp_ns(Sent::ntp(1_500_000_000)),
            2_208_988_801_500_000_000
        );
    }

    #[test]
    fn what_a_receiver_says_is_read() {
        let mut buffer = [0; 128];
        let block = ReportBlock::builder(7)
            .fraction_lost(3)
            .cumulative_lost(12)
            .extended_sequence_number(0x1_0005)
            .interarrival_jitter(99)
            .last_sender_report_timestamp(0x0005_8000)
            .delay_since_last_sender_report_timestamp(0x8000);
        let report = ReceiverReport::builder(1).add_report_block(block);
        let length = report.write_into(&mut buffer).expect("room");
        let mut said = Vec::new();
        read_received(&buffer[..length], |one| said.push(one));
        let expected = Received {
            ssrc: 7,
            lost_of_256: 3,
            lost: 12,
            largest: 0x1_0005,
            jitter: 99,
            told: (0x0005_8000, 0x8000),
        };
        assert_eq!(said, [expected]);
        // It came 5.5 s by the sender's clock after 1900, was answered half a second later, and that came
        // at 6.25 s.
        let trip = |ntp: u64| expected.round_trip_ns(ntp);
        assert_eq!(trip((6 << 32) | (1 << 30)), Some(250_000_000));
        assert_eq!(trip(6 << 32), Some(0));
        // A clock that was set back, or far ahead.
        assert_eq!(trip(5 << 32), None);
        assert_eq!(trip(600 << 32), None);
        let never = Received {
            told: (0, 0),
            ..expected
        };
        assert_eq!(never.round_trip_ns(6 << 32), None);
    }

    proptest! {
        #[test]
        fn any_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            read(&bytes, |_| ());
            read_received(&bytes, |_| ());
        }
    }
}
