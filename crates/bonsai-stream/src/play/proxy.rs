//! A proxy for a player: it fetches segments ahead, chooses the quality of each, and hands them over in order
//! (DAVVI, paper 000, 2.2).
//!
//! ```text
//!   web server ─┐                     ┌── playlist: the whole film, one quality
//!   web server ─┼─> engine ─> desk ──>┤
//!   web server ─┘   (tokio)  (choices)└── segment: of the quality that was chosen for it
//! ```
//! The *engine* asks servers, one segment at a time; the *desk* says which segment, of which quality, and gives out what
//! came. Whoever speaks to players asks a [`Proxy`] for each thing that its playlists name.
//!
//! The playlist has all segments from the beginning on, and an end, so that players show how long the film is
//! and go anywhere in it. A list that grew would be a live stream to them: they begin at its end, ask for it again and
//! again, and do not go back. What is open is the quality of each segment; so each has a header of its own
//! (`EXT-X-MAP`), which is sent when the segment is there. Not all players read more than the first; so a segment has
//! what its decoder needs in itself, too (`inband`).
//!
//! # Invariants
//! 1. A segment is given when all of it is there, or not at all.
//! 2. All that is kept is bounded: media by the buffer and the memory, headers, questions, the log.
//! 3. A server that fails is left for the others; what each of them fails to give is an error to the
//!    player after some tries, and is tried anew when it asks again.
//! 4. There is one player at a time: whoever read the playlist last and asks for a segment. One before is refused.

mod desk;
mod engine;
mod headers;
mod inband;
mod item;
mod open;
mod pinned;
mod report;
mod servers;
mod sounds;
mod task;
#[cfg(test)]
mod tests;
mod viewer;

use std::fmt;
use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bonsai_media::adapt::{self, Settings};
use hyper::body::Bytes;
use tokio::sync::Notify;
use url::Url;

pub use self::item::Item;
pub use self::report::{Fetched, Report, Server, Waits};

use self::desk::Desk;
use self::open::Source;
use super::film::Offer;
use super::{Film, Video};
use crate::clock::now;

/// What is played, and how.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The film's playlist on each of its servers, and where that server is. At least one.
    pub servers: Vec<Video>,
    /// How long a step may take: to connect, to the head of an answer, between some bytes.
    pub step: Duration,
    /// What is kept of media at most, bytes; a segment more while one comes.
    pub memory: u64,
    /// How it adapts.
    pub settings: Settings,
}

/// Why there is nothing to play.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No server gives it.
    #[error("{}", .0.join("; "))]
    Nothing(Vec<String>),
    /// What is there is not played here.
    #[error("{url}: {why}")]
    Unreadable {
        /// Where.
        url: String,
        /// Why.
        why: String,
    },
    /// Two servers have two films.
    #[error("{url}: it is not the film of {first}: {why}")]
    Other {
        /// Where it is another.
        url: String,
        /// The first.
        first: String,
        /// How they differ.
        why: String,
    },
    /// A setting that cannot be with this film.
    #[error("{0}")]
    Setting(#[from] adapt::Error),
    /// The system refuses what it waits by.
    #[error("connections cannot be waited for")]
    System(#[from] io::Error),
}

impl Error {
    /// Whether what was asked for is wrong, and not a server or this machine.
    #[must_use]
    pub const fn is_input(&self) -> bool {
        matches!(
            self,
            Self::Unreadable { .. } | Self::Other { .. } | Self::Setting(_)
        )
    }
}

/// What happens to servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// One does not do what is asked of it, after it did.
    Down {
        /// Which.
        url: &'a Url,
        /// Why.
        why: &'a str,
    },
    /// It does again.
    Up {
        /// Which.
        url: &'a Url,
    },
    /// It has another film, and is not asked any more.
    Other {
        /// Which.
        url: &'a Url,
        /// How it differs.
        why: &'a str,
    },
}

/// Who is told of what happens.
pub type Teller = Arc<dyn Fn(&Event<'_>) + Send + Sync>;

/// Why a player is not given what it asks for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// There is no such thing.
    #[error("there is no such thing here")]
    Nothing,
    /// Another player has come.
    #[error("another player plays this now: open the address anew to take over")]
    Another,
    /// The player has asked for something else meanwhile.
    #[error("the player has gone elsewhere")]
    Elsewhere,
    /// It asks for too much at a time.
    #[error("too much is asked for at a time")]
    Busy,
    /// No server gives it.
    #[error("{0}")]
    Upstream(Arc<str>),
}

/// A proxy of one film. Copies are of the same.
#[derive(Clone)]
pub struct Proxy {
    inner: Arc<Inner>,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy")
            .field("plan", &self.inner.plan)
            .finish_non_exhaustive()
    }
}

struct Inner {
    plan: Plan,
    token: String,
    offer: Arc<Offer>,
    film: Film,
    /// What is known of each server's copy.
    sources: Vec<Option<Source>>,
    /// How the pieces of the first are cut, for the playlists.
    first: Source,
    on_event: Teller,
    since: u64,
    desk: Mutex<Desk>,
    servers: Mutex<Vec<Server>>,
    /// Something was asked for, or given up.
    asked: Notify,
    /// Something has come, or will not.
    came: Notify,
}

impl Inner {
    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn servers(&self) -> MutexGuard<'_, Vec<Server>> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A question that is given up when nobody waits for its answer.
struct Open<'a> {
    inner: &'a Inner,
    ticket: u64,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.inner.desk().gone(now(), self.ticket);
        self.inner.asked.notify_one();
    }
}

impl Proxy {
    /// Reads the film's lists on all servers.
    ///
    /// # Errors
    /// None of them has it, one has another, or what was asked for makes no sense with it.
    pub fn open(plan: Plan, on_event: Teller) -> Result<Self, Error> {
        let inner = open::open(plan, on_event)?;
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Fetches until `stop` is set, which is looked at ten times a second. To be called once.
    ///
    /// # Errors
    /// There is no waiting.
    pub fn run(&self, stop: &AtomicBool) -> io::Result<()> {
        engine::run(&self.inner, stop)
    }

    /// The playlist for a player that comes now. What it names is in a folder beside it, whose name is a number.
    #[must_use]
    pub fn playlist(&self) -> String {
        let inner = &self.inner;
        let lease = inner.desk().lease();
        match &inner.first.sound {
            Some(_) => item::master(&inner.offer, lease),
            None => self.list(&format!("{lease}/")),
        }
    }

    fn list(&self, folder: &str) -> String {
        let pictures = &self.inner.first.pictures;
        let lowest = pictures.first();
        lowest.map_or_else(String::new, |lowest| {
            item::pictures(lowest, pictures.len(), folder)
        })
    }

    /// The list of pictures, as it is in that folder.
    #[must_use]
    pub fn pictures(&self) -> String {
        self.list("")
    }

    /// The list of sound that is apart, likewise.
    #[must_use]
    pub fn sound(&self) -> Option<String> {
        let sound = self.inner.first.sound.as_ref()?;
        Some(item::sound(sound))
    }

    /// What is of that name in the folder of that number, when it is there.
    ///
    /// # Errors
    /// It is not to be had, and why.
    pub async fn get(&self, folder: u64, item: Item) -> Result<Bytes, Denied> {
        let inner = &*self.inner;
        let ticket = inner.desk().ask(now(), folder, item)?;
        let open = Open { inner, ticket };
        inner.asked.notify_one();
        // Others that wait may have to go.
        inner.came.notify_waiters();
        loop {
            let came = inner.came.notified();
            let mut came = std::pin::pin!(came);
            came.as_mut().enable();
            let given = inner.desk().take(now(), open.ticket);
            if let Some(given) = given {
                return given;
            }
            came.await;
        }
    }

    /// What nobody can guess who was not told: letters and digits, another for each proxy.
    #[must_use]
    pub fn token(&self) -> &str {
        &self.inner.token
    }

    /// The film.
    #[must_use]
    pub fn film(&self) -> &Film {
        &self.inner.film
    }

    /// Whether qualities of H.265 differ by their headers alone (`hvc1`, and not `hev1`): players that read
    /// the first header of a list, and no other, show the others wrongly. Of H.264 segments are given what they need.
    #[must_use]
    pub fn is_by_headers(&self) -> bool {
        let has_headers = |track: &Arc<super::Track>| !track.headers.is_empty();
        let mut codecs = self.inner.film.qualities.iter();
        let pictures = &self.inner.first.pictures;
        pictures.len() > 1
            && pictures.iter().any(has_headers)
            && codecs.any(|quality| {
                let codecs = quality.codecs.as_deref().unwrap_or_default();
                codecs.contains("hvc1") || codecs.contains("dvh1")
            })
    }

    /// What it has done until now.
    #[must_use]
    pub fn report(&self) -> Report {
        let inner = &self.inner;
        let at = now();
        let seen = inner.desk().seen(at);
        let servers = inner.servers().clone();
        let elapsed_ns = at.saturating_sub(inner.since);
        Report::of(inner.film.clone(), servers, seen, elapsed_ns)
    }
}
