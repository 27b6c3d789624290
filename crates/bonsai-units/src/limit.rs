//! A limit as it is written on a command line or in a file.

use core::fmt;
use core::str::FromStr;

use crate::burst::{Burst, BurstError};
use crate::error::ParseError;
use crate::rate::Rate;

/// What a limit is set to.
///
/// Text: `unlimited`, or a rate with or without a burst: `5MB/s`,
/// `5MB/s:burst=1MB`. `Display` is exact and read back to the same value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Setting {
    /// No limit.
    Unlimited,
    /// A limit.
    Rate {
        /// How fast.
        rate: Rate,
        /// How far ahead; [`Burst::default`] where nothing is said.
        burst: Option<Burst>,
    },
}

/// Why a text is not a setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingError {
    /// No value.
    #[error("the value is empty: write a rate such as 10MB/s, or unlimited")]
    Empty,
    /// A word other than `unlimited`.
    #[error("{text:?} is neither a rate nor unlimited: write 10MB/s, 80Mbit/s, 10/s or unlimited")]
    UnknownWord {
        /// The word.
        text: String,
    },
    /// The rate is none.
    #[error("{0}")]
    Rate(ParseError),
    /// Something else than `burst=` after the colon.
    #[error(
        "{option:?} is not an option: after the rate comes only :burst=BURST, such as :burst=10ms"
    )]
    UnknownOption {
        /// What stood there.
        option: String,
    },
    /// Two bursts.
    #[error("the burst is given twice: write it once, such as :burst=10ms")]
    BurstTwice,
    /// The burst is none.
    #[error("{0}")]
    Burst(ParseError),
    /// The burst does not fit the rate.
    #[error("{0}")]
    BurstUnit(BurstError),
    /// A burst without a rate.
    #[error(
        "unlimited takes no options, {options:?} has nothing to apply to: write unlimited alone"
    )]
    UnlimitedWithOptions {
        /// What stood behind it.
        options: String,
    },
}

impl FromStr for Setting {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        let text = text.trim();
        if text.is_empty() {
            return Err(SettingError::Empty);
        }
        let (value, options) = match text.split_once(':') {
            Some((value, options)) => (value.trim_end(), Some(options)),
            None => (text, None),
        };
        if value == "unlimited" {
            return match options {
                None => Ok(Self::Unlimited),
                Some(options) => Err(SettingError::UnlimitedWithOptions {
                    options: options.into(),
                }),
            };
        }
        if value.starts_with(char::is_alphabetic) {
            return Err(SettingError::UnknownWord { text: value.into() });
        }
        let rate: Rate = value.parse().map_err(SettingError::Rate)?;
        let mut burst = None;
        for option in options.into_iter().flat_map(|options| options.split(':')) {
            match option.split_once('=') {
                Some((name, value)) if name.trim() == "burst" => {
                    let parsed: Burst = value.parse().map_err(SettingError::Burst)?;
                    parsed.units(rate).map_err(SettingError::BurstUnit)?;
                    if burst.replace(parsed).is_some() {
                        return Err(SettingError::BurstTwice);
                    }
                }
                _ => {
                    return Err(SettingError::UnknownOption {
                        option: option.trim().into(),
                    });
                }
            }
        }
        Ok(Self::Rate { rate, burst })
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unlimited => f.pad("unlimited"),
            Self::Rate { rate, burst: None } => rate.fmt(f),
            Self::Rate {
                rate,
                burst: Some(burst),
            } => f.pad(&format!("{rate}:burst={burst}")),
        }
    }
}

/// A limit: what it is on, and what it is set to.
///
/// Text: `NAME=RATE[:burst=BURST]` or `NAME=unlimited`. The name has one or more of
/// `a-z 0-9 _ . * / -`, and may go on with `@` and what narrows it down: any letters,
/// also `=`. Where that is not to end at the last `=` before the rate, it stands in
/// quotes, and a quote in it twice: `read@"/a:burst=1"=5MB/s`. Whether it means anything
/// is not known here.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LimitSpec {
    /// A call or a class of calls, and what narrows it down, without quotes.
    pub name: String,
    /// What it is set to.
    pub setting: Setting,
}

/// Why a text is not a limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LimitError {
    /// No `=`.
    #[error(
        "limit {text:?} has no =: the form is NAME=RATE[:burst=BURST] or NAME=unlimited, such as read=10MB/s"
    )]
    NoEquals {
        /// The text.
        text: String,
    },
    /// Nothing before the `=`.
    #[error(
        "limit {text:?} has no name before the =: the form is NAME=RATE[:burst=BURST] or NAME=unlimited, such as read=10MB/s"
    )]
    EmptyName {
        /// The text.
        text: String,
    },
    /// Nothing before the `@`.
    #[error(
        "limit {text:?} has no name before the @: write the calls that it is on, such as read@/srv/**=10MB/s"
    )]
    NoCalls {
        /// The text.
        text: String,
    },
    /// Nothing behind the `@`.
    #[error(
        "limit {text:?} has nothing behind the @: write a path, a network or a port, such as read@/srv/**=10MB/s"
    )]
    EmptyScope {
        /// The text.
        text: String,
    },
    /// A quote that is not closed, or not by the last letter before the `=`.
    #[error(
        "limit {text:?} has a quote behind the @ that does not end before the =: write read@\"/srv/**\"=10MB/s, and a quote within as two"
    )]
    Quote {
        /// The text.
        text: String,
    },
    /// A character that no name has.
    #[error(
        "limit {text:?} has {character:?} in its name: names are made of a-z 0-9 _ @ . * / -, as in read=10MB/s"
    )]
    NameCharacter {
        /// The text.
        text: String,
        /// The first such character.
        character: char,
    },
    /// A control character behind the `@`.
    #[error(
        "limit {text:?} has the control character {character:?} behind the @: write what can be read"
    )]
    ScopeCharacter {
        /// The text.
        text: String,
        /// The first such character.
        character: char,
    },
    /// What follows the `=` is not a setting.
    // The reason is part of the sentence and not its source, so that no printer
    // of error chains says it twice.
    #[error("limit {text:?}: {reason} (the form is NAME=RATE[:burst=BURST] or NAME=unlimited)")]
    Setting {
        /// The text.
        text: String,
        /// What is wrong with the value.
        reason: SettingError,
    },
}

impl LimitSpec {
    /// What a limit is set to, in the words of whoever wrote it; nothing of a text that is none.
    #[must_use]
    pub fn value_of(text: &str) -> Option<&str> {
        split(text).ok().map(|(_, value)| value.trim())
    }
}

impl FromStr for LimitSpec {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Self, LimitError> {
        let (name, value) = split(text)?;
        match value.parse() {
            Ok(setting) => Ok(Self { name, setting }),
            Err(reason) => Err(LimitError::Setting {
                text: text.to_owned(),
                reason,
            }),
        }
    }
}

/// The name of a limit, without quotes, and its value.
fn split(text: &str) -> Result<(String, &str), LimitError> {
    let owned = || text.to_owned();
    let Some((name, value)) = text.split_once('=') else {
        return Err(LimitError::NoEquals { text: owned() });
    };
    let Some((calls, rest)) = text.split_once('@').filter(|_| name.contains('@')) else {
        let name = name.trim();
        return if name.is_empty() {
            Err(LimitError::EmptyName { text: owned() })
        } else {
            check_calls(name, text)?;
            Ok((name.to_owned(), value))
        };
    };
    let calls = calls.trim();
    if calls.is_empty() {
        return Err(LimitError::NoCalls { text: owned() });
    }
    check_calls(calls, text)?;
    let (scope, value) = match rest.trim_start().strip_prefix('"') {
        Some(quoted) => unquoted(quoted).ok_or_else(|| LimitError::Quote { text: owned() })?,
        None => {
            let at = last_equals(rest).ok_or_else(|| LimitError::NoEquals { text: owned() })?;
            (rest[..at].trim().to_owned(), &rest[at + 1..])
        }
    };
    if scope.is_empty() {
        return Err(LimitError::EmptyScope { text: owned() });
    }
    if let Some(character) = scope.chars().find(|c| c.is_control()) {
        return Err(LimitError::ScopeCharacter {
            text: owned(),
            character,
        });
    }
    Ok((format!("{calls}@{scope}"), value))
}

fn check_calls(calls: &str, text: &str) -> Result<(), LimitError> {
    match calls.chars().find(|c| !is_name_character(*c)) {
        None => Ok(()),
        Some(character) => Err(LimitError::NameCharacter {
            text: text.to_owned(),
            character,
        }),
    }
}

/// The text up to a quote that no other one follows, and what stands behind the `=`
/// after it.
fn unquoted(quoted: &str) -> Option<(String, &str)> {
    let mut text = String::new();
    let mut rest = quoted;
    loop {
        let (part, after) = rest.split_once('"')?;
        text.push_str(part);
        match after.strip_prefix('"') {
            Some(more) => {
                text.push('"');
                rest = more;
            }
            None => return Some((text, after.trim_start().strip_prefix('=')?)),
        }
    }
}

/// Where the last `=` stands that is not the one of a burst.
fn last_equals(text: &str) -> Option<usize> {
    let mut end = text.len();
    loop {
        let at = text[..end].rfind('=')?;
        let option = text[..at].trim_end().strip_suffix("burst");
        if !option.is_some_and(|before| before.trim_end().ends_with(':')) {
            return Some(at);
        }
        end = at;
    }
}

const fn is_name_character(c: char) -> bool {
    matches!(c, 'a'..='z' | '0'..='9' | '_' | '.' | '*' | '/' | '-')
}

impl fmt::Display for LimitSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, setting } = self;
        let plain = format!("{name}={setting}");
        let is_plain = split(&plain).is_ok_and(|(read, _)| read == *name);
        match name.split_once('@') {
            Some((calls, scope)) if !is_plain => {
                let scope = scope.replace('"', "\"\"");
                f.pad(&format!("{calls}@\"{scope}\"={setting}"))
            }
            _ => f.pad(&plain),
        }
    }
}
