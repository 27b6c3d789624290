//! Processes that use a segment and are killed at random instants: what the
//! others see stays intact, and the limits hold.
//!
//! This program runs itself again as each of the workers.
#![cfg(all(feature = "std", not(any(loom, miri))))]

mod common;

use bonsai_calls::WRITE_FILE;
use bonsai_ledger::sync::{AtomicU64, Ordering, bump};
use bonsai_ledger::{Ledger, Limit, Owner, ProcessId, Segment, own_process};
use common::{Random, S, Scratch, now, select, skip};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const NAME: &str = "killed_processes_leave_the_others_working";
/// Tells a worker where its segment is.
const SEGMENT: &str = "BONSAI_TEST_KILL_SEGMENT";

const WORKERS: usize = 4;
const THREADS: usize = 2;
/// Kills to do, and for how long at most.
const KILLS: usize = 400;
const TIME: Duration = Duration::from_secs(12);

/// The limit that the workers draw on, which nobody ever changes to another.
const RATE: u64 = 1_000_000;
const BURST: u64 = 4_000;
/// The largest call and the largest lease, units.
const CALL: u64 = 200;
const LEASE: u64 = 1_500;

/// Two limits that only ever change together, and a rule between their numbers.
const PAIR: [&str; 2] = ["open", "stat"];
const fn pair_burst(rate_milli: u64) -> u64 {
    rate_milli / 1000 + 7
}

fn process_is_dead(pid: u32) -> bool {
    let pid = i32::try_from(pid)
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    let answer = pid.map(rustix::process::test_kill_process);
    answer == Some(Err(rustix::io::Errno::SRCH))
}

/// Sets the limit of the workers to what it is.
fn set_shared(editor: &mut bonsai_ledger::Editor<'_>) {
    editor
        .set("write", select("write"), true, RATE * 1000, BURST)
        .unwrap();
}

mod worker {
    use super::*;

    pub(super) fn run(path: &Path) {
        let parent = rustix::process::getppid();
        let orphaned = move || rustix::process::getppid() != parent;
        let ledger = Ledger::open(path).unwrap();
        std::thread::scope(|scope| {
            for number in 0..THREADS {
                let ledger = &ledger;
                scope.spawn(move || {
                    let mut random = Random(now() + number as u64);
                    let mut thread = Thread::new(ledger);
                    while !orphaned() {
                        for _ in 0..20 {
                            thread.call(&mut random);
                        }
                        if random.below(4) == 0 {
                            edit(ledger, &mut random);
                        }
                    }
                });
            }
        });
    }

    /// Some change of the pair, sometimes given up half-way.
    fn edit(ledger: &Ledger, random: &mut Random) {
        let mut editor = ledger.edit(now()).unwrap();
        let rate_milli = 1000 * (1 + random.below(1000));
        let lift = random.below(4) == 0;
        for name in PAIR {
            if lift {
                editor.clear(name);
            } else {
                let burst = pair_burst(rate_milli);
                editor
                    .set(name, select(name), false, rate_milli, burst)
                    .unwrap();
            }
        }
        if random.below(2) == 0 {
            set_shared(&mut editor);
        }
        if random.below(4) != 0 {
            editor.commit();
        }
    }

    /// What the interposer keeps of a thread.
    struct Thread<'a> {
        segment: &'a Segment,
        counter: &'a AtomicU64,
        epoch: u32,
        granted: u64,
        left: u64,
    }

    impl<'a> Thread<'a> {
        fn new(segment: &'a Segment) -> Self {
            let tid = rustix::thread::gettid()
                .as_raw_nonzero()
                .get()
                .unsigned_abs();
            let process = own_process();
            let me = Owner::of(process, tid);
            let dead = |other: Owner| process_is_dead(other.pid);
            let page = segment.claim_page(me, dead, |_| true).expect("a page");
            segment
                .claim_process(process, |other| process_is_dead(other.pid))
                .expect("an entry");
            let counter = &segment.threads[page].counts[usize::from(WRITE_FILE)].bytes;
            Self {
                segment,
                counter,
                epoch: 0,
                granted: 0,
                left: 0,
            }
        }

        /// One call: from the lease, or else with a ticket and a new lease.
        fn call(&mut self, random: &mut Random) {
            let units = 1 + random.below(CALL);
            let (epoch, mask, bytes) = self.segment.mask(WRITE_FILE);
            if self.epoch != epoch {
                (self.epoch, self.granted, self.left) = (epoch, 0, 0);
            }
            if self.left >= units {
                self.left -= units;
                return bump(self.counter, units);
            }
            self.segment.end_lease(mask, bytes, self.granted, 0, epoch);
            self.segment.refund_mask(mask, bytes, self.left, 0);
            (self.granted, self.left) = (0, 0);

            let wanted = random.below(LEASE);
            let at = now();
            let tickets = self
                .segment
                .take(mask, bytes, units + wanted, 1, at)
                .unwrap();
            loop {
                let at = now();
                let due = self.segment.due(&tickets, at);
                if due <= at {
                    break;
                }
                std::thread::sleep(Duration::from_nanos((due - at).min(1_000_000)));
            }
            let (got, _) = self.segment.lease(mask, bytes, wanted, 0, epoch);
            (self.granted, self.left) = (got, got);
            self.segment.refund(&tickets, wanted - got, 0);
            bump(self.counter, units);
        }
    }
}

/// A worker process, which does not outlive the value.
struct Worker(Child);

impl Worker {
    fn start(path: &Path) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", NAME, "--nocapture"])
            .env(SEGMENT, path)
            .stdout(Stdio::null())
            .spawn();
        Self(child.expect("this program again"))
    }

    /// Kills it, and fails if it had ended by itself.
    fn kill(mut self) {
        self.0.kill().unwrap();
        let status = self.0.wait().unwrap();
        assert_eq!(
            status.signal(),
            Some(9),
            "a worker ended by itself: {status}"
        );
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Looks at the segment as a bystander.
struct Observer {
    ledger: Ledger,
    start: u64,
    /// Instants before and after a reading, and what had been let through.
    readings: Vec<(u64, u64, u64)>,
}

impl Observer {
    /// Both limits of the pair or none, and with numbers that belong together.
    fn check_limits(&self) -> Vec<Limit> {
        let limits = self.ledger.limits(now());
        let named = |name: &str| {
            let found: Vec<&Limit> = limits.iter().filter(|l| l.name == name).collect();
            assert!(found.len() <= 1, "{name} twice: {limits:?}");
            found.first().map(|l| (l.bytes, l.rate_milli, l.burst))
        };
        assert_eq!(
            named("write"),
            Some((true, RATE * 1000, BURST)),
            "{limits:?}"
        );
        let pair = PAIR.map(named);
        assert_eq!(pair[0], pair[1], "{limits:?}");
        if let Some((bytes, rate_milli, burst)) = pair[0] {
            assert!(!bytes && burst == pair_burst(rate_milli), "{limits:?}");
        }
        assert_eq!(
            limits.len(),
            1 + 2 * usize::from(pair[0].is_some()),
            "{limits:?}"
        );
        limits
    }

    /// Nothing above the envelope: neither since the start nor in any stretch.
    fn check_envelope(&mut self) -> u64 {
        let before = now();
        let passed = self.ledger.totals()[usize::from(WRITE_FILE)].bytes;
        let after = now();
        let gives = |from: u64, to: u64| u128::from(RATE) * u128::from(to - from) / u128::from(S);
        let allowed = gives(self.start, after);
        assert!(
            u128::from(passed) <= allowed,
            "{passed} of {allowed} since the start"
        );

        // A call that is due and not yet counted is late by nobody's fault.
        let late = (WORKERS * THREADS) as u64 * (CALL + LEASE);
        for (from, _, earlier) in &self.readings {
            let allowed = gives(*from, after) + u128::from(BURST + late);
            let got = u128::from(passed - earlier);
            assert!(got <= allowed, "{got} of {allowed} in {} ns", after - from);
        }
        self.readings.push((before, after, passed));
        passed
    }

    /// Takes a ticket like any other process, and waits for it.
    fn check_progress(&self) {
        let (_, mask, bytes) = self.ledger.mask(WRITE_FILE);
        let at = now();
        let tickets = self.ledger.take(mask, bytes, 1, 1, at).unwrap();
        let due = self.ledger.due(&tickets, at);
        assert!(
            due - at < S,
            "a line of {} ns: who is dead holds it up",
            due - at
        );
        std::thread::sleep(Duration::from_nanos(due - at));
        let at = now();
        assert_eq!(self.ledger.due(&tickets, at), at, "due is due");
    }

    /// Changes the limits itself: no dead writer is in the way.
    fn check_change(&self) {
        let start = Instant::now();
        let mut editor = self.ledger.edit(now()).unwrap();
        assert!(
            start.elapsed() < Duration::from_secs(2),
            "the lock of a dead writer"
        );
        set_shared(&mut editor);
        let epoch = editor.commit();
        assert!(epoch > 2);
    }
}

#[test]
fn killed_processes_leave_the_others_working() {
    if let Some(path) = std::env::var_os(SEGMENT) {
        return worker::run(Path::new(&path));
    }
    let scratch = Scratch::new();
    let start = now();
    let mut editor = scratch.ledger.edit(start).unwrap();
    set_shared(&mut editor);
    editor.commit();
    let mut observer = Observer {
        ledger: scratch.open(),
        start,
        readings: Vec::new(),
    };
    let mut random = Random(start);
    let mut workers: Vec<Worker> = (0..WORKERS).map(|_| Worker::start(&scratch.path)).collect();

    let end = Instant::now() + TIME;
    let mut kills = 0;
    while kills < KILLS && Instant::now() < end {
        std::thread::sleep(Duration::from_micros(random.below(30_000)));
        let victim = usize::try_from(random.below(WORKERS as u64)).unwrap();
        workers.swap_remove(victim).kill();
        kills += 1;
        observer.check_limits();
        observer.check_envelope();
        observer.check_progress();
        if kills % 8 == 0 {
            observer.check_change();
        }
        workers.push(Worker::start(&scratch.path));
    }
    if kills < 50 {
        return skip(
            NAME,
            &format!("only {kills} kills in {TIME:?}: the machine is starved"),
        );
    }

    // The last ones live on: each is there with its pages, and gets its share.
    let ledger = &observer.ledger;
    let present = |w: &Worker| {
        let pid = w.0.id();
        let process = ProcessId {
            pid,
            ..own_process()
        };
        ledger.process_table().iter().any(|p| p.id == process)
            && ledger.threads_of(process) == THREADS
            && ledger.process_counts(process)[usize::from(WRITE_FILE)].1 > 0
    };
    let patience = Instant::now() + Duration::from_secs(10);
    while !workers.iter().all(present) {
        assert!(
            Instant::now() < patience,
            "a worker is missing: {:?}",
            ledger.process_table()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(ledger.header.processes_lost.load(Ordering::Relaxed), 0);
    // Pages and entries of the dead were used again. A search may just miss some.
    let high = ledger.header.high.load(Ordering::Relaxed) as usize;
    assert!(
        high <= 2 * WORKERS * THREADS,
        "{high} pages after {kills} kills"
    );
    let passed = observer.check_envelope();
    let gave = RATE * ((now() - start) / 1_000_000) / 1000;
    assert!(
        passed >= gave / 10,
        "{passed} of {gave}: the living were held up"
    );
    eprintln!(
        "{kills} kills, {high} pages, {passed} of {gave} units, epoch {}",
        observer.ledger.epoch()
    );
}
