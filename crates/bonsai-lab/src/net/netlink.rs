//! rtnetlink(7): links and addresses of a room are made, and the kernel's counters are read.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, BorrowedFd};

use anyhow::{Context as _, bail};
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage, TcStats2};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

/// A socket of the namespace in which it was opened.
#[derive(Debug)]
pub(crate) struct Netlink {
    socket: Socket,
    sequence: u32,
}

/// What an interface has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    /// Received; where segments come as one, headers are counted once.
    pub(crate) rx_bytes: u64,
    /// As `rx_bytes`, sent.
    pub(crate) tx_bytes: u64,
    /// Received, and sent.
    pub(crate) rx_packets: u64,
    /// Sent.
    pub(crate) tx_packets: u64,
    /// Sent, and thrown away: a veth does where its peer has no room.
    pub(crate) tx_dropped: u64,
}

/// What a class of a queue has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Class {
    /// Its number behind the colon.
    pub(crate) minor: u16,
    /// Bytes of layer 2, headers of all segments.
    pub(crate) bytes: u64,
    /// Packets that found no room.
    pub(crate) dropped: u64,
    /// Bytes that wait.
    pub(crate) backlog: u64,
}

impl Netlink {
    /// In the namespace of the calling thread.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn open() -> anyhow::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE).context("no netlink socket")?;
        socket.bind_auto().context("netlink")?;
        socket.connect(&SocketAddr::new(0, 0)).context("netlink")?;
        Ok(Self {
            socket,
            sequence: 0,
        })
    }

    /// A pair of virtual Ethernet interfaces: one here, its peer in another namespace.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn veth(
        &mut self,
        name: &str,
        peer: &str,
        namespace: BorrowedFd<'_>,
        mtu: u32,
    ) -> anyhow::Result<()> {
        let attributes = |name: &str| {
            vec![
                LinkAttribute::IfName(name.to_owned()),
                LinkAttribute::Mtu(mtu),
            ]
        };
        let mut other = LinkMessage::default();
        other.attributes = attributes(peer);
        other
            .attributes
            .push(LinkAttribute::NetNsFd(namespace.as_raw_fd()));
        let mut link = LinkMessage::default();
        link.attributes = attributes(name);
        link.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(other))),
        ]));
        self.make(RouteNetlinkMessage::NewLink(link))
            .with_context(|| format!("veth {name}"))
    }

    /// A bridge.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn bridge(&mut self, name: &str, mtu: u32) -> anyhow::Result<()> {
        let mut link = LinkMessage::default();
        link.attributes = vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::Mtu(mtu),
            LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Bridge)]),
        ];
        self.make(RouteNetlinkMessage::NewLink(link))
            .with_context(|| format!("bridge {name}"))
    }

    /// Changes an interface: brings it up, and whatever else is said.
    ///
    /// # Errors
    /// There is none of that name, or the kernel refuses.
    pub(crate) fn up(&mut self, name: &str, more: Vec<LinkAttribute>) -> anyhow::Result<()> {
        let mut link = LinkMessage::default();
        link.header.index = self.index(name)?;
        link.header.flags = LinkFlags::Up;
        link.header.change_mask = LinkFlags::Up;
        link.attributes = more;
        self.ask(RouteNetlinkMessage::SetLink(link), NLM_F_ACK)
            .with_context(|| format!("interface {name}"))?;
        Ok(())
    }

    /// Puts an interface into a bridge.
    ///
    /// # Errors
    /// As [`Netlink::up`].
    pub(crate) fn join(&mut self, name: &str, bridge: &str) -> anyhow::Result<()> {
        let bridge = self.index(bridge)?;
        self.up(name, vec![LinkAttribute::Controller(bridge)])
    }

    /// Gives an interface an address.
    ///
    /// # Errors
    /// As [`Netlink::up`].
    pub(crate) fn address(
        &mut self,
        name: &str,
        address: Ipv4Addr,
        prefix: u8,
    ) -> anyhow::Result<()> {
        let mut message = AddressMessage::default();
        message.header.family = AddressFamily::Inet;
        message.header.prefix_len = prefix;
        message.header.index = self.index(name)?;
        let ip = IpAddr::V4(address);
        message.attributes = vec![AddressAttribute::Local(ip), AddressAttribute::Address(ip)];
        self.make(RouteNetlinkMessage::NewAddress(message))
            .with_context(|| format!("address {address} of {name}"))
    }

    /// What an interface has counted.
    ///
    /// # Errors
    /// There is none of that name.
    pub(crate) fn counters(&mut self, name: &str) -> anyhow::Result<Counters> {
        let link = self.link(name)?;
        let stats = link
            .attributes
            .iter()
            .find_map(|attribute| match attribute {
                LinkAttribute::Stats64(stats) => Some(stats),
                _ => None,
            });
        let stats = stats.with_context(|| format!("interface {name} has no counters"))?;
        Ok(Counters {
            rx_bytes: stats.rx_bytes,
            tx_bytes: stats.tx_bytes,
            rx_packets: stats.rx_packets,
            tx_packets: stats.tx_packets,
            tx_dropped: stats.tx_dropped,
        })
    }

    /// What the classes of an interface have counted.
    ///
    /// # Errors
    /// There is no interface of that name.
    pub(crate) fn classes(&mut self, name: &str) -> anyhow::Result<Vec<Class>> {
        let index = i32::try_from(self.index(name)?)?;
        let ask = RouteNetlinkMessage::GetTrafficClass(TcMessage::with_index(index));
        let answers = self.ask(ask, NLM_F_DUMP)?;
        let classes = answers.iter().filter_map(|answer| match answer {
            RouteNetlinkMessage::NewTrafficClass(message) => Some(class(message)),
            _ => None,
        });
        Ok(classes.collect())
    }

    fn index(&mut self, name: &str) -> anyhow::Result<u32> {
        Ok(self.link(name)?.header.index)
    }

    fn link(&mut self, name: &str) -> anyhow::Result<LinkMessage> {
        let mut link = LinkMessage::default();
        link.attributes = vec![LinkAttribute::IfName(name.to_owned())];
        let answers = self
            .ask(RouteNetlinkMessage::GetLink(link), 0)
            .with_context(|| format!("interface {name}"))?;
        let found = answers.into_iter().find_map(|answer| match answer {
            RouteNetlinkMessage::NewLink(link) => Some(link),
            _ => None,
        });
        found.with_context(|| format!("there is no interface {name}"))
    }

    fn make(&mut self, message: RouteNetlinkMessage) -> anyhow::Result<()> {
        self.ask(message, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL)?;
        Ok(())
    }

    /// Asks, and takes in all answers.
    fn ask(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> anyhow::Result<Vec<RouteNetlinkMessage>> {
        self.sequence += 1;
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(message));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, 0).context("netlink")?;
        let mut answers = Vec::new();
        loop {
            let (bytes, _) = self.socket.recv_from_full().context("netlink")?;
            let mut rest = bytes.as_slice();
            while rest.len() >= 16 {
                let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
                    .context("an answer of the kernel is not understood")?;
                let length = usize::try_from(answer.header.length)?.next_multiple_of(4);
                rest = rest.get(length.max(16)..).unwrap_or_default();
                if answer.header.sequence_number != self.sequence {
                    continue;
                }
                match answer.payload {
                    NetlinkPayload::Done(_) => return Ok(answers),
                    NetlinkPayload::Error(error) => {
                        let Some(code) = error.code else {
                            return Ok(answers);
                        };
                        bail!(std::io::Error::from_raw_os_error(-code.get()));
                    }
                    NetlinkPayload::InnerMessage(inner) => answers.push(inner),
                    _ => {}
                }
                if flags & (NLM_F_ACK | NLM_F_DUMP) == 0 {
                    return Ok(answers);
                }
            }
        }
    }
}

fn class(message: &TcMessage) -> Class {
    let TcHandle { minor, .. } = message.header.handle;
    let mut class = Class {
        minor,
        ..Class::default()
    };
    for attribute in &message.attributes {
        let TcAttribute::Stats2(stats) = attribute else {
            continue;
        };
        for stats in stats {
            match stats {
                TcStats2::Basic(basic) => class.bytes = basic.bytes,
                TcStats2::Queue(queue) => {
                    class.dropped = queue.drops.into();
                    class.backlog = queue.backlog.into();
                }
                _ => {}
            }
        }
    }
    class
}
