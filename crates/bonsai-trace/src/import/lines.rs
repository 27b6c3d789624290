//! Lines of an input, or records of a fixed size, without copies.

use std::io::Read;

use super::{Wrong, bad};
use crate::Error;

/// No line is longer: 8 digests a block of 1 GiB would be, and nobody writes those.
const LONGEST: usize = 1 << 20;
const READ: usize = 1 << 18;

/// U+FEFF in UTF-8, with which programs for Windows begin a text.
pub(super) const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Cuts an input at line feeds. A carriage return before one belongs to it.
#[derive(Debug)]
pub(super) struct Lines<R> {
    from: R,
    buffer: Vec<u8>,
    /// What of the buffer is not given out yet.
    start: usize,
    end: usize,
    /// Behind the last line feed of the buffer.
    whole: usize,
    /// Bytes given out.
    offset: u64,
    is_over: bool,
    /// The rest of a line that is too long follows.
    is_long: bool,
}

impl<R: Read> Lines<R> {
    pub(super) fn new(from: R) -> Self {
        Self {
            from,
            buffer: Vec::new(),
            start: 0,
            end: 0,
            whole: 0,
            offset: 0,
            is_over: false,
            is_long: false,
        }
    }

    /// Reads enough to see what it is, if there is that much.
    pub(super) fn fill(&mut self) -> Result<(), Error> {
        while self.end < READ && !self.is_over {
            self.more()?;
        }
        Ok(())
    }

    /// Reads something, if there is anything: enough for a byte order mark.
    pub(super) fn begin(&mut self) -> Result<(), Error> {
        while self.end < BYTE_ORDER_MARK.len() && !self.is_over {
            self.more()?;
        }
        Ok(())
    }

    /// Passes over a byte order mark at the start.
    pub(super) fn skip_mark(&mut self) {
        if self.offset == 0 && self.beginning().starts_with(BYTE_ORDER_MARK) {
            self.start += BYTE_ORDER_MARK.len();
            self.offset += BYTE_ORDER_MARK.len() as u64;
        }
    }

    /// The next record of `size` bytes; at the end of the input it may be shorter, and `None` behind that.
    pub(super) fn record(&mut self, size: usize) -> Result<Option<&[u8]>, Error> {
        while self.end - self.start < size && !self.is_over {
            self.more()?;
        }
        let size = size.min(self.end - self.start);
        if size == 0 {
            return Ok(None);
        }
        let record = self.start..self.start + size;
        self.start += size;
        self.offset += size as u64;
        Ok(Some(&self.buffer[record]))
    }

    /// Reads what there is: of what is still being written nothing waits here.
    fn more(&mut self) -> Result<(), Error> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.whole = self.whole.saturating_sub(self.start);
        (self.start, self.end) = (0, self.end - self.start);
        if self.buffer.len() < self.end + READ {
            self.buffer.resize(self.end + READ, 0);
        }
        let most = self.end + READ;
        loop {
            match self.from.read(&mut self.buffer[self.end..most]) {
                Ok(0) => self.is_over = true,
                Ok(n) => {
                    let new = &self.buffer[self.end..self.end + n];
                    if let Some(last) = memchr::memrchr(b'\n', new) {
                        self.whole = self.end + last + 1;
                    }
                    self.end += n;
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            }
            return Ok(());
        }
    }

    /// The next line, or that it is too long; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<Result<&[u8], Wrong>>, Error> {
        let mut seen = 0;
        loop {
            let rest = &self.buffer[self.start + seen..self.end];
            let found = memchr::memchr(b'\n', rest);
            let length = seen + found.unwrap_or(rest.len());
            if found.is_none() && !self.is_over && length <= LONGEST {
                seen = length;
                self.more()?;
                continue;
            }
            if found.is_none() && length == 0 {
                return Ok(None);
            }
            let line = self.start..self.start + length;
            let taken = length + usize::from(found.is_some());
            self.start += taken;
            self.offset += taken as u64;
            let was_long = std::mem::replace(&mut self.is_long, found.is_none() && !self.is_over);
            if was_long {
                seen = 0;
                continue;
            }
            if self.is_long || length > LONGEST {
                return Ok(Some(Err(bad(
                    "the line is longer than 1 MiB",
                    "text, a record a line",
                ))));
            }
            let line = &self.buffer[line];
            return Ok(Some(Ok(line.strip_suffix(b"\r").unwrap_or(line))));
        }
    }
}

impl<R> Lines<R> {
    /// What there is so far.
    pub(super) fn beginning(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Whether the next line is there already.
    pub(super) const fn is_ready(&self) -> bool {
        self.start < self.whole
    }

    /// Where the next line begins, bytes.
    pub(super) const fn offset(&self) -> u64 {
        self.offset
    }
}
