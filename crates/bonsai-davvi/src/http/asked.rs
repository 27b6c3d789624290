//! What is asked for in an address.

use std::time::Duration;

use bonsai_units::parse_duration;
use serde::Deserialize;

use crate::{Cut, Error, Name, Query, Wanted, parse_position};

/// As behind the question mark; lists are apart by commas.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    #[serde(default)]
    q: String,
    player: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
    card: Option<String>,
    /// Others: `team=Brann,half=2`.
    fields: Option<String>,
    video: Option<String>,
    from: Option<String>,
    to: Option<String>,
    most: Option<usize>,
    length: Option<String>,
    before: Option<String>,
    after: Option<String>,
}

impl Asked {
    pub(super) fn query(&self) -> Result<Query, Error> {
        let mut wanted = Vec::new();
        for (field, any) in [
            ("player", &self.player),
            ("type", &self.kind),
            ("card", &self.card),
        ] {
            wanted.extend(any.as_ref().map(|any| Wanted {
                field: field.to_owned(),
                any: list(any),
            }));
        }
        for field in self.fields.as_deref().map(list).unwrap_or_default() {
            let Some((name, value)) = field.split_once('=') else {
                return Err(Error::input(format!(
                    "{field:?} is no field: write NAME=VALUE"
                )));
            };
            wanted.push(Wanted {
                field: name.to_owned(),
                any: vec![value.to_owned()],
            });
        }
        let videos = self.video.as_deref().map(list).unwrap_or_default();
        let position = |text: &Option<String>| {
            let position = text.as_deref().map(parse_position).transpose();
            position.map_err(Error::Input)
        };
        Ok(Query {
            text: self.q.clone(),
            wanted,
            videos: videos
                .iter()
                .map(|name| Name::parse(name))
                .collect::<Result<_, _>>()?,
            from_ms: position(&self.from)?,
            to_ms: position(&self.to)?,
            most: self.most.unwrap_or(20),
        })
    }

    pub(super) fn cut(&self) -> Result<Cut, Error> {
        let own = Cut::default();
        let time = |text: &Option<String>, own: Duration| match text {
            Some(text) => parse_duration(text).map_err(|error| Error::input(error.to_string())),
            None => Ok(own),
        };
        Ok(Cut {
            before: time(&self.before, own.before)?,
            after: time(&self.after, own.after)?,
            length: time(&self.length, own.length)?,
        })
    }
}

fn list(text: &str) -> Vec<String> {
    let words = text.split(',').map(str::trim);
    words
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}
