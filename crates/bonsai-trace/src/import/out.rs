//! Requests on their way to where they go.

use super::skipped::Reason;
use super::{Report, Wrong, bad};
use crate::error::BadRecord;
use crate::model::{BLOCK, MAX_END, MAX_LENGTH, Op, Request, Sink};
use crate::{Digest, Error};

/// Requests, or contents, that go on together: what their contents need of memory is asked for at once.
const TOGETHER: usize = 64;

/// A trim is of at most that many bytes, 64 TiB: it becomes requests of at most 1 GiB, and a line that becomes
/// billions of them is no request to a device.
const MAX_TRIM: u64 = 1 << 46;

/// Where requests go, and what is counted on the way.
pub(super) struct Out<'s, S> {
    pub(super) sink: &'s mut S,
    pub(super) report: Report,
    shift: u64,
    last_ns: u64,
    /// Volumes by their numbers: a search by name takes long.
    devices: Vec<(u64, u32)>,
    /// Requests that wait, and where the contents of each end.
    waiting: Vec<(Found, usize)>,
    /// Contents of these, and of the request that comes next.
    digests: Vec<Digest>,
    contents: Vec<u32>,
}

/// A request as a record has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) time_ns: u64,
    pub(super) volume: u32,
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) op: Op,
}

impl<'s, S: Sink> Out<'s, S> {
    pub(super) fn new(sink: &'s mut S, shift: u64) -> Self {
        Self {
            sink,
            report: Report::default(),
            shift,
            last_ns: 0,
            devices: Vec::new(),
            waiting: Vec::new(),
            digests: Vec::new(),
            contents: Vec::new(),
        }
    }

    /// The volume with two numbers.
    #[inline]
    pub(super) fn device(&mut self, major: u64, minor: u64) -> Result<u32, Wrong> {
        if major >= 1 << 32 || minor >= 1 << 32 {
            return Err(bad(
                format!("{major}:{minor} is no device"),
                "numbers below 2^32",
            ));
        }
        let key = major << 32 | minor;
        if let Some((_, volume)) = self.devices.iter().find(|(known, _)| *known == key) {
            return Ok(*volume);
        }
        let volume = self.sink.volume(&format!("{major}:{minor}"))?;
        self.devices.push((key, volume));
        Ok(volume)
    }

    /// The line holds no request.
    #[cold]
    pub(super) fn skip(&mut self, reason: Reason) -> Result<(), Wrong> {
        self.report.skipped.add(reason);
        Ok(())
    }

    /// A record is bad: an error, unless bad records may be passed over.
    #[cold]
    pub(super) fn bad(&mut self, wrong: Wrong, at: u64, skip: u64) -> Result<(), Error> {
        self.drop_contents();
        let is_fatal = matches!(wrong, Wrong::Fatal(_));
        let (what, right) = match wrong {
            Wrong::Error(error) => return Err(error),
            Wrong::Bad(words) | Wrong::Fatal(words) => *words,
        };
        let bad = BadRecord {
            record: self.report.records,
            offset: at,
            what,
            right: right.to_owned(),
        };
        if is_fatal || self.report.bad >= skip {
            self.flush()?;
            return Err(bad.into());
        }
        self.report.bad += 1;
        self.report.first_bad.get_or_insert_with(|| bad.to_string());
        Ok(())
    }

    /// Another file begins in the middle of the input.
    pub(super) fn new_part(&mut self) {
        self.report.parts += 1;
    }

    /// A content of the request that comes next.
    #[inline]
    pub(super) fn content(&mut self, digest: Digest) {
        self.digests.push(digest);
    }

    /// No request comes with the contents that were added since the last one.
    pub(super) fn drop_contents(&mut self) {
        let end = self.waiting.last().map_or(0, |(_, end)| *end);
        self.digests.truncate(end);
    }

    /// Whether a request is of whole blocks.
    pub(super) const fn is_aligned(&self, offset: u64, length: u64) -> bool {
        (offset.wrapping_add(self.shift) | length).is_multiple_of(BLOCK)
    }

    /// Takes a request, with the contents that were added since the last one.
    #[inline]
    pub(super) fn request(&mut self, found: Found) -> Result<(), Wrong> {
        let end = found.offset.checked_add(found.length);
        let last = MAX_END - u64::from(MAX_LENGTH) - self.shift;
        if end.is_none_or(|end| end > last) {
            return Err(bad(
                format!("it ends beyond byte {last}"),
                "an address on a device",
            ));
        }
        if found.length == 0 && found.op != Op::Flush {
            return Err(bad(
                "it has no length",
                "at least one byte, but for flushes",
            ));
        }
        if found.length > u64::from(MAX_LENGTH) && found.op != Op::Trim {
            return Err(bad(
                format!("it is of {} bytes", found.length),
                "at most 1 GiB a request",
            ));
        }
        if found.length > MAX_TRIM {
            return Err(bad(
                format!("it trims {} bytes", found.length),
                "at most 64 TiB a trim",
            ));
        }
        let offset = found.offset + self.shift;
        let most = u64::from(MAX_LENGTH);
        self.report.requests += found.length.div_ceil(most).max(1);
        self.report.unaligned += u64::from(!(offset | found.length).is_multiple_of(BLOCK));
        self.report.backwards += u64::from(found.time_ns < self.last_ns);
        self.last_ns = found.time_ns;
        self.waiting
            .push((Found { offset, ..found }, self.digests.len()));
        if self.waiting.len().max(self.digests.len()) >= TOGETHER {
            self.flush()?;
        }
        Ok(())
    }

    /// Gives away what waits.
    pub(super) fn flush(&mut self) -> Result<(), Error> {
        self.drop_contents();
        self.contents.clear();
        self.sink.contents(&self.digests, &mut self.contents)?;
        self.digests.clear();
        let mut start = 0;
        for (found, end) in self.waiting.drain(..) {
            let contents = &self.contents[start..end];
            start = end;
            let mut done = 0;
            // Whole disks are trimmed at once.
            loop {
                let length = (found.length - done).min(u64::from(MAX_LENGTH));
                self.sink.request(&Request {
                    time_ns: found.time_ns,
                    volume: found.volume,
                    offset: found.offset + done,
                    length: u32::try_from(length).unwrap_or(MAX_LENGTH),
                    op: found.op,
                    contents,
                })?;
                done += length;
                if done >= found.length {
                    break;
                }
            }
        }
        Ok(())
    }

    /// So many requests were lost here.
    pub(super) fn lost(&mut self, requests: u64) -> Result<(), Error> {
        self.flush()?;
        self.report.lost += requests;
        self.sink.lost(requests)
    }
}
