//! What the interposer knows: of the process, and of each thread.

use crate::{blocks, identity};
pub(crate) use crate::own::Own;
use crate::seccomp::ask;
use crate::sys;
use crate::threads::{self, Words};
use bonsai_ledger::{Owner, Segment, THREADS};
use core::ptr::{null, null_mut};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

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
    if tid == 0 {
        return null_mut();
    }
    let is_new = blocks::pid() == 0;
    let (own, pid) = blocks::claim(tid);
    if is_new {
        identity::meet(pid);
    }
    if own.is_null() {
        return null_mut();
    }
    // A vforked child's state is not its parent's thread's: it would be a dead thread's
    // as soon as the child is gone, and another thread would take it over.
    let words = if pid == sys::getpid() {
        words
    } else {
        null_mut()
    };
    let me = Owner::of(identity::of(pid), tid);
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
        unsafe { ask!(Madvise, &raw const segment.threads[i], 4096, 23) == 0 }
    };
    let claimed = blocks::are_wiped()
        .then(|| segment.claim_page(me, dead, populate))
        .flatten();
    let page = claimed.map_or(&raw const segment.crowd, |i| {
        &raw const segment.threads[i.min(THREADS - 1)]
    });
    // SAFETY: claimed above, so this thread is the only one to write it. `page`
    // comes last: a signal handler in between starts over.
    unsafe {
        (*own).tid = tid;
        (*own).depth = 0;
        (*own).crowd = claimed.is_none();
        (*own).met = false;
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
        tid: own.tid,
        ..me
    };
    // In the middle of a slow path, some of its numbers may be somewhere else.
    if own.depth == 0 && !own.crowd && segment.pass_page(page, from, me) {
        own.tid = me.tid;
        own.met = false;
        return true;
    }
    crate::pay::release(segment, own);
    own.page = null();
    false
}
