//! Rooms: network namespaces of a run, and the links between them.
//!
//! A room has no name in the file system: a descriptor of this process holds it, sockets and programs
//! in it do too, and the kernel takes it away, with all its links, when the last of them is gone. So
//! nothing is left of a run that was killed, runs beside each other do not meet, and the machine's own
//! namespace is never touched.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use netlink_packet_route::link::LinkAttribute;
use nix::sched::{CloneFlags, setns, unshare};

use super::netlink::{Class, Counters, Netlink};
use super::traffic::Place;
use crate::child::Running;

/// A network namespace.
#[derive(Debug)]
pub(crate) struct Room {
    name: String,
    namespace: OwnedFd,
    netlink: Mutex<Netlink>,
}

/// How links of rooms are made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wire {
    /// Bytes of layer 3.
    pub(crate) mtu: u32,
    /// Whether what an endpoint sends may cross as packets of many segments (GSO), as it does on any
    /// machine unless it is switched off.
    pub(crate) whole: bool,
}

impl Default for Wire {
    fn default() -> Self {
        Self {
            mtu: 1_500,
            whole: true,
        }
    }
}

impl Wire {
    fn attributes(self) -> Vec<LinkAttribute> {
        if self.whole {
            return Vec::new();
        }
        // A whole packet is at most one segment then.
        vec![
            LinkAttribute::GsoMaxSegs(1),
            LinkAttribute::GsoMaxSize(self.mtu + 14),
            LinkAttribute::GsoIpv4MaxSize(self.mtu + 14),
        ]
    }
}

impl Room {
    /// A namespace with its loopback up, and without IPv6, whose own packets would be counted.
    ///
    /// # Errors
    /// No right to make one (CAP_SYS_ADMIN), or what else the system says.
    pub(crate) fn new(name: &str) -> anyhow::Result<Self> {
        let make = || -> anyhow::Result<Self> {
            unshare(CloneFlags::CLONE_NEWNET).context("no network namespace can be made")?;
            let namespace = File::open("/proc/thread-self/ns/net").context("its descriptor")?;
            for which in ["all", "default"] {
                // A kernel without IPv6 has no such file.
                let path = format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6");
                let _ = std::fs::write(path, "1");
            }
            // Nor one that is older than Linux 6.3 this one.
            let _ = std::fs::write("/proc/sys/net/core/rps_default_mask", processors());
            let mut netlink = Netlink::open()?;
            netlink.up("lo", Vec::new())?;
            Ok(Self {
                name: name.to_owned(),
                namespace: namespace.into(),
                netlink: Mutex::new(netlink),
            })
        };
        // Only the thread moves, and it ends here.
        let made = std::thread::scope(|scope| scope.spawn(make).join());
        made.map_err(|_| anyhow!("a thread panicked"))?
            .with_context(|| format!("room {name}"))
    }

    /// Runs something on a thread inside. What it opens stays inside.
    ///
    /// # Errors
    /// The thread cannot enter.
    pub(crate) fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> anyhow::Result<T> {
        let inside = || -> anyhow::Result<T> {
            setns(&self.namespace, CloneFlags::CLONE_NEWNET)
                .with_context(|| format!("room {} cannot be entered", self.name))?;
            Ok(work())
        };
        let done = std::thread::scope(|scope| scope.spawn(inside).join());
        done.map_err(|_| anyhow!("what ran in room {} panicked", self.name))?
    }

    /// Starts a program inside, that can be talked to.
    ///
    /// # Errors
    /// It cannot be started.
    pub(crate) fn start(&self, command: &mut Command) -> anyhow::Result<Running> {
        self.within(|| Running::start(command))?
    }

    /// Runs a program inside to its end, with something to read; what it wrote.
    ///
    /// # Errors
    /// It cannot be started, or fails: with what it said.
    pub(crate) fn run(&self, command: &mut Command, input: &str) -> anyhow::Result<String> {
        let pipe = || Stdio::piped();
        let command = command.stdin(pipe()).stdout(pipe()).stderr(pipe());
        let mut child = self
            .within(|| command.spawn())?
            .with_context(|| format!("{command:?}"))?;
        if let Some(mut stdin) = child.stdin.take() {
            // One that does not read it says by its code what it thinks of that.
            let _ = stdin.write_all(input.as_bytes());
        }
        let output = child.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(output.status.success(), "{command:?}: {}", said.trim());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// What an interface of it has counted.
    ///
    /// # Errors
    /// There is none of that name.
    pub(crate) fn counters(&self, device: &str) -> anyhow::Result<Counters> {
        self.netlink(|netlink| netlink.counters(device))
    }

    /// What the classes of an interface have counted.
    ///
    /// # Errors
    /// There is none of that name.
    pub(crate) fn classes(&self, device: &str) -> anyhow::Result<Vec<Class>> {
        self.netlink(|netlink| netlink.classes(device))
    }

    /// Sends to an address until somebody there says that nobody listens: the way is open in both directions
    /// then. After an interface was brought up, the kernel throws away for up to a second what is sent; and
    /// packets that wait until an address is resolved are overtaken by those that come after them.
    fn greet(&self, address: Ipv4Addr) -> anyhow::Result<()> {
        /// That of the service that takes anything (RFC 863); nobody offers it here.
        const DISCARD: u16 = 9;
        let end = Instant::now() + PATIENCE;
        self.within(|| {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            socket.connect((address, DISCARD))?;
            socket.set_read_timeout(Some(Duration::from_millis(20)))?;
            loop {
                let tried = socket.send(b"?").and_then(|_| socket.recv(&mut [0]));
                if tried.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused) {
                    return Ok(());
                }
                let name = &self.name;
                anyhow::ensure!(Instant::now() < end, "room {name}: no way to {address}");
            }
        })?
    }

    /// The namespace, for whoever shapes in it.
    pub(crate) fn namespace(&self) -> std::os::fd::BorrowedFd<'_> {
        self.namespace.as_fd()
    }

    pub(crate) fn netlink<T>(
        &self,
        work: impl FnOnce(&mut Netlink) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let mut netlink = self.netlink.lock().unwrap_or_else(PoisonError::into_inner);
        work(&mut netlink).with_context(|| format!("room {}", self.name))
    }
}

/// Processors that take packets in, as a mask. A veth hands its peer a packet on the processor that
/// happens to send it, the sender's or a timer's, and each has a queue of its own: so packets of a flow
/// overtake each other. Where the flow chooses the processor (RPS), the link keeps their order.
fn processors() -> String {
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    let bits = u32::try_from(count).unwrap_or(32).min(32);
    format!("{:x}", (1_u64 << bits) - 1)
}

/// What interfaces of endpoints are called.
pub(crate) const ENDPOINT: &str = "eth0";
/// What the interface towards the outside is called in the host.
pub(crate) const UPLINK: &str = "up0";
const PREFIX: u8 = 16;
/// The kernel takes a second at most for what takes a moment.
const PATIENCE: Duration = Duration::from_secs(20);

/// Two rooms with a link between them.
#[derive(Debug)]
pub(crate) struct Pair {
    /// Where traffic comes from.
    pub(crate) client: Room,
    /// Where it goes.
    server: Room,
}

impl Pair {
    /// Makes them.
    ///
    /// # Errors
    /// As [`Room::new`].
    pub(crate) fn new(wire: Wire) -> anyhow::Result<Self> {
        let (client, server) = (Room::new("client")?, Room::new("server")?);
        client.netlink(|n| n.veth(ENDPOINT, ENDPOINT, server.namespace(), wire.mtu))?;
        for (room, last) in [(&client, 1), (&server, 2)] {
            endpoint(room, Ipv4Addr::new(10, 77, 0, last), wire)?;
        }
        let pair = Self { client, server };
        pair.client.greet(pair.server().address)?;
        Ok(pair)
    }

    /// Where traffic goes.
    pub(crate) const fn server(&self) -> Place<'_> {
        Place {
            room: &self.server,
            address: Ipv4Addr::new(10, 77, 0, 2),
        }
    }
}

/// Tenants of a host, each in a room with an interface of its own; a bridge joins them with the link
/// to the outside: what DNBA has with virtual machines.
#[derive(Debug)]
pub(crate) struct House {
    /// Where the bridge is, and whatever shapes.
    pub(crate) host: Room,
    /// The tenants.
    pub(crate) tenants: Vec<Room>,
    outside: Room,
}

impl House {
    /// Makes them.
    ///
    /// # Errors
    /// As [`Room::new`].
    pub(crate) fn new(tenants: u8, wire: Wire) -> anyhow::Result<Self> {
        const BRIDGE: &str = "br0";
        let (host, outside) = (Room::new("host")?, Room::new("outside")?);
        host.netlink(|n| {
            n.bridge(BRIDGE, wire.mtu)?;
            n.up(BRIDGE, Vec::new())?;
            n.veth(UPLINK, ENDPOINT, outside.namespace(), wire.mtu)?;
            n.join(UPLINK, BRIDGE)
        })?;
        let mut house = Self {
            host,
            tenants: Vec::new(),
            outside,
        };
        endpoint(&house.outside, house.outside().address, wire)?;
        for i in 0..tenants {
            let room = Room::new(&format!("tenant {i}"))?;
            let port = Self::port(i);
            house.host.netlink(|n| {
                n.veth(&port, ENDPOINT, room.namespace(), wire.mtu)?;
                n.join(&port, BRIDGE)
            })?;
            endpoint(&room, Self::address(i), wire)?;
            house.tenants.push(room);
        }
        for tenant in &house.tenants {
            tenant.greet(house.outside().address)?;
        }
        Ok(house)
    }

    /// The host's side of a tenant's interface.
    pub(crate) fn port(tenant: u8) -> String {
        format!("tenant{tenant}")
    }

    /// A tenant's address.
    pub(crate) const fn address(tenant: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, 1, tenant)
    }

    /// The other end of the link.
    pub(crate) const fn outside(&self) -> Place<'_> {
        Place {
            room: &self.outside,
            address: Ipv4Addr::new(10, 77, 0, 1),
        }
    }
}

fn endpoint(room: &Room, address: Ipv4Addr, wire: Wire) -> anyhow::Result<()> {
    room.netlink(|n| {
        n.up(ENDPOINT, wire.attributes())?;
        n.address(ENDPOINT, address, PREFIX)
    })
}

#[cfg(test)]
pub(super) mod tests;
