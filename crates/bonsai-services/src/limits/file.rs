//! `limits.toml`: limits in a file, with errors that say where.
//!
//! ```toml
//! name = "vod"                                 # optional: the service's name
//! [limits]
//! read = "10MB/s"
//! write = { rate = "5MB/s", burst = "1MB" }
//! send = ["80Mbit/s", "2000/s"]                # in bytes and in calls
//! ```

use std::ops::Range;
use std::path::Path;

use bonsai_units::{LimitSpec, Setting};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{Limit, check_together};
use crate::input::read_bounded;
use crate::refusal::Refusal;
use crate::wording::of_document;

/// Maximum length of a file, in bytes: far more than any by hand.
const MOST: u64 = 1 << 20;

/// What a file asks for.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct File {
    /// The service's name, if one is given.
    pub name: Option<String>,
    /// The limits, in the order of the file.
    pub limits: Vec<Limit>,
}

/// A problem and where it is, in bytes from the start.
struct Problem {
    at: usize,
    text: String,
}

impl Problem {
    fn new(span: &Range<usize>, text: impl Into<String>) -> Self {
        Self {
            at: span.start,
            text: text.into(),
        }
    }
}

/// Reads a file.
///
/// # Errors
/// A [`Refusal`] that starts with `FILE:LINE:COLUMN:`.
pub fn read(path: &Path) -> anyhow::Result<File> {
    let bytes = read_bounded(path, MOST).map_err(|error| {
        Refusal::input(format!(
            "{}: cannot read the limits: {error}",
            path.display()
        ))
    })?;
    let text = match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let valid = error.utf8_error().valid_up_to();
            let start = String::from_utf8_lossy(&error.as_bytes()[..valid]).into_owned();
            let (line, column) = position(&start, valid);
            let text = format!("{}:{line}:{column}: this is not UTF-8 text", path.display());
            return Err(Refusal::input(text));
        }
    };
    parse(&text).map_err(|problem| {
        let (line, column) = position(&text, problem.at);
        Refusal::input(format!(
            "{}:{line}:{column}: {}",
            path.display(),
            problem.text
        ))
    })
}

/// Line and column, counted from 1; columns in characters.
fn position(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let column = before[line_start..].chars().count() + 1;
    (before.matches('\n').count() + 1, column)
}

fn parse(text: &str) -> Result<File, Problem> {
    let table = DeTable::parse(text).map_err(|error| {
        Problem::new(
            &error.span().unwrap_or(0..0),
            of_document(&error.message().replace('\n', ", ")),
        )
    })?;
    let mut file = File::default();
    let mut spans = Vec::new();
    for (key, value) in in_order(table.get_ref()) {
        match key.get_ref().as_ref() {
            "name" => file.name = Some(string(value, "the name of the service")?.to_owned()),
            "limits" => {
                let Some(limits) = value.get_ref().as_table() else {
                    let text = "limits must be a table: write [limits] and a line for each";
                    return Err(Problem::new(&value.span(), text));
                };
                for (name, value) in in_order(limits) {
                    for limit in read_entry(name, value)? {
                        file.limits.push(limit);
                        spans.push(name.span());
                    }
                }
            }
            other => {
                let text = format!("{other:?} is not an option here: there are name and [limits]");
                return Err(Problem::new(&key.span(), text));
            }
        }
    }
    // The first that is too many is where the problem is.
    for end in 1..=file.limits.len() {
        check_together(&file.limits[..end])
            .map_err(|problem| Problem::new(&spans[end - 1], problem.to_string()))?;
    }
    Ok(file)
}

/// The entries of a table in the order in which they are written.
fn in_order<'t, 'i>(
    table: &'t DeTable<'i>,
) -> Vec<(
    &'t Spanned<std::borrow::Cow<'i, str>>,
    &'t Spanned<DeValue<'i>>,
)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}

fn string<'t>(value: &'t Spanned<DeValue<'_>>, what: &str) -> Result<&'t str, Problem> {
    value.get_ref().as_str().ok_or_else(|| {
        let found = value.get_ref().type_str();
        let text = format!("{what} must be a text in quotes, but this is of type {found}");
        Problem::new(&value.span(), text)
    })
}

/// The limits of one name: a rate, a rate with a burst, or a list of these.
fn read_entry(
    name: &Spanned<std::borrow::Cow<'_, str>>,
    value: &Spanned<DeValue<'_>>,
) -> Result<Vec<Limit>, Problem> {
    let settings = match value.get_ref() {
        DeValue::Array(list) => list.iter().map(setting).collect::<Result<_, _>>()?,
        _ => vec![setting(value)?],
    };
    settings
        .into_iter()
        .map(|setting| {
            let spec = LimitSpec {
                name: name.get_ref().to_string(),
                setting,
            };
            Limit::check(spec).map_err(|problem| Problem::new(&name.span(), problem.to_string()))
        })
        .collect()
}

fn setting(value: &Spanned<DeValue<'_>>) -> Result<Setting, Problem> {
    let written = |value: &Spanned<DeValue<'_>>, text: &str| {
        text.parse().map_err(|error: bonsai_units::SettingError| {
            Problem::new(&value.span(), error.to_string())
        })
    };
    let Some(table) = value.get_ref().as_table() else {
        let what = "a limit, such as \"10MB/s\" or { rate = \"5MB/s\", burst = \"1MB\" },";
        return written(value, string(value, what)?);
    };
    let (mut rate, mut burst) = (None, None);
    for (key, value) in in_order(table) {
        match key.get_ref().as_ref() {
            "rate" => rate = Some((value, string(value, "a rate")?)),
            "burst" => burst = Some((value, string(value, "a burst")?)),
            other => {
                let text =
                    format!("{other:?} is not an option of a limit: there are rate and burst");
                return Err(Problem::new(&key.span(), text));
            }
        }
    }
    let Some((rate_at, rate)) = rate else {
        return Err(Problem::new(
            &value.span(),
            "the limit has no rate: add rate = \"5MB/s\"",
        ));
    };
    let setting = written(rate_at, rate)?;
    match burst {
        None => Ok(setting),
        Some((burst_at, burst)) => written(burst_at, &format!("{rate}:burst={burst}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        let Err(problem) = parse(text) else {
            panic!("accepted: {text}")
        };
        let (line, column) = position(text, problem.at);
        format!("{line}:{column}: {}", problem.text)
    }

    #[test]
    fn every_form_of_a_limit() {
        let text = r#"
            name = "vod"
            [limits]
            write = { rate = "5MB/s", burst = "1MB" }
            read = "10MB/s"
            send = ["80Mbit/s", "2000/s:burst=5calls"]
            open = "unlimited"
        "#;
        let file = parse(text).unwrap_or_else(|p| panic!("{}: {}", p.at, p.text));
        assert_eq!(file.name.as_deref(), Some("vod"));
        let found: Vec<String> = file
            .limits
            .iter()
            .map(|limit| format!("{}={}", limit.name, limit.setting))
            .collect();
        let wanted = [
            "write=5MB/s:burst=1MB",
            "read=10MB/s",
            "send=10MB/s",
            "send=2000/s:burst=5calls",
            "open=unlimited",
        ];
        assert_eq!(found, wanted);
    }

    #[test]
    fn an_example_is_in_the_repository() {
        let text = include_str!("../../../../config/limits.example.toml");
        let file = parse(text).unwrap_or_else(|p| panic!("{}: {}", p.at, p.text));
        assert!(file.limits.len() >= 4);
    }

    #[test]
    fn problems_say_where() {
        let starts = [
            ("[limits]\nread = 10\n", "2:8: a limit, such as"),
            ("[limits]\nread = \"10\"\n", "2:8: \"10\" has no unit"),
            (
                "[limits]\n  raed = \"10MB/s\"\n",
                "2:3: there is no call or class \"raed\"",
            ),
            ("[limits]\nopen = \"10MB/s\"\n", "2:1: open moves no bytes"),
            (
                "[limits]\nread = \"1MB/s\"\nread = \"2MB/s\"\n",
                "3:1: duplicate key",
            ),
            (
                "[limits]\nread = [\"1MB/s\", \"2MB/s\"]\n",
                "2:1: the limit on read is given twice",
            ),
            ("[limits\n", "1:8: unclosed table"),
            (
                "[limits]\nwrite = { burst = \"1MB\" }\n",
                "2:9: the limit has no rate",
            ),
            (
                "[limits]\nwrite = { rate = \"1MB/s\", burst = \"9calls\" }\n",
                "2:35: a burst of 9calls",
            ),
            (
                "[limits]\nwrite = { rate = \"1MB/s\", bust = \"1MB\" }\n",
                "2:27: \"bust\" is not an option",
            ),
            ("limit = 3\n", "1:1: \"limit\" is not an option here"),
            ("limits = 3\n", "1:10: limits must be a table"),
            ("name = 3\n", "1:8: the name of the service must be a text"),
        ];
        for (text, start) in starts {
            let found = refusal(text);
            assert!(
                found.starts_with(start),
                "{text:?}\n gave {found:?}\n not  {start:?}"
            );
        }
    }

    #[test]
    fn columns_count_characters() {
        assert_eq!(position("äö x", 5), (1, 4));
        assert_eq!(position("a\nbc", 4), (2, 3));
    }
}
