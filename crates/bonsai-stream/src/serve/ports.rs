//! The sockets that datagrams are sent by: two for each of the machine's addresses that is asked, which
//! all streams share. A session has no sockets of its own, and packets come from the address that was
//! asked.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};

use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{SndBuf, SndBufForce};

/// What waits in a socket until it is sent: bursts of thousands of streams.
const BUFFER: usize = 8 << 20;

/// Two sockets, of packets and of reports.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) local: IpAddr,
    pub(super) port: u16,
    pub(super) packets: UdpSocket,
    pub(super) reports: UdpSocket,
}

impl Pair {
    /// Two ports side by side of those, the first of which is even (RFC 3550, section 11).
    ///
    /// # Errors
    /// None are free, or what the system says.
    pub(super) fn open(local: IpAddr, (first, last): (u16, u16)) -> io::Result<Self> {
        let mut error = io::Error::from(io::ErrorKind::AddrInUse);
        let even = (first..last).filter(|port| port % 2 == 0);
        for port in even {
            let both =
                bound(local, port).and_then(|packets| Ok((packets, bound(local, port + 1)?)));
            match both {
                Ok((packets, reports)) => {
                    return Ok(Self {
                        local,
                        port,
                        packets,
                        reports,
                    });
                }
                Err(other) => error = other,
            }
        }
        Err(error)
    }

    /// Number of the socket of packets.
    pub(super) fn raw(&self) -> i32 {
        self.packets.as_raw_fd()
    }

    /// One of the two.
    pub(super) fn socket(&self, is_reports: bool) -> BorrowedFd<'_> {
        match is_reports {
            true => self.reports.as_fd(),
            false => self.packets.as_fd(),
        }
    }
}

fn bound(local: IpAddr, port: u16) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(SocketAddr::new(local, port))?;
    socket.set_nonblocking(true)?;
    if setsockopt(&socket, SndBufForce, &BUFFER).is_err() {
        setsockopt(&socket, SndBuf, &BUFFER)?;
    }
    Ok(socket)
}
