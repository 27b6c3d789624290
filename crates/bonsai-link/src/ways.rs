//! By which interfaces packets leave a namespace: the kernel is asked what it would do, so that rules, metrics, halves of the
//! default route (as VPNs have them) and IPv6 count as they do for packets.
//!
//! Source: rtnetlink(7), `include/uapi/linux/rtnetlink.h`.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::BorrowedFd;

use crate::error::Error;
use crate::netlink::message::{Message, attribute, u32_at};
use crate::netlink::{NLM_F_REQUEST, Socket};

const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_MULTIPATH: u16 = 9;
/// The entry that matches, with all of its next hops, and not the one that a connection would take.
const RTM_F_FIB_MATCH: u32 = 0x2000;
/// Bytes of `struct rtmsg`, and where its type is.
const RTMSG: usize = 12;
const TYPE: usize = 7;
const RTN_UNICAST: u8 = 1;
/// Bytes of `struct rtnexthop`, and where the interface is.
const NEXT_HOP: usize = 8;
const HOP_INTERFACE: usize = 4;

/// Addresses of the internet, of which the kernel is asked; nothing is sent there.
const FAR: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(1, 1, 1, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 1)),
];

/// The interfaces by which what goes to the internet leaves the calling thread's namespace, or another one. More than one
/// where IPv4 and IPv6 differ, or a route has several next hops.
///
/// # Errors
/// If the namespace cannot be entered, or there is no socket to the kernel.
pub fn ways_out(namespace: Option<BorrowedFd<'_>>) -> Result<BTreeSet<u32>, Error> {
    let mut socket = Socket::open(namespace, &[])?;
    let mut found = BTreeSet::new();
    for address in FAR {
        let answer = socket.get(&ask(address), |kind, bytes| {
            if kind == RTM_NEWROUTE {
                found.extend(interfaces(bytes));
            }
        });
        match answer {
            // No route leads there, or the kernel does not have that protocol.
            Ok(()) | Err(Error::Refused(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

fn ask(address: IpAddr) -> Message {
    let (family, bytes) = match address {
        IpAddr::V4(address) => (libc::AF_INET, address.octets().to_vec()),
        IpAddr::V6(address) => (libc::AF_INET6, address.octets().to_vec()),
    };
    let mut fixed = [0; RTMSG];
    fixed[0] = u8::try_from(family).unwrap_or_default();
    fixed[1] = u8::try_from(bytes.len() * 8).unwrap_or_default();
    fixed[8..].copy_from_slice(&RTM_F_FIB_MATCH.to_ne_bytes());
    let mut message = Message::new(RTM_GETROUTE, NLM_F_REQUEST, &fixed);
    message.put(RTA_DST, &bytes);
    message
}

/// The interfaces of a route, of an answer.
fn interfaces(bytes: &[u8]) -> Vec<u32> {
    let Some(rest) = bytes.get(RTMSG..).filter(|_| bytes[TYPE] == RTN_UNICAST) else {
        return Vec::new();
    };
    let one = attribute(rest, RTA_OIF).and_then(|value| u32_at(value, 0));
    let mut hops = attribute(rest, RTA_MULTIPATH).unwrap_or_default();
    let mut found: Vec<u32> = one.into_iter().collect();
    while let (Some(head), Some(interface)) = (hops.get(..2), u32_at(hops, HOP_INTERFACE)) {
        found.push(interface);
        let length = usize::from(u16::from_ne_bytes([head[0], head[1]])).next_multiple_of(4);
        hops = hops.get(length.max(NEXT_HOP)..).unwrap_or_default();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_answer_is_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = interfaces(&bytes);
        }
    }
}
