//! Reports of senders and receivers (RTCP, RFC 3550, section 6).

use rtcp_types::{
    Compound, Packet, ReceiverReport, ReportBlock, RtcpPacketWriterExt as _, RtcpWriteError, Sdes,
    SdesChunk, SdesItem,
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
