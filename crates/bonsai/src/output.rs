//! Writing to standard output: tables for people, JSON for programs, colour on a
//! terminal only. And to standard error, a line at a time.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

use anyhow::Context as _;
use bonsai_units::text::is_plain;
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use serde::Serialize;

/// Writes text to standard output. No character of it steers a terminal, apart from the ends of its lines and the emphasis of
/// [`Paint`]: whatever comes from others and was forgotten is escaped here.
///
/// # Errors
/// Standard output cannot be written.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    let safe = printable(text);
    let written = out.write_all(safe.as_bytes()).and_then(|()| out.flush());
    written.context("standard output cannot be written")
}

/// The form in which [`print()`] writes a text.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    if text.chars().all(|c| c == '\n' || is_plain(c)) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let code = Ink::CODES.iter().find(|code| rest.starts_with(**code));
        let taken = code.map_or(c.len_utf8(), |code| code.len());
        match code {
            Some(code) => safe.push_str(code),
            None if c == '\n' || c == '\t' || is_plain(c) => safe.push(c),
            None => safe.extend(c.escape_default()),
        }
        rest = &rest[taken..];
    }
    Cow::Owned(safe)
}

/// Writes a line to standard error, escaped as a whole. A reader that has gone is no reason to end (as `eprintln!` does).
macro_rules! say {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), "{}", $crate::output::escaped(&format!($($text)*)));
    }};
}
pub(crate) use say;

/// Text from a file, a peer or a name, for a terminal or a log, in one line.
pub(crate) fn escaped(text: &str) -> String {
    bonsai_units::text::escaped(text).into_owned()
}

/// Writes a value as JSON: indented, for a document of its own, or on one line. Characters that JSON allows and a terminal obeys
/// are written as `\uXXXX`, which means the same.
///
/// # Errors
/// It cannot be written.
pub(crate) fn print_json(value: &impl Serialize, one_line: bool) -> anyhow::Result<()> {
    let text = if one_line {
        serde_json::to_string(value)?
    } else {
        serde_json::to_string_pretty(value)?
    };
    print(&(json_escaped(&text) + "\n"))
}

/// JSON in which every character is plain, apart from ends of lines between values.
fn json_escaped(text: &str) -> String {
    if text.chars().all(|c| c == '\n' || is_plain(c)) {
        return text.to_owned();
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c == '\n' || is_plain(c) {
            true => safe.push(c),
            false => {
                let mut units = [0; 2];
                for unit in c.encode_utf16(&mut units) {
                    safe.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
    safe
}

/// Whether an error says that nobody reads any more.
pub(crate) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// How text is emphasised.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ink {
    /// For titles.
    Bold,
    /// For what needs attention.
    Yellow,
    /// For what is less important.
    Dim,
}

impl Ink {
    /// Every sequence that [`Paint`] writes.
    const CODES: [&str; 4] = ["\u{1b}[0m", "\u{1b}[1m", "\u{1b}[2m", "\u{1b}[33m"];
}

/// Whether standard output takes colour.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paint {
    on: bool,
}

impl Paint {
    /// Colour on a terminal that can show it, unless `NO_COLOR` is set.
    pub(crate) fn stdout() -> Self {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        Self {
            on: io::stdout().is_terminal() && !set("NO_COLOR") && !dumb,
        }
    }

    /// Whether colour is taken.
    pub(crate) const fn is_on(self) -> bool {
        self.on
    }

    /// A line, emphasised where colour is taken, and escaped.
    pub(crate) fn ink(self, ink: Ink, text: &str) -> String {
        let text = escaped(text);
        let code = match ink {
            Ink::Bold => 1,
            Ink::Yellow => 33,
            Ink::Dim => 2,
        };
        if self.on {
            format!("\u{1b}[{code}m{text}\u{1b}[0m")
        } else {
            text
        }
    }
}

/// Rows of text for people; what a cell has that steers a terminal, or would begin a row of its own, is escaped.
#[derive(Debug)]
pub(crate) struct Rows(Table);

impl Rows {
    /// Adds a row.
    pub(crate) fn add_row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) {
        let cells = cells.into_iter().map(|cell| escaped(&cell.into()));
        self.0.add_row(cells);
    }
}

/// A table without lines, indented by two; `right` names the columns of numbers.
pub(crate) fn table(header: &[&str], right: &[usize]) -> Rows {
    let mut table = Table::new();
    table
        .load_style(NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(header.iter().map(|head| escaped(head)).collect::<Vec<_>>());
    for (i, column) in table.column_iter_mut().enumerate() {
        column.set_padding((if i == 0 { 2 } else { 1 }, 1));
        if right.contains(&i) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    Rows(table)
}

/// A finished table, without blanks at the ends of its lines.
pub(crate) fn finish(table: &Rows) -> String {
    table.0.trim_fmt() + "\n"
}

/// One or many: `1 process`, `2 processes`.
pub(crate) fn count(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Text that others may write into a name, a path or a reason, to steer a terminal or to forge a line.
    pub(crate) const HOSTILE: &str =
        "x\u{1b}[31mRED\u{1b}]0;title\u{7}\r\nrevision 99, root, forged\u{202e}\u{9b}2J\0\u{200b}";

    #[test]
    fn no_character_that_steers_a_terminal_is_printed() {
        let bare = format!("a{HOSTILE}\n");
        let safe = printable(&bare);
        assert!(safe.chars().all(|c| c == '\n' || is_plain(c)), "{safe:?}");
        // The program's own emphasis stays.
        let own = "\u{1b}[1mtitle\u{1b}[0m\n";
        assert_eq!(printable(own), own);
        assert_eq!(printable("ä 日本\n"), "ä 日本\n");
        let json = json_escaped(&serde_json::json!({HOSTILE: HOSTILE}).to_string());
        assert!(json.chars().all(is_plain), "{json:?}");
        let back: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(back[HOSTILE], HOSTILE, "it means the same");
    }

    #[test]
    fn what_others_wrote_makes_no_line_of_its_own() {
        let mut rows = table(&["a", "b"], &[1]);
        rows.add_row([HOSTILE, "1"]);
        let text = finish(&rows);
        assert_eq!(text.lines().count(), 2, "{text:?}");
        assert!(text.chars().all(|c| c == '\n' || is_plain(c)), "{text:?}");
        for on in [true, false] {
            let line = Paint { on }.ink(Ink::Yellow, HOSTILE);
            assert!(
                !line.contains('\n') && !line.contains("[31m\u{1b}"),
                "{line:?}"
            );
            let codes = line.matches('\u{1b}').count();
            assert_eq!(codes, if on { 2 } else { 0 }, "{line:?}");
        }
    }
}
