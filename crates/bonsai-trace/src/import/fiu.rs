//! FIU's traces with contents.

use twox_hash::XxHash3_128;

use super::skipped::Reason;
use super::text::{Fields, digest, shown};
use super::{Codec, Found, Out, Wrong, bad};
use crate::Digest;
use crate::model::{BLOCK, Op, Sink};

const RIGHT: &str = "ts_ns pid process lba size R|W major minor digest";

/// Processes have numbers of 32 bits.
const MOST_PID: u64 = 1 << 32;

#[derive(Debug)]
pub(super) struct Fiu {
    by_process: bool,
    /// Volumes of processes.
    volumes: Vec<(Vec<u8>, (u64, u64), u32)>,
}

impl Fiu {
    pub(super) const fn new(by_process: bool) -> Self {
        Self {
            by_process,
            volumes: Vec::new(),
        }
    }

    /// The volume of a process on a device.
    fn volume<S: Sink>(
        &mut self,
        process: &[u8],
        device: (u64, u64),
        out: &mut Out<'_, S>,
    ) -> Result<u32, Wrong> {
        let found = self
            .volumes
            .iter()
            .find(|(name, of, _)| *of == device && name == process);
        if let Some((_, _, volume)) = found {
            return Ok(*volume);
        }
        let name = String::from_utf8_lossy(process);
        let name = format!("{name}@{}:{}", device.0, device.1);
        let volume = out.sink.volume(&name)?;
        self.volumes.push((process.to_vec(), device, volume));
        Ok(volume)
    }
}

impl Codec for Fiu {
    #[inline]
    fn line<S: Sink>(&mut self, line: &[u8], out: &mut Out<'_, S>) -> Result<(), Wrong> {
        let mut fields = Fields(line);
        if fields.is_empty() {
            return out.skip(Reason::Blank);
        }
        let time_ns = fields.number("the time")?;
        let pid = fields.number("pid")?;
        if pid > MOST_PID {
            return Err(no_process(pid));
        }
        let (process, [lba, size], op) = match plain(&mut fields) {
            Some(found) => found,
            None => (
                process(&mut fields)?,
                [fields.number("lba")?, fields.number("size")?],
                operation(fields.field())?,
            ),
        };
        let (major, minor) = (fields.number("major")?, fields.number("minor")?);
        let volume = if self.by_process {
            self.volume(process, (major, minor), out)?
        } else {
            out.device(major, minor)?
        };
        let bytes = |sectors: u64| {
            sectors
                .checked_mul(512)
                .ok_or_else(|| bad("the address is beyond all devices", RIGHT))
        };
        let (offset, length) = (bytes(lba)?, bytes(size)?);
        if let Some(hex) = fields.field() {
            contents(hex, offset, length, out)?;
            if !fields.is_empty() {
                return Err(bad("more follows the digest", RIGHT));
            }
        }
        out.request(Found {
            time_ns,
            volume,
            offset,
            length,
            op,
        })
    }
}

/// With a column in front, such as a number of the row, the time stands where the process should.
#[cold]
fn no_process(pid: u64) -> Wrong {
    bad(format!("{pid} is no process"), RIGHT)
}

/// Process, two numbers and an operation, where the process is one word.
#[inline]
fn plain<'l>(fields: &mut Fields<'l>) -> Option<(&'l [u8], [u64; 2], Op)> {
    let mut ahead = *fields;
    let process = ahead.field()?;
    let numbers = [ahead.short()?, ahead.short()?];
    let op = op(ahead.field())?;
    *fields = ahead;
    Some((process, numbers, op))
}

#[inline]
fn op(field: Option<&[u8]>) -> Option<Op> {
    match field? {
        [b'R' | b'r'] => Some(Op::Read),
        [b'W' | b'w'] => Some(Op::Write),
        _ => None,
    }
}

fn operation(field: Option<&[u8]>) -> Result<Op, Wrong> {
    op(field).ok_or_else(|| {
        let what = format!("{} is no operation", shown(field.unwrap_or(&[])));
        bad(what, "R or W")
    })
}

/// Names of processes may have blanks: after one come two numbers and an operation.
#[inline]
fn process<'l>(fields: &mut Fields<'l>) -> Result<&'l [u8], Wrong> {
    let start = fields.ahead();
    if fields.field().is_none() {
        return Err(bad("there is no process", RIGHT));
    }
    let name = |rest: &Fields<'_>| &start[..start.len() - rest.0.len()];
    let mut tried = *fields;
    loop {
        let mut ahead = tried;
        ahead.field();
        ahead.field();
        if op(ahead.field()).is_some() {
            *fields = tried;
            return Ok(name(fields));
        }
        if tried.field().is_none() {
            // What is wrong is said of the plain reading.
            return Ok(name(fields));
        }
    }
}

/// Digests of 4096 bytes each, or of 512 bytes each, eight of which make that of a block.
#[inline]
pub(super) fn contents<S: Sink>(
    hex: &[u8],
    offset: u64,
    length: u64,
    out: &mut Out<'_, S>,
) -> Result<(), Wrong> {
    let (digests, rest) = hex.as_chunks::<32>();
    let count = digests.len() as u64;
    let wrong = |what: String| {
        bad(
            what,
            "32 hexadecimal digits for each 4096 bytes, or for each 512",
        )
    };
    if !rest.is_empty() {
        return Err(wrong(format!("the digest is of {} digits", hex.len())));
    }
    let blocks = length / BLOCK;
    if !out.is_aligned(offset, length) {
        out.report.contents_left_out += count;
        return Ok(());
    }
    let no_hex = || wrong(format!("{} is no digest", shown(hex)));
    if count == blocks {
        for one in digests {
            out.content(Digest(digest(one).ok_or_else(no_hex)?));
        }
    } else if count == blocks * 8 {
        for block in digests.chunks_exact(8) {
            let mut all = [0; 128];
            for (to, one) in all.chunks_exact_mut(16).zip(block) {
                to.copy_from_slice(&digest(one).ok_or_else(no_hex)?);
            }
            out.content(Digest(XxHash3_128::oneshot(&all).to_be_bytes()));
        }
    } else {
        return Err(wrong(format!(
            "{count} digests are given for {length} bytes"
        )));
    }
    Ok(())
}
