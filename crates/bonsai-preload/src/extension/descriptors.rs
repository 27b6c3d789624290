//! What is known of descriptors beyond their kind: which limits they are under, and
//! which stream they are. Looked up when a descriptor is first used, and when limits
//! have changed; after that, one look into an array per call.

use crate::amount::Args;
use crate::claim::{Claim, STREAMS};
use crate::kind::{self, KINDS};
use crate::sys::{self, call, nr};
use bonsai_calls::{CallId, Fd};
use bonsai_ledger::{Segment, StreamLine, Unshaped};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// One descriptor.
struct Note {
    /// The epoch of the limits that the rest is about; 0 for nothing known.
    epoch: AtomicU32,
    /// Its number as a stream: of a socket, its inode.
    identity: AtomicU64,
    /// Limits on some descriptors that it is under.
    matches: AtomicU64,
    /// The lines of its stream: index | bucket << 16 | 1 << 31; 0 for none.
    streams: [AtomicU32; STREAMS],
}

static NOTES: [Note; KINDS] = [const {
    Note {
        epoch: AtomicU32::new(0),
        identity: AtomicU64::new(0),
        matches: AtomicU64::new(0),
        streams: [const { AtomicU32::new(0) }; STREAMS],
    }
}; KINDS];

/// These numbers are about to mean something else.
pub(crate) fn forget(first: usize, last: usize) {
    for note in NOTES.get(first..=last.min(KINDS - 1)).unwrap_or_default() {
        note.epoch.store(0, Ordering::Relaxed);
    }
}

/// Adds to what a call draws on the limits that are for some descriptors, if this is
/// one: `narrowed` are those on its call, `per_stream` all that are per stream.
pub(crate) fn narrow(
    segment: &Segment,
    _call: CallId,
    args: &Args,
    narrowed: u64,
    per_stream: u64,
    claim: &mut Claim,
) {
    let fd = args.a[0] & 0xffff_ffff;
    let Some(note) = NOTES.get(fd) else {
        segment.count_unshaped(Unshaped::NoStream);
        return;
    };
    if note.epoch.load(Ordering::Relaxed) != claim.epoch || kind::known(fd).is_none() {
        look(segment, fd, note, per_stream);
        note.epoch.store(claim.epoch, Ordering::Relaxed);
    }
    let matches = note.matches.load(Ordering::Relaxed) & narrowed;
    claim.mask |= matches & !per_stream;
    claim.per_stream = matches & per_stream;
    let mut left = claim.per_stream;
    while left != 0 {
        #[expect(clippy::cast_possible_truncation, reason = "below 64")]
        let bucket = left.trailing_zeros() as u8;
        left &= left - 1;
        match line(segment, fd, note, bucket) {
            Some(index) if claim.len < STREAMS => {
                #[expect(clippy::cast_possible_truncation, reason = "there are 8192")]
                let index = index as u16;
                claim.streams[claim.len % STREAMS] = (index, bucket);
                claim.len += 1;
            }
            _ => {
                claim.per_stream &= !(1 << bucket);
                segment.count_unshaped(Unshaped::NoStream);
            }
        }
    }
}

/// Finds out what a descriptor is.
fn look(segment: &Segment, fd: usize, note: &Note, per_stream: u64) {
    let looked = kind::look(fd);
    let mut stat = [0_u64; 18];
    // SAFETY: struct stat has 144 bytes.
    unsafe { call!(nr::FSTAT, fd, stat.as_mut_ptr()) };
    let [_, inode, ..] = stat;
    let is_stream = looked.kind == Fd::Socket;
    note.identity.store(inode, Ordering::Relaxed);
    let matches = if is_stream { per_stream } else { 0 };
    let _ = segment;
    note.matches.store(matches, Ordering::Relaxed);
    for line in &note.streams {
        line.store(0, Ordering::Relaxed);
    }
}

const VALID: u32 = 1 << 31;

/// The line of a descriptor's stream under the limit of `bucket`.
fn line(segment: &Segment, fd: usize, note: &Note, bucket: u8) -> Option<usize> {
    let identity = note.identity.load(Ordering::Relaxed);
    let place = |word: u32| {
        let has = word & VALID != 0 && (word >> 16) & 0xff == u32::from(bucket);
        has.then_some((word & 0xffff) as usize)
    };
    let known = note
        .streams
        .iter()
        .find_map(|word| place(word.load(Ordering::Relaxed)))
        .filter(|index| segment.is_stream(*index, identity, bucket));
    if known.is_some() {
        return known;
    }
    let populate = |line: &StreamLine| {
        let page = core::ptr::from_ref(line) as usize & !4095;
        // Brings the page in, or fails without a SIGBUS when shared memory is full.
        // SAFETY: a page of our own mapping.
        unsafe { call!(nr::MADVISE, page, 4096, 23) == 0 }
    };
    let who = (sys::getpid(), u32::try_from(fd).unwrap_or(0));
    let index = segment.stream(identity, bucket, who, sys::now(), populate)?;
    let word = VALID | u32::from(bucket) << 16 | u32::try_from(index).unwrap_or(0);
    let free = |slot: &&AtomicU32| {
        let seen = slot.load(Ordering::Relaxed);
        seen == 0 || place(seen).is_some()
    };
    if let Some(slot) = note.streams.iter().find(free) {
        slot.store(word, Ordering::Relaxed);
    }
    Some(index)
}
