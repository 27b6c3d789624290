//! Formats of a fixed row of values: MSR Cambridge, and the traces of the ARC paper.

use super::skipped::Reason;
use super::text::{Fields, number, shown};
use super::{Codec, Found, Out, Wrong, bad};
use crate::model::{BLOCK, Op, Sink};

/// 1970 in 100 ns since 1601.
pub(super) const UNIX: u64 = 116_444_736_000_000_000;

/// `Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime`.
#[derive(Debug, Default)]
pub(super) struct Msr {
    is_begun: bool,
    /// The last host and disk, and their volume.
    last: (Vec<u8>, u32),
}

impl Codec for Msr {
    fn line<S: Sink>(&mut self, line: &[u8], out: &mut Out<'_, S>) -> Result<(), Wrong> {
        const RIGHT: &str = "Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime";
        if line.is_empty() {
            return out.skip(Reason::Blank);
        }
        if line.starts_with(b"Timestamp,") {
            // Files that were put together have one each.
            if std::mem::replace(&mut self.is_begun, true) {
                out.new_part();
            }
            return out.skip(Reason::Heading);
        }
        self.is_begun = true;
        let mut fields = line.split(|byte| *byte == b',');
        let mut next = || fields.next();
        let all = [next(), next(), next(), next(), next(), next(), next()];
        let is_longer = next().is_some();
        let [
            Some(time),
            Some(host),
            Some(disk),
            Some(op),
            Some(offset),
            Some(size),
            Some(_),
        ] = all
        else {
            return Err(bad(format!("{} has not 7 values", shown(line)), RIGHT));
        };
        if is_longer {
            return Err(bad(
                format!("{} has more than 7 values", shown(line)),
                RIGHT,
            ));
        }
        let ticks = number(time, "the time")?;
        let op = match op {
            b"Read" => Op::Read,
            b"Write" => Op::Write,
            other => return Err(bad(format!("{} is no type", shown(other)), "Read or Write")),
        };
        let offset = number(offset, "the offset")?;
        let length = number(size, "the size")?;
        number(disk, "the disk")?;
        let is_same = self.last.0.len() == host.len() + disk.len() + 1
            && self.last.0.starts_with(host)
            && self.last.0.ends_with(disk);
        if !is_same {
            let name = [host, b":", disk].concat();
            let text = std::str::from_utf8(&name)
                .map_err(|_| bad(format!("{} is no host", shown(host)), RIGHT))?;
            self.last = (name.clone(), out.sink.volume(text)?);
        }
        let time_ns = ticks
            .checked_sub(UNIX)
            .and_then(|ticks| ticks.checked_mul(100));
        out.request(Found {
            time_ns: time_ns.ok_or_else(|| {
                bad(
                    format!("the time {ticks} is before 1970"),
                    "100 ns since 1601",
                )
            })?,
            volume: self.last.1,
            offset,
            length,
            op,
        })
    }
}

/// `start count ignored sequence`, in blocks; it has no times and no operations.
#[derive(Debug, Default)]
pub(super) struct Arc {
    volume: Option<u32>,
}

impl Codec for Arc {
    fn line<S: Sink>(&mut self, line: &[u8], out: &mut Out<'_, S>) -> Result<(), Wrong> {
        const RIGHT: &str = "start count ignored sequence, in blocks";
        let mut fields = Fields(line);
        if fields.is_empty() {
            return out.skip(Reason::Blank);
        }
        let start = fields.number("start")?;
        let count = fields.number("count")?;
        fields.number("third value")?;
        let sequence = fields.number("sequence")?;
        if !fields.is_empty() {
            return Err(bad("more than 4 values stand in the line", RIGHT));
        }
        let bytes = |blocks: u64| {
            blocks
                .checked_mul(BLOCK)
                .ok_or_else(|| bad("the address is beyond all devices", RIGHT))
        };
        let volume = match self.volume {
            Some(volume) => volume,
            None => *self.volume.insert(out.sink.volume("lis")?),
        };
        out.request(Found {
            time_ns: sequence,
            volume,
            offset: bytes(start)?,
            length: bytes(count)?,
            op: Op::Read,
        })
    }
}
