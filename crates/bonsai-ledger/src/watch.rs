//! What of a segment changes all the time, for somebody who looks at many services often:
//! the counters of threads, what they wait for, and the lines of limits.
//!
//! A [`Ledger`] maps all of the segment and keeps a descriptor; a thousand of them would be a
//! thousand descriptors, and most of what is mapped would never be looked at, but count as
//! memory in use, since the kernel maps what is around a page, too. So this maps three pieces,
//! to be read only, and keeps nothing else.

use crate::identity::Owner;
use crate::layout::{
    BUCKETS, BucketLine, Count, DELAYS, DelayRow, DelayShard, Header, SHARDS, Segment, THREADS,
    ThreadPage,
};
use crate::mapping::{Ledger, LedgerError};
use crate::sync::Ordering;
use bonsai_bucket::Curve;
use bonsai_calls::{CALLS, CallId};
use rustix::fs::{Mode, OFlags, Stat};
use rustix::mm::{MapFlags, ProtFlags};
use std::marker::PhantomData;
use std::mem::{offset_of, size_of};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Pages of threads are mapped so many at a time.
const AT_A_TIME: usize = 16;

/// The pieces of a running service's segment that are looked at often.
#[derive(Debug)]
pub struct Watch {
    head: Piece<Header>,
    lines: Piece<BucketLine>,
    /// That of threads without a page of their own, and those of threads.
    pages: Piece<ThreadPage>,
    path: PathBuf,
    /// How that is opened.
    more: OFlags,
    identity: (u64, u64),
}

/// A row of `len` values that is mapped to be read.
#[derive(Debug)]
struct Piece<T> {
    base: *mut core::ffi::c_void,
    len: usize,
    of: PhantomData<T>,
}

// SAFETY: what is behind `base` consists of atomics only, is read only, and stays mapped as
// long as the value lives.
unsafe impl<T: Sync> Send for Piece<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Piece<T> {}

impl<T> Piece<T> {
    fn map(path: &Path, fd: &OwnedFd, at: usize, len: usize) -> Result<Self, LedgerError> {
        // SAFETY: a new mapping at an address of the kernel's choice, of a part of a file of
        // which the length was checked.
        let base = unsafe {
            let (prot, flags) = (ProtFlags::READ, MapFlags::SHARED);
            let bytes = len * size_of::<T>();
            rustix::mm::mmap(core::ptr::null_mut(), bytes, prot, flags, fd, at as u64)
        };
        let base = base.map_err(|source| LedgerError::File {
            path: path.into(),
            what: "map",
            source,
        })?;
        // SAFETY: advice on the mapping just made: only the pages that are looked at are to
        // count as memory in use, not those around them. Nothing depends on its being taken.
        let _ = unsafe {
            let bytes = len * size_of::<T>();
            rustix::mm::madvise(base, bytes, rustix::mm::Advice::Random)
        };
        Ok(Self {
            base,
            len,
            of: PhantomData,
        })
    }

    fn values(&self) -> &[T] {
        // SAFETY: mapped with this length, page-aligned; all fields are atomics, valid for any
        // bits, and nothing here stores to them.
        unsafe { core::slice::from_raw_parts(self.base.cast::<T>(), self.len) }
    }
}

impl<T> Drop for Piece<T> {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length; `self` is the only handle.
        let _ = unsafe { rustix::mm::munmap(self.base, self.len * size_of::<T>()) };
    }
}

fn open(path: &Path, more: OFlags) -> Result<(OwnedFd, Stat), LedgerError> {
    let failed = |source| LedgerError::File {
        path: path.into(),
        what: "open",
        source,
    };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | more;
    let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(failed)?;
    let stat = rustix::fs::fstat(&fd).map_err(failed)?;
    Ok((fd, stat))
}

const _: () = {
    assert!(offset_of!(DelayRow, sum_ns) == 8 * DELAYS);
    assert!(offset_of!(Segment, lines).is_multiple_of(4096));
    assert!(offset_of!(Segment, crowd).is_multiple_of(4096));
    assert!(offset_of!(Segment, threads) == offset_of!(Segment, crowd) + size_of::<ThreadPage>());
};

impl Watch {
    /// Opens the segment of a running service of the calling user.
    ///
    /// # Errors
    /// As [`Ledger::open`].
    pub fn open(path: &Path) -> Result<Self, LedgerError> {
        Self::open_with(path, OFlags::NOFOLLOW)
    }

    /// Opens one that a process holds as descriptor `number`; see [`Ledger::open_held`].
    ///
    /// # Errors
    /// As there.
    pub fn open_held(pid: u32, number: i32) -> Result<Self, LedgerError> {
        let path = PathBuf::from(format!("/proc/{pid}/fd/{number}"));
        Self::open_with(&path, OFlags::empty())
    }

    fn open_with(path: &Path, more: OFlags) -> Result<Self, LedgerError> {
        let (fd, stat) = open(path, more)?;
        Ledger::check_file(path, &fd, &stat)?;
        let head = Piece::<Header>::map(path, &fd, 0, 1)?;
        let high = head.values()[0].high.load(Ordering::Acquire) as usize;
        let threads = (high + 1).next_multiple_of(AT_A_TIME).min(THREADS);
        Ok(Self {
            head,
            lines: Piece::map(path, &fd, offset_of!(Segment, lines), BUCKETS)?,
            pages: Piece::map(path, &fd, offset_of!(Segment, crowd), 1 + threads)?,
            path: path.into(),
            more,
            identity: (stat.st_dev, stat.st_ino),
        })
    }

    /// Opens the same once more, with all pages that are in use by now.
    ///
    /// # Errors
    /// As [`Ledger::open`], also if another one stands there now.
    pub fn again(&self) -> Result<Self, LedgerError> {
        let again = Self::open_with(&self.path, self.more)?;
        if again.identity != self.identity {
            let path = self.path.clone();
            return Err(LedgerError::Foreign { path });
        }
        Ok(again)
    }

    /// Opens all of it, as long as the value lives.
    ///
    /// # Errors
    /// As [`Ledger::open`].
    pub fn ledger(&self) -> Result<Ledger, LedgerError> {
        Ledger::open_with(&self.path, self.more)
    }

    /// Waits imposed on calls so far, by entry of the table of calls: how many, and their sum,
    /// ns; of those that `which` names. They are read from the file: mapped, they would count as
    /// memory in use, and that takes longer than to read a few.
    ///
    /// # Errors
    /// As [`Watch::again`].
    pub fn waits(
        &self,
        which: impl Fn(CallId) -> bool,
        mut each: impl FnMut(CallId, u64, u64),
    ) -> Result<(), LedgerError> {
        let failed = |source| LedgerError::File {
            path: self.path.clone(),
            what: "read",
            source,
        };
        let (fd, stat) = open(&self.path, self.more)?;
        if (stat.st_dev, stat.st_ino) != self.identity {
            let path = self.path.clone();
            return Err(LedgerError::Foreign { path });
        }
        let mut row = [0_u8; size_of::<DelayRow>()];
        for call in (0..CALLS.len()).filter_map(|call| CallId::try_from(call).ok()) {
            if !which(call) {
                continue;
            }
            let (mut count, mut sum_ns) = (0_u64, 0_u64);
            for shard in 0..SHARDS {
                let at = offset_of!(Segment, delays)
                    + shard * size_of::<DelayShard>()
                    + usize::from(call) * size_of::<DelayRow>();
                let got = rustix::io::pread(&fd, &mut row, at as u64).map_err(failed)?;
                let mut words = row[..got].chunks_exact(8).map(|word| {
                    let mut eight = [0; 8];
                    eight.copy_from_slice(word);
                    u64::from_le_bytes(eight)
                });
                count += words.by_ref().take(DELAYS).sum::<u64>();
                sum_ns = words.next().unwrap_or(0).saturating_add(sum_ns);
            }
            each(call, count, sum_ns);
        }
        Ok(())
    }

    fn header(&self) -> &Header {
        &self.head.values()[0]
    }

    /// Where the segment's file is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Device and inode of the file.
    #[must_use]
    pub const fn identity(&self) -> (u64, u64) {
        self.identity
    }

    /// When the service was made, ns of the wall clock since 1970.
    #[must_use]
    pub fn created_ns(&self) -> u64 {
        self.header().created_ns.load(Ordering::Relaxed)
    }

    /// The number of the limits in force.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.header().epoch.0.load(Ordering::Acquire)
    }

    /// Pages in use, that of threads without one of their own among them; `None` if there are
    /// more than are mapped: it has to be opened anew.
    #[must_use]
    pub fn pages(&self) -> Option<usize> {
        let high = self.header().high.load(Ordering::Acquire) as usize;
        let pages = 1 + high.min(THREADS);
        (pages <= self.pages.len).then_some(pages)
    }

    /// A page.
    #[must_use]
    #[inline]
    pub fn page(&self, index: usize) -> Option<Watched<'_>> {
        self.pages.values().get(index).map(Watched)
    }

    /// Says that the line of a bucket, and the head, are about to be read.
    #[inline]
    pub fn fetch(&self, bucket: usize) {
        if let Some(line) = self.lines.values().get(bucket) {
            fetch(core::ptr::from_ref(line).cast());
        }
        fetch(core::ptr::from_ref(&self.header().epoch).cast());
        fetch(core::ptr::from_ref(&self.header().high).cast());
    }

    /// Units that could go at once under the curve of a bucket; negative while calls wait.
    #[must_use]
    pub fn level(&self, bucket: usize, curve: &Curve, now: u64) -> i64 {
        self.lines.values().get(bucket).map_or(0, |line| {
            let issued = line.issued(line.generation());
            curve.level(issued.load(Ordering::Relaxed), now)
        })
    }
}

/// A page of counters.
#[derive(Clone, Copy, Debug)]
pub struct Watched<'a>(&'a ThreadPage);

/// Lines of a page that are read, a bit each: that of the note, and behind it those of two
/// entries of the table of calls each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lines(u64);

/// A line that is about to be read comes from memory while others are read.
#[inline]
fn fetch(at: *const i8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which reads nothing as far as a program can tell.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Entries in a line.
const IN_A_LINE: usize = 64 / size_of::<Count>();

const _: () = {
    assert!(size_of::<ThreadPage>() == 64 * 64);
    assert!(offset_of!(ThreadPage, wait) == 0);
    assert!(offset_of!(ThreadPage, counts) == 64);
};

impl Lines {
    /// Whether nothing was counted in any.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// These and others.
    #[must_use]
    pub const fn with(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }
}

impl Watched<'_> {
    /// The lines in which anything was ever counted.
    #[must_use]
    pub fn used(self) -> Lines {
        let lines = self.0.counts.chunks(IN_A_LINE).enumerate();
        let used = lines.filter(|(_, line)| line.iter().any(|count| count.load() != (0, 0)));
        Lines(used.fold(0, |lines, (i, _)| lines | 2 << i))
    }

    /// Calls and bytes of the entries of the table of calls that stand in such lines.
    #[inline]
    pub fn counts(self, lines: Lines, mut each: impl FnMut(CallId, u64, u64)) {
        let mut left = lines.0 >> 1;
        while left != 0 {
            let first = left.trailing_zeros() as usize * IN_A_LINE;
            left &= left - 1;
            let line = self.0.counts.get(first..).unwrap_or_default();
            for (call, count) in (first..).zip(line.iter().take(IN_A_LINE)) {
                let (calls, bytes) = count.load();
                #[expect(clippy::cast_possible_truncation, reason = "there are 126")]
                each(call as CallId, calls, bytes);
            }
        }
    }

    /// Says that such lines, and the note, are about to be read: they come from memory
    /// while others are read.
    #[inline]
    pub fn fetch(self, lines: Lines) {
        let mut left = lines.0 | 1;
        while left != 0 {
            let at = left.trailing_zeros() as usize * 64;
            left &= left - 1;
            fetch(core::ptr::from_ref(self.0).cast::<i8>().wrapping_add(at));
        }
    }

    /// The entry of the call that its thread last went to sleep with, if that was not before
    /// an instant (monotonic clock, ns).
    #[must_use]
    #[inline]
    pub fn slept_since(self, then: u64) -> Option<CallId> {
        let slept = self.0.wait.slept_ns.load(Ordering::Acquire);
        #[expect(clippy::cast_possible_truncation, reason = "a part of the word")]
        let call = self.0.wait.what.load(Ordering::Acquire) as CallId;
        (slept >= then && slept != 0).then_some(call)
    }

    /// The entry of the call that its thread waits with at `now`, if it waits. One that was
    /// killed meanwhile is taken to wait for up to 1.2 s.
    #[must_use]
    #[inline]
    pub fn waits(self, now: u64) -> Option<CallId> {
        let (tid, noted) = self.0.wait.read()?;
        let owner = Owner {
            pid: 0,
            tid,
            namespace: 0,
        };
        let is_overdue = crate::Waiting { owner, noted }.is_overdue(now);
        (!is_overdue).then_some(noted.call)
    }
}
