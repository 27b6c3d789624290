//! A connection: messages in, messages and packets out.

use std::cell::Cell;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;

use bonsai_media::rtsp::Reader;
use bonsai_media::rtsp::server::MOST_REQUEST;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::SndBuf;
use rustix::event::epoll::EventFlags;

use super::root::FileId;
use super::secure::Tls;

/// Bytes of answers that wait to be taken before no more requests are heard; and of samples, where [`Waiting::MOST`]
/// wait for all viewers.
pub(super) const BACKLOG: usize = 64 << 10;

/// Seconds of a stream that wait to be taken before samples are left out for a slow viewer; and the least bytes of that,
/// in which a large picture fits, and the most.
const SECONDS: u64 = 4;
const LEAST: u64 = 512 << 10;
const MOST: u64 = 16 << 20;

/// Bytes that wait for all viewers of a server.
#[derive(Clone, Debug, Default)]
pub(super) struct Waiting(Rc<Cell<usize>>);

impl Waiting {
    const MOST: usize = 256 << 20;
}

/// Bytes that wait to be taken in the kernel, which would let them be megabytes.
const IN_KERNEL: usize = 256 << 10;

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: TcpStream,
    pub(super) peer: SocketAddr,
    pub(super) local: IpAddr,
    pub(super) reader: Reader,
    /// The number of its TLS handshake, as long as that goes on; nothing else is heard of it meanwhile.
    pub(super) shakes: Option<u64>,
    /// TLS of what is read, and of what waits and is sent.
    tls: Option<Box<Tls>>,
    out: Vec<u8>,
    sent: usize,
    /// Bytes of answers in it, and the end of the last.
    answers: usize,
    answered: usize,
    /// Bytes that wait here and elsewhere, and the part of them that waits here.
    all: Waiting,
    part: usize,
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
    pub(super) fn new(
        stream: TcpStream,
        peer: SocketAddr,
        all: Waiting,
        now: u64,
    ) -> io::Result<Self> {
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
            shakes: None,
            tls: None,
            out: Vec::new(),
            sent: 0,
            answers: 0,
            answered: 0,
            all,
            part: 0,
            stalled: None,
            begun: None,
            asked: now,
            held: None,
            awaits: Vec::new(),
            ends: false,
            waits: EventFlags::IN,
        })
    }

    /// Speaks TLS from now on.
    ///
    /// # Errors
    /// The connection is broken.
    pub(super) fn secure(&mut self, tls: Box<Tls>, now: u64) -> io::Result<()> {
        (self.shakes, self.tls) = (None, Some(tls));
        (self.begun, self.asked) = (None, now);
        self.send(&[], now)
    }

    pub(super) fn read(&mut self, buffer: &mut [u8], now: u64) -> Came {
        loop {
            let read = match &mut self.tls {
                Some(tls) => tls.read(&mut self.stream, buffer),
                None => self.stream.read(buffer),
            };
            let answers = self.tls.as_ref().is_some_and(|tls| tls.wants_write());
            if answers && self.send(&[], now).is_err() {
                return Came::End;
            }
            return match read {
                Ok(0) => Came::End,
                Ok(read) => Came::Bytes(read),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Came::Nothing,
                Err(_) => Came::End,
            };
        }
    }

    /// True where bytes have been decrypted and not been read, of which the socket tells nothing any more.
    pub(super) fn has_more(&mut self) -> bool {
        self.tls.as_mut().is_some_and(|tls| tls.has_more())
    }

    /// Ends TLS in order, as far as that is taken at once. A handshake that goes on ends by this, too.
    pub(super) fn farewell(&mut self) {
        let waits = self.waiting() > 0;
        match &mut self.tls {
            Some(tls) if !waits => tls.farewell(&mut self.stream),
            Some(_) => {}
            None if self.shakes.is_some() => {
                let _ = self.stream.shutdown(Shutdown::Both);
            }
            None => {}
        }
    }

    /// Bytes that wait to be taken.
    pub(super) fn waiting(&self) -> usize {
        self.out.len() - self.sent
    }

    /// Bytes that may wait before samples of a stream of that rate are left out.
    pub(super) fn room(&self, bytes_per_s: u64) -> usize {
        if self.all.0.get() > Waiting::MOST {
            return BACKLOG;
        }
        let room = bytes_per_s.saturating_mul(SECONDS).clamp(LEAST, MOST);
        usize::try_from(room).unwrap_or(BACKLOG)
    }

    /// True while requests are heard, which is as long as answers are taken.
    pub(super) const fn is_heard(&self) -> bool {
        self.answers <= BACKLOG && self.held.is_none() && self.shakes.is_none()
    }

    /// Sends an answer, now or when it is taken.
    ///
    /// # Errors
    /// The connection is broken.
    pub(super) fn answer(&mut self, bytes: &[u8], now: u64) -> io::Result<()> {
        let before = self.waiting();
        self.send(bytes, now)?;
        if self.waiting() > 0 {
            self.answers += self.waiting() - before;
            self.answered = self.out.len();
        }
        Ok(())
    }

    /// Something waits, or has been taken.
    fn count(&mut self) {
        let waiting = self.waiting();
        let all = self.all.0.get() - self.part + waiting;
        self.all.0.set(all);
        self.part = waiting;
        if waiting == 0 || self.sent >= self.answered {
            (self.answers, self.answered) = (0, 0);
        }
    }

    /// Sends bytes, now or when they are taken.
    ///
    /// # Errors
    /// The connection is broken.
    pub(super) fn send(&mut self, bytes: &[u8], now: u64) -> io::Result<()> {
        let Some(tls) = &mut self.tls else {
            return self.put(bytes, now);
        };
        let sealed = tls.seal(bytes)?;
        let put = self.put(&sealed, now);
        if let Some(tls) = &mut self.tls {
            tls.reuse(sealed);
        }
        put
    }

    /// Sends bytes as they are on the wire, now or when they are taken.
    fn put(&mut self, bytes: &[u8], now: u64) -> io::Result<()> {
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
            self.count();
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
            self.count();
        } else {
            self.count();
            // Each byte is moved once at most.
            if self.sent > BACKLOG.max(self.out.len() / 2) {
                self.out.drain(..self.sent);
                self.answered = self.answered.saturating_sub(self.sent);
                self.sent = 0;
            }
        }
        Ok(())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.all.0.set(self.all.0.get() - self.part);
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
