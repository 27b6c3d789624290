//! What a datagram of the generator says, and how long it is on the wire.

/// The first bytes: anything else in the room is none of ours.
const MAGIC: u32 = 0x424e_5349;

/// Bytes of [`Mark`]: the least length of a message.
pub(crate) const MARK: usize = 24;

/// Ethernet (14), IPv4 without options (20) and UDP (8).
const UDP_HEADERS: u64 = 42;
/// Ethernet (14), IPv4 (20), TCP (20) and its time stamps (12).
const TCP_HEADERS: u64 = 66;
/// What IPv4, TCP and its time stamps take of the MTU.
const TCP_IN_MTU: u64 = 52;

/// What each datagram begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// Which flow, from 0.
    pub(crate) flow: u32,
    /// Its number in the flow, from 0.
    pub(crate) seq: u64,
    /// When it was sent: CLOCK_MONOTONIC, ns. Both ends are on one machine.
    pub(crate) sent_ns: u64,
}

impl Mark {
    /// Writes it to the beginning of a message of at least [`MARK`] bytes.
    pub(crate) fn write(&self, message: &mut [u8]) {
        let parts: [&[u8]; 4] = [
            &MAGIC.to_be_bytes(),
            &self.flow.to_be_bytes(),
            &self.seq.to_be_bytes(),
            &self.sent_ns.to_be_bytes(),
        ];
        let mut at = 0;
        for part in parts {
            if let Some(room) = message.get_mut(at..at + part.len()) {
                room.copy_from_slice(part);
            }
            at += part.len();
        }
    }

    /// Reads it; `None` of a datagram that is not the generator's.
    pub(crate) fn read(message: &[u8]) -> Option<Self> {
        let (magic, rest) = message.split_first_chunk::<4>()?;
        let (flow, rest) = rest.split_first_chunk::<4>()?;
        let (seq, rest) = rest.split_first_chunk::<8>()?;
        let (sent, _) = rest.split_first_chunk::<8>()?;
        (u32::from_be_bytes(*magic) == MAGIC).then(|| Self {
            flow: u32::from_be_bytes(*flow),
            seq: u64::from_be_bytes(*seq),
            sent_ns: u64::from_be_bytes(*sent),
        })
    }
}

/// Bytes of layer 2 of a datagram with a payload that fits the MTU.
pub(crate) const fn udp_frame(payload: u64) -> u64 {
    payload + UDP_HEADERS
}

/// Bytes of layer 2 of a TCP payload in full segments under an MTU; without retransmissions,
/// connection setup and acknowledgements.
pub(crate) const fn tcp_frames(payload: u64, mtu: u64) -> u64 {
    payload + payload.div_ceil(mtu - TCP_IN_MTU) * TCP_HEADERS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_as_it_was_written() {
        let mark = Mark {
            flow: 7,
            seq: u64::MAX - 1,
            sent_ns: 12_345_678_901,
        };
        let mut message = [0_u8; 40];
        mark.write(&mut message);
        assert_eq!(Mark::read(&message), Some(mark));
        assert_eq!(Mark::read(&message[..MARK]), Some(mark));
        for length in 0..MARK {
            assert_eq!(Mark::read(&message[..length]), None);
        }
        message[0] ^= 1;
        assert_eq!(Mark::read(&message), None, "a stranger's");
    }

    #[test]
    fn frames_have_all_their_headers() {
        assert_eq!(udp_frame(1_400), 1_442);
        assert_eq!(tcp_frames(1_448, 1_500), 1_514);
        assert_eq!(tcp_frames(14_480, 1_500), 15_140);
        assert_eq!(tcp_frames(1_449, 1_500), 1_449 + 2 * 66);
        assert_eq!(tcp_frames(0, 1_500), 0);
    }
}
