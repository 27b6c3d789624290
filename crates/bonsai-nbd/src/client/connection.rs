//! A session over a socket.

use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use thiserror::Error;

use super::{Agreed, Ask, ClientError, Event, Handshake, Place, Session, Uri};
use crate::protocol::Command;

/// What is received at once, bytes.
const INBOX: usize = 256 << 10;

/// Why there is no connection, or no longer.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The system says so.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The server is at fault, or refuses.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// It said nothing for so long.
    #[error("the server does not answer within {} s", .0.as_secs())]
    Silent(Duration),
    /// It has gone.
    #[error("the server has closed the connection")]
    Closed,
}

/// A connection to an export. Nothing in it waits but [`Self::open`] and [`Self::turn`].
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
    session: Session,
    inbox: Inbox,
    out: Vec<u8>,
    sent: usize,
}

/// Bytes that came and were not used.
#[derive(Debug)]
struct Inbox {
    bytes: Vec<u8>,
    used: usize,
    end: usize,
}

impl Connection {
    /// Connects, and agrees on an export; with `structured`, reads are answered in chunks where the server can.
    ///
    /// # Errors
    /// [`OpenError`]; the server may take so long for all of it.
    pub fn open(uri: &Uri, structured: bool, patience: Duration) -> Result<Self, OpenError> {
        let socket: OwnedFd = match &uri.place {
            Place::Unix(path) => UnixStream::connect(path)?.into(),
            Place::Tcp { host, port } => {
                let stream = TcpStream::connect((host.as_str(), *port))?;
                stream.set_nodelay(true)?;
                stream.into()
            }
        };
        let deadline = Instant::now() + patience;
        let mut shake = Handshake::new(&uri.export, structured);
        let mut inbox = Inbox::new();
        let mut out = Vec::new();
        loop {
            let (used, agreed) = shake.push(inbox.rest(), &mut out)?;
            inbox.used += used;
            if let Some(agreed) = agreed {
                return Ok(Self {
                    socket,
                    session: Session::new(agreed),
                    inbox,
                    out: Vec::new(),
                    sent: 0,
                });
            }
            // Some hundred bytes: any socket has room for them.
            if !out.is_empty() {
                let sent = send(&socket, &out, SendFlags::NOSIGNAL).map_err(io::Error::from)?;
                out.drain(..sent);
            }
            if used == 0 {
                let left = deadline.saturating_duration_since(Instant::now());
                wait(socket.as_fd(), PollFlags::IN, left)?;
                if left.is_zero() {
                    return Err(OpenError::Silent(patience));
                }
                inbox.fill(socket.as_fd())?;
            }
        }
    }

    /// What was agreed on.
    #[must_use]
    pub const fn agreed(&self) -> &Agreed {
        self.session.agreed()
    }

    /// Requests that are not done.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.session.in_flight()
    }

    /// Whether [`Self::send`] has something to do.
    #[must_use]
    pub const fn is_sending(&self) -> bool {
        self.sent < self.out.len()
    }

    /// Has a request sent with the next [`Self::send`]. `payload` is what a write writes: as long as it says. Returns
    /// its cookie.
    pub fn ask(&mut self, ask: Ask, payload: &[u8]) -> u64 {
        if self.sent == self.out.len() {
            self.out.clear();
            self.sent = 0;
        }
        let cookie = self.session.ask(ask, &mut self.out);
        if ask.command == Command::Write {
            self.out.extend_from_slice(payload);
        }
        cookie
    }

    /// Sends as much as the socket takes now.
    ///
    /// # Errors
    /// The system's.
    pub fn send(&mut self) -> Result<(), OpenError> {
        while let Some(bytes) = self.out.get(self.sent..).filter(|bytes| !bytes.is_empty()) {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match send(&self.socket, bytes, flags) {
                Ok(sent) => self.sent += sent,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(OpenError::Closed),
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
        Ok(())
    }

    /// Takes what the socket has now, and says what it means.
    ///
    /// # Errors
    /// The system's, or the server has gone or breaks the protocol.
    pub fn receive(&mut self, on: &mut dyn FnMut(Event<'_>)) -> Result<(), OpenError> {
        loop {
            let got = self.inbox.fill(self.socket.as_fd())?;
            let used = self.session.push(self.inbox.rest(), on)?;
            self.inbox.used += used;
            if !got {
                return Ok(());
            }
        }
    }

    /// Waits until something can be sent or received, at most so long, and does that.
    ///
    /// # Errors
    /// As [`Self::send`] and [`Self::receive`].
    pub fn turn(&mut self, most: Duration, on: &mut dyn FnMut(Event<'_>)) -> Result<(), OpenError> {
        self.send()?;
        let flags = match self.is_sending() {
            true => PollFlags::IN | PollFlags::OUT,
            false => PollFlags::IN,
        };
        wait(self.socket.as_fd(), flags, most)?;
        self.send()?;
        self.receive(on)
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Who has requests in flight does not say goodbye.
        if self.session.in_flight() == 0 && !self.is_sending() {
            self.ask(
                Ask {
                    command: Command::Disconnect,
                    flags: 0,
                    offset: 0,
                    length: 0,
                },
                &[],
            );
            let _ = self.send();
        }
    }
}

impl Inbox {
    fn new() -> Self {
        Self {
            bytes: vec![0; INBOX],
            used: 0,
            end: 0,
        }
    }

    fn rest(&self) -> &[u8] {
        self.bytes.get(self.used..self.end).unwrap_or_default()
    }

    /// Receives what is there; false where that is nothing now.
    fn fill(&mut self, socket: BorrowedFd<'_>) -> Result<bool, OpenError> {
        // What is left is a piece of a header: little is moved.
        self.bytes.copy_within(self.used..self.end, 0);
        self.end -= self.used;
        self.used = 0;
        let room = self.bytes.get_mut(self.end..).unwrap_or_default();
        match recv(socket, room, RecvFlags::DONTWAIT) {
            Ok((0, _)) => Err(OpenError::Closed),
            Ok((got, _)) => {
                self.end += got;
                Ok(true)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(Errno::CONNRESET) => Err(OpenError::Closed),
            Err(error) => Err(io::Error::from(error).into()),
        }
    }
}

fn wait(socket: BorrowedFd<'_>, flags: PollFlags, most: Duration) -> io::Result<()> {
    let most = Timespec::try_from(most).unwrap_or(Timespec {
        tv_sec: 3600,
        tv_nsec: 0,
    });
    match poll(&mut [PollFd::from_borrowed_fd(socket, flags)], Some(&most)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
