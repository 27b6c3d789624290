//! The segment in plain memory under miri: no undefined behaviour, and the memory
//! orders that the compiler is allowed to choose.
//!
//! `make miri` runs them. They need neither files nor mappings; the segment is the
//! real one with shorter tables.
#![cfg(miri)]

use bonsai_bucket::Curve;
use bonsai_calls::{READ_FILE, WRITE_FILE};
use bonsai_ledger::sync::{AtomicU64, Ordering, bump};
use bonsai_ledger::{Owner, ProcessId, Segment, Unshaped, model};
use std::thread;

const S: u64 = 1_000_000_000;

/// A thousand units per second.
fn curve(issued: u64) -> Curve {
    Curve::empty(1_000_000, 50, issued, 0)
}

/// A segment with a limit in bytes on file writes, in bucket 0, and one in calls
/// in bucket 1.
fn limited() -> Box<Segment> {
    let segment = model::segment();
    let next = model::begin_change(&segment);
    let config = &segment.configs[next];
    config.masks[usize::from(WRITE_FILE)].store(0b11, Ordering::Relaxed);
    config.byte_buckets.store(0b01, Ordering::Relaxed);
    for curves in &config.curves[..2] {
        curves.store(&curve(0), 50);
    }
    model::end_change(&segment, &[]);
    segment
}

fn process(pid: u32) -> ProcessId {
    let namespace = 0xf000_0011;
    ProcessId { pid, namespace }
}

fn page(segment: &Segment, tid: u32) -> usize {
    let me = Owner::of(process(7), tid);
    segment
        .claim_page(me, |o| o.pid == 6, |_| true)
        .expect("a page")
}

#[test]
fn two_threads_take_refund_and_lease() {
    let segment = limited();
    let work = |tid: u32| {
        let page = page(&segment, tid);
        let counts = &segment.threads[page].counts[usize::from(WRITE_FILE)];
        let mut used = 0;
        for i in 0..6 {
            let (epoch, mask, bytes) = segment.mask(WRITE_FILE);
            let now = S * i;
            let tickets = segment.take(mask, bytes, 100 + 20, 1, now).unwrap();
            assert!(segment.due(&tickets, now) >= now);
            let (got, _) = segment.lease(mask, bytes, 20, 0, epoch);
            segment.refund(&tickets, 20 - got, 0);
            used += 100;
            // Half of the lease is used, the rest given back.
            used += got - got / 2;
            segment.end_lease(mask, bytes, got, 0, epoch);
            segment.refund_mask(mask, bytes, got / 2, 0);
            bump(&counts.calls, 1);
            bump(&counts.bytes, 100);
            segment.record_wait(WRITE_FILE, tid as usize, 1000 * i);
            segment.record_wait(READ_FILE, tid as usize, i);
            segment.count_unshaped(Unshaped::Early);
        }
        (page, used)
    };
    let ((a, first), (b, second)) = thread::scope(|scope| {
        let other = scope.spawn(|| work(8));
        let mine = work(9);
        (mine, other.join().unwrap())
    });
    assert_ne!(a, b);
    for page in [a, b] {
        assert_eq!(
            segment.threads[page].counts[usize::from(WRITE_FILE)].load(),
            (6, 600)
        );
    }
    // Raises only ever add.
    let issued = |line: usize| segment.lines[line].issued(0).load(Ordering::Relaxed);
    assert!(issued(0) >= first + second && issued(1) >= 12);
    assert_eq!(
        segment.lines[0].leased.load(Ordering::Relaxed),
        3 << 32,
        "no lease is out"
    );
    let waits = |shard: usize| -> u64 {
        let rows = &segment.delays[shard].rows[usize::from(WRITE_FILE)];
        rows.buckets.iter().map(|n| n.load(Ordering::Relaxed)).sum()
    };
    assert_eq!((waits(0), waits(1)), (6, 6));
    assert_eq!(segment.header.longest_wait_ns.load(Ordering::Relaxed), 5000);
    assert_eq!(segment.header.unshaped[0].load(Ordering::Relaxed), 12);
}

#[test]
fn a_reader_beside_changes_sees_one_configuration() {
    let segment = limited();
    let change = |rate_milli: u64| {
        let next = model::begin_change(&segment);
        let (old, leases) = segment.configs[next].curves[0].load();
        segment.lines[0].raise(&old, S);
        let new = old.retune(rate_milli, rate_milli + 1, S);
        segment.configs[next].curves[0].store(&new, leases);
        model::end_change(&segment, &[])
    };
    change(5);
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut last = 0;
            while last < 15 {
                let (epoch, (curve, _)) = segment.with_config(|c| c.curves[0].load());
                assert!(epoch >= last, "the epoch went back");
                assert_eq!(curve.burst, curve.rate_milli + 1);
                last = epoch;
                thread::yield_now();
            }
        });
        for rate in 6..17 {
            change(rate);
            thread::yield_now();
        }
        reader.join().unwrap();
    });
}

#[test]
fn a_lifted_limit_lets_go() {
    let segment = limited();
    let (_, mask, bytes) = segment.mask(WRITE_FILE);
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            let tickets = segment.take(mask, bytes, 1 << 40, 1, S).unwrap();
            while segment.due(&tickets, S) > S {
                thread::yield_now();
            }
        });
        let next = model::begin_change(&segment);
        model::lift(&segment, next, 0, S);
        model::lift(&segment, next, 1, S);
        model::end_change(&segment, &[0, 1]);
        sleeper.join().unwrap();
    });
    assert_eq!(segment.mask(WRITE_FILE).1, 0);
}

#[test]
fn pages_and_entries_have_one_owner() {
    let segment = model::segment();
    // Left by a process that is dead, with counts.
    segment.header.high.store(1, Ordering::Relaxed);
    let left = Owner::of(process(6), 6).word();
    segment.owners[0].store(left, Ordering::Relaxed);
    segment.threads[0].counts[0]
        .calls
        .store(9, Ordering::Relaxed);
    let describe = |pid: u32| {
        let me = process(pid);
        let entry = segment.claim_process(me, |_| false).expect("a free entry");
        assert_eq!(entry.id.load(Ordering::Relaxed), me.word());
        std::ptr::from_ref(entry).addr()
    };
    let (a, b) = thread::scope(|scope| {
        let other = scope.spawn(|| (page(&segment, 8), describe(300), describe(7)));
        let mine = (page(&segment, 9), describe(44), describe(7));
        (mine, other.join().unwrap())
    });
    assert_ne!(a.0, b.0);
    assert!(
        a.0 == 0 || b.0 == 0,
        "the dead process's page is used first"
    );
    assert_eq!(segment.threads[0].counts[0].load_base(), (9, 0));
    // 44 and 300 begin their search at the same place; 7 is one process.
    assert_ne!(a.1, b.1);
    assert_eq!(a.2, b.2);
}

#[test]
fn a_counter_adds_up() {
    let counter = AtomicU64::new(u64::MAX);
    bump(&counter, 3);
    assert_eq!(counter.load(Ordering::Relaxed), 2);
}

#[test]
fn a_note_is_read_beside_its_writer() {
    let segment = model::segment();
    let mine = page(&segment, 9);
    let note = &segment.threads[mine].wait;
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            for _ in 0..20 {
                for waiting in segment.waiting(S) {
                    assert_eq!(waiting.owner, Owner::of(process(7), 9));
                    assert_eq!(waiting.noted.due_ns, waiting.noted.since_ns + S);
                }
                thread::yield_now();
            }
        });
        for i in 1..20 {
            note.begin(i);
            note.sleep(READ_FILE, 9, 1, i + S, i);
            thread::yield_now();
            note.end();
        }
        reader.join().unwrap();
    });
    assert_eq!(segment.waiting(S), []);
}
