//! Events of the kernel's block layer: as blkparse(1) prints them, and as tracefs does.

use super::text::{Fields, scaled, shown, whole};
use super::{Codec, Event, Found, Out, Wrong, bad};
use crate::model::{Op, Sink};

const DEVICE: &str = "major,minor of a device";

fn device(field: &[u8]) -> Option<(u64, u64)> {
    let comma = field.iter().position(|byte| *byte == b',')?;
    Some((whole(&field[..comma])?, whole(&field[comma + 1..])?))
}

/// What a request does, by its letters (RWBS); `None` for what has no blocks.
fn op(letters: &[u8]) -> Result<Option<Op>, Wrong> {
    let has = |letter| letters.contains(&letter);
    if letters.is_empty() || !letters.iter().all(u8::is_ascii_uppercase) {
        return Err(bad(
            format!("{} says not what is done", shown(letters)),
            "letters such as R, WS or D",
        ));
    }
    Ok(if has(b'D') {
        Some(Op::Trim)
    } else if has(b'R') {
        Some(Op::Read)
    } else if has(b'W') {
        Some(Op::Write)
    } else if has(b'F') {
        Some(Op::Flush)
    } else {
        None
    })
}

/// `SECTOR + COUNT`; `None` where there is none, as with flushes and commands.
fn extent(fields: &mut Fields<'_>) -> Result<Option<(u64, u64)>, Wrong> {
    let Some(start) = fields.field().and_then(whole) else {
        return Ok(None);
    };
    if fields.field() != Some(b"+") {
        return Ok(None);
    }
    let count = fields.number("count of sectors")?;
    match (start.checked_mul(512), count.checked_mul(512)) {
        (Some(offset), Some(length)) => Ok(Some((offset, length))),
        _ => Err(bad("the address is beyond all devices", "SECTOR + COUNT")),
    }
}

/// Puts an event together.
fn request<S: Sink>(
    time_ns: u64,
    of: (u64, u64),
    letters: &[u8],
    at: Option<(u64, u64)>,
    out: &mut Out<'_, S>,
) -> Result<(), Wrong> {
    let Some(op) = op(letters)? else {
        return super::NOTHING;
    };
    let (offset, length, op) = match at {
        // A flush has the address of nowhere, or none.
        Some((_, 0)) | None if letters.contains(&b'F') => (0, 0, Op::Flush),
        Some((_, 0)) | None => return super::NOTHING,
        Some((offset, length)) => (offset, length, op),
    };
    let volume = out.device(of.0, of.1)?;
    out.request(Found {
        time_ns,
        volume,
        offset,
        length,
        op,
    })
}

/// `major,minor cpu sequence seconds pid action RWBS sector + count [process]`.
#[derive(Debug)]
pub(super) struct Blkparse {
    /// `None` takes all.
    action: Option<u8>,
    /// Actions that came, and are not taken.
    others: Vec<u8>,
    /// What comes after the events is a summary.
    is_summary: bool,
}

impl Blkparse {
    pub(super) fn new(event: Event) -> Self {
        let action = match event {
            Event::Issue => b'D',
            Event::Queue => b'Q',
            Event::Complete => b'C',
        };
        Self {
            action: Some(action),
            ..Self::any()
        }
    }

    pub(super) const fn any() -> Self {
        Self {
            action: None,
            others: Vec::new(),
            is_summary: false,
        }
    }
}

impl Codec for Blkparse {
    fn line<S: Sink>(&mut self, line: &[u8], out: &mut Out<'_, S>) -> Result<(), Wrong> {
        let mut fields = Fields(line);
        let Some(first) = fields.field() else {
            return super::NOTHING;
        };
        self.is_summary |= line.starts_with(b"CPU") || line.starts_with(b"Total (");
        if self.is_summary {
            return super::NOTHING;
        }
        let of =
            device(first).ok_or_else(|| bad(format!("{} is no device", shown(first)), DEVICE))?;
        fields.number("cpu")?;
        fields.number("sequence")?;
        let time = fields.field().unwrap_or(&[]);
        let time_ns = scaled(time, 1_000_000_000).ok_or_else(|| {
            bad(
                format!("{} is no time", shown(time)),
                "seconds, as 0.009507758",
            )
        })?;
        fields.number("pid")?;
        let action = fields.field().unwrap_or(&[]);
        // Messages, timers, plugs: they are no requests.
        let &[letter @ (b'Q' | b'D' | b'C')] = action else {
            return if action.is_empty() {
                Err(bad("there is no action", "a letter such as Q, D or C"))
            } else {
                super::NOTHING
            };
        };
        if self.action.is_some_and(|taken| taken != letter) {
            if !self.others.contains(&letter) {
                self.others.push(letter);
            }
            return super::NOTHING;
        }
        let letters = fields.field().unwrap_or(&[]);
        let at = extent(&mut fields)?;
        request(time_ns, of, letters, at, out)
    }

    fn missing(&self) -> Option<String> {
        let others = (!self.others.is_empty()).then(|| String::from_utf8_lossy(&self.others));
        let action = char::from(self.action?);
        Some(match others {
            Some(others) => format!("there is no event {action}, but there are of {others}"),
            None => format!("there is no event {action}"),
        })
    }
}

/// `TASK-PID [CPU] flags SECONDS: block_rq_issue: major,minor RWBS BYTES (COMMAND) SECTOR + COUNT ...`.
#[derive(Debug)]
pub(super) struct Tracefs {
    event: Option<&'static [u8]>,
    has_others: bool,
}

const ISSUE: &[u8] = b" block_rq_issue: ";
const COMPLETE: &[u8] = b" block_rq_complete: ";
const QUEUE: &[u8] = b" block_bio_queue: ";

impl Tracefs {
    pub(super) const fn new(event: Event) -> Self {
        let event = match event {
            Event::Issue => ISSUE,
            Event::Queue => QUEUE,
            Event::Complete => COMPLETE,
        };
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

/// `CPU:1 [LOST 50 EVENTS]`, of all kinds.
fn lost(line: &[u8]) -> Option<u64> {
    let rest = line.strip_prefix(b"CPU:")?;
    let at = find(rest, b" [LOST ")?;
    whole(rest[at + 7..].strip_suffix(b" EVENTS]")?)
}

fn find(line: &[u8], what: &[u8]) -> Option<usize> {
    memchr::memmem::find(line, what)
}

impl Codec for Tracefs {
    fn line<S: Sink>(&mut self, line: &[u8], out: &mut Out<'_, S>) -> Result<(), Wrong> {
        const RIGHT: &str = "TASK-PID [CPU] FLAGS SECONDS: block_rq_issue: MAJOR,MINOR RWBS BYTES () SECTOR + COUNT [TASK]";
        if line.is_empty() || line.starts_with(b"#") {
            return super::NOTHING;
        }
        let all = [ISSUE, COMPLETE, QUEUE];
        let found = all
            .into_iter()
            .find_map(|event| find(line, event).map(|at| (event, at)));
        let Some((event, at)) = found else {
            if let Some(lost) = lost(line) {
                out.lost(lost)?;
                return super::NOTHING;
            }
            // Another event, or text that is none.
            let is_event = find(line, b": ").is_some() && line.contains(&b'[');
            self.has_others |= is_event;
            return if is_event {
                super::NOTHING
            } else {
                Err(bad(format!("{} is no event", shown(line)), RIGHT))
            };
        };
        if self.event.is_some_and(|taken| taken != event) {
            self.has_others = true;
            return super::NOTHING;
        }
        let before = &line[..at];
        let time = before.rsplit(|byte| *byte == b' ').next().unwrap_or(&[]);
        let time = time.strip_suffix(b":").unwrap_or(time);
        let time_ns = scaled(time, 1_000_000_000)
            .ok_or_else(|| bad(format!("{} is no time", shown(time)), RIGHT))?;
        let mut fields = Fields(&line[at + event.len()..]);
        let first = fields.field().unwrap_or(&[]);
        let of =
            device(first).ok_or_else(|| bad(format!("{} is no device", shown(first)), DEVICE))?;
        let letters = fields.field().unwrap_or(&[]);
        if event != QUEUE {
            // Bytes of an issue, and a command in parentheses, which may have blanks.
            let close = find(fields.0, b") ")
                .ok_or_else(|| bad(format!("{} has no command", shown(line)), RIGHT))?;
            fields = Fields(&fields.0[close + 2..]);
        }
        let at = extent(&mut fields)?;
        request(time_ns, of, letters, at, out)
    }

    fn missing(&self) -> Option<String> {
        let event = String::from_utf8_lossy(self.event?);
        let event = event.trim().trim_end_matches(':').to_owned();
        Some(if self.has_others {
            format!("there is no event {event}, only others")
        } else {
            format!("there is no event {event}")
        })
    }
}
