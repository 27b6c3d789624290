//! A connection: messages in, messages and packets out.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use bonsai_media::rtsp::Reader;
use bonsai_media::rtsp::server::MOST_REQUEST;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::SndBuf;
use rustix::event::epoll::EventFlags;

use super::root::FileId;

/// Bytes that wait to be taken before samples are left out for a viewer who is slow: two pictures of a
/// stream of 2 Mbit/s that decoding can begin with.
pub(super) const BACKLOG: usize = 64 << 10;

/// Bytes that wait to be taken in the kernel, which would let them be megabytes.
const IN_KERNEL: usize = 256 << 10;

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: TcpStream,
    pub(super) peer: SocketAddr,
    pub(super) local: IpAddr,
    pub(super) reader: Reader,
    out: Vec<u8>,
    sent: usize,
    /// Since when something waits that is not taken.
    pub(super) stalled: Option<u64>,
    /// When the request began that is not there as a whole, and when the last one was.
    pub(super) begun: Option<u64>,
    pub(super) asked: u64,
    /// Since when its request waits for a clip to be read; nothing else is heard of it meanwhile.
    pub(super) held: Option<u64>,
    /// The files that are to be read for that; none if others come before them.
    pub(super) awaits: Vec<FileId>,
    /// Whether it is closed when all is sent.
    pub(super) ends: bool,
    /// What it is waited for.
    pub(super) waits: EventFlags,
}

/// What came of reading.
pub(super) enum Came {
    /// So much is in the buffer.
    Bytes(usize),
    /// Nothing for now.
    Nothing,
    /// Nothing ever again.
    End,
}

impl Connection {
    pub(super) fn new(stream: TcpStream, peer: SocketAddr, now: u64) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        // Packets do not wait for each other.
        stream.set_nodelay(true)?;
        // As much as a picture and its second take; what a viewer is behind by waits nowhere.
        let _ = setsockopt(&stream, SndBuf, &IN_KERNEL);
        let local = stream.local_addr()?.ip().to_canonical();
        Ok(Self {
            stream,
            peer,
            local,
            reader: Reader::with_most(MOST_REQUEST),
            out: Vec::new(),
            sent: 0,
            stalled: None,
            begun: None,
            asked: now,
            held: None,
            awaits: Vec::new(),
            ends: false,
            waits: EventFlags::IN,
        })
    }

    pub(super) fn read(&mut self, buffer: &mut [u8]) -> Came {
        loop {
            return match self.stream.read(buffer) {
                Ok(0) => Came::End,
                Ok(read) => Came::Bytes(read),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Came::Nothing,
                Err(_) => Came::End,
            };
        }
    }

    /// Bytes that wait to be taken.
    pub(super) fn waiting(&self) -> usize {
        self.out.len() - self.sent
    }

    /// Sends bytes, now or when they are taken.
    ///
    /// # Errors
    /// The connection is broken.
    pub(super) fn send(&mut self, bytes: &[u8], now: u64) -> io::Result<()> {
        let mut rest = bytes;
        while self.waiting() == 0 && !rest.is_empty() {
            match self.stream.write(rest) {
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        if !rest.is_empty() {
            if self.waiting() == 0 {
                self.out.clear();
                self.sent = 0;
                self.stalled = Some(now);
            }
            self.out.extend_from_slice(rest);
        }
        Ok(())
    }

    /// Sends what waits, as far as it is taken.
    ///
    /// # Errors
    /// The connection is broken.
    pub(super) fn flush(&mut self, now: u64) -> io::Result<()> {
        while self.waiting() > 0 {
            match self.stream.write(&self.out[self.sent..]) {
                Ok(written) => {
                    self.sent += written;
                    self.stalled = Some(now);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        if self.waiting() == 0 {
            // What was needed once is not kept by each of thousands.
            self.out = Vec::new();
            self.sent = 0;
            self.stalled = None;
        } else if self.sent > BACKLOG {
            self.out.drain(..self.sent);
            self.sent = 0;
        }
        Ok(())
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
