//! Rings that threads have registered (`IORING_REGISTER_RING_FDS`): calls name them by a
//! place that each thread has for itself.

use super::known::{ALL, Held, Ring};
use super::toll::NO_FD;
use crate::amount::Pages;
use bonsai_ledger::Segment;
use core::sync::atomic::{AtomicU64, Ordering};

/// Places of all threads of a process.
const REGISTERED: usize = 256;

/// thread << 32 | place << 16 | one more than the index of the ring; 0 for free.
static PLACES: [AtomicU64; REGISTERED] = [const { AtomicU64::new(0) }; REGISTERED];

/// The ring at a place of a thread.
pub(super) fn at_place(
    segment: &Segment,
    tid: u32,
    place: usize,
    pages: &mut Pages,
) -> Option<Held> {
    let word = (u64::from(tid) << 16 | place as u64 & 0xffff) << 16;
    let found = PLACES
        .iter()
        .map(|p| p.load(Ordering::Relaxed))
        .find(|p| p & !0xffff == word)?;
    let index = usize::try_from(found & 0xffff).unwrap_or(0);
    ALL.get(index.wrapping_sub(1))?.hold(segment, NO_FD, pages)
}

/// Puts a ring to a place of a thread.
pub(super) fn put_place(ring: &'static Ring, tid: u32, place: u32) {
    let index = (core::ptr::from_ref(ring) as usize - ALL.as_ptr() as usize) / size_of::<Ring>();
    let word = (u64::from(tid) << 16 | u64::from(place & 0xffff)) << 16;
    let at = |p: &&AtomicU64| {
        let seen = p.load(Ordering::Relaxed);
        seen & !0xffff == word || seen == 0
    };
    remove_place(tid, place);
    if let Some(free) = PLACES.iter().find(at) {
        ring.registered.fetch_add(1, Ordering::Relaxed);
        free.store(word | (index as u64 + 1), Ordering::Relaxed);
    }
}

/// Takes the ring from a place of a thread.
pub(super) fn remove_place(tid: u32, place: u32) {
    let word = (u64::from(tid) << 16 | u64::from(place & 0xffff)) << 16;
    for p in &PLACES {
        let seen = p.load(Ordering::Relaxed);
        if seen & !0xffff != word {
            continue;
        }
        p.store(0, Ordering::Relaxed);
        let index = usize::try_from(seen & 0xffff).unwrap_or(0);
        if let Some(ring) = ALL.get(index.wrapping_sub(1)) {
            ring.registered.fetch_sub(1, Ordering::Relaxed);
            if ring.is_nameless() {
                ring.close();
            }
        }
    }
}
