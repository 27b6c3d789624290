//! Record of the sites that were found, and of what has become of them: which of libc's functions end in patched sites only.

use crate::calls::{entries_of, first_entry};
use crate::elf::{self, Object};
use crate::found::Found;
#[cfg(not(feature = "alone"))]
use crate::proof;
use crate::sys::nr;
use bonsai_calls::{self as calls, CallId, NR_LIMIT};
use bonsai_sites::ANY;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Sites seen by system call number, and whether one of them could not be patched (the highest bit).
static SEEN: [AtomicU8; NR_LIMIT] = [const { AtomicU8::new(0) }; NR_LIMIT];
const MISSED: u8 = 0x80;

#[unsafe(link_section = ".bss.bonsai_early")]
static PATCHED_SITES: AtomicU32 = AtomicU32::new(0);
#[unsafe(link_section = ".bss.bonsai_early")]
pub(super) static MISSED_SITES: AtomicU32 = AtomicU32::new(0);

/// Calls of which a site could not be replaced, as in the ledger (`Process::unseen`).
#[unsafe(link_section = ".bss.bonsai_early")]
static UNSEEN: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// See [`UNSEEN`].
pub(crate) fn unseen() -> [u64; 2] {
    [0, 1].map(|i: usize| UNSEEN[i].load(Ordering::Relaxed))
}

/// Takes note of a site that could not be replaced. A call after which the process ends at once is its last words, and no hole.
fn miss(site: &Found) {
    if let Some(first) = first_entry(usize::from(site.nr))
        && !ends_behind(site.at + 2)
    {
        for call in entries_of(first) {
            UNSEEN[usize::from(call / 64) & 1].fetch_or(1 << (call % 64), Ordering::Relaxed);
        }
    }
}

/// True where the code is `mov $status,%edi; mov $__NR_exit_group,%eax; syscall`, as behind messages of libc's start.
fn ends_behind(at: usize) -> bool {
    let text = elf::objects().flat_map(Object::texts);
    let mut behind = text.filter_map(|text| {
        let from = at.checked_sub(text.as_ptr() as usize)?;
        text.get(from..from + 12)
    });
    behind.next().is_some_and(|code| {
        matches!(code, [0xbf, _, _, _, _, 0xb8, 0xe7, 0, 0, 0, 0x0f, 0x05])
    })
}

/// Sites patched in this process, and sites of other libraries that could not be.
pub(crate) fn count() -> (u32, u32) {
    (
        PATCHED_SITES.load(Ordering::Relaxed),
        MISSED_SITES.load(Ordering::Relaxed),
    )
}

/// Sites that the engine has patched, and in the upper half those that it could not.
#[cfg(not(feature = "alone"))]
#[expect(clippy::cast_possible_truncation, reason = "the two halves of a word")]
pub(crate) fn count_also(counts: u64) {
    PATCHED_SITES.fetch_add(counts as u32, Ordering::Relaxed);
    MISSED_SITES.fetch_add((counts >> 32) as u32, Ordering::Relaxed);
}

/// State of libc's calls of any number (cancellation points from glibc 2.41 on); bits as in `SEEN`.
static SEEN_ANY: AtomicU8 = AtomicU8::new(0);

/// True where the calls of any number are musl's.
static IS_MUSL: AtomicBool = AtomicBool::new(false);

/// Notes that libc's calls of any number are musl's: for good, whatever else of libc is patched later.
#[cfg(not(feature = "alone"))]
pub(super) fn note_musl() {
    IS_MUSL.store(true, Ordering::Relaxed);
}

/// True if libc makes a call by its cancellation point that glibc makes by its own. musl does not where the kernel's function is not slow.
pub(crate) fn is_point_here(call: CallId) -> bool {
    let not_musls = matches!(
        call,
        calls::SPLICE_FILE
            | calls::TEE
            | calls::VMSPLICE
            | calls::COPY_FILE_RANGE
            | calls::SYNC_FILE_RANGE
            | calls::FALLOCATE
            | calls::PREADV2
            | calls::PWRITEV2
            | calls::EPOLL_PWAIT2
    );
    !(not_musls && IS_MUSL.load(Ordering::Relaxed))
}

/// Whether every site of that number that was found is patched, and at least one
/// was found; among them, for a cancellation point, those of any number.
pub(crate) fn all_patched(nr: usize, is_point: bool) -> bool {
    #[cfg(not(feature = "alone"))]
    if proof::has_failed() {
        return false;
    }
    let seen = SEEN.get(nr).map_or(0, |s| s.load(Ordering::Relaxed));
    let any = if is_point { SEEN_ANY.load(Ordering::Relaxed) } else { 0 };
    (seen | any) & MISSED == 0 && seen | any != 0
}

/// Takes note of a site of libc (`of_libc`) or of another object, and of what has become of it. Which symbols end in patched sites is a
/// question to libc's alone.
pub(super) fn saw(site: &Found, of_libc: bool, patched: bool) {
    // Calls that map files are watched, not limited.
    if usize::from(site.nr) == nr::MMAP {
        return;
    }
    if patched {
        PATCHED_SITES.fetch_add(1, Ordering::Relaxed);
    } else {
        miss(site);
    }
    if site.is_moved() {
        MISSED_SITES.fetch_add(u32::from(!patched), Ordering::Relaxed);
        if of_libc && site.nr == ANY {
            let state = if patched { 1 } else { MISSED };
            SEEN_ANY.fetch_or(state, Ordering::Relaxed);
        }
    } else if let Some(seen) = SEEN.get(usize::from(site.nr)) {
        let now = seen.load(Ordering::Relaxed);
        let next = if patched {
            (now & MISSED) | ((now & !MISSED) + 1).min(0x7f)
        } else {
            now | MISSED
        };
        seen.store(next, Ordering::Relaxed);
    }
}
