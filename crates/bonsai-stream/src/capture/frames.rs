//! Datagrams out of a capture file.
//!
//! Source: draft-ietf-opsawg-pcap, draft-ietf-opsawg-pcapng, tcpdump.org/linktypes.html. Files are read by
//! `pcap-parser` in constant memory, headers by `etherparse`; the runner-up `pcap-file` had its last release
//! that is no candidate in 2022.

use std::io::Read;
use std::net::{IpAddr, SocketAddr};

use etherparse::{EtherType, LaxNetSlice, LaxSlicedPacket, TransportSlice};
use pcap_parser::{Block, PcapBlockOwned, PcapError, PcapHeader, create_reader};

use super::Error;

/// Larger frames are damage: the largest that tools write has 256 KiB.
const BUFFER: usize = 1 << 20;
const SECOND: u64 = 1_000_000_000;

/// A datagram, as far as it was captured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Datagram<'a> {
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) bytes: &'a [u8],
    /// Of its bytes, those that were not captured.
    pub(super) missing: u32,
}

/// What was read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) frames: u64,
    pub(super) unread: u64,
    pub(super) is_cut_off: bool,
}

/// Where frames were captured, and the times of there.
#[derive(Clone, Copy, Debug)]
struct Interface {
    link: i32,
    /// Ticks a second, and seconds that are to be added.
    resolution: u64,
    offset: i64,
}

impl Interface {
    fn of_file(header: &PcapHeader) -> Self {
        Self {
            link: header.network.0,
            resolution: match header.is_nanosecond_precision() {
                true => SECOND,
                false => 1_000_000,
            },
            offset: 0,
        }
    }

    /// A time in its ticks, nanoseconds.
    fn ns(&self, ticks: u64) -> u64 {
        let ns = u128::from(ticks) * u128::from(SECOND) / u128::from(self.resolution.max(1));
        let offset = i128::from(self.offset) * i128::from(SECOND);
        let at = i128::try_from(ns)
            .unwrap_or(i128::MAX)
            .saturating_add(offset);
        u64::try_from(at.max(0)).unwrap_or(u64::MAX)
    }
}

/// Gives each datagram to `each`, with its time.
pub(super) fn read(
    file: impl Read + Send,
    mut each: impl FnMut(u64, &Datagram<'_>),
) -> Result<Counts, Error> {
    let mut reader = create_reader(BUFFER, file).map_err(|error| match error {
        PcapError::ReadError => Error::Unreadable,
        _ => Error::Foreign,
    })?;
    let mut interfaces: Vec<Interface> = Vec::new();
    let mut counts = Counts::default();
    let mut unknown = None;
    loop {
        let (offset, frame) = match reader.next() {
            Ok((offset, block)) => (offset, frame(&block, &mut interfaces)),
            Err(PcapError::Eof) => break,
            Err(PcapError::Incomplete(_)) => {
                reader.refill().map_err(|_| Error::Unreadable)?;
                continue;
            }
            Err(PcapError::UnexpectedEof) => {
                counts.is_cut_off = true;
                break;
            }
            Err(PcapError::ReadError) => return Err(Error::Unreadable),
            Err(_) => {
                return Err(Error::Damaged {
                    frames: counts.frames,
                });
            }
        };
        match frame {
            Frame::None => {}
            Frame::Unread => {
                counts.frames += 1;
                counts.unread += 1;
            }
            Frame::Of(interface, at_ns, bytes) => {
                counts.frames += 1;
                match sliced(interface.link, bytes) {
                    Err(link) => {
                        counts.unread += 1;
                        unknown = Some(link);
                    }
                    Ok(Some(sliced)) => {
                        if let Some(datagram) = datagram(&sliced) {
                            each(at_ns, &datagram);
                        }
                    }
                    Ok(None) => {}
                }
            }
        }
        reader.consume(offset);
    }
    match unknown {
        Some(link) if counts.unread == counts.frames => Err(Error::Link(link)),
        _ => Ok(counts),
    }
}

enum Frame<'a> {
    /// It is no frame.
    None,
    /// It has no time, or is of no interface.
    Unread,
    Of(Interface, u64, &'a [u8]),
}

fn frame<'a>(block: &PcapBlockOwned<'a>, interfaces: &mut Vec<Interface>) -> Frame<'a> {
    match block {
        PcapBlockOwned::LegacyHeader(header) => {
            interfaces.push(Interface::of_file(header));
            Frame::None
        }
        PcapBlockOwned::Legacy(of) => {
            let Some(interface) = interfaces.first().copied() else {
                return Frame::Unread;
            };
            let ticks = u64::from(of.ts_sec) * interface.resolution + u64::from(of.ts_usec);
            Frame::Of(interface, interface.ns(ticks), of.data)
        }
        PcapBlockOwned::NG(Block::SectionHeader(_)) => {
            interfaces.clear();
            Frame::None
        }
        PcapBlockOwned::NG(Block::InterfaceDescription(of)) => {
            interfaces.push(Interface {
                link: of.linktype.0,
                resolution: of.ts_resolution().unwrap_or(1_000_000),
                offset: of.ts_offset(),
            });
            Frame::None
        }
        PcapBlockOwned::NG(Block::EnhancedPacket(of)) => {
            let index = usize::try_from(of.if_id).unwrap_or(usize::MAX);
            let Some(interface) = interfaces.get(index).copied() else {
                return Frame::Unread;
            };
            let ticks = u64::from(of.ts_high) << 32 | u64::from(of.ts_low);
            // Behind what was captured its bytes are filled up.
            let length = usize::try_from(of.caplen).unwrap_or(usize::MAX);
            Frame::Of(
                interface,
                interface.ns(ticks),
                &of.data[..length.min(of.data.len())],
            )
        }
        PcapBlockOwned::NG(Block::SimplePacket(_)) => Frame::Unread,
        PcapBlockOwned::NG(_) => Frame::None,
    }
}

/// The headers of a frame; the link type, if that is not known.
fn sliced(link: i32, bytes: &[u8]) -> Result<Option<LaxSlicedPacket<'_>>, i32> {
    let by_type = |place: usize, head: usize| {
        let kind: [u8; 2] = bytes.get(place..place + 2)?.try_into().ok()?;
        let kind = EtherType(u16::from_be_bytes(kind));
        Some(LaxSlicedPacket::from_ether_type(kind, bytes.get(head..)?))
    };
    let ip = |bytes| LaxSlicedPacket::from_ip(bytes).ok();
    match link {
        // Of BSD's loopback, its family comes first.
        0 | 108 => Ok(bytes.get(4..).and_then(ip)),
        1 => Ok(LaxSlicedPacket::from_ethernet(bytes).ok()),
        12 | 14 | 101 | 228 | 229 => Ok(ip(bytes)),
        113 => Ok(by_type(14, 16)),
        276 => Ok(by_type(0, 20)),
        other => Err(other),
    }
}

fn datagram<'a>(sliced: &LaxSlicedPacket<'a>) -> Option<Datagram<'a>> {
    let (from, to): (IpAddr, IpAddr) = match sliced.net.as_ref()? {
        LaxNetSlice::Ipv4(of) if !of.is_payload_fragmented() => (
            of.header().source_addr().into(),
            of.header().destination_addr().into(),
        ),
        LaxNetSlice::Ipv6(of) if !of.is_payload_fragmented() => (
            of.header().source_addr().into(),
            of.header().destination_addr().into(),
        ),
        _ => return None,
    };
    let Some(TransportSlice::Udp(udp)) = &sliced.transport else {
        return None;
    };
    let bytes = udp.payload();
    let length = usize::from(udp.length()).saturating_sub(8);
    Some(Datagram {
        from: SocketAddr::new(from, udp.source_port()),
        to: SocketAddr::new(to, udp.destination_port()),
        bytes,
        missing: u32::try_from(length.saturating_sub(bytes.len())).unwrap_or(0),
    })
}
