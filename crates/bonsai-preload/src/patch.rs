//! The second door: libc's own system call instructions, replaced by jumps.
//!
//! A site is `syscall; cmp $-4096,%rax` (eight bytes). The first five become a
//! jump to a slot, which makes the same decision as an exported symbol, the system
//! call, and the comparison, and jumps back behind it. Where the sites are was
//! found out once by `bonsai run` and stands in the segment by build-id; a libc
//! that is not in it is searched here.
//!
//! Only done while there is one thread, and only with bytes that are what they
//! are expected to be.

use crate::elf::{self, Object, PT_LOAD, PT_NOTE};
use crate::slots;
use crate::sys::{call, nr};
use bonsai_calls::{BY_NR, NO_CALL, NR_LIMIT};
use bonsai_ledger::{Reason, Segment};
use core::sync::atomic::{AtomicU8, AtomicU32, Ordering};

/// By system call number: how many sites were seen, and whether one of them
/// could not be patched (the highest bit).
static SEEN: [AtomicU8; NR_LIMIT] = [const { AtomicU8::new(0) }; NR_LIMIT];
const MISSED: u8 = 0x80;

#[unsafe(link_section = ".bss.bonsai_early")]
static PATCHED_SITES: AtomicU32 = AtomicU32::new(0);

/// Sites patched in this process.
pub(crate) fn count() -> u32 {
    PATCHED_SITES.load(Ordering::Relaxed)
}

/// Whether every site of that number that was found is patched, and at least one
/// was found.
pub(crate) fn all_patched(nr: usize) -> bool {
    let seen = SEEN.get(nr).map_or(0, |s| s.load(Ordering::Relaxed));
    seen != 0 && seen & MISSED == 0
}

fn saw(nr: usize, patched: bool) {
    if let Some(seen) = SEEN.get(nr) {
        let now = seen.load(Ordering::Relaxed);
        let next = if patched {
            (now & MISSED) | ((now & !MISSED) + 1).min(0x7f)
        } else {
            now | MISSED
        };
        seen.store(next, Ordering::Relaxed);
    }
}

/// One site to patch.
#[derive(Clone, Copy)]
struct Found {
    at: usize,
    nr: u16,
    cmp: i32,
}

/// Patches libc and the loader. Returns why not, or `Reason::None`.
pub(crate) fn libraries(segment: &Segment) -> Reason {
    let mut reason = Reason::NoSites;
    for object in elf::objects() {
        let name = object.name();
        let file = name.rsplit(|b| *b == b'/').next().unwrap_or_default();
        let wanted = elf::is_libc(object)
            || file.starts_with(b"ld-linux")
            || file.starts_with(b"libpthread")
            || file.starts_with(b"librt.so");
        if !wanted || name.starts_with(b"linux-vdso") {
            continue;
        }
        let done = library(segment, object);
        if elf::is_libc(object) {
            reason = done;
        }
    }
    reason
}

/// The most sites of one library.
const SITES: usize = 320;

// Not a part of start-up's frame: its array is several pages, and each page of a
// frame is touched.
#[inline(never)]
fn library(segment: &Segment, object: &Object) -> Reason {
    let mut found = [Found {
        at: 0,
        nr: 0,
        cmp: 0,
    }; SITES];
    let mut n = 0;
    let mut add = |site: Found| {
        let wanted = BY_NR
            .get(usize::from(site.nr))
            .is_some_and(|c| *c != NO_CALL)
            && !matches!(site.nr, 56..=58);
        if let (true, Some(slot)) = (wanted, found.get_mut(n)) {
            *slot = site;
            n += 1;
        }
    };
    if !from_table(segment, object, &mut add) {
        from_text(object, &mut add);
    }
    let found = found.get(..n).unwrap_or_default();
    let (Some(low), Some(high)) = (
        found.iter().map(|s| s.at).min(),
        found.iter().map(|s| s.at).max(),
    ) else {
        return Reason::NoSites;
    };
    let way = Way::open(low, high + 8);
    if matches!(way, Way::None) {
        found.iter().for_each(|s| saw(usize::from(s.nr), false));
        return Reason::PatchDenied;
    }
    for site in found {
        let patched = patch(site, &way);
        saw(usize::from(site.nr), patched);
        if patched {
            PATCHED_SITES.fetch_add(1, Ordering::Relaxed);
        }
    }
    way.close(low, high + 8);
    Reason::None
}

fn patch(site: &Found, way: &Way) -> bool {
    let expected = match site.cmp {
        -4096 => [0x0f, 0x05, 0x48, 0x3d, 0x00, 0xf0, 0xff, 0xff],
        _ => [0x0f, 0x05, 0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff],
    };
    // SAFETY: within the text of a mapped object.
    if unsafe { *(site.at as *const [u8; 8]) } != expected {
        return false;
    }
    let Some(call) = BY_NR
        .get(usize::from(site.nr))
        .copied()
        .filter(|c| *c != NO_CALL)
    else {
        return false;
    };
    let Some(slot) = slots::take(call, u32::from(site.nr), site.at + 8, site.cmp) else {
        return false;
    };
    #[expect(clippy::cast_possible_wrap, reason = "a distance in the address space")]
    let distance = slot.wrapping_sub(site.at + 5) as isize;
    let Ok(distance) = i32::try_from(distance) else {
        return false;
    };
    let d = distance.to_le_bytes();
    // A three-byte no-op fills up, so that a disassembler reads on.
    way.write(site.at, [0xe9, d[0], d[1], d[2], d[3], 0x0f, 0x1f, 0x00])
}

/// The sites of a library as `bonsai run` found them.
fn from_table(segment: &Segment, object: &Object, add: &mut impl FnMut(Found)) -> bool {
    let mut id = [0_u8; 24];
    let Some(build_id) = build_id(object) else {
        return false;
    };
    let len = build_id.len().min(24);
    if let (Some(to), Some(from)) = (id.get_mut(..len), build_id.get(..len)) {
        to.copy_from_slice(from);
    }
    for lib in &segment.sites.libs {
        let count = lib.count.load(Ordering::Acquire) as usize;
        let same = lib
            .build_id
            .iter()
            .zip(id.chunks_exact(8))
            .all(|(word, bytes)| word.load(Ordering::Relaxed).to_le_bytes() == bytes);
        if count == 0 || !same {
            continue;
        }
        let first = lib.first.load(Ordering::Relaxed) as usize;
        for word in segment
            .sites
            .sites
            .get(first..first + count)
            .unwrap_or_default()
        {
            let word = word.load(Ordering::Relaxed);
            #[expect(clippy::cast_possible_truncation, reason = "fields of a word")]
            let site = Found {
                at: object.base.wrapping_add(word as u32 as usize),
                nr: (word >> 32) as u16,
                cmp: if word >> 48 & 1 == 1 { -4095 } else { -4096 },
            };
            if in_text(object, site.at) {
                add(site);
            }
        }
        return true;
    }
    false
}

fn in_text(object: &Object, at: usize) -> bool {
    object.headers().iter().any(|h| {
        let start = object.base.wrapping_add(h.address);
        h.kind == PT_LOAD && h.flags & 1 == 1 && at >= start && at + 8 <= start + h.len
    })
}

/// Searches the text of a library of an unknown build.
// The same of its filter.
#[inline(never)]
fn from_text(object: &Object, add: &mut impl FnMut(Found)) {
    for h in object
        .headers()
        .iter()
        .filter(|h| h.kind == PT_LOAD && h.flags & 1 == 1)
    {
        let start = object.base.wrapping_add(h.address);
        // SAFETY: a mapped segment of the object.
        let text = unsafe { core::slice::from_raw_parts(start as *const u8, h.len) };
        let mut sites = [None; SITES];
        let wanted = bonsai_sites::guess(text)
            .filter(|s| BY_NR.get(usize::from(s.nr)).is_some_and(|c| *c != NO_CALL));
        for (slot, site) in sites.iter_mut().zip(wanted) {
            *slot = Some(site);
        }
        bonsai_sites::reject_branch_targets(text, &mut sites);
        for site in sites.iter().flatten() {
            add(Found {
                at: start + site.offset as usize,
                nr: site.nr,
                cmp: site.cmp,
            });
        }
    }
}

fn build_id(object: &Object) -> Option<&[u8]> {
    object
        .headers()
        .iter()
        .filter(|h| h.kind == PT_NOTE)
        .find_map(|h| {
            let at = object.base.wrapping_add(h.address);
            // SAFETY: a mapped note segment.
            let notes = unsafe { core::slice::from_raw_parts(at as *const u8, h.len) };
            bonsai_sites::build_id(notes)
        })
}

/// How text can be written here.
enum Way {
    /// Its pages are writable for a moment.
    Protect,
    /// Through `/proc/self/mem`, where memory may not be writable and executable.
    Memory(usize),
    /// Not at all.
    None,
}

const RX: usize = 5;
const RWX: usize = 7;

impl Way {
    fn open(low: usize, high: usize) -> Self {
        let (from, len) = pages(low, high);
        // SAFETY: text of a library; its contents stay the same.
        unsafe {
            if call!(nr::MPROTECT, from, len, RWX) == 0 {
                return Self::Protect;
            }
            let path = c"/proc/self/mem";
            let fd = call!(nr::OPEN, path.as_ptr(), 0o2_000_002, 0);
            match usize::try_from(fd) {
                Ok(fd) => Self::Memory(fd),
                Err(_) => Self::None,
            }
        }
    }

    fn write(&self, at: usize, bytes: [u8; 8]) -> bool {
        match *self {
            Self::Protect => {
                // SAFETY: writable since `open`; there is no other thread.
                unsafe { (at as *mut [u8; 8]).write(bytes) };
                true
            }
            // SAFETY: eight bytes of our own.
            Self::Memory(fd) => unsafe { call!(nr::PWRITE64, fd, bytes.as_ptr(), 8, at) == 8 },
            Self::None => false,
        }
    }

    fn close(self, low: usize, high: usize) {
        let (from, len) = pages(low, high);
        // SAFETY: back to what it was.
        unsafe {
            match self {
                Self::Protect => call!(nr::MPROTECT, from, len, RX),
                Self::Memory(fd) => call!(nr::CLOSE, fd),
                Self::None => 0,
            };
        }
    }
}

const fn pages(low: usize, high: usize) -> (usize, usize) {
    let from = low & !4095;
    (from, ((high + 4095) & !4095) - from)
}
