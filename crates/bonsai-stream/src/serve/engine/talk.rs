//! What comes: connections, requests, reports.

use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd as _, OwnedFd};
use std::task::Poll;

use bonsai_media::rtcp;
use bonsai_media::rtsp::server::Server;
use rtsp_types::Message;
use rustix::event::epoll::{self, EventFlags};

use super::super::connection::{Came, Connection};
use super::super::house::{House, Peer};
use super::super::secure;
use super::super::stream::Stream;
use super::super::{Event, network, plain};
use super::{EVENTS, EXHAUSTED, Engine, Of, unix};
use crate::clock::now;

/// Connections of an address beside those that it may have for sessions.
const BESIDE: u32 = 16;

/// How often a connection is read before others are.
const TURNS: usize = 16;

/// What somebody is told who is not let in (RFC 2326, 7.1.1).
const FULL: &[u8] = b"RTSP/1.0 503 Service Unavailable\r\nConnection: close\r\n\r\n";

impl Engine<'_> {
    pub(super) fn accept(&mut self) {
        for _ in 0..EVENTS {
            match self.listener.accept() {
                Ok((stream, peer)) => self.come(stream, plain(peer)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_exhausted(&error) => {
                    // Whoever waits is let in when somebody has gone.
                    let _ = epoll::delete(&self.epoll, &self.listener);
                    self.accepts_at = now() + EXHAUSTED;
                    return;
                }
                // Who came has gone again.
                Err(_) => {}
            }
        }
    }

    fn come(&mut self, stream: TcpStream, peer: SocketAddr) {
        let here = self.connections.len() - self.free.len();
        if here >= usize::try_from(self.house.plan.limits.connections).unwrap_or(usize::MAX) {
            let why = format!("there are {here} connections, as many as may be");
            return self.turn_away(&stream, peer, &why);
        }
        let from = network(peer.ip());
        let of_it = self.places.get(&from).copied().unwrap_or(0);
        // Twice as many as its sessions: whoever comes back may be there before it has gone.
        if of_it
            >= self
                .house
                .plan
                .limits
                .per_address
                .saturating_mul(2)
                .saturating_add(BESIDE)
        {
            let why = format!("{from} has {of_it} connections, as many as it may have");
            return self.turn_away(&stream, peer, &why);
        }
        let index = self.free.pop().unwrap_or(self.connections.len());
        let waiting = self.waiting.clone();
        let connection =
            Connection::new(stream, peer, waiting, now()).and_then(|mut connection| {
                match &mut self.handshakes {
                    // Events of it are the other thread's as long as its handshake goes on.
                    Some(handshakes) => {
                        connection.shakes = Some(handshakes.begin(&connection.stream)?);
                    }
                    None => wait_for(&self.epoll, index, &connection)?,
                }
                Ok(connection)
            });
        if index == self.connections.len() {
            self.connections.push(None);
            self.house.peers.push(None);
        }
        match connection {
            Ok(connection) => {
                self.house.peers[index] = Some(Peer {
                    peer,
                    local: connection.local,
                    sessions: 0,
                });
                let shakes = connection.shakes;
                self.connections[index] = Some(connection);
                *self.places.entry(from).or_default() += 1;
                self.shaking.extend(shakes.map(|number| (index, number)));
                self.make_room();
            }
            Err(_) => self.free.push(index),
        }
    }

    fn turn_away(&mut self, mut stream: &TcpStream, peer: SocketAddr, why: &str) {
        // Whoever does not take it at once hears nothing; nor does TLS, whose handshake would cost a place.
        if self.handshakes.is_none() {
            let _ = stream.set_nonblocking(true);
            let _ = stream.write(FULL);
        }
        self.refuse(peer, why);
    }

    /// Ends the oldest handshake where there are more than may be: strangers who begin them and say no more keep others
    /// out no longer than that.
    fn make_room(&mut self) {
        if self.shaking.len() <= secure::MOST {
            return;
        }
        let Some((index, _)) = self.shaking.pop_front() else {
            return;
        };
        if let Some(Some(connection)) = self.connections.get(index) {
            self.refuse(connection.peer, "its TLS handshake makes room for others");
        }
        self.close(index);
    }

    /// Handshakes are over.
    pub(super) fn shaken(&mut self) {
        let Some(handshakes) = &self.handshakes else {
            return;
        };
        for shaken in handshakes.take() {
            // The connection may have gone meanwhile.
            let is_it = |(_, number): &(usize, u64)| *number == shaken.number;
            let Some(at) = self.shaking.iter().position(is_it) else {
                continue;
            };
            let Some((index, _)) = self.shaking.remove(at) else {
                continue;
            };
            let Some(Some(connection)) = self.connections.get_mut(index) else {
                continue;
            };
            let peer = connection.peer;
            let began = shaken.tls.map(|tls| {
                wait_for(&self.epoll, index, connection)?;
                connection.secure(tls, now())
            });
            match began {
                // The first request may have come with the end of the handshake.
                Ok(Ok(())) => self.talk(index, false),
                Ok(Err(_)) => self.close(index),
                Err(why) => {
                    if let Some(why) = why {
                        self.refuse(peer, &why);
                    }
                    self.close(index);
                }
            }
        }
    }

    /// Reads what has been decrypted already; whether there is more.
    pub(super) fn read_on(&mut self) -> bool {
        for index in std::mem::take(&mut self.rest) {
            self.talk(index, false);
        }
        !self.rest.is_empty()
    }

    pub(super) fn refuse(&mut self, peer: SocketAddr, why: &str) {
        self.refused += 1;
        self.house.tell(&Event::Refused { peer, why });
    }

    /// Something was read that requests may wait for.
    pub(super) fn loaded(&mut self) {
        let came = self.house.root.loaded();
        let is_asked = |of: &Connection| of.awaits.iter().any(|awaited| came.contains(awaited));
        let asked = (0..self.connections.len())
            .filter(|index| self.connections[*index].as_ref().is_some_and(is_asked));
        self.again.extend(asked);
        self.again.sort_unstable();
        self.again.dedup();
    }

    /// Answers requests whose clip may be there now, some at a time; whether there are more.
    pub(super) fn ask_again(&mut self) -> bool {
        for _ in 0..TURNS {
            let Some(index) = self.again.pop() else {
                return false;
            };
            let connection = self.connections.get(index).and_then(Option::as_ref);
            let root = &self.house.root;
            if connection.is_some_and(|of| of.held.is_some() && !root.is_full(&of.awaits)) {
                self.answer(index, now());
                self.waits(index);
            }
        }
        !self.again.is_empty()
    }

    /// Answers a request without its clip, which is not read in time: streams of its connection go on.
    pub(super) fn give_up(&mut self, index: usize, at: u64) {
        self.house.gives_up = true;
        self.answer(index, at);
        self.house.gives_up = false;
        self.waits(index);
    }

    /// A connection can be read or takes more, or is broken.
    pub(super) fn talk(&mut self, index: usize, is_broken: bool) {
        let at = now();
        let Some(Some(connection)) = self.connections.get_mut(index) else {
            return;
        };
        if connection.flush(at).is_err() {
            return self.close(index);
        }
        if connection.held.is_some() {
            match is_broken {
                true => self.close(index),
                false => self.waits(index),
            }
            return;
        }
        // Whoever asks faster than it is answered, or does not take the answers, waits for its turn.
        for _ in 0..TURNS {
            let Some(Some(connection)) = self.connections.get_mut(index) else {
                return;
            };
            if !connection.is_heard() {
                break;
            }
            match connection.read(&mut self.buffer[..4096], at) {
                Came::Nothing => break,
                Came::End => return self.close(index),
                Came::Bytes(read) => {
                    connection.reader.add(&self.buffer[..read]);
                    if !self.answer(index, at) {
                        break;
                    }
                }
            }
        }
        self.waits(index);
    }

    /// Answers all requests that are there; whether others may follow.
    fn answer(&mut self, index: usize, at: u64) -> bool {
        let mut has_answered = false;
        loop {
            let Some(Some(connection)) = self.connections.get_mut(index) else {
                return false;
            };
            let (peer, mut why) = (connection.peer, None);
            let bytes = match connection.reader.message() {
                Ok(None) => break,
                Ok(Some(Message::Request(request))) => {
                    self.house.asking = index;
                    self.house.asked_at = connection.held.unwrap_or(at);
                    let answer = self.server.answer(&request, index, &mut self.house, at);
                    let Poll::Ready(answer) = answer else {
                        connection.reader.again();
                        connection.begun = None;
                        connection.asked = at;
                        connection.held.get_or_insert(at);
                        connection.awaits = self.house.root.awaited();
                        return false;
                    };
                    (connection.held, connection.awaits) = (None, Vec::new());
                    if let Some(refusal) = answer.refused {
                        why = Some(format!("{}: {}", u16::from(refusal.status), refusal.why));
                    }
                    connection.asked = at;
                    has_answered = true;
                    answer.bytes
                }
                Ok(Some(Message::Data(data))) => {
                    // Of a stream that goes another way, or to somebody else, nothing is said here.
                    let session = reported(data.as_slice(), &mut self.house, |stream| {
                        stream.connection == index
                    });
                    if let Some(session) = session {
                        self.server.alive(session, at);
                    }
                    continue;
                }
                // Nothing was asked of a viewer.
                Ok(Some(Message::Response(_))) => continue,
                Err(wrong) => {
                    connection.ends = true;
                    why = Some(format!("400: {wrong}"));
                    Server::unreadable()
                }
            };
            let is_sent = connection.answer(&bytes, at).is_ok();
            let ends = connection.ends;
            if let Some(why) = why {
                self.refuse(peer, &why);
            }
            self.pairs();
            self.all_gone();
            if !is_sent || ends {
                self.close(index);
                return false;
            }
        }
        if let Some(Some(connection)) = self.connections.get_mut(index) {
            connection.begun = match connection.reader.has_begun() {
                // What is there now began behind a request that has been answered.
                true if has_answered => Some(at),
                true => connection.begun.or(Some(at)),
                false => None,
            };
        }
        true
    }

    /// Waits for sockets that a request has opened.
    fn pairs(&mut self) {
        while let Some(pair) = self.house.pairs.get(self.waited) {
            for is_reports in [false, true] {
                let of = Of::Pair(self.waited, is_reports).data();
                // Without it nothing is heard of viewers but by requests.
                let _ = epoll::add(&self.epoll, pair.socket(is_reports), of, EventFlags::IN);
            }
            self.waited += 1;
        }
    }

    /// Waits for a connection to take more, as long as something waits for it.
    pub(super) fn waits(&mut self, index: usize) {
        let Some(Some(connection)) = self.connections.get_mut(index) else {
            return;
        };
        if connection.is_heard() && connection.has_more() && !self.rest.contains(&index) {
            self.rest.push(index);
        }
        let waiting = connection.waiting();
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::OUT, waiting > 0);
        flags.set(EventFlags::IN, connection.is_heard());
        if flags != connection.waits {
            connection.waits = flags;
            let _ = epoll::modify(
                &self.epoll,
                connection.as_fd(),
                Of::Connection(index).data(),
                flags,
            );
        }
    }

    pub(super) fn close(&mut self, index: usize) {
        // Its socket is forgotten when it is closed.
        let connection = self.connections.get_mut(index).and_then(Option::take);
        let Some(mut connection) = connection else {
            return;
        };
        connection.farewell();
        self.shaking.retain(|(of, _)| *of != index);
        let from = network(connection.peer.ip());
        if let Some(count) = self.places.get_mut(&from) {
            *count -= 1;
            if *count == 0 {
                self.places.remove(&from);
            }
        }
        self.server.closed(index, &mut self.house, now());
        self.house.peers[index] = None;
        self.free.push(index);
        self.all_gone();
    }

    /// Something has come to a pair of sockets.
    pub(super) fn hear(&mut self, index: usize, is_reports: bool) {
        for _ in 0..EVENTS {
            let Some(pair) = self.house.pairs.get(index) else {
                return;
            };
            let socket = if is_reports {
                &pair.reports
            } else {
                &pair.packets
            };
            let (length, from) = match socket.recv_from(&mut self.buffer) {
                Ok(came) => came,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // What was sent to where nobody is.
                Err(_) => continue,
            };
            // To the port of packets, viewers behind a translator send to keep their way open.
            let from = plain(from);
            let session = reported(&self.buffer[..length], &mut self.house, |stream| {
                stream.peer.ip() == from.ip()
            });
            let known = || self.house.by_address.get(&from).copied();
            if let Some(session) = session.or_else(known) {
                self.server.alive(session, now());
            }
        }
    }
}

/// Waits for what a connection says from now on.
fn wait_for(epoll: &OwnedFd, index: usize, connection: &Connection) -> io::Result<()> {
    let of = Of::Connection(index).data();
    epoll::add(epoll, connection, of, connection.waits)?;
    Ok(())
}

/// Takes a viewer's report in, of the streams that are of whoever sent it; of whose session it is.
fn reported(
    bytes: &[u8],
    house: &mut House<'_>,
    is_its: impl Fn(&Stream) -> bool,
) -> Option<usize> {
    let mut session = None;
    rtcp::read_received(bytes, |one| {
        let of = house.by_ssrc.get(&one.ssrc);
        let stream = of.and_then(|session| house.streams.get(*session)?.as_ref());
        if stream.is_some_and(&is_its) {
            session = session.or(house.heard(&one, unix()));
        }
    });
    session
}

fn is_exhausted(error: &io::Error) -> bool {
    use nix::libc::{EMFILE, ENFILE, ENOBUFS, ENOMEM};
    matches!(
        error.raw_os_error(),
        Some(EMFILE | ENFILE | ENOBUFS | ENOMEM)
    )
}
