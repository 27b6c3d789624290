//! Ways of streams that a file puts together, by the clip.
//!
//! ```toml
//! # A clip goes the way of the first entry that names it; one that none names, that of all others.
//! [[pipeline]]
//! clips = ["sport/**", "*.mp4"]    # paths below the root: * in a name, ** over folders
//! source = ["sample", "memory=256MiB"]    # how it is read, and by whom
//! handlers = ["keys", "statistics=/var/log/streams.jsonl", "tee=/srv/copies"]
//! packetiser = "together=1200"     # how payloads are made, and of how many bytes
//! pacer = "spread=0.8"             # when packets of a picture are sent
//! sink = ["udp", "tcp", "udp-to=239.1.2.3:5004"]    # ways that viewers may ask for, and who gets copies
//! lower = ["{}-500k.mp4"]          # files that are lower qualities of a clip, the best first
//! selector = "server"              # who says which quality of the clip is sent
//! ```
//! All but `clips` may be left out: then it is as without a file.
//!
//! | option | is | the server's own |
//! |---|---|---|
//! | `source` | a text, or a list of up to two | `"packet"`, a read for each packet, or `"sample"`, one for each picture; of the clip's file |
//! | `handlers` | a list | none |
//! | `packetiser` | a text, or bytes of payload | `"h264"`, or `1200`: as RFC 6184 (mode 1) and RFC 3640 say |
//! | `pacer` | a text | `"media"`: all packets of a picture when it is due |
//! | `sink` | a list | `"udp"` and `"tcp"`, at least one of which is there |
//! | `lower` | a list of paths, `{}` for the clip's without its ending | those of all clips |
//! | `selector` | a text | `"server"` |
//!
//! What else may stand there is a part by its name, as `name` or `name=value`
//! ([`Parts`]).

mod file;

use std::fmt;
use std::sync::Arc;

use bonsai_calls::pattern;

use super::Engine;
use super::lower::Lower;
use super::parts::{
    Codec, Handler, Made, Maker, Pacer, Packetiser, Parts, Selector, Sink, Source, StreamView,
};
use super::stream::MOST;

/// The smallest payload that parameter sets mostly fit in.
const LEAST: usize = 200;

/// What is wrong with a file, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line}:{column}: {text}")]
pub struct Mistake {
    /// Counted from 1.
    pub line: usize,
    /// Counted from 1, in characters.
    pub column: usize,
    /// What, and what would be right.
    pub text: String,
}

/// The way of a stream. What is `None` is the server's own.
#[derive(Clone)]
pub(super) struct Pipeline {
    pub(super) engine: Engine,
    /// Bytes of payload.
    pub(super) payload: usize,
    pub(super) has_datagrams: bool,
    pub(super) has_interleaved: bool,
    /// What lower qualities are called, if not as of all clips.
    pub(super) lower: Option<Arc<[Lower]>>,
    pub(super) packetiser: Option<Arc<dyn Packetiser>>,
    chain: Vec<Maker<dyn Handler>>,
    source: Option<Maker<dyn Source>>,
    pacer: Option<Maker<dyn Pacer>>,
    sinks: Vec<Maker<dyn Sink>>,
    selector: Option<Maker<dyn Selector>>,
}

impl fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipeline")
            .field("engine", &self.engine)
            .field("payload", &self.payload)
            .field("has_datagrams", &self.has_datagrams)
            .field("has_interleaved", &self.has_interleaved)
            .field("packetiser", &self.packetiser)
            .field("handlers", &self.chain.len())
            .field("has_source", &self.source.is_some())
            .field("has_pacer", &self.pacer.is_some())
            .field("sinks", &self.sinks.len())
            .field("has_selector", &self.selector.is_some())
            .finish()
    }
}

impl Pipeline {
    /// All that there is, by an engine.
    pub(super) const fn plain(engine: Engine, chain: Vec<Maker<dyn Handler>>) -> Self {
        Self {
            engine,
            payload: MOST,
            has_datagrams: true,
            has_interleaved: true,
            packetiser: None,
            chain,
            lower: None,
            source: None,
            pacer: None,
            sinks: Vec::new(),
            selector: None,
        }
    }

    /// Whether its packetiser makes the payloads of such samples.
    pub(super) fn takes(&self, codec: &Codec) -> bool {
        self.packetiser.as_ref().is_some_and(|of| of.takes(codec))
    }

    /// The parts of a stream.
    ///
    /// # Errors
    /// One of them cannot be made.
    pub(super) fn make(
        &self,
        stream: &StreamView<'_>,
    ) -> Result<(Vec<Box<dyn Handler>>, Made), String> {
        let one = |maker: &Maker<dyn Source>| maker(stream);
        let source = self.source.as_ref().map(one).transpose()?;
        let one = |maker: &Maker<dyn Pacer>| maker(stream);
        let pacer = self.pacer.as_ref().map(one).transpose()?;
        let one = |maker: &Maker<dyn Selector>| maker(stream);
        let selector = self.selector.as_ref().map(one).transpose()?;
        let sinks = self.sinks.iter().map(|maker| maker(stream));
        let made = Made::new(source, pacer, sinks.collect::<Result<_, _>>()?, selector);
        let handlers = self.chain.iter().map(|maker| maker(stream));
        Ok((handlers.collect::<Result<_, _>>()?, made))
    }
}

/// Ways by the clip.
#[derive(Clone, Debug, Default)]
pub struct Pipelines {
    entries: Vec<(Vec<String>, Arc<Pipeline>)>,
}

impl Pipelines {
    /// Reads a file. What an entry does not say is as for all: this engine, and these handlers.
    ///
    /// # Errors
    /// The first mistake in it.
    pub fn read(text: &str, engine: Engine, parts: &Parts) -> Result<Self, Mistake> {
        let entries = file::read(text, engine, parts)?;
        Ok(Self { entries })
    }

    /// The way of a clip, by its path below the root.
    pub(super) fn of(&self, clip: &str) -> Option<&Arc<Pipeline>> {
        let named = self.entries.iter().find(|(clips, _)| {
            clips
                .iter()
                .any(|of| pattern::matches(of.as_bytes(), format!("/{clip}").as_bytes()))
        });
        named.map(|(_, pipeline)| pipeline)
    }
}

/// Bytes of payload.
///
/// # Errors
/// What would be right.
pub(super) fn payload(text: &str) -> Result<usize, String> {
    let bytes = text.parse().ok();
    bytes
        .filter(|bytes| (LEAST..=MOST).contains(bytes))
        .ok_or_else(|| format!("from {LEAST} to {MOST} bytes of payload"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Pipelines, Mistake> {
        Pipelines::read(text, Engine::Classic, &Parts::builtin())
    }

    #[test]
    fn the_first_entry_that_names_a_clip_is_its_way() {
        let text = r#"
            [[pipeline]]
            clips = ["sport/**/*.mp4", "/news.mp4"]
            source = "sample"
            packetiser = 1_200
            handlers = ["keys"]
            sink = ["tcp"]

            [[pipeline]]
            clips = ["whole/*"]
            source = ["memory=1MiB", "sample"]
            packetiser = "single=1000"
            pacer = "spread=0.5"
            sink = ["udp", "udp-to=127.0.0.1:5004"]
            selector = "fixed=0"

            [[pipeline]]
            clips = ["*"]
            packetiser = "h264=1000"
            pacer = "media"
            selector = "server"
        "#;
        let pipelines = read(text).expect("right");
        for (clip, expected) in [
            ("sport/final.mp4", Some((Engine::Fast, 1200))),
            ("sport/2026/may/final.mp4", Some((Engine::Fast, 1200))),
            ("news.mp4", Some((Engine::Fast, 1200))),
            ("sport/final.mkv", None),
            ("other.mp4", Some((Engine::Classic, 1000))),
            ("whole/other.mp4", Some((Engine::Fast, 1000))),
            ("a/other.mp4", None),
        ] {
            let found = pipelines.of(clip);
            let seen = found.map(|of| (of.engine, of.payload));
            assert_eq!(seen, expected, "{clip}");
        }
        let way = pipelines.of("news.mp4").expect("named");
        assert_eq!(
            (way.chain.len(), way.has_datagrams, way.has_interleaved),
            (1, false, true)
        );
        let view = StreamView {
            peer: std::net::SocketAddr::from(([127, 0, 0, 1], 5000)),
            clip: "whole/other.mp4",
        };
        let way = pipelines.of(view.clip).expect("named");
        let (_, made) = way.make(&view).expect("made");
        assert!(way.packetiser.is_some() && made.source.is_some() && made.pacer.is_some());
        assert_eq!((made.sinks.len(), way.has_interleaved), (1, false));
        let (_, made) = pipelines
            .of("other.mp4")
            .expect("named")
            .make(&view)
            .expect("made");
        assert!(made.source.is_none() && made.pacer.is_none() && made.sinks.is_empty());
    }
}
