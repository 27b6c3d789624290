//! Bytes of a stream's files, which the loop never waits for: what is in memory is read at once, what is not is read
//! by other threads before it is due.
//!
//! ```text
//!   file in memory by its kind (tmpfs) ───────────────> a plain read
//!   file system that tells whether a read would wait ─> a read that does not wait
//!        of what is due in two seconds, a byte here and there: where one is not in memory, the kernel is told
//!        to read from there on, by a thread
//!   others (FUSE, NFS, overlay) ──────────────────────> chunks of what is due in two seconds, read by a thread
//!   what is due and not there ────────────────────────> the stream goes on when a thread has read it
//! ```

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::rc::Rc;
use std::sync::Arc;

use crate::at_once::{is_cached, read_at_once};

use super::film::ClipFile;
use super::pool::FileId;
use super::readers::{Chunk, Job, Readers};
use crate::clock::now;
use crate::folder::Stamp;

/// Bytes that are read at a time by another thread.
const CHUNK: usize = 256 << 10;

/// Time of a stream that is looked ahead, seconds; the least bytes of it, and the most.
const AHEAD_S: u64 = 2;
const LEAST: u64 = 256 << 10;
const MOST: u64 = 8 << 20;

/// Chunks that a stream keeps besides those of that time: for pictures and sound that are far apart in a file, the
/// one that is used and the one before it.
const BESIDE: u64 = 4;

/// Bytes from one that is looked for in memory to the next: the kernel reads as many at a time by itself.
const STEP: u64 = 128 << 10;

/// Places of files up to which it was looked: of pictures and sound, and of another quality of them.
const PLACES: usize = 4;

#[derive(Debug)]
pub(super) struct Ahead {
    readers: Rc<Readers>,
    session: usize,
    window: u64,
    /// Chunks that were not used for longest are first.
    chunks: Vec<Chunk>,
    /// A chunk on its way.
    asked: Option<Asked>,
    failed: Option<io::Error>,
    /// True where the file system says of no read that it would wait.
    is_unsure: bool,
    places: Vec<Place>,
    /// Another holds it while the kernel is being told to read.
    warming: Arc<()>,
    /// Lateness of the stream by its disk, nanoseconds.
    lost_ns: u64,
}

/// Where a file was read last, and up to where its bytes were in memory or are being read.
#[derive(Clone, Copy, Debug)]
struct Place {
    id: FileId,
    at: u64,
    until: u64,
}

#[derive(Debug)]
struct Asked {
    ticket: u64,
    id: FileId,
    offset: u64,
    len: usize,
    awaited: Option<Awaited>,
}

/// Bytes that are waited for, and since when.
#[derive(Clone, Copy, Debug)]
struct Awaited {
    offset: u64,
    len: usize,
    since: u64,
}

impl Asked {
    fn has(&self, id: FileId, offset: u64, len: usize) -> bool {
        self.id == id && covers((self.offset, self.len), offset, len)
    }
}

impl Chunk {
    fn covers(&self, offset: u64, len: usize) -> bool {
        covers((self.offset, self.bytes.len()), offset, len)
    }

    /// True where the file ends with it, before that byte.
    fn ends_before(&self, offset: u64) -> bool {
        self.is_end && offset >= self.offset
    }
}

fn covers((from, bytes): (u64, usize), offset: u64, len: usize) -> bool {
    from <= offset && behind(offset, len) <= behind(from, bytes)
}

fn behind(offset: u64, len: usize) -> u64 {
    offset.saturating_add(u64::try_from(len).unwrap_or(u64::MAX))
}

impl Ahead {
    pub(super) fn new(readers: Rc<Readers>, session: usize) -> Self {
        Self {
            readers,
            session,
            window: LEAST,
            chunks: Vec::new(),
            asked: None,
            failed: None,
            is_unsure: false,
            places: Vec::new(),
            warming: Arc::default(),
            lost_ns: 0,
        }
    }

    /// The stream needs that many bytes a second.
    pub(super) fn begin(&mut self, bytes_per_s: u64) {
        self.window = bytes_per_s.saturating_mul(AHEAD_S).clamp(LEAST, MOST);
    }

    /// Fills `bytes` with those of a file, and never waits for a disk.
    ///
    /// # Errors
    /// `WouldBlock` where they are being read: [`Ahead::came`] has them later. Any other: they cannot be had.
    pub(super) fn read(&mut self, of: &ClipFile, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        if of.is_in_memory {
            return of.file.read_exact_at(bytes, offset);
        }
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let (file, id) = (&of.file, of.stamp.file);
        let done = self.kept((file, id), bytes, offset)?;
        let bytes = &mut bytes[done..];
        let offset = behind(offset, done);
        let len = bytes.len();
        let is_read = len == 0 || (!self.is_unsure && self.at_once(file, bytes, offset)?);
        if is_read && !self.is_unsure {
            if len > 0 {
                // A chunk that was waited for is in memory now.
                self.chunks = Vec::new();
            }
            self.look((file, &of.stamp), behind(offset, len));
        }
        if is_read {
            return Ok(());
        }
        match &mut self.asked {
            Some(asked) if asked.has(id, offset, len) => {
                let since = asked.awaited.map_or_else(now, |of| of.since);
                asked.awaited = Some(Awaited { offset, len, since });
            }
            _ => {
                let before = self.asked.take().and_then(|of| of.awaited);
                let since = before.map_or_else(now, |of| of.since);
                let awaited = Some(Awaited { offset, len, since });
                let most = (len, len.max(CHUNK));
                if self.ask((file, id), offset, most, awaited).is_err() {
                    // No thread can be started: all wait for its disk.
                    return file.read_exact_at(bytes, offset);
                }
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// True while the stream waits for bytes.
    pub(super) fn is_waiting(&self) -> bool {
        self.asked.as_ref().is_some_and(|of| of.awaited.is_some())
    }

    /// Takes bytes from chunks, as many as there are from the first on, and has the next read.
    fn kept(
        &mut self,
        (file, id): (&Arc<File>, FileId),
        bytes: &mut [u8],
        offset: u64,
    ) -> io::Result<usize> {
        let mut done = 0;
        while done < bytes.len() {
            let at = behind(offset, done);
            let has = |of: &Chunk| of.id == id && (of.covers(at, 1) || of.ends_before(at));
            let Some(index) = self.chunks.iter().position(has) else {
                break;
            };
            // Chunks that were not used for longest are first.
            let chunk = self.chunks.remove(index);
            let from = usize::try_from(at - chunk.offset).unwrap_or(usize::MAX);
            let part = chunk.bytes.get(from..).unwrap_or_default();
            let part = &part[..part.len().min(bytes.len() - done)];
            bytes[done..done + part.len()].copy_from_slice(part);
            done += part.len();
            let is_over = part.is_empty();
            self.chunks.push(chunk);
            if is_over {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        if done > 0 && self.is_unsure {
            // Where there is no thread, it is read when it is due.
            let _ = self.read_on((file, id), behind(offset, done - 1));
        }
        Ok(done)
    }

    /// Has the chunk read that follows those behind a byte, where it is due soon.
    fn read_on(&mut self, of: (&Arc<File>, FileId), from: u64) -> io::Result<()> {
        if self.asked.is_some() || !self.readers.has_room() {
            return Ok(());
        }
        let mut next = from;
        while let Some(chunk) = self
            .chunks
            .iter()
            .find(|chunk| chunk.id == of.1 && chunk.covers(next, 1))
        {
            if chunk.is_end || chunk.error.is_some() {
                return Ok(());
            }
            next = behind(chunk.offset, chunk.bytes.len());
            if next - from >= self.window {
                return Ok(());
            }
        }
        self.ask(of, next, (0, CHUNK), None)
    }

    /// True where all bytes were in memory.
    fn at_once(&mut self, file: &File, bytes: &mut [u8], offset: u64) -> io::Result<bool> {
        let mut done = 0;
        while done < bytes.len() {
            match read_at_once(file, &mut bytes[done..], behind(offset, done)) {
                Ok(Some(0)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(Some(read)) => done += read,
                Ok(None) => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                    self.is_unsure = true;
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    fn is_warming(&self) -> bool {
        Arc::strong_count(&self.warming) > 1
    }

    /// Looks whether what is due soon is in memory, and has the kernel read it where it is not.
    fn look(&mut self, (file, stamp): (&Arc<File>, &Stamp), end: u64) {
        let (window, id) = (self.window, stamp.file);
        let is_here = |of: &Place| {
            let from = of.at.saturating_sub(window);
            of.id == id && (from..=of.until.saturating_add(window)).contains(&end)
        };
        let mut place = match self.places.iter().position(is_here) {
            Some(index) => self.places.remove(index),
            None => Place {
                id,
                at: end,
                until: end,
            },
        };
        place.at = place.at.max(end);
        place.until = place.until.max(end);
        let target = end.saturating_add(window).min(stamp.bytes);
        while place.until < target && !self.is_warming() {
            if is_in_memory(file, place.until) {
                place.until += STEP;
                continue;
            }
            let len = (target + window / 2).min(stamp.bytes) - place.until;
            let token = Arc::clone(&self.warming);
            self.readers.warm((file, id), (place.until, len), token);
            place.until += len;
        }
        if self.places.len() >= PLACES {
            self.places.remove(0);
        }
        self.places.push(place);
    }

    fn ask(
        &mut self,
        (file, id): (&Arc<File>, FileId),
        offset: u64,
        (least, len): (usize, usize),
        awaited: Option<Awaited>,
    ) -> io::Result<()> {
        let ticket = self.readers.ticket();
        self.readers.ask(Job {
            session: self.session,
            ticket,
            file: Arc::clone(file),
            id,
            offset,
            len,
            least,
        })?;
        self.asked = Some(Asked {
            ticket,
            id,
            offset,
            len,
            awaited,
        });
        Ok(())
    }

    /// Something was read; whether the stream waits for it.
    pub(super) fn came(&mut self, ticket: u64, mut chunk: Chunk) -> bool {
        let Some(asked) = self.asked.take_if(|asked| asked.ticket == ticket) else {
            return false;
        };
        if let Some(awaited) = asked.awaited {
            let waited = now().saturating_sub(awaited.since);
            self.lost_ns = self.lost_ns.saturating_add(waited);
            // A chunk that is not waited for is asked for again when it is.
            if !covers(
                (chunk.offset, chunk.bytes.len()),
                awaited.offset,
                awaited.len,
            ) {
                self.failed = chunk.error.take();
            }
        }
        // Above the bound of all streams there is one chunk for each.
        let most = match self.readers.has_room() {
            true => usize::try_from(self.window / CHUNK as u64 + BESIDE).unwrap_or(1),
            false => 1,
        };
        while self.chunks.len() >= most {
            self.chunks.remove(0);
        }
        if !chunk.bytes.is_empty() || chunk.is_end {
            self.chunks.push(chunk);
        }
        asked.awaited.is_some()
    }

    /// Lateness of a sample without that of its disk, which says nothing of the server.
    pub(super) fn without_disk(&mut self, late_ns: u64) -> u64 {
        self.lost_ns = self.lost_ns.min(late_ns);
        late_ns - self.lost_ns
    }

    /// Nothing is kept for a stream that does not play.
    pub(super) fn clear(&mut self) {
        (self.chunks, self.asked) = (Vec::new(), None);
        (self.failed, self.lost_ns) = (None, 0);
        self.places = Vec::new();
    }
}

/// True where a byte of a file is in memory, or cannot be read, which is told when it is due.
fn is_in_memory(file: &File, at: u64) -> bool {
    is_cached(file, at, 1).unwrap_or_else(|| !matches!(read_at_once(file, &mut [0], at), Ok(None)))
}

#[cfg(test)]
mod tests;
