//! What stands between the values of a line of CSV.

use std::fmt;
use std::str::FromStr;

use csv_core::{ReadRecordResult, Reader, ReaderBuilder};
use serde::{Serialize, Serializer};

use super::{Wrong, bad};

/// What stands between values: a character, or runs of blanks and tabs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Delimiter {
    /// An ASCII character.
    Byte(u8),
    /// Blanks and tabs, any number of them; those at the start of a line count for nothing.
    Blanks,
}

impl Delimiter {
    /// Those that are guessed, the likeliest first.
    pub(super) const GUESSED: [Self; 5] = [
        Self::Byte(b','),
        Self::Byte(b'\t'),
        Self::Byte(b';'),
        Self::Byte(b'|'),
        Self::Blanks,
    ];
}

/// A delimiter that cannot be.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("\"{}\" is no delimiter: write one character such as , or ; or one of comma, semicolon, tab, bar, colon, blank", .0.escape_debug())]
pub struct DelimiterError(String);

const NAMES: [(&str, u8); 5] = [
    ("comma", b','),
    ("semicolon", b';'),
    ("tab", b'\t'),
    ("bar", b'|'),
    ("colon", b':'),
];

impl FromStr for Delimiter {
    type Err = DelimiterError;

    fn from_str(text: &str) -> Result<Self, DelimiterError> {
        if let Some((_, byte)) = NAMES.iter().find(|(name, _)| *name == text) {
            return Ok(Self::Byte(*byte));
        }
        match text {
            "blank" | "blanks" | "space" | " " => return Ok(Self::Blanks),
            "\\t" => return Ok(Self::Byte(b'\t')),
            _ => {}
        }
        match text.as_bytes() {
            // A digit, a letter, a quote or a sign is a part of values.
            &[byte]
                if (byte.is_ascii_punctuation() && !b"\"'.-+#".contains(&byte))
                    || byte == b'\t' =>
            {
                Ok(Self::Byte(byte))
            }
            _ => Err(DelimiterError(text.to_owned())),
        }
    }
}

impl fmt::Display for Delimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blanks => f.write_str("blank"),
            Self::Byte(byte) => match NAMES.iter().find(|(_, known)| known == byte) {
                Some((name, _)) => f.write_str(name),
                None => write!(f, "{}", char::from(*byte)),
            },
        }
    }
}

impl Serialize for Delimiter {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Most values of a line.
const MOST: usize = 1_024;

/// Cuts lines into values. Values in quotes are as in RFC 4180, without line feeds.
pub(super) struct Splitter {
    delimiter: Delimiter,
    reader: Reader,
    text: Vec<u8>,
    ends: Vec<usize>,
    count: usize,
}

impl Splitter {
    pub(super) fn new(delimiter: Delimiter) -> Self {
        let byte = match delimiter {
            Delimiter::Byte(byte) => byte,
            // Blanks are cut here.
            Delimiter::Blanks => b' ',
        };
        Self {
            delimiter,
            reader: ReaderBuilder::new().delimiter(byte).build(),
            text: Vec::new(),
            ends: vec![0; MOST],
            count: 0,
        }
    }

    /// Cuts a line, for [`Self::value`].
    pub(super) fn split(&mut self, line: &[u8]) -> Result<(), Wrong> {
        self.count = match self.delimiter {
            Delimiter::Byte(_) => self.split_at_bytes(line),
            Delimiter::Blanks => self.split_at_blanks(line),
        }
        .ok_or_else(|| bad("the line has more than 1024 values", "fewer columns"))?;
        Ok(())
    }

    fn split_at_bytes(&mut self, line: &[u8]) -> Option<usize> {
        self.reader.reset();
        self.text.resize(line.len() + 1, 0);
        let (mut input, mut written, mut ends) = (line, 0, 0);
        loop {
            let (result, read, wrote, ended) =
                self.reader
                    .read_record(input, &mut self.text[written..], &mut self.ends[ends..]);
            (input, written, ends) = (&input[read..], written + wrote, ends + ended);
            match result {
                ReadRecordResult::Record | ReadRecordResult::End => return Some(ends),
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::OutputFull | ReadRecordResult::OutputEndsFull => return None,
            }
        }
    }

    fn split_at_blanks(&mut self, line: &[u8]) -> Option<usize> {
        self.text.clear();
        let (mut count, mut is_quoted, mut is_open) = (0, false, false);
        for byte in line.iter().copied() {
            let is_blank = matches!(byte, b' ' | b'\t') && !is_quoted;
            if is_blank && !is_open {
                continue;
            }
            if is_blank {
                *self.ends.get_mut(count)? = self.text.len();
                (count, is_open) = (count + 1, false);
                continue;
            }
            is_open = true;
            if byte == b'"' {
                is_quoted = !is_quoted;
            } else {
                self.text.push(byte);
            }
        }
        if is_open {
            *self.ends.get_mut(count)? = self.text.len();
            count += 1;
        }
        Some(count)
    }

    /// How many values the line has.
    pub(super) const fn count(&self) -> usize {
        self.count
    }

    /// A value, by its number from 1.
    pub(super) fn value(&self, n: usize) -> Option<&[u8]> {
        let at = n.checked_sub(1).filter(|at| *at < self.count)?;
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some(self.text[start..self.ends[at]].trim_ascii())
    }

    /// All values.
    pub(super) fn values(&self) -> impl Iterator<Item = &[u8]> {
        (1..=self.count).filter_map(|n| self.value(n))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(line: &str, delimiter: Delimiter) -> Vec<String> {
        let mut splitter = Splitter::new(delimiter);
        assert!(splitter.split(line.as_bytes()).is_ok());
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        splitter.values().map(text).collect()
    }

    #[test]
    fn runs_of_blanks_are_one() {
        for line in ["4096  8", "  4096\t 8 ", "\"4096\" 8", "4096 8"] {
            assert_eq!(split(line, Delimiter::Blanks), ["4096", "8"], "{line}");
        }
        assert_eq!(split("\"a b\"  c", Delimiter::Blanks), ["a b", "c"]);
        assert_eq!(split("", Delimiter::Blanks), Vec::<String>::new());
        let many = "1 ".repeat(1_025);
        assert!(
            Splitter::new(Delimiter::Blanks)
                .split(many.as_bytes())
                .is_err()
        );
    }

    #[test]
    fn characters_stand_for_themselves() {
        assert_eq!(split("a,,b", Delimiter::Byte(b',')), ["a", "", "b"]);
        assert_eq!(split("a;\"b;c\"", Delimiter::Byte(b';')), ["a", "b;c"]);
        for (text, delimiter) in [
            (",", Delimiter::Byte(b',')),
            ("tab", Delimiter::Byte(b'\t')),
            ("\\t", Delimiter::Byte(b'\t')),
            (" ", Delimiter::Blanks),
            ("bar", Delimiter::Byte(b'|')),
            ("/", Delimiter::Byte(b'/')),
        ] {
            assert_eq!(text.parse(), Ok(delimiter), "{text}");
        }
        for text in ["", "x", "7", "ab", "\"", "#", "\u{e9}"] {
            assert!(text.parse::<Delimiter>().is_err(), "{text}");
        }
    }
}
