//! What a thread waits for, noted in its own page for whoever asks.
//!
//! # The note
//! One writer, the thread; readers in other processes, at any instant. `since_ns` is
//! 0, or the instant at which the call began to wait, which no two waits of a thread
//! have in common: a reader that finds the same before and after the other words has
//! those of one wait. They may be from different looks at its tickets.
//!
//! ```text
//! writer   since = 0;  what, uncounted, due, slept;  since = instant
//! reader   since;      what, uncounted, due, slept;  since again
//! ```
//!
//! # Stale notes
//! A thread that is killed, or that leaves its wait by `siglongjmp` or by becoming
//! another program, leaves its note behind. A reader knows it by four signs:
//! 1. the page has another owner than the thread named in it;
//! 2. the owner is dead (the reader has to find out, as [`Segment::claim_page`] does);
//! 3. it is older than the program that the owner runs ([`Process::attached_ns`]);
//! 4. it is [overdue](Waiting::is_overdue): a thread that waits looks at its tickets
//!    again when they are due, and after [`LOOK_AGAIN_NS`] in any case.

#[cfg(any(feature = "std", loom, miri))]
use crate::identity::Owner;
#[cfg(doc)]
use crate::layout::Process;
#[cfg(any(feature = "std", loom, miri))]
use crate::layout::Segment;
use crate::layout::WaitNote;
use crate::sync::Ordering;

/// A sleeper looks again after this long, should its waker have been killed
/// between changing the limits and waking.
pub const LOOK_AGAIN_NS: u64 = 1_000_000_000;

/// A thread may have to wait this long for a CPU when it wakes up. Longer ones are
/// taken for stale notes: nothing is shown then, which is the smaller mistake.
#[cfg(any(feature = "std", loom, miri))]
const AWAKE_NS: u64 = 200_000_000;

impl WaitNote {
    /// A wait for tickets, from the instant `from` on that is not counted yet.
    #[inline]
    pub fn begin(&self, from: u64) {
        self.uncounted_ns.store(from, Ordering::Release);
    }

    /// The thread goes to sleep at `now`: the call of an entry waits for a bucket
    /// until `due`.
    #[inline]
    pub fn sleep(&self, call: bonsai_calls::CallId, tid: u32, bucket: u8, due: u64, now: u64) {
        let what = u64::from(tid) << 32 | u64::from(bucket) << 8 | u64::from(call);
        // Release: whoever reads this of a later wait also reads that the earlier
        // one has ended.
        self.what.store(what, Ordering::Release);
        self.due_ns.store(due, Ordering::Release);
        self.slept_ns.store(now, Ordering::Release);
        if self.since_ns.load(Ordering::Relaxed) == 0 {
            self.since_ns.store(now, Ordering::Release);
        }
    }

    /// The call waits no longer.
    #[inline]
    pub fn end(&self) {
        self.since_ns.store(0, Ordering::Release);
    }

    /// The wait under way, if it could be read as that of one call.
    #[cfg(any(feature = "std", loom, miri))]
    #[must_use]
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the parts of a word")]
    pub fn read(&self) -> Option<(u32, Noted)> {
        let since_ns = self.since_ns.load(Ordering::Acquire);
        let what = self.what.load(Ordering::Acquire);
        let noted = Noted {
            call: what as u8,
            bucket: (what >> 8) as u8,
            since_ns,
            uncounted_ns: self.uncounted_ns.load(Ordering::Acquire),
            due_ns: self.due_ns.load(Ordering::Acquire),
            slept_ns: self.slept_ns.load(Ordering::Acquire),
        };
        let unchanged = since_ns != 0 && self.since_ns.load(Ordering::Relaxed) == since_ns;
        unchanged.then_some(((what >> 32) as u32, noted))
    }
}

/// A wait as it was noted.
#[cfg(any(feature = "std", loom, miri))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Noted {
    /// Entry of the table of calls.
    pub call: bonsai_calls::CallId,
    /// The bucket whose ticket is due last.
    pub bucket: u8,
    /// When the call began to wait, ns of the monotonic clock.
    pub since_ns: u64,
    /// From when on the wait is not in the delays yet; it is counted in parts.
    pub uncounted_ns: u64,
    /// When the ticket is due. Further ones may follow for the same call.
    pub due_ns: u64,
    /// When the thread last went to sleep.
    pub slept_ns: u64,
}

/// A thread that waits.
#[cfg(any(feature = "std", loom, miri))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The thread.
    pub owner: Owner,
    /// Its wait.
    pub noted: Noted,
}

#[cfg(any(feature = "std", loom, miri))]
impl Waiting {
    /// Whether the thread should have looked at its tickets long before `now`: then
    /// it does not wait any more.
    #[must_use]
    #[inline]
    pub fn is_overdue(&self, now: u64) -> bool {
        let looks = self
            .noted
            .due_ns
            .min(self.noted.slept_ns.saturating_add(LOOK_AGAIN_NS));
        now > looks.saturating_add(AWAKE_NS)
    }
}

#[cfg(any(feature = "std", loom, miri))]
impl Segment {
    /// The threads that wait at `now` (monotonic clock, ns), as far as the ledger
    /// knows: one that has left its wait by force may be among them for up to 1.2 s, so
    /// the caller has to look for signs 2 and 3. Threads without a page of their own
    /// are not among them.
    #[must_use]
    pub fn waiting(&self, now: u64) -> Vec<Waiting> {
        let high = self.header.high.load(Ordering::Acquire) as usize;
        let pages = self.owners.iter().zip(&self.threads).take(high);
        pages
            .filter_map(|(word, page)| {
                let (tid, noted) = page.wait.read()?;
                // Read last: an owner that is the same thread still has the page.
                let owner = Owner::from_word(word.load(Ordering::Acquire))?;
                let waiting = Waiting { owner, noted };
                (owner.tid == tid && !waiting.is_overdue(now)).then_some(waiting)
            })
            .collect()
    }
}
