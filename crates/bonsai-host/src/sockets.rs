//! Sockets: which descriptors of a process are some, and how much lies in the queues of its TCP
//! connections: by sock_diag(7) in our own network namespace, from `/proc/PID/net/tcp` in others.

mod diag;
mod ends;
mod tcp_info;

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;

pub use ends::peers;
pub use tcp_info::{TcpInfo, tcp_info};

/// What a descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A socket, by inode number.
    Socket(u64),
    /// A pipe.
    Pipe,
    /// A terminal or another character device.
    Device,
    /// A file or folder.
    File,
    /// Anything else, such as an event descriptor.
    Other,
}

/// What the kernel knows of a TCP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tcp {
    /// Whether it waits for connections.
    pub listens: bool,
    /// Whether it is connected, or is about to be or to end.
    pub connected: bool,
    /// The port on this side.
    pub port: u16,
    /// Bytes that the peer has not acknowledged, sent or not.
    pub unsent: u64,
    /// Bytes that have arrived and were not fetched.
    pub unread: u64,
    /// Of the bytes in [`Tcp::unsent`], those that were not sent yet; `None` where the kernel does
    /// not say.
    pub notsent: Option<u64>,
}

impl Tcp {
    const fn new(state: u8, port: u16, unsent: u64, unread: u64, notsent: Option<u64>) -> Self {
        let listens = state == LISTEN;
        Self {
            listens,
            connected: !matches!(state, LISTEN | TIME_WAIT | CLOSE),
            port,
            // A listening socket has the numbers of connections to be accepted there.
            unsent: if listens { 0 } else { unsent },
            unread: if listens { 0 } else { unread },
            notsent: if listens { None } else { notsent },
        }
    }

    /// Bytes that lie in the send queue because the peer, or the way to it, does not take them.
    /// Where only those are known that were not acknowledged: these.
    #[must_use]
    pub fn held_up(&self) -> u64 {
        self.notsent.unwrap_or(self.unsent)
    }
}

/// TCP sockets by inode number.
pub type Table = BTreeMap<u64, Tcp>;

/// The descriptor `fd` of a process; `None` if it is closed or may not be known.
#[must_use]
pub fn descriptor(pid: u32, fd: u64) -> Option<Kind> {
    let link = fs::read_link(format!("/proc/{pid}/fd/{fd}")).ok()?;
    Some(kind(link.to_str().unwrap_or_default()))
}

/// The inode numbers of the sockets of a process, each once; `None` if they may not be known.
#[must_use]
pub fn sockets(pid: u32) -> Option<Vec<u64>> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    let links = entries
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok());
    let mut inodes: Vec<u64> = links
        .filter_map(|link| match kind(link.to_str()?) {
            Kind::Socket(inode) => Some(inode),
            _ => None,
        })
        .collect();
    inodes.sort_unstable();
    inodes.dedup();
    Some(inodes)
}

/// The TCP sockets of the network namespace of a process; `None` if there is no such table.
#[must_use]
pub fn tcp(pid: u32) -> Option<Table> {
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/net")).ok();
    let own = namespace("self");
    if own.is_some()
        && own == namespace(&pid.to_string())
        && let Some(table) = diag::tcp()
    {
        return Some(table);
    }
    table(pid)
}

/// The user of the other end of a connection within our own network namespace: of the socket at `from`, connected to
/// `to`. `None` where the kernel does not say.
#[must_use]
pub fn user_of(from: SocketAddr, to: SocketAddr) -> Option<u32> {
    diag::user_of(from, to)
}

/// The same from `/proc`.
fn table(pid: u32) -> Option<Table> {
    let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/net/{name}")).ok();
    let mut table = Table::new();
    let v4 = read("tcp")?;
    // A kernel without IPv6 has no second table.
    for text in [Some(v4), read("tcp6")].into_iter().flatten() {
        table.extend(text.lines().skip(1).filter_map(parse));
    }
    Some(table)
}

/// The inode numbers of the Unix sockets that wait for connections, in the network namespace of a
/// process.
#[must_use]
pub fn unix_listeners(pid: u32) -> Vec<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/net/unix")).unwrap_or_default();
    text.lines().filter_map(parse_unix_listener).collect()
}

/// `Num RefCount Protocol Flags Type St Inode Path`, of a listening socket.
fn parse_unix_listener(line: &str) -> Option<u64> {
    let mut fields = line.split_ascii_whitespace().skip(3);
    let flags = u64::from_str_radix(fields.next()?, 16).ok()?;
    // __SO_ACCEPTCON
    let listens = flags & 0x1_0000 != 0;
    fields.nth(2)?.parse().ok().filter(|_| listens)
}

fn kind(link: &str) -> Kind {
    let inode = |name: &str| link.strip_prefix(name)?.strip_suffix(']');
    if let Some(inode) = inode("socket:[").and_then(|inode| inode.parse().ok()) {
        Kind::Socket(inode)
    } else if inode("pipe:[").is_some() {
        Kind::Pipe
    } else if link.starts_with("/dev/") {
        Kind::Device
    } else if link.starts_with('/') {
        Kind::File
    } else {
        Kind::Other
    }
}

/// States of a TCP socket (`include/net/tcp_states.h`).
const LISTEN: u8 = 10;
const TIME_WAIT: u8 = 6;
const CLOSE: u8 = 7;

/// `sl local remote st tx_queue:rx_queue tr:when retrnsmt uid timeout inode ...`
fn parse(line: &str) -> Option<(u64, Tcp)> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let (_, port) = fields.get(1)?.rsplit_once(':')?;
    let state = u8::from_str_radix(fields.get(3)?, 16).ok()?;
    let (unsent, unread) = fields.get(4)?.split_once(':')?;
    let tcp = Tcp::new(
        state,
        u16::from_str_radix(port, 16).ok()?,
        hex(unsent)?,
        hex(unread)?,
        None,
    );
    Some((fields.get(9)?.parse().ok()?, tcp))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_tell_the_same_of_a_connection() {
        use std::io::Write;
        use std::net::{TcpListener, TcpStream};
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let mut client = TcpStream::connect(address).expect("connected");
        let (_server, _) = listener.accept().expect("accepted");
        client.write_all(b"hello").expect("sent");
        let mine = sockets(std::process::id()).expect("ours");
        let of = |table: Table| -> Vec<(u64, Tcp)> {
            let ours = table.into_iter().filter(|(inode, tcp)| {
                // Other tests have connections, too.
                mine.contains(inode) && tcp.port == address.port()
            });
            ours.map(|(inode, tcp)| {
                (
                    inode,
                    Tcp {
                        notsent: None,
                        ..tcp
                    },
                )
            })
            .collect()
        };
        let proc = of(table(std::process::id()).expect("a table"));
        assert_eq!(proc.len(), 2, "the listener and what it accepted");
        assert!(proc.iter().any(|(_, tcp)| tcp.unread == 5), "{proc:?}");
        // A kernel may be built without sock_diag.
        if let Some(table) = diag::tcp() {
            assert_eq!(of(table), proc);
        }
    }

    #[test]
    fn rows_of_the_table() {
        let row = "   1: 0100007F:1F90 0100007F:D2F0 01 0027AC40:00000010 01:00000014 00000000     \
                   0        0 31337 2 0000000000000000 20 4 30 10 -1";
        let tcp = Tcp {
            listens: false,
            connected: true,
            port: 8080,
            unsent: 0x0027_ac40,
            unread: 16,
            notsent: None,
        };
        assert_eq!(parse(row), Some((31_337, tcp)));
        let listening = "0: 00000000000000000000000000000000:0016 \
                         00000000000000000000000000000000:0000 0A 00000000:00000003 00:00000000 \
                         00000000 0 0 77 1 0 100 0 0 10 0";
        let (inode, tcp) = parse(listening).expect("a row");
        assert_eq!(
            (inode, tcp.listens, tcp.port, tcp.unread),
            (77, true, 22, 0)
        );
        assert_eq!(parse("  sl  local_address rem_address   st"), None);
    }

    #[test]
    fn listening_unix_sockets() {
        let line = "ffff: 00000002 00000000 00010000 0001 01 4711 /run/x.sock";
        assert_eq!(parse_unix_listener(line), Some(4_711));
        let connected = "ffff: 00000003 00000000 00000000 0001 03 4712 /run/x.sock";
        assert_eq!(parse_unix_listener(connected), None);
        assert_eq!(
            parse_unix_listener("Num RefCount Protocol Flags Type"),
            None
        );
    }

    #[test]
    fn links_of_descriptors() {
        assert_eq!(kind("socket:[123]"), Kind::Socket(123));
        assert_eq!(kind("pipe:[5]"), Kind::Pipe);
        assert_eq!(kind("/dev/pts/0"), Kind::Device);
        assert_eq!(kind("anon_inode:[eventpoll]"), Kind::Other);
        assert_eq!(kind("/var/lib/x"), Kind::File);
    }
}
