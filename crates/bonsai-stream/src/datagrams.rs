//! A socket that says when each datagram came.
//!
//! The kernel's receive time spares the meter what the program is late by, and `SO_RXQ_OVFL` tells
//! what was lost here from what was lost on the way. With UDP_GRO datagrams that came together are
//! read together: those have one time.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::sys::socket::sockopt::{RcvBuf, RcvBufForce, ReceiveTimestampns, RxqOvfl, UdpGroSegment};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt};

/// What a socket holds while the program does something else: at 2 Mbit/s four seconds.
const BUFFER: usize = 1 << 20;

/// Bytes that are read at once: as many as the kernel puts together.
pub(crate) const MOST: usize = 1 << 16;

/// A socket for datagrams.
#[derive(Debug)]
pub(crate) struct Datagrams {
    socket: UdpSocket,
    /// What was dropped here so far, as the kernel counts it.
    dropped: u32,
}

/// What was read at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Read {
    /// All bytes, and those of each datagram but the last.
    pub(crate) bytes: usize,
    pub(crate) each: usize,
    /// Who sent them.
    pub(crate) from: Option<IpAddr>,
    /// When they came, by the wall clock.
    pub(crate) real_ns: Option<u64>,
    /// How many were dropped here since the last look.
    pub(crate) dropped: u32,
}

impl Datagrams {
    fn open(at: SocketAddr) -> io::Result<Self> {
        let socket = UdpSocket::bind(at)?;
        socket.set_nonblocking(true)?;
        if setsockopt(&socket, RcvBufForce, &BUFFER).is_err() {
            setsockopt(&socket, RcvBuf, &BUFFER)?;
        }
        setsockopt(&socket, ReceiveTimestampns, &true)?;
        setsockopt(&socket, RxqOvfl, &1)?;
        // Before Linux 5.0 each is read alone.
        let _ = setsockopt(&socket, UdpGroSegment, &true);
        Ok(Self { socket, dropped: 0 })
    }

    /// Two with ports side by side, the first of which is even (RFC 3550, section 11); `from` says
    /// where to begin, and is moved on.
    ///
    /// # Errors
    /// There are none, or there is no memory for more.
    pub(crate) fn pair(address: IpAddr, from: &mut u16) -> io::Result<(Self, Self, u16)> {
        let mut last = io::Error::from(io::ErrorKind::AddrInUse);
        for _ in 0..PORTS {
            let port = *from & !1;
            *from = if port >= LAST { FIRST } else { port + 2 };
            let first = Self::open(SocketAddr::new(address, port));
            let both = first.and_then(|first| {
                let second = Self::open(SocketAddr::new(address, port + 1))?;
                Ok((first, second, port))
            });
            match both {
                Ok(both) => return Ok(both),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    /// Reads once; nothing where nothing has come.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn read(
        &mut self,
        buffer: &mut [u8],
        control: &mut [u8],
    ) -> io::Result<Option<Read>> {
        let mut slices = [IoSliceMut::new(buffer)];
        let fd = self.socket.as_raw_fd();
        let flags = MsgFlags::MSG_DONTWAIT;
        let message = match recvmsg::<SockaddrStorage>(fd, &mut slices, Some(control), flags) {
            Ok(message) => message,
            Err(nix::Error::EAGAIN | nix::Error::EINTR) => return Ok(None),
            // What was sent to a port where nobody is comes back as this.
            Err(nix::Error::ECONNREFUSED) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let mut read = Read {
            bytes: message.bytes,
            each: message.bytes.max(1),
            from: message.address.as_ref().and_then(sender),
            real_ns: None,
            dropped: 0,
        };
        for control in message.cmsgs()? {
            match control {
                ControlMessageOwned::ScmTimestampns(at) => {
                    let seconds = u64::try_from(at.tv_sec()).unwrap_or(0);
                    let ns = u64::try_from(at.tv_nsec()).unwrap_or(0);
                    read.real_ns = Some(seconds * 1_000_000_000 + ns);
                }
                ControlMessageOwned::UdpGroSegments(size) => {
                    read.each = usize::try_from(size).unwrap_or(read.each).max(1);
                }
                ControlMessageOwned::RxqOvfl(dropped) => {
                    read.dropped = dropped.wrapping_sub(self.dropped);
                    self.dropped = dropped;
                }
                _ => {}
            }
        }
        Ok(Some(read))
    }

    /// Sends one; what is not taken is not sent.
    pub(crate) fn send(&self, bytes: &[u8], to: SocketAddr) {
        let _ = self.socket.send_to(bytes, to);
    }
}

fn sender(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|of| IpAddr::V4(of.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|of| IpAddr::V6(of.ip())))
}

impl AsFd for Datagrams {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Ports of viewers: below those that the kernel gives away itself.
pub(crate) const FIRST: u16 = 10_000;
const LAST: u16 = 32_700;
const PORTS: u16 = (LAST - FIRST) / 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_side_by_side_and_times_are_told() {
        let address = IpAddr::from([127, 0, 0, 1]);
        let mut from = FIRST;
        let (mut one, _control, port) = Datagrams::pair(address, &mut from).expect("a pair");
        assert_eq!(port % 2, 0);
        let (other, _, next) = Datagrams::pair(address, &mut from).expect("another");
        assert_ne!(port, next);
        let before = crate::clock::ns(rustix::time::clock_gettime(rustix::time::ClockId::Realtime));
        other.send(b"hello", SocketAddr::new(address, port));
        let mut buffer = vec![0; MOST];
        let mut control = nix::cmsg_space!([u8; 128]);
        control.resize(control.capacity(), 0);
        let read = (0..1000).find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            one.read(&mut buffer, &mut control).expect("read")
        });
        let read = read.expect("it comes");
        assert_eq!((&buffer[..read.bytes], read.dropped), (&b"hello"[..], 0));
        assert!(read.real_ns.expect("a time") >= before);
        assert_eq!(read.from, Some(address));
    }
}
