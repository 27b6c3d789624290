//! Reading what a service has done.

use crate::identity::{Owner, ProcessId};
use crate::layout::{Reason, THREADS};
use crate::mapping::{Ledger, load_text, store_text};
use crate::sync::{AtomicU64, Ordering};

use bonsai_calls::CALLS;
use bonsai_stats::LogHistogram;

/// What was counted for one entry of the table of calls.
#[derive(Clone, Debug)]
pub struct CallTotals {
    /// Index of the entry.
    pub call: usize,
    /// Calls made.
    pub calls: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// Waits imposed.
    pub delays: LogHistogram,
    /// Their sum, ns.
    pub waited_ns: u64,
}

/// One attached process.
#[derive(Clone, Debug)]
pub struct ProcessReport {
    /// Identity of the process.
    pub id: ProcessId,
    /// Bits of [`crate::coverage`].
    pub coverage: u32,
    /// Sites patched.
    pub sites: u32,
    /// Sites of libraries other than libc that could not be patched.
    pub missed: u64,
    /// Entries of system calls of which a site could not be replaced: see [`crate::layout::Process::unseen`].
    pub unseen: [u64; 2],
    /// Bytes of files that it has mapped to read, and to write, while such calls were under limits.
    pub mapped: [u64; 2],
    /// Bytes that it had read and written when it was put under limits as it ran; zeros for another.
    pub before: [u64; 2],
    /// Calls that came by a trap.
    pub trapped: u64,
    /// Why it is not fully covered.
    pub reason: Reason,
    /// The file name of its program.
    pub program: String,
    /// When it attached, ns of the monotonic clock.
    pub attached_ns: u64,
    /// What attaching took, ns.
    pub attach_cost_ns: u64,
    /// When it was about to run a program in which nothing has come up since, ns of the monotonic
    /// clock; 0 for none.
    pub expected_ns: u64,
}

impl crate::layout::Process {
    /// Writes the file name of its program (for those outside; the interposer
    /// writes the words itself).
    pub fn set_program(&self, name: &str) {
        store_text(&self.program, name);
    }
}

/// A sum with corrections in it: between a correction and what it corrects it may be
/// below zero.
fn settled(sum: u64) -> u64 {
    u64::try_from(sum.cast_signed()).unwrap_or(0)
}

impl Ledger {
    /// Pages of counters in use, with their owners.
    fn pages(&self) -> impl Iterator<Item = (Option<Owner>, &crate::layout::ThreadPage)> {
        let high = (self.header.high.load(Ordering::Acquire) as usize).min(THREADS);
        (0..high).map(|i| {
            let owner = self.owners[i].load(Ordering::Acquire);
            (Owner::from_word(owner), &self.threads[i])
        })
    }

    /// Totals of every entry of the table since the service was made.
    #[must_use]
    pub fn totals(&self) -> Vec<CallTotals> {
        let mut totals: Vec<CallTotals> = (0..CALLS.len())
            .map(|call| {
                let mut delays = LogHistogram::default();
                let mut waited_ns = 0_u64;
                for shard in &self.delays {
                    let row = &shard.rows[call];
                    for (i, bucket) in row.buckets.iter().enumerate() {
                        delays.add(i, bucket.load(Ordering::Relaxed));
                    }
                    waited_ns = row.sum_ns.load(Ordering::Relaxed).saturating_add(waited_ns);
                }
                let (calls, bytes) = self.crowd.counts[call].load();
                CallTotals {
                    call,
                    calls,
                    bytes,
                    delays,
                    waited_ns,
                }
            })
            .collect();
        for (_, page) in self.pages() {
            for total in &mut totals {
                let (calls, bytes) = page.counts[total.call].load();
                // A correction is counted by the thread that sees the result, which may
                // not be the one that has counted the call.
                total.calls = total.calls.wrapping_add(calls);
                total.bytes = total.bytes.wrapping_add(bytes);
            }
        }
        for total in &mut totals {
            (total.calls, total.bytes) = (settled(total.calls), settled(total.bytes));
        }
        totals
    }

    /// What a process has counted so far: calls and bytes by entry. Counts of
    /// threads beyond the pages' number are in the totals only.
    #[must_use]
    pub fn process_counts(&self, process: ProcessId) -> Vec<(u64, u64)> {
        let mut counts = vec![(0_u64, 0_u64); CALLS.len()];
        for (owner, page) in self.pages() {
            if owner.is_some_and(|owner| owner.is_of(process)) {
                for (i, sum) in counts.iter_mut().enumerate() {
                    let (calls, bytes) = page.counts[i].load();
                    let (base_calls, base_bytes) = page.counts[i].load_base();
                    sum.0 = calls.wrapping_sub(base_calls).wrapping_add(sum.0);
                    sum.1 = bytes.wrapping_sub(base_bytes).wrapping_add(sum.1);
                }
            }
        }
        for sum in &mut counts {
            *sum = (settled(sum.0), settled(sum.1));
        }
        counts
    }

    /// Bytes read and written through rings and queues, which are among those counted
    /// and not in the kernel's numbers: of one process, or of all that ever were.
    #[must_use]
    pub fn beside(&self, process: Option<ProcessId>) -> (u64, u64) {
        let load = |[read, written]: &[AtomicU64; 2]| {
            let load = |word: &AtomicU64| settled(word.load(Ordering::Relaxed));
            (load(read), load(written))
        };
        let Some(process) = process else {
            return load(&self.header.beside);
        };
        let of = |p: &&crate::layout::Process| {
            p.id.load(Ordering::Acquire) == process.word()
                && p.beside_of.load(Ordering::Relaxed) == process.word()
        };
        let entry = self.processes.iter().find(of);
        entry.map_or((0, 0), |entry| load(&entry.beside))
    }

    /// Bytes that the kernel counts as read and written, and that no call of a program has moved.
    #[must_use]
    pub fn overhead(&self) -> [u64; 2] {
        let words = &self.header.overhead;
        words.each_ref().map(|word| word.load(Ordering::Relaxed))
    }

    /// Bytes of files that programs have mapped to read, and to write, while such calls were under limits.
    #[must_use]
    pub fn mapped(&self) -> [u64; 2] {
        let words = &self.header.mapped;
        words.each_ref().map(|word| word.load(Ordering::Relaxed))
    }

    /// Threads of a process that have a page of counters.
    #[must_use]
    pub fn threads_of(&self, process: ProcessId) -> usize {
        self.pages()
            .filter(|(owner, _)| owner.is_some_and(|owner| owner.is_of(process)))
            .count()
    }

    /// The processes that attached and have not been replaced by others since;
    /// some may have ended.
    #[must_use]
    pub fn process_table(&self) -> Vec<ProcessReport> {
        self.processes
            .iter()
            .filter_map(|p| {
                let id = ProcessId::from_word(p.id.load(Ordering::Acquire))?;
                let both = |words: &[AtomicU64; 2]| {
                    words.each_ref().map(|word| word.load(Ordering::Relaxed))
                };
                let own = |words, of: &AtomicU64| match of.load(Ordering::Relaxed) == id.word() {
                    true => both(words),
                    false => [0, 0],
                };
                Some(ProcessReport {
                    id,
                    coverage: p.coverage.load(Ordering::Relaxed),
                    sites: p.sites.load(Ordering::Relaxed),
                    missed: p.missed.load(Ordering::Relaxed),
                    unseen: both(&p.unseen),
                    mapped: own(&p.mapped, &p.mapped_of),
                    before: own(&p.before, &p.before_of),
                    trapped: p.trapped.load(Ordering::Relaxed),
                    reason: Reason::from_u32(p.reason.load(Ordering::Relaxed)),
                    program: load_text(&p.program),
                    attached_ns: p.attached_ns.load(Ordering::Relaxed),
                    attach_cost_ns: p.attach_cost_ns.load(Ordering::Relaxed),
                    expected_ns: p.expected_ns.load(Ordering::Acquire),
                })
            })
            .collect()
    }
}
