//! Packets of media (RTP, RFC 3550, section 5).

use rtp_types::{RtpPacket, RtpPacketBuilder};

use crate::meter::Packet;

/// Bytes of a header without extensions (RFC 3550, 5.1).
pub const HEADER: usize = 12;

/// The header of a packet that is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Whether it is the last of its picture or sound.
    pub marker: bool,
    /// What it carries.
    pub payload_type: u8,
    /// Its number.
    pub sequence: u16,
    /// Its media time, ticks of the stream's clock.
    pub timestamp: u32,
    /// Who sends it.
    pub ssrc: u32,
}

impl Header {
    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        RtpPacketBuilder::<&[u8], &[u8]>::new()
            .marker_bit(self.marker)
            .payload_type(self.payload_type & 0x7f)
            .sequence_number(self.sequence)
            .timestamp(self.timestamp)
            .ssrc(self.ssrc)
            .write_into_unchecked(&mut bytes);
        bytes
    }
}

/// The header of a packet that came at that time, if it is one of that payload type.
#[must_use]
pub fn read(bytes: &[u8], at_ns: u64, payload_type: u8) -> Option<Packet> {
    let packet = RtpPacket::parse(bytes).ok()?;
    (packet.payload_type() == payload_type).then(|| Packet {
        at_ns,
        ssrc: packet.ssrc(),
        sequence: packet.sequence_number(),
        timestamp: packet.timestamp(),
        payload: u32::try_from(packet.payload_len()).unwrap_or(u32::MAX),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_and_others_are_not() {
        let mut bytes = vec![0x80, 0x80 | 96, 0x12, 0x34, 0, 0, 0, 9, 0, 0, 0, 7];
        bytes.extend_from_slice(&[1; 100]);
        let read = |bytes: &[u8]| read(bytes, 5, 96);
        let expected = Packet {
            at_ns: 5,
            ssrc: 7,
            sequence: 0x1234,
            timestamp: 9,
            payload: 100,
        };
        assert_eq!(read(&bytes), Some(expected));
        bytes[1] = 97;
        assert_eq!(read(&bytes), None);
        assert_eq!(read(&[0x80; 11]), None);
        assert_eq!(read(b"RTSP/1.0 200 OK"), None);
    }

    #[test]
    fn a_header_that_is_written_is_read() {
        let header = Header {
            marker: true,
            payload_type: 96,
            sequence: 0xfffe,
            timestamp: 0x8000_0001,
            ssrc: 7,
        };
        let bytes = header.bytes();
        assert_eq!(
            bytes,
            [0x80, 0x80 | 96, 0xff, 0xfe, 0x80, 0, 0, 1, 0, 0, 0, 7]
        );
        let packet = super::read(&bytes, 5, 96).expect("a header");
        assert_eq!(
            (packet.sequence, packet.ssrc, packet.payload),
            (0xfffe, 7, 0)
        );
    }
}
