//! What a descriptor is: file, socket or something else. Looked up when it is
//! first used, forgotten when it is closed or its number is given out anew, and
//! looked up again in the slow path now and then, so that a change that went unseen
//! heals.

use crate::seccomp::{Helper, ask, forbids};
use bonsai_calls::{self as calls, CallId, Fd};
use bonsai_decide::{FileKind, OpenFile, SocketType};
use core::sync::atomic::{AtomicU8, Ordering};

/// Descriptors with a remembered kind; those above are looked up at every call. The
/// array is with the slots' records (`gen/doors.rs`).
pub(crate) const KINDS: usize = 65_536;

/// Two bytes of each descriptor. The first: 0 for unknown, otherwise 32 (the size of a table
/// entry) times 1 for a file, 2 for a socket, 3 for anything else. The second: not 0 if the
/// extension knows something of the number, which then neither ends nor is given out
/// without its being told.
pub(crate) type Kinds = [[AtomicU8; 2]; KINDS];

/// The kind that is remembered of a descriptor.
fn place(fd: usize) -> Option<&'static AtomicU8> {
    kinds().get(fd & 0xffff_ffff).map(|[kind, _]| kind)
}

/// Whether the extension knows something of a descriptor.
pub(crate) fn is_noted(fd: usize) -> bool {
    let noted = kinds().get(fd & 0xffff_ffff).map(|[_, noted]| noted);
    noted.is_some_and(|noted| noted.load(Ordering::Relaxed) != 0)
}

/// Says whether the extension knows something of a descriptor: before it looks, and
/// after it has forgotten all of it.
#[cfg(feature = "extension")]
pub(crate) fn note(fd: usize, is: bool) {
    if let Some([_, noted]) = kinds().get(fd & 0xffff_ffff)
        && (noted.load(Ordering::Relaxed) != 0) != is
    {
        noted.store(u8::from(is), Ordering::SeqCst);
    }
}

#[cfg(not(feature = "extension"))]
fn kinds() -> &'static Kinds {
    let kinds = crate::sys::place!("BONSAI_KINDS") as *const _;
    // SAFETY: so long, zero at first, and there for good.
    unsafe { &*kinds }
}

#[cfg(feature = "extension")]
static BONSAI_KINDS: core::sync::atomic::AtomicPtr<Kinds> =
    core::sync::atomic::AtomicPtr::new(core::ptr::null_mut());

/// Where the library has them.
#[cfg(feature = "extension")]
pub(crate) fn set_kinds(kinds: *const Kinds) {
    BONSAI_KINDS.store(kinds.cast_mut(), Ordering::Relaxed);
}

#[cfg(feature = "extension")]
fn kinds() -> &'static Kinds {
    // SAFETY: set before the first call is decided on, and there for good.
    unsafe { &*BONSAI_KINDS.load(Ordering::Relaxed) }
}

const S_IFMT: u32 = 0o170_000;
const S_IFSOCK: u32 = 0o140_000;
const S_IFREG: u32 = 0o100_000;
const S_IFBLK: u32 = 0o060_000;
const S_IFIFO: u32 = 0o010_000;

/// What kind of descriptor it is now, and whether a large transfer may be split.
#[derive(Clone, Copy)]
pub(crate) struct Looked {
    pub(crate) kind: Fd,
    pub(crate) pipe: bool,
}

impl Looked {
    /// By the mode of what it refers to (`st_mode`).
    pub(crate) const fn of(mode: u32) -> Self {
        let mode = mode & S_IFMT;
        let kind = match mode {
            S_IFREG | S_IFBLK => Fd::File,
            S_IFSOCK => Fd::Socket,
            _ => Fd::Other,
        };
        Self {
            kind,
            pipe: mode == S_IFIFO,
        }
    }
}

/// Answers of the kernel about a descriptor. What was looked up a moment ago is not asked for again.
pub(crate) struct OpenDescriptor {
    fd: usize,
    looked: Option<Looked>,
}

pub(crate) const fn open_file(fd: usize, looked: Option<Looked>) -> OpenDescriptor {
    OpenDescriptor { fd, looked }
}

impl OpenFile for OpenDescriptor {
    fn kind(&self) -> FileKind {
        let looked = self.looked.unwrap_or_else(|| look(self.fd));
        match looked.kind {
            Fd::File => FileKind::File,
            Fd::Socket => FileKind::Socket,
            _ if looked.pipe => FileKind::Pipe,
            _ => FileKind::Other,
        }
    }

    fn status(&self) -> Option<u32> {
        // SAFETY: F_GETFL reads the flags of a descriptor.
        u32::try_from(unsafe { ask!(Fcntl, self.fd, 3) }).ok()
    }

    fn socket(&self) -> SocketType {
        const SO_TYPE: usize = 3;
        const SO_PROTOCOL: usize = 38;
        let option = |option: usize| {
            let (mut value, mut len) = (0_u32, 4_u32);
            // SAFETY: four bytes.
            unsafe { ask!(Getsockopt, self.fd, 1, option, &raw mut value, &raw mut len) };
            value
        };
        SocketType {
            kind: option(SO_TYPE),
            protocol: option(SO_PROTOCOL),
        }
    }
}

/// Asks the kernel, and remembers.
pub(crate) fn look(fd: usize) -> Looked {
    look_all(fd).0
}

/// The same, and the first words of what the kernel says (`struct stat`): device, number and
/// names; zeros for nothing.
pub(crate) fn look_all(fd: usize) -> (Looked, [u64; 3]) {
    let mut stat = [0_u64; 18];
    // SAFETY: struct stat has 144 bytes.
    let answer = unsafe { ask!(Fstat, fd, stat.as_mut_ptr()) };
    #[expect(
        clippy::cast_possible_truncation,
        reason = "st_mode is the lower half of the word"
    )]
    let mode = if answer == 0 { stat[3] as u32 } else { 0 };
    let mut looked = Looked::of(mode);
    if answer == 0 {
        remember(fd, looked.kind);
    } else if let (true, Some(kind)) = (forbids(Helper::Fstat), known(fd)) {
        looked.kind = kind;
    }
    let [device, number, names, ..] = stat;
    (looked, [device, number, names])
}

/// What is remembered of a descriptor.
pub(crate) fn known(fd: usize) -> Option<Fd> {
    match place(fd)?.load(Ordering::Relaxed) / 32 {
        1 => Some(Fd::File),
        2 => Some(Fd::Socket),
        3 => Some(Fd::Other),
        _ => None,
    }
}

pub(crate) fn remember(fd: usize, kind: Fd) {
    if let Some(known) = place(fd) {
        known.store(32 * (1 + offset(kind)), Ordering::Relaxed);
    }
}

/// A call has given this number. Where nobody may ask what it is, the call says it: a name
/// leads to a file in most programs that forbid that.
pub(crate) fn given(call: CallId, fd: usize) {
    match call {
        _ if !forbids(Helper::Fstat) => forget(fd),
        calls::SOCKET | calls::ACCEPT | calls::ACCEPT4 => remember(fd, Fd::Socket),
        calls::OPEN | calls::OPENAT | calls::OPENAT2 | calls::CREAT => remember(fd, Fd::File),
        _ => forget(fd),
    }
}

/// The number is about to mean something else.
pub(crate) fn forget(fd: usize) {
    if let Some(known) = place(fd) {
        known.store(0, Ordering::Relaxed);
    }
}

/// All numbers from `first` to `last`.
pub(crate) fn forget_range(first: usize, last: usize) {
    let last = last.min(KINDS - 1);
    for [known, _] in kinds().get(first..=last).unwrap_or_default() {
        known.store(0, Ordering::Relaxed);
    }
}

/// Which of the three entries of a call a kind has.
pub(crate) const fn offset(kind: Fd) -> u8 {
    match kind {
        Fd::Any | Fd::File => 0,
        Fd::Socket => 1,
        Fd::Other => 2,
    }
}
