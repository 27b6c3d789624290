//! TCP sockets with a receive buffer of a given size.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};

/// How long a server may take to answer at the beginning.
pub(crate) const START: Duration = Duration::from_secs(5);

/// A connection to a server that may just be starting.
pub(crate) fn connect(server: SocketAddr, buffer: Option<usize>) -> anyhow::Result<TcpStream> {
    let start = Instant::now();
    loop {
        let socket = socket(server, buffer)?;
        match net::connect(&socket, &server) {
            Ok(()) => return Ok(socket.into()),
            Err(_) if start.elapsed() < START => thread::sleep(Duration::from_millis(20)),
            Err(error) => return Err(error).context(format!("{server} does not answer")),
        }
    }
}

/// A TCP socket for that address. A receive buffer of its own must be there before
/// the handshake; accepted sockets inherit it.
pub(crate) fn socket(address: SocketAddr, buffer: Option<usize>) -> anyhow::Result<OwnedFd> {
    let family = if address.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let socket = net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    if let Some(bytes) = buffer {
        sockopt::set_socket_recv_buffer_size(&socket, bytes)?;
    }
    Ok(socket)
}
