//! The extension: what few services need, in a file of its own
//! (`libbonsai_extension.so`) that is mapped into the processes of those. It decides on
//! the calls that are marked in the ledger (`Config::special`): for limits on some
//! descriptors or on each, on groups, on event loops and on rings.
//!
//! It is the same code as here, compiled once more with the feature `extension`, where
//! [`crate::pay`] and [`crate::slow`] are others (`src/extension/`). It has no state of a
//! thread, no door and no libc of its own.

use crate::amount::Args;
use crate::facts::Site;
use crate::found::{Search, Sites};
use crate::kind::Kinds;
use crate::own::Own;
use crate::signal::{Context, Handler, Info};
use crate::sys::place;
use bonsai_calls::CallId;
use bonsai_ledger::Segment;
use core::ops::Range;
use core::sync::atomic::AtomicU64;
#[cfg(not(feature = "extension"))]
use core::sync::atomic::AtomicUsize;

#[cfg(feature = "extension")]
mod begin;
#[cfg(feature = "extension")]
mod decide;
#[cfg(not(feature = "extension"))]
mod map;
#[cfg(not(feature = "extension"))]
pub(crate) use map::{get, leave, there};

/// Makes a call as it came.
pub(crate) type Make = extern "C" fn(&Args, &Site) -> isize;

/// CLOCK_MONOTONIC, ns.
pub(crate) type Now = extern "C" fn() -> u64;

/// As much is mapped of its file, and of what is behind that, where its data belongs.
pub(crate) const LENGTH: usize = 48 << 20;

/// Where the extension begins. All of it stands in memory as it is in the file, which `fd`
/// is, and only to be read and run: it puts its data where it belongs, closes the file, and
/// says how it is asked, unless memory could not be had. It is told what is here: the kinds
/// of descriptors, what a seccomp filter forbids, the identity of the process, and the ledger.
pub(crate) type Begin = unsafe extern "C" fn(
    fd: usize,
    kinds: *const Kinds,
    forbidden: *const AtomicU64,
    identity: *const AtomicU64,
    make: Make,
    now: Now,
    segment: &'static Segment,
) -> Option<&'static Extension>;

/// How the extension is asked.
#[repr(C)]
pub(crate) struct Extension {
    pub(crate) known: KnownPlaces,
    pub(crate) late: Late,
    pub(crate) decide: Decide,
    pub(crate) given: Given,
    pub(crate) covers: Covers,
    pub(crate) search: LookThrough,
    pub(crate) leave: Leave,
    pub(crate) judge: Judge,
    pub(crate) release: Release,
    pub(crate) install: extern "C" fn(&Filter<'_>, Handler) -> bool,
    pub(crate) signal: unsafe extern "C" fn(i32, &Info, &mut Context, bool),
    pub(crate) signals: unsafe extern "C" fn(&mut Args, bool) -> isize,
}

/// Where the extension keeps what is known of descriptors, and a byte of what is held for each.
pub(crate) type KnownPlaces = extern "C" fn(&mut [usize; 2]);

/// Waits for bytes that a call has received, counted already, and that the lease of its stream has not paid for.
pub(crate) type Late = unsafe extern "C" fn(
    segment: &'static Segment,
    own: &mut Own,
    call: CallId,
    args: &Args,
    moved: u64,
);

/// What the path of known descriptors goes by (`gen/quick.rs`): the places of [`KnownPlaces`], and the lines of streams. Zero while there is
/// no extension.
#[cfg(not(feature = "extension"))]
#[unsafe(link_section = ".bss.bonsai_early")]
pub(crate) static BONSAI_QUICK: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];

/// Where our own code is.
pub(crate) fn own_text() -> Range<usize> {
    place!("__ehdr_start")..place!("etext")
}

/// How a filter says that a signal is ours (`SECCOMP_RET_DATA`).
pub(crate) const OURS: u32 = 0xb05;

/// Where calls are trapped (`trap`).
#[repr(C)]
pub(crate) struct Filter<'a> {
    /// Never here, nor in the extension, if anywhere else near by.
    pub(crate) ours: Range<usize>,
    /// Calls of the table.
    pub(crate) ranges: &'a [Range<usize>],
    /// What could take the signal from us.
    pub(crate) signals: &'a [Range<usize>],
}

/// The process is about to run another program: what it knows of its descriptors goes.
pub(crate) type Leave = extern "C" fn();

/// A filter is about to be installed: which helper calls it forbids (`seccomp::Helper`), a bit
/// each; `None` for one that the kernel refuses. What it forbids to ask for is asked for now.
pub(crate) type Judge =
    unsafe extern "C" fn(segment: &'static Segment, own: &mut Own, program: usize) -> u64;

/// Looks for system call instructions in the text of a library.
pub(crate) type LookThrough =
    unsafe extern "C" fn(text: *const u8, len: usize, search: Search, found: &mut Sites);

/// Hears of a descriptor that was given a number of which it knows something.
pub(crate) type Given = unsafe extern "C" fn(segment: &'static Segment, fd: usize);

/// True where a limit on some descriptors is on such a call of this one.
pub(crate) type Covers = extern "C" fn(segment: &'static Segment, call: CallId, fd: usize) -> bool;

/// Gives back what a thread has as a lease that the library knows nothing of: its own, or
/// one that has ended.
pub(crate) type Release = unsafe extern "C" fn(segment: &Segment, own: &mut Own, call: CallId);

/// Decides on a call of the table, and makes it.
pub(crate) type Decide = unsafe extern "C" fn(
    segment: &'static Segment,
    own: &mut Own,
    args: &mut Args,
    site: &Site,
    call: CallId,
) -> isize;
