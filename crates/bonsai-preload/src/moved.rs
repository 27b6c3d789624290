//! Sites without a comparison behind them: liburing's, and other inline system
//! calls (`bonsai_sites::moved_at`).
//!
//! Whole instructions before the `syscall` are moved to an entry outside of the
//! library, and a jump to it takes their place and that of the `syscall`:
//! ```text
//!   library            entry
//!   ..., jmp ───────>  moved instructions; r11 = record; jmp decision ──┐
//!   next  <──────────────────────────────────────────────────────────── ┘
//! ```
//! The entries lie in pages of their own near the library (a jump reaches 2 GiB),
//! which are writable only until they are complete. A moved site may be reached
//! with any number, so it is compared at each call.
//!
//! The call of a libc's cancellation point is made where it stands (`point`): the jump to the entry takes the place of the instruction
//! before it only.

use crate::seccomp::ask;
use crate::slots::{Early, Slot};
use crate::sys::place;
use bonsai_calls::BY_NR;
use bonsai_sites::Point;
use core::mem::offset_of;

/// One moved site.
#[repr(C)]
struct Entry {
    record: Slot,
    /// Where the decision is.
    decide: usize,
    /// `syscall; jmp` back, for calls that are none of ours.
    raw: [u8; 8],
    /// What was moved; `lea record(%rip),%r11`; `jmp *decide(%rip)`.
    code: [u8; CODE],
}

const CODE: usize = 32;
const LEN: usize = size_of::<Entry>();
const _: () = assert!(LEN == 72 && bonsai_sites::MOVED_MOST as usize + 13 <= CODE);

const DECIDE_AT: i32 = 24;
const CODE_AT: i32 = 40;
const _: () = assert!(offset_of!(Entry, decide) == 24 && offset_of!(Entry, code) == 40);

/// Where `raw` is.
pub(crate) const RAW: usize = offset_of!(Entry, raw);

/// Room for entries.
pub(crate) struct Area {
    at: usize,
    len: usize,
    used: usize,
}

/// The latest areas, each with its library. Written at start and under the loader's
/// lock.
static LATEST: Early<[(usize, usize, usize); 16]> = Early::new([(0, 0, 0); 16]);

/// Gives back the area of a library that was at `library` before, and is gone since
/// there is another one: a program may load and unload all day long.
pub(crate) fn give_back(library: usize) {
    // SAFETY: no other thread is here; and only code that is not mapped any more led to
    // such an area.
    unsafe {
        for (owner, at, len) in &mut *LATEST.get() {
            if *owner == library {
                *owner = 0;
                ask!(Munmap, *at, *len);
            }
        }
    }
}

impl Area {
    /// Room for `count` entries of the library at address `near`, below it if that
    /// is free.
    pub(crate) fn new(count: usize, near: usize) -> Option<Self> {
        let len = (count * LEN).next_multiple_of(4096);
        #[cfg(feature = "alone")]
        if let Some(at) = crate::attach::running::room(len, near) {
            return Some(Self { at, len, used: 0 });
        }
        let hint = near.saturating_sub(len.next_multiple_of(0x1_0000)) & !4095;
        // SAFETY: new memory (MAP_PRIVATE | MAP_ANONYMOUS), where nothing is.
        let at = unsafe { ask!(Mmap, hint, len, 3, 0x22, -1_isize, 0) };
        (!(-4095..0).contains(&at)).then_some(Self {
            at: at.cast_unsigned(),
            len,
            used: 0,
        })
    }

    /// Makes the entry of the `syscall` at address `at`, before which `moved` is
    /// moved: how far a jump there has to go, if it reaches it.
    pub(crate) fn add(
        &mut self,
        at: usize,
        number: u16,
        moved: &[u8],
        (point, is_libcs): (Option<Point>, bool),
    ) -> Option<i32> {
        let entry = self.at + self.used * LEN;
        let code = entry + offset_of!(Entry, code);
        let ret = at + 2;
        let raw = entry + RAW;
        // Both ways; what is near one is near the other.
        let back = distance(raw + 7, ret)?.to_le_bytes();
        let jump = distance(at - moved.len() + 5, code)?;
        if (self.used + 1) * LEN > self.len || moved.len() > CODE - 13 {
            return None;
        }
        let call = BY_NR.get(usize::from(number)).copied().unwrap_or(0);
        let tail = i32::try_from(moved.len()).unwrap_or(0);
        // From behind each instruction back to what it refers to.
        let r = (-CODE_AT - tail - 7).to_le_bytes();
        let d = (DECIDE_AT - CODE_AT - tail - 13).to_le_bytes();
        let last: [u8; 13] = [
            0x4c, 0x8d, 0x1d, r[0], r[1], r[2], r[3], 0xff, 0x25, d[0], d[1], d[2], d[3],
        ];
        let there = distance(raw + 5, at)?.to_le_bytes();
        let (decide, record, raw) = if let Some(point) = point {
            let [a, b, c, d] = there;
            let raw = [0xe9, a, b, c, d, 0xcc, 0xcc, 0xcc];
            let bit = match point {
                Point::Musl => 0,
                Point::Glibc(bit) => bit,
            };
            (place!("bonsai_second_in_place"), Slot::in_place(bit, ret), raw)
        } else {
            let [a, b, c, d] = back;
            let raw = [0x0f, 0x05, 0xe9, a, b, c, d, 0xcc];
            let record = Slot::moved(call, u32::from(number), is_libcs, ret);
            (decision(number, call), record, raw)
        };
        // SAFETY: within the area, which is not full and still writable; the moved
        // bytes leave room for the last ones.
        unsafe {
            (entry as *mut Entry).write(Entry {
                record,
                decide,
                raw,
                code: [0xcc; CODE],
            });
            let code = code as *mut u8;
            code.copy_from_nonoverlapping(moved.as_ptr(), moved.len());
            code.add(moved.len())
                .cast::<[u8; 13]>()
                .write_unaligned(last);
        }
        self.used += 1;
        Some(jump)
    }

    /// Makes the entries executable, and not writable any more; gives the memory
    /// back if that is not allowed, or if there are none.
    pub(crate) fn finish(self, library: usize) -> bool {
        const RX: usize = 5;
        // SAFETY: our own memory, which nothing refers to yet.
        unsafe {
            let done = self.used > 0 && ask!(Mprotect, self.at, self.len, RX) == 0;
            if done {
                let latest = &mut *LATEST.get();
                latest.copy_within(..15, 1);
                latest[0] = (library, self.at, self.len);
            } else {
                ask!(Munmap, self.at, self.len);
            }
            done
        }
    }
}

/// Where the decision on a site is whose call has that number.
#[cfg(feature = "alone")]
fn decision(number: u16, call: u8) -> usize {
    /// As in `gen/second.rs`.
    const KNOWN: usize = 16;
    let returns_once = !matches!(number, 56..=58);
    let known = BY_NR.get(usize::from(number)).is_some_and(|of| *of == call);
    match crate::slots::POOL_OF.get(usize::from(call)) {
        Some(pool) if known && returns_once => {
            place!("bonsai_known") + KNOWN * usize::from(*pool)
        }
        _ => place!("bonsai_second_any"),
    }
}

/// Likewise: all are looked up, as hardly any library has such sites.
#[cfg(not(feature = "alone"))]
fn decision(_: u16, _: u8) -> usize {
    place!("bonsai_second_any")
}

/// The distance that a jump which ends at `from` has to go to get to `to`.
pub(crate) fn distance(from: usize, to: usize) -> Option<i32> {
    #[expect(clippy::cast_possible_wrap, reason = "a distance in the address space")]
    let distance = to.wrapping_sub(from) as isize;
    i32::try_from(distance).ok()
}
