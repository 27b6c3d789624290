//! Names of videos: they are folders, words in addresses and in playlists.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::Error;

/// The most characters of a name.
const MOST: usize = 64;

/// The name of a video: 1 to 64 of a-z, 0-9, `-` and `_`, with a letter or digit first. So it is
/// never hidden, never a path, and is the same in an address.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

impl Name {
    /// Reads one.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let is_name = text.len() <= MOST
            && text.bytes().next().is_some_and(is_plain)
            && text
                .bytes()
                .all(|byte| is_plain(byte) || byte == b'-' || byte == b'_');
        if is_name {
            Ok(Self(text.to_owned()))
        } else {
            Err(Error::input(format!(
                "{text:?} is no name of a video: write 1 to {MOST} of a-z, 0-9, - and _, a letter or digit first"
            )))
        }
    }

    /// A name like that of a file, without what names may not have.
    ///
    /// # Errors
    /// Nothing is left.
    pub fn of_file(path: &Path) -> Result<Self, Error> {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let mut name = String::new();
        for c in stem.to_lowercase().chars() {
            if c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' && !name.is_empty() {
                name.push(c);
            } else if !name.is_empty() && !name.ends_with('-') {
                name.push('-');
            }
        }
        name.truncate(MOST);
        let name = name.trim_end_matches('-');
        Self::parse(name).map_err(|_| {
            Error::input(format!(
                "{}: no name follows from that of the file: say --name",
                path.display()
            ))
        })
    }

    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl TryFrom<String> for Name {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        Self::parse(&text)
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_never_a_path() {
        for text in ["match-1", "a", "0", "brann_rbk-2009"] {
            assert_eq!(Name::parse(text).expect(text).as_str(), text);
        }
        let long = "a".repeat(65);
        for text in [
            "", ".", "..", "a/b", ".a", "-a", "_a", "A", "ø", "a b", "a\n", "a%2e", &long,
        ] {
            Name::parse(text).expect_err(text);
        }
    }

    #[test]
    fn a_name_follows_from_that_of_a_file() {
        for (file, name) in [
            ("/x/Match 1.final.MP4", "match-1-final"),
            ("__a__b.mp4", "a__b"),
            ("Brann - Rosenborg (2009).mkv", "brann-rosenborg-2009"),
            ("ø1.mp4", "1"),
        ] {
            assert_eq!(Name::of_file(Path::new(file)).expect(file).as_str(), name);
        }
        for file in ["øæå.mp4", "/", "..", "---.mp4"] {
            Name::of_file(Path::new(file)).expect_err(file);
        }
    }
}
