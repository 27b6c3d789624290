//! Mapping the extension, once per process.

use super::{BONSAI_QUICK, Begin, Extension, LENGTH};
use crate::amount::Args;
use crate::facts::Site;
use crate::identity::KNOWN;
use crate::seccomp::{FORBIDDEN, Helper, ask};
use crate::sys::{self, place};
use crate::uncovered::AT_FDCWD;
use bonsai_ledger::Segment;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Not asked for yet.
const NONE: usize = 0;
/// It cannot be mapped.
const GONE: usize = 1;
/// Being mapped.
const BUSY: usize = 2;

/// How often a thread sleeps while another one maps it, each time for [`TURN_NS`] at most: a
/// thread that maps may be kept from running for many milliseconds. It is not for ever, because a
/// signal handler may have interrupted just that, or a child have come out of it.
const PATIENCE: usize = 1000;

/// 0.1 ms, and the slack of a timer.
const TURN_NS: usize = 100_000;

/// The word of an ELF header that says where to begin (System V ABI, chapter 4).
const E_ENTRY: usize = 3;

#[unsafe(link_section = ".bss.bonsai_early")]
static EXTENSION: AtomicUsize = AtomicUsize::new(NONE);

/// The extension, if it is mapped.
pub(crate) fn there() -> Option<&'static Extension> {
    let at = EXTENSION.load(Ordering::Acquire);
    // SAFETY: what `Begin` has answered; the first addresses are no extension's.
    (at > BUSY).then(|| unsafe { &*(at as *const Extension) })
}

/// The extension, mapped if need be.
#[cold]
#[inline(never)]
pub(crate) fn get(segment: &'static Segment) -> Option<&'static Extension> {
    let mut at = EXTENSION.load(Ordering::Acquire);
    if at == NONE {
        let first = EXTENSION.compare_exchange(NONE, BUSY, Ordering::Acquire, Ordering::Acquire);
        at = match first {
            Ok(_) => {
                let at = map(segment);
                EXTENSION.store(at, Ordering::Release);
                at
            }
            Err(at) => at,
        };
    }
    for _ in 0..PATIENCE {
        if at != BUSY {
            break;
        }
        let time = [0, TURN_NS];
        // SAFETY: FUTEX_WAIT on the low half of a word that stays, with a relative time; nobody
        // wakes us, but it does not sleep any more once the word is another one.
        unsafe { ask!(Futex, EXTENSION.as_ptr(), 0, BUSY, time.as_ptr()) };
        at = EXTENSION.load(Ordering::Acquire);
    }
    if at == GONE || at == BUSY {
        return None;
    }
    // SAFETY: what `Begin` has answered.
    unsafe { (at as *const Extension).as_ref() }
}

/// Tells it, if it is mapped, that another program is about to be run.
pub(crate) fn leave() {
    if let Some(extension) = there() {
        (extension.leave)();
    }
}

extern "C" fn make(args: &Args, site: &Site) -> isize {
    crate::slow::make(args, site)
}

fn map(segment: &'static Segment) -> usize {
    // What `unfold` needs.
    let needs = Helper::Mmap.bit() | Helper::Munmap.bit() | Helper::Close.bit();
    if FORBIDDEN.load(Ordering::Relaxed) & needs != 0 {
        return GONE;
    }
    let kinds = place!("BONSAI_KINDS") as *const _;
    // SAFETY: a C string; a mapping of our own. Whoever has made the ledger has looked
    // into the file.
    unsafe {
        // O_RDONLY | O_CLOEXEC
        let fd = ask!(
            OpenRead,
            AT_FDCWD,
            segment.header.extension.as_ptr(),
            0o2_000_000,
            0
        );
        // PROT_READ | PROT_EXEC, MAP_PRIVATE
        let at = ask!(MmapCode, 0, LENGTH, 5, 2, fd, 0);
        if at < 0 {
            return GONE;
        }
        let entry = *(at as *const usize).add(E_ENTRY);
        let begin = core::mem::transmute::<usize, Begin>(at.cast_unsigned() + entry);
        let extension = begin(
            fd.cast_unsigned(),
            kinds,
            &raw const FORBIDDEN,
            &raw const KNOWN,
            make,
            sys::now,
            segment,
        );
        extension.map_or(GONE, |at| {
            let mut places = [0; 2];
            (at.known)(&mut places);
            let [notes, held] = places;
            let [first, others @ ..] = &BONSAI_QUICK;
            for (to, from) in others.iter().zip([held, segment.streams.as_ptr() as usize]) {
                to.store(from, Ordering::Relaxed);
            }
            first.store(notes, Ordering::Release);
            core::ptr::from_ref(at) as usize
        })
    }
}
