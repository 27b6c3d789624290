//! One connection, from its greeting to its end.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::inbox::{Inbox, receive};
use super::link::{Link, send_all};
use super::perform::{Job, change, count_read, fail, refuse};
use super::{Ended, Listed, tls};
use crate::export::{Export, add};
use crate::image::Now;
use crate::protocol::{Command, HEADER_BYTES, Handshake, Request, Session, Step, Tls};
use crate::throttle::{Throttle, Till};

/// Reads up to this size are tried at once. What is larger is left to workers.
const AT_ONCE: usize = 1 << 20;
/// Replies are sent once so many bytes of them are there. (More go with one call, but a client could begin.)
const TOGETHER: usize = 128 << 10;
/// Writes of whole pages up to this size are done at once: a copy into the page cache.
const WRITTEN_AT_ONCE: u32 = 256 << 10;
const PAGE: u64 = 4096;
/// Data of a refused write that is skipped; whoever sends more is sent away.
const MOST_SKIPPED: u32 = 64 << 20;

/// What a connection is of.
pub(super) struct House {
    pub(super) exports: Vec<Arc<Export>>,
    pub(super) tls: Option<Arc<rustls::ServerConfig>>,
    pub(super) negotiation: Duration,
}

/// A client that has an export.
pub(super) struct Client {
    pub(super) link: Arc<Link>,
    inbox: Inbox,
}

/// Negotiates; `None` where the client wanted nothing.
pub(super) fn negotiate(socket: OwnedFd, house: &House) -> Result<Option<Client>, Ended> {
    let deadline = Instant::now() + house.negotiation;
    let mut socket = socket;
    // Who does not read what it asked for is as slow as who does not ask.
    let timeout = Some(house.negotiation);
    rustix::net::sockopt::set_socket_timeout(
        &socket,
        rustix::net::sockopt::Timeout::Send,
        timeout,
    )?;
    let policy = if house.tls.is_some() {
        Tls::Required
    } else {
        Tls::None
    };
    let mut shake = Handshake::new(policy);
    let mut inbox = Inbox::new();
    let mut out = Handshake::greeting().to_vec();
    let exports = Listed(&house.exports);
    loop {
        send_all(socket.as_fd(), &out)?;
        out.clear();
        let (used, step) = shake.push(inbox.bytes(), &exports, &mut out)?;
        inbox.consume(used);
        match step {
            Step::More if used > 0 => {}
            Step::More => {
                if !inbox.fill_until(socket.as_fd(), deadline, house.negotiation)? {
                    return if inbox.is_empty() {
                        Ok(None)
                    } else {
                        Err(Ended::Torn)
                    };
                }
            }
            Step::Close => {
                send_all(socket.as_fd(), &out)?;
                return Ok(None);
            }
            Step::StartTls => {
                if !inbox.is_empty() {
                    return Err(Ended::Injected);
                }
                send_all(socket.as_fd(), &out)?;
                out.clear();
                if let Some(config) = &house.tls {
                    socket = tls::start(socket, Arc::clone(config))?;
                    shake.tls_is_there();
                }
            }
            Step::Ready(session) => {
                send_all(socket.as_fd(), &out)?;
                return Ok(client(socket, inbox, house, session)?);
            }
        }
    }
}

fn client(
    socket: OwnedFd,
    inbox: Inbox,
    house: &House,
    session: Session,
) -> std::io::Result<Option<Client>> {
    use rustix::net::sockopt::{Timeout, set_socket_send_buffer_size, set_socket_timeout};
    set_socket_timeout(&socket, Timeout::Send, None)?;
    // The most that the system lets anybody have; a reply of 128 KiB fits as a whole.
    set_socket_send_buffer_size(&socket, 4 << 20)?;
    let Some(export) = house.exports.get(session.export) else {
        return Ok(None);
    };
    let link = Arc::new(Link::new(socket, Arc::clone(export), session));
    Ok(Some(Client { link, inbox }))
}

impl Client {
    /// Serves requests until the client has had enough.
    pub(super) fn serve(self) -> Result<(), Ended> {
        let link = Arc::clone(&self.link);
        add(&link.export.counters.connections, 1);
        let ended = self.requests();
        if ended.is_err() {
            link.die();
        }
        link.drain();
        link.export
            .counters
            .connections
            .fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
        ended
    }

    fn requests(self) -> Result<(), Ended> {
        let Self { link, mut inbox } = self;
        let mut batch = Batch::new();
        let till = link.export.throttle().map(Throttle::enter);
        loop {
            let Some(header) = inbox.bytes().first_chunk::<HEADER_BYTES>() else {
                batch.send(&link)?;
                if !inbox.fill(link.socket())? {
                    return if inbox.is_empty() {
                        Ok(())
                    } else {
                        Err(Ended::Torn)
                    };
                }
                continue;
            };
            let request = Request::parse(header)?;
            if request.command == Command::Disconnect {
                return batch.send(&link);
            }
            if let Err(error) = request.check(link.export.info(), &link.session) {
                add(&link.export.counters.refused, 1);
                inbox.consume(HEADER_BYTES);
                skip(&link, &mut inbox, &mut batch, request.payload())?;
                batch.with(&link, |out| refuse(&link, &request, error, out))?;
                continue;
            }
            if !admit(&link, &request, till, &mut batch)? {
                return Ok(());
            }
            match request.command {
                Command::Read => {
                    inbox.consume(HEADER_BYTES);
                    read(&link, &request, &mut batch)?;
                }
                Command::Write => {
                    if !write(&link, &request, &mut inbox, &mut batch)? {
                        return Err(Ended::Torn);
                    }
                }
                _ => {
                    inbox.consume(HEADER_BYTES);
                    hand_over(&link, request, Vec::new(), &mut batch)?;
                }
            }
        }
    }
}

/// Waits until a request is due by the limits of its export, and notes it; false where its client has gone.
fn admit(
    link: &Link,
    request: &Request,
    till: Option<Till>,
    batch: &mut Batch,
) -> Result<bool, Ended> {
    let counted = request.counted().zip(link.export.throttle().zip(till));
    let Some(((writes, bytes), (throttle, till))) = counted else {
        return Ok(true);
    };
    if let Some(place) = throttle.place(writes, bytes) {
        batch.send(link)?;
        if !throttle.wait(till, &place, || link.is_over()) {
            return Ok(false);
        }
    }
    throttle.count(till, writes, bytes);
    Ok(true)
}

/// Answers at once what the page cache has, and leaves the rest to workers.
fn read(link: &Arc<Link>, request: &Request, batch: &mut Batch) -> Result<(), Ended> {
    let length = request.length as usize;
    if length == 0 {
        let replies = link.replies();
        return batch.with(link, |out| replies.read_nothing(request.cookie, out));
    }
    let header = link.replies().read_header_bytes();
    if length <= AT_ONCE {
        if batch.room() < header + length {
            batch.send(link)?;
        }
        let into = batch.at(header, length);
        match link.export.read_now(into, request.offset) {
            Ok(Now::Done) => {
                let replies = link.replies();
                let into = batch.at(0, header);
                replies.read_header(request.cookie, request.offset, request.length, into);
                count_read(&link.export, request.length);
                add(&link.export.counters.at_once, 1);
                return batch.advance(link, header + length);
            }
            Ok(Now::WouldWait) => {}
            Err(error) => return batch.with(link, |out| fail(link, request, &error, out)),
        }
    }
    hand_over(link, *request, Vec::new(), batch)
}

/// Writes at once what is a copy into the page cache, and leaves the rest to workers. False where the
/// client went before all of the data was there.
fn write(
    link: &Arc<Link>,
    request: &Request,
    inbox: &mut Inbox,
    batch: &mut Batch,
) -> Result<bool, Ended> {
    let length = request.length as usize;
    let whole = (request.offset | u64::from(request.length)).is_multiple_of(PAGE);
    let at_once = whole && !request.fua() && request.length <= WRITTEN_AT_ONCE;
    if at_once && Inbox::fits(HEADER_BYTES + length) {
        while inbox.bytes().len() < HEADER_BYTES + length {
            // What is done is answered before more is waited for.
            batch.send(link)?;
            if !inbox.fill(link.socket())? {
                return Ok(false);
            }
        }
        let payload = inbox.bytes().get(HEADER_BYTES..HEADER_BYTES + length);
        let done = change(&link.export, request, payload.unwrap_or_default());
        inbox.consume(HEADER_BYTES + length);
        batch.with(link, |out| match &done {
            Ok(()) => link.replies().done(request.cookie, out),
            Err(error) => fail(link, request, error, out),
        })?;
        return Ok(true);
    }
    inbox.consume(HEADER_BYTES);
    let mut payload = link.export.pool.memory(length);
    let mut rest = payload.get_mut(..length).unwrap_or_default();
    let taken = inbox.take(rest);
    rest = rest.get_mut(taken..).unwrap_or_default();
    while !rest.is_empty() {
        batch.send(link)?;
        let read = receive(link.socket(), rest)?;
        if read == 0 {
            return Ok(false);
        }
        rest = rest.get_mut(read..).unwrap_or_default();
    }
    hand_over(link, *request, payload, batch)?;
    Ok(true)
}

/// Gives a request to the workers of its export.
fn hand_over(
    link: &Arc<Link>,
    request: Request,
    payload: Vec<u8>,
    batch: &mut Batch,
) -> Result<(), Ended> {
    let counted = match request.command {
        Command::Read | Command::Write => request.length as usize,
        _ => 0,
    };
    if !link.has_room() {
        batch.send(link)?;
    }
    link.enter(counted);
    link.export.pool.push(Job {
        link: Arc::clone(link),
        request,
        payload,
        counted,
    });
    Ok(())
}

/// Skips the data of a write that is refused.
fn skip(link: &Link, inbox: &mut Inbox, batch: &mut Batch, bytes: u32) -> Result<(), Ended> {
    if bytes > MOST_SKIPPED {
        return Err(Ended::TooLong(bytes));
    }
    let mut left = bytes as usize;
    loop {
        let here = left.min(inbox.bytes().len());
        inbox.consume(here);
        left -= here;
        if left == 0 {
            return Ok(());
        }
        batch.send(link)?;
        if !inbox.fill(link.socket())? {
            return Err(Ended::Torn);
        }
    }
}

/// Replies that go out with one call. Its memory is used again and again, so that it stays in
/// the processor's cache.
struct Batch {
    bytes: Vec<u8>,
    used: usize,
}

impl Batch {
    fn new() -> Self {
        Self {
            bytes: vec![0; AT_ONCE + TOGETHER],
            used: 0,
        }
    }

    const fn room(&self) -> usize {
        self.bytes.len() - self.used
    }

    /// Memory behind what is there.
    fn at(&mut self, skip: usize, length: usize) -> &mut [u8] {
        let start = self.used + skip;
        self.bytes
            .get_mut(start..start + length)
            .unwrap_or_default()
    }

    /// So many bytes more are there.
    fn advance(&mut self, link: &Link, bytes: usize) -> Result<(), Ended> {
        self.used += bytes;
        match self.used >= TOGETHER {
            true => self.send(link),
            false => Ok(()),
        }
    }

    /// Adds a reply without much data.
    fn with(&mut self, link: &Link, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), Ended> {
        let mut out = Vec::with_capacity(64);
        write(&mut out);
        if self.room() < out.len() {
            self.send(link)?;
        }
        let into = self.at(0, out.len());
        into.copy_from_slice(&out);
        self.advance(link, out.len())
    }

    fn send(&mut self, link: &Link) -> Result<(), Ended> {
        let used = std::mem::take(&mut self.used);
        match self.bytes.get(..used) {
            Some(bytes) if used > 0 => link.send(bytes),
            _ => Ok(()),
        }
    }
}
