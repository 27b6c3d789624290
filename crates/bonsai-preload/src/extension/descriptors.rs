//! What is known of descriptors beyond their kind: which limits they are under, and
//! which stream they are. Looked up (`look.rs`) when a descriptor is first used, and
//! when limits have changed; after that, a few words of an array per call.
//!
//! A number may be closed and given out again by other threads at any moment. Each
//! change of its meaning advances `version`; whoever has looked at it writes down what
//! was seen only if nothing has changed meanwhile, one at a time:
//! ```text
//!  nothing known ──look──> being written ──nothing changed──> known under an epoch
//!        ^                       └──changed──┐                        │
//!        └───────────────────────────────────┴────────── forget ──────┘
//! ```
//! A reader takes what it read for true only if the state is the same before and after.

use crate::facts::quick_path;
use crate::kind::KINDS;
use crate::look;
use crate::seccomp::{Helper, ask, forbids};
use crate::sets;
use crate::sys;
use bonsai_ledger::{STREAMS, Segment, StreamLine};
use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering, fence};

/// Streams' lines that are remembered with a descriptor.
pub(crate) const LINES: usize = crate::claim::STREAMS;

/// One descriptor: a cache line that most calls look at, and another one.
#[repr(C, align(128))]
pub(crate) struct Note {
    /// Version << 32 | the epoch of the limits that the rest is about, 0 for nothing
    /// known, or [`WRITING`].
    state: AtomicU64,
    /// Its number as a stream; 0 for none yet.
    identity: AtomicU64,
    /// Limits on some descriptors that it is under.
    matches: AtomicU64,
    /// Those for which the address of a call decides, where it has one.
    by_call: AtomicU64,
    /// Bytes that calls have paid for which ended early, or less than zero: that came in
    /// before they were due. For the next call in that direction, in or out.
    kept: [AtomicI64; 2],
    /// By which calls of either way are made without the slow path (`gen/quick.rs`): version << 32 | what holds under it. 0 for none.
    quick: [AtomicU64; 2],
    /// The lines of its stream: index | bucket << 16 | 1 << 31; 0 for none.
    pub(crate) lines: [AtomicU32; LINES],
    /// The file: its device and number.
    file: [AtomicU64; 2],
    /// Of a socket, its own port.
    port: AtomicU32,
}

const _: () = {
    use core::mem::offset_of;
    assert!(
        offset_of!(Note, state) == 0
            && offset_of!(Note, identity) == 8
            && size_of::<Note>() == quick_path::NOTE
    );
    assert!(
        offset_of!(Note, kept) == quick_path::KEPT_AT
            && offset_of!(Note, quick) == quick_path::QUICK_AT
    );
    let [key, issued, generation, used, lease] = StreamLine::PLACES;
    assert!(generation == quick_path::GENERATION_AT);
    assert!(
        key == 0
            && issued == quick_path::ISSUED_AT
            && used == quick_path::USED_AT
            && lease == quick_path::LEASE_AT
    );
    assert!(size_of::<StreamLine>() == 64 && STREAMS <= 1 << 13);
};

/// No epoch of a service that has not changed its limits four billion times.
const WRITING: u64 = 0xffff_ffff;

static NOTES: [Note; KINDS] = [const {
    Note {
        state: AtomicU64::new(0),
        identity: AtomicU64::new(0),
        matches: AtomicU64::new(0),
        by_call: AtomicU64::new(0),
        kept: [const { AtomicI64::new(0) }; 2],
        quick: [const { AtomicU64::new(0) }; 2],
        lines: [const { AtomicU32::new(0) }; LINES],
        file: [const { AtomicU64::new(0) }; 2],
        port: AtomicU32::new(0),
    }
}; KINDS];

/// What is known of a descriptor.
#[derive(Clone, Copy, Default)]
pub(crate) struct Known {
    /// The file: its device and number.
    pub(crate) file: [u64; 2],
    /// Its number as a stream.
    pub(crate) identity: u64,
    /// Limits on some descriptors that it is under.
    pub(crate) matches: u64,
    /// Those for which the address of a call decides, where it has one.
    pub(crate) by_call: u64,
    /// Of a socket, its own port.
    pub(crate) port: u16,
    /// How often the number has changed its meaning.
    pub(crate) version: u32,
}

/// Where they are.
pub(crate) fn place() -> usize {
    NOTES.as_ptr() as usize
}

/// The note of a descriptor; `None` for one beyond the array.
pub(crate) fn note(fd: usize) -> Option<&'static Note> {
    NOTES.get(fd & 0xffff_ffff)
}

/// These numbers are about to mean something else.
pub(crate) fn forget(first: usize, last: usize) {
    for note in NOTES.get(first..=last.min(KINDS - 1)).unwrap_or_default() {
        note.forget();
    }
}

/// What is known of a descriptor under the limits of `epoch`, looked up if need be.
#[inline]
pub(crate) fn known(segment: &Segment, fd: usize, epoch: u32) -> Known {
    let Some(note) = note(fd) else {
        if fd & 0xffff_ffff == 0xffff_ffff {
            // None: a file that a ring knows by its place, or a mistake.
            return Known::default();
        }
        return look::at(segment, fd, None, false);
    };
    match note.read(epoch) {
        Some(known) => known,
        None => found_out(segment, fd, note, epoch),
    }
}

#[cold]
#[inline(never)]
fn found_out(segment: &Segment, fd: usize, note: &Note, epoch: u32) -> Known {
    sets::note(fd & 0xffff_ffff);
    let seen = note.state.load(Ordering::Acquire);
    // A child forked in the middle of its parent's writing never sees the end of that.
    let lasts = seen & 0xffff_ffff != WRITING;
    let known = look::at(segment, fd, note.last(), lasts);
    note.write(seen, &known, epoch);
    // It may have been closed meanwhile, and forgotten before this was written.
    sets::note(fd & 0xffff_ffff);
    // Another thread may have been faster: then its stream is the one.
    note.read(epoch).unwrap_or(known)
}

/// A number is another one of a descriptor that has a number already: the same stream.
pub(crate) fn duplicated(segment: &Segment, from: usize, to: usize, epoch: u32) {
    let known = known(segment, from, epoch);
    if let Some(note) = note(to) {
        sets::note(to & 0xffff_ffff);
        let seen = note.state.load(Ordering::Acquire);
        note.write(seen, &known, epoch);
    }
}

/// Once in so many calls of a thread it is looked whether a number still means what is
/// known of it: it may have been closed by instructions that Bonsai does not see.
pub(crate) fn check(fd: usize) {
    if let Some(note) = note(fd)
        && !forbids(Helper::Fstat)
        && note
            .stream()
            .is_some_and(|(file, _)| look::file(fd) != file)
    {
        note.forget();
    }
}

impl Note {
    #[inline]
    pub(crate) fn read(&self, epoch: u32) -> Option<Known> {
        self.read_with(epoch, |known| {
            let [device, number] = &self.file;
            let word = |word: &AtomicU64| word.load(Ordering::Relaxed);
            known.file = [word(device), word(number)];
            #[expect(clippy::cast_possible_truncation, reason = "stored as a port")]
            let port = self.port.load(Ordering::Relaxed) as u16;
            known.port = port;
        })
    }

    /// The same but the file and the port: those stand elsewhere.
    #[inline]
    pub(crate) fn read_most(&self, epoch: u32) -> Option<Known> {
        self.read_with(epoch, |_| {})
    }

    #[inline]
    fn read_with(&self, epoch: u32, more: impl FnOnce(&mut Known)) -> Option<Known> {
        let state = self.state.load(Ordering::Acquire);
        if state & 0xffff_ffff != u64::from(epoch) {
            return None;
        }
        let word = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let mut known = Known {
            version: (state >> 32) as u32,
            identity: word(&self.identity),
            matches: word(&self.matches),
            by_call: word(&self.by_call),
            ..Known::default()
        };
        more(&mut known);
        fence(Ordering::Acquire);
        (self.state.load(Ordering::Relaxed) == state).then_some(known)
    }

    /// Its file and its number as a stream, if they are known, under whatever limits.
    fn stream(&self) -> Option<([u64; 2], u64)> {
        self.last().map(|known| (known.file, known.identity))
    }

    /// What was known of it last, under whatever limits.
    fn last(&self) -> Option<Known> {
        let state = self.state.load(Ordering::Acquire);
        let epoch = state & 0xffff_ffff;
        if epoch == 0 || epoch == WRITING {
            return None;
        }
        self.read(u32::try_from(epoch).unwrap_or(0))
    }

    /// Writes down what was seen since `seen` was its state.
    fn write(&self, seen: u64, known: &Known, epoch: u32) {
        let version = seen & !0xffff_ffff;
        if seen & 0xffff_ffff == WRITING || !self.step(seen, version | WRITING) {
            return;
        }
        let [device, number] = &self.file;
        for (word, value) in [
            (device, known.file[0]),
            (number, known.file[1]),
            (&self.identity, known.identity),
            (&self.matches, known.matches),
            (&self.by_call, known.by_call),
        ] {
            word.store(value, Ordering::Relaxed);
        }
        self.port.store(u32::from(known.port), Ordering::Relaxed);
        for line in &self.lines {
            line.store(0, Ordering::Relaxed);
        }
        // What was remembered of it under other limits (`remember`) is void.
        let next = version.wrapping_add(1 << 32);
        if !self.step(version | WRITING, next | u64::from(epoch)) {
            // Forgotten meanwhile: whatever stands here is of nobody.
            let state = self.state.load(Ordering::Relaxed);
            self.step(state, state & !0xffff_ffff);
        }
    }

    fn step(&self, from: u64, to: u64) -> bool {
        let done = self
            .state
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
        done.is_ok()
    }

    fn forget(&self) {
        let mut state = self.state.load(Ordering::Relaxed);
        // A number that nobody has looked at needs no page of its own.
        while state & 0xffff_ffff != 0 {
            let version = (state & !0xffff_ffff).wrapping_add(1 << 32);
            let writing = state & 0xffff_ffff == WRITING;
            let next = version | if writing { WRITING } else { 0 };
            match self
                .state
                .compare_exchange(state, next, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => {
                    self.kept(true);
                    self.kept(false);
                    return;
                }
                Err(now) => state = now,
            }
        }
    }

    /// Keeps what a call has paid, or owes, for the next one.
    pub(crate) fn keep(&self, out: bool, bytes: i64) {
        let [inward, outward] = &self.kept;
        let word = if out { outward } else { inward };
        word.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Whether something is kept.
    pub(crate) fn has_kept(&self, out: bool) -> bool {
        let [inward, outward] = &self.kept;
        let word = if out { outward } else { inward };
        word.load(Ordering::Relaxed) != 0
    }

    /// Has the calls that follow made without the slow path, as `word` says, while the version holds.
    #[inline]
    pub(crate) fn remember(&self, out: bool, version: u32, word: u64) {
        let [inward, outward] = &self.quick;
        let quick = if out { outward } else { inward };
        let word = u64::from(version) << 32 | word;
        if quick.load(Ordering::Relaxed) != word {
            quick.store(word, Ordering::Release);
        }
    }

    /// Has the lines of its stream fetched, for the calls that follow.
    #[inline]
    pub(crate) fn fetch_lines(&self, segment: &Segment) {
        for word in &self.lines {
            let word = word.load(Ordering::Relaxed);
            if word & VALID != 0
                && let Some(line) = segment.streams.get((word & 0xffff) as usize)
            {
                // SAFETY: a hint, of memory that is there.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(core::ptr::from_ref(line).cast()) };
            }
        }
    }

    /// The line of its stream under the limit of `bucket`, if there is one.
    #[inline]
    pub(crate) fn line(&self, bucket: u8) -> Option<u16> {
        self.lines.iter().find_map(|word| {
            let word = word.load(Ordering::Relaxed);
            let has = word & VALID != 0 && (word >> 16) & 0x3f == u32::from(bucket);
            has.then_some((word & 0xffff) as u16)
        })
    }

    /// Takes what was kept.
    pub(crate) fn kept(&self, out: bool) -> i64 {
        let [inward, outward] = &self.kept;
        let word = if out { outward } else { inward };
        if word.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        word.swap(0, Ordering::Relaxed)
    }
}

const VALID: u32 = 1 << 31;

/// The line of a descriptor's stream under the limit of `bucket`, made if need be.
#[inline]
pub(crate) fn line(segment: &Segment, fd: usize, identity: u64, bucket: u8) -> Option<u16> {
    let note = note(fd);
    let known = note
        .and_then(|note| note.line(bucket))
        .filter(|index| segment.is_stream(usize::from(*index), identity, bucket));
    known.or_else(|| new_line(segment, fd, note, identity, bucket))
}

/// Pages of streams' lines that are there, for good: a bit each.
static THERE: [AtomicU64; PAGES.div_ceil(64)] = [const { AtomicU64::new(0) }; PAGES.div_ceil(64)];

/// The lines may begin in the middle of one.
const PAGES: usize = size_of::<[StreamLine; STREAMS]>() / 4096 + 1;

/// Brings the page of a line in, or says that shared memory is full, without a SIGBUS.
fn populated(segment: &Segment, line: &StreamLine) -> bool {
    let page = core::ptr::from_ref(line) as usize & !4095;
    let first = segment.streams.as_ptr() as usize & !4095;
    let at = page.wrapping_sub(first) / 4096;
    let (word, bit) = (THERE.get(at / 64), 1 << (at % 64));
    if word.is_some_and(|word| word.load(Ordering::Relaxed) & bit != 0) {
        return true;
    }
    // SAFETY: a page of our own mapping.
    let is = unsafe { ask!(Madvise, page, 4096, 23) == 0 };
    if let Some(word) = word.filter(|_| is) {
        word.fetch_or(bit, Ordering::Relaxed);
    }
    is
}

#[cold]
#[inline(never)]
fn new_line(
    segment: &Segment,
    fd: usize,
    note: Option<&Note>,
    identity: u64,
    bucket: u8,
) -> Option<u16> {
    let populate = |line: &StreamLine| populated(segment, line);
    let process = crate::identity::of(sys::getpid());
    let first = (process, u32::try_from(fd).unwrap_or(0));
    let index = segment.stream(identity, bucket, first, sys::now(), populate)?;
    let index = u16::try_from(index).ok()?;
    let word = VALID | u32::from(bucket) << 16 | u32::from(index);
    let free = |slot: &&AtomicU32| {
        let seen = slot.load(Ordering::Relaxed);
        seen == 0 || (seen >> 16) & 0x3f == u32::from(bucket)
    };
    if let Some(slot) = note.and_then(|note| note.lines.iter().find(free)) {
        slot.store(word, Ordering::Relaxed);
    }
    Some(index)
}
