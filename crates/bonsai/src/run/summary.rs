//! The line at the end: what was not covered.

use std::collections::BTreeMap;

use bonsai_ledger::sync::Ordering;
use bonsai_ledger::{Ledger, Reason, coverage, flags};
use bonsai_services::harmless;
use bonsai_services::observe::{
    MappedFiles, Unseen, ended_uncovered, mapped_by_ended, unshaped_of,
};
use bonsai_units::format_duration_ns;

use super::program::Program;
use crate::output::count;

/// How many programs are named.
const NAMED: usize = 8;

/// One sentence on the coverage of a service that has ended; `None` if everything
/// was covered and nobody asked.
pub(super) fn line(
    service: &str,
    ledger: &Ledger,
    (program, verbose): (&Program, bool),
    unseen: Option<Unseen>,
) -> Option<String> {
    let mut parts = Vec::new();
    let uncovered = uncovered(ledger, program);
    if !uncovered.is_empty() {
        parts.push(format!("not covered: {}", list(&uncovered)));
    }
    let partly = partly_covered(ledger);
    if !partly.is_empty() {
        parts.push(format!("covered in part: {}", list(&partly)));
    }
    let unshaped = unshaped_of(ledger);
    if !unshaped.is_empty() {
        let sum: u64 = unshaped
            .iter()
            .fold(0, |sum, view| view.calls.saturating_add(sum));
        let each: Vec<String> = unshaped
            .iter()
            .map(|view| format!("{} {}", view.calls, view.about))
            .collect();
        parts.push(format!(
            "{} without a decision ({})",
            count(sum, "call", "calls"),
            each.join(", ")
        ));
    }
    parts.extend(MappedFiles::of(ledger).line());
    parts.extend(unseen.and_then(|unseen| unseen.line(ledger)));
    parts.extend(mapped_by_ended(ledger, std::process::id()).line());
    if verbose {
        parts.push(covered(ledger));
    }
    (!parts.is_empty()).then(|| format!("{service}: {}", parts.join("; ")))
}

/// True if the library did not come up in a program, for a reason that is not known.
pub(super) fn has_missed(ledger: &Ledger) -> bool {
    let missed = Reason::NotArrived.about();
    ended_uncovered(ledger)
        .iter()
        .any(|view| view.reason == missed)
}

/// Programs with the reason, and how many processes ran them.
type Programs = BTreeMap<(String, String), u64>;

fn uncovered(ledger: &Ledger, program: &Program) -> Programs {
    let mut found = Programs::new();
    for view in ended_uncovered(ledger) {
        *found.entry((view.program, view.reason)).or_default() += 1;
    }
    if let Some(reason) = program.uncovered() {
        *found.entry((program.shown(), reason)).or_default() += 1;
    }
    found
}

/// Processes entered by exported symbols only, unless that was asked for.
fn partly_covered(ledger: &Ledger) -> Programs {
    let mut found = Programs::new();
    let asked = ledger.header.flags.load(Ordering::Relaxed) & flags::NO_PATCH != 0;
    for entry in ledger.process_table() {
        let is_named = entry.coverage & coverage::UNCOVERED != 0 || entry.expected_ns != 0;
        let whole = entry.coverage & coverage::PATCHED != 0 || is_named;
        let as_asked = asked && entry.reason == Reason::PatchOff;
        // A process that was killed as it was about to leave its note has an entry that says nothing.
        let is_entered = entry.coverage & coverage::ATTACHED != 0;
        if is_entered && !whole && !as_asked {
            let reason = entry.reason.about().to_owned();
            *found.entry((harmless(&entry.program), reason)).or_default() += 1;
        }
    }
    found
}

fn list(programs: &Programs) -> String {
    let named = programs
        .iter()
        .take(NAMED)
        .map(|((program, reason), processes)| {
            let times = if *processes > 1 {
                format!(" ({processes} times)")
            } else {
                String::new()
            };
            format!("{program}{times}, {reason}")
        });
    let mut text = named.collect::<Vec<_>>().join("; ");
    if programs.len() > NAMED {
        text.push_str(&format!("; and {} more", programs.len() - NAMED));
    }
    text
}

fn covered(ledger: &Ledger) -> String {
    let (mut calls, mut waits, mut waited) = (0_u64, 0_u64, 0_u64);
    for total in ledger.totals() {
        calls = total.calls.saturating_add(calls);
        waits = total.delays.count().saturating_add(waits);
        waited = waited.saturating_add(total.waited_ns);
    }
    let attached = |entry: &&bonsai_ledger::ProcessReport| entry.coverage & coverage::ATTACHED != 0;
    let mut table = ledger.process_table();
    table.retain(|entry| entry.expected_ns == 0);
    let processes = table.iter().filter(attached).count() as u64;
    let patched = table
        .iter()
        .filter(|entry| entry.coverage & coverage::PATCHED != 0)
        .count() as u64;
    format!(
        "{} covered, {patched} of them with libc's own calls; {}; {}, {} in all",
        count(processes, "process", "processes"),
        count(calls, "call", "calls"),
        count(waits, "wait", "waits"),
        format_duration_ns(waited),
    )
}
