//! What is looked for.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::index::{Hit, Index};
use crate::{Error, Library, Name};

/// The most characters of the words that are looked for.
const MOST_TEXT: usize = 500;
/// The most words.
const MOST_WORDS: usize = 32;
/// The most fields, and the most values of one: SQLite takes a thousand conditions that belong together.
const MOST_FIELDS: usize = 32;
const MOST_VALUES: usize = 200;
/// The most videos that are named.
const MOST_VIDEOS: usize = 1000;
/// The most hits that are returned.
pub(crate) const MOST_HITS: usize = 10_000;

/// A field, and what it may be: any of these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// `player`, `type`, or the name of a column of the annotations.
    pub field: String,
    /// One of these words, or some, one after the other, of the field: `solskjær` finds
    /// `Ole Gunnar Solskjær`, and `8` does not find `18`. Case does not count.
    pub any: Vec<String>,
}

/// What is looked for: all of it has to be true of a hit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// Words, all of which occur, in any of their forms (English); `"sliding tackle"` in quotes
    /// one after the other, `tack*` as a beginning, `-corner` not at all.
    pub text: String,
    /// Fields.
    pub wanted: Vec<Wanted>,
    /// In one of these videos; in any if there are none.
    pub videos: Vec<Name>,
    /// Not before, ms.
    pub from_ms: Option<u64>,
    /// Not after, ms.
    pub to_ms: Option<u64>,
    /// The most hits that are returned, up to 10,000.
    pub most: usize,
}

/// What was found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Found {
    /// How many hits there are in all.
    pub total: u64,
    /// The best, best first; by video and time where no words tell them apart.
    pub hits: Vec<Hit>,
    /// What is wrong with the library, a sentence each.
    pub problems: Vec<String>,
}

impl Library {
    /// Looks for events.
    ///
    /// # Errors
    /// Nothing is looked for, or the words cannot be; a video is not there; the index cannot be made.
    pub fn search(&self, query: &Query) -> Result<Found, Error> {
        let words = words(&query.text)?;
        let is_anything = words.is_some()
            || !query.wanted.is_empty()
            || !query.videos.is_empty()
            || query.from_ms.is_some()
            || query.to_ms.is_some();
        if !is_anything {
            return Err(Error::input(
                "say what to look for: words, or a field such as --player 8",
            ));
        }
        bounded(query)?;
        let mut listed = self.list()?;
        for name in &query.videos {
            if !listed.videos.iter().any(|video| video.name == *name) {
                // Says why.
                self.video(name)?;
            }
        }
        let index = Index::open(self, &mut listed)?;
        let (total, hits) = index.search(query, words.as_deref())?;
        Ok(Found {
            total,
            hits,
            problems: listed.problems,
        })
    }

    /// Events by their video and their number in it, in this order.
    ///
    /// # Errors
    /// There is no such event, or the index cannot be made.
    pub fn hits(&self, events: &[(Name, u32)]) -> Result<Vec<Hit>, Error> {
        let index = Index::open(self, &mut self.list()?)?;
        let hit = |(video, number): &(Name, u32)| {
            index
                .event(video, *number)?
                .ok_or_else(|| Error::input(format!("{video}:{number}: there is no such event")))
        };
        events.iter().map(hit).collect()
    }

    /// What the fields of the events have, in lower case: of each field those first that most events have,
    /// and up to so many.
    ///
    /// # Errors
    /// The index cannot be made.
    pub fn field_values(&self, most: usize) -> Result<BTreeMap<String, Vec<String>>, Error> {
        Index::open(self, &mut self.list()?)?.values(most)
    }
}

/// Refuses what is more than anybody looks for.
fn bounded(query: &Query) -> Result<(), Error> {
    if query.wanted.len() > MOST_FIELDS {
        return Err(Error::input(format!(
            "more than {MOST_FIELDS} fields cannot be looked for"
        )));
    }
    for wanted in &query.wanted {
        let field = &wanted.field;
        if wanted.any.len() > MOST_VALUES {
            return Err(Error::input(format!(
                "{field:?}: more than {MOST_VALUES} values cannot be looked for"
            )));
        }
        if wanted.any.iter().all(|value| value.trim().is_empty()) {
            return Err(Error::input(format!("{field:?}: say what it has to be")));
        }
    }
    if query.videos.len() > MOST_VIDEOS {
        return Err(Error::input(format!(
            "more than {MOST_VIDEOS} videos cannot be named"
        )));
    }
    Ok(())
}

/// As it is compared in fields: case and blanks do not count.
pub(crate) fn folded(text: &str) -> String {
    let lower = text.to_lowercase();
    lower.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The words in the language of FTS5: <https://sqlite.org/fts5.html>, 3. Everything is quoted, so that nothing
/// of it is an operator.
fn words(text: &str) -> Result<Option<String>, Error> {
    if text.chars().count() > MOST_TEXT {
        return Err(Error::input(format!(
            "more than {MOST_TEXT} characters cannot be looked for"
        )));
    }
    // FTS5 reads no further than to a NUL.
    if text.chars().any(|c| c.is_control() && !c.is_whitespace()) {
        return Err(Error::input(format!(
            "{text:?}: there is a control character in it"
        )));
    }
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for (is_phrase, part) in parts(text)? {
        let (is_not, part) = match part.strip_prefix('-') {
            Some(rest) if !is_phrase => (true, rest),
            _ => (false, part),
        };
        let (is_start, part) = match part.strip_suffix('*') {
            Some(rest) if !is_phrase => (true, rest),
            _ => (false, part),
        };
        if !part.chars().any(char::is_alphanumeric) {
            continue;
        }
        let quoted = format!(
            "\"{}\"{}",
            part.replace('"', "\"\""),
            if is_start { "*" } else { "" }
        );
        if is_not { &mut without } else { &mut with }.push(quoted);
    }
    if with.len() + without.len() > MOST_WORDS {
        return Err(Error::input(format!(
            "more than {MOST_WORDS} words cannot be looked for"
        )));
    }
    if with.is_empty() {
        return if without.is_empty() && text.trim().is_empty() {
            Ok(None)
        } else {
            Err(Error::input(format!(
                "{text:?}: there is no word in it that a hit has to have"
            )))
        };
    }
    let mut all = format!("({})", with.join(" AND "));
    for one in without {
        all = format!("({all} NOT {one})");
    }
    Ok(Some(all))
}

/// Words and what is in quotes.
fn parts(text: &str) -> Result<Vec<(bool, &str)>, Error> {
    let mut parts = Vec::new();
    for (i, part) in text.split('"').enumerate() {
        if i % 2 == 1 {
            parts.push((true, part));
        } else {
            parts.extend(part.split_whitespace().map(|word| (false, word)));
        }
    }
    if text.matches('"').count() % 2 == 1 {
        return Err(Error::input(format!("{text:?}: a quote is not closed")));
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_is_looked_for_is_an_operator() {
        let asked = |text: &str| words(text).expect(text);
        assert_eq!(
            asked("sliding tackle").as_deref(),
            Some("(\"sliding\" AND \"tackle\")")
        );
        assert_eq!(
            asked("\"sliding tackle\"").as_deref(),
            Some("(\"sliding tackle\")")
        );
        assert_eq!(
            asked("tack* -corner").as_deref(),
            Some("((\"tack\"*) NOT \"corner\")")
        );
        assert_eq!(
            asked("a OR b:c").as_deref(),
            Some("(\"a\" AND \"OR\" AND \"b:c\")")
        );
        assert_eq!(asked("a - ! (").as_deref(), Some("(\"a\")"));
        assert_eq!(asked("  "), None);
        for text in [
            "-a",
            "!",
            "\"a",
            "\"\"",
            "a\0b",
            "a \u{1b}",
            &"x ".repeat(33),
            &"x".repeat(501),
        ] {
            words(text).expect_err(text);
        }
    }

    fn nothing_is_in_it() -> (tempfile::TempDir, Library) {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join(".private")).expect("made");
        let library = Library::open(folder.path()).expect("a library");
        (folder, library)
    }

    #[test]
    fn more_than_anybody_looks_for_is_refused() {
        let (_folder, library) = nothing_is_in_it();
        let of = |values: &[&str]| Wanted {
            field: "player".to_owned(),
            any: values.iter().map(ToString::to_string).collect(),
        };
        let asked = |wanted: Vec<Wanted>, videos: usize| {
            let query = Query {
                wanted,
                videos: vec![Name::parse("a").expect("a name"); videos],
                most: 1,
                ..Query::default()
            };
            library.search(&query)
        };
        asked(vec![of(&["8"; MOST_VALUES]); MOST_FIELDS], 0).expect("as much as may be");
        for (wanted, videos) in [
            (vec![of(&["8"; MOST_VALUES + 1])], 0),
            (vec![of(&["8"]); MOST_FIELDS + 1], 0),
            (vec![of(&[])], 0),
            (vec![of(&[" "])], 0),
            (Vec::new(), MOST_VIDEOS + 1),
        ] {
            let said = asked(wanted, videos).expect_err("too much, or nothing");
            assert!(said.is_input(), "{said}");
        }
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(128))]

        /// Whatever is written is looked for, or refused: SQLite takes all that it is given.
        #[test]
        fn any_text_is_looked_for_or_refused(text in ".{0,60}", value in ".{1,20}") {
            let (_folder, library) = nothing_is_in_it();
            let wanted = Wanted { field: value.clone(), any: vec![value] };
            let query = Query { text, wanted: vec![wanted], most: 1, ..Query::default() };
            if let Err(error) = library.search(&query) {
                proptest::prop_assert!(error.is_input(), "{}", error);
            }
        }
    }
}
