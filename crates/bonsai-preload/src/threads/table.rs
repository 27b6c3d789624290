//! In a table, by the thread pointer: no two threads of a process have the same one,
//! but for a vforked child, which is its parent as far as this goes. It is the word
//! that `fs` points at (System V ABI, thread-local storage, variant II).
//!
//! An entry belongs to the thread whose base is in it. Another thread that falls on
//! it takes it over if its owner is dead; while it lives, the other one has no words
//! and no fast path.

use super::{NOBODY, Words};
use crate::blocks;
use crate::state::Own;
use crate::sys::{self, call, nr};
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

/// As in `gen/threads.rs`.
const BITS: u32 = 12;
const FACTOR: u64 = 0x61c8_8647;

/// Being taken; no base is so high.
const BUSY: u64 = 1;

pub(crate) static BONSAI_THREADS: AtomicPtr<Entry> = AtomicPtr::new(null_mut());

/// What `fs` points at until libc has set it.
static FIRST: AtomicPtr<AtomicPtr<u8>> = AtomicPtr::new(null_mut());

/// Makes the table, and a thread pointer for calls before libc has one. Before
/// anything is patched.
pub(crate) fn prepare() -> bool {
    const ARCH_PRCTL: usize = 158;
    const ARCH_SET_FS: usize = 0x1002;
    let first = &raw const FIRST;
    FIRST.store(first.cast_mut().cast(), Ordering::Relaxed);
    // SAFETY: a word that points at itself.
    unsafe { call!(ARCH_PRCTL, ARCH_SET_FS, first) };
    // SAFETY: new memory (MAP_PRIVATE | MAP_ANONYMOUS), zeroed, never unmapped.
    let at = unsafe {
        call!(
            nr::MMAP,
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

/// This thread's words; null if another thread has their entry.
pub(crate) fn words() -> *mut Words {
    let base: u64;
    // SAFETY: points at itself from the start on (`prepare`), whatever libc sets later.
    unsafe {
        asm!("mov {}, qword ptr fs:[0]", out(reg) base, options(nostack, readonly, preserves_flags));
    }
    let index = (base.wrapping_mul(FACTOR) >> (64 - BITS)) as usize;
    // SAFETY: the table has so many entries.
    let entry = unsafe { &*BONSAI_THREADS.load(Ordering::Acquire).add(index) };
    let seen = entry.key.load(Ordering::Acquire);
    if seen == !base {
        return entry.words.get();
    }
    // SAFETY: read only; whoever writes it now makes the exchange below fail.
    let free = seen == 0 || (seen != BUSY && is_left(unsafe { (*entry.words.get())[0] }));
    let taken = free
        && entry
            .key
            .compare_exchange(seen, BUSY, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok();
    if !taken {
        return null_mut();
    }
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
    tid == 0 || blocks::is_dead(pid, Owner { pid, tid })
}
