//! Listening, connections, and the engine behind them.
//!
//! # Story
//! ```text
//! connection's thread: socket -> many requests at once
//!        | resident reads, small writes: done there, replies in one batch
//!        | other reads: to the disk by a ring, many at once; replies as they come
//!        | all else: a job ----> the export's workers ----> replies, one after the other
//! ```
//! There is one thread for each connection, which waits for its client and for reads that the disk is needed for, both at
//! once. What else would wait for the disk goes to workers of the export, and so do reads where the kernel has no rings. No async: a hand-over
//! costs more than a read of 4 KiB from the page cache, and a thread that reads all that has come makes
//! three system calls for two requests where a queue between tasks would make more.
//!
//! # Invariants
//! 1. Of one connection's replies, one is sent at a time, by the holder of its turn (see `link.rs`).
//! 2. No worker waits for a client for longer than a moment: what a client does not take is given to
//!    a thread of that connection.
//! 3. Every byte that is held for a client is reserved before, in a budget that all connections share and of which each has a
//!    part for itself (see `budget.rs`). At most 256 requests and 64 MiB of one connection are under way; beyond that, it
//!    is not read.
//! 4. Work for a client that has gone ends at the next step, but for changes that it sent as a whole.

mod batch;
mod budget;
mod connection;
mod failures;
mod inbox;
mod link;
mod listen;
mod look;
mod parts;
mod perform;
mod places;
pub(crate) mod pool;
mod reads;
mod region;
mod ring;
mod serving;
mod sockets;
mod tls;

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bonsai_tls::Renewable;
use thiserror::Error;

use crate::export::Export;
use crate::protocol::{ExportInfo, Exports, ProtocolError};

pub use listen::Server;
pub use sockets::{Access, Address, Sockets};

/// Whether the kernel has rings for this process (`io_uring(7)`).
///
/// # Errors
/// It has none.
pub(crate) fn rings() -> io::Result<()> {
    ring::Ring::new().map(drop)
}

/// What is served, and where.
#[derive(Clone, Debug)]
pub struct Plan {
    /// In the order in which they are listed.
    pub exports: Vec<Arc<Export>>,
    /// A Unix socket, which only its owner may connect to.
    pub unix: Option<PathBuf>,
    /// A TCP address.
    pub tcp: Option<SocketAddr>,
    /// Over TCP, nothing is told without it.
    pub tls: Option<Arc<Renewable>>,
    /// Connections at a time, at most.
    pub connections: usize,
    /// Memory for what is held for clients, of all connections together, in bytes: at least [`smallest_buffers`].
    pub buffer_bytes: usize,
    /// How long a client may take until it has an export.
    pub negotiation: Duration,
    /// Whether the kernel may be asked for rings (`io_uring(7)`); without, cold reads go to workers.
    pub rings: bool,
}

/// The smallest [`Plan::buffer_bytes`] for so many connections, with TLS or without.
#[must_use]
pub const fn smallest_buffers(connections: usize, tls: bool) -> usize {
    budget::smallest(connections, tls)
}

/// Why there is no serving.
#[derive(Debug, Error)]
pub enum ServeError {
    /// There is no listening.
    #[error("{at}: cannot listen: {source}")]
    Listen {
        /// A path or an address.
        at: String,
        /// What the system says.
        source: io::Error,
    },
    /// Somebody else does.
    #[error("{at}: another server listens there")]
    Taken {
        /// The path.
        at: PathBuf,
    },
    /// Something that is no socket has that name.
    #[error("{at}: is there, and is no socket; name another, or remove it")]
    NoSocket {
        /// The path.
        at: PathBuf,
    },
    /// Its group or mode cannot be set.
    #[error("{at}: the {what} of the socket cannot be set: {source}")]
    Access {
        /// The path.
        at: PathBuf,
        /// Of what.
        what: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// One that was passed on, and that nobody can be let in at.
    #[error(
        "socket {number} that was passed on is {what}; a unit's socket listens for streams, with Accept=no"
    )]
    Passed {
        /// Which one, from 0 on.
        number: usize,
        /// What it is.
        what: &'static str,
    },
    /// There is no thread.
    #[error("no thread: {0}")]
    Thread(io::Error),
    /// The budget is smaller than what connections need for themselves.
    #[error(
        "buffers of {bytes} bytes are too small for {connections} connections, which need {smallest}; \
         give more memory, or allow fewer connections"
    )]
    Buffers {
        /// What was given.
        bytes: usize,
        /// Connections at a time.
        connections: usize,
        /// What these need.
        smallest: usize,
    },
    /// There is no address space for the budget.
    #[error("no memory for buffers of {bytes} bytes: {source}; less than 1 TiB can be had")]
    Memory {
        /// What was given.
        bytes: usize,
        /// What the system says.
        source: io::Error,
    },
}

/// Images that could not be flushed at the end: what was written last may not be on the disk.
#[derive(Debug, Error)]
#[error("what was written last may not be on the disk: {}", listed(.0))]
pub struct EndError(pub Vec<(String, io::Error)>);

fn listed(failures: &[(String, io::Error)]) -> String {
    let each = failures
        .iter()
        .map(|(export, why)| format!("{export}: {why}"));
    each.collect::<Vec<_>>().join("; ")
}

/// What happens, for whoever wants to tell.
#[derive(Debug)]
pub enum Event<'a> {
    /// A client has an export.
    Open {
        /// Of the export.
        export: &'a str,
        /// Of the client.
        peer: &'a str,
    },
    /// It has gone.
    Closed {
        /// Of the export; empty if it never had one.
        export: &'a str,
        /// Of the client.
        peer: &'a str,
        /// What it did wrong, if anything.
        why: Option<&'a str>,
    },
    /// A client was turned away, as there are as many as there may be. It is not said for each.
    Full {
        /// How many there may be.
        most: usize,
    },
    /// Clients wait or are turned away, as the system has no descriptor, thread or memory for them. It is not said for each.
    Exhausted {
        /// What the system says.
        error: &'a io::Error,
    },
    /// A client is told that its request has failed, or makes no sense.
    Failed {
        /// Of the export.
        export: &'a str,
        /// As the protocol names it.
        operation: &'static str,
        /// The first byte of the request.
        offset: u64,
        /// Its bytes.
        length: u32,
        /// Why.
        error: &'a io::Error,
        /// Failures before this one that there were too many of to tell each.
        omitted: u64,
    },
    /// Failures that there were too many of to tell each.
    Omitted {
        /// Of the export.
        export: &'a str,
        /// How many.
        count: u64,
    },
    /// Something is wrong with an image.
    Image {
        /// Of the export.
        export: &'a str,
        /// What.
        what: &'a str,
    },
}

/// Is told of events, by several threads.
pub type OnEvent = dyn Fn(&Event<'_>) + Send + Sync;

/// Ends a server, from any thread and from signal handlers' threads.
#[derive(Clone, Debug)]
pub struct Stop(Arc<Stopping>);

#[derive(Debug)]
struct Stopping {
    asked: AtomicBool,
    /// Readable once it has been asked.
    wake: OwnedFd,
}

impl Stop {
    /// Not yet.
    ///
    /// # Errors
    /// The system has no descriptor for it.
    pub fn new() -> io::Result<Self> {
        let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
        Ok(Self(Arc::new(Stopping {
            asked: AtomicBool::new(false),
            wake: rustix::event::eventfd(0, flags)?,
        })))
    }

    /// Ends the server: what is under way is done, images are flushed.
    pub fn stop(&self) {
        self.0.asked.store(true, Ordering::SeqCst);
        // It fails only where it is readable already.
        let _ = rustix::io::write(&self.0.wake, &1u64.to_ne_bytes());
    }

    /// Whether it ends.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.0.asked.load(Ordering::SeqCst)
    }
}

/// Why a connection ended before its time.
#[derive(Debug, Error)]
pub(crate) enum Ended {
    #[error("{0}")]
    Protocol(#[from] ProtocolError),
    #[error("it took longer than {0:?} to ask for an export")]
    Slow(Duration),
    #[error("it has gone: {0}")]
    Io(#[from] io::Error),
    #[error("it went in the middle of a request")]
    Torn,
    #[error("it went while requests were waiting")]
    Gone,
    #[error("a read failed after a part of it had been sent: {0}")]
    Cut(io::Error),
    #[error("bytes came together with the option that starts TLS")]
    Injected,
    #[error("a request has {0} bytes of data, more than can be skipped")]
    TooLong(u32),
    #[error("there are as many clients as there may be, and others come first")]
    Crowded,
}

impl From<rustix::io::Errno> for Ended {
    fn from(error: rustix::io::Errno) -> Self {
        Self::Io(error.into())
    }
}

/// A list of exports, as the protocol asks for them.
struct Listed<'a>(&'a [Arc<Export>]);

impl Exports for Listed<'_> {
    fn count(&self) -> usize {
        self.0.len()
    }

    fn get(&self, index: usize) -> Option<ExportInfo> {
        self.0.get(index).map(|export| export.info().clone())
    }
}

/// Poisoning is ignored: every critical section leaves the state consistent.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
