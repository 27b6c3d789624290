//! Arrivals as a file has them: a line for each viewer.
//!
//! ```text
//! # Seconds from the beginning on; how long it stays, seconds; what it watches, by number or by address.
//! at_s,for_s,video
//! 0
//! 0.25,30
//! 1.5,,2
//! 2,60.5,rtsp://127.0.0.1:8554/other.mp4
//! ```
//! Text in UTF-8, fields with commas between them. The line with names may be missing, and what is missing or
//! empty at a line's end holds for all viewers alike. Empty lines, and those that begin with `#`, are passed over.
//! Lines may stand in any order. An address may have commas, and quotes around it, as spreadsheets write it.

use std::io::{self, Read};

/// A file is no longer than that, bytes.
const LONGEST: u64 = 16 << 20;
/// Nor has it more viewers.
const MOST: usize = 100_000;
/// They come within a week, and stay for a day at most, seconds: as long as may be said at the command line.
const LAST_S: f64 = 604_800.0;
const STAYS_S: std::ops::RangeInclusive<f64> = 0.1..=86_400.0;
/// An address has no more bytes.
const ADDRESS: usize = 2_048;
/// The names of its columns, if they are written.
const COLUMNS: [&str; 3] = ["at_s", "for_s", "video"];

/// A viewer of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The line that it stands in, from 1 on.
    pub line: u64,
    /// When it comes, nanoseconds from the beginning.
    pub at_ns: u64,
    /// How long it watches, nanoseconds, if that is said.
    pub length_ns: Option<u64>,
    /// What it watches, if that is said.
    pub video: Option<Named>,
}

/// A video as a trace names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Named {
    /// By its number, from 1 on.
    Number(u32),
    /// By its address.
    Address(String),
}

/// Why a trace says nothing.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The system does not give it.
    #[error("it cannot be read: {0}")]
    Unreadable(#[from] io::Error),
    /// It is longer than any that is read.
    #[error("it is longer than {} MiB", LONGEST >> 20)]
    Long,
    /// Nobody comes.
    #[error("nobody comes: write a line for each viewer, when it comes in seconds, as 12.5")]
    Empty,
    /// There are more viewers than can be.
    #[error("line {line}: there are more than {} viewers", MOST)]
    Many {
        /// The first that is one too many.
        line: u64,
    },
    /// Its bytes are no text.
    #[error("line {line}: it is no text in UTF-8")]
    Text {
        /// Where.
        line: u64,
    },
    /// It is no time of arrival.
    #[error(
        "line {line}: {field:?} is no time of arrival: write seconds from the beginning, up to {}, \
         as 12.5 (names of columns are at_s,for_s,video)",
        LAST_S
    )]
    At {
        /// Where.
        line: u64,
        /// What stands there.
        field: String,
    },
    /// It is no length of time.
    #[error(
        "line {line}: {field:?} is no time to stay: write seconds from {} to {}, or nothing",
        STAYS_S.start(), STAYS_S.end()
    )]
    Length {
        /// Where.
        line: u64,
        /// What stands there.
        field: String,
    },
    /// It names no video.
    #[error(
        "line {line}: {field:?} is no video: write its number at the command line, from 1 on, or its address"
    )]
    Video {
        /// Where.
        line: u64,
        /// What stands there.
        field: String,
    },
}

/// Reads a trace: its viewers in the order in which they come.
///
/// # Errors
/// A line says something else, and which; or the file is too long, or says nothing.
pub fn read(file: impl Read) -> Result<Vec<Arrival>, TraceError> {
    let mut bytes = Vec::new();
    file.take(LONGEST + 1).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > LONGEST {
        return Err(TraceError::Long);
    }
    let text = std::str::from_utf8(&bytes).map_err(|error| {
        let before = bytes.iter().take(error.valid_up_to());
        let lines = before.filter(|byte| **byte == b'\n').count();
        TraceError::Text {
            line: u64::try_from(lines).unwrap_or(u64::MAX) + 1,
        }
    })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut arrivals = Vec::new();
    let lines = (1..).zip(text.lines().map(str::trim));
    let mut said = lines
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        .peekable();
    let _names = said.next_if(|(_, line)| are_names(line));
    for (line, fields) in said {
        if arrivals.len() == MOST {
            return Err(TraceError::Many { line });
        }
        arrivals.push(arrival(line, fields)?);
    }
    if arrivals.is_empty() {
        return Err(TraceError::Empty);
    }
    arrivals.sort_by_key(|arrival| arrival.at_ns);
    Ok(arrivals)
}

/// Whether a line has names of columns, as many as there are, from the first on.
fn are_names(line: &str) -> bool {
    let mut fields = line.split(',').map(bare);
    let mut names = COLUMNS.iter();
    fields.all(|field| {
        names
            .next()
            .is_some_and(|name| field.eq_ignore_ascii_case(name))
    })
}

fn arrival(line: u64, fields: &str) -> Result<Arrival, TraceError> {
    // The last may have commas.
    let mut fields = fields.splitn(COLUMNS.len(), ',').map(bare);
    let mut next = || fields.next().unwrap_or("");
    let (at, length, video) = (next(), next(), next());
    let at_ns = seconds(at).filter(|at| (0.0..=LAST_S).contains(at));
    let at_ns = at_ns.ok_or_else(|| TraceError::At {
        line,
        field: cut(at),
    })?;
    let length_ns = match length {
        "" => None,
        text => Some(
            seconds(text)
                .filter(|length| STAYS_S.contains(length))
                .ok_or_else(|| TraceError::Length {
                    line,
                    field: cut(text),
                })?,
        ),
    };
    let video = match video {
        "" => None,
        text => Some(named(text).ok_or_else(|| TraceError::Video {
            line,
            field: cut(text),
        })?),
    };
    Ok(Arrival {
        line,
        at_ns: nanoseconds(at_ns),
        length_ns: length_ns.map(nanoseconds),
        video,
    })
}

/// A field without what may stand around it.
fn bare(field: &str) -> &str {
    let field = field.trim();
    let inner = field.strip_prefix('"').and_then(|of| of.strip_suffix('"'));
    inner.unwrap_or(field).trim()
}

fn seconds(text: &str) -> Option<f64> {
    text.parse().ok()
}

fn named(text: &str) -> Option<Named> {
    if let Ok(number) = text.parse::<u32>() {
        return (number > 0).then_some(Named::Number(number));
    }
    let is_plain = !text.chars().any(|of| of.is_control() || of.is_whitespace());
    (text.contains("://") && text.len() <= ADDRESS && is_plain)
        .then(|| Named::Address(text.to_owned()))
}

/// As much of a field as fits in a sentence.
fn cut(field: &str) -> String {
    match field.char_indices().nth(40) {
        Some((end, _)) => format!("{}...", &field[..end]),
        None => field.to_owned(),
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "from 0 on, a week at most"
)]
fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(text: &str) -> Result<Vec<Arrival>, String> {
        read(text.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_trace_is_read_with_and_without_names_of_columns() {
        let lines = "# an evening\n\n 2 , 60.5 , \"rtsp://h/a,b.mp4\" \r\n0\n0.25,30\n1.5,,2\n";
        for names in [
            "",
            "at_s,for_s,video\n",
            "\u{feff}AT_S, for_s\r\n",
            "at_s\n",
        ] {
            let found = of(&format!("{names}{lines}")).expect("right");
            let short: Vec<_> = found
                .iter()
                .map(|one| (one.at_ns / 1_000_000, one.length_ns, one.video.clone()))
                .collect();
            let address = Named::Address("rtsp://h/a,b.mp4".to_owned());
            let expected = [
                (0, None, None),
                (250, Some(30_000_000_000), None),
                (1_500, None, Some(Named::Number(2))),
                (2_000, Some(60_500_000_000), Some(address)),
            ];
            assert_eq!(short, expected, "{names:?}");
            let shift = u64::from(!names.is_empty());
            let lines: Vec<u64> = found.iter().map(|one| one.line - shift).collect();
            assert_eq!(lines, [4, 5, 6, 3], "{names:?}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line_and_what_would_be_right() {
        let many = "0\n".repeat(MOST + 1);
        for (text, words) in [
            ("", "nobody comes: write a line for each viewer"),
            ("# nobody\n\nat_s\n", "nobody comes"),
            (
                "0\nsoon\n",
                "line 2: \"soon\" is no time of arrival: write seconds",
            ),
            ("\n\n-1", "line 3: \"-1\" is no time"),
            ("NaN", "line 1: \"NaN\" is no time"),
            ("inf", "line 1: \"inf\" is no time"),
            ("700000", "up to 604800"),
            ("time,for_s\n0", "line 1: \"time\" is no time of arrival"),
            ("0\nat_s\n", "line 2: \"at_s\" is no time"),
            (
                "0,0.05",
                "line 1: \"0.05\" is no time to stay: write seconds from 0.1 to 86400",
            ),
            ("0,ever", "line 1: \"ever\" is no time to stay"),
            (
                "0,,0",
                "line 1: \"0\" is no video: write its number at the command line",
            ),
            ("0,,a.mp4", "line 1: \"a.mp4\" is no video"),
            ("0,1,2,3", "line 1: \"2,3\" is no video"),
            ("0,,rtsp://h/a b", "is no video"),
            (&many, "line 100001: there are more than 100000 viewers"),
        ] {
            let said = of(text).expect_err(text);
            assert!(said.contains(words), "{text:?}: {said}");
            assert_eq!(said.lines().count(), 1, "{said}");
        }
        let long = format!("0,{}", "9".repeat(1_000_000));
        assert!(of(&long).expect_err("long").len() < 200);
        let bytes = b"0\n1\n\xff2\n";
        let said = read(&bytes[..]).expect_err("no text").to_string();
        assert_eq!(said, "line 3: it is no text in UTF-8");
        let endless = io::repeat(b'\n');
        assert!(matches!(read(endless), Err(TraceError::Long)));
    }

    proptest! {
        #[test]
        fn any_text_is_viewers_in_order_or_one_sentence(text in "[-0-9a-z.,:/\"# \r\n]{0,200}|\\PC{0,80}") {
            match of(&text) {
                Ok(found) => {
                    prop_assert!(!found.is_empty() && found.len() <= text.lines().count());
                    prop_assert!(found.is_sorted_by_key(|one| one.at_ns));
                    for one in &found {
                        prop_assert!(one.line >= 1 && one.at_ns <= 604_800_000_000_000);
                        prop_assert!(one.length_ns.is_none_or(|ns| (100_000_000..=86_400_000_000_000).contains(&ns)));
                        prop_assert!(one.video != Some(Named::Number(0)));
                    }
                }
                Err(said) => prop_assert_eq!(said.lines().count(), 1, "{}", said),
            }
        }

        #[test]
        fn what_is_written_is_read_again(
            viewers in proptest::collection::vec((0_u32..604_800_000, proptest::option::of(100_u32..86_400_000), proptest::option::of(1_u32..100)), 1..50),
        ) {
            let line = |(at, length, video): &(u32, Option<u32>, Option<u32>)| {
                let seconds = |ms: u32| format!("{}.{:03}", ms / 1000, ms % 1000);
                let video = video.map_or(String::new(), |video| video.to_string());
                format!("{},{},{video}\n", seconds(*at), length.map_or(String::new(), seconds))
            };
            let text: String = viewers.iter().map(line).collect();
            let mut expected: Vec<_> = (1..).zip(viewers).map(|(line, (at, length, video))| Arrival {
                line,
                at_ns: u64::from(at) * 1_000_000,
                length_ns: length.map(|ms| u64::from(ms) * 1_000_000),
                video: video.map(Named::Number),
            }).collect();
            expected.sort_by_key(|one| one.at_ns);
            prop_assert_eq!(of(&text), Ok(expected));
        }
    }
}
