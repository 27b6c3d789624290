//! A process that runs already is put under limits, and out of them again: the
//! supervisor has stopped all of its threads, has mapped us near its libc, and lets one
//! of them run [`start`] on a stack of our own.
//!
//! Nothing of the program is changed here. What is to be changed is written down in
//! [`RUNNING`], and the supervisor changes it, site by site, when all of it is there: so
//! that whenever it is killed, every site is either as it was, or leads to something
//! complete. It finds [`RUNNING`] by its first words; the other side of this is
//! `bonsai-supervisor/src/attach/shared.rs`.

use super::{DONE, LEDGER, PROGRAM, enter, keep, store_program, until_zero};
use crate::seccomp::ask;
use crate::slots::Early;
use crate::state;
use crate::sys;
use crate::uncovered::AT_FDCWD;
use crate::{blocks, elf, identity, patch, pay, threads, vdso};
use bonsai_ledger::Segment;
use core::arch::global_asm;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// The first words of [`RUNNING`]: "BONSAI running\0" and the version of what follows.
const MAGIC: [u64; 2] = [
    u64::from_le_bytes(*b"BONSAI r"),
    u64::from_le_bytes(*b"unning\0\x01"),
];

/// By this argument of a `getpid` the supervisor knows that [`start`] has ended.
const OVER: u32 = 0x0b05_a1e7;

/// Objects that are told of.
const OBJECTS: usize = 96;

/// Sites that can be patched: as many as one library can have.
const PATCHES: usize = 2048;

/// What a run is for.
mod want {
    /// To enter the process.
    pub(super) const ATTACH: usize = 0;
    /// To give back what its threads hold: its sites are as they were.
    pub(super) const DETACH: usize = 1;
    /// To go on after that, under the same ledger.
    pub(super) const AGAIN: usize = 2;
}

/// What is in it for both sides.
#[repr(C)]
struct Running {
    magic: [u64; 2],
    /// Where to run.
    run: unsafe extern "C" fn(),
    /// The address of [`Noted`].
    patches: *const Early<[Patch; PATCHES]>,
    /// How many there are.
    count: AtomicU64,
    /// Whether the supervisor has patched them: 0 no, 1 yes.
    patched: AtomicU64,
    /// Whether the process is in the ledger by us: 0 no, 1 yes.
    active: AtomicU64,
    /// Where it has mapped the ledger.
    segment: usize,
    /// A `Reason` for what is not covered.
    reason: AtomicU64,
    /// Where it keeps the twins of sites, and the top of our stack: its own business.
    _places: [usize; 2],
    /// Free memory beside us.
    free: [AtomicUsize; 2],
    /// Whether programs may read the base of `fs` here: 0 no, 1 yes.
    reads_base: usize,
    /// Objects told of.
    objects: usize,
    /// The ledger's path, and the program's.
    ledger: [u8; super::PATH],
    program: [u8; 64],
    /// The program first; only that, if it has no loader.
    all: [Given; OBJECTS],
}

/// An object.
#[repr(C)]
struct Given {
    base: usize,
    headers: usize,
    count: usize,
    name: [u8; 40],
}

/// A site to be patched.
#[repr(C)]
#[derive(Clone, Copy)]
struct Patch {
    at: usize,
    old: [u8; 8],
    new: [u8; 8],
    /// Bytes that are moved before its `syscall`.
    back: u32,
    /// Whether they are moved, and no comparison belongs to the site.
    moved: u32,
}

// SAFETY: written by the supervisor while nobody runs, and by the one thread that does.
unsafe impl Sync for Running {}

#[used]
static RUNNING: Early<Running> = Early::new(Running {
    magic: MAGIC,
    run: bonsai_run,
    patches: &raw const NOTED,
    count: AtomicU64::new(0),
    patched: AtomicU64::new(0),
    active: AtomicU64::new(0),
    segment: 0,
    reason: AtomicU64::new(0),
    _places: [0; 2],
    free: [const { AtomicUsize::new(0) }; 2],
    reads_base: 0,
    objects: 0,
    ledger: [0; super::PATH],
    program: [0; 64],
    all: [const {
        Given {
            base: 0,
            headers: 0,
            count: 0,
            name: [0; 40],
        }
    }; OBJECTS],
});

static NOTED: Early<[Patch; PATCHES]> = Early::new(
    [Patch {
        at: 0,
        old: [0; 8],
        new: [0; 8],
        back: 0,
        moved: 0,
    }; PATCHES],
);

static IS_RUNNING: AtomicBool = AtomicBool::new(false);
static DETACHED: AtomicBool = AtomicBool::new(false);

/// Whether this process ran before we came.
pub(crate) fn is_running() -> bool {
    IS_RUNNING.load(Ordering::Relaxed)
}

/// Whether its limits have been taken off: nobody waits any more.
pub(crate) fn is_detached() -> bool {
    DETACHED.load(Ordering::Relaxed)
}

/// Memory beside us, whole pages, if jumps from `near` certainly reach it: around a
/// program that runs, nobody knows what is free.
pub(crate) fn room(len: usize, near: usize) -> Option<usize> {
    const REACH: usize = 0x6000_0000;
    // SAFETY: only this thread runs.
    let [next, end] = unsafe { &(*RUNNING.get()).free };
    let at = next.load(Ordering::Relaxed);
    let fits = at.abs_diff(near) < REACH && at + len <= end.load(Ordering::Relaxed);
    fits.then(|| next.fetch_add(len, Ordering::Relaxed))
}

/// Writes down a site.
pub(crate) fn note(at: usize, old: [u8; 8], new: [u8; 8], back: u8, moved: bool) -> bool {
    // SAFETY: only this thread runs.
    let (running, noted) = unsafe { (&*RUNNING.get(), &mut *NOTED.get()) };
    let count = running.count.load(Ordering::Relaxed);
    let slot = usize::try_from(count).ok().and_then(|i| noted.get_mut(i));
    let Some(slot) = slot else {
        return false;
    };
    *slot = Patch {
        at,
        old,
        new,
        back: back.into(),
        moved: moved.into(),
    };
    running.count.store(count + 1, Ordering::Release);
    true
}

unsafe extern "C" {
    fn bonsai_run();
}

global_asm!(
    ".pushsection .text.bonsai_run,\"ax\",@progbits",
    ".globl bonsai_run",
    ".hidden bonsai_run",
    ".type bonsai_run,@function",
    // rdi: what for. rsi: the flags of the thread that is borrowed. rdx: where it goes
    // on from, with all other registers of its own; should the supervisor be gone by
    // then, so be it. The stack is ours, and aligned.
    "bonsai_run:",
    "push rdx",
    "push rsi",
    "sub rsp, 512",
    "fxsave64 [rsp]",
    "cld",
    "call {start}",
    "fxrstor64 [rsp]",
    "add rsp, 512",
    "mov edi, {over}",
    "mov eax, 39",
    "syscall",
    "popfq",
    "pop rcx",
    "jmp rcx",
    ".popsection",
    start = sym start,
    over = const OVER,
);

unsafe extern "C" fn start(what: usize) {
    // SAFETY: only this thread runs; the supervisor has filled it.
    let running = unsafe { &*RUNNING.get() };
    // SAFETY: it has mapped the ledger there for good.
    let Some(segment) = (unsafe { (running.segment as *const Segment).as_ref() }) else {
        return;
    };
    if what != want::DETACH {
        running.active.store(1, Ordering::Release);
    }
    match what {
        want::ATTACH => attach(running, segment),
        want::DETACH => {
            detach(segment);
            // Last: who looks while this runs still finds something to be taken off.
            running.active.store(0, Ordering::Release);
        }
        want::AGAIN => {
            DETACHED.store(false, Ordering::Relaxed);
            super::REGISTERED.store(0, Ordering::Relaxed);
            super::register(segment, sys::getpid());
        }
        _ => {}
    }
}

/// The auxiliary vector, from the kernel: what stands behind the environment may be gone.
fn look_for_clock() {
    let mut vector = [[0_usize; 2]; 64];
    let path = c"/proc/self/auxv";
    // SAFETY: a C string; as many bytes as there are, and one pair less, so that it ends.
    unsafe {
        let fd = ask!(OpenRead, AT_FDCWD, path.as_ptr(), 0o2_000_000, 0);
        if fd >= 0 {
            ask!(Read, fd, vector.as_mut_ptr(), size_of_val(&vector) - 16);
            ask!(Close, fd);
        }
        vdso::begin(vector.as_ptr());
    }
}

fn attach(running: &'static Running, segment: &'static Segment) {
    look_for_clock();
    let from = sys::now_early();
    IS_RUNNING.store(true, Ordering::Relaxed);
    let path = |text: &'static [u8]| text.split(|b| *b == 0).next().unwrap_or_default();
    keep(&LEDGER, path(&running.ledger));
    store_program(&PROGRAM, path(&running.program));
    for object in running.all.get(..running.objects).unwrap_or_default() {
        // SAFETY: as the supervisor has found it in this process.
        unsafe {
            elf::add(
                object.base,
                object.headers,
                object.count,
                object.name.as_ptr(),
            )
        };
    }
    if !threads::make_table() {
        return;
    }
    enter(segment, from, |segment| {
        if !until_zero(&LEDGER).is_empty() {
            super::entry::keep_preload();
        }
        let reads_base = running.reads_base != 0;
        if running.objects > 1 {
            patch::running(segment, reads_base)
        } else {
            patch::program(segment, reads_base)
        }
    });
    // From now on it is known whose memory this is, also to a vforked child.
    state::me(segment);
    let reason = super::REASON.load(Ordering::Relaxed);
    running.reason.store(reason.into(), Ordering::Relaxed);
    DONE.store(true, Ordering::Release);
}

/// Gives back what every thread holds, and takes the process out of the ledger. Threads
/// that are in the middle of a call keep what it needs.
fn detach(segment: &'static Segment) {
    DETACHED.store(true, Ordering::Relaxed);
    blocks::each(|own| {
        if own.depth == 0 {
            pay::release(segment, own);
        }
    });
    // A vforked child may have been entered since, in this memory.
    let process = identity::of(sys::getpid());
    if let Some(entry) = segment.claim_process(process, identity::has_ended) {
        entry.coverage.store(0, Ordering::Relaxed);
        entry.id.store(0, Ordering::Release);
    }
}
