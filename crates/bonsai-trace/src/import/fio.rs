//! fio's iolog, of version 2 (with waits between the requests) and 3 (with times).

use super::text::{Fields, shown};
use super::{Codec, Found, Out, Wrong, bad};
use crate::model::{Op, Sink};

const HEADER: &[u8] = b"fio version ";

/// Whether a file begins as an iolog.
pub(super) fn is_header(beginning: &[u8]) -> bool {
    beginning.starts_with(HEADER)
}

/// Times are in us, as fio 3.33 writes them.
#[derive(Debug, Default)]
pub(super) struct Fio {
    version: Option<u8>,
    now_us: u64,
    /// The last file and its volume.
    last: Option<(Vec<u8>, u32)>,
}

impl Codec for Fio {
    fn line<S: Sink>(&mut self, line: &[u8], out: &mut Out<'_, S>) -> Result<(), Wrong> {
        let Some(version) = self.version else {
            self.version = match line {
                b"fio version 2 iolog" => Some(2),
                b"fio version 3 iolog" => Some(3),
                other => {
                    return Err(bad(
                        format!("{} is no heading of an iolog", shown(other)),
                        "fio version 2 iolog, or 3",
                    ));
                }
            };
            return super::NOTHING;
        };
        let mut fields = Fields(line);
        if fields.is_empty() {
            return super::NOTHING;
        }
        if version == 3 {
            self.now_us = fields.number("time")?;
        }
        let file = fields.field().unwrap_or(&[]);
        let action = fields.field().unwrap_or(&[]);
        let op = match action {
            b"add" | b"open" | b"close" => return super::NOTHING,
            b"wait" => {
                let us = fields.number("time to wait")?;
                self.now_us = self.now_us.saturating_add(us);
                return super::NOTHING;
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
        let volume = match &self.last {
            Some((last, volume)) if last == file => *volume,
            _ => {
                let name = std::str::from_utf8(file)
                    .map_err(|_| bad(format!("{} is no name", shown(file)), "a name in UTF-8"))?;
                let volume = out.sink.volume(name)?;
                self.last = Some((file.to_vec(), volume));
                volume
            }
        };
        out.request(Found {
            time_ns: self.now_us.saturating_mul(1_000),
            volume,
            offset,
            length,
            op,
        })
    }
}
