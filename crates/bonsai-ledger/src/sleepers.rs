//! Threads that sleep in an epoll set, and whether one of them knows when the first descriptor that is hidden from the kernel is due.
//!
//! A call that is refused by a limit hides its descriptor from the kernel until an instant. The kernel wakes nobody for a hidden
//! descriptor, so a thread that sleeps in the set must look at that instant: one that fell asleep before has to be woken, to find it out.
//!
//! # Definitions
//! - *Earliest* of a set: no descriptor that is hidden in it is due before. A thread that waits for the set sleeps no longer.
//! - *Aware*: a sleeper that has read the earliest since it was last lowered. *Unaware*: the others.
//! - *Wake-up*: an event in the set, which the kernel keeps until a thread that waits for the set takes it.
//!
//! ```text
//!            enter                       lowered
//!   awake ──────────> aware (of one generation) ──────> unaware
//!     ^ ^───────────────┘ leave                            │
//!     └────────────────────────────────── leave ───────────┘
//! ```
//!
//! # Invariants
//! 1. While something is hidden, one of these holds: no thread sleeps; an aware one sleeps; a wake-up lies in the set, or the thread that
//!    is told to leave one (by `announce`, `found` or `leave`) has not done so yet.
//! 2. Earliest is never raised over a descriptor that was hidden while it was computed.
//!
//! # Limits
//! A thread that leaves its sleep by a jump, or is cancelled there, counts as asleep: as an aware one until the earliest is next lowered,
//! and from then on as an unaware one, so that a wake-up may be left for nobody. It is then taken by the next thread that waits.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Bits of `word`: generation << 32 | unaware << 16 | aware.
const ONE_UNAWARE: u64 = 1 << 16;
const COUNT: u64 = 0xffff;

/// The sleepers of one set.
#[derive(Debug)]
pub struct Sleepers {
    /// One more than the earliest; 0 for never.
    earliest: AtomicU64,
    word: AtomicU64,
    /// How often something was hidden.
    announced: AtomicU32,
}

/// A thread that has entered, by the generation in which it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Asleep(u64);

/// What stood there before it is computed anew when the first is due.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Before {
    earliest: u64,
    announced: u32,
}

const fn aware(word: u64) -> u64 {
    word & COUNT
}

const fn unaware(word: u64) -> u64 {
    word >> 16 & COUNT
}

impl Sleepers {
    /// Nobody sleeps, and nothing is hidden.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Self {
        Self {
            earliest: AtomicU64::new(0),
            word: AtomicU64::new(0),
            announced: AtomicU32::new(0),
        }
    }

    /// The same; the model checker's atomics are made while it runs.
    #[cfg(loom)]
    #[must_use]
    pub fn new() -> Self {
        Self {
            earliest: AtomicU64::new(0),
            word: AtomicU64::new(0),
            announced: AtomicU32::new(0),
        }
    }

    /// When the first is due; `u64::MAX` for never.
    #[must_use]
    pub fn earliest(&self) -> u64 {
        self.earliest.load(Ordering::SeqCst).wrapping_sub(1)
    }

    /// The set is another one.
    pub fn reset(&self) {
        self.earliest.store(0, Ordering::SeqCst);
        self.word.store(0, Ordering::SeqCst);
    }

    /// A thread is about to sleep: it reads [`Self::earliest`] after this.
    pub fn enter(&self) -> Asleep {
        let word = self.word.fetch_add(1, Ordering::SeqCst);
        in_one_order();
        Asleep(word >> 32)
    }

    /// It sleeps no more. True if a wake-up has to be left for those who go on sleeping.
    #[must_use]
    pub fn leave(&self, asleep: Asleep) -> bool {
        self.update(|word| {
            let (one, count) = if word >> 32 == asleep.0 {
                (1, aware(word))
            } else {
                (ONE_UNAWARE, unaware(word))
            };
            // One that was reset meanwhile is not counted.
            word - one * u64::from(count > 0)
        });
        self.needs_wake_up() && self.earliest() != u64::MAX
    }

    /// Something is hidden, or about to be, until an instant. True if a wake-up has to be left.
    #[must_use]
    pub fn announce(&self, until: u64) -> bool {
        self.announced.fetch_add(1, Ordering::SeqCst);
        in_one_order();
        self.lower(until);
        self.needs_wake_up()
    }

    /// Before it is computed anew when the first is due.
    pub fn before(&self) -> Before {
        let announced = self.announced.load(Ordering::SeqCst);
        Before {
            earliest: self.earliest.load(Ordering::SeqCst),
            announced,
        }
    }

    /// What was computed. True if a wake-up has to be left.
    #[must_use]
    pub fn found(&self, before: Before, earliest: u64, now: u64) -> bool {
        let raised = self.earliest.compare_exchange(
            before.earliest,
            earliest.wrapping_add(1),
            Ordering::SeqCst,
            Ordering::SeqCst,
        );
        in_one_order();
        if raised.is_err() || self.announced.load(Ordering::SeqCst) == before.announced {
            return false;
        }
        // What was hidden meanwhile may not have been seen, and may have found an earlier instant here.
        self.lower(now);
        self.needs_wake_up()
    }

    /// Whether threads sleep, and none of them is aware.
    #[must_use]
    pub fn needs_wake_up(&self) -> bool {
        let word = self.word.load(Ordering::SeqCst);
        unaware(word) > 0 && aware(word) == 0
    }

    /// Lowers the earliest; then nobody is aware any more.
    fn lower(&self, to: u64) {
        let lower = |seen: u64| (seen.wrapping_sub(1) > to).then_some(to.wrapping_add(1));
        let lowered = self
            .earliest
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, lower);
        in_one_order();
        if lowered.is_ok() {
            self.update(|word| {
                let unaware = unaware(word) + aware(word);
                (word >> 32).wrapping_add(1) << 32 | unaware.min(COUNT) << 16
            });
        }
    }

    fn update(&self, by: impl Fn(u64) -> u64) {
        let mut seen = self.word.load(Ordering::SeqCst);
        while let Err(now) =
            self.word
                .compare_exchange(seen, by(seen), Ordering::SeqCst, Ordering::SeqCst)
        {
            seen = now;
        }
        in_one_order();
    }
}

/// What is `SeqCst` has one order for all threads. The model checker takes it for `AcqRel`, and knows such an order of fences alone.
#[inline(always)]
fn in_one_order() {
    #[cfg(loom)]
    crate::sync::fence(Ordering::SeqCst);
}

impl Default for Sleepers {
    fn default() -> Self {
        Self::new()
    }
}
