//! A capture of a film, written as tools write it.

use std::net::Ipv4Addr;

use etherparse::{PacketBuilder, PacketBuilderStep, UdpHeader};

pub(crate) const FROM: u16 = 6970;
pub(crate) const TO: u16 = 5000;
pub(crate) const SSRC: u32 = 0x1234_5678;

/// How a file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// With microseconds, or with nanoseconds.
    Pcap(bool),
    /// With nanoseconds.
    PcapNg,
}

/// A frame: its time in nanoseconds, and its bytes of IPv4.
pub(crate) type Frame = (u64, Vec<u8>);

/// A packet of payload type 96: number, picture of 40 ms.
pub(crate) fn packet(at_ns: u64, number: u16, picture: u32) -> Frame {
    let mut bytes = vec![0x80, 96];
    bytes.extend(number.to_be_bytes());
    bytes.extend(picture.wrapping_mul(3_600).to_be_bytes());
    bytes.extend(SSRC.to_be_bytes());
    bytes.extend([7; 1_000]);
    (at_ns, datagram(FROM, &bytes))
}

/// A datagram of any bytes.
pub(crate) fn datagram(from: u16, bytes: &[u8]) -> Vec<u8> {
    let address = |last| Ipv4Addr::new(10, 0, 0, last).octets();
    let builder: PacketBuilderStep<UdpHeader> =
        PacketBuilder::ipv4(address(1), address(2), 64).udp(from, TO);
    let mut frame = Vec::new();
    builder.write(&mut frame, bytes).expect("written");
    frame
}

/// 500 packets in five seconds, four for each picture, each with a time of its own; three are lost in a row, two
/// change places, one comes twice, and there is a pause of 300 ms.
pub(crate) fn film() -> Vec<Frame> {
    let at = |place: u64| {
        let pause = if place >= 300 { 300_000_000 } else { 0 };
        // Not as even as a clock.
        place * 10_000_000 + (place * 7_919) % 3_000_000 + pause
    };
    // The numbers begin again in the midst of it.
    let number = |place: u64| u16::try_from((65_300 + place) % 65_536).expect("16 bits");
    let picture = |place: u64| u32::try_from(place / 4).expect("small");
    let mut order: Vec<u64> = (0..500).collect();
    order.drain(100..103);
    order.swap(200, 201);
    order.insert(250, order[249]);
    let frames = (0_u64..).zip(order);
    frames
        .map(|(turn, place)| packet(at(turn), number(place), picture(place)))
        .collect()
}

/// The file with those frames, of a link type: 1 (Ethernet), 101 (IP), 113 and 276 (Linux cooked).
pub(crate) fn file(format: Format, link: u16, frames: &[Frame]) -> Vec<u8> {
    let mut file = match format {
        Format::Pcap(has_ns) => {
            let magic: u32 = if has_ns { 0xa1b2_3c4d } else { 0xa1b2_c3d4 };
            let words = [magic, 4 << 16 | 2, 0, 0, 1 << 16, u32::from(link)];
            words.map(u32::to_le_bytes).concat()
        }
        Format::PcapNg => {
            let section = [0x1a2b_3c4d, 1, u32::MAX, u32::MAX];
            let mut file = block(0x0a0d_0d0a, &section.map(u32::to_le_bytes).concat());
            // if_tsresol: 10^-9.
            let interface = [u32::from(link), 0, 1 << 16 | 9, 9, 0];
            file.extend(block(1, &interface.map(u32::to_le_bytes).concat()));
            file
        }
    };
    for (at, ip) in frames {
        let frame = [head(link), ip.clone()].concat();
        file.extend(record(format, *at, &frame));
    }
    file
}

fn head(link: u16) -> Vec<u8> {
    let (length, place) = match link {
        1 => (14, 12),
        113 => (16, 14),
        276 => (20, 0),
        _ => return Vec::new(),
    };
    let mut head = vec![0; length];
    head[place] = 8;
    head
}

fn record(format: Format, at: u64, frame: &[u8]) -> Vec<u8> {
    let length = u32::try_from(frame.len()).expect("short");
    let low = |number: u64| u32::try_from(number & 0xffff_ffff).expect("32 bits");
    match format {
        Format::Pcap(has_ns) => {
            let part = if has_ns { 1 } else { 1_000 };
            let words = [
                low(at / 1_000_000_000),
                low(at % 1_000_000_000 / part),
                length,
                length,
            ];
            [words.map(u32::to_le_bytes).concat(), frame.to_vec()].concat()
        }
        Format::PcapNg => {
            let words = [0, low(at >> 32), low(at), length, length];
            let mut body = [words.map(u32::to_le_bytes).concat(), frame.to_vec()].concat();
            body.resize(body.len().next_multiple_of(4), 0);
            block(6, &body)
        }
    }
}

fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 12).expect("short").to_le_bytes();
    [&kind.to_le_bytes(), &length, body, &length]
        .map(<[u8]>::to_vec)
        .concat()
}
