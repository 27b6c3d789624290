//! What the interposer knows: of the process, and of each thread.

use crate::blocks;
use crate::sys::{self, call, nr};
use crate::threads::{self, Words};
use bonsai_calls::{CALLS, MAX_CALLS};
use bonsai_ledger::{Owner, Segment, THREADS, ThreadPage, WaitNote};
use core::ptr::{null, null_mut};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

/// More than any program will ever use up: the lease of a call without limits.
pub(crate) const UNLIMITED: i64 = i64::MAX / 2;

/// The process's ledger; null before attaching and in programs that have none.
#[unsafe(link_section = ".bss.bonsai_early")]
static SEGMENT: AtomicPtr<Segment> = AtomicPtr::new(null_mut());

/// Where the fast path reads the epoch. Points at a number that no thread has
/// until the process has attached.
pub(crate) static BONSAI_EPOCH: AtomicPtr<AtomicU32> =
    AtomicPtr::new((&raw const NO_EPOCH).cast_mut());
static NO_EPOCH: AtomicU32 = AtomicU32::new(u32::MAX);

/// libc's system call sites are patched.
#[unsafe(link_section = ".bss.bonsai_early")]
pub(crate) static PATCHED: AtomicBool = AtomicBool::new(false);
/// A seccomp filter is in place: only the plain futex call is used to wait.
#[unsafe(link_section = ".bss.bonsai_early")]
pub(crate) static GUARDED: AtomicBool = AtomicBool::new(false);

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
    /// Where the outermost of them stands on the stack.
    frame: usize,
    /// Slow paths so far.
    pub(crate) entered: u32,
    /// The epoch that its entries were last brought up to.
    pub(crate) synced: u32,
    /// Pages of the program's memory that were found readable last.
    pub(crate) readable: [usize; 2],
    /// The thread that `harvest` found dead in here last.
    pub(crate) mourned: u32,
    _pad2: u32,
    pub(crate) entries: [Entry; ENTRIES],
    /// A stack for running programs; 0 until it is needed.
    #[cfg(feature = "alone")]
    pub(crate) stack: usize,
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

/// Entries of the table, and some room: with its share of the block's head, a
/// thread's state stays below a page.
const ENTRIES: usize = 123;

const _: () = assert!(CALLS.len() <= ENTRIES && ENTRIES <= MAX_CALLS);
const _: () = assert!(size_of::<Own>() <= 4032 && size_of::<Entry>() == 32);
const _: () = assert!(core::mem::offset_of!(Own, entries) == 64);

impl Own {
    /// Runs `f` as a call of the slow path. A handler that left an earlier one by
    /// `siglongjmp` has taken its frame away with it: then that one is over.
    #[inline]
    pub(crate) fn within<T>(&mut self, f: impl FnOnce(&mut Self) -> T) -> T {
        let mark = 0_u8;
        let here = &raw const mark as usize;
        if self.depth == 0 || here > self.frame {
            self.depth = 0;
            self.frame = here;
        }
        self.depth += 1;
        self.entered = self.entered.wrapping_add(1);
        let result = f(self);
        self.depth = self.depth.saturating_sub(1);
        result
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

    /// Runs `f` as if outside: it may not come back, while the memory stays in
    /// use (an exec in a vforked child).
    pub(crate) fn suspended<T>(&mut self, f: impl FnOnce() -> T) -> T {
        let depth = core::mem::replace(&mut self.depth, 0);
        let result = f();
        self.depth = depth;
        result
    }
}

/// The segment, once attached.
#[inline(never)]
pub(crate) fn segment() -> Option<&'static Segment> {
    // SAFETY: set once, to a mapping that is never removed.
    unsafe { SEGMENT.load(Ordering::Acquire).as_ref() }
}

/// From here on calls are decided on.
pub(crate) fn set_segment(segment: &'static Segment) {
    SEGMENT.store(core::ptr::from_ref(segment).cast_mut(), Ordering::Release);
    BONSAI_EPOCH.store(
        (&raw const segment.header.epoch.0).cast_mut(),
        Ordering::Release,
    );
}

/// The state of the calling thread, set up if need be; null if there is no
/// memory for it.
#[inline(never)]
pub(crate) fn me(segment: &'static Segment) -> *mut Own {
    let words = threads::words();
    // SAFETY: our own words.
    let own = unsafe { words.as_ref() }.map_or(null_mut(), |w| w[0] as *mut Own);
    // SAFETY: never unmapped once it is there.
    if !own.is_null() && unsafe { !(*own).page.is_null() } {
        return own;
    }
    set_up(segment, words)
}

/// Gives back what the calling thread holds.
pub(crate) fn release_mine(segment: &'static Segment) {
    // SAFETY: our own words, and our own state.
    let own = unsafe {
        let words = threads::words().as_ref();
        words.and_then(|words| (words[0] as *mut Own).as_mut())
    };
    if let Some(own) = own.filter(|own| !own.page.is_null()) {
        crate::pay::release(segment, own);
    }
}

#[cold]
#[inline(never)]
fn set_up(segment: &'static Segment, words: *mut Words) -> *mut Own {
    let tid = sys::gettid();
    let (own, pid) = blocks::claim(tid);
    if own.is_null() {
        return null_mut();
    }
    let me = Owner { pid, tid };
    // SAFETY: claimed above, so this thread is the only one to use it.
    if inherit(segment, unsafe { &mut *own }, me) {
        // SAFETY: our own thread storage.
        unsafe { point(words, own) };
        return own;
    }
    let dead = |o: Owner| blocks::is_dead(pid, o);
    let populate = |i: usize| {
        // Brings the page in, or fails without a SIGBUS when shared memory is full.
        // SAFETY: a page of our own mapping.
        unsafe { call!(nr::MADVISE, &raw const segment.threads[i], 4096, 23) == 0 }
    };
    let claimed = segment.claim_page(me, dead, populate);
    let page = claimed.map_or(&raw const segment.crowd, |i| {
        &raw const segment.threads[i.min(THREADS - 1)]
    });
    // SAFETY: claimed above, so this thread is the only one to write it. `page`
    // comes last: a signal handler in between starts over.
    unsafe {
        (*own).tid = tid;
        (*own).depth = 0;
        (*own).crowd = claimed.is_none();
        (*own).epoch.store(0, Ordering::Relaxed);
        (*own).page = page;
        point(words, own);
    }
    crate::attach::register(segment, pid);
    own
}

/// Lets a thread's words point to its state, if it has words.
///
/// # Safety
/// The words are this thread's, the state too, and it has a page.
unsafe fn point(words: *mut Words, own: *mut Own) {
    if words.is_null() {
        return;
    }
    // SAFETY: by contract.
    unsafe {
        let page = (*own).page as usize;
        (*words)[1] = page;
        (*words)[2] = (own as usize).wrapping_sub(page);
        (*words)[0] = own as usize;
    }
}

/// Goes on with what a dead thread of this process has left in a state: its page of
/// counters, and its leases. Where a thread is made for each request, its calls are
/// on the fast path from the second on. False, with nothing left in the state, where
/// that is not possible.
fn inherit(segment: &Segment, own: &mut Own, me: Owner) -> bool {
    if own.page.is_null() {
        return false;
    }
    let page = (own.page as usize).wrapping_sub((&raw const segment.threads) as usize) / 4096;
    let from = Owner {
        pid: me.pid,
        tid: own.tid,
    };
    // In the middle of a slow path, some of its numbers may be somewhere else.
    if own.depth == 0 && !own.crowd && segment.pass_page(page, from, me) {
        own.tid = me.tid;
        return true;
    }
    crate::pay::release(segment, own);
    own.page = null();
    false
}
