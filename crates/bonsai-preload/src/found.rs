//! Sites of a library: found by whoever looks for them, patched by `patch`.

#[cfg(feature = "alone")]
use crate::seccomp::ask;
use crate::sys::nr;
use bonsai_calls::{BY_NR, NO_CALL};
use bonsai_sites::ANY;
use core::arch::x86_64::{
    _mm_and_si128, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_set1_epi8,
};

/// One site to patch.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Found {
    /// Where its `syscall` is.
    pub(crate) at: usize,
    /// How far the jump of a moved site goes; 0 if it has none.
    pub(crate) to: i32,
    pub(crate) nr: u16,
    /// Bytes to be moved before it.
    pub(crate) back: u8,
    /// As in the ledger's table: what is added to -4096 for its comparison, or
    /// [`MOVED`].
    pub(crate) form: u8,
}

pub(crate) const MOVED: u8 = 2;

/// As in the table: that of libc's function `syscall`, moved where it is entered at all.
#[cfg(feature = "alone")]
pub(crate) const OPEN: u8 = 3;

impl Found {
    /// Where the jump is.
    pub(crate) fn first(&self) -> usize {
        self.at - usize::from(self.back)
    }

    pub(crate) fn is_moved(&self) -> bool {
        self.form == MOVED
    }

    /// Whether it makes a call of the table; one that returns twice only where there
    /// are no symbols that are decided on before.
    pub(crate) fn is_wanted(&self) -> bool {
        is_wanted(self.nr) && (cfg!(feature = "alone") || !matches!(self.nr, 56..=58))
    }
}

/// Whether a number is in the table; in the engine also `clone3`, before which the thread has
/// to have a state (its vforked child would make one, and be dead soon), what may bring a
/// filter, and what maps files.
pub(crate) fn is_wanted(number: u16) -> bool {
    let known = BY_NR
        .get(usize::from(number))
        .is_some_and(|c| *c != NO_CALL);
    let also = matches!(
        usize::from(number),
        nr::MMAP | nr::CLONE3 | nr::PRCTL | nr::SECCOMP
    );
    known || cfg!(feature = "alone") && also
}

/// Whether a call could take a signal from its handler.
pub(crate) fn is_signals(number: usize) -> bool {
    matches!(number, nr::RT_SIGACTION | nr::RT_SIGPROCMASK)
}

/// The most sites of one library; a static program has all of them in one.
pub(crate) const SITES: usize = if cfg!(feature = "alone") { 2048 } else { 320 };

/// The sites of a library.
#[repr(C)]
pub(crate) struct Sites {
    all: [Found; SITES],
    count: usize,
    /// For which there was no room.
    pub(crate) lost: u32,
    /// Of which it is not known whether they are any.
    pub(crate) unsure: u32,
}

/// Memory of its own for the sites of a program.
#[cfg(feature = "alone")]
pub(crate) struct Memory(usize);

#[cfg(feature = "alone")]
impl Memory {
    pub(crate) fn new() -> Option<Self> {
        // SAFETY: new memory (MAP_PRIVATE, MAP_ANONYMOUS).
        let at = unsafe { ask!(Mmap, 0, size_of::<Sites>(), 3, 0x22, -1_isize, 0) };
        usize::try_from(at).ok().map(Self)
    }

    pub(crate) fn sites(&mut self) -> &mut Sites {
        // SAFETY: ours alone, page-aligned, long enough; zeros are no sites.
        unsafe { &mut *(self.0 as *mut Sites) }
    }
}

#[cfg(feature = "alone")]
impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: ours, and nothing refers to it any more.
        unsafe { ask!(Munmap, self.0, size_of::<Sites>()) };
    }
}

impl Sites {
    #[cfg(not(feature = "alone"))]
    pub(crate) const fn new() -> Self {
        let none = Found {
            at: 0,
            to: 0,
            nr: 0,
            back: 0,
            form: 0,
        };
        Self {
            all: [none; SITES],
            count: 0,
            lost: 0,
            unsure: 0,
        }
    }

    pub(crate) fn all(&mut self) -> &mut [Found] {
        self.all.get_mut(..self.count).unwrap_or_default()
    }

    pub(crate) fn add(&mut self, site: Found) {
        let is_other = site.nr == ANY || is_signals(usize::from(site.nr));
        let wanted = site.is_wanted() || (site.is_moved() && is_other);
        if !wanted {
            return;
        }
        if let Some(slot) = self.all.get_mut(self.count) {
            *slot = site;
            self.count += 1;
        } else {
            self.lost += 1;
        }
    }
}

/// How sites are looked for in a library that is not in the segment.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) enum Search {
    /// Not at all.
    No,
    /// libc's own.
    Compared,
    /// Any, all of them moved.
    Moved,
    /// Likewise, also where no site has a number that is known.
    #[cfg(not(feature = "alone"))]
    Program,
    /// Calls that set handlers and masks of signals, moved.
    Signals,
    /// Any, moved where there is no comparison.
    #[cfg(feature = "alone")]
    Both,
}

/// The offset of the first `0f 05` at or after `at`.
pub(crate) fn next_call(text: &[u8], mut at: usize) -> Option<usize> {
    // Sixteen bytes at a time: libraries are looked through while a program waits.
    let blocks = text.len().saturating_sub(at + 1) / 16;
    for _ in 0..blocks {
        // SAFETY: every x86-64 processor has SSE2; there are 17 bytes from `at` on.
        let hits = unsafe {
            let first = text.as_ptr().add(at);
            let is = |from: *const u8, byte: i8| {
                _mm_cmpeq_epi8(_mm_loadu_si128(from.cast()), _mm_set1_epi8(byte))
            };
            _mm_movemask_epi8(_mm_and_si128(is(first, 0x0f), is(first.add(1), 0x05)))
        };
        if hits != 0 {
            return Some(at + hits.trailing_zeros() as usize);
        }
        at += 16;
    }
    let rest = text.get(at..)?;
    let found = rest.windows(2).position(|two| two == [0x0f, 0x05]);
    found.map(|i| at + i)
}
