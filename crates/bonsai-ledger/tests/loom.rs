//! Small cases under every order of memory accesses, by the model checker.
//!
//! `make model` runs them. The segment has one call, two buckets and three pages
//! here; its code is the real one.
//!
//! # Who runs where
//! The checker runs the first thread as far as it goes and then reverses pairs of
//! accesses, of which it remembers the last one per location. It finds a read that
//! belongs before another thread's write, but not a write that belongs before an
//! earlier read if its thread has read the location, too. So whoever changes
//! something is the first thread, and those who only look are spawned.
#![cfg(loom)]

#[path = "loom/common.rs"]
mod common;
#[path = "loom/sleepers.rs"]
mod sleepers;
#[path = "loom/streams.rs"]
mod streams;

use bonsai_bucket::Curve;
use bonsai_ledger::sync::{AtomicU32, AtomicU64, Ordering};
use bonsai_ledger::{Owner, ProcessId, Segment, model};
use common::{CURVE, S, SHUT, check};
use loom::sync::{Condvar, Mutex};
use loom::thread;
use std::sync::Arc;

/// A segment with a limit on the one call, in bucket 0.
fn limited(curve: &Curve, leases: u64) -> Arc<Segment> {
    let segment = model::segment();
    let config = &segment.configs[0];
    config.masks[0].store(1, Ordering::Relaxed);
    config.curves[0].store(curve, leases);
    Arc::from(segment)
}

fn spawn<T: 'static>(
    segment: &Arc<Segment>,
    body: impl FnOnce(&Segment) -> T + 'static,
) -> thread::JoinHandle<T> {
    let segment = Arc::clone(segment);
    thread::spawn(move || body(&segment))
}

/// The epoch of the leases of bucket 0, and the units out.
fn leased(segment: &Segment) -> (u64, u64) {
    let word = segment.lines[0].leased.load(Ordering::Relaxed);
    (word >> 32, word & 0xffff_ffff)
}

/// Takers of an idle bucket: `(units, now)` each.
fn takers(list: &'static [(u64, u64)]) {
    check(None, move || {
        let segment = limited(&CURVE, 0);
        let take = |&(units, now): &(u64, u64)| {
            let ticket = move |s: &Segment| s.lines[0].take(0, &CURVE, units, now);
            spawn(&segment, ticket)
        };
        let others: Vec<_> = list[1..].iter().map(take).collect();
        let mut tickets = vec![segment.lines[0].take(0, &CURVE, list[0].0, list[0].1)];
        tickets.extend(others.into_iter().map(|t| t.join().unwrap()));

        let mut spans: Vec<(u64, u64)> = Vec::new();
        for ((units, now), ticket) in list.iter().zip(tickets) {
            let start = ticket - units;
            assert!(
                start >= CURVE.floor(*now),
                "a ticket from {start} lies below the floor"
            );
            spans.push((start, ticket));
        }
        spans.sort_unstable();
        assert!(
            spans.is_sorted_by(|a, b| a.1 <= b.0),
            "tickets overlap: {spans:?}"
        );

        let units: u64 = list.iter().map(|t| t.0).sum();
        let issued = segment.lines[0].issued(0).load(Ordering::Relaxed);
        let floor = |now: &(u64, u64)| CURVE.floor(now.1);
        let (lowest, highest) = (list.iter().map(floor).min(), list.iter().map(floor).max());
        assert!(issued >= lowest.unwrap() + units, "units were lost");
        if lowest == highest {
            assert_eq!(
                issued,
                highest.unwrap() + units,
                "one raise, and every unit once"
            );
        }
    });
}

#[test]
fn tickets_of_three_threads_are_distinct_and_exact() {
    takers(&[(3, S), (1, S), (5, S)]);
}

#[test]
fn tickets_of_different_instants_are_distinct_and_above_their_floors() {
    takers(&[(3, S), (4, 2 * S)]);
}

#[test]
fn a_refund_is_not_lost_beside_tickets() {
    // In debt, so that no raise takes part: the sum is exact.
    check(None, || {
        let segment = limited(&CURVE, 0);
        segment.lines[0].issued(0).store(5_000, Ordering::Relaxed);
        let taker = spawn(&segment, |s| s.lines[0].take(0, &CURVE, 7, S));
        let refund = spawn(&segment, |s| s.lines[0].refund(100));
        let first = segment.lines[0].take(0, &CURVE, 3, S);
        let second = taker.join().unwrap();
        refund.join().unwrap();
        assert_ne!(first, second);
        assert_eq!(
            segment.lines[0].issued(0).load(Ordering::Relaxed),
            5_000 + 3 + 7 - 100
        );
    });
}

#[test]
fn a_line_that_starts_anew_owes_nothing_to_the_old_one() {
    check(None, || {
        let segment = limited(&CURVE, 0);
        segment.lines[0]
            .issued(0)
            .store(1_000_000, Ordering::Relaxed);
        let old = segment.take(1, 0, 0, 100, S).unwrap();
        let refund = spawn(&segment, move |s| s.refund(&old, 0, 100));
        let taker = spawn(&segment, |s| {
            let mut ticket = s.take(1, 0, 0, 1, S).unwrap();
            while s.epoch() != 3 {
                thread::yield_now();
            }
            if s.stale(&ticket) {
                ticket = s.take(1, 0, 0, 1, S).unwrap();
            }
            assert!(!s.stale(&ticket));
            s.due(&ticket, S)
        });
        let next = model::begin_change(&segment);
        let curve = CURVE.retune(1000, 10, S);
        segment.configs[next].curves[0].store(&curve, 0);
        model::restart(&segment, 0, &curve, S);
        model::end_change(&segment, &[0]);

        assert!(segment.stale(&old));
        assert_eq!(
            taker.join().unwrap(),
            2 * S,
            "the first unit of an empty bucket"
        );
        refund.join().unwrap();
        let issued = segment.lines[0].issued(1).load(Ordering::Relaxed);
        assert_eq!(issued, curve.floor(S) + curve.burst + 1);
    });
}

#[test]
fn leases_never_exceed_the_budget() {
    const BUDGET: u64 = 3;
    check(None, || {
        let segment = limited(&CURVE, BUDGET);
        // Gives one unit back, so that the third can get what the second could not.
        let first = spawn(&segment, |s| {
            let got = s.lines[0].lease(2, BUDGET, 2);
            assert!(leased(s).1 <= BUDGET);
            s.lines[0].end_lease(got.min(1), 2);
            got - got.min(1)
        });
        let second = spawn(&segment, |s| s.lines[0].lease(2, BUDGET, 2));
        let third = segment.lines[0].lease(2, BUDGET, 2);
        assert!(leased(&segment).1 <= BUDGET);
        let held = first.join().unwrap() + second.join().unwrap() + third;
        assert!(held <= BUDGET);
        assert_eq!(leased(&segment), (2, held), "what is out is what is held");
    });
}

#[test]
fn leases_of_an_earlier_epoch_neither_get_nor_give_back() {
    const BUDGET: u64 = 3;
    check(None, || {
        let segment = limited(&CURVE, BUDGET);
        // Books under an epoch that may be over by then.
        let stale = spawn(&segment, |s| {
            let got = s.lines[0].lease(2, BUDGET, 2);
            s.lines[0].end_lease(got, 2);
        });
        let current = spawn(&segment, |s| {
            let epoch = s.epoch();
            let got = s.lines[0].lease(3, BUDGET, epoch);
            if epoch == 3 {
                // The earlier epoch's leases do not count against this one.
                assert_eq!((got, leased(s)), (3, (3, 3)));
            }
            (epoch, got)
        });
        let _ = model::begin_change(&segment);
        assert_eq!(model::end_change(&segment, &[]), 3);
        let (epoch, got) = current.join().unwrap();
        let seen = u64::from(epoch);
        stale.join().unwrap();
        assert_eq!(
            leased(&segment),
            (seen, got),
            "only the earlier epoch's share was ended"
        );
        assert_eq!(
            segment.lines[0].lease(1, 4, 1),
            0,
            "an epoch that is over leases nothing"
        );
        segment.lines[0].end_lease(1, 1);
        assert_eq!(leased(&segment), (seen, got));
    });
}

#[test]
fn a_lease_of_two_buckets_leaves_nothing_booked_in_vain() {
    check(None, || {
        let segment = limited(&CURVE, 4);
        segment.configs[0].curves[1].store(&CURVE, 3);
        let body = |s: &Segment| {
            let (_, got) = s.lease(0b11, 0, 0, 3, 2);
            s.end_lease(0b11, 0, 0, got, 2);
        };
        let other = spawn(&segment, body);
        body(&segment);
        other.join().unwrap();
        for line in &segment.lines {
            assert_eq!(line.leased.load(Ordering::Relaxed) & 0xffff_ffff, 0);
        }
    });
}

#[test]
fn a_reader_never_sees_words_of_two_configurations() {
    // Every word of the configuration of an epoch is that epoch.
    fn write(segment: &Segment) {
        let next = model::begin_change(segment);
        let word = u64::from(segment.epoch()) + 1;
        segment.configs[next].masks[0].store(word, Ordering::Relaxed);
        let curve = Curve {
            rate_milli: word,
            ..CURVE
        };
        segment.configs[next].curves[1].store(&curve, word);
        model::end_change(segment, &[]);
    }
    check(Some(2), || {
        let segment = Arc::<Segment>::from(model::segment());
        segment.configs[0].masks[0].store(2, Ordering::Relaxed);
        segment.configs[0].curves[1].store(
            &Curve {
                rate_milli: 2,
                ..CURVE
            },
            2,
        );
        let reader = spawn(&segment, |s| {
            let (epoch, seen) = s.with_config(|config| {
                let (curve, leases) = config.curves[1].load();
                let mask = config.masks[0].load(Ordering::Relaxed);
                [mask, curve.rate_milli, leases]
            });
            assert_eq!(seen, [u64::from(epoch); 3]);
        });
        write(&segment);
        write(&segment);
        reader.join().unwrap();
        assert_eq!(segment.epoch(), 4);
    });
}

fn process(pid: u32) -> ProcessId {
    let namespace = 0xf000_0011;
    ProcessId { pid, namespace }
}

fn owner(pid: u32) -> Owner {
    Owner::of(process(pid), pid + 1)
}

fn word(owner: Owner) -> u64 {
    owner.word()
}

#[test]
fn one_of_two_claimers_gets_a_dead_page() {
    check(None, || {
        let segment = Arc::<Segment>::from(model::segment());
        segment.header.high.store(1, Ordering::Relaxed);
        segment.owners[0].store(word(owner(7)), Ordering::Relaxed);
        segment.threads[0].counts[0]
            .calls
            .store(5, Ordering::Relaxed);
        let claim = |s: &Segment, me: u32| {
            s.claim_page(owner(me), |o| o == owner(7), |_| true)
                .expect("two pages are free")
        };
        let other = spawn(&segment, move |s| claim(s, 8));
        let mine = claim(&segment, 9);
        let other = other.join().unwrap();
        assert!(
            mine != other && (mine == 0 || other == 0),
            "{mine} and {other}"
        );
        assert_eq!(segment.header.high.load(Ordering::Relaxed), 2);
        let winner = if mine == 0 { 9 } else { 8 };
        assert_eq!(
            segment.owners[0].load(Ordering::Relaxed),
            word(owner(winner))
        );
        assert_eq!(
            segment.threads[0].counts[0].load_base(),
            (5, 0),
            "what a dead thread counted"
        );
        assert_eq!(segment.threads[0].counts[0].load(), (5, 0), "stays");
    });
}

/// The thread that takes over a dead one's leases wants its page as well; another
/// thread of the process only looks for a page.
#[test]
fn a_page_is_passed_on_or_found_but_not_both() {
    check(None, || {
        let segment = Arc::<Segment>::from(model::segment());
        segment.header.high.store(1, Ordering::Relaxed);
        let of = |tid: u32| Owner::of(process(7), tid);
        segment.owners[0].store(word(of(8)), Ordering::Relaxed);
        let other = spawn(&segment, move |s| {
            s.claim_page(of(9), |o| o == of(8), |_| true)
                .expect("two pages are free")
        });
        let passed = segment.pass_page(0, of(8), of(10));
        assert!(passed != (other.join().unwrap() == 0));
        let winner = if passed { 10 } else { 9 };
        assert_eq!(segment.owners[0].load(Ordering::Relaxed), word(of(winner)));
    });
}

/// Waits that are over at once: whoever asks or answers gives up in any state.
struct Impatient(u32);

impl bonsai_ledger::Futex for Impatient {
    fn wait(&mut self, _: &AtomicU32, _: u32) -> bool {
        loom::thread::yield_now();
        self.0 = self.0.saturating_sub(1);
        self.0 > 0
    }

    fn wake(&mut self, _: &AtomicU32) {}

    fn is_dead(&mut self, _: ProcessId) -> bool {
        false
    }
}

/// A program is entered if and only if its process waits for that, whether it has to allow that or not.
#[test]
fn who_asks_and_who_answers_agree() {
    for at_once in [false, true] {
        check(Some(3), move || agree(at_once));
    }
}

fn agree(at_once: bool) {
    let segment = Arc::<Segment>::from(model::segment());
    segment.header.keeper.store(1, Ordering::Relaxed);
    let helper = spawn(&segment, move |s| {
        let Some(asked) = s.take_questions().next().and_then(|number| s.asked(number)) else {
            return false;
        };
        let mut futex = Impatient(3);
        if at_once {
            asked.name(2);
            return asked.seized_at_once(&mut futex);
        }
        asked.wait_until_allowed(2, &mut futex) && asked.seized(true, &mut futex)
    });
    let held = segment.ask_to_enter(process(3), &mut Impatient(3), |helper| {
        assert_eq!(helper.pid, 2);
    });
    assert_eq!(held.is_some(), helper.join().unwrap());
}

#[test]
fn a_claimer_of_a_dead_page_and_one_of_a_fresh_page_do_not_meet() {
    // Three claimers for one dead and two fresh pages.
    check(Some(3), || {
        let segment = Arc::<Segment>::from(model::segment());
        segment.header.high.store(1, Ordering::Relaxed);
        segment.owners[0].store(word(owner(7)), Ordering::Relaxed);
        let claim = |s: &Segment, me: u32| s.claim_page(owner(me), |o| o == owner(7), |_| true);
        let a = spawn(&segment, move |s| claim(s, 8));
        let b = spawn(&segment, move |s| claim(s, 9));
        let mut got = [claim(&segment, 10), a.join().unwrap(), b.join().unwrap()];
        got.sort_unstable();
        assert_eq!(got, [Some(0), Some(1), Some(2)]);
    });
}

#[test]
fn pages_are_populated_before_they_are_counted() {
    check(None, || {
        let segment = Arc::<Segment>::from(model::segment());
        let populated: Arc<[AtomicU32; 3]> = Arc::new(std::array::from_fn(|_| AtomicU32::new(0)));
        let claim = |s: &Segment, pages: &[AtomicU32; 3], me: u32| {
            let populate = |i: usize| {
                pages[i].store(1, Ordering::Relaxed);
                true
            };
            s.claim_page(owner(me), |_| false, populate)
        };
        let pages = Arc::clone(&populated);
        let other = spawn(&segment, move |s| claim(s, &pages, 8));
        let pages = Arc::clone(&populated);
        let reader = spawn(&segment, move |s| {
            let high = s.header.high.load(Ordering::Acquire) as usize;
            assert!(pages[..high].iter().all(|p| p.load(Ordering::Relaxed) == 1));
        });
        assert_ne!(claim(&segment, &populated, 9), other.join().unwrap());
        reader.join().unwrap();
    });
}

/// The number in a word of a process.
fn pid(id: &AtomicU64) -> u32 {
    let id = ProcessId::from_word(id.load(Ordering::Relaxed));
    id.expect("an entry in use").pid
}

/// Two threads describe the processes `a` and `b`; entry 0 belongs to one that
/// lives, entry 1 to a dead one.
fn describe(a: u32, b: u32, judge: fn(&Segment, Option<u32>, Option<u32>)) {
    check(None, move || {
        let segment = Arc::<Segment>::from(model::segment());
        segment.processes[0]
            .id
            .store(process(6).word(), Ordering::Relaxed);
        segment.processes[1]
            .id
            .store(process(7).word(), Ordering::Relaxed);
        let claim = |s: &Segment, me: u32| {
            let entry = s.claim_process(process(me), |other| other.pid == 7);
            entry.map(|e| pid(&e.id))
        };
        let other = spawn(&segment, move |s| claim(s, b));
        let mine = claim(&segment, a);
        judge(&segment, mine, other.join().unwrap());
        assert_eq!(pid(&segment.processes[0].id), 6);
    });
}

#[test]
fn one_of_two_processes_gets_a_dead_ones_entry() {
    describe(8, 9, |segment, a, b| {
        assert!(a.is_none() != b.is_none(), "{a:?} and {b:?}");
        let pid = pid(&segment.processes[1].id);
        assert_eq!(a.or(b), Some(pid));
        assert_eq!(segment.header.processes_lost.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn two_threads_describe_their_process_once() {
    describe(8, 8, |segment, a, b| {
        assert_eq!((a, b), (Some(8), Some(8)));
        assert_eq!(segment.header.processes_lost.load(Ordering::Relaxed), 0);
    });
}

/// futex(2) on the epoch: comparing and going to sleep is one step for wakers.
#[derive(Debug)]
struct Futex {
    queue: Mutex<()>,
    woken: Condvar,
}

impl Futex {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            queue: Mutex::new(()),
            woken: Condvar::new(),
        })
    }

    fn wait(&self, word: &AtomicU32, value: u32) {
        let queue = self.queue.lock().unwrap();
        if word.load(Ordering::Relaxed) == value {
            drop(self.woken.wait(queue).unwrap());
        }
    }

    fn wake(&self) {
        drop(self.queue.lock().unwrap());
        self.woken.notify_all();
    }
}

/// A call that never comes due under the first limits; `change` lets it go. A lost
/// wake-up, or a wake-up that still sees the old limits, is a deadlock.
fn sleeper(change: fn(&Segment)) {
    check(None, move || {
        let segment = limited(&SHUT, 0);
        let futex = Futex::new();
        let kernel = Arc::clone(&futex);
        let sleeper = spawn(&segment, move |s| {
            let (_, mask, bytes) = s.mask(0);
            let tickets = s.take(mask, bytes, 0, 1, S).unwrap();
            loop {
                let epoch = s.epoch();
                if s.due(&tickets, S) <= S {
                    break;
                }
                kernel.wait(&s.header.epoch.0, epoch);
            }
        });
        change(&segment);
        futex.wake();
        sleeper.join().unwrap();
    });
}

#[test]
fn a_retune_reaches_every_sleeper() {
    sleeper(|segment| {
        let next = model::begin_change(segment);
        segment.configs[next].curves[0].store(&CURVE, 0);
        model::end_change(segment, &[]);
    });
}

#[test]
fn a_lifted_limit_lets_every_sleeper_go() {
    sleeper(|segment| {
        let next = model::begin_change(segment);
        model::lift(segment, next, 0, S);
        model::end_change(segment, &[0]);
    });
}

#[test]
fn a_note_of_a_wait_is_never_made_of_two() {
    check(None, || {
        let segment = limited(&CURVE, 0);
        let reader = spawn(&segment, |s| s.threads[0].wait.read());
        let note = &segment.threads[0].wait;
        for (tid, bucket, now) in [(7, 0, 10), (8, 1, 20)] {
            note.begin(now);
            note.sleep(0, tid, bucket, now + 5, now);
            note.end();
        }
        if let Some((tid, noted)) = reader.join().unwrap() {
            let all = (
                noted.since_ns,
                noted.bucket,
                noted.uncounted_ns,
                noted.due_ns,
                noted.slept_ns,
            );
            let wanted = if tid == 7 {
                (10, 0, 10, 15, 10)
            } else {
                (20, 1, 20, 25, 20)
            };
            assert_eq!(all, wanted, "thread {tid}");
        }
    });
}
