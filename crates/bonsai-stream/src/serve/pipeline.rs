//! Ways of streams that a file puts together, by the clip.
//!
//! ```toml
//! # A clip goes the way of the first entry that names it; one that none names, that of all others.
//! [[pipeline]]
//! clips = ["sport/**", "*.mp4"]    # paths below the root: * in a name, ** over folders
//! source = "sample"                # one read for each picture; "packet": one for each packet
//! packetiser = 1200                # bytes of payload of a packet
//! handlers = ["keys", "statistics=/var/log/streams.jsonl", "tee=/srv/copies"]
//! sink = ["udp", "tcp"]            # the ways that viewers may ask for
//! ```
//! All but `clips` may be left out. Packets are paced by the media's own clock, whatever the way.

use std::borrow::Cow;
use std::sync::Arc;

use bonsai_calls::pattern;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::Engine;
use super::handler::{HandlerSet, Maker};
use super::stream::MOST;

/// The smallest payload that parameter sets mostly fit in.
const LEAST: usize = 200;

/// Entries of a file.
const MOST_ENTRIES: usize = 1000;

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

/// The way of a stream.
#[derive(Clone)]
pub(super) struct Pipeline {
    pub(super) engine: Engine,
    /// Bytes of payload.
    pub(super) payload: usize,
    pub(super) has_datagrams: bool,
    pub(super) has_interleaved: bool,
    pub(super) chain: Vec<Maker>,
}

impl std::fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pipeline")
            .field("engine", &self.engine)
            .field("payload", &self.payload)
            .field("has_datagrams", &self.has_datagrams)
            .field("has_interleaved", &self.has_interleaved)
            .field("handlers", &self.chain.len())
            .finish()
    }
}

impl Pipeline {
    /// All that there is, by an engine.
    pub(super) const fn plain(engine: Engine, chain: Vec<Maker>) -> Self {
        Self {
            engine,
            payload: MOST,
            has_datagrams: true,
            has_interleaved: true,
            chain,
        }
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
    pub fn read(text: &str, engine: Engine, handlers: &HandlerSet) -> Result<Self, Mistake> {
        let read = parse(text, engine, handlers);
        read.map_err(|(at, wrong)| {
            let (line, column) = position(text, at);
            Mistake {
                line,
                column,
                text: wrong,
            }
        })
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

/// A problem, and where it is in bytes.
type Problem = (usize, String);

type Key<'i> = Spanned<Cow<'i, str>>;
type Value<'i> = Spanned<DeValue<'i>>;

fn at<T>(value: &Spanned<T>, text: impl Into<String>) -> Problem {
    (value.span().start, text.into())
}

fn parse(text: &str, engine: Engine, handlers: &HandlerSet) -> Result<Pipelines, Problem> {
    let table = DeTable::parse(text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start);
        (start, error.message().replace('\n', ", "))
    })?;
    let mut pipelines = Pipelines::default();
    for (key, value) in in_order(table.get_ref()) {
        if key.get_ref() != "pipeline" {
            let text = format!(
                "{:?} is not an option here: write [[pipeline]]",
                key.get_ref()
            );
            return Err(at(key, text));
        }
        for entry in list(value, "pipeline must be written as [[pipeline]]")? {
            let Some(table) = entry.get_ref().as_table() else {
                return Err(at(entry, "pipeline must be written as [[pipeline]]"));
            };
            if pipelines.entries.len() >= MOST_ENTRIES {
                let text =
                    format!("there are more than {MOST_ENTRIES} entries; one may name many clips");
                return Err(at(entry, text));
            }
            pipelines
                .entries
                .push(read(entry, table, engine, handlers)?);
        }
    }
    Ok(pipelines)
}

/// One entry.
fn read(
    entry: &Value<'_>,
    table: &DeTable<'_>,
    engine: Engine,
    handlers: &HandlerSet,
) -> Result<(Vec<String>, Arc<Pipeline>), Problem> {
    let mut pipeline = Pipeline::plain(engine, handlers.chain());
    let mut clips = None;
    for (key, value) in in_order(table) {
        match key.get_ref().as_ref() {
            "clips" => clips = Some(patterns(value)?),
            "source" => {
                pipeline.engine = match string(value, "source")? {
                    "packet" => Engine::Classic,
                    "sample" => Engine::Fast,
                    other => {
                        let text = format!("source {other:?}: there are \"packet\" and \"sample\"");
                        return Err(at(value, text));
                    }
                };
            }
            "packetiser" => pipeline.payload = payload(value)?,
            "handlers" => {
                pipeline.chain = list(value, "handlers must be a list of texts")?
                    .iter()
                    .map(|name| {
                        let made = handlers.maker(string(name, "a handler")?);
                        made.map_err(|why| at(name, why))
                    })
                    .collect::<Result<_, _>>()?;
            }
            "sink" => {
                (pipeline.has_datagrams, pipeline.has_interleaved) = (false, false);
                for way in list(value, "sink must be a list: [\"udp\"], [\"tcp\"], or both")? {
                    match string(way, "a sink")? {
                        "udp" => pipeline.has_datagrams = true,
                        "tcp" => pipeline.has_interleaved = true,
                        other => {
                            let text = format!("sink {other:?}: there are \"udp\" and \"tcp\"");
                            return Err(at(way, text));
                        }
                    }
                }
                if !pipeline.has_datagrams && !pipeline.has_interleaved {
                    return Err(at(
                        value,
                        "without a sink nobody sees it: \"udp\", \"tcp\", or both",
                    ));
                }
            }
            other => {
                let text = format!(
                    "{other:?} is not an option of a pipeline: there are clips, source, packetiser, \
                     handlers and sink"
                );
                return Err(at(key, text));
            }
        }
    }
    let clips = clips.ok_or_else(|| {
        at(
            entry,
            "it names no clips: add clips = [\"**\"], which are all",
        )
    })?;
    Ok((clips, Arc::new(pipeline)))
}

/// Patterns of paths, as those of limits: they begin with a slash there.
fn patterns(value: &Value<'_>) -> Result<Vec<String>, Problem> {
    const WHAT: &str = "clips must be a list of paths, such as [\"sport/**\", \"*.mp4\"]";
    let list = list(value, WHAT)?;
    if list.is_empty() {
        return Err(at(value, WHAT));
    }
    let pattern = |path: &Value<'_>| {
        let text = string(path, "a path")?;
        let text = text.strip_prefix('/').unwrap_or(text);
        match text.is_empty() || text.split('/').any(|part| part == "..") {
            true => Err(at(path, format!("{text:?} is no path below the root"))),
            false => Ok(format!("/{text}")),
        }
    };
    list.iter().map(pattern).collect()
}

fn payload(value: &Value<'_>) -> Result<usize, Problem> {
    let DeValue::Integer(number) = value.get_ref() else {
        let found = value.get_ref().type_str();
        let text = format!(
            "packetiser must be bytes of payload, such as 1200, but this is of type {found}"
        );
        return Err(at(value, text));
    };
    let bytes = usize::from_str_radix(number.as_str(), number.radix()).ok();
    bytes
        .filter(|bytes| (LEAST..=MOST).contains(bytes))
        .ok_or_else(|| {
            let text = format!("packetiser {number}: from {LEAST} to {MOST} bytes of payload");
            at(value, text)
        })
}

/// The entries of a table in the order in which they are written.
fn in_order<'t, 'i>(table: &'t DeTable<'i>) -> Vec<(&'t Key<'i>, &'t Value<'i>)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}

fn list<'t, 'i>(value: &'t Value<'i>, what: &str) -> Result<&'t [Value<'i>], Problem> {
    match value.get_ref() {
        DeValue::Array(list) => Ok(list),
        _ => Err(at(value, what)),
    }
}

fn string<'t>(value: &'t Value<'_>, what: &str) -> Result<&'t str, Problem> {
    value.get_ref().as_str().ok_or_else(|| {
        let found = value.get_ref().type_str();
        at(
            value,
            format!("{what} must be a text in quotes, but this is of type {found}"),
        )
    })
}

/// Line and column, counted from 1; columns in characters.
fn position(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let column = before[line_start..].chars().count() + 1;
    (before.matches('\n').count() + 1, column)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Pipelines, Mistake> {
        Pipelines::read(text, Engine::Classic, &HandlerSet::builtin())
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
            clips = ["*"]
        "#;
        let pipelines = read(text).expect("right");
        for (clip, expected) in [
            ("sport/final.mp4", Some((Engine::Fast, 1200))),
            ("sport/2026/may/final.mp4", Some((Engine::Fast, 1200))),
            ("news.mp4", Some((Engine::Fast, 1200))),
            ("sport/final.mkv", None),
            ("other.mp4", Some((Engine::Classic, MOST))),
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
    }

    #[test]
    fn mistakes_say_where_and_what_would_be_right() {
        for (text, expected) in [
            (
                "[[pipeline]]\nsource = \"sample\"\n",
                "1:1: it names no clips",
            ),
            ("[pipeline]\n", "1:1: pipeline must be written as"),
            ("[[pipe]]\n", "1:3: \"pipe\" is not an option here"),
            ("[[pipeline]]\nclips = \"*\"\n", "2:9: clips must be a list"),
            (
                "[[pipeline]]\nclips = [\"a/../b\"]\n",
                "2:10: \"a/../b\" is no path",
            ),
            (
                "[[pipeline]]\nclips = [\"*\"]\nsauce = 1\n",
                "3:1: \"sauce\" is not an option of a pipeline",
            ),
            (
                "[[pipeline]]\nclips = [\"*\"]\nsource = \"disk\"\n",
                "3:10: source \"disk\": there are",
            ),
            (
                "[[pipeline]]\nclips = [\"*\"]\npacketiser = 9000\n",
                "3:14: packetiser 9000: from 200 to 1388",
            ),
            (
                "[[pipeline]]\nclips = [\"*\"]\npacketiser = \"1k\"\n",
                "3:14: packetiser must be bytes",
            ),
            (
                "[[pipeline]]\nclips = [\"*\"]\nhandlers = [\"keys\", \"jump\"]\n",
                "3:21: \"jump\" is no handler; there are keys",
            ),
            (
                "[[pipeline]]\nclips = [\"*\"]\nsink = [\"smtp\"]\n",
                "3:9: sink \"smtp\": there are",
            ),
            (
                "[[pipeline]]\nclips = [\"*\"]\nsink = []\n",
                "3:8: without a sink",
            ),
            ("[[pipeline\n", "1:"),
        ] {
            let mistake = read(text).expect_err(text).to_string();
            assert!(mistake.starts_with(expected), "{text:?}: {mistake}");
        }
    }
}
