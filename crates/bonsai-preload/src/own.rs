//! The state of one thread.

use crate::amount::Args;
use crate::cancel::Cancel;
use crate::facts::quick_path;
use crate::seccomp::ask;
use crate::wait::Waiter;
use bonsai_calls::{CALLS, CallId, MAX_CALLS};
use bonsai_ledger::{ThreadPage, WaitNote};
use core::sync::atomic::{AtomicU32, Ordering};

/// More than any program will ever use up: the lease of a call without limits.
pub(crate) const UNLIMITED: i64 = i64::MAX / 2;

/// The state of one thread. Wiped by the kernel in a forked child, so that a
/// child neither spends its parent's leases nor writes its counters.
#[repr(C, align(64))]
pub(crate) struct Own {
    /// The epoch its leases belong to; 0 sends the next call to the slow path.
    pub(crate) epoch: AtomicU32,
    pub(crate) tid: u32,
    /// Its page of counters, null if not set up.
    pub(crate) page: *const ThreadPage,
    /// Calls of the slow path under way: more than one when a signal handler
    /// interrupted it.
    pub(crate) depth: u32,
    /// The page is shared with other threads.
    pub(crate) crowd: bool,
    /// The extension knows of the thread.
    pub(crate) met: bool,
    /// Where the outermost of them stands on the stack.
    pub(crate) frame: usize,
    /// Slow paths so far.
    pub(crate) entered: u32,
    /// The epoch that its entries were last brought up to.
    pub(crate) synced: u32,
    /// Pages of the program's memory that were found readable last.
    pub(crate) readable: [usize; 2],
    /// The thread that `harvest` found dead in here last.
    pub(crate) mourned: u32,
    /// The call that libc is about to make for one that was decided on: its number and descriptor (`Own::call`), 0 if none.
    passing: AtomicU32,
    pub(crate) entries: [Entry; ENTRIES],
    /// What the extension knows of the call under way.
    pub(crate) claim: usize,
    /// The engine's: a stack for running programs; 0 until it is needed.
    pub(crate) stack: usize,
    /// The cancellation point of the call under way.
    pub(crate) cancel: Cancel,
}

/// The lease of a thread for one entry of the table.
#[repr(C)]
pub(crate) struct Entry {
    /// Calls that may go.
    pub(crate) calls: i64,
    /// Bytes that may go; negative when they came in before they were due.
    pub(crate) bytes: i64,
    /// Bytes of the lease as booked.
    pub(crate) lease_bytes: u32,
    /// When it was granted, us modulo 2^32.
    pub(crate) granted_us: u32,
    /// Calls of the lease as booked.
    pub(crate) lease_calls: u32,
    /// Calls for more bytes than this go the slow way, to be paced in pieces.
    pub(crate) piece: u32,
}

impl Entry {
    /// No lease.
    pub(crate) const NONE: Self = Self {
        calls: 0,
        bytes: 0,
        lease_bytes: 0,
        granted_us: 0,
        lease_calls: 0,
        piece: 0,
    };
}

/// Entries of the table, and some room: with its share of the block's head, a
/// thread's state stays below a page.
const ENTRIES: usize = 123;

const _: () = assert!(CALLS.len() <= ENTRIES && ENTRIES <= MAX_CALLS);
const _: () = assert!(size_of::<Own>() <= 4032 && size_of::<Entry>() == 32);
const _: () = assert!(core::mem::offset_of!(Own, entries) == 64);
const _: () = assert!(core::mem::offset_of!(Own, entered) == quick_path::ENTERED_AT);
const _: () = assert!(core::mem::offset_of!(Own, met) == quick_path::MET_AT);

/// Whether this is a handler on the thread's signal stack, and a frame is on another one.
#[cold]
#[inline(never)]
fn is_on_signal_stack(frame: usize) -> bool {
    const SS_ONSTACK: usize = 1;
    // `struct sigaltstack`: address, flags (32 bits), length.
    let mut stack = [0_usize; 3];
    // SAFETY: asks only.
    let known = unsafe { ask!(Sigaltstack, 0, stack.as_mut_ptr()) } == 0;
    let [at, flags, len] = stack;
    known && flags & SS_ONSTACK != 0 && !(at..at + len).contains(&frame)
}

impl Own {
    /// Runs `f` as a call of the slow path. A handler that left an earlier one by
    /// `siglongjmp` has taken its frame away with it: then that one is over. On a stack of
    /// its own, which may lie above, a handler has interrupted the earlier one.
    #[inline]
    pub(crate) fn within<T>(&mut self, f: impl FnOnce(&mut Self) -> T) -> T {
        let mark = 0_u8;
        let here = &raw const mark as usize;
        if self.depth == 0 || here > self.frame && !is_on_signal_stack(self.frame) {
            self.depth = 0;
            self.frame = here;
        }
        self.depth += 1;
        self.entered = self.entered.wrapping_add(1);
        let result = f(self);
        self.depth = self.depth.saturating_sub(1);
        result
    }

    /// A call as [`Own::passing`] has it: as far as it takes to tell it from those of a signal handler.
    fn call(args: &Args) -> u32 {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "numbers below 512, descriptors below 2^22"
        )]
        let (nr, fd) = (args.nr as u32, args.a[0] as u32);
        1 << 31 | (nr & 0x1ff) << 22 | fd & 0x3f_ffff
    }

    /// Lets libc make a call that was decided on, by `make`: where libc's instruction is patched, the call comes to the slow path again.
    pub(crate) fn passed<T>(&self, args: &Args, make: impl FnOnce() -> T) -> T {
        self.passing.store(Self::call(args), Ordering::Relaxed);
        // Not by the fast path, which would charge it.
        self.epoch.store(0, Ordering::Relaxed);
        let made = make();
        self.passing.store(0, Ordering::Relaxed);
        made
    }

    /// True, once, if the call is one that was decided on.
    pub(crate) fn is_passed(&self, args: &Args) -> bool {
        let passing = self.passing.load(Ordering::Relaxed);
        let is = passing != 0 && passing == Self::call(args);
        if is {
            self.passing.store(0, Ordering::Relaxed);
        }
        is
    }

    /// Calls of an entry counted on this thread's page.
    pub(crate) fn made(&self, call: u8) -> u64 {
        // SAFETY: set up with the state and never unmapped.
        let page = unsafe { &*self.page };
        page.counts
            .get(usize::from(call))
            .map_or(0, |c| c.calls.load(Ordering::Relaxed))
    }

    /// Where this thread notes what it waits for. Not while a signal handler has
    /// interrupted a slow path: the wait of that one goes on.
    #[inline(always)]
    pub(crate) fn note(&self) -> Option<&'static WaitNote> {
        if self.depth > 1 || self.crowd {
            return None;
        }
        // SAFETY: set up with the state and never unmapped.
        Some(unsafe { &(*self.page).wait })
    }

    /// The thread as it waits with a call.
    #[inline(always)]
    pub(crate) fn waiter(&self, call: CallId) -> Waiter<'static> {
        Waiter {
            note: self.note(),
            tid: self.tid,
            call,
            cancel: self.cancel,
        }
    }

    /// Runs `f` as if outside: it may not come back, while the memory stays in
    /// use (an exec in a vforked child).
    pub(crate) fn suspended<T>(&mut self, f: impl FnOnce() -> T) -> T {
        let depth = core::mem::replace(&mut self.depth, 0);
        let result = f();
        self.depth = depth;
        result
    }
}
