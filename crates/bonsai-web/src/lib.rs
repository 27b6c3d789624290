//! Clips of a folder, and libraries of annotated video, over HTTP; and the page to search and play. Apart from these, a
//! film for one player of this machine, whose quality is chosen here ([`Site::of_player`]).
//!
//! ```text
//!   GET /                          the page of a library, or a list of clips
//!   GET /clip.mp4                  a clip of the folder, with ranges and ETags
//!   GET /clips                     all of them, as JSON; /clips.html, for people
//!   GET /-/hls/clip.mp4/master.m3u8 the clip as HLS: see `films`
//!   GET /-/live/NAME/master.m3u8   a live stream of another server: see `live`
//!   GET /media/match-1/master.m3u8 what is in a library, and what can be asked of it: see `library`
//! ```
//! One thread waits for connections; files and SQLite are read on others, through the C library, as whoever
//! shapes programs by their calls expects it.
//!
//! # Invariants
//! 1. Nothing is opened outside the folder and the library, whatever a link in them says, nor what is
//!    hidden in them, nor what is no media.
//! 2. What was asked for is sent as it was then, or the answer ends before its end: never parts of two files.
//! 3. What goes wrong with a file, a connection or a request is the end of that one alone.
//! 4. All that a stranger can make the server keep is bounded: connections in all and for each address,
//!    bytes of a request, the time that it takes, bytes that wait to be taken, and for how long.
//! 5. A server for this machine alone answers to no other name: a page of elsewhere cannot have a browser
//!    ask it as if it were its own (DNS rebinding).
#![forbid(unsafe_code)]

mod access;
mod answer;
mod clips;
mod cors;
mod door;
mod file;
mod films;
pub mod fuzz;
mod house;
mod library;
mod live;
mod pace;
mod page;
mod places;
mod proxy;
mod range;

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use axum::http::HeaderValue;
use axum::{Router, middleware};
use bonsai_davvi::Library;
use bonsai_media::access::Guard;
use bonsai_stream::folder::Folder;
use bonsai_stream::serve::Allotted;
use bonsai_tls::Renewable;
use serde::Serialize;

use crate::house::House;
use crate::live::Channel;

pub use crate::live::{Source, SourceError};
pub use crate::proxy::ProxyPlan;

/// Connections that wait to be let in.
const QUEUE: i32 = 1024;

/// Files that may be open, as far as the system lets them.
const OPEN: u64 = 65_536;

/// Threads that wait for disks: a file is read by one of them at a time.
const READERS: usize = 64;

/// What a server takes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at a time.
    pub connections: u32,
    /// Connections at a time of one address (IPv6: of one network of 64 bits).
    pub per_address: u32,
    /// A request is there in so long, and one more is waited for so long; a TLS handshake is over in so long.
    pub request: Duration,
    /// An answer begins in so long, and who takes nothing of it for so long is gone.
    pub stall: Duration,
    /// What is under way at the end may take so long.
    pub farewell: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 5000,
            per_address: 5000,
            request: Duration::from_secs(10),
            stall: Duration::from_secs(30),
            farewell: Duration::from_secs(1),
        }
    }
}

/// What is served, and how.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where it listens.
    pub listen: SocketAddr,
    /// The folder with clips.
    pub clips: Option<PathBuf>,
    /// The library.
    pub library: Option<Library>,
    /// Live streams that are asked for elsewhere.
    pub live: Vec<Source>,
    /// The rate that it shares with streams, which go first: files of clips and videos are read at what these
    /// leave of it. Without one, as fast as they are taken.
    pub beside: Option<Arc<Allotted>>,
    /// Pages of this origin may read it (CORS), such as `http://127.0.0.1:8080`; `*` for all.
    pub origin: Option<HeaderValue>,
    /// The users that may ask; all may where there is none.
    pub users: Option<Arc<Guard>>,
    /// Certificate and key, where TLS is spoken (`https`).
    pub tls: Option<Arc<Renewable>>,
    /// What it takes on.
    pub limits: Limits,
}

/// Why nothing is served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such folder.
    #[error("{path}: {source}")]
    Root {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Somebody else listens there, or it is no address of this machine.
    #[error("cannot listen on {at}: {source}")]
    Listen {
        /// Where.
        at: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The system refuses what a server waits by.
    #[error("connections cannot be waited for")]
    System(#[source] io::Error),
}

/// What happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// It listens.
    Listening(SocketAddr),
    /// Something is not granted.
    Refused {
        /// To whom.
        peer: SocketAddr,
        /// What, why, and the number of the answer where there was one.
        why: &'a str,
    },
    /// A live stream has begun, or is gone.
    Live {
        /// Name of the stream.
        name: &'a str,
        /// The event, with the source.
        what: &'a str,
    },
    /// An answer ended before its end.
    CutShort {
        /// To whom.
        peer: SocketAddr,
        /// What, and why.
        why: &'a str,
    },
}

/// Who is told of what happens, on the server's thread.
pub type Teller = Arc<dyn Fn(&Event<'_>) + Send + Sync>;

/// What was served.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Connections that were let in.
    pub connections: u64,
    /// The most at one time.
    pub most_connections: u64,
    /// Connections and requests that were refused.
    pub refused: u64,
    /// Requests that were answered, refusals with them.
    pub requests: u64,
    /// Bytes of files that were read to be sent.
    pub bytes: u64,
    /// Answers that ended before their end, for the file changed or could not be read on.
    pub cut_short: u64,
    /// How long it served, s.
    pub elapsed_s: f64,
}

/// A server that listens, and lets nobody in yet.
pub struct Site {
    listener: TcpListener,
    at: SocketAddr,
    house: Arc<House>,
    router: Router,
    tls: Option<Arc<Renewable>>,
    channels: Vec<Arc<Channel>>,
}

impl fmt::Debug for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Site").field("at", &self.at).finish()
    }
}

/// The origin whose pages may read, and the users that may.
type Readers = (Option<HeaderValue>, Option<Arc<Guard>>);

impl Site {
    /// Listens.
    ///
    /// # Errors
    /// There is no such folder, or no listening there.
    pub fn open(plan: Plan, on_event: Teller) -> Result<Self, Error> {
        let opened = |path: &PathBuf| {
            Folder::open(path).map_err(|source| Error::Root {
                path: path.clone(),
                source,
            })
        };
        let clips = plan.clips.as_ref().map(opened).transpose()?.map(Arc::new);
        let library = match plan.library {
            Some(library) => {
                let folder = opened(&library.path().to_owned())?.without_links();
                Some((library, folder))
            }
            None => None,
        };
        let shared = (plan.limits, plan.beside, (plan.origin, plan.users));
        let tls = plan.tls;
        let channels = plan.live.into_iter().map(Channel::new).map(Arc::new);
        let channels: Vec<Arc<Channel>> = channels.collect();
        let site = Self::of(plan.listen, shared, on_event, |house| {
            let has_library = library.is_some();
            let mut router = page::router(has_library);
            if let Some((library, folder)) = library {
                let has_clips = clips.is_some();
                router = router.merge(library::router(library, folder, has_clips, house));
            }
            if let Some(folder) = clips {
                router = router.merge(films::router(Arc::clone(&folder), house));
                router = router.merge(clips::router(folder, house, !has_library));
            }
            router.merge(live::router(channels.clone(), house))
        })?;
        Ok(Self {
            tls,
            channels,
            ..site
        })
    }

    /// Listens there, with these ways.
    fn of(
        listen: SocketAddr,
        (limits, beside, (origin, users)): (Limits, Option<Arc<Allotted>>, Readers),
        on_event: Teller,
        router: impl FnOnce(&Arc<House>) -> Router,
    ) -> Result<Self, Error> {
        let refused = |source| Error::Listen { at: listen, source };
        let listener = TcpListener::bind(listen).map_err(refused)?;
        // As many as come at once when a match begins.
        rustix::net::listen(&listener, QUEUE).map_err(|errno| refused(errno.into()))?;
        listener.set_nonblocking(true).map_err(Error::System)?;
        may_open();
        let at = listener.local_addr().map_err(Error::System)?;
        let house = Arc::new(House::new(limits, beside, at, on_event));
        let router = router(&house)
            .fallback(answer::nothing_here)
            .method_not_allowed_fallback(answer::other_method);
        // A question of a browser for another page has no proof.
        let router = cors::allow(access::guarded(router, users), origin).layer(
            middleware::from_fn_with_state(Arc::clone(&house), house::looked_after),
        );
        Ok(Self {
            listener,
            at,
            house,
            router,
            tls: None,
            channels: Vec::new(),
        })
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.at
    }

    /// Serves until `stop` is set, which is looked at ten times a second.
    ///
    /// # Errors
    /// There is no waiting.
    pub fn serve(self, stop: &AtomicBool) -> Result<Summary, Error> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(READERS)
            .build()
            .map_err(Error::System)?;
        let began = Instant::now();
        let house = Arc::clone(&self.house);
        let farewell = house.limits.farewell;
        let served = runtime.block_on(async {
            live::start(&self.channels, &self.house);
            let listens = (self.listener, self.tls);
            door::serve(listens, self.router, self.house, stop).await
        });
        // Whoever still waits for a disk is not waited for.
        runtime.shutdown_timeout(farewell);
        served.map_err(Error::System)?;
        Ok(Summary {
            elapsed_s: began.elapsed().as_secs_f64(),
            ..house.tally.summary()
        })
    }
}

/// Raises the limit of open files, of which an answer takes two. Where it is reached all the same, nobody
/// is let in until somebody has gone.
fn may_open() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    let wanted = now.maximum.unwrap_or(OPEN).min(OPEN);
    if now.current.is_some_and(|current| current < wanted) {
        let limit = Rlimit {
            current: Some(wanted),
            maximum: now.maximum,
        };
        let _ = setrlimit(Resource::Nofile, limit);
    }
}
