//! TLS, beside a connection: a thread that carries bytes between a socket with TLS and one without, so that
//! the engine has one kind of socket.

use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionbio, read, write};
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_timeout as get_socket_timeout};
use rustix::net::{AddressFamily, SendFlags, Shutdown, SocketFlags, SocketType};
use rustix::net::{send, shutdown, socketpair};
use rustls::{ServerConfig, ServerConnection};

use super::places::Place;

/// Plain bytes that are held in each direction, at most.
const HELD: usize = 256 << 10;

/// What a client gets to take what is left for it at the end.
const LAST: Timespec = Timespec {
    tv_sec: 5,
    tv_nsec: 0,
};

/// Starts TLS on a socket, and gives one without for what is inside. The connection is counted until both have ended.
pub(super) fn start(
    socket: OwnedFd,
    config: Arc<ServerConfig>,
    place: Arc<Place>,
) -> io::Result<OwnedFd> {
    let session = ServerConnection::new(config).map_err(io::Error::other)?;
    let flags = SocketFlags::CLOEXEC;
    let (inside, own) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Who does not read what it asked for is left after the same time as without TLS.
    let patience = get_socket_timeout(&socket, Timeout::Send)?;
    set_socket_timeout(&inside, Timeout::Send, patience)?;
    ioctl_fionbio(&own, true)?;
    ioctl_fionbio(&socket, true)?;
    let carrier = Carrier {
        tls: session,
        outside: socket,
        inside: own,
        plain: Vec::new(),
        over: false,
        _place: place,
    };
    thread::Builder::new()
        .name("nbd-tls".to_owned())
        .spawn(move || carrier.run())?;
    Ok(inside)
}

struct Carrier {
    tls: ServerConnection,
    outside: OwnedFd,
    inside: OwnedFd,
    /// What has come and is not inside yet.
    plain: Vec<u8>,
    /// Nothing more comes from outside.
    over: bool,
    _place: Arc<Place>,
}

impl Carrier {
    fn run(mut self) {
        // Whatever ends it: both sides see an end.
        while let Ok(true) = self.turn() {}
        let _ = shutdown(&self.outside, Shutdown::Both);
        let _ = shutdown(&self.inside, Shutdown::Both);
    }

    /// Waits, and carries; false at the end.
    fn turn(&mut self) -> io::Result<bool> {
        let mut outside = PollFlags::empty();
        if !self.over && self.plain.len() < HELD {
            outside |= PollFlags::IN;
        }
        let full = self.tls.wants_write();
        if full {
            outside |= PollFlags::OUT;
        }
        let mut inside = PollFlags::empty();
        if !full && !self.tls.is_handshaking() {
            inside |= PollFlags::IN;
        }
        if !self.plain.is_empty() {
            inside |= PollFlags::OUT;
        }
        let mut fds = [
            PollFd::new(&self.outside, outside),
            PollFd::new(&self.inside, inside),
        ];
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let [outside, inside] = [fds[0].revents(), fds[1].revents()];
        let broken = PollFlags::ERR | PollFlags::NVAL;
        if outside.intersects(broken) || (inside.intersects(broken) && self.plain.is_empty()) {
            return Ok(false);
        }
        if full && inside.intersects(PollFlags::HUP) && !outside.intersects(PollFlags::OUT) {
            // The engine has gone. What it left for the client waits, but not for long.
            let mut fds = [PollFd::new(&self.outside, PollFlags::OUT)];
            if poll(&mut fds, Some(&LAST))? == 0 {
                return Ok(false);
            }
        }
        if outside.intersects(PollFlags::IN | PollFlags::HUP) && !self.over {
            self.receive_outside()?;
        }
        if !self.plain.is_empty() {
            self.send_inside()?;
        }
        if inside.intersects(PollFlags::IN | PollFlags::HUP) && !full && !self.receive_inside()? {
            self.tls.send_close_notify();
            while self.tls.wants_write() && self.send_outside()? {}
            return Ok(false);
        }
        while self.tls.wants_write() && self.send_outside()? {}
        Ok(true)
    }

    fn receive_outside(&mut self) -> io::Result<()> {
        match self.tls.read_tls(&mut Descriptor(&self.outside)) {
            Ok(0) => self.over = true,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
        let state = self.tls.process_new_packets();
        let Ok(state) = state else {
            // What is wrong is told to the client before it is closed.
            self.send_outside()?;
            return Err(io::ErrorKind::InvalidData.into());
        };
        let more = state.plaintext_bytes_to_read();
        let start = self.plain.len();
        self.plain.resize(start + more, 0);
        self.tls
            .reader()
            .read_exact(self.plain.get_mut(start..).unwrap_or_default())?;
        self.over |= state.peer_has_closed();
        if self.over && self.plain.is_empty() {
            let _ = shutdown(&self.inside, Shutdown::Write);
        }
        Ok(())
    }

    fn send_inside(&mut self) -> io::Result<()> {
        match send(
            &self.inside,
            &self.plain,
            SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
        ) {
            Ok(sent) => drop(self.plain.drain(..sent)),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if self.over && self.plain.is_empty() {
            let _ = shutdown(&self.inside, Shutdown::Write);
        }
        Ok(())
    }

    /// False at the end of what is inside.
    fn receive_inside(&mut self) -> io::Result<bool> {
        let mut bytes = vec![0; 64 << 10];
        match read(&self.inside, &mut bytes) {
            Ok(0) => return Ok(false),
            Ok(count) => self
                .tls
                .writer()
                .write_all(bytes.get(..count).unwrap_or_default())?,
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(true)
    }

    /// False where the client takes no more for now.
    fn send_outside(&mut self) -> io::Result<bool> {
        match self.tls.write_tls(&mut Descriptor(&self.outside)) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// A socket as rustls wants it.
struct Descriptor<'a>(&'a OwnedFd);

impl io::Read for Descriptor<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Ok(read(self.0, into)?)
    }
}

impl io::Write for Descriptor<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(write(self.0, bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
