//! Interfaces as the kernel lists them.
//!
//! Source: `include/uapi/linux/if_link.h`, rtnetlink(7).

use crate::error::Error;
use crate::netlink::message::{Message, attribute, text, u32_at, u64_at};
use crate::netlink::{Dumped, NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, Socket};

pub(crate) const RTM_NEWLINK: u16 = 16;
pub(crate) const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const RTM_NEWNSID: u16 = 88;
const RTM_GETNSID: u16 = 90;
const RTM_NEWSTATS: u16 = 92;
const RTM_GETSTATS: u16 = 94;

const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINK: u16 = 5;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_STATS64: u16 = 23;
const IFLA_EXT_MASK: u16 = 29;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_GSO_MAX_SIZE: u16 = 41;
const IFLA_XDP: u16 = 43;
const IFLA_XDP_PROG_ID: u16 = 4;
const IFLA_INFO_KIND: u16 = 1;
const RTEXT_FILTER_SKIP_STATS: u32 = 8;
const IFLA_STATS_LINK_64: u16 = 1;
const NETNSA_NSID: u16 = 1;
const NETNSA_FD: u16 = 3;

const IFF_UP: u32 = 1;
/// Bytes of an `ifinfomsg`.
const IFINFOMSG: usize = 16;
/// Bytes of an `if_stats_msg`.
const IF_STATS_MSG: usize = 12;
/// The kernel's own maximum where a link does not say one (`GSO_LEGACY_MAX_SIZE`).
const GSO_MAX: u32 = 65_536;
/// Letters of an interface's name, with the zero (`IFNAMSIZ`).
const IFNAMSIZ: usize = 16;

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its number in its namespace.
    pub index: u32,
    /// Its name; it may be renamed.
    pub name: String,
    /// What kind of virtual interface it is, such as `veth`, `tun`, `bridge`; `None` for devices.
    pub kind: Option<String>,
    /// Whether it is up.
    pub up: bool,
    /// The largest packet, bytes at layer 3.
    pub mtu: u32,
    /// The largest packet before it is cut into segments, bytes.
    pub gso_max: u32,
    /// The bridge or bond it is in, by its number.
    pub master: Option<u32>,
    /// The other end of a pair, or what it is on, by its number in its own namespace.
    pub other: Option<u32>,
    /// The namespace of the other end, by the number that it has in this one; `None` for this one.
    pub other_namespace: Option<u32>,
    /// The number of the program at XDP, if it has one.
    pub xdp: Option<u32>,
    /// What went through it since it was made.
    pub traffic: Traffic,
}

/// What went through an interface, as `ip -s link` shows it: of a virtual one, segments that are
/// not cut yet count once, with one head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes that it received.
    pub rx_bytes: u64,
    /// Bytes that it sent.
    pub tx_bytes: u64,
    /// Packets that it received.
    pub rx_packets: u64,
    /// Packets that it sent.
    pub tx_packets: u64,
}

impl Link {
    /// Whether it is the other end of a pair, or what a virtual machine is behind.
    #[must_use]
    pub fn is_of_somebody(&self) -> bool {
        matches!(
            self.kind.as_deref(),
            Some("veth" | "tun" | "macvlan" | "macvtap" | "netkit" | "ipvlan")
        )
    }
}

fn ifinfomsg(index: u32, flags: u32, change: u32) -> [u8; IFINFOMSG] {
    let mut fixed = [0; IFINFOMSG];
    for (place, value) in [(4, index), (8, flags), (12, change)] {
        fixed[place..place + 4].copy_from_slice(&value.to_ne_bytes());
    }
    fixed
}

/// Reads an interface out of a message.
pub(crate) fn link(bytes: &[u8]) -> Option<Link> {
    let rest = bytes.get(IFINFOMSG..)?;
    let number = |kind| attribute(rest, kind).and_then(|value| u32_at(value, 0));
    let stats = attribute(rest, IFLA_STATS64).unwrap_or_default();
    Some(Link {
        index: u32_at(bytes, 4)?,
        name: text(attribute(rest, IFLA_IFNAME)?),
        kind: attribute(rest, IFLA_LINKINFO)
            .and_then(|info| attribute(info, IFLA_INFO_KIND))
            .map(text),
        up: u32_at(bytes, 8)? & IFF_UP != 0,
        mtu: number(IFLA_MTU).unwrap_or_default(),
        gso_max: number(IFLA_GSO_MAX_SIZE).unwrap_or(GSO_MAX),
        master: number(IFLA_MASTER),
        other: number(IFLA_LINK).filter(|index| *index != 0),
        other_namespace: number(IFLA_LINK_NETNSID),
        xdp: attribute(rest, IFLA_XDP)
            .and_then(|xdp| attribute(xdp, IFLA_XDP_PROG_ID))
            .and_then(|value| u32_at(value, 0)),
        traffic: counted(stats),
    })
}

/// Reads a `rtnl_link_stats64`.
fn counted(stats: &[u8]) -> Traffic {
    let stat = |index: usize| u64_at(stats, 8 * index).unwrap_or_default();
    Traffic {
        rx_packets: stat(0),
        tx_packets: stat(1),
        rx_bytes: stat(2),
        tx_bytes: stat(3),
    }
}

/// What went through one interface, or through each, and nothing else of it: a tenth of what a list
/// of interfaces costs. `each` is told by `None` to forget what it got.
pub(crate) fn traffic(
    socket: &mut Socket,
    index: Option<u32>,
    mut each: impl FnMut(Option<(u32, Traffic)>),
) -> Result<(), Error> {
    let mut fixed = [0; IF_STATS_MSG];
    fixed[4..8].copy_from_slice(&index.unwrap_or(0).to_ne_bytes());
    // IFLA_STATS_FILTER_BIT of the only attribute that is wanted.
    fixed[8..].copy_from_slice(&(1_u32 << (IFLA_STATS_LINK_64 - 1)).to_ne_bytes());
    let read = |bytes: &[u8]| {
        let stats = attribute(bytes.get(IF_STATS_MSG..)?, IFLA_STATS_LINK_64)?;
        Some((u32_at(bytes, 4)?, counted(stats)))
    };
    if index.is_some() {
        let ask = Message::new(RTM_GETSTATS, NLM_F_REQUEST, &fixed);
        return socket.get(&ask, |kind, bytes| {
            if let Some(one) = read(bytes).filter(|_| kind == RTM_NEWSTATS) {
                each(Some(one));
            }
        });
    }
    socket.dump(
        &Message::dump(RTM_GETSTATS, &fixed),
        |dumped| match dumped {
            Dumped::Again => each(None),
            Dumped::One(RTM_NEWSTATS, bytes) => {
                if let Some(one) = read(bytes) {
                    each(Some(one));
                }
            }
            Dumped::One(..) => {}
        },
    )
}

/// All interfaces of the socket's namespace, by number. Without the statistics of protocols, which
/// nobody here wants, it takes half of the time.
pub(crate) fn links(socket: &mut Socket) -> Result<Vec<Link>, Error> {
    let mut found = Vec::new();
    let mut ask = Message::dump(RTM_GETLINK, &ifinfomsg(0, 0, 0));
    ask.u32(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS);
    socket.dump(&ask, |dumped| match dumped {
        Dumped::Again => found.clear(),
        Dumped::One(RTM_NEWLINK, bytes) => found.extend(link(bytes)),
        Dumped::One(..) => {}
    })?;
    found.sort_unstable_by_key(|link| link.index);
    Ok(found)
}

/// The one with a name.
///
/// # Errors
/// [`Error::NoLink`], with a name that may be meant.
pub fn named<'a>(links: &'a [Link], name: &str) -> Result<&'a Link, Error> {
    links.iter().find(|link| link.name == name).ok_or_else(|| {
        let near = |link: &&Link| strsim::damerau_levenshtein(&link.name, name) <= 1;
        Error::NoLink {
            name: bonsai_units::text::escaped(name).into_owned(),
            similar: links.iter().find(near).map(|link| link.name.clone()),
        }
    })
}

/// Makes an intermediate functional block, and sets it up.
pub(crate) fn make_ifb(socket: &mut Socket, name: &str) -> Result<u32, Error> {
    socket.ask(&ifb(name))?;
    let made = links(socket)?;
    Ok(named(&made, name)?.index)
}

/// The message that makes one.
pub(crate) fn ifb(name: &str) -> Message {
    debug_assert!(name.len() < IFNAMSIZ, "a name that fits");
    let flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
    let mut message = Message::new(RTM_NEWLINK, flags, &ifinfomsg(0, IFF_UP, IFF_UP));
    message.text(IFLA_IFNAME, name).nest(IFLA_LINKINFO, |info| {
        info.text(IFLA_INFO_KIND, "ifb");
    });
    message
}

/// Sets an interface up.
pub(crate) fn set_up(index: u32) -> Message {
    let fixed = ifinfomsg(index, IFF_UP, IFF_UP);
    Message::new(RTM_NEWLINK, NLM_F_REQUEST | NLM_F_ACK, &fixed)
}

/// Takes a virtual interface away.
pub(crate) fn delete(index: u32) -> Message {
    let fixed = ifinfomsg(index, 0, 0);
    Message::new(RTM_DELLINK, NLM_F_REQUEST | NLM_F_ACK, &fixed)
}

/// The number that a namespace has in the socket's one; `None` if it has none, which means that no
/// pair leads there.
pub(crate) fn number_of(
    socket: &mut Socket,
    namespace: std::os::fd::BorrowedFd<'_>,
) -> Result<Option<u32>, Error> {
    use std::os::fd::AsRawFd;
    // struct rtgenmsg, padded.
    let mut message = Message::new(RTM_GETNSID, NLM_F_REQUEST, &[0; 4]);
    message.u32(NETNSA_FD, namespace.as_raw_fd().cast_unsigned());
    let mut number = None;
    socket.get(&message, |kind, bytes| {
        if kind == RTM_NEWNSID {
            number = bytes
                .get(4..)
                .and_then(|rest| attribute(rest, NETNSA_NSID))
                .and_then(|value| u32_at(value, 0));
        }
    })?;
    // The kernel says -1 for none.
    Ok(number.filter(|number| *number != u32::MAX))
}
