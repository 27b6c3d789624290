//! What is looked for.

use serde::Serialize;

use crate::index::{Hit, Index};
use crate::{Error, Library, Name};

/// The most characters of the words that are looked for.
const MOST_TEXT: usize = 500;
/// The most words.
const MOST_WORDS: usize = 32;
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
        let listed = self.list()?;
        for name in &query.videos {
            if !listed.videos.iter().any(|video| video.name == *name) {
                // Says why.
                self.video(name)?;
            }
        }
        let index = Index::open(self, &listed.videos)?;
        let (total, hits) = index.search(query, words.as_deref())?;
        Ok(Found {
            total,
            hits,
            problems: listed.problems,
        })
    }
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
        for text in ["-a", "!", "\"a", "\"\"", &"x ".repeat(33), &"x".repeat(501)] {
            words(text).expect_err(text);
        }
    }
}
