//! What is shown in the terminal while it is measured, and how numbers are written.

use std::io::{self, IsTerminal, Write};

/// Colours and emphasis, where standard output takes them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paint {
    on: bool,
}

/// How text is emphasised.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ink {
    /// The victim.
    Video,
    /// The noisy neighbour.
    Bulk,
    /// What went well.
    Good,
    /// What did not.
    Bad,
    /// Titles.
    Bold,
    /// What is less important.
    Dim,
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

    /// Never colour.
    #[cfg(test)]
    pub(crate) const fn none() -> Self {
        Self { on: false }
    }

    /// The text, emphasised where that is possible.
    pub(crate) fn ink(self, ink: Ink, text: &str) -> String {
        let code = match ink {
            Ink::Video => "34",
            Ink::Bulk => "33",
            Ink::Good => "32",
            Ink::Bad => "31",
            Ink::Bold => "1",
            Ink::Dim => "2",
        };
        if self.on {
            format!("\u{1b}[{code}m{text}\u{1b}[0m")
        } else {
            text.to_owned()
        }
    }
}

/// Bytes/s as Mbit/s with one digit: `48.0`.
pub(crate) fn mbit(bytes_per_s: f64) -> String {
    format!("{:.1}", bytes_per_s * 8.0 / 1e6)
}

/// A bar of `width` letters for a `share` of 0 to 1, in eighths of a letter.
pub(crate) fn bar(share: f64, width: usize) -> String {
    const PARTS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = width * 8;
    let filled = (0..eighths)
        .filter(|i| (*i as f64 + 0.5) / eighths as f64 <= share)
        .count();
    let text = "█".repeat(filled / 8) + PARTS[filled % 8];
    let blanks = width - text.chars().count();
    text + &" ".repeat(blanks)
}

/// One line of the terminal that is written again and again, until it is final.
#[derive(Debug)]
pub(crate) struct Line {
    /// Whether it can be rewritten; where not, only what is final is written.
    live: bool,
}

impl Line {
    /// On standard output.
    pub(crate) fn stdout() -> Self {
        Self {
            live: io::stdout().is_terminal(),
        }
    }

    /// Shows what holds for now.
    pub(crate) fn show(&self, text: &str) {
        if self.live {
            self.write(&format!("\r{text}\u{1b}[K"));
        }
    }

    /// Writes what stays.
    pub(crate) fn print(&self, text: &str) {
        self.write(&if self.live {
            format!("\r{text}\u{1b}[K\n")
        } else {
            format!("{text}\n")
        });
    }

    fn write(&self, text: &str) {
        let mut out = io::stdout().lock();
        // The measurement goes on when nobody looks.
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_share() {
        assert_eq!(bar(0.0, 4), "    ");
        assert_eq!(bar(0.5, 4), "██  ");
        assert_eq!(bar(0.25 + 0.125, 4), "█▌  ");
        assert_eq!(bar(1.0, 4), "████");
        assert_eq!(bar(7.0, 2), "██");
    }

    #[test]
    fn rates_are_written_in_mbit() {
        assert_eq!(mbit(6_000_000.0), "48.0");
        assert_eq!(mbit(12_340.0), "0.1");
    }
}
