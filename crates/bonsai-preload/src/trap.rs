//! Calls of code that cannot be patched (`bonsai run --unpatched trap`): a seccomp filter of
//! this process alone turns them into a signal, whose handler decides and makes the call.
//!
//! # Where the filter traps
//! Only where the instruction pointer is within the code in question: the text of a library
//! or a program with sites that stay, memory that was made executable. Not everywhere but
//! in our own code, which would be simpler: a filter outlives `execve`, and the next program
//! has no handler until we are in it. Its loader makes calls before that, from addresses
//! that the kernel chooses anew each time, one in 2^28 pages. What stands at addresses of
//! its own choice (`ET_EXEC`) is looked at before it is run (`uncovered`).
//!
//! # The signal
//! `SIGSYS` must not be blocked, and the handler has to stay ours: `rt_sigprocmask` and
//! `rt_sigaction` of libc are trapped as well. The program keeps its own handler for it,
//! which is called for every `SIGSYS` that is not ours.

#[cfg(not(feature = "alone"))]
mod code;

use crate::amount::Args;
use crate::attach;
use crate::calls::first_entry;
use crate::doors::mode;
use crate::elf::{self, Object};
use crate::extension::{self, Filter, OURS, own_text};
#[cfg(not(feature = "alone"))]
use crate::patch;
use crate::seccomp;
use crate::slots::Site;
use crate::slow::bonsai_slow;
use crate::state;
use crate::headers::{PT_LOAD, Phdr};
use crate::signal::{Context, Info, SECCOMP};
use crate::sys::{self, nr};
use bonsai_calls as calls;
use bonsai_ledger::{Segment, flags};
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

#[cfg(not(feature = "alone"))]
pub(crate) use code::watch;

/// Parts of the address space under the trap: as many as a start finds, and some that come
/// later, each with a filter of its own that every call passes.
const MOST: usize = 12;

static FROM: [AtomicUsize; MOST] = [const { AtomicUsize::new(0) }; MOST];
static TO: [AtomicUsize; MOST] = [const { AtomicUsize::new(0) }; MOST];
static USED: AtomicUsize = AtomicUsize::new(0);
/// Filters are in place.
static ACTIVE: AtomicBool = AtomicBool::new(false);
/// There is code that could not be put under the trap.
static FAILED: AtomicBool = AtomicBool::new(false);

/// Whether the service wants it, in this process: not where Go's runtime sets the handlers
/// of all signals, by instructions of its own.
pub(crate) fn is_wanted(segment: &Segment) -> bool {
    segment.header.flags.load(Ordering::Relaxed) & flags::TRAP != 0
        && !elf::objects().next().is_some_and(Object::is_go)
}

/// Whether an object is our own.
pub(crate) fn is_here(object: &Object) -> bool {
    object.contains(own_text().start)
}

/// Whether calls of this process are trapped.
pub(crate) fn is_active() -> bool {
    ACTIVE.load(Ordering::Relaxed)
}

fn ranges() -> impl Iterator<Item = Range<usize>> {
    let used = USED.load(Ordering::Acquire).min(MOST);
    let load = |all: &[AtomicUsize; MOST], i: usize| all.get(i).map_or(0, |w| w.load(Ordering::Acquire));
    (0..used).map(move |i| load(&FROM, i)..load(&TO, i))
}

/// Takes note of code; false if there is no room.
fn note(range: &Range<usize>) -> bool {
    let i = USED.fetch_add(1, Ordering::AcqRel);
    let (Some(from), Some(to)) = (FROM.get(i), TO.get(i)) else {
        USED.store(MOST, Ordering::Release);
        FAILED.store(true, Ordering::Relaxed);
        return false;
    };
    from.store(range.start, Ordering::Release);
    to.store(range.end, Ordering::Release);
    true
}

/// Puts the text of an object under the trap, whose sites could not all be replaced: with
/// the others of the start, or at once if that is over.
pub(crate) fn cover(object: &Object) {
    for text in object.texts() {
        add(span(text));
    }
}

fn add(range: Range<usize>) {
    if ranges().any(|known| known.start <= range.start && range.end <= known.end) {
        return;
    }
    if note(&range)
        && let Some(segment) = state::segment()
    {
        put(segment, &[range], true);
    }
}

/// At the end of start-up: the handler, if there is anything under the trap in this process,
/// or was in whatever ran here before; and the filter.
pub(crate) fn begin(segment: &'static Segment) {
    let mut all = [const { 0..0 }; MOST];
    let mut count = 0;
    for (slot, range) in all.iter_mut().zip(ranges()) {
        *slot = range;
        count += 1;
    }
    // Signal calls of musl stay trapped: replaced, programs of musl 1.2.3 end with SIGSEGV at their start.
    #[cfg(not(feature = "alone"))]
    if (count > 0 || seccomp::is_filtered())
        && elf::first_definition(b"gnu_get_libc_version").is_some()
    {
        elf::objects().filter(|object| elf::is_libc(object)).for_each(|libc| patch::signals(segment, libc));
    }
    if count > 0 {
        put(segment, all.get(..count).unwrap_or_default(), false);
    } else if seccomp::is_filtered() {
        put(segment, &[], false);
    }
}

/// Installs a filter. `late`: there may be other threads, and code of ours near by.
fn put(segment: &'static Segment, ranges: &[Range<usize>], late: bool) {
    let mut signals = [const { 0..0 }; 2];
    let mut count = 0;
    if !is_active() {
        let texts = elf::objects().filter(|object| elf::is_libc(object));
        for (slot, text) in signals.iter_mut().zip(texts.flat_map(Object::texts)) {
            *slot = span(text);
            count += 1;
        }
    }
    let filter = Filter {
        ours: if late { own_text() } else { 0..0 },
        ranges,
        signals: signals.get(..count).unwrap_or_default(),
    };
    if extension::get(segment).is_some_and(|e| (e.install)(&filter, trapped)) {
        if !ranges.is_empty() {
            ACTIVE.store(true, Ordering::Relaxed);
            seccomp::forbid(0);
        }
    } else {
        FAILED.store(true, Ordering::Relaxed);
    }
}

fn span(text: &[u8]) -> Range<usize> {
    let text = text.as_ptr_range();
    text.start as usize..text.end as usize
}

/// Whether there is code whose calls are neither patched nor trapped.
pub(crate) fn has_failed() -> bool {
    FAILED.load(Ordering::Relaxed)
}

/// Whether a program of these segments would stand where calls are trapped, and be killed
/// for the first of them, as nobody handles the signal there.
pub(crate) fn overlaps(headers: &[Phdr]) -> bool {
    const PF_X: u32 = 1;
    headers
        .iter()
        .filter(|h| h.kind == PT_LOAD && h.flags & PF_X != 0)
        .any(|h| ranges().any(|r| r.start < h.address.wrapping_add(h.len) && h.address < r.end))
}

unsafe extern "C" fn trapped(signal: i32, info: &Info, context: &mut Context) {
    let ours = info.code == SECCOMP && info.errno == OURS;
    if ours && !matches!(context.rax, nr::RT_SIGACTION | nr::RT_SIGPROCMASK) {
        context.rax = decided(&mut Args::of(context)).cast_unsigned();
    } else if let Some(extension) = state::segment().and_then(extension::get) {
        // Whose memory this is.
        let is_own = attach::registered() == sys::getpid();
        // SAFETY: the kernel's own arguments.
        unsafe { (extension.signal)(signal, info, context, is_own) };
    }
}

/// A call of libc's that sets handlers or masks of signals: `SIGSYS` stays ours. `None` without an
/// extension, which has made it so.
#[cfg(not(feature = "alone"))]
pub(crate) fn signals(segment: &'static Segment, args: &mut Args) -> Option<isize> {
    let is_own = attach::registered() == sys::getpid();
    let extension = extension::get(segment)?;
    // SAFETY: the program's own arguments.
    Some(unsafe { (extension.signals)(args, is_own) })
}

/// Decides on the call, makes it, and counts that it came this way.
#[expect(clippy::cast_possible_truncation, reason = "numbers below 512")]
fn decided(args: &mut Args) -> isize {
    let first = first_entry(args.nr);
    let site = Site {
        nr: args.nr as u32,
        offset: 32 * u16::from(first.unwrap_or(0)),
        flags: 0,
        symbol: 0,
    };
    // SAFETY: the call as it stood in the registers.
    let result = unsafe {
        if matches!(first, Some(calls::FORK | calls::CLONE)) {
            // The child goes on from here, in its copy of the stack.
            bonsai_slow(args, &site, mode::TWICE, 0);
            let child = sys::syscall(args.nr, args.a);
            if child == 0 {
                return child;
            }
            child
        } else {
            bonsai_slow(args, &site, mode::WHOLE, 0)
        }
    };
    if let Some(segment) = state::segment() {
        attach::count_trapped(segment);
    }
    result
}
