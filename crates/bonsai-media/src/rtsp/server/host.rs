//! What a server does for its sessions.

use core::net::IpAddr;
use std::sync::Arc;
use std::task::Poll;

use rtsp_types::StatusCode;

use super::{Offer, Path, Way};
use crate::clip::Clip;
use crate::load::Need;
use crate::packets::Packetiser;
use crate::timeline::Started;

/// A request that is not granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What the viewer is told.
    pub status: StatusCode,
    /// Why, for whoever runs the server.
    pub why: String,
}

impl Refusal {
    /// One with a reason.
    #[must_use]
    pub fn new(status: StatusCode, why: impl Into<String>) -> Self {
        Self {
            status,
            why: why.into(),
        }
    }
}

/// A clip that was found.
#[derive(Clone, Debug)]
pub struct Found {
    /// The clip, in its best quality.
    pub clip: Arc<Clip>,
    /// Another one where its file has changed (RFC 8866, 5.2: the version of a session).
    pub version: u64,
    /// What each of its tracks needs.
    pub needs: Arc<[Need]>,
}

/// What is done for requests. Sessions have numbers, which are used again when they are over.
pub trait Host {
    /// A clip; pending while it is read, and asked for again when it is.
    ///
    /// # Errors
    /// There is none, or it cannot be sent.
    fn find(&mut self, path: &Path) -> Poll<Result<Found, Refusal>>;

    /// What makes the packets of a clip, where that is not cut as servers do: it is described so.
    fn packetiser(&self, path: &Path) -> Option<Arc<dyn Packetiser>> {
        let _ = path;
        None
    }

    /// The address of this machine that the request came to.
    ///
    /// # Errors
    /// Its connection is gone.
    fn address(&self) -> Result<IpAddr, Refusal>;

    /// Lets a session in that somebody asks for by a connection; its name, which nobody can guess.
    ///
    /// # Errors
    /// There are enough.
    fn admit(
        &mut self,
        session: usize,
        connection: usize,
        path: &Path,
        found: &Found,
    ) -> Result<String, Refusal>;

    /// Sends a track to the session's viewer from now on, when it plays; how.
    ///
    /// # Errors
    /// That cannot be.
    fn set_up(&mut self, session: usize, track: usize, offer: &Offer) -> Result<Way, Refusal>;

    /// Plays, from a time or from where it was, to a time or to the end.
    ///
    /// # Errors
    /// That cannot be.
    fn play(
        &mut self,
        session: usize,
        from_ns: Option<u64>,
        until_ns: Option<u64>,
    ) -> Result<Started, Refusal>;

    /// Stops for now.
    fn pause(&mut self, session: usize);

    /// It is over.
    fn end(&mut self, session: usize, why: Ended);
}

/// Why a session is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Its viewer said so.
    Told,
    /// Nothing was heard of its viewer.
    Silent,
    /// Its connection is gone.
    Closed,
}
