//! What a record says: text, tables and verdicts, for a terminal and as Markdown.

use std::fmt::Write as _;

use bonsai_stats::MedianEstimate;
use comfy_table::{Table as Grid, presets};

/// Whether a promise was kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It was.
    Kept,
    /// It was not.
    Broken,
    /// The measurement does not decide it, because.
    Doubtful(String),
}

/// One promise and what was measured of it.
#[derive(Clone, Debug)]
pub(crate) struct Promise {
    /// What is promised of what.
    pub(crate) what: String,
    /// The number promised.
    pub(crate) allowed: String,
    /// The number measured.
    pub(crate) measured: String,
    /// What follows.
    pub(crate) verdict: Verdict,
}

/// A table of text.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

/// A part of a section.
#[derive(Clone, Debug)]
enum Block {
    Text(String),
    Table(Table),
}

/// What one benchmark found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Section {
    blocks: Vec<Block>,
    promises: Vec<Promise>,
}

impl Verdict {
    /// That a value is at most `most`: decided where its whole interval lies on
    /// one side, and nothing else casts doubt.
    pub(crate) fn at_most(value: &MedianEstimate, most: f64, doubt: Option<&String>) -> Self {
        Self::between(value, f64::NEG_INFINITY, most, doubt)
    }

    /// That a value is at least `least`.
    pub(crate) fn at_least(value: &MedianEstimate, least: f64, doubt: Option<&String>) -> Self {
        Self::between(value, least, f64::INFINITY, doubt)
    }

    fn between(value: &MedianEstimate, least: f64, most: f64, doubt: Option<&String>) -> Self {
        let interval = value.interval;
        if interval.low >= least && interval.high <= most {
            return Self::Kept;
        }
        if (least..=most).contains(&value.median)
            || (interval.low <= most && interval.high >= least)
        {
            return Self::Doubtful("the interval reaches across the promise".to_owned());
        }
        Self::broken(doubt)
    }

    /// That something holds, which was seen to or not.
    pub(crate) fn of(holds: bool, doubt: Option<&String>) -> Self {
        if holds {
            Self::Kept
        } else {
            Self::broken(doubt)
        }
    }

    fn broken(doubt: Option<&String>) -> Self {
        doubt.map_or(Self::Broken, |why| Self::Doubtful(why.clone()))
    }

    /// In words.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Kept => "kept".to_owned(),
            Self::Broken => "BROKEN".to_owned(),
            Self::Doubtful(why) => format!("doubtful: {why}"),
        }
    }
}

impl Table {
    /// An empty table.
    pub(crate) fn new(head: &[&str]) -> Self {
        Self {
            head: head.iter().map(|text| (*text).to_owned()).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    fn terminal(&self) -> String {
        let mut grid = Grid::new();
        grid.load_style(presets::UTF8_BORDERS_ONLY)
            .set_header(&self.head);
        for row in &self.rows {
            grid.add_row(row);
        }
        grid.to_string()
    }

    fn markdown(&self) -> String {
        let line = |cells: &[String]| {
            let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let mut text = line(&self.head);
        text.push_str(&format!("|{}\n", "---|".repeat(self.head.len())));
        for row in &self.rows {
            text.push_str(&line(row));
        }
        text
    }
}

impl Section {
    /// Adds a paragraph.
    pub(crate) fn text(&mut self, text: impl Into<String>) {
        self.blocks.push(Block::Text(text.into()));
    }

    /// Adds a table, unless it has no rows.
    pub(crate) fn table(&mut self, table: Table) {
        if !table.rows.is_empty() {
            self.blocks.push(Block::Table(table));
        }
    }

    /// Adds a promise.
    pub(crate) fn promise(
        &mut self,
        what: impl Into<String>,
        allowed: impl Into<String>,
        measured: impl Into<String>,
        verdict: Verdict,
    ) {
        self.promises.push(Promise {
            what: what.into(),
            allowed: allowed.into(),
            measured: measured.into(),
            verdict,
        });
    }

    /// What was promised.
    pub(crate) fn promises(&self) -> &[Promise] {
        &self.promises
    }

    fn all_blocks(&self) -> Vec<Block> {
        let mut table = Table::new(&["promise", "allowed", "measured", "verdict"]);
        for p in &self.promises {
            table.row(vec![
                p.what.clone(),
                p.allowed.clone(),
                p.measured.clone(),
                p.verdict.text(),
            ]);
        }
        let promises = (!self.promises.is_empty()).then_some(Block::Table(table));
        self.blocks.iter().cloned().chain(promises).collect()
    }

    /// For a terminal.
    pub(crate) fn terminal(&self) -> String {
        self.render(Table::terminal)
    }

    /// As Markdown.
    pub(crate) fn markdown(&self) -> String {
        self.render(Table::markdown)
    }

    fn render(&self, draw: impl Fn(&Table) -> String) -> String {
        let mut text = String::new();
        for block in self.all_blocks() {
            let part = match &block {
                Block::Text(part) => part.clone(),
                Block::Table(table) => draw(table),
            };
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{}\n", part.trim_end());
        }
        text
    }
}

/// How many promises were kept, in one line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Kept.
    pub(crate) kept: usize,
    /// Broken.
    pub(crate) broken: usize,
    /// Not decided.
    pub(crate) doubtful: usize,
}

impl Tally {
    /// Counts the promises of a section.
    pub(crate) fn add(&mut self, section: &Section) {
        for promise in section.promises() {
            match promise.verdict {
                Verdict::Kept => self.kept += 1,
                Verdict::Broken => self.broken += 1,
                Verdict::Doubtful(_) => self.doubtful += 1,
            }
        }
    }

    /// In one line.
    pub(crate) fn text(&self) -> String {
        format!(
            "{} promises kept, {} broken, {} doubtful",
            self.kept, self.broken, self.doubtful
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bonsai_stats::Interval;

    fn estimate(low: f64, median: f64, high: f64) -> MedianEstimate {
        MedianEstimate {
            median,
            interval: Interval { low, high },
            count: 9,
        }
    }

    #[test]
    fn a_promise_is_broken_only_beyond_doubt() {
        let noise = "noise".to_owned();
        let at_most = |low, median, high| Verdict::at_most(&estimate(low, median, high), 4.0, None);
        assert_eq!(at_most(1.0, 2.0, 3.0), Verdict::Kept);
        assert!(matches!(at_most(1.0, 2.0, 5.0), Verdict::Doubtful(_)));
        assert!(matches!(at_most(3.0, 4.5, 5.0), Verdict::Doubtful(_)));
        assert_eq!(at_most(4.5, 5.0, 6.0), Verdict::Broken);
        let disturbed = Verdict::at_most(&estimate(5.0, 6.0, 7.0), 4.0, Some(&noise));
        assert_eq!(disturbed, Verdict::Doubtful(noise));
        assert_eq!(
            Verdict::at_least(&estimate(0.9, 0.95, 0.97), 0.98, None),
            Verdict::Broken
        );
        assert_eq!(
            Verdict::at_least(&estimate(0.98, 1.0, 1.1), 0.98, None),
            Verdict::Kept
        );
    }

    #[test]
    fn both_forms_say_the_same() {
        let mut section = Section::default();
        section.text("About it.");
        let mut table = Table::new(&["a", "b"]);
        table.row(vec!["1|2".to_owned(), "3".to_owned()]);
        section.table(table);
        section.table(Table::new(&["never shown"]));
        section.promise("p", "4 ns", "3 ns", Verdict::Kept);
        section.promise("q", "4 ns", "5 ns", Verdict::Broken);
        let markdown = section.markdown();
        assert!(
            markdown.starts_with("About it.\n\n| a | b |\n|---|---|\n| 1\\|2 | 3 |\n"),
            "{markdown}"
        );
        assert!(markdown.contains("| q | 4 ns | 5 ns | BROKEN |"));
        assert!(!markdown.contains("never"));
        let terminal = section.terminal();
        for word in ["About it.", "1|2", "BROKEN", "kept"] {
            assert!(terminal.contains(word), "{word}");
        }
        let mut tally = Tally::default();
        tally.add(&section);
        assert_eq!(tally.text(), "1 promises kept, 1 broken, 0 doubtful");
    }
}
