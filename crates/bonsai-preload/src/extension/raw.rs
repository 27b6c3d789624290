//! Threads that slept in an epoll set, or in `poll` or `select` of it, before that was looked at: they went to sleep without a limit, and what they bring back goes to the
//! program as it is, so they can be neither told nor woken. Until the last of them has come back, calls on what is in the set are delayed,
//! and nothing of it is hidden.
//!
//! The kernel says which threads these are, in `/proc/self/task/TID/syscall`: the call, its arguments, and the stack pointer, by which a
//! thread that sleeps there again is known to be another one. It does not say where a thread is that runs: one that was woken in the
//! kernel may find nothing there, as what was ready is hidden by now, and sleep on. So threads that run count as asleep until they are
//! seen somewhere else, or have run for a second.

use crate::known::{self, Path};
use crate::seccomp::{Helper, ask, forbids};
use crate::set;
use crate::sys;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// As many are remembered; of sets with more, and more sets, all calls are delayed for as long as they are known.
const MOST: usize = 256;

/// One thread.
struct Sleeper {
    /// Its number; 0 for none, [`TAKEN`] while the rest is written.
    tid: AtomicU32,
    /// One more than the slot of the set.
    slot: AtomicU32,
    /// Its stack pointer there, or [`RUNS`] if it has not been seen there.
    stack: AtomicU64,
    /// When it was remembered, ns.
    since: AtomicU64,
}

const TAKEN: u32 = u32::MAX;

static SLEEPERS: [Sleeper; MOST] = [const {
    Sleeper {
        tid: AtomicU32::new(0),
        slot: AtomicU32::new(0),
        stack: AtomicU64::new(0),
        since: AtomicU64::new(0),
    }
}; MOST];

/// Places that have been used; more than there are if some thread found none.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// What stands for the stack pointer of a thread that runs: it may have been woken in the kernel, and sleep again there.
const RUNS: u64 = 0;

/// A thread that has run for so long, ns, is not on its way into or out of a sleep.
const ON_ITS_WAY_NS: u64 = 1_000_000_000;

/// A thread is in a call that waits for this set: its stack pointer there, or [`RUNS`].
fn asleep(tid: u32, slot: usize) -> Option<u64> {
    let mut text = [0_u8; 192];
    let text = known::read_file(&Path::task(tid), &mut text);
    // `232 0x4 0x7f.. ... 0x7ffc.. 0x7f..`: the number, six arguments, stack and instruction pointer; or `running`.
    if text.starts_with(b"running") {
        return Some(RUNS);
    }
    let mut words = text.split(|byte| byte.is_ascii_whitespace());
    let number = known::number(words.next()?, 10)?;
    let mut next = || known::number(words.next()?.strip_prefix(b"0x")?, 16);
    let mut args = [0_usize; 6];
    for arg in &mut args {
        *arg = usize::try_from(next()?).ok()?;
    }
    let stack = next()?;
    let is_set = |fd: usize| set::slot_of(fd & 0xffff_ffff) == Some(slot);
    let waits = match number {
        // epoll_wait, epoll_pwait, epoll_pwait2
        232 | 281 | 441 => is_set(args[0]),
        // poll, ppoll
        7 | 271 => polls(args[0], args[1], is_set),
        // select, pselect6
        23 | 270 => selects(args[1], args[0], is_set),
        // restart_syscall: which call it is, is not said.
        219 => true,
        _ => false,
    };
    waits.then_some(stack)
}

/// Copies memory that another thread may give back meanwhile: words of eight bytes; how many.
fn copy(at: usize, words: &mut [u64]) -> usize {
    let length = size_of_val(words);
    let (to, from) = ([words.as_mut_ptr() as usize, length], [at, length]);
    // SAFETY: into memory of our own; from where there may be none, which is an error.
    let copied = unsafe {
        ask!(
            ProcessVmReadv,
            sys::getpid(),
            to.as_ptr(),
            1,
            from.as_ptr(),
            1,
            0
        )
    };
    usize::try_from(copied).unwrap_or(0) / 8
}

/// Whether an array of `struct pollfd` has such a descriptor among the first ones.
fn polls(at: usize, len: usize, is_set: impl Fn(usize) -> bool) -> bool {
    let mut all = [0_u64; 64];
    let some = all.get_mut(..len.min(64)).unwrap_or_default();
    let count = copy(at, some);
    let fd = |word: &u64| (word & 0xffff_ffff) as usize;
    some.iter().take(count).map(fd).any(is_set)
}

/// Whether a set of descriptors to be read has such a one.
fn selects(at: usize, high: usize, is_set: impl Fn(usize) -> bool) -> bool {
    let mut all = [0_u64; 16];
    let some = all.get_mut(..high.div_ceil(64).min(16)).unwrap_or_default();
    let count = copy(at, some);
    let has = |fd: &usize| {
        some.get(fd / 64)
            .is_some_and(|word| word >> (fd % 64) & 1 != 0)
    };
    (0..64 * count).filter(has).any(is_set)
}

/// Remembers the threads that sleep, or may, in a set which was not known until now.
pub(crate) fn find(slot: usize) {
    if !known::can_look() || forbids(Helper::ProcessVmReadv) {
        return;
    }
    let (own, now) = (sys::gettid(), sys::now());
    known::each_thread(|tid| {
        if tid != own
            && let Some(stack) = asleep(tid, slot)
        {
            remember(tid, slot, stack, now);
        }
    });
}

#[expect(clippy::cast_possible_truncation, reason = "there are 65,536")]
fn remember(tid: u32, slot: usize, stack: u64, now: u64) {
    let take = |sleeper: &Sleeper| {
        sleeper
            .tid
            .compare_exchange(0, TAKEN, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    };
    let mut places = SLEEPERS.iter().enumerate();
    let Some((at, sleeper)) = places.find(|(_, sleeper)| take(sleeper)) else {
        COUNT.store(MOST as u32 + 1, Ordering::Relaxed);
        return;
    };
    COUNT.fetch_max(at as u32 + 1, Ordering::Relaxed);
    sleeper.stack.store(stack, Ordering::Relaxed);
    sleeper.since.store(now, Ordering::Relaxed);
    sleeper.slot.store(slot as u32 + 1, Ordering::Relaxed);
    sleeper.tid.store(tid, Ordering::Release);
}

/// A thread waits where that is seen, and not as it did.
#[inline]
pub(crate) fn back(tid: u32) {
    let count = COUNT.load(Ordering::Relaxed) as usize;
    for Sleeper { tid: word, .. } in SLEEPERS.iter().take(count) {
        if word.load(Ordering::Relaxed) == tid {
            // A thread that remembers others meanwhile does so in other places.
            let _ = word.compare_exchange(tid, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

/// Whether some of them still sleep in a set.
#[inline]
pub(crate) fn sleep(slot: usize) -> bool {
    match COUNT.load(Ordering::Relaxed) as usize {
        0 => false,
        count => some_sleep(slot, count),
    }
}

#[cold]
#[inline(never)]
fn some_sleep(slot: usize, count: usize) -> bool {
    let mut sleep = count > MOST;
    for sleeper in SLEEPERS.iter().take(count) {
        let tid = sleeper.tid.load(Ordering::Acquire);
        let is_there = tid != 0 && tid != TAKEN;
        if !is_there || sleeper.slot.load(Ordering::Relaxed) as usize != slot + 1 {
            continue;
        }
        if sleeper.is_asleep(tid, slot) {
            sleep = true;
        } else {
            // A thread that is remembered there meanwhile has another number.
            let _ = sleeper
                .tid
                .compare_exchange(tid, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
    sleep
}

impl Sleeper {
    /// Whether its thread still is, or may be, in the sleep in which it was found.
    fn is_asleep(&self, tid: u32, slot: usize) -> bool {
        let stack = self.stack.load(Ordering::Relaxed);
        match asleep(tid, slot) {
            None => false,
            Some(RUNS) if stack == RUNS => {
                let since = self.since.load(Ordering::Relaxed);
                sys::now().saturating_sub(since) < ON_ITS_WAY_NS
            }
            Some(RUNS) => true,
            // Not by a call that is seen: `back` would have forgotten it.
            Some(now) if stack == RUNS => {
                self.stack.store(now, Ordering::Relaxed);
                true
            }
            Some(now) => now == stack,
        }
    }
}
