//! What changes an image.

use std::io::{self, IoSlice};
use std::sync::atomic::Ordering;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{Errno, ReadWriteFlags, pwritev2};

use super::Image;

impl Image {
    /// Writes; with `durable`, to the disk and not only to the page cache.
    ///
    /// # Errors
    /// The system's. An image that has shrunk is written no more, as that would make
    /// it as long as it was, with a hole for what has gone.
    pub fn write(&self, bytes: &[u8], offset: u64, durable: bool) -> io::Result<()> {
        self.refuse_shrunk(offset + bytes.len() as u64)?;
        let _change = self.begin_change()?;
        let plain = || self.write_all(bytes, offset, ReadWriteFlags::empty());
        match self.sync_writes {
            true => self.durability.counting(plain)?,
            false => plain()?,
        }
        if !durable {
            return Ok(());
        }
        // Once more, and to the disk: an error of this call is one of the disk, maybe of earlier writes, and not of taking the
        // bytes. One synchronous write alone would fail with the same ENOSPC or EDQUOT for both, so that each full file system would
        // count as a loss, and the image would share nothing until it is opened anew. The second write copies into pages
        // that are there: 2 to 4 % of the wait for the disk, at 4 and 128 KiB. fdatasync(2) would wait for all that is dirty of
        // the image.
        let sync = || self.write_all(bytes, offset, ReadWriteFlags::DSYNC);
        let done = self.durability.synchronously(sync);
        if done.is_err() {
            self.drop_lost();
        }
        done
    }

    fn write_all(&self, bytes: &[u8], offset: u64, flags: ReadWriteFlags) -> io::Result<()> {
        let (mut bytes, mut offset) = (bytes, offset);
        while !bytes.is_empty() {
            match pwritev2(&self.file, &[IoSlice::new(bytes)], offset, flags) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    bytes = bytes.get(written..).unwrap_or_default();
                    offset += written as u64;
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Gives blocks back to the file system, where it takes them: it is a hint.
    ///
    /// # Errors
    /// The system's.
    pub fn trim(&self, offset: u64, length: u64) -> io::Result<()> {
        // What is less than a sector stays.
        let (start, end) = self.sectors(offset, offset + length);
        if start >= end {
            return Ok(());
        }
        let _change = self.begin_change()?;
        match self.punch(start, end - start) {
            Err(error) if is_unsupported(&error) => Ok(()),
            other => other,
        }
    }

    /// Makes zeroes. `keep` says that they are to keep their place on the disk, `quick` that it
    /// is to fail where they would have to be written.
    ///
    /// # Errors
    /// The system's; [`io::ErrorKind::Unsupported`] where it would not be quick.
    pub fn zero(&self, offset: u64, length: u64, keep: bool, quick: bool) -> io::Result<()> {
        let end = offset + length;
        self.refuse_shrunk(end)?;
        let _change = self.begin_change()?;
        let (first, last) = self.sectors(offset, end);
        if first >= last {
            return self.write_zeroes(offset, end);
        }
        match self.zero_sectors((first, last), keep) {
            Err(error) if is_unsupported(&error) && quick => {
                return Err(io::ErrorKind::Unsupported.into());
            }
            Err(error) if is_unsupported(&error) => return self.write_zeroes(offset, end),
            done => done?,
        }
        self.write_zeroes(offset, first)?;
        self.write_zeroes(last, end)
    }

    fn zero_sectors(&self, (start, end): (u64, u64), keep: bool) -> io::Result<()> {
        let range = || {
            let flags = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
            Ok(fallocate(&self.file, flags, start, end - start)?)
        };
        if keep {
            return range();
        }
        match self.punch(start, end - start) {
            Err(error) if is_unsupported(&error) => range(),
            done => done,
        }
    }

    /// The whole sectors of a part.
    fn sectors(&self, start: u64, end: u64) -> (u64, u64) {
        let first = start.next_multiple_of(self.sector);
        (first, end - end % self.sector)
    }

    fn punch(&self, offset: u64, length: u64) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(&self.file, flags, offset, length)?)
    }

    fn write_zeroes(&self, start: u64, end: u64) -> io::Result<()> {
        let length = end.saturating_sub(start).min(1 << 20);
        let zeroes = vec![0; usize::try_from(length).unwrap_or(0)];
        let mut at = start;
        while at < end {
            let piece = zeroes
                .len()
                .min(usize::try_from(end - at).unwrap_or(usize::MAX));
            self.write(zeroes.get(..piece).unwrap_or_default(), at, false)?;
            at += piece as u64;
        }
        Ok(())
    }

    /// Nothing of a change reaches the disk before this.
    fn begin_change(&self) -> io::Result<Change<'_>> {
        self.durability.begin_change();
        let change = Change(self);
        self.voucher.begin_change()?;
        Ok(change)
    }

    /// Where a file has shrunk, nothing is written behind its end.
    fn refuse_shrunk(&self, end: u64) -> io::Result<()> {
        if !self.device && self.file.metadata()?.len() < end {
            self.shrunk.store(true, Ordering::Relaxed);
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }
}

/// A change under way.
struct Change<'a>(&'a Image);

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.0.durability.end_change();
    }
}

fn is_unsupported(error: &io::Error) -> bool {
    let number = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(number, Some(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NODEV))
        || error.kind() == io::ErrorKind::Unsupported
}
