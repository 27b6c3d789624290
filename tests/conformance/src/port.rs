//! Ports of loopback for servers that tests start.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket, sockopt};

/// A free TCP port of 127.0.0.1, which the kernel gives to no other socket by itself for as long as this is held.
///
/// A socket is bound to it and does not listen. One with `SO_REUSEADDR`, as nearly each server has, can be bound there
/// and listen (socket(7)); connections are refused until then. A port that is only looked up and given back is another
/// test's a moment later, and that test's listener is then what a client meets.
#[derive(Debug)]
pub struct Port {
    _held: OwnedFd,
    address: SocketAddr,
}

impl Port {
    /// A free one.
    ///
    /// # Panics
    /// If none is free.
    #[must_use]
    pub fn free() -> Self {
        let held = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        rustix::io::fcntl_setfd(&held, rustix::io::FdFlags::CLOEXEC).expect("closed by exec");
        sockopt::set_socket_reuseaddr(&held, true).expect("an option");
        bind(&held, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = getsockname(&held).expect("an address");
        Self {
            _held: held,
            address: address.try_into().expect("an address of the internet"),
        }
    }

    /// 127.0.0.1 and the number.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The number.
    #[must_use]
    pub const fn number(&self) -> u16 {
        self.address.port()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::Port;

    #[test]
    fn a_server_listens_at_a_port_that_no_other_gets() {
        let port = Port::free();
        assert!(TcpStream::connect(port.address()).is_err(), "refused");
        let server = TcpListener::bind(port.address()).expect("with SO_REUSEADDR");
        let stream = TcpStream::connect(port.address()).expect("a connection");
        assert!(server.accept().is_ok());
        drop(stream);
    }

    /// More are asked for than a range of ports has.
    #[test]
    fn the_kernel_gives_a_held_port_to_none() {
        let held: Vec<Port> = (0..300).map(|_| Port::free()).collect();
        let mut numbers: Vec<u16> = held.iter().map(Port::number).collect();
        for _ in 0..30_000 {
            let other = TcpListener::bind("127.0.0.1:0").expect("a port");
            numbers.push(other.local_addr().expect("an address").port());
        }
        let (mine, others) = numbers.split_at(300);
        assert!(mine.iter().all(|number| !others.contains(number)));
    }
}
