//! What a thread has spent its time on, from looks at it. Pure: no clock, no I/O.
//!
//! Time on a CPU and waiting for one is counted by the kernel, in ns. The rest of the
//! time it was blocked; that is shared out by what it was seen blocked in.

use super::activity::{ACTIVITIES, Activity};

/// Nanoseconds of a clock tick.
const TICK_NS: u64 = 1_000_000_000 / bonsai_host::threads::TICKS_PER_S;

/// The counters of a thread at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    /// When it was looked, ns.
    pub(crate) at_ns: u64,
    /// CPU time, clock ticks.
    pub(crate) cpu_ticks: u64,
    /// Time waiting for block devices, clock ticks.
    pub(crate) block_ticks: u64,
    /// Time on a CPU, ns.
    pub(crate) ran_ns: Option<u64>,
    /// Time waiting for one, ns.
    pub(crate) queued_ns: Option<u64>,
}

/// What was seen of a thread in a window.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    first: Counters,
    last: Counters,
    seen: [u32; ACTIVITIES],
}

impl Account {
    /// From `first` on: the first look, or the time of the look before with no
    /// counts, for a thread that has started since.
    pub(crate) const fn new(first: Counters) -> Self {
        Self {
            first,
            last: first,
            seen: [0; ACTIVITIES],
        }
    }

    /// Takes a look in.
    pub(crate) fn look(&mut self, counters: Counters, activity: Activity) {
        self.last = counters;
        self.seen[activity as usize] += 1;
    }

    /// What became of the time between first and last look.
    pub(crate) fn spent(&self) -> Spent {
        let (first, last) = (&self.first, &self.last);
        let total_ns = last.at_ns.saturating_sub(first.at_ns);
        let since = |first: Option<u64>, last: Option<u64>| {
            first
                .zip(last)
                .map(|(first, last)| last.saturating_sub(first))
        };
        let ticks = last.cpu_ticks.saturating_sub(first.cpu_ticks);
        let ran = since(first.ran_ns, last.ran_ns);
        let ran_ns = ran.unwrap_or(ticks.saturating_mul(TICK_NS)).min(total_ns);
        let queued_ns = since(first.queued_ns, last.queued_ns);
        let running = self.seen[Activity::Running as usize];
        let looks: u32 = self.seen.iter().sum();
        // Where the kernel does not count the time without a CPU, it is what the
        // thread was seen running in and did not run.
        let on_cpu = queued_ns.map_or_else(
            || ran_ns.max(part(total_ns, running, looks)),
            |queued| ran_ns.saturating_add(queued),
        );
        let blocked = total_ns.saturating_sub(on_cpu);
        let of = |activity: Activity| part(blocked, self.seen[activity as usize], looks - running);
        let mut spent = Spent {
            total_ns,
            ran_ns,
            queued_ns: queued_ns.map(|queued| queued.min(total_ns - ran_ns)),
            limit_ns: of(Activity::Limit),
            disk_ns: of(Activity::Disk),
            counted_disk_ns: last
                .block_ticks
                .saturating_sub(first.block_ticks)
                .saturating_mul(TICK_NS),
            peer_reads_ns: of(Activity::PeerReads),
            peer_answers_ns: of(Activity::PeerAnswers),
            clients_ns: of(Activity::Clients),
            inside_ns: of(Activity::Inside),
            unknown_ns: of(Activity::Unknown),
        };
        if looks == running {
            // Blocked, if briefly, and never seen so.
            spent.unknown_ns = blocked;
        }
        spent
    }
}

/// `whole * n / of`.
fn part(whole: u64, n: u32, of: u32) -> u64 {
    let part = u128::from(whole) * u128::from(n) / u128::from(of.max(1));
    u64::try_from(part).unwrap_or(u64::MAX)
}

/// What a thread, or several together, spent time on, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    /// Everything.
    pub(crate) total_ns: u64,
    /// On a CPU.
    pub(crate) ran_ns: u64,
    /// Waiting for one; `None` where the kernel does not count it.
    pub(crate) queued_ns: Option<u64>,
    /// Waiting for limits, as far as it was seen; the ledger knows better.
    pub(crate) limit_ns: u64,
    /// Waiting for disks, as it was seen.
    pub(crate) disk_ns: u64,
    /// The same as the kernel counts it, where it does; otherwise 0.
    pub(crate) counted_disk_ns: u64,
    /// See [`Activity`].
    pub(crate) peer_reads_ns: u64,
    /// See [`Activity`].
    pub(crate) peer_answers_ns: u64,
    /// See [`Activity`].
    pub(crate) clients_ns: u64,
    /// See [`Activity`].
    pub(crate) inside_ns: u64,
    /// See [`Activity`].
    pub(crate) unknown_ns: u64,
}

impl Spent {
    /// On a CPU, and waiting for one.
    pub(crate) fn cpu_ns(&self) -> u64 {
        self.ran_ns.saturating_add(self.queued_ns.unwrap_or(0))
    }

    /// Waiting for disks, by whoever saw more of it.
    pub(crate) fn any_disk_ns(&self) -> u64 {
        self.disk_ns.max(self.counted_disk_ns)
    }

    /// Waiting for peers.
    pub(crate) const fn network_ns(&self) -> u64 {
        self.peer_reads_ns.saturating_add(self.peer_answers_ns)
    }

    /// What may make a service slow: everything but sleep of its own choice.
    pub(crate) fn held_ns(&self) -> u64 {
        [
            self.cpu_ns(),
            self.limit_ns,
            self.any_disk_ns(),
            self.network_ns(),
        ]
        .into_iter()
        .fold(0, u64::saturating_add)
    }

    /// Adds another thread's.
    pub(crate) fn add(&mut self, other: &Self) {
        let sum = |a: &mut u64, b: u64| *a = a.saturating_add(b);
        sum(&mut self.total_ns, other.total_ns);
        sum(&mut self.ran_ns, other.ran_ns);
        self.queued_ns = match (self.queued_ns, other.queued_ns) {
            (Some(a), Some(b)) => Some(a.saturating_add(b)),
            (a, b) => a.or(b),
        };
        sum(&mut self.limit_ns, other.limit_ns);
        sum(&mut self.disk_ns, other.disk_ns);
        sum(&mut self.counted_disk_ns, other.counted_disk_ns);
        sum(&mut self.peer_reads_ns, other.peer_reads_ns);
        sum(&mut self.peer_answers_ns, other.peer_answers_ns);
        sum(&mut self.clients_ns, other.clients_ns);
        sum(&mut self.inside_ns, other.inside_ns);
        sum(&mut self.unknown_ns, other.unknown_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn counters(at_ms: u64, ran_ms: u64, queued_ms: u64) -> Counters {
        Counters {
            at_ns: at_ms * MS,
            cpu_ticks: ran_ms / 10,
            block_ticks: 0,
            ran_ns: Some(ran_ms * MS),
            queued_ns: Some(queued_ms * MS),
        }
    }

    #[test]
    fn blocked_time_is_shared_out_by_what_was_seen() {
        let mut account = Account::new(counters(0, 0, 0));
        for activity in [
            Activity::Running,
            Activity::Limit,
            Activity::Limit,
            Activity::Limit,
        ] {
            account.look(counters(500, 100, 50), activity);
        }
        account.look(counters(1_000, 150, 50), Activity::Disk);
        let spent = account.spent();
        assert_eq!(spent.total_ns, 1_000 * MS);
        assert_eq!((spent.ran_ns, spent.queued_ns), (150 * MS, Some(50 * MS)));
        assert_eq!((spent.limit_ns, spent.disk_ns), (600 * MS, 200 * MS));
        assert_eq!((spent.unknown_ns, spent.held_ns()), (0, 1_000 * MS));
    }

    #[test]
    fn what_was_never_seen_is_not_known() {
        let mut account = Account::new(counters(0, 0, 0));
        account.look(counters(100, 60, 10), Activity::Running);
        let spent = account.spent();
        assert_eq!((spent.unknown_ns, spent.clients_ns), (30 * MS, 0));
        assert_eq!(
            Account::new(counters(5, 5, 5)).spent(),
            Spent {
                queued_ns: Some(0),
                ..Spent::default()
            }
        );
    }

    #[test]
    fn without_the_schedulers_counts_ticks_and_looks_have_to_do() {
        let bare = |at_ms: u64, cpu_ticks: u64, block_ticks: u64| Counters {
            at_ns: at_ms * MS,
            cpu_ticks,
            block_ticks,
            ran_ns: None,
            queued_ns: None,
        };
        let mut account = Account::new(bare(0, 100, 7));
        account.look(bare(500, 110, 7), Activity::Running);
        account.look(bare(1_000, 120, 17), Activity::Clients);
        let spent = account.spent();
        assert_eq!((spent.ran_ns, spent.queued_ns), (200 * MS, None));
        // Half of the looks found it running: 300 ms of that it had no CPU.
        assert_eq!(spent.clients_ns, 500 * MS);
        assert_eq!(
            (spent.counted_disk_ns, spent.any_disk_ns()),
            (100 * MS, 100 * MS)
        );
    }
}
