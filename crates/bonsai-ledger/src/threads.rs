//! Pages of counters: how a thread gets one, and who has which.

use crate::identity::{Owner, ProcessId};
use crate::layout::{Count, PROCESSES, Process, Segment, THREADS, ThreadPage};
use crate::sync::{AtomicU64, Ordering};

/// How many dead owners a search looks for before it takes a fresh page.
const PROBES: u32 = 16;

/// How many entries near its number a process looks at.
const PROCESS_PROBES: usize = if cfg!(loom) { 2 } else { 64 };

impl ThreadPage {
    /// Makes what is counted from here on the new owner's.
    fn rebase(&self) {
        for count in &self.counts {
            count
                .base_calls
                .store(count.calls.load(Ordering::Relaxed), Ordering::Relaxed);
            count
                .base_bytes
                .store(count.bytes.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

impl Count {
    /// Calls and bytes.
    #[must_use]
    #[inline]
    pub fn load(&self) -> (u64, u64) {
        (
            self.calls.load(Ordering::Relaxed),
            self.bytes.load(Ordering::Relaxed),
        )
    }

    /// Calls and bytes of previous processes.
    #[must_use]
    pub fn load_base(&self) -> (u64, u64) {
        (
            self.base_calls.load(Ordering::Relaxed),
            self.base_bytes.load(Ordering::Relaxed),
        )
    }
}

/// Takes an owner word from `seen` to `me`.
pub(crate) fn seize(word: &AtomicU64, seen: u64, me: u64) -> bool {
    word.compare_exchange(seen, me, Ordering::AcqRel, Ordering::Relaxed)
        .is_ok()
}

impl Segment {
    /// Finds a page of counters for a thread: one that is free, one whose owner
    /// is dead, or a fresh one, for which `populate` must make memory available
    /// (false where there is none). `None`: count in [`Segment::crowd`].
    ///
    /// `dead` says whether a thread has ended.
    pub fn claim_page(
        &self,
        me: Owner,
        mut dead: impl FnMut(Owner) -> bool,
        mut populate: impl FnMut(usize) -> bool,
    ) -> Option<usize> {
        let high = (self.header.high.load(Ordering::Acquire) as usize).min(THREADS);
        let word = me.word();
        for (i, owner) in self.owners[..high].iter().enumerate() {
            let seen = owner.load(Ordering::Relaxed);
            // A page of our own id is left from the program that ran before an
            // exec, or from a thread whose id came round again.
            if (seen == 0 || seen == word) && seize(owner, seen, word) {
                if seen == 0 {
                    self.threads[i].rebase();
                }
                return Some(i);
            }
        }
        if high > 0 {
            let from = self.header.cursor.load(Ordering::Relaxed);
            for probe in 0..PROBES.min(u32::try_from(high).unwrap_or(PROBES)) {
                let i = from.wrapping_add(probe) as usize % high;
                let seen = self.owners[i].load(Ordering::Relaxed);
                let Some(owner) = Owner::from_word(seen) else {
                    continue;
                };
                if !dead(owner) || !seize(&self.owners[i], seen, word) {
                    continue;
                }
                self.header
                    .cursor
                    .store(from.wrapping_add(probe + 1), Ordering::Relaxed);
                if (owner.pid, owner.namespace) != (me.pid, me.namespace) {
                    self.threads[i].rebase();
                }
                return Some(i);
            }
            self.header
                .cursor
                .store(from.wrapping_add(PROBES), Ordering::Relaxed);
        }
        self.fresh_page(word, &mut populate)
    }

    /// Passes a page on from a thread that has ended to another of its process, which
    /// goes on counting there. False if somebody else found it first.
    #[must_use]
    pub fn pass_page(&self, page: usize, from: Owner, to: Owner) -> bool {
        self.owners
            .get(page)
            .is_some_and(|owner| seize(owner, from.word(), to.word()))
    }

    fn fresh_page(&self, word: u64, populate: &mut impl FnMut(usize) -> bool) -> Option<usize> {
        let mut i = self.header.high.load(Ordering::Acquire) as usize;
        while i < THREADS {
            // Populated first: whoever counts `high` pages may read all of them.
            if !populate(i) {
                return None;
            }
            let next = u32::try_from(i + 1).unwrap_or(0);
            match self.header.high.compare_exchange(
                next - 1,
                next,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => {
                    // A searcher may have seen it free at once.
                    if seize(&self.owners[i], 0, word) {
                        return Some(i);
                    }
                    i += 1;
                }
                Err(seen) => i = seen as usize,
            }
        }
        None
    }

    /// The entry of a process, if it has one.
    #[inline(never)]
    pub fn find_process(&self, process: ProcessId) -> Option<&Process> {
        let near = |probe: usize| &self.processes[(process.pid as usize + probe) % PROCESSES];
        let own = |entry: &&Process| entry.id.load(Ordering::Relaxed) == process.word();
        (0..PROCESS_PROBES).map(near).find(own)
    }

    /// The process of that number, in any pid namespace, that was about to run a program of that name
    /// since an instant, and in which nothing has come up yet; `None` also if there are several.
    #[inline(never)]
    pub fn find_expected(
        &self,
        pid: u32,
        program: &[AtomicU64; 5],
        since_ns: u64,
    ) -> Option<ProcessId> {
        let near = |probe: usize| &self.processes[(pid as usize + probe) % PROCESSES];
        let is_same = |(a, b): (&AtomicU64, &AtomicU64)| {
            a.load(Ordering::Relaxed) == b.load(Ordering::Relaxed)
        };
        let find = |entry: &Process| {
            let id = ProcessId::from_word(entry.id.load(Ordering::Relaxed))?;
            let is_it = id.pid == pid
                && !id.has_ended()
                && !id.is_in_doubt()
                && entry.expected_ns.load(Ordering::Acquire) >= since_ns.max(1)
                && entry.program.iter().zip(program).all(is_same);
            is_it.then_some(id)
        };
        let mut found = (0..PROCESS_PROBES).map(near).filter_map(find);
        found.next().filter(|_| found.next().is_none())
    }

    /// Describes a process: finds its own entry, or one near its number that is
    /// free or a dead process's. `None` when all that were looked at belong to
    /// others that live; that is counted.
    #[inline(never)]
    pub fn claim_process(
        &self,
        me: ProcessId,
        mut dead: impl FnMut(ProcessId) -> bool,
    ) -> Option<&Process> {
        let word = me.word();
        let near = |probe: usize| &self.processes[(me.pid as usize + probe) % PROCESSES];
        if let Some(entry) = self.find_process(me) {
            return Some(entry);
        }
        for entry in (0..PROCESS_PROBES).map(near) {
            let seen = entry.id.load(Ordering::Relaxed);
            // Another thread of this process may just be describing it.
            let lives = |other: ProcessId| !other.has_ended() && !dead(other);
            if seen != word && ProcessId::from_word(seen).is_some_and(lives) {
                continue;
            }
            match entry
                .id
                .compare_exchange(seen, word, Ordering::AcqRel, Ordering::Relaxed)
            {
                Err(other) if other != word => {}
                _ => return Some(entry),
            }
        }
        self.header.processes_lost.fetch_add(1, Ordering::Relaxed);
        None
    }

    /// Records a wait of `ns` imposed on a call of a thread.
    pub fn record_wait(&self, call: bonsai_calls::CallId, thread: usize, ns: u64) {
        let row = &self.delays[thread % self.delays.len()].rows[usize::from(call)];
        row.buckets[bonsai_stats::bucket_of(ns)].fetch_add(1, Ordering::Relaxed);
        row.sum_ns.fetch_add(ns, Ordering::Relaxed);
        self.header.longest_wait_ns.fetch_max(ns, Ordering::Relaxed);
    }

    /// Counts bytes of a file that a process has mapped: side 0 to read, 1 to write.
    #[inline(never)]
    pub fn count_mapped(&self, me: ProcessId, side: usize, bytes: u64) {
        let add = |sides: &[AtomicU64; 2]| sides[side & 1].fetch_add(bytes, Ordering::Relaxed);
        add(&self.header.mapped);
        if let Some(entry) = self.find_process(me) {
            if entry.mapped_of.swap(me.word(), Ordering::Relaxed) != me.word() {
                for side in &entry.mapped {
                    side.store(0, Ordering::Relaxed);
                }
            }
            add(&entry.mapped);
        }
    }

    /// Counts bytes that the kernel counts as read and written, and that no call of a program has moved. A correction is a number that
    /// wraps.
    pub fn count_overhead(&self, [read, written]: [u64; 2]) {
        let [reads, writes] = &self.header.overhead;
        reads.fetch_add(read, Ordering::Relaxed);
        writes.fetch_add(written, Ordering::Relaxed);
    }

    /// Notes what a process has read and written before it was put under limits.
    pub fn note_before(&self, process: ProcessId, bytes: [u64; 2]) {
        if let Some(entry) = self.find_process(process) {
            for (to, bytes) in entry.before.iter().zip(bytes) {
                to.store(bytes, Ordering::Relaxed);
            }
            entry.before_of.store(process.word(), Ordering::Release);
        }
    }

    /// Counts a call that went through without a decision.
    pub fn count_unshaped(&self, why: crate::layout::Unshaped) {
        self.header.unshaped[why as usize].fetch_add(1, Ordering::Relaxed);
    }
}
