//! Which group the service is in: a process that runs already maps its segment when a call
//! first draws on it, and another one when the service is in another.
//!
//! # Invariants
//! 1. Nothing that was mapped is ever removed: a thread may be in a group that its service
//!    has left. What is mapped is kept for the next time that the service is in that group.
//! 2. A number names one joining (`Membership::tag`). While it is in force in the ledger, so
//!    is the path beside it; only then what was found under the path is used for it.
//! 3. Two threads that map at a time come to the same: the place of a segment is taken by one
//!    exchange, and whoever comes second gives back what it has mapped.
//!
//! # Limits
//! A process can be in so many different groups in its life as there are places; after that,
//! as where a segment cannot be mapped, its calls go through and are counted as unshaped.

use crate::paths::AT_FDCWD;
use crate::seccomp::ask;
use crate::sys;
use bonsai_ledger::{
    Config, GROUP_LEN, GROUP_MAGIC, GROUP_VERSION, GroupSegment, Membership, Segment,
};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Segments that are mapped; 0 for none yet.
static MAPPED: [AtomicUsize; 32] = [const { AtomicUsize::new(0) }; 32];

/// The number that was last mapped for: its word, with the place of the segment and 1 in the
/// lowest byte. 0 for none.
static CURRENT: AtomicU64 = AtomicU64::new(0);

/// The same of one for which it failed, and when, ns.
static FAILED: AtomicU64 = AtomicU64::new(0);
static FAILED_AT: AtomicU64 = AtomicU64::new(0);

/// What failed is tried again after this: a process may have been out of descriptors.
const AGAIN_NS: u64 = 1_000_000_000;

/// What of a number's word is not its place.
const KEY: u64 = !0xff;

/// The segment for a number of this service.
#[inline]
pub(crate) fn segment_of(segment: &Segment, number: u64) -> Option<&'static GroupSegment> {
    let current = CURRENT.load(Ordering::Acquire);
    if (current ^ number) & KEY == 0
        && let Some(group) = at(current)
    {
        return Some(group);
    }
    look(segment, number)
}

/// The group that calls draw on, as far as this process knows.
pub(crate) fn current() -> Option<&'static GroupSegment> {
    at(CURRENT.load(Ordering::Acquire))
}

/// Maps the segment of the group that the service is in, if it is in one.
pub(crate) fn begin(segment: &Segment) {
    let (_, number) = segment.with_config(|config| {
        let mut words = config
            .groups
            .iter()
            .map(|word| word.load(Ordering::Relaxed));
        words.find(|word| Membership::from_word(*word).is_some())
    });
    if let Some(number) = number {
        segment_of(segment, number);
    }
}

/// Whether the service has that number still.
pub(crate) fn in_force(segment: &Segment, number: u64) -> bool {
    let has = |config: &Config| {
        let mut words = config.groups.iter();
        words.any(|word| word.load(Ordering::Relaxed) == number)
    };
    segment.with_config(has).1
}

fn at(current: u64) -> Option<&'static GroupSegment> {
    let place = usize::from(current.to_le_bytes()[0]).checked_sub(1)?;
    // SAFETY: set once, to a mapping that is never removed.
    unsafe { (MAPPED.get(place)?.load(Ordering::Acquire) as *const GroupSegment).as_ref() }
}

#[cold]
#[inline(never)]
fn look(segment: &Segment, number: u64) -> Option<&'static GroupSegment> {
    // Of a number from before, there is nothing to be found.
    if !in_force(segment, number) {
        return None;
    }
    let now = sys::now();
    let (key, failed_at) = (number & KEY | 1, FAILED_AT.load(Ordering::Relaxed));
    if FAILED.load(Ordering::Relaxed) == key && now.saturating_sub(failed_at) < AGAIN_NS {
        return None;
    }
    let place = map(segment).and_then(keep);
    if !in_force(segment, number) {
        return None;
    }
    let Some(place) = place else {
        FAILED_AT.store(now, Ordering::Relaxed);
        FAILED.store(key, Ordering::Relaxed);
        return None;
    };
    let current = number & KEY | (place as u64 + 1);
    CURRENT.store(current, Ordering::Release);
    at(current)
}

/// Maps what is under the path in the ledger, if that is a group.
fn map(segment: &Segment) -> Option<usize> {
    let path = &segment.header.group;
    let mut stat = [0_u64; 18];
    // SAFETY: a C string; struct stat has 144 bytes; a mapping of our own of a file that
    // is long enough, and of which the first words are looked at only.
    unsafe {
        // O_RDWR | O_NOFOLLOW | O_CLOEXEC
        let fd = usize::try_from(ask!(OpenWrite, AT_FDCWD, path.as_ptr(), 0o2_400_002, 0)).ok()?;
        // st_size
        let long = ask!(Fstat, fd, stat.as_mut_ptr()) == 0 && stat[6] >= GROUP_LEN as u64;
        let at = if long {
            // PROT_READ | PROT_WRITE, MAP_SHARED
            ask!(Mmap, 0, GROUP_LEN, 3, 1, fd, 0)
        } else {
            -1
        };
        ask!(Close, fd);
        if (-4095..0).contains(&at) {
            return None;
        }
        let at = at.cast_unsigned();
        let head = &(*(at as *const GroupSegment)).head;
        let known = head.magic.load(Ordering::Acquire) == GROUP_MAGIC
            && head.version.load(Ordering::Relaxed) == GROUP_VERSION;
        if !known {
            ask!(Munmap, at, GROUP_LEN);
        }
        known.then_some(at)
    }
}

/// Gives a mapping a place, or goes back to the one that the same group has.
fn keep(new: usize) -> Option<usize> {
    // SAFETY: groups of ours.
    let made = |at: usize| unsafe {
        let head = &(*(at as *const GroupSegment)).head;
        let name = head
            .name
            .each_ref()
            .map(|word| word.load(Ordering::Relaxed));
        (head.created_ns.load(Ordering::Relaxed), name)
    };
    for (i, place) in MAPPED.iter().enumerate() {
        match place.compare_exchange(0, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return Some(i),
            Err(there) if made(there) == made(new) => {
                // SAFETY: nobody else has seen it.
                unsafe { ask!(Munmap, new, GROUP_LEN) };
                return Some(i);
            }
            Err(_) => {}
        }
    }
    // SAFETY: as above.
    unsafe { ask!(Munmap, new, GROUP_LEN) };
    None
}
