//! The second door: system call instructions, replaced by jumps.
//!
//! A site of libc is `syscall; cmp $-4096,%rax` (eight bytes). The first five become
//! a jump to a slot, which makes the same decision as an exported symbol, the system
//! call, and the comparison, and jumps back behind it. Those of other libraries are
//! moved (`moved`). Where the sites are was found out once by `bonsai run` and stands
//! in the segment by build-id; a libc that is not in it is searched here, and so is
//! what `dlopen` brings.
//!
//! Only done while nobody else can execute the code: while there is one thread, or
//! to a library that has just been mapped; and only with bytes that are what they are
//! expected to be.

#[cfg(feature = "alone")]
use crate::attach::running;
use crate::elf::{self, Object};
#[cfg(not(feature = "alone"))]
use crate::extension;
#[cfg(feature = "alone")]
use crate::found;
#[cfg(not(feature = "alone"))]
use crate::found::next_call;
#[cfg(feature = "alone")]
use crate::found::MOVED;
use crate::found::{Found, Search, Sites};
#[cfg(not(feature = "alone"))]
use crate::loaded;
use crate::moved::{Area, distance};
#[cfg(not(feature = "alone"))]
use crate::moved;
use crate::slots;
use crate::seccomp::{self, ask};
use crate::state::PATCHED;
use crate::trap;
use crate::uncovered::AT_FDCWD;
#[cfg(feature = "alone")]
use crate::threads;
use bonsai_calls::{BY_NR, NO_CALL};
use bonsai_sites::{ANY, Point};
use bonsai_ledger::{Reason, Segment};
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

mod seen;

pub(crate) use seen::{all_patched, count, unseen};
#[cfg(not(feature = "alone"))]
pub(crate) use seen::{count_also, is_point_here};
use seen::{MISSED_SITES, saw};

/// Text that is looked through when a library comes late. Those with I/O of their
/// own are small; a large one would make `dlopen` slower by reading all its pages.
const LATE_TEXT: usize = 512 << 10;

/// Text of a program that is looked through at each start: a few milliseconds' worth.
#[cfg(not(feature = "alone"))]
const PROGRAM_TEXT: usize = 16 << 20;

/// Patches libc, the loader, and what the segment has sites of. Returns why not
/// libc, or `Reason::None`.
#[cfg(not(feature = "alone"))]
pub(crate) fn libraries(segment: &'static Segment) -> Reason {
    let mut reason = Reason::NoSites;
    // Then every site counts, known or not.
    let other = if trap::is_wanted(segment) {
        Search::Moved
    } else {
        Search::No
    };
    // Before those of which some have functions of libc again (libpthread before glibc 2.34): there may not be slots for all.
    for libc in elf::objects().filter(|object| elf::is_libc(object)) {
        reason = library(segment, libc, Search::Compared);
    }
    for (i, object) in elf::objects().enumerate().filter(|(_, object)| !elf::is_libc(object)) {
        let file = object.file();
        let glibc = file.starts_with(b"ld-linux")
            || file.starts_with(b"libpthread")
            || file.starts_with(b"librt.so");
        if glibc {
            library(segment, object, Search::Compared);
        } else if file.starts_with(b"liburing") || file.starts_with(b"libaio") {
            library(segment, object, Search::Moved);
        } else if !file.starts_with(b"linux-vdso") {
            let is_looked_at = i == 0 && other == Search::No && is_pascal(object);
            let search = if is_looked_at { Search::Program } else { other };
            library(segment, object, search);
        }
    }
    reason
}

/// True of a program that makes system calls by instructions of its own beside libc's, and that no table has, as its linker leaves out
/// the build-id.
#[cfg(not(feature = "alone"))]
fn is_pascal(program: &Object) -> bool {
    let text = || program.texts().map(<[u8]>::len).sum::<usize>();
    program.notes().any(bonsai_sites::is_pascal) && text() <= PROGRAM_TEXT
}

/// Patches a program without a loader, or Go's own code in one that has one.
/// `reads_base`: it may read the base of `fs`.
#[cfg(feature = "alone")]
pub(crate) fn program(segment: &'static Segment, reads_base: bool) -> Reason {
    let Some(object) = elf::objects().next() else {
        return Reason::NoSites;
    };
    // Go's instructions are all moved: one that cannot be decided on is made in place.
    let search = match object.is_go() {
        true if reads_base && threads::prepare_go() => Search::Moved,
        true => return Reason::NoSites,
        false => Search::Both,
    };
    library(segment, object, search)
}

/// Finds what is to be patched in a process that runs already: whoever holds its
/// threads does it (`running`). Returns why not libc, or `Reason::None`.
#[cfg(feature = "alone")]
pub(crate) fn running(segment: &'static Segment, reads_base: bool) -> Reason {
    let mut reason = Reason::NoSites;
    for (i, object) in elf::objects().enumerate() {
        let file = object.file();
        let is = |name: &&[u8]| file.starts_with(name);
        let small = || object.texts().map(<[u8]>::len).sum::<usize>() <= LATE_TEXT;
        if elf::is_libc(object) {
            reason = library(segment, object, Search::Both);
        } else if [&b"ld-linux"[..], b"libpthread", b"librt.so"].iter().any(is) {
            library(segment, object, Search::Both);
        } else if i == 0 && object.is_go() {
            if reads_base && threads::prepare_go() {
                library(segment, object, Search::Moved);
            }
        } else if i > 0 && !object.is_go() && !bonsai_sites::is_left_alone(file) && small() {
            library(segment, object, Search::Moved);
        } else {
            library(segment, object, Search::No);
        }
    }
    reason
}

/// Patches a library that has just been mapped, as nobody executes it yet.
#[cfg(not(feature = "alone"))]
pub(crate) fn late(segment: &'static Segment, object: &Object) {
    let alone = bonsai_sites::is_left_alone(object.file());
    let small = object.texts().map(<[u8]>::len).sum::<usize>() <= LATE_TEXT;
    moved::give_back(object.start());
    if PATCHED.load(Ordering::Relaxed) && !alone {
        let search = if small { Search::Moved } else { Search::No };
        library(segment, object, search);
    }
}

/// Patches what can be patched, and puts what cannot under the trap, where that is wanted.
fn library(segment: &'static Segment, object: &Object, search: Search) -> Reason {
    if !trap::is_wanted(segment) {
        return patch_all(segment, object, search, &mut 0);
    }
    let alone = bonsai_sites::is_left_alone(object.file()) || trap::is_here(object);
    let search = if alone { Search::No } else { search };
    let (before, mut unsure) = (count().1, 0);
    let reason = patch_all(segment, object, search, &mut unsure);
    if (unsure > 0 || count().1 > before) && !object.is_go() {
        trap::cover(object);
    }
    #[cfg(not(feature = "alone"))]
    if elf::is_libc(object) {
        watch_code(object);
    }
    reason
}

/// Replaces the calls by which libc sets handlers and masks of signals, before there is a trap: a
/// process that has a debugger must not get a signal for them, and trapped they take longer.
#[cfg(not(feature = "alone"))]
pub(crate) fn signals(segment: &'static Segment, libc: &Object) {
    patch_all(segment, libc, Search::Signals, &mut 0);
}

/// Lets libc tell of memory that becomes executable.
#[cfg(not(feature = "alone"))]
fn watch_code(libc: &Object) {
    trap::watch(libc, &mut |at, bytes| {
        let place = at..at + 8;
        let way = Way::open(libc, &place);
        way.write(at, bytes);
        way.close(libc, &place);
    });
}

// Not a part of start-up's frame: its array is several pages, and each page of a
// frame is touched.
#[inline(never)]
fn patch_all(
    segment: &'static Segment,
    object: &Object,
    search: Search,
    unsure: &mut u32,
) -> Reason {
    // Where every site counts, those that were looked for beforehand are too few.
    let all = search == Search::Moved && trap::is_wanted(segment);
    let others = all || search == Search::Signals;
    let known = in_table(segment, object).filter(|words| !others && !is_in_part(object, words, search));
    if known.is_none() && search == Search::No {
        return Reason::NoSites;
    }
    #[cfg(not(feature = "alone"))]
    let sites = &mut Sites::new();
    // The stack of a program may be smaller than what is found in one.
    #[cfg(feature = "alone")]
    let Some(mut memory) = found::Memory::new() else {
        return Reason::PatchDenied;
    };
    #[cfg(feature = "alone")]
    let sites = memory.sites();
    match known {
        Some(words) => from_table(object, words, sites),
        None => {
            from_text(segment, object, search, sites);
            #[cfg(feature = "alone")]
            to_table(segment, object, sites);
        }
    }
    MISSED_SITES.fetch_add(sites.lost, Ordering::Relaxed);
    *unsure = sites.unsure;
    #[cfg(not(feature = "alone"))]
    let function = loaded::function_in(object);
    #[cfg(feature = "alone")]
    let function: Option<(usize, [u8; 8])> = None;
    let mut found = sites.all();
    let go = cfg!(not(feature = "alone")) && object.is_go();
    // All calls of a small musl program may be made by one instruction.
    #[cfg(feature = "alone")]
    let worth = |site: &Found| site.is_wanted() || search == Search::Both;
    // All calls of a program may be made by instructions whose number is an argument.
    #[cfg(not(feature = "alone"))]
    let worth = |site: &Found| site.is_wanted() || search == Search::Program && site.nr == ANY;
    let wanted = known.is_some() || found.iter().any(worth) || others && !found.is_empty();
    if !wanted || go {
        if function.is_none() {
            return Reason::NoSites;
        }
        found = &mut [];
    }
    let of_libc = elf::is_libc(object);
    move_instructions(object, found, of_libc);
    #[cfg(not(feature = "alone"))]
    if of_libc {
        join(object, found);
    }
    let (mut low, mut high) = function.map_or((usize::MAX, 0), |(at, _)| (at, at));
    for site in found.iter().filter(|s| !s.is_moved() || s.to != 0) {
        low = low.min(site.first());
        high = high.max(site.at);
    }
    if high == 0 {
        return miss(found, of_libc);
    }
    let places = low..high + 8;
    let way = Way::open(object, &places);
    if matches!(way, Way::None) {
        return miss(found, of_libc);
    }
    for site in found.iter() {
        let patched = patch(site, &way);
        saw(site, of_libc, patched);
    }
    if let Some((at, bytes)) = function {
        way.write(at, bytes);
    }
    way.close(object, &places);
    Reason::None
}

/// Patches libc's calls of any number together or not at all: one function makes either of them (`bonsai_sites::cancelling`), and each
/// call must be counted once.
#[cfg(not(feature = "alone"))]
fn join(object: &Object, found: &mut [Found]) {
    let is_any = |site: &Found| site.is_moved() && site.nr == ANY;
    let any = || found.iter().filter(|site| is_any(site));
    if any().any(|site| point_at(object, site) == Some(Point::Musl)) {
        seen::note_musl();
    }
    if any().count() > 1 && any().all(|site| site.to != 0) {
        return;
    }
    for site in found.iter_mut().filter(|site| is_any(site)) {
        site.to = 0;
    }
}

/// None of these can be patched.
fn miss(found: &[Found], of_libc: bool) -> Reason {
    found.iter().for_each(|site| saw(site, of_libc, false));
    Reason::PatchDenied
}

/// Makes the entries of moved sites.
fn move_instructions(object: &Object, found: &mut [Found], of_libc: bool) {
    let movable = |site: &&mut Found| site.is_moved() && site.back > 0;
    let count = found.iter_mut().filter(movable).count();
    // A filter that the program has made itself may not want to see new code.
    if count == 0 || seccomp::is_filtered() && PATCHED.load(Ordering::Relaxed) {
        return;
    }
    let Some(mut area) = Area::new(count, object.start()) else {
        return;
    };
    for site in found.iter_mut().filter(movable) {
        // SAFETY: within the text of a mapped object, as was found out.
        let code = unsafe {
            core::slice::from_raw_parts(site.first() as *const u8, usize::from(site.back) + 2)
        };
        let Some((moved, [0x0f, 0x05])) = code.split_last_chunk::<2>() else {
            continue;
        };
        // Whoever has found it has seen to it that they mean the same elsewhere.
        let kind = (point_at(object, site), of_libc);
        site.to = area.add(site.at, site.nr, moved, kind).unwrap_or(0);
    }
    if !area.finish(object.start()) {
        found.iter_mut().for_each(|site| site.to = 0);
    }
}

/// The cancellation point of a libc.
fn point_at(object: &Object, site: &Found) -> Option<Point> {
    // A Go program makes the call on another stack.
    if site.nr != ANY || object.is_go() {
        return None;
    }
    let text = object
        .texts()
        .find(|t| t.as_ptr_range().contains(&(site.at as *const u8)))?;
    bonsai_sites::cancellation_point(text, site.at - text.as_ptr() as usize)
}

fn patch(site: &Found, way: &Way) -> bool {
    // SAFETY: within the text of a mapped object.
    let here = unsafe { *(site.first() as *const [u8; 8]) };
    let distance = if site.is_moved() {
        // Checked when its entry was made.
        Some(site.to).filter(|to| *to != 0)
    } else {
        let cmp = i32::from(site.form) - 4096;
        let expected = [0x0f, 0x05, 0x48, 0x3d, site.form, 0xf0, 0xff, 0xff];
        let call = BY_NR.get(usize::from(site.nr)).copied();
        call.filter(|call| *call != NO_CALL && here == expected)
            .and_then(|call| slots::take(call, u32::from(site.nr), site.at + 8, cmp))
            .and_then(|to| distance(site.at + 5, to))
    };
    let Some(distance) = distance else {
        return false;
    };
    let d = distance.to_le_bytes();
    let rest = if site.is_moved() {
        [here[5], here[6], here[7]]
    } else {
        // A three-byte no-op fills up, so that a disassembler reads on.
        [0x0f, 0x1f, 0x00]
    };
    let jump = [0xe9, d[0], d[1], d[2], d[3], rest[0], rest[1], rest[2]];
    #[cfg(feature = "alone")]
    if running::is_running() {
        return running::note(site.first(), here, jump, site.back, site.is_moved());
    }
    way.write(site.first(), jump)
}

/// The sites of a library in the segment, as `bonsai run` found them.
fn in_table<'a>(segment: &'a Segment, object: &Object) -> Option<&'a [AtomicU64]> {
    let mut id = [0_u8; 24];
    let build_id = object.notes().find_map(bonsai_sites::build_id)?;
    let len = build_id.len().min(24);
    if let (Some(to), Some(from)) = (id.get_mut(..len), build_id.get(..len)) {
        to.copy_from_slice(from);
    }
    segment.sites.libs.iter().find_map(|lib| {
        let count = lib.count.load(Ordering::Acquire) as usize;
        let same = lib
            .build_id
            .iter()
            .zip(id.chunks_exact(8))
            .all(|(word, bytes)| word.load(Ordering::Relaxed).to_le_bytes() == bytes);
        let first = lib.first.load(Ordering::Relaxed) as usize;
        let words = segment.sites.sites.get(first..first + count);
        words.filter(|_| count > 0 && same)
    })
}

/// Keeps the sites of a program that has just begun for those that run it after this:
/// looking for them is most of what it costs to be entered.
#[cfg(feature = "alone")]
fn to_table(segment: &Segment, object: &Object, sites: &mut Sites) {
    let Some(build_id) = object.notes().find_map(bonsai_sites::build_id) else {
        return;
    };
    if running::is_running() || sites.lost > 0 {
        return;
    }
    let start = object.start();
    let word = |site: &Found| {
        let offset = site.at.wrapping_sub(start) as u64 & 0xffff_ffff;
        let form = u64::from(site.form) << 48 | u64::from(site.back) << 50;
        offset | u64::from(site.nr) << 32 | form
    };
    segment.store_sites(build_id, sites.all().iter().map(word));
}

/// True if a table has only a part of the sites that a process needs which runs already, as nothing is decided on by exported symbols
/// there: that of musl, or of a program without a loader, of which no site is compared.
#[cfg(feature = "alone")]
fn is_in_part(object: &Object, words: &[AtomicU64], search: Search) -> bool {
    let compared = |word: &AtomicU64| word.load(Ordering::Relaxed) >> 48 & 3 < u64::from(MOVED);
    let needs_all = elf::is_libc(object) || running::is_running() && search == Search::Both;
    needs_all && !words.iter().any(compared)
}

/// Exported symbols decide on what a table does not have.
#[cfg(not(feature = "alone"))]
fn is_in_part(_: &Object, _: &[AtomicU64], _: Search) -> bool {
    false
}

fn from_table(object: &Object, words: &[AtomicU64], sites: &mut Sites) {
    let start = object.start();
    let mut text = 0..0;
    for word in words {
        let word = word.load(Ordering::Relaxed);
        #[expect(clippy::cast_possible_truncation, reason = "fields of a word")]
        let site = Found {
            at: start.wrapping_add(word as u32 as usize),
            to: 0,
            nr: (word >> 32) as u16,
            back: (word >> 50) as u8 & 15,
            form: form((word >> 48) as u8 & 3),
        };
        let within = |text: &Range<usize>| text.contains(&site.first()) && site.at + 8 <= text.end;
        // Nearly all libraries have one text.
        if !within(&text) {
            let mut texts = object.texts().map(|t| {
                let t = t.as_ptr_range();
                t.start as usize..t.end as usize
            });
            text = texts.find(within).unwrap_or(0..0);
        }
        if within(&text) {
            sites.add(site);
        }
    }
}

/// The form of a site of the segment. That of libc's function `syscall` is for processes
/// that run already, whose calls of it are bound to it.
fn form(of: u8) -> u8 {
    #[cfg(feature = "alone")]
    if of == found::OPEN && running::is_running() {
        return found::MOVED;
    }
    of
}

/// Looks for the sites of a library of an unknown build.
#[cfg(feature = "alone")]
fn from_text(_: &'static Segment, object: &Object, search: Search, sites: &mut Sites) {
    for text in object.texts() {
        crate::search::look_through(text, search, sites);
    }
}

/// Looks for the sites of a library of an unknown build. Most have none, and most
/// processes never get here: only the extension can tell more.
#[cfg(not(feature = "alone"))]
fn from_text(segment: &'static Segment, object: &Object, search: Search, sites: &mut Sites) {
    for text in object.texts().filter(|text| next_call(text, 0).is_some()) {
        if let Some(extension) = extension::get(segment) {
            // SAFETY: the same layout on both sides.
            unsafe { (extension.search)(text.as_ptr(), text.len(), search, sites) };
        }
    }
}

/// How text can be written here.
enum Way {
    /// Its pages are writable for a moment.
    Protect,
    /// Through `/proc/self/mem`, where memory may not be writable and executable.
    Memory(usize),
    /// By somebody else, who is told where.
    #[cfg(feature = "alone")]
    Noted,
    /// Not at all.
    None,
}

impl Way {
    fn open(object: &Object, places: &Range<usize>) -> Self {
        #[cfg(feature = "alone")]
        if running::is_running() {
            return Self::Noted;
        }
        if protect(object, places, true) {
            return Self::Protect;
        }
        protect(object, places, false);
        let path = c"/proc/self/mem";
        // SAFETY: a string of our own.
        let fd = unsafe { ask!(OpenWrite, AT_FDCWD, path.as_ptr(), 0o2_000_002, 0) };
        match usize::try_from(fd) {
            Ok(fd) => Self::Memory(fd),
            Err(_) => Self::None,
        }
    }

    #[inline(never)]
    fn write(&self, at: usize, bytes: [u8; 8]) -> bool {
        match *self {
            Self::Protect => {
                // SAFETY: writable since `open`; there is no other thread.
                unsafe { (at as *mut [u8; 8]).write(bytes) };
                true
            }
            // SAFETY: eight bytes of our own.
            Self::Memory(fd) => unsafe { ask!(Pwrite, fd, bytes.as_ptr(), 8, at) == 8 },
            _ => false,
        }
    }

    fn close(self, object: &Object, places: &Range<usize>) {
        match self {
            Self::Protect => {
                protect(object, places, false);
            }
            // SAFETY: ours.
            Self::Memory(fd) => drop(unsafe { ask!(Close, fd) }),
            _ => {}
        }
    }
}

/// Makes the code between places writable, or what it was; false if not all of it can be. What is between two parts of code may be
/// data, and stays as it is.
#[inline(never)]
fn protect(object: &Object, places: &Range<usize>, writable: bool) -> bool {
    const RWX: usize = 7;
    let mut all = true;
    for (code, protection) in object.codes() {
        let (low, high) = (code.start.max(places.start), code.end.min(places.end));
        if low < high {
            let from = low & !4095;
            let len = ((high + 4095) & !4095) - from;
            let to = if writable { RWX } else { protection };
            // SAFETY: code of an object; its contents stay the same.
            all &= unsafe { ask!(Mprotect, from, len, to) } == 0;
        }
    }
    all
}
