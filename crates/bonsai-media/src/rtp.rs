//! Packets of media (RTP, RFC 3550, section 5).

use rtp_types::RtpPacket;

use crate::meter::Packet;

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
}
