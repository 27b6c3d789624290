//! Counts and delays of a replay.

use std::collections::BTreeMap;
use std::time::Duration;

use bonsai_trace::Op;
use hdrhistogram::Histogram;
use serde::Serialize;
use serde_json::{Value, json};

use super::feed::Order;
use crate::cli::{Speed, TraceReplay};
use crate::output::{count, escaped, finish, print, print_json, table};

/// Delays are kept up to that, ns: an hour; what is longer counts as that.
const LONGEST_NS: u64 = 3_600_000_000_000;

/// Quantiles that are shown, with their names.
const SHOWN: [(f64, &str); 5] = [
    (0.5, "p50"),
    (0.9, "p90"),
    (0.99, "p99"),
    (0.999, "p99_9"),
    (1.0, "max"),
];

/// The first block that was not as it has to be.
#[derive(Debug, Serialize)]
pub(super) struct Wrong {
    pub(super) device: String,
    /// Bytes.
    pub(super) offset: u64,
    pub(super) expected: Option<String>,
    /// The first 16 bytes, where a digest stands.
    pub(super) found: Option<String>,
}

/// What a replay came to.
#[derive(Debug)]
pub(super) struct Tally {
    /// Requests of the trace that were gone past.
    pub(super) records: u64,
    /// Of these, those that were left out as was asked for, and those that the server has no command for.
    pub(super) left_out: u64,
    pub(super) not_taken: u64,
    /// Requests that were answered, by [`Op`].
    requests: [u64; 4],
    /// Bytes read, and bytes written.
    bytes: [u64; 2],
    /// By the protocol's numbers.
    errors: BTreeMap<u32, u64>,
    first_error: Option<String>,
    /// Blocks.
    pub(super) checked: u64,
    pub(super) unchecked: u64,
    pub(super) wrong: u64,
    pub(super) first_wrong: Option<Wrong>,
    /// Delays, ns, within 0.1 %.
    latency: Histogram<u64>,
    lateness: Histogram<u64>,
    pub(super) wall: Duration,
}

impl Tally {
    /// Nothing yet.
    ///
    /// # Errors
    /// There are no such histograms.
    pub(super) fn new() -> anyhow::Result<Self> {
        let delays = Histogram::new_with_bounds(1, LONGEST_NS, 3)?;
        Ok(Self {
            records: 0,
            left_out: 0,
            not_taken: 0,
            requests: [0; 4],
            bytes: [0; 2],
            errors: BTreeMap::new(),
            first_error: None,
            checked: 0,
            unchecked: 0,
            wrong: 0,
            first_wrong: None,
            latency: delays.clone(),
            lateness: delays,
            wall: Duration::ZERO,
        })
    }

    /// An order was answered, so long after it was sent.
    pub(super) fn done(&mut self, order: &Order, after: Duration) {
        self.latency.saturating_record(nanoseconds(after));
        self.requests[order.op as usize] += 1;
    }

    /// It was answered without an error.
    pub(super) fn moved(&mut self, order: &Order) {
        match order.op {
            Op::Read => self.bytes[0] += u64::from(order.length),
            Op::Write => self.bytes[1] += u64::from(order.length),
            Op::Trim | Op::Flush => {}
        }
    }

    /// It was answered with an error.
    pub(super) fn failed(&mut self, device: &str, order: &Order, error: u32) {
        *self.errors.entry(error).or_default() += 1;
        self.first_error.get_or_insert_with(|| {
            format!(
                "{} of {} bytes at {} on {device}: {}",
                order.op.word(),
                order.length,
                order.offset,
                word(error)
            )
        });
    }

    /// An order was sent so long after it was due.
    pub(super) fn late(&mut self, by: Duration) {
        self.lateness.saturating_record(nanoseconds(by));
    }

    /// Whether something failed or was wrong.
    pub(super) fn is_bad(&self) -> bool {
        self.wrong > 0 || !self.errors.is_empty()
    }
}

/// Prints what it came to.
///
/// # Errors
/// It cannot be written.
pub(super) fn tell(args: &TraceReplay, tally: &Tally) -> anyhow::Result<()> {
    if args.json {
        return print_json(&document(args, tally), false);
    }
    print(&text(args, tally))
}

fn nanoseconds(of: Duration) -> u64 {
    u64::try_from(of.as_nanos()).unwrap_or(u64::MAX)
}

/// The protocol's name of an error.
fn word(error: u32) -> String {
    let name = match error {
        1 => "EPERM",
        5 => "EIO",
        12 => "ENOMEM",
        22 => "EINVAL",
        28 => "ENOSPC",
        75 => "EOVERFLOW",
        95 => "ENOTSUP",
        108 => "ESHUTDOWN",
        other => return format!("error {other}"),
    };
    name.to_owned()
}

fn document(args: &TraceReplay, tally: &Tally) -> Value {
    let seconds = tally.wall.as_secs_f64().max(1e-9);
    let sent: u64 = tally.requests.iter().sum();
    let moved: u64 = tally.bytes.iter().sum();
    let delays = |of: &Histogram<u64>| {
        let all = SHOWN.iter().map(|(part, name)| {
            let us = of.value_at_quantile(*part) as f64 / 1e3;
            ((*name).to_owned(), json!(us))
        });
        Value::Object(all.collect())
    };
    let errors = tally
        .errors
        .iter()
        .map(|(number, n)| (word(*number), json!(n)));
    let [reads, writes, trims, flushes] = tally.requests;
    json!({
        "schema": 1,
        "speed": args.speed.to_string(),
        "depth": args.depth,
        "trace_requests": tally.records,
        "left_out": tally.left_out,
        "not_taken": tally.not_taken,
        "requests": {"read": reads, "write": writes, "trim": trims, "flush": flushes},
        "bytes": {"read": tally.bytes[0], "written": tally.bytes[1]},
        "errors": Value::Object(errors.collect()),
        "first_error": tally.first_error,
        "blocks": {"checked": tally.checked, "unchecked": tally.unchecked, "wrong": tally.wrong},
        "first_wrong": tally.first_wrong,
        "wall_s": tally.wall.as_secs_f64(),
        "requests_per_s": sent as f64 / seconds,
        "bytes_per_s": moved as f64 / seconds,
        "latency_us": delays(&tally.latency),
        "lateness_us": match args.speed {
            Speed::Times(_) => delays(&tally.lateness),
            Speed::Max => Value::Null,
        },
    })
}

fn text(args: &TraceReplay, tally: &Tally) -> String {
    let seconds = tally.wall.as_secs_f64().max(1e-9);
    let [reads, writes, trims, flushes] = tally.requests;
    let sent: u64 = tally.requests.iter().sum();
    let moved: u64 = tally.bytes.iter().sum();
    let mut text = format!(
        "requests    {sent}: {reads} reads, {writes} writes, {trims} trims, {flushes} flushes, for {} of the trace\n\
         bytes       {:.1} MB read, {:.1} MB written\n\
         time        {:.3} s at {}: {:.0} requests/s, {:.1} MB/s\n",
        tally.records,
        tally.bytes[0] as f64 / 1e6,
        tally.bytes[1] as f64 / 1e6,
        tally.wall.as_secs_f64(),
        args.speed,
        sent as f64 / seconds,
        moved as f64 / seconds / 1e6,
    );
    if tally.left_out > 0 {
        text += &format!(
            "left out    {} of the trace, which do not read\n",
            tally.left_out
        );
    }
    if tally.not_taken > 0 {
        text += &format!(
            "not sent    {}, which the server has no command for\n",
            tally.not_taken
        );
    }
    if args.check {
        text += &format!(
            "checked     {}, {} wrong; {} not known\n",
            count(tally.checked, "block", "blocks"),
            tally.wrong,
            tally.unchecked
        );
    }
    if let Some(wrong) = &tally.first_wrong {
        let of = |digest: &Option<String>| digest.clone().unwrap_or_default();
        text += &format!(
            "first wrong {} at {}: begins with {} instead of {}\n",
            escaped(&wrong.device),
            wrong.offset,
            of(&wrong.found),
            of(&wrong.expected)
        );
    }
    let errors: u64 = tally.errors.values().sum();
    if let Some(first) = &tally.first_error {
        text += &format!(
            "failed      {}, the first: {}\n",
            count(errors, "request", "requests"),
            escaped(first)
        );
    }
    let mut header = vec![""];
    header.extend(["50 %", "90 %", "99 %", "99.9 %", "most"]);
    let mut lines = table(&header, &[1, 2, 3, 4, 5]);
    let mut row = |name: &str, of: &Histogram<u64>| {
        let mut row = vec![name.to_owned()];
        let cells = SHOWN
            .iter()
            .map(|(part, _)| format!("{:.0}", of.value_at_quantile(*part) as f64 / 1e3));
        row.extend(cells);
        lines.add_row(row);
    };
    row("answered after, us", &tally.latency);
    if matches!(args.speed, Speed::Times(_)) {
        row("sent too late, us", &tally.lateness);
    }
    text + &format!("\n{}", finish(&lines))
}
