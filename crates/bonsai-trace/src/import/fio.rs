//! fio's iolog, of version 2 (with waits) and 3 (with times).
//!
//! Units are those of the program, not of its manual. fio 3.33 and its sources of 2026-08 (`iolog.c`) sleep at a `wait N`
//! until N **milliseconds** have passed since fio started; the manual says microseconds since the wait before. Stamps of
//! version 3 are microseconds since the start: fio writes them so, and waits for their differences.

use super::skipped::Reason;
use super::text::{Fields, shown};
use super::{Codec, Found, Out, Wrong, bad};
use crate::model::{Op, Sink};

const HEADER: &[u8] = b"fio version ";

/// Whether a file begins as an iolog.
pub(super) fn is_header(beginning: &[u8]) -> bool {
    beginning.starts_with(HEADER)
}

/// A version that is read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Version {
    Two,
    Three,
}

#[derive(Debug, Default)]
pub(super) struct Fio {
    version: Option<Version>,
    now_us: u64,
    /// The last file and its volume.
    last: Option<(Vec<u8>, u32)>,
}

impl Fio {
    /// Takes the line with the version, in which an iolog begins: times count from its start.
    fn begin<S: Sink>(&mut self, line: &[u8], out: &mut Out<'_, S>) -> Result<(), Wrong> {
        let version = match line {
            b"fio version 2 iolog" => Version::Two,
            b"fio version 3 iolog" => Version::Three,
            other => {
                return Err(bad(
                    format!("{} is no heading of an iolog", shown(other)),
                    "fio version 2 iolog, or 3",
                ));
            }
        };
        if self.version.replace(version).is_some() {
            out.new_part();
        }
        self.now_us = 0;
        out.skip(Reason::Heading)
    }

    fn volume<S: Sink>(&mut self, file: &[u8], out: &mut Out<'_, S>) -> Result<u32, Wrong> {
        if let Some((last, volume)) = &self.last
            && last == file
        {
            return Ok(*volume);
        }
        let name = std::str::from_utf8(file)
            .map_err(|_| bad(format!("{} is no name", shown(file)), "a name in UTF-8"))?;
        let volume = out.sink.volume(name)?;
        self.last = Some((file.to_vec(), volume));
        Ok(volume)
    }
}

impl Codec for Fio {
    fn line<S: Sink>(&mut self, line: &[u8], out: &mut Out<'_, S>) -> Result<(), Wrong> {
        let mut fields = Fields(line);
        if fields.is_empty() {
            return out.skip(Reason::Blank);
        }
        // Iologs that were put together have their versions in the middle.
        let (Some(version), false) = (self.version, is_header(line)) else {
            return self.begin(line, out);
        };
        if version == Version::Three {
            self.now_us = fields.number("time")?;
        }
        let file = fields.field().unwrap_or(&[]);
        let action = fields.field().unwrap_or(&[]);
        let op = match action {
            b"add" | b"open" | b"close" => return out.skip(Reason::FileAction),
            b"wait" => {
                let ms = fields.number("time to wait")?;
                if version == Version::Three || fields.is_empty() {
                    return out.skip(Reason::IgnoredWait);
                }
                self.now_us = self.now_us.max(ms.saturating_mul(1_000));
                return out.skip(Reason::Wait);
            }
            b"read" => Op::Read,
            b"write" => Op::Write,
            b"trim" => Op::Trim,
            b"sync" | b"datasync" => Op::Flush,
            other => {
                return Err(bad(
                    format!("{} is no action", shown(other)),
                    "add, open, close, wait, read, write, trim, sync or datasync",
                ));
            }
        };
        let (mut offset, mut length) = (0, 0);
        if op != Op::Flush {
            offset = fields.number("offset")?;
            length = fields.number("length")?;
        }
        let volume = self.volume(file, out)?;
        out.request(Found {
            time_ns: self.now_us.saturating_mul(1_000),
            volume,
            offset,
            length,
            op,
        })
    }
}
