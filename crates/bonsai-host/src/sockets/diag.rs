//! TCP sockets by sock_diag(7): what `/proc/net/tcp` knows, and what was not sent at all.
//!
//! One request and its answer, by hand: a header, the query, and rows with attributes, all in the
//! machine's byte order but for ports. Lengths are checked, since an answer may be cut short.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

use super::{Table, Tcp};

/// `SOCK_DIAG_BY_FAMILY` (`linux/sock_diag.h`).
const BY_FAMILY: u16 = 20;
/// `NLM_F_REQUEST | NLM_F_DUMP` (`linux/netlink.h`).
const DUMP: u16 = 0x301;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const IPPROTO_TCP: u8 = 6;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
/// `INET_DIAG_INFO` (`linux/inet_diag.h`): the attribute with a `struct tcp_info`.
const INFO: u16 = 2;
/// Bytes of `struct nlmsghdr`, `struct inet_diag_req_v2` and `struct inet_diag_msg`.
const HEADER: usize = 16;
const REQUEST: usize = 56;
const ROW: usize = 72;
/// Where `tcpi_notsent_bytes` is in a `struct tcp_info` (Linux 4.6).
const NOTSENT: usize = 144;

/// The TCP sockets of our own network namespace; `None` where the kernel does not answer.
pub(super) fn tcp() -> Option<Table> {
    let mut table = Table::new();
    ask(AF_INET, &mut table)?;
    // A kernel without IPv6 does not know the family.
    let _ = ask(AF_INET6, &mut table);
    Some(table)
}

/// A socket with a request on its way. The kernel answers at once or not at all.
fn sent(request: &[u8], patience: Duration) -> Option<OwnedFd> {
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )
    .ok()?;
    set_socket_timeout(&socket, Timeout::Recv, Some(patience)).ok()?;
    rustix::net::send(&socket, request, SendFlags::empty()).ok()?;
    Some(socket)
}

fn ask(family: u8, table: &mut Table) -> Option<()> {
    let socket = sent(&request(family), Duration::from_secs(1))?;
    let mut answer = vec![0_u8; 256 * 1024];
    loop {
        let (read, _) = rustix::net::recv(&socket, &mut answer[..], RecvFlags::empty()).ok()?;
        match rows(&answer[..read], table) {
            End::Open => {}
            End::Done => return Some(()),
            End::Refused => return None,
        }
    }
}

/// All sockets of a family, with their `tcp_info`.
fn request(family: u8) -> [u8; HEADER + REQUEST] {
    let mut bytes = [0_u8; HEADER + REQUEST];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(0, &72_u32.to_ne_bytes());
    put(4, &BY_FAMILY.to_ne_bytes());
    put(6, &DUMP.to_ne_bytes());
    put(HEADER, &[family, IPPROTO_TCP, 1 << (INFO - 1)]);
    // Every state.
    put(HEADER + 4, &u32::MAX.to_ne_bytes());
    bytes
}

/// The user of one socket, by its two addresses.
pub(super) fn user_of(from: SocketAddr, to: SocketAddr) -> Option<u32> {
    let socket = sent(&request_of(from, to), Duration::from_millis(100))?;
    let mut answer = [0_u8; 4096];
    let (read, _) = rustix::net::recv(&socket, &mut answer[..], RecvFlags::empty()).ok()?;
    user(&answer[..read], from, to)
}

/// One socket, by its two addresses.
fn request_of(from: SocketAddr, to: SocketAddr) -> [u8; HEADER + REQUEST] {
    let (from_ip, to_ip) = (from.ip().to_canonical(), to.ip().to_canonical());
    let family = if from_ip.is_ipv4() { AF_INET } else { AF_INET6 };
    let mut bytes = request(family);
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(6, &1_u16.to_ne_bytes());
    // No attributes.
    put(HEADER + 2, &[0]);
    put(HEADER + 8, &from.port().to_be_bytes());
    put(HEADER + 10, &to.port().to_be_bytes());
    for (at, ip) in [(HEADER + 12, from_ip), (HEADER + 28, to_ip)] {
        match ip {
            IpAddr::V4(ip) => put(at, &ip.octets()),
            IpAddr::V6(ip) => put(at, &ip.octets()),
        }
    }
    // Whatever its cookie is.
    put(HEADER + 48, &[0xff; 8]);
    bytes
}

/// The user in an answer. A socket that is being ended has none any more; one that listens is another one.
fn user(bytes: &[u8], from: SocketAddr, to: SocketAddr) -> Option<u32> {
    if u16_at(bytes, 4)? != BY_FAMILY {
        return None;
    }
    let row = bytes.get(HEADER..)?;
    let port = |at: usize| Some(u16::from_be_bytes([*row.get(at)?, *row.get(at + 1)?]));
    let is_it = port(4)? == from.port() && port(6)? == to.port();
    let inode = u32_at(row, 68)?;
    (is_it && inode != 0).then(|| u32_at(row, 64)).flatten()
}

/// Whether more is to come.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Open,
    Done,
    Refused,
}

/// Takes the rows of one datagram in.
fn rows(mut bytes: &[u8], table: &mut Table) -> End {
    while let (Some(length), Some(kind)) = (u32_at(bytes, 0), u16_at(bytes, 4)) {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let Some(message) = bytes.get(HEADER..length) else {
            return End::Refused;
        };
        match kind {
            NLMSG_DONE => return End::Done,
            NLMSG_ERROR => return End::Refused,
            _ => table.extend(row(message)),
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    End::Open
}

fn row(message: &[u8]) -> Option<(u64, Tcp)> {
    let state = *message.get(1)?;
    let port = u16::from_be_bytes([*message.get(4)?, *message.get(5)?]);
    let notsent = info(message.get(ROW..)?).and_then(|info| u32_at(info, NOTSENT));
    let tcp = Tcp::new(
        state,
        port,
        u32_at(message, 60)?.into(),
        u32_at(message, 56)?.into(),
        notsent.map(u64::from),
    );
    Some((u32_at(message, 68)?.into(), tcp))
}

/// The `tcp_info` among the attributes of a row.
fn info(mut bytes: &[u8]) -> Option<&[u8]> {
    loop {
        let (length, kind) = (usize::from(u16_at(bytes, 0)?), u16_at(bytes, 2)?);
        let value = bytes.get(4..length)?;
        if kind == INFO {
            return Some(value);
        }
        bytes = bytes.get(length.next_multiple_of(4)..)?;
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..at + 4)?;
    Some(u32::from_ne_bytes(four.try_into().ok()?))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let two = bytes.get(at..at + 2)?;
    Some(u16::from_ne_bytes(two.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A datagram with one row of these numbers, and an end.
    fn datagram(info: &[u8]) -> Vec<u8> {
        let mut row = vec![0_u8; ROW];
        row[1] = 1;
        row[4..6].copy_from_slice(&8080_u16.to_be_bytes());
        row[56..60].copy_from_slice(&16_u32.to_ne_bytes());
        row[60..64].copy_from_slice(&900_u32.to_ne_bytes());
        row[68..72].copy_from_slice(&31_337_u32.to_ne_bytes());
        // Another attribute first, of a length that has to be rounded up.
        row.extend([5, 0, 8, 0, 0, 0, 0, 0]);
        let length = u16::try_from(4 + info.len()).expect("short");
        row.extend(length.to_ne_bytes());
        row.extend(INFO.to_ne_bytes());
        row.extend(info);
        let length = u32::try_from(HEADER + row.len()).expect("short");
        let mut bytes = Vec::new();
        bytes.extend(length.to_ne_bytes());
        bytes.extend(BY_FAMILY.to_ne_bytes());
        bytes.extend([0; 10]);
        bytes.extend(row);
        bytes.extend(20_u32.to_ne_bytes());
        bytes.extend(NLMSG_DONE.to_ne_bytes());
        bytes.extend([0; 14]);
        bytes
    }

    #[test]
    fn rows_with_and_without_what_was_not_sent() {
        let mut info = vec![0_u8; 232];
        info[NOTSENT..NOTSENT + 4].copy_from_slice(&700_u32.to_ne_bytes());
        for (info, notsent) in [(&info[..], Some(700)), (&info[..NOTSENT], None)] {
            let mut table = Table::new();
            assert_eq!(rows(&datagram(info), &mut table), End::Done);
            let tcp = table[&31_337];
            assert!(tcp.connected && !tcp.listens);
            assert_eq!((tcp.port, tcp.unsent, tcp.unread), (8080, 900, 16));
            assert_eq!(tcp.notsent, notsent);
        }
    }

    #[test]
    fn whatever_is_cut_short_ends() {
        let whole = datagram(&[1; 150]);
        for length in 0..whole.len() {
            rows(&whole[..length], &mut Table::new());
        }
        assert_eq!(rows(&[], &mut Table::new()), End::Open);
        let mut error = whole;
        error[4] = 2;
        assert_eq!(rows(&error, &mut Table::new()), End::Refused);
    }

    #[test]
    fn the_user_of_the_other_end_is_ours() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = std::net::TcpListener::bind(address) else {
                continue;
            };
            let to = listener.local_addr().expect("an address");
            let near = std::net::TcpStream::connect(to).expect("a connection");
            let (far, from) = listener.accept().expect("it");
            assert_eq!(near.local_addr().expect("an address"), from);
            let uid = rustix::process::geteuid().as_raw();
            assert_eq!(user_of(from, to), Some(uid), "{address}");
            assert_eq!(user_of(to, SocketAddr::from(([127, 0, 0, 1], 1))), None);
            drop(near);
            drop(far);
        }
        // Whatever is cut short has none.
        let whole = datagram(&[]);
        let [from, to] = [8080, 0].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        assert_eq!(user(&whole, from, to), Some(0));
        for length in 0..HEADER + ROW {
            assert_eq!(user(&whole[..length], from, to), None);
        }
    }

    #[test]
    fn the_request_is_as_long_as_it_says() {
        let bytes = request(AF_INET);
        assert_eq!(u32_at(&bytes, 0), u32::try_from(bytes.len()).ok());
    }
}
