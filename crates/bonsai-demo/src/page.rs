//! `bonsai-demo page`: the page and the table in the terminal, from a record and
//! what `bonsai` said while it was made.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;

use crate::html;
use crate::observed::Observed;
use crate::record::{Bulk, Record};
use crate::summary::{PhaseSummary, SETTLE_NS, Summary, difference, limit_text, percent};
use crate::terminal::{Ink, Paint, mbit};

/// Make the page and print the table.
#[derive(Args, Debug)]
pub(crate) struct Page {
    /// The record of the measurement.
    #[arg(long)]
    record: PathBuf,
    /// The folder with what bonsai said, and the facts of the machine.
    #[arg(long)]
    seen: PathBuf,
    /// The script that the bulk copier ran.
    #[arg(long)]
    backup_script: PathBuf,
    /// Where the page goes.
    #[arg(long)]
    page: PathBuf,
}

/// Makes it; returns whether all is shown that is to be shown.
///
/// # Errors
/// Something cannot be read or written.
pub(crate) fn run(args: &Page) -> anyhow::Result<bool> {
    let record = Record::read(&args.record)?;
    let keys: Vec<&str> = record
        .phases
        .iter()
        .map(|phase| phase.key.as_str())
        .collect();
    let observed = Observed::read(&args.seen, &keys)?;
    let script = std::fs::read_to_string(&args.backup_script)
        .with_context(|| format!("{}: cannot be read", args.backup_script.display()))?;
    let summary = Summary::of(&record, &observed);
    let page = html::page(&record, &observed, &summary, &script)?;
    bonsai_host::write_output(&args.page, page.as_bytes())?;
    print!("{}", text(&summary, Paint::stdout()));
    Ok(summary.holds())
}

/// A phase as cells: what of it is in the terminal, and in the page's table.
pub(crate) struct Row {
    /// As in the header of the terminal's table.
    pub(crate) cells: [String; 7],
}

const HEADER: [&str; 7] = [
    "",
    "limit on backup",
    "backup got",
    "off by",
    "video got",
    "frame gap p99",
    "frozen",
];

impl Row {
    /// Of a phase.
    pub(crate) fn of(phase: &PhaseSummary) -> Self {
        let absent = phase.bulk == Bulk::Absent;
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        Self {
            cells: [
                phase.key.clone(),
                limit_text(phase.bulk),
                or_dash((!absent).then(|| mbit(phase.bulk_mean))),
                or_dash(phase.off().map(difference)),
                mbit(phase.video),
                or_dash(phase.gap_p99_ns.map(|ns| format!("{:.0} ms", ns / 1e6))),
                percent(phase.frozen),
            ],
        }
    }
}

/// The table and the findings for the terminal.
fn text(summary: &Summary, paint: Paint) -> String {
    let rows: Vec<[String; 7]> = summary
        .phases
        .iter()
        .map(|phase| Row::of(phase).cells)
        .collect();
    let header = HEADER.map(str::to_owned);
    let width = |i: usize| {
        let all = rows.iter().chain([&header]);
        all.map(|cells| cells[i].chars().count())
            .max()
            .unwrap_or_default()
    };
    let widths: Vec<usize> = (0..HEADER.len()).map(width).collect();
    let line = |cells: &[String; 7]| {
        let first = format!("  {:<w$}", cells[0], w = widths[0]);
        let rest = cells
            .iter()
            .zip(&widths)
            .skip(1)
            .map(|(cell, w)| format!("  {cell:>w$}"));
        first + &rest.collect::<String>()
    };
    let mut text = format!("\n{}\n", paint.ink(Ink::Dim, &line(&header)));
    for cells in &rows {
        text.push_str(&format!("{}\n", line(cells)));
    }
    let note = format!(
        "  Mbit/s as the receivers saw it, without the first {} s of each phase\n",
        SETTLE_NS / 1_000_000_000
    );
    text.push_str(&paint.ink(Ink::Dim, &note));
    text.push('\n');
    for finding in &summary.findings {
        let mark = if finding.holds {
            paint.ink(Ink::Good, "ok")
        } else {
            paint.ink(Ink::Bad, "NO")
        };
        text.push_str(&format!("  {mark}  {}\n", finding.text));
    }
    if !summary.holds() {
        text.push_str(
            "\n  On this machine, this time, the demonstration does not show what it should.\n",
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::tests::good;

    #[test]
    fn the_table_of_the_terminal() {
        let summary = Summary::of(&good(), &Observed::default());
        let text = text(&summary, Paint::none());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[3],
            "  disturbed             none        72.0       -       24.0          40 ms    12 %"
        );
        assert!(lines[4].contains("40.0   0.0 %"), "{text}");
        let width = lines[1].chars().count();
        assert!(
            lines[2..6].iter().all(|line| line.chars().count() == width),
            "{text}"
        );
        assert_eq!(text.matches("  ok  ").count(), 4);
        assert!(!text.contains("does not show"));
    }
}
