//! What a stream goes through on its way.
//!
//! ```text
//!   source ──> handlers ──> packetiser ──> pacer ──> udp, tcp ──> handlers ──> sinks
//!   [`Source`] [`Handler::   [`Packetiser`]  [`Pacer`]              [`Handler::   [`Sink`]
//!               sample`]                                            packet`]
//!   [`Selector`]: which quality of the clip all of that is of
//! ```
//! Each of them is the server's own, one of those that there are by a name ([`Parts::builtin`]), or a
//! program's, which it registers under a name. A pipeline's file ([`Pipelines`](super::Pipelines)) then
//! says which clips go through which.
//!
//! # Invariants
//! 1. A stream that goes through none of them costs no call of one, and nothing is allocated for one.
//! 2. What a sink cannot take is counted, and the viewer's stream goes on; what a source cannot give or a
//!    packetiser cannot cut ends the stream.
//! 3. The parts of a stream are made when its viewer is let in, and dropped when it is over; a packetiser is
//!    one for all streams.

mod handler;
mod pacer;
mod packetiser;
mod selector;
mod sink;
mod source;
mod writer;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use self::writer::Writer;

pub use self::handler::{Fate, Handler, PacketView, SampleView};
pub use self::pacer::{PaceView, Pacer};
pub use self::packetiser::{Codec, Format, Packetiser, Payloads, Whole};
pub use self::selector::{QualityView, Selector};
pub use self::sink::{ReportView, Sink};
pub use self::source::{Source, Wanted};

/// The stream that a part is made for.
#[derive(Clone, Copy, Debug)]
pub struct StreamView<'a> {
    /// Whose it is.
    pub peer: SocketAddr,
    /// What is seen, below the root.
    pub clip: &'a str,
}

/// Makes a part for a stream, as a `Maker<dyn Handler>` does. What it cannot make is a reason not to let
/// the viewer in.
pub type Maker<T> = Arc<dyn Fn(&StreamView<'_>) -> Result<Box<T>, String> + Send + Sync>;

/// From what stands behind a name to what makes the part.
type Make<T> = Arc<dyn Fn(&str) -> Result<T, String> + Send + Sync>;

/// Parts of one kind by their names.
struct Named<T>(BTreeMap<String, Make<T>>);

impl<T> Named<T> {
    fn add(
        &mut self,
        name: &str,
        make: impl Fn(&str) -> Result<T, String> + Send + Sync + 'static,
    ) {
        self.0.insert(name.to_owned(), Arc::new(make));
    }

    /// The part that a text names, as `name` or `name=value`; `own` are the server's.
    fn find(&self, what: &str, own: &[&str], text: &str) -> Result<T, String> {
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        if own.contains(&name) {
            return Err(format!("{text:?}: {name} takes nothing"));
        }
        if let Some(make) = self.0.get(name) {
            return make(value);
        }
        let mut names: Vec<&str> = self.0.keys().map(String::as_str).collect();
        names.extend(own);
        names.sort_unstable();
        Err(match names.is_empty() {
            true => format!("{name:?} is no {what}; there are none"),
            false => format!("{name:?} is no {what}; there are {}", names.join(", ")),
        })
    }
}

impl<T> Clone for Named<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Default for Named<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

/// Parts of all kinds by their names, and the handlers that each stream goes through.
///
/// A name is of one kind: a handler and a sink may share it. The server's own (`packet`, `sample`, `h264`,
/// `media`, `udp`, `tcp`, `server`) stay what they are, whatever is registered.
#[derive(Clone, Default)]
pub struct Parts {
    sources: Named<Maker<dyn Source>>,
    handlers: Named<Maker<dyn Handler>>,
    packetisers: Named<Arc<dyn Packetiser>>,
    pacers: Named<Maker<dyn Pacer>>,
    sinks: Named<Maker<dyn Sink>>,
    selectors: Named<Maker<dyn Selector>>,
    chain: Vec<Maker<dyn Handler>>,
    /// Writers of handlers that write files.
    writers: Arc<Mutex<Vec<Writer>>>,
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts")
            .field("sources", &self.sources.0.keys())
            .field("handlers", &self.handlers.0.keys())
            .field("packetisers", &self.packetisers.0.keys())
            .field("pacers", &self.pacers.0.keys())
            .field("sinks", &self.sinks.0.keys())
            .field("selectors", &self.selectors.0.keys())
            .field("chain", &self.chain.len())
            .finish()
    }
}

impl Parts {
    /// Those that there are besides the server's own.
    ///
    /// | kind | name | does |
    /// |---|---|---|
    /// | source | `memory=256MiB` | keeps samples in memory for all viewers, up to so many bytes |
    /// | handler | `keys` | sends no pictures but those that decoding can begin with |
    /// | | `statistics=FILE` | writes a line of JSON of each stream that is over |
    /// | | `tee=FOLDER` | writes each stream's packets to a file of its own |
    /// | packetiser | `single`, `single=1200` | a unit of H.264 in each packet, up to so many bytes of payload |
    /// | | `together`, `together=1200` | small units of H.264 in one packet |
    /// | pacer | `spread`, `spread=0.8` | sends a sample's packets over that part of the time to the next |
    /// | sink | `udp-to=ADDRESS:PORT` | sends a copy of all packets and reports there |
    /// | selector | `fixed=0` | always that quality, of which 0 is the best |
    #[must_use]
    pub fn builtin() -> Self {
        let mut parts = Self::default();
        source::register(&mut parts);
        handler::register(&mut parts);
        packetiser::register(&mut parts);
        pacer::register(&mut parts);
        sink::register(&mut parts);
        selector::register(&mut parts);
        parts
    }

    /// Waits until handlers have written what they have, or that time; true where they have.
    pub(crate) fn settle(&self, most: Duration) -> bool {
        let until = Instant::now() + most;
        let writers = self.writers.lock().unwrap_or_else(PoisonError::into_inner);
        let all: Vec<Writer> = writers.clone();
        drop(writers);
        all.iter().all(|writer| writer.settle(until))
    }

    /// One more source, that is named in a pipeline by `name`, or `name=value`.
    pub fn register_source(
        &mut self,
        name: &str,
        make: impl Fn(&str) -> Result<Maker<dyn Source>, String> + Send + Sync + 'static,
    ) {
        self.sources.add(name, make);
    }

    /// One more handler, likewise.
    pub fn register_handler(
        &mut self,
        name: &str,
        make: impl Fn(&str) -> Result<Maker<dyn Handler>, String> + Send + Sync + 'static,
    ) {
        self.handlers.add(name, make);
    }

    /// One more packetiser, likewise; it is one for all streams.
    pub fn register_packetiser(
        &mut self,
        name: &str,
        make: impl Fn(&str) -> Result<Arc<dyn Packetiser>, String> + Send + Sync + 'static,
    ) {
        self.packetisers.add(name, make);
    }

    /// One more pacer, likewise.
    pub fn register_pacer(
        &mut self,
        name: &str,
        make: impl Fn(&str) -> Result<Maker<dyn Pacer>, String> + Send + Sync + 'static,
    ) {
        self.pacers.add(name, make);
    }

    /// One more sink, likewise.
    pub fn register_sink(
        &mut self,
        name: &str,
        make: impl Fn(&str) -> Result<Maker<dyn Sink>, String> + Send + Sync + 'static,
    ) {
        self.sinks.add(name, make);
    }

    /// One more selector, likewise.
    pub fn register_selector(
        &mut self,
        name: &str,
        make: impl Fn(&str) -> Result<Maker<dyn Selector>, String> + Send + Sync + 'static,
    ) {
        self.selectors.add(name, make);
    }

    /// Lets each stream go through one more handler, as `name` or `name=value`.
    ///
    /// # Errors
    /// There is none of that name, or it does not take that value.
    pub fn append(&mut self, text: &str) -> Result<(), String> {
        self.chain.push(self.handler(text)?);
        Ok(())
    }

    /// The handlers that each stream goes through.
    pub(super) fn chain(&self) -> Vec<Maker<dyn Handler>> {
        self.chain.clone()
    }

    pub(super) fn source(&self, text: &str) -> Result<Maker<dyn Source>, String> {
        self.sources.find("source", &["packet", "sample"], text)
    }

    pub(super) fn handler(&self, text: &str) -> Result<Maker<dyn Handler>, String> {
        self.handlers.find("handler", &[], text)
    }

    pub(super) fn packetiser(&self, text: &str) -> Result<Arc<dyn Packetiser>, String> {
        self.packetisers.find("packetiser", &["h264"], text)
    }

    pub(super) fn pacer(&self, text: &str) -> Result<Maker<dyn Pacer>, String> {
        self.pacers.find("pacer", &["media"], text)
    }

    pub(super) fn sink(&self, text: &str) -> Result<Maker<dyn Sink>, String> {
        self.sinks.find("sink", &["tcp", "udp"], text)
    }

    pub(super) fn selector(&self, text: &str) -> Result<Maker<dyn Selector>, String> {
        self.selectors.find("selector", &["server"], text)
    }
}

/// The parts of a stream besides its handlers, as far as they are not the server's own.
#[derive(Debug, Default)]
pub(super) struct Made {
    pub(super) source: Option<Box<dyn Source>>,
    pub(super) pacer: Option<Box<dyn Pacer>>,
    pub(super) sinks: Vec<Box<dyn Sink>>,
    selector: Option<Box<dyn Selector>>,
}

impl Made {
    pub(super) fn new(
        source: Option<Box<dyn Source>>,
        pacer: Option<Box<dyn Pacer>>,
        sinks: Vec<Box<dyn Sink>>,
        selector: Option<Box<dyn Selector>>,
    ) -> Self {
        Self {
            source,
            pacer,
            sinks,
            selector,
        }
    }

    /// Whether somebody else than the server says which quality a stream is of.
    pub(super) const fn selects(&self) -> bool {
        self.selector.is_some()
    }

    /// Which quality a stream is to be of.
    pub(super) fn quality(&mut self, view: &QualityView<'_>) -> usize {
        let chosen = match &mut self.selector {
            None => view.server,
            Some(selector) => selector.quality(view),
        };
        chosen.min(view.bits_per_sec.len().saturating_sub(1))
    }
}
