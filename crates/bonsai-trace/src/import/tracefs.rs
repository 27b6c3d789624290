//! Events of the kernel's block layer as text: tracefs itself, `trace-cmd report`, `perf script`.
//!
//! ```text
//! tracefs     dd-20521 [001] ..... 4069.229554: block_rq_issue: 254,0 RA 16384 () 12580504 + 32 be,0,4 [bash]
//! trace-cmd   dd-20521 [001]  4069.229554: block_rq_issue:       254,0 RA 16384 () 12580504 + 32 [bash]
//! perf        dd 20521 [001]  4069.229554: block:block_rq_issue: 254,0 RA 16384 () 12580504 + 32 [bash]
//! ```

use super::blk::{device, extent, request};
use super::skipped::Reason;
use super::text::{Fields, scaled, shown, whole};
use super::{Codec, Event, Out, Wrong, bad};
use crate::model::Sink;

const RIGHT: &str =
    "TASK-PID [CPU] FLAGS SECONDS: block_rq_issue: MAJOR,MINOR RWBS BYTES () SECTOR + COUNT [TASK]";

const EVENTS: [(&[u8], Event); 3] = [
    (b"block_rq_issue:", Event::Issue),
    (b"block_rq_complete:", Event::Complete),
    (b"block_bio_queue:", Event::Queue),
];

/// Takes one of the kernel's events.
#[derive(Debug)]
pub(super) struct Tracefs {
    /// `None` takes all.
    event: Option<Event>,
    has_others: bool,
}

impl Tracefs {
    pub(super) const fn new(event: Event) -> Self {
        Self {
            event: Some(event),
            has_others: false,
        }
    }

    pub(super) const fn any() -> Self {
        Self {
            event: None,
            has_others: false,
        }
    }
}

fn find(line: &[u8], what: &[u8]) -> Option<usize> {
    memchr::memmem::find(line, what)
}

/// `CPU:1 [LOST 50 EVENTS]` of tracefs, `CPU:1 [50 EVENTS DROPPED]` of trace-cmd: events of all kinds.
fn lost(line: &[u8]) -> Option<u64> {
    let rest = line.trim_ascii().strip_prefix(b"CPU:")?;
    let open = find(rest, b" [")?;
    let inner = rest[open + 2..].strip_suffix(b"]")?;
    if inner == b"EVENTS DROPPED" || inner == b"LOST EVENTS" {
        // How many is not said.
        return Some(1);
    }
    let count = inner
        .strip_prefix(b"LOST ")
        .and_then(|rest| rest.strip_suffix(b" EVENTS"))
        .or_else(|| inner.strip_suffix(b" EVENTS DROPPED"))?;
    whole(count)
}

/// What trace-cmd says of itself: `cpus=2`, `version = 7`, `CPU 1 is empty`.
fn is_of_tool(line: &[u8]) -> bool {
    let line = line.trim_ascii();
    let count = |prefix: &[u8]| line.strip_prefix(prefix).map(<[u8]>::trim_ascii);
    count(b"cpus=").is_some_and(|n| whole(n).is_some())
        || count(b"version =").is_some_and(|n| whole(n).is_some())
        || line.starts_with(b"CPU ") && line.ends_with(b" is empty")
        || line.starts_with(b"CPU:") && line.ends_with(b"[SUBBUFFER START]")
}

/// An event of the block layer, and the text of its time.
#[derive(Debug)]
struct Parts<'l> {
    event: Event,
    time: &'l [u8],
    rest: &'l [u8],
}

/// Finds the event: its name stands behind the time, which ends in a colon. Names of tasks may be anything.
fn parts(line: &[u8]) -> Option<Parts<'_>> {
    let mut from = 0;
    while let Some(at) = find(&line[from..], b"block_").map(|at| from + at) {
        from = at + b"block_".len();
        let name = &line[at..];
        let Some((name, event)) = EVENTS
            .into_iter()
            .find(|(event, _)| name.starts_with(event))
        else {
            continue;
        };
        let before = line[..at].strip_suffix(b"block:").unwrap_or(&line[..at]);
        let time = before
            .trim_ascii_end()
            .rsplit(|byte| *byte == b' ' || *byte == b'\t')
            .next()
            .and_then(|time| time.strip_suffix(b":"));
        // No blank before the name: it is a part of another word.
        let is_word = before
            .last()
            .is_some_and(|byte| matches!(byte, b' ' | b'\t'));
        if let (Some(time), true) = (time, is_word) {
            return Some(Parts {
                event,
                time,
                rest: &line[at + name.len()..],
            });
        }
    }
    None
}

/// Seconds in ns. A clock that does not count ns (counter, uptime, x86-tsc) is printed without decimals.
fn time(time: &[u8]) -> Result<u64, Wrong> {
    if whole(time).is_some() {
        return Err(bad(
            format!("the time {} is not in seconds", shown(time)),
            "a trace with a clock in ns (local, global, mono, boot): echo mono > trace_clock",
        ));
    }
    scaled(time, 1_000_000_000).ok_or_else(|| bad(format!("{} is no time", shown(time)), RIGHT))
}

impl Codec for Tracefs {
    fn line<S: Sink>(&mut self, line: &[u8], out: &mut Out<'_, S>) -> Result<(), Wrong> {
        if line.trim_ascii().is_empty() {
            return out.skip(Reason::Blank);
        }
        if line.starts_with(b"#") {
            return out.skip(Reason::Comment);
        }
        let Some(parts) = parts(line) else {
            if let Some(lost) = lost(line) {
                out.lost(lost)?;
                return out.skip(Reason::Tool);
            }
            if is_of_tool(line) {
                return out.skip(Reason::Tool);
            }
            // Another event, or text that is none.
            if find(line, b": ").is_some() && line.contains(&b'[') {
                self.has_others = true;
                return out.skip(Reason::OtherEvent);
            }
            return Err(bad(format!("{} is no event", shown(line)), RIGHT));
        };
        if self.event.is_some_and(|taken| taken != parts.event) {
            self.has_others = true;
            return out.skip(Reason::OtherEvent);
        }
        let time_ns = time(parts.time)?;
        let mut fields = Fields(parts.rest);
        let of = device(&mut fields)?;
        let letters = fields.field().unwrap_or(&[]);
        if parts.event != Event::Queue {
            // Bytes of an issue, and a command in parentheses, which may have blanks.
            let close = find(fields.0, b") ")
                .ok_or_else(|| bad(format!("{} has no command", shown(line)), RIGHT))?;
            fields = Fields(&fields.0[close + 2..]);
        }
        let at = extent(&mut fields)?;
        request(time_ns, of, letters, at, out)
    }

    fn missing(&self) -> Option<String> {
        let event = self.event?;
        let (name, _) = EVENTS.into_iter().find(|(_, one)| *one == event)?;
        let name = String::from_utf8_lossy(name);
        let name = name.trim_end_matches(':');
        Some(if self.has_others {
            format!("there is no event {name}, only others")
        } else {
            format!("there is no event {name}")
        })
    }
}
