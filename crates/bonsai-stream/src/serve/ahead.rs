//! Bytes of a stream's files: at once where they are in memory, and read ahead by others where they are not.

use std::fs::File;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use crate::at_once::read_at_once;

use super::readers::{Chunk, Job, Readers};
use crate::clock::now;
use crate::folder::Stamp;

/// Bytes that are read ahead at a time; and how many of those a stream has at most, with another on its way: two for
/// pictures and two for sound, which may be elsewhere in the file.
const CHUNK: usize = 256 << 10;
const KEPT: usize = 4;

#[derive(Debug)]
pub(super) struct Ahead {
    readers: Rc<Readers>,
    session: usize,
    /// Chunks that were not used for longest are first.
    chunks: Vec<Chunk>,
    /// A chunk on its way.
    asked: Option<Asked>,
    failed: Option<io::Error>,
    /// True where the file system says of no read that it would wait.
    is_unsure: bool,
    /// Lateness of the stream by its disk, nanoseconds.
    lost_ns: u64,
}

#[derive(Debug)]
struct Asked {
    ticket: u64,
    id: (u64, u64),
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
    fn has(&self, id: (u64, u64), offset: u64, len: usize) -> bool {
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
    let end = |from: u64, len: usize| from.saturating_add(u64::try_from(len).unwrap_or(u64::MAX));
    from <= offset && end(offset, len) <= end(from, bytes)
}

impl Ahead {
    pub(super) fn new(readers: Rc<Readers>, session: usize) -> Self {
        Self {
            readers,
            session,
            chunks: Vec::new(),
            asked: None,
            failed: None,
            is_unsure: false,
            lost_ns: 0,
        }
    }

    /// Fills `bytes` with those of a file, and never waits for a disk.
    ///
    /// # Errors
    /// `WouldBlock` where they are being read: [`Ahead::came`] has them later. Any other: they cannot be had.
    pub(super) fn read(
        &mut self,
        (file, stamp): (&Arc<File>, &Stamp),
        bytes: &mut [u8],
        offset: u64,
    ) -> io::Result<()> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let id = stamp.file;
        let done = self.kept((file, id), bytes, offset)?;
        let bytes = &mut bytes[done..];
        let offset = offset + u64::try_from(done).unwrap_or(0);
        let len = bytes.len();
        if len == 0 || (!self.is_unsure && self.at_once(file, bytes, offset)?) {
            return Ok(());
        }
        match &mut self.asked {
            Some(asked) if asked.has(id, offset, len) => {
                let since = asked.awaited.map_or_else(now, |of| of.since);
                asked.awaited = Some(Awaited { offset, len, since });
            }
            _ => {
                let most = match self.readers.has_room() {
                    true => len.max(CHUNK),
                    false => len,
                };
                let before = self.asked.take().and_then(|of| of.awaited);
                let since = before.map_or_else(now, |of| of.since);
                let awaited = Some(Awaited { offset, len, since });
                self.ask((file, id), offset, most, awaited)?;
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Takes bytes from chunks, as many as there are from the first on, and has the next read.
    fn kept(
        &mut self,
        (file, id): (&Arc<File>, (u64, u64)),
        bytes: &mut [u8],
        offset: u64,
    ) -> io::Result<usize> {
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + u64::try_from(done).unwrap_or(0);
            let has = |of: &Chunk| of.id == id && (of.covers(at, 1) || of.ends_before(at));
            let Some(index) = self.chunks.iter().position(has) else {
                return Ok(done);
            };
            // Chunks that were not used for longest are first.
            let chunk = self.chunks.remove(index);
            let from = usize::try_from(at - chunk.offset).unwrap_or(usize::MAX);
            let part = chunk.bytes.get(from..).unwrap_or_default();
            let part = &part[..part.len().min(bytes.len() - done)];
            bytes[done..done + part.len()].copy_from_slice(part);
            done += part.len();
            let is_over = part.is_empty();
            let is_far = from + part.len() > chunk.bytes.len() / 2;
            let goes_on = !chunk.is_end && chunk.error.is_none();
            let next = chunk.offset + u64::try_from(chunk.bytes.len()).unwrap_or(0);
            self.chunks.push(chunk);
            if is_over {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let is_there = self
                .chunks
                .iter()
                .any(|of| of.id == id && of.covers(next, 1));
            let may = self.asked.is_none() && self.readers.has_room();
            if is_far && goes_on && may && !is_there {
                self.ask((file, id), next, CHUNK, None)?;
            }
        }
        Ok(done)
    }

    /// True where all bytes were in memory.
    fn at_once(&mut self, file: &File, bytes: &mut [u8], offset: u64) -> io::Result<bool> {
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + u64::try_from(done).unwrap_or(0);
            match read_at_once(file, &mut bytes[done..], at) {
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

    fn ask(
        &mut self,
        (file, id): (&Arc<File>, (u64, u64)),
        offset: u64,
        len: usize,
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
        let most = if self.readers.has_room() { KEPT } else { 1 };
        while self.chunks.len() >= most {
            self.chunks.remove(0);
        }
        self.chunks.push(chunk);
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
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn what_a_disk_has_cost_is_not_charged_to_the_server() {
        let mut ahead = Ahead::new(Rc::new(Readers::new().expect("a descriptor")), 0);
        assert_eq!(ahead.without_disk(7), 7);
        ahead.lost_ns = 100;
        // Late by the disk and by the server; then it catches up, and is late again by the server alone.
        let late = [130, 90, 40, 10, 0, 60].map(|late| ahead.without_disk(late));
        assert_eq!(late, [30, 0, 0, 0, 0, 60]);
    }

    #[test]
    fn bytes_come_in_order_from_memory_and_from_readers() {
        let readers = Rc::new(Readers::new().expect("a descriptor"));
        let mut ahead = Ahead::new(Rc::clone(&readers), 5);
        // As of a file system that tells of no read that it would wait.
        ahead.is_unsure = true;
        let file = tempfile::tempfile().expect("a file");
        let all: Vec<u8> = (0..=250_u8).cycle().take(CHUNK * 3 + 10).collect();
        std::os::unix::fs::FileExt::write_all_at(&file, &all, 0).expect("written");
        let stamp = Stamp::of(&file).expect("a stamp");
        let file = Arc::new(file);
        let (mut at, mut bytes) = (0, vec![0; 1000]);
        let begin = Instant::now();
        while at < all.len() {
            let len = bytes.len().min(all.len() - at);
            match ahead.read((&file, &stamp), &mut bytes[..len], at as u64) {
                Ok(()) => {
                    assert_eq!(bytes[..len], all[at..at + len]);
                    at += len;
                }
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                }
            }
            for done in readers.take() {
                assert_eq!(done.session, 5);
                ahead.came(done.ticket, done.chunk);
            }
            assert!(ahead.chunks.len() <= KEPT);
            assert!(begin.elapsed() < Duration::from_secs(30), "{at}");
        }
        // A chunk that was read ahead is not read again.
        assert!((5..7).contains(&readers.ticket()), "it was asked for once");
        assert!(ahead.asked.is_none());
        // Behind its end there is nothing.
        let error = loop {
            match ahead.read((&file, &stamp), &mut bytes, at as u64) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    for done in readers.take() {
                        ahead.came(done.ticket, done.chunk);
                    }
                }
                other => break other.expect_err("nothing"),
            }
            assert!(begin.elapsed() < Duration::from_secs(30));
        };
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        ahead.clear();
        assert!(ahead.chunks.is_empty());
    }
}
