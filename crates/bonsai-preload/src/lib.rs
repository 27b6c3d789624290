//! The interposer: loaded into every process of a service, it puts one decision
//! in front of each call of the table in `bonsai-calls`.
//!
//! # Two doors to one decision
//! ```text
//!  program ── read@plt ──> exported symbol ──> fast path ─┐ lease suffices: system call
//!     │                          │ patched                │
//!     │                          v                        │ otherwise
//!     └── fread, aio, ... ──> libc ── site ──> slot ──────┴──> slow path: ticket, wait,
//!                                                               call in pieces, lease
//! ```
//! The *fast path* is the same few instructions behind both doors (`doors`): no
//! clock, no shared write but the thread's own counters, no call. The *slow path*
//! (`slow`) is entered when a lease is used up, when the limits have changed,
//! when a descriptor's kind is not known, and in a thread's first call.
//!
//! # Invariants
//! 1. Nothing here allocates from the program's heap, takes a lock, starts a
//!    thread, keeps a descriptor or logs. `errno` is only written as libc would.
//! 2. Everything may run in a signal handler, in a forked or vforked child, and
//!    at any instruction of the slow path once more.
//! 3. When in doubt the call goes through, and is counted as unshaped.
//! 4. The program is never ended: there is no panic (the profile aborts, and no
//!    code path reaches it), no assertion, no unchecked arithmetic that can trap.
//!
//! # Size
//! Every process maps the library, so it is kept below 68 KiB: `#[inline(never)]`
//! stands where a copy at each place would cost more than the call, what is only
//! written takes no room in the file, and tables hold no pointers, which would be
//! relocated at every start.
//!
//! # Limits
//! x86-64, glibc or musl. Of system calls made by other instructions than libc's,
//! those of libraries are seen that were looked through (`moved`, `loaded`); static
//! programs, Go, and what a program writes as it runs are not.
#![no_std]
// An interposer is made of raw system calls, thread-pointer accesses and
// patched instructions. Every block states its reason.
#![allow(unsafe_code)]
// The engine for programs without a loader has no first door; what only that needs is
// left out where it is not called.
#![cfg_attr(feature = "alone", allow(dead_code))]
#![cfg_attr(feature = "extension", allow(dead_code, unused_macros, unused_imports))]
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod amount;
mod calls;
mod cancel;
mod extension;
mod facts;
mod found;
mod headers;
mod identity;
mod inward;
mod kind;
mod outward;
mod own;
mod patience;
mod pieces;
#[cfg(any(feature = "alone", feature = "extension"))]
mod search;
mod seccomp;
mod signal;
mod steps;
mod sys;
#[cfg(any(feature = "alone", feature = "extension"))]
mod unfold;
mod wait;

// What the library and the engine have, and the extension does not.
macro_rules! library {
    ($($(#[$attribute:meta])* mod $name:ident;)*) => {
        $(#[cfg(not(feature = "extension"))] $(#[$attribute])* mod $name;)*
    };
}

library! {
    mod attach;
    #[cfg(not(feature = "alone"))]
    mod beforehand;
    mod blocks;
    mod doors;
    mod elf;
    mod entering;
    mod environment;
    mod exec;
    #[cfg(not(feature = "alone"))]
    mod indirect;
    #[cfg(not(feature = "alone"))]
    mod loaded;
    mod mapped;
    mod moved;
    mod patch;
    mod pay;
    mod point;
    #[cfg(not(feature = "alone"))]
    mod proof;
    #[cfg(not(feature = "alone"))]
    mod resolve;
    mod slots;
    mod slow;
    #[cfg(not(feature = "alone"))]
    mod spawn;
    mod state;
    #[cfg(not(feature = "alone"))]
    mod stdio;
    #[cfg(not(feature = "alone"))]
    mod symbols;
    mod threads;
    mod trap;
    mod uncovered;
    mod vdso;
}

// What the extension has of its own.
#[cfg(feature = "extension")]
#[path = "extension"]
mod own_to_extension {
    pub(crate) mod ahead;
    pub(crate) mod aio;
    pub(crate) mod answers;
    pub(crate) mod beside;
    pub(crate) mod claim;
    pub(crate) mod clock;
    pub(crate) mod descriptors;
    pub(crate) mod filter;
    pub(crate) mod group;
    pub(crate) mod held;
    pub(crate) mod hold;
    pub(crate) mod joined;
    pub(crate) mod judge;
    pub(crate) mod kept;
    pub(crate) mod known;
    pub(crate) mod learn;
    pub(crate) mod look;
    pub(crate) mod loops;
    pub(crate) mod paths;
    pub(crate) mod pay;
    pub(crate) mod polls;
    pub(crate) mod quick;
    pub(crate) mod raw;
    pub(crate) mod rings;
    pub(crate) mod sequence;
    pub(crate) mod set;
    pub(crate) mod sets;
    pub(crate) mod shorter;
    pub(crate) mod signals;
    pub(crate) mod slots;
    pub(crate) mod slow;
    pub(crate) mod state;
    pub(crate) mod wakes;
}
#[cfg(feature = "extension")]
use own_to_extension::*;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // Not reachable by construction; if it ever is, only this thread stops.
    loop {
        sys::pause();
    }
}
