//! Names of schemes, as they are read and printed.

use std::fmt;
use std::str::FromStr;

use super::{Drive, OnWrite, Scheme};

/// What is wrong with the name of a scheme.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadScheme {
    /// The first word.
    #[error("there is no scheme `{0}`: it is one of plain, iodedup:10%, drive, ideal")]
    Name(String),
    /// A word behind it.
    #[error("`{scheme}` has no `{word}`: {right}")]
    Word {
        /// The scheme.
        scheme: &'static str,
        /// The word.
        word: String,
        /// What would be right.
        right: &'static str,
    },
}

const DRIVE_WORDS: &str =
    "it has scan, invalidate, intra, and max=BYTES (max=16MiB, at least 128KiB)";

/// Bytes that the metadata takes at least.
const LEAST_METADATA: usize = 128 << 10;
const IODEDUP_WORDS: &str =
    "it has the part of the content cache (10%, 0.1% to 99.9%), and invalidate";

impl FromStr for Scheme {
    type Err = BadScheme;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut words = text.split(':');
        let name = words.next().unwrap_or_default();
        match name {
            "plain" => nothing_more("plain", words, Self::Plain),
            "ideal" => nothing_more("ideal", words, Self::Ideal),
            "iodedup" => iodedup(words),
            "drive" => drive(words),
            _ => Err(BadScheme::Name(name.to_owned())),
        }
    }
}

fn nothing_more<'a>(
    scheme: &'static str,
    mut words: impl Iterator<Item = &'a str>,
    it: Scheme,
) -> Result<Scheme, BadScheme> {
    match words.next() {
        None => Ok(it),
        Some(word) => Err(wrong(scheme, word, "it stands alone")),
    }
}

fn wrong(scheme: &'static str, word: &str, right: &'static str) -> BadScheme {
    let word = word.to_owned();
    BadScheme::Word {
        scheme,
        word,
        right,
    }
}

fn iodedup<'a>(words: impl Iterator<Item = &'a str>) -> Result<Scheme, BadScheme> {
    // The thesis' default is 100 MB of 1 GB.
    let mut share = 100;
    let mut on_write = OnWrite::Update;
    for word in words {
        match (word, word.strip_suffix('%').and_then(thousandths)) {
            ("invalidate", _) => on_write = OnWrite::Invalidate,
            (_, Some(part)) => share = part,
            _ => return Err(wrong("iodedup", word, IODEDUP_WORDS)),
        }
    }
    Ok(Scheme::Iodedup { share, on_write })
}

/// "12.5" as 125: parts of a hundred with one digit, between nothing and all.
fn thousandths(text: &str) -> Option<u32> {
    let (whole, tenth) = text.split_once('.').unwrap_or((text, "0"));
    if tenth.len() != 1 || !(whole.bytes().chain(tenth.bytes())).all(|b| b.is_ascii_digit()) {
        return None;
    }
    let whole: u32 = whole.parse().ok().filter(|&whole| whole < 100)?;
    Some(whole * 10 + tenth.parse::<u32>().ok()?).filter(|&part| part > 0)
}

fn drive<'a>(words: impl Iterator<Item = &'a str>) -> Result<Scheme, BadScheme> {
    let mut how = Drive::DEFAULT;
    let mut said = Vec::new();
    for word in words {
        let name = word.split_once('=').map_or(word, |(name, _)| name);
        if said.contains(&name) {
            return Err(wrong("drive", word, "each word stands there once"));
        }
        said.push(name);
        match (word, word.strip_prefix("max=").and_then(bytes)) {
            ("scan", _) => how.scan = true,
            ("invalidate", _) => how.on_write = OnWrite::Invalidate,
            ("intra", _) => how.intra = true,
            (_, Some(most)) => how.max_bytes = Some(most),
            _ => return Err(wrong("drive", word, DRIVE_WORDS)),
        }
    }
    Ok(Scheme::Drive(how))
}

fn bytes(text: &str) -> Option<usize> {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit: usize = match unit {
        "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    let bytes = number.parse::<usize>().ok()?.checked_mul(unit);
    bytes.filter(|bytes| *bytes >= LEAST_METADATA)
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain => f.write_str("plain"),
            Self::Ideal => f.write_str("ideal"),
            Self::Iodedup { share, on_write } => {
                write!(f, "iodedup:{}", share / 10)?;
                if share % 10 != 0 {
                    write!(f, ".{}", share % 10)?;
                }
                f.write_str("%")?;
                written(f, *on_write)
            }
            Self::Drive(how) => {
                f.write_str("drive")?;
                f.write_str(if how.scan { ":scan" } else { "" })?;
                f.write_str(if how.intra { ":intra" } else { "" })?;
                if let Some(most) = how.max_bytes {
                    write!(f, ":max={most}B")?;
                }
                written(f, how.on_write)
            }
        }
    }
}

fn written(f: &mut fmt::Formatter<'_>, on_write: OnWrite) -> fmt::Result {
    match on_write {
        OnWrite::Update => Ok(()),
        OnWrite::Invalidate => f.write_str(":invalidate"),
    }
}
