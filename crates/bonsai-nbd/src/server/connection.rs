//! One connection, from its greeting to its end.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bonsai_tls::Renewable;

use super::batch::Batch;
use super::budget::{Account, Own};
use super::failures::Failures;
use super::inbox::Inbox;
use super::link::{Link, send_all};
use super::places::Place;
use super::serving::Serving;
use super::{Ended, Listed, tls};
use crate::export::{Export, add};
use crate::protocol::{Handshake, Replies, Session, Step, Tls};

/// What a connection is of.
#[derive(Clone)]
pub(super) struct House {
    pub(super) exports: Vec<Arc<Export>>,
    /// Of each export.
    pub(super) failures: Vec<Arc<Failures>>,
    pub(super) tls: Option<Arc<Renewable>>,
    pub(super) negotiation: Duration,
    pub(super) rings: bool,
}

/// A client that has an export.
pub(super) struct Client {
    pub(super) link: Arc<Link>,
    inbox: Inbox,
    batch: Batch,
    rings: bool,
}

/// Negotiates; `None` where the client wanted nothing.
pub(super) fn negotiate(
    socket: OwnedFd,
    house: &House,
    (own, place): (Own, &Arc<Place>),
) -> Result<Option<Client>, Ended> {
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
    let Own {
        account,
        inbox,
        batch,
    } = own;
    let mut inbox = Inbox::new(inbox);
    let mut out = Handshake::greeting().to_vec();
    let exports = Listed(&house.exports);
    loop {
        send_all(socket.as_fd(), &out)?;
        // Its answers are held here until they are sent, and by then it has taken long enough.
        if Instant::now() > deadline {
            return Err(Ended::Slow(house.negotiation));
        }
        out.clear();
        let (used, step) = shake.push(inbox.bytes(), &exports, &mut out)?;
        inbox.consume(used);
        match step {
            // More answers may be left than are held at once.
            Step::More if used > 0 || !out.is_empty() => {}
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
                if let Some(certificate) = &house.tls {
                    socket = tls::start(socket, certificate.config(), Arc::clone(place))?;
                    shake.tls_is_there();
                }
            }
            Step::Ready(session) => {
                send_all(socket.as_fd(), &out)?;
                let batch = Batch::new(batch, Replies::of(&session).read_header_bytes());
                return Ok(client(socket, (inbox, batch, account), house, session)?);
            }
        }
    }
}

fn client(
    socket: OwnedFd,
    (inbox, batch, account): (Inbox, Batch, Arc<Account>),
    house: &House,
    session: Session,
) -> std::io::Result<Option<Client>> {
    use rustix::net::sockopt::{Timeout, set_socket_send_buffer_size, set_socket_timeout};
    set_socket_timeout(&socket, Timeout::Send, None)?;
    // The most that the system lets anybody have; a reply of 128 KiB fits as a whole.
    set_socket_send_buffer_size(&socket, 4 << 20)?;
    let failures = house.failures.get(session.export);
    let Some((export, failures)) = house.exports.get(session.export).zip(failures) else {
        return Ok(None);
    };
    let of = (Arc::clone(export), session);
    let link = Arc::new(Link::new(socket, of, account, Arc::clone(failures)));
    Ok(Some(Client {
        link,
        inbox,
        batch,
        rings: house.rings,
    }))
}

impl Client {
    /// Serves requests until the client has had enough.
    pub(super) fn serve(self, place: &Place) -> Result<(), Ended> {
        let link = Arc::clone(&self.link);
        add(&link.export.counters.connections, 1);
        let mut serving = Serving::new(Arc::clone(&self.link), self.inbox, self.batch, self.rings);
        let ended = serving.requests();
        place.leave();
        if ended.is_err() {
            link.die();
        }
        // Reads that the disk is asked for are counted until they are answered, or dropped as the client has gone.
        let settled = serving.finish();
        drop(serving);
        if settled.is_ok() {
            link.drain();
        }
        link.export
            .counters
            .connections
            .fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
        ended
    }
}
