//! The file.

use std::borrow::Cow;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{Mistake, Pipeline, payload};
use crate::serve::Engine;
use crate::serve::lower::Lower;
use crate::serve::parts::Parts;

/// Entries of a file.
const MOST_ENTRIES: usize = 1000;

/// A problem, and where it is in bytes.
type Problem = (usize, String);

type Key<'i> = Spanned<Cow<'i, str>>;
type Value<'i> = Spanned<DeValue<'i>>;

/// Patterns of clips, and their way.
type Entry = (Vec<String>, Arc<Pipeline>);

/// Its entries.
///
/// # Errors
/// The first mistake in it.
pub(super) fn read(text: &str, engine: Engine, parts: &Parts) -> Result<Vec<Entry>, Mistake> {
    parse(text, engine, parts).map_err(|(at, wrong)| {
        let (line, column) = position(text, at);
        Mistake {
            line,
            column,
            text: wrong,
        }
    })
}

fn at<T>(value: &Spanned<T>, text: impl Into<String>) -> Problem {
    (value.span().start, text.into())
}

fn parse(text: &str, engine: Engine, parts: &Parts) -> Result<Vec<Entry>, Problem> {
    let table = DeTable::parse(text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start);
        (start, error.message().replace('\n', ", "))
    })?;
    let mut entries = Vec::new();
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
            if entries.len() >= MOST_ENTRIES {
                let text =
                    format!("there are more than {MOST_ENTRIES} entries; one may name many clips");
                return Err(at(entry, text));
            }
            entries.push(one(entry, table, engine, parts)?);
        }
    }
    Ok(entries)
}

/// One entry.
fn one(
    entry: &Value<'_>,
    table: &DeTable<'_>,
    engine: Engine,
    parts: &Parts,
) -> Result<Entry, Problem> {
    let mut pipeline = Pipeline::plain(engine, parts.chain());
    let mut clips = None;
    for (key, value) in in_order(table) {
        match key.get_ref().as_ref() {
            "clips" => clips = Some(patterns(value)?),
            "source" => source(value, parts, &mut pipeline)?,
            "handlers" => {
                let names = list(value, "handlers must be a list of texts")?.iter();
                let handler =
                    |name: &Value<'_>| part(name, "a handler", |text| parts.handler(text));
                pipeline.chain = names.map(handler).collect::<Result<_, _>>()?;
            }
            "packetiser" => packetiser(value, parts, &mut pipeline)?,
            "pacer" => {
                pipeline.pacer = match string(value, "pacer")? {
                    "media" => None,
                    _ => Some(part(value, "pacer", |text| parts.pacer(text))?),
                };
            }
            "sink" => sinks(value, parts, &mut pipeline)?,
            "lower" => pipeline.lower = Some(lower(value)?),
            "selector" => {
                pipeline.selector = match string(value, "selector")? {
                    "server" => None,
                    _ => Some(part(value, "selector", |text| parts.selector(text))?),
                };
            }
            other => {
                let text = format!(
                    "{other:?} is not an option of a pipeline: there are clips, source, handlers, \
                     packetiser, pacer, sink, lower and selector"
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

/// How it is read, and by whom.
fn source(value: &Value<'_>, parts: &Parts, pipeline: &mut Pipeline) -> Result<(), Problem> {
    const WHAT: &str = "source must be a text, or a list such as [\"sample\", \"memory=256MiB\"]";
    let names = match value.get_ref() {
        DeValue::String(_) => std::slice::from_ref(value),
        _ => list(value, WHAT)?,
    };
    let mut has_engine = false;
    for name in names {
        let engine = match string(name, "a source")? {
            "packet" => Some(Engine::Classic),
            "sample" => Some(Engine::Fast),
            _ => None,
        };
        match engine {
            Some(_) if has_engine => {
                return Err(at(name, "\"packet\" or \"sample\" is said once"));
            }
            Some(engine) => (pipeline.engine, has_engine) = (engine, true),
            None if pipeline.source.is_some() => {
                return Err(at(
                    name,
                    "samples come from one source: leave one of both out",
                ));
            }
            None => pipeline.source = Some(part(name, "a source", |text| parts.source(text))?),
        }
    }
    Ok(())
}

/// How payloads are made, and of how many bytes.
fn packetiser(value: &Value<'_>, parts: &Parts, pipeline: &mut Pipeline) -> Result<(), Problem> {
    let bytes = |text: &str| {
        let wrong = |why| at(value, format!("packetiser {text}: {why}"));
        payload(text).map_err(wrong)
    };
    match value.get_ref() {
        DeValue::Integer(number) => {
            let read = u64::from_str_radix(number.as_str(), number.radix());
            pipeline.payload = bytes(&read.map_or(number.to_string(), |read| read.to_string()))?;
        }
        DeValue::String(text) => match text.split_once('=').unwrap_or((text.as_ref(), "")) {
            ("h264", "") => {}
            ("h264", size) => pipeline.payload = bytes(size)?,
            _ => {
                let made = part(value, "packetiser", |text| parts.packetiser(text))?;
                if let Some(most) = made.most() {
                    pipeline.payload = bytes(&most.to_string())?;
                }
                pipeline.packetiser = Some(made);
            }
        },
        other => {
            let text = format!(
                "packetiser must be bytes of payload, such as 1200, or a text, such as \"together\", but \
                 this is of type {}",
                other.type_str()
            );
            return Err(at(value, text));
        }
    }
    Ok(())
}

/// The ways that viewers may ask for, and who gets copies.
fn sinks(value: &Value<'_>, parts: &Parts, pipeline: &mut Pipeline) -> Result<(), Problem> {
    (pipeline.has_datagrams, pipeline.has_interleaved) = (false, false);
    for name in list(value, "sink must be a list, such as [\"udp\", \"tcp\"]")? {
        match string(name, "a sink")? {
            "udp" => pipeline.has_datagrams = true,
            "tcp" => pipeline.has_interleaved = true,
            _ => {
                let sink = part(name, "a sink", |text| parts.sink(text))?;
                pipeline.sinks.push(sink);
            }
        }
    }
    match pipeline.has_datagrams || pipeline.has_interleaved {
        true => Ok(()),
        false => Err(at(
            value,
            "no viewer sees it: add \"udp\", \"tcp\", or both; others get copies of what is sent",
        )),
    }
}

/// What lower qualities are called.
fn lower(value: &Value<'_>) -> Result<Arc<[Lower]>, Problem> {
    const WHAT: &str = "lower must be a list of paths, such as [\"{}-500k.mp4\"]";
    let paths = list(value, WHAT)?.iter();
    let paths = paths.map(|path| string(path, "a path"));
    let paths: Vec<&str> = paths.collect::<Result<_, _>>()?;
    Lower::list(&paths).map_err(|why| at(value, format!("lower {why}")))
}

/// A part by its name.
fn part<T>(
    value: &Value<'_>,
    what: &str,
    find: impl FnOnce(&str) -> Result<T, String>,
) -> Result<T, Problem> {
    find(string(value, what)?).map_err(|why| at(value, why))
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
                "3:10: \"disk\" is no source; there are memory, packet, sample",
            ),
            (
                "[[pipeline]]\nclips = [\"*\"]\nsource = \"packet=1\"\n",
                "3:10: \"packet=1\": packet takes nothing",
            ),
            (
                "[[pipeline]]\nclips = [\"*\"]\nselector = \"server=1\"\n",
                "3:12: \"server=1\": server takes nothing",
            ),
            (
                "[[pipeline]]\nclips = [\"*\"]\nsource = [\"sample\", \"packet\"]\n",
                "3:21: \"packet\" or \"sample\" is said once",
            ),
            (
                "[[pipeline]]\nclips = [\"*\"]\nsource = [\"memory=1MiB\", \"memory=2MiB\"]\n",
                "3:26: samples come from one source",
            ),
            (
                "[[pipeline]]\nclips = [\"*\"]\nsource = 3\n",
                "3:10: source must be a text, or a list",
            ),
            (
                "[[pipeline]]\nclips = [\"*\"]\nsource = \"memory=1kB\"\n",
                "3:10: memory=1kB: write how much",
            ),
            (
                "[[pipeline]]\nclips = [\"*\"]\npacketiser = 9000\n",
                "3:14: packetiser 9000: from 200 to 1388",
            ),
            (
                "[[pipeline]]\nclips = [\"*\"]\npacketiser = \"1k\"\n",
                "3:14: \"1k\" is no packetiser; there are h264, single, together",
            ),
            (
                "[[pipeline]]\nclips = [\"*\"]\npacketiser = 1.5\n",
                "3:14: packetiser must be bytes of payload, such as 1200, or a text",
            ),
            (
                "[[pipeline]]\nclips = [\"*\"]\npacketiser = \"single=20\"\n",
                "3:14: single=20: from 200 to 1388",
            ),
            (
                "[[pipeline]]\nclips = [\"*\"]\npacketiser = \"h264=x\"\n",
                "3:14: packetiser x: from 200 to 1388",
            ),
            (
                "[[pipeline]]\nclips = [\"*\"]\npacer = \"spread=80\"\n",
                "3:9: spread=80: write the part of the time",
            ),
            (
                "[[pipeline]]\nclips = [\"*\"]\npacer = 0.8\n",
                "3:9: pacer must be a text in quotes, but this is of type float",
            ),
            (
                "[[pipeline]]\nclips = [\"*\"]\nselector = \"best\"\n",
                "3:12: \"best\" is no selector; there are fixed, server",
            ),
            (
                "[[pipeline]]\nclips = [\"*\"]\nhandlers = [\"keys\", \"jump\"]\n",
                "3:21: \"jump\" is no handler; there are keys",
            ),
            (
                "[[pipeline]]\nclips = [\"*\"]\nsink = [\"smtp\"]\n",
                "3:9: \"smtp\" is no sink; there are tcp, udp, udp-to",
            ),
            (
                "[[pipeline]]\nclips = [\"*\"]\nsink = []\n",
                "3:8: no viewer sees it: add",
            ),
            (
                "[[pipeline]]\nclips = [\"*\"]\nsink = [\"udp-to=127.0.0.1:5004\"]\n",
                "3:8: no viewer sees it: add",
            ),
            (
                "[[pipeline]]\nclips = [\"*\"]\nsink = [\"udp\", \"udp-to=nowhere\"]\n",
                "3:16: udp-to=nowhere: write ADDRESS:PORT",
            ),
            (
                "[[pipeline]]\nclips = [\"*\"]\nlower = \"{}.mp4\"\n",
                "3:9: lower must be a list",
            ),
            (
                "[[pipeline]]\nclips = [\"*\"]\nlower = [\"{}-1.mp4\", \"../{}.mp4\"]\n",
                "3:9: lower \"../{}.mp4\": it leads out",
            ),
            ("[[pipeline\n", "1:"),
        ] {
            let mistake = read(text, Engine::Classic, &Parts::builtin())
                .expect_err(text)
                .to_string();
            assert!(mistake.starts_with(expected), "{text:?}: {mistake}");
        }
    }
}
