//! `bonsai stats`: every counter of a service.

use bonsai_ledger::Ledger;
use bonsai_ledger::sync::Ordering;
use bonsai_services::observe::{
    Bin, CallView, ClassView, Head, MappedFiles, Unseen, UnshapedView, Waits, calls_of, classes_of,
    unshaped_of,
};
use bonsai_services::service::Services;
use bonsai_units::{Bytes, format_duration_ns};
use serde::Serialize;

use crate::cli::Stats;
use crate::output::{Ink, Paint, finish, print, print_json, table};

/// What `bonsai stats --json` prints, and `bonsai run --json` at the end.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Document {
    /// Version and time.
    #[serde(flatten)]
    head: Head,
    /// The service.
    service: String,
    /// When it was made, ms of the wall clock since 1970.
    created_unix_ms: u64,
    /// Each call that was made, by kind of descriptor.
    calls: Vec<CallView>,
    /// The same by class; a call is in several.
    classes: Vec<ClassView>,
    /// Calls that went through without a decision.
    unshaped: Vec<UnshapedView>,
    /// Files that were mapped into memory under limits.
    mapped_files: MappedFiles,
    /// At the end of `bonsai run`: bytes that went by calls which were not seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    unseen: Option<Unseen>,
    /// The longest single wait, ns.
    longest_wait_ns: u64,
}

impl Document {
    /// The same with what was not seen.
    pub(crate) fn with(self, unseen: Option<Unseen>) -> Self {
        Self { unseen, ..self }
    }
}

/// The counters of a service.
pub(crate) fn document(service: &str, ledger: &Ledger) -> Document {
    let totals = ledger.totals();
    // Read last: it covers every wait in the totals.
    let longest = ledger.header.longest_wait_ns.load(Ordering::Relaxed);
    Document {
        head: Head::now(),
        service: service.to_owned(),
        created_unix_ms: ledger.header.created_ns.load(Ordering::Relaxed) / 1_000_000,
        calls: calls_of(&totals, longest),
        classes: classes_of(&totals, longest),
        unshaped: unshaped_of(ledger),
        mapped_files: MappedFiles::of(ledger),
        unseen: None,
        longest_wait_ns: longest,
    }
}

/// Prints them.
///
/// # Errors
/// There is no such service, or its ledger cannot be read.
pub(crate) fn run(args: &Stats) -> anyhow::Result<u8> {
    let service = Services::open()?.find(&args.service)?;
    let name = crate::whose::shown(&service.name);
    let document = document(&name, &service.ledger()?);
    if args.json {
        print_json(&document, false)?;
    } else {
        print(&text(&document, Paint::stdout()))?;
    }
    Ok(0)
}

const HEADER: [&str; 8] = [
    "call", "on", "calls", "bytes", "waits", "waited", "p50", "p99",
];
const RIGHT: [usize; 6] = [2, 3, 4, 5, 6, 7];

fn text(document: &Document, paint: Paint) -> String {
    let mut text = format!("{}\n", paint.ink(Ink::Bold, &document.service));
    if document.calls.is_empty() {
        return text + "  no calls yet\n";
    }
    let mut calls = table(&HEADER, &RIGHT);
    for view in &document.calls {
        let name = [view.call.to_owned(), view.kind.to_owned()];
        calls.add_row(
            name.into_iter()
                .chain(cells(view.calls, view.bytes, &view.waits)),
        );
    }
    text.push_str(&finish(&calls));
    text.push('\n');
    let mut classes = table(&[&["class", ""], &HEADER[2..]].concat(), &RIGHT);
    for view in &document.classes {
        let name = [view.class.to_owned(), String::new()];
        classes.add_row(
            name.into_iter()
                .chain(cells(view.calls, view.bytes, &view.waits)),
        );
    }
    text.push_str(&finish(&classes));
    for view in document.calls.iter().filter(|view| view.waits.count > 0) {
        text.push_str(&format!("\n  waits of {} ({})\n", view.call, view.kind));
        text.push_str(&histogram(&view.waits.histogram));
    }
    for view in &document.unshaped {
        let line = format!("{} calls without a decision: {}", view.calls, view.about);
        text.push_str(&format!("\n  {}\n", paint.ink(Ink::Yellow, &line)));
    }
    text
}

fn cells(calls: u64, bytes: Option<u64>, waits: &Waits) -> [String; 6] {
    let time = |ns: Option<u64>| ns.map_or_else(|| "-".to_owned(), format_duration_ns);
    [
        calls.to_string(),
        bytes.map_or_else(|| "-".to_owned(), |bytes| Bytes(bytes).human()),
        waits.count.to_string(),
        time((waits.count > 0).then_some(waits.total_ns)),
        time(waits.p50_ns),
        time(waits.p99_ns),
    ]
}

/// A bar for each range, as long as its share.
fn histogram(bins: &[Bin]) -> String {
    const WIDTH: u64 = 40;
    let most = bins.iter().map(|bin| bin.count).max().unwrap_or(1).max(1);
    let mut rows = table(&["from", "to", "waits", ""], &[0, 1, 2]);
    for bin in bins {
        let length = usize::try_from(bin.count.saturating_mul(WIDTH).div_ceil(most)).unwrap_or(0);
        rows.add_row([
            format_duration_ns(bin.from_ns),
            bin.to_ns.map_or_else(|| "-".to_owned(), format_duration_ns),
            bin.count.to_string(),
            "#".repeat(length),
        ]);
    }
    finish(&rows)
}
