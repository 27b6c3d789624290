//! Reading ahead, where the map says that it is worth it.
//!
//! The kernel reads ahead in the image that is asked, whatever the map knows: blocks whose duplicates are resident
//! come from the disk all the same, and are in memory twice. Of four Debian guests, that were 2.3 GB of
//! reads instead of 0.9. So it is told to read what is asked for alone, and who reads a stretch of an image
//! has the next part fetched from where it will be read: from leaders, if it has any.
//!
//! # Limits
//! Up to four streams of an image are followed. Of a stream nothing is fetched before it has got [`LEAST`] bytes, and
//! then no more than it has got, nor than [`MOST`].

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use bonsai_dedup::drive::{Source, Volume};

use super::{BLOCK, Member};

/// Two reads of a guest that reads ahead by itself (128 KiB).
const LEAST: u64 = 256 << 10;
/// Four of them; more than a millisecond of a disk that gives 400 MB/s.
const MOST: u64 = 512 << 10;
/// Places that a part may come from; each costs a system call.
const MOST_RUNS: usize = 32;

/// Reads that go on where the last one ended.
#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// Where it will go on.
    next: u64,
    /// What it has got.
    bytes: u64,
    /// Where what was fetched ends.
    until: u64,
}

#[derive(Debug, Default)]
struct Streams {
    /// The one that was read last comes first.
    known: [Stream; 4],
    /// To be fetched.
    due: Option<Range<u64>>,
}

/// What is read one after the other.
#[derive(Debug, Default)]
pub(super) struct Ahead(Mutex<Streams>);

impl Ahead {
    /// Hears of a read; says what is to be fetched now. Where another thread looks at it just now the read goes
    /// unheard, as it is not worth waiting for.
    fn hear(&self, offset: u64, length: u64) -> Option<Range<u64>> {
        self.0.try_lock().ok()?.hear(offset, length)
    }

    fn put(&self, due: Range<u64>) {
        let mut streams = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        streams.due = Some(due);
    }

    fn take(&self) -> Option<Range<u64>> {
        let mut streams = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        streams.due.take()
    }
}

impl Streams {
    fn hear(&mut self, offset: u64, length: u64) -> Option<Range<u64>> {
        let found = self.known.iter().position(|stream| stream.next == offset);
        // A new one takes the place of the one that was not read for longest.
        let place = found.unwrap_or(self.known.len() - 1);
        let recent = self.known.get_mut(..=place)?;
        recent.rotate_right(1);
        let stream = recent.first_mut()?;
        if found.is_none() {
            *stream = Stream {
                until: offset + length,
                bytes: 0,
                next: offset,
            };
        }
        stream.next += length;
        stream.bytes += length;
        let wanted = stream.bytes.min(MOST);
        let start = stream.until.max(stream.next);
        if stream.bytes < LEAST || start > stream.next + wanted / 2 {
            return None;
        }
        stream.until = stream.next + wanted;
        Some(start..stream.until)
    }
}

impl Member {
    /// Hears of a read, before it is done; true where [`Self::fetch_ahead`] has something to do, which may wait
    /// for the disk.
    pub(crate) fn hear(&self, offset: u64, length: usize) -> bool {
        // Else the kernel does it.
        if !self.image.is_read_exactly() {
            return false;
        }
        let Some(due) = self.ahead.hear(offset, length as u64) else {
            return false;
        };
        // Of an image that is in memory, no worker has to be asked.
        let bytes = due.end.min(self.image.size()).saturating_sub(due.start);
        let pages = self.image.resident_pages(due.start, bytes);
        if pages.is_some_and(|pages| pages >= bytes / BLOCK) {
            return false;
        }
        self.ahead.put(due);
        true
    }

    /// Fetches what will be read next from where it will be read.
    pub(super) fn fetch_ahead(&self) {
        let Some(due) = self.ahead.take() else {
            return;
        };
        let blocks = due.start / BLOCK..due.end.min(self.image.size()) / BLOCK;
        for (volume, first, count) in self.runs(blocks) {
            if let Some(known) = self.sharing.state.known(volume) {
                // It is a hint: who reads it will see what is wrong.
                let _ = known.image.fetch(first * BLOCK, count * BLOCK);
            }
        }
    }

    /// Where blocks will be read, as volumes, their first blocks, and how many.
    fn runs(&self, blocks: Range<u64>) -> Vec<(Volume, u64, u64)> {
        let own = self.volume();
        let mut runs: Vec<(Volume, u64, u64)> = Vec::new();
        let map = self.sharing.state.map();
        for block in blocks {
            let (volume, at) = match map.peek(own, block) {
                Source::Zero => continue,
                Source::Leader { volume, block } => (volume, block),
                Source::Itself(_) => (own, block),
            };
            if let Some((of, first, count)) = runs.last_mut()
                && *of == volume
                && *first + *count == at
            {
                *count += 1;
            } else if runs.len() < MOST_RUNS {
                runs.push((volume, at, 1));
            } else {
                break;
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: u64 = 128 << 10;

    #[test]
    fn two_streams_are_fetched_and_jumps_are_not() {
        let mut streams = Streams::default();
        let far = 1 << 30;
        let mut fetched = [0; 2];
        for at in 0..64 {
            for (number, start) in [(0, READ), (1, far)] {
                let offset = start + at * READ;
                if let Some(due) = streams.hear(offset, READ) {
                    assert!(due.start >= offset + READ && due.end <= offset + READ + MOST);
                    fetched[number] += due.end - due.start;
                }
            }
            // Jumps between them.
            assert_eq!(streams.hear((100 + at * 7) << 32, READ), None);
        }
        // All but the start, and as much more as is ahead.
        for fetched in fetched {
            assert!(
                (62 * READ..=62 * READ + MOST).contains(&fetched),
                "{fetched}"
            );
        }
    }

    #[test]
    fn small_reads_are_fetched_by_many_at_once() {
        let mut streams = Streams::default();
        let calls = (1..=4096)
            .filter(|at| streams.hear(at * BLOCK, BLOCK).is_some())
            .count();
        // 16 MiB, a quarter of one at a time.
        assert!((32..=70).contains(&calls), "{calls}");
    }
}
