//! In a table, by the thread pointer: no two threads of a process have the same one,
//! but for a vforked child, which is its parent as far as this goes. It is the word
//! that `fs` points at (System V ABI, thread-local storage, variant II).
//!
//! An entry belongs to the thread whose base is in it. Another thread that falls on
//! it takes it over if its owner is dead; while it lives, the other one has no words
//! and no fast path.

use super::{NOBODY, Words};
use crate::state::Own;
use crate::seccomp::ask;
use crate::sys::{self, call, place};
use crate::{attach, blocks, identity};
use bonsai_ledger::Owner;
use core::arch::asm;
use core::cell::UnsafeCell;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

#[repr(C)]
pub(crate) struct Entry {
    /// The thread pointer, inverted; 0 for a free entry.
    key: AtomicU64,
    words: UnsafeCell<Words>,
}

const _: () = assert!(size_of::<Entry>() == 32);

// SAFETY: the words are the thread's whose key is there.
unsafe impl Sync for Entry {}

impl Entry {
    /// Whether the thread with that key has this entry, which is nobody's at first.
    fn is_for(&self, key: u64) -> bool {
        let known = self.key.load(Ordering::Acquire);
        known == key
            || known == 0
                && self
                    .key
                    .compare_exchange(0, key, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
    }
}

/// The entry of the thread that makes the first call: in most programs the first thread.
pub(crate) static BONSAI_MAIN: Entry = Entry {
    key: AtomicU64::new(0),
    words: UnsafeCell::new([0; 3]),
};

/// As in `gen/threads.rs`.
const BITS: u32 = 12;
/// From Knuth's multiplicative hashing: thread pointers are a stack's length apart, or
/// that of Go's structures.
const FACTOR: u32 = 0x61c8_8647;

/// Being taken; no base is so high.
const BUSY: u64 = 1;

pub(crate) static BONSAI_THREADS: AtomicPtr<Entry> = AtomicPtr::new(null_mut());

/// What `fs` points at until libc has set it.
static FIRST: AtomicPtr<AtomicPtr<u8>> = AtomicPtr::new(null_mut());

/// Stacks for the slow path, one for each entry of the table; null where the
/// program's own will do.
pub(crate) static BONSAI_STACKS: AtomicPtr<u8> = AtomicPtr::new(null_mut());

/// The length of a stack, as a power of two.
pub(crate) const STACK_BITS: u32 = 15;

/// Entries that a thread may have: its own, and the next ones.
pub(crate) const PROBES: u32 = 8;

/// Go: no thread pointer in memory, and stacks that are too small.
fn is_go() -> bool {
    !BONSAI_STACKS.load(Ordering::Relaxed).is_null()
}

/// Makes ready for a Go program: stacks, and paths that read the base of `fs`. False
/// if that is not possible.
pub(crate) fn prepare_go() -> bool {
    // `rdfsbase %rcx`, and a no-op that fills up, in the place of `mov %fs:0,%rcx`.
    const READ: [u8; 9] = [0xf3, 0x48, 0x0f, 0xae, 0xc1, 0x0f, 0x1f, 0x40, 0x00];
    // More than the paths have.
    const PATHS: usize = 0x4000;
    const BEFORE: [u8; 9] = [0x64, 0x48, 0x8b, 0x0c, 0x25, 0, 0, 0, 0];
    let (keys, paths) = (place!("bonsai_keys") as *const u32, place!("bonsai_paths"));
    // SAFETY: our own text, which nothing runs yet; new memory (MAP_NORESERVE too).
    unsafe {
        let (from, len) = (paths & !4095, (paths & 4095) + PATHS);
        if ask!(Mprotect, from, len, 7) != 0 {
            return false;
        }
        let mut i = 0;
        while keys.add(i).read() != 0 || i == 0 {
            let at = (paths + keys.add(i).read() as usize) as *mut [u8; 9];
            if at.read() == BEFORE {
                at.write(READ);
            }
            i += 1;
        }
        ask!(Mprotect, from, len, 5);
        let at = ask!(
            Mmap,
            0,
            1_usize << (BITS + STACK_BITS),
            3,
            0x4022,
            -1_isize,
            0
        );
        if (-4095..0).contains(&at) {
            return false;
        }
        BONSAI_STACKS.store(at as *mut u8, Ordering::Release);
    }
    true
}

/// Runs `f`, which may not come back: the stack that this runs on is free then. So it
/// is in a vforked child, which runs on its parent's.
pub(crate) fn left_alone<T>(f: impl FnOnce() -> T) -> T {
    let here = 0_u8;
    let start = BONSAI_STACKS.load(Ordering::Relaxed) as usize;
    let from = (&raw const here as usize).wrapping_sub(start);
    if start == 0 || from >> (BITS + STACK_BITS) != 0 {
        return f();
    }
    let top = start + ((from >> STACK_BITS) << STACK_BITS) + (1 << STACK_BITS) - 64;
    // SAFETY: the top word of the stack that this runs on.
    unsafe {
        let before = core::mem::replace(&mut *(top as *mut usize), 0);
        let result = f();
        *(top as *mut usize) = before;
        result
    }
}

/// The length of a stack for running programs.
const ROOM: usize = 0x8000;

/// The top of a stack of the thread's own, which is empty whenever the thread gets here:
/// a vforked child has left it when its parent goes on. 0 without memory, and on Go's,
/// which is one.
pub(crate) fn room(own: &mut Own) -> usize {
    let pid = attach::registered();
    let owner = Owner::of(identity::of(pid), own.tid);
    // A state that a vforked child had to make is taken for a dead thread's by others.
    if is_go() || blocks::is_dead(pid, owner) {
        return 0;
    }
    if own.stack == 0 {
        // SAFETY: new memory (MAP_PRIVATE | MAP_ANONYMOUS), never unmapped.
        let at = unsafe { ask!(Mmap, 0, ROOM, 3, 0x22, -1_isize, 0) };
        if (-4095..0).contains(&at) {
            return 0;
        }
        own.stack = at.cast_unsigned() + ROOM;
    }
    own.stack
}

/// Runs `f` on the stack that ends at `top`; on this one if that is 0.
pub(crate) fn on_stack(top: usize, mut f: &mut dyn FnMut()) {
    unsafe extern "C" fn run(f: *mut &mut dyn FnMut()) {
        // SAFETY: below.
        unsafe { (*f)() }
    }
    // What a signal handler has interrupted may be on it.
    let here = (&raw const f) as usize;
    if top.wrapping_sub(here) <= ROOM || top == 0 {
        return f();
    }
    // SAFETY: a stack that nobody uses, 16-byte aligned; r12 is kept by the callee.
    unsafe {
        asm!("xchg rsp, r12", "call {run}", "mov rsp, r12", run = sym run,
            inout("r12") top => _, in("rdi") &raw mut f, clobber_abi("C"));
    }
}

/// Makes the table, and a thread pointer for calls before libc has one.
pub(crate) fn prepare() -> bool {
    const ARCH_PRCTL: usize = 158;
    const ARCH_SET_FS: usize = 0x1002;
    let first = &raw const FIRST;
    FIRST.store(first.cast_mut().cast(), Ordering::Relaxed);
    // SAFETY: a word that points at itself.
    unsafe { call!(ARCH_PRCTL, ARCH_SET_FS, first) };
    make_table()
}

/// Nothing is known of the libc of a program without a loader.
pub(crate) const fn known_to_libc() -> u32 {
    0
}

/// The process as it was known last.
#[cold]
pub(crate) fn known_process() -> u32 {
    blocks::pid()
}

/// Makes the table. Before anything is patched.
pub(crate) fn make_table() -> bool {
    // SAFETY: nobody's yet; new memory (MAP_PRIVATE | MAP_ANONYMOUS), zeroed, never
    // unmapped.
    let at = unsafe {
        (*BONSAI_MAIN.words.get())[0] = &raw const NOBODY as usize;
        ask!(
            Mmap,
            0,
            size_of::<Entry>() << BITS,
            3,
            0x22,
            -1_isize,
            0
        )
    };
    BONSAI_THREADS.store(at as *mut Entry, Ordering::Release);
    !(-4095..0).contains(&at)
}

/// This thread's words; null if other threads have all their entries.
pub(crate) fn words() -> *mut Words {
    let base: u64;
    // SAFETY: points at itself from the start on (`prepare`), whatever libc sets later;
    // Go is entered where programs may read the base only.
    unsafe {
        if is_go() {
            asm!("rdfsbase {}", out(reg) base, options(nomem, nostack, preserves_flags));
        } else {
            asm!("mov {}, qword ptr fs:[0]", out(reg) base, options(nostack, readonly, preserves_flags));
        }
    }
    #[expect(clippy::cast_possible_truncation, reason = "the lower half is hashed")]
    let first = ((!base as u32).wrapping_mul(FACTOR) >> (32 - BITS)) as usize;
    let early = FIRST.load(Ordering::Relaxed) as u64;
    if base != early && BONSAI_MAIN.is_for(!base) {
        return BONSAI_MAIN.words.get();
    }
    let near = |i: u32| {
        let index = (first + i as usize) & ((1 << BITS) - 1);
        // SAFETY: the table has so many entries.
        unsafe { &*BONSAI_THREADS.load(Ordering::Acquire).add(index) }
    };
    let ours = |entry: &&Entry| entry.key.load(Ordering::Acquire) == !base;
    if let Some(entry) = (0..PROBES).map(near).find(ours) {
        return entry.words.get();
    }
    let take = |entry: &&Entry| {
        let seen = entry.key.load(Ordering::Acquire);
        // SAFETY: read only; whoever writes it now makes the exchange below fail.
        let free = seen == 0 || (seen != BUSY && is_left(unsafe { (*entry.words.get())[0] }));
        free && entry
            .key
            .compare_exchange(seen, BUSY, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    };
    let Some(entry) = (0..PROBES).map(near).find(take) else {
        return null_mut();
    };
    // SAFETY: ours since the exchange.
    unsafe { *entry.words.get() = [&raw const NOBODY as usize, 0, 0] };
    entry.key.store(!base, Ordering::Release);
    entry.words.get()
}

/// Whether the thread with that state is dead. A forked child's states are wiped.
fn is_left(own: usize) -> bool {
    if own == &raw const NOBODY as usize {
        return false;
    }
    // SAFETY: states are never unmapped.
    let tid = unsafe { (*(own as *const Own)).tid };
    let pid = sys::getpid();
    tid == 0 || blocks::is_dead(pid, Owner::of(identity::of(pid), tid))
}
