//! What is asked for in an address.

use std::time::Duration;

use bonsai_davvi::{Cut, Error, Name, Query, Wanted, parse_position};
use bonsai_units::parse_duration;
use serde::Deserialize;

/// The most events, or clips, that are named.
pub(super) const MOST_NAMED: usize = 500;

/// The most that is shown of what comes before an event, or after it.
const MOST_AROUND: Duration = Duration::from_secs(600);

/// As behind the question mark; lists are apart by commas. What is empty is not asked for.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Asked {
    #[serde(default)]
    q: String,
    #[serde(default)]
    player: String,
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    card: String,
    #[serde(default)]
    team: String,
    /// Others: `half=2,stadium=Brann`.
    #[serde(default)]
    fields: String,
    #[serde(default)]
    video: String,
    #[serde(default)]
    from: String,
    #[serde(default)]
    to: String,
    most: Option<usize>,
    #[serde(default)]
    length: String,
    #[serde(default)]
    before: String,
    #[serde(default)]
    after: String,
    /// Instead of a search: `match-1:3,match-2:0`.
    #[serde(default)]
    events: String,
    /// Instead of a search, as in playlists that were made of one: a first segment, and how many.
    #[serde(default)]
    clips: String,
}

/// What a playlist is of.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Of {
    /// The best hits.
    Search(Query),
    /// These events.
    Events(Vec<(Name, u32)>),
    /// Segments of videos: which, the first, and how many.
    Clips(Vec<(Name, u32, u32)>),
}

impl Asked {
    /// A search.
    pub(crate) fn query(&self) -> Result<Query, Error> {
        let mut wanted = Vec::new();
        for (field, any) in [
            ("player", &self.player),
            ("type", &self.kind),
            ("card", &self.card),
            ("team", &self.team),
        ] {
            let any = list(any);
            if !any.is_empty() {
                wanted.push(Wanted {
                    field: field.to_owned(),
                    any,
                });
            }
        }
        for field in list(&self.fields) {
            let Some((name, value)) = field.split_once('=') else {
                return Err(Error::Input(format!(
                    "{field:?} is no field: write NAME=VALUE"
                )));
            };
            wanted.push(Wanted {
                field: name.to_owned(),
                any: vec![value.to_owned()],
            });
        }
        let position = |text: &str| {
            let position = some(text).map(parse_position).transpose();
            position.map_err(Error::Input)
        };
        Ok(Query {
            text: self.q.clone(),
            wanted,
            videos: list(&self.video)
                .iter()
                .map(|name| Name::parse(name))
                .collect::<Result<_, _>>()?,
            from_ms: position(&self.from)?,
            to_ms: position(&self.to)?,
            most: self.most.unwrap_or(20),
        })
    }

    /// What a playlist is to be of.
    pub(crate) fn of(&self) -> Result<Of, Error> {
        if let Some(text) = some(&self.clips) {
            let clips = named(text, "clips", "VIDEO:FIRSTxCOUNT", |text| {
                let (name, numbers) = text.rsplit_once(':')?;
                let (first, count) = numbers.split_once('x')?;
                Some((
                    Name::parse(name).ok()?,
                    first.parse().ok()?,
                    count.parse().ok()?,
                ))
            });
            return clips.map(Of::Clips);
        }
        if let Some(text) = some(&self.events) {
            let events = named(text, "events", "VIDEO:NUMBER", |text| {
                let (name, number) = text.rsplit_once(':')?;
                Some((Name::parse(name).ok()?, number.parse().ok()?))
            });
            return events.map(Of::Events);
        }
        self.query().map(Of::Search)
    }

    pub(crate) fn cut(&self) -> Result<Cut, Error> {
        let own = Cut::default();
        let time = |name: &str, text: &str, own: Duration| match some(text) {
            Some(text) => {
                parse_duration(text).map_err(|error| Error::Input(format!("{name}: {error}")))
            }
            None => Ok(own),
        };
        let around = |name: &str, text: &str, own: Duration| -> Result<Duration, Error> {
            let around = time(name, text, own)?;
            if around > MOST_AROUND {
                let why = format!("{name}: more than 10min is too long");
                return Err(Error::Input(why));
            }
            Ok(around)
        };
        Ok(Cut {
            before: around("before", &self.before, own.before)?,
            after: around("after", &self.after, own.after)?,
            length: time("length", &self.length, own.length)?,
        })
    }
}

fn some(text: &str) -> Option<&str> {
    Some(text.trim()).filter(|text| !text.is_empty())
}

fn list(text: &str) -> Vec<String> {
    let words = text.split(',').map(str::trim);
    words
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}

fn named<T>(
    text: &str,
    what: &str,
    form: &str,
    read: impl Fn(&str) -> Option<T>,
) -> Result<Vec<T>, Error> {
    let all = list(text);
    if all.len() > MOST_NAMED {
        return Err(Error::Input(format!(
            "{what}: more than {MOST_NAMED} are too many"
        )));
    }
    let read = |one: &String| {
        read(one).ok_or_else(|| Error::Input(format!("{what}: {one:?}: write {form}")))
    };
    all.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use axum::extract::Query as Behind;

    use super::*;

    fn asked(text: &str) -> Asked {
        let uri = format!("/search?{text}").parse().expect("an address");
        Behind::try_from_uri(&uri).expect("asked").0
    }

    #[test]
    fn what_is_empty_is_not_asked_for() {
        let query = asked("q=header&player=&type=&card=,&team=&from=&video=&fields=").query();
        let expected = Query {
            text: "header".to_owned(),
            most: 20,
            ..Query::default()
        };
        assert_eq!(query.expect("a search"), expected);
        let cut = asked("length=&before=").cut().expect("as it is");
        assert_eq!(cut, Cut::default());
        let most = asked("before=10min&after=600s").cut().expect("the most");
        assert_eq!((most.before, most.after), (MOST_AROUND, MOST_AROUND));
    }

    #[test]
    fn a_playlist_is_of_what_is_named() {
        let name = |text| Name::parse(text).expect("a name");
        assert_eq!(
            asked("clips=a:3x4,b:0x1").of().expect("clips"),
            Of::Clips(vec![(name("a"), 3, 4), (name("b"), 0, 1)])
        );
        assert_eq!(
            asked("events=a:3,b:0").of().expect("events"),
            Of::Events(vec![(name("a"), 3), (name("b"), 0)])
        );
        let long = format!("events={}", "a:1,".repeat(MOST_NAMED + 1));
        for text in [
            "clips=a",
            "clips=a:1",
            "clips=A:1x1",
            "clips=a:-1x1",
            "clips=a:1x99999999999",
            "events=a",
            "events=../a:1",
            "events=a:x",
            &long,
        ] {
            assert!(asked(text).of().expect_err(text).is_input());
        }
    }
}
