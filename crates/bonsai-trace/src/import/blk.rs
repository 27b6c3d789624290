//! Events of the kernel's block layer as blkparse(1) prints them.

use super::skipped::Reason;
use super::text::{Fields, scaled, shown, whole};
use super::{Codec, Event, Found, Out, Wrong, bad};
use crate::model::{Op, Sink};

/// `major,minor`.
fn numbers(field: &[u8]) -> Option<(u64, u64)> {
    let comma = field.iter().position(|byte| *byte == b',')?;
    Some((whole(&field[..comma])?, whole(&field[comma + 1..])?))
}

/// The next field as a device.
pub(super) fn device(fields: &mut Fields<'_>) -> Result<(u64, u64), Wrong> {
    let field = fields.field().unwrap_or(&[]);
    numbers(field).ok_or_else(|| {
        bad(
            format!("{} is no device", shown(field)),
            "major,minor of a device",
        )
    })
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
pub(super) fn extent(fields: &mut Fields<'_>) -> Result<Option<(u64, u64)>, Wrong> {
    let Some(start) = fields.field().and_then(whole) else {
        return Ok(None);
    };
    if fields.field() != Some(b"+") {
        return Ok(None);
    }
    let count = fields.number("count of sectors")?;
    if count == 0 {
        // The kernel gives completed flushes the sector 2^64 - 1.
        return Ok(None);
    }
    match (start.checked_mul(512), count.checked_mul(512)) {
        (Some(offset), Some(length)) => Ok(Some((offset, length))),
        _ => Err(bad("the address is beyond all devices", "SECTOR + COUNT")),
    }
}

/// Puts an event together.
pub(super) fn request<S: Sink>(
    time_ns: u64,
    of: (u64, u64),
    letters: &[u8],
    at: Option<(u64, u64)>,
    out: &mut Out<'_, S>,
) -> Result<(), Wrong> {
    let Some(op) = op(letters)? else {
        return out.skip(Reason::NoBlocks);
    };
    let (offset, length, op) = match at {
        None if letters.contains(&b'F') => (0, 0, Op::Flush),
        None => return out.skip(Reason::NoBlocks),
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
    /// A summary stands behind the events, until an event comes again.
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

    /// Whether a line is of a summary. Events begin with a device's number; a line of another kind that
    /// begins with a digit is a damaged event, also behind a summary.
    fn is_of_summary(&mut self, line: &[u8]) -> bool {
        let line = line.trim_ascii();
        if line.first().is_none_or(u8::is_ascii_digit) {
            return false;
        }
        // Of a processor, of a device, or (blkparse -s) of a process: NAME (PID).
        self.is_summary |=
            line.starts_with(b"CPU") || line.starts_with(b"Total (") || line.ends_with(b")");
        self.is_summary
    }
}

impl Codec for Blkparse {
    fn line<S: Sink>(&mut self, line: &[u8], out: &mut Out<'_, S>) -> Result<(), Wrong> {
        let mut fields = Fields(line);
        if fields.is_empty() {
            return out.skip(Reason::Blank);
        }
        if self.is_of_summary(line) {
            return out.skip(Reason::Summary);
        }
        // With an output file, blkparse names its inputs first.
        if line.starts_with(b"Input file ") {
            return out.skip(Reason::Tool);
        }
        let of = device(&mut fields)?;
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
        if std::mem::take(&mut self.is_summary) {
            out.new_part();
        }
        let action = fields.field().unwrap_or(&[]);
        // Messages, timers, plugs: they are no requests.
        let &[letter @ (b'Q' | b'D' | b'C')] = action else {
            return if action.is_empty() {
                Err(bad("there is no action", "a letter such as Q, D or C"))
            } else {
                out.skip(Reason::OtherEvent)
            };
        };
        if self.action.is_some_and(|taken| taken != letter) {
            if !self.others.contains(&letter) {
                self.others.push(letter);
            }
            return out.skip(Reason::OtherEvent);
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
