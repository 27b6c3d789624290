//! One connection, from its greeting to its end.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::inbox::Inbox;
use super::link::{Link, send_all};
use super::serving::Serving;
use super::{Ended, Listed, tls};
use crate::export::{Export, add};
use crate::protocol::{Handshake, Session, Step, Tls};

/// What a connection is of.
pub(super) struct House {
    pub(super) exports: Vec<Arc<Export>>,
    pub(super) tls: Option<Arc<rustls::ServerConfig>>,
    pub(super) negotiation: Duration,
    pub(super) rings: bool,
}

/// A client that has an export.
pub(super) struct Client {
    pub(super) link: Arc<Link>,
    inbox: Inbox,
    rings: bool,
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
    Ok(Some(Client {
        link,
        inbox,
        rings: house.rings,
    }))
}

impl Client {
    /// Serves requests until the client has had enough.
    pub(super) fn serve(self) -> Result<(), Ended> {
        let link = Arc::clone(&self.link);
        add(&link.export.counters.connections, 1);
        let mut serving = Serving::new(Arc::clone(&self.link), self.inbox, self.rings);
        let ended = serving.requests();
        if ended.is_err() {
            link.die();
        }
        drop(serving);
        link.drain();
        link.export
            .counters
            .connections
            .fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
        ended
    }
}
