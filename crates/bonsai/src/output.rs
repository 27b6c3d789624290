//! Writing to standard output: tables for people, JSON for programs, colour on a
//! terminal only. And to standard error, a line at a time.

use std::io::{self, IsTerminal, Write};

use anyhow::Context as _;
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use serde::Serialize;

/// Writes text to standard output.
///
/// # Errors
/// It cannot be written.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.context("standard output cannot be written")
}

/// Writes a line to standard error. Whoever read it may have gone, which is no reason to end (as `eprintln!` does).
macro_rules! say {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}
pub(crate) use say;

/// Text from a file, a peer or a name, for a terminal or a log: control characters, also those that change the direction of
/// text, are written as Rust does.
pub(crate) fn escaped(text: &str) -> String {
    let is_plain = |c: char| !c.is_control() && !is_format(c);
    if text.chars().all(is_plain) {
        return text.to_owned();
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match is_plain(c) {
            true => safe.push(c),
            false => safe.extend(c.escape_default()),
        }
    }
    safe
}

/// Characters that are not seen and move others (Unicode's Bidi_Control, line separators, zero widths).
const fn is_format(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// Writes a value as JSON: indented, for a document of its own, or on one line.
///
/// # Errors
/// It cannot be written.
pub(crate) fn print_json(value: &impl Serialize, one_line: bool) -> anyhow::Result<()> {
    let text = if one_line {
        serde_json::to_string(value)?
    } else {
        serde_json::to_string_pretty(value)?
    };
    print(&(text + "\n"))
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

    /// The text, emphasised where colour is taken.
    pub(crate) fn ink(self, ink: Ink, text: &str) -> String {
        let code = match ink {
            Ink::Bold => 1,
            Ink::Yellow => 33,
            Ink::Dim => 2,
        };
        if self.on {
            format!("\u{1b}[{code}m{text}\u{1b}[0m")
        } else {
            text.to_owned()
        }
    }
}

/// A table without lines, indented by two; `right` names the columns of numbers.
pub(crate) fn table(header: &[&str], right: &[usize]) -> Table {
    let mut table = Table::new();
    table
        .load_style(NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(header.iter().map(ToString::to_string).collect::<Vec<_>>());
    for (i, column) in table.column_iter_mut().enumerate() {
        column.set_padding((if i == 0 { 2 } else { 1 }, 1));
        if right.contains(&i) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// A finished table, without blanks at the ends of its lines.
pub(crate) fn finish(table: &Table) -> String {
    table.trim_fmt() + "\n"
}

/// One or many: `1 process`, `2 processes`.
pub(crate) fn count(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}
