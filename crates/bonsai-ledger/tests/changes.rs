//! What a change of limits does to those who wait, hold a ticket or a lease.
#![cfg(all(feature = "std", not(any(loom, miri))))]

mod common;

use bonsai_calls::{READ_FILE, WRITE_FILE};
use bonsai_ledger::sync::Ordering;
use common::{S, Scratch, now, select, write};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

#[test]
fn a_retune_keeps_the_debt() {
    let scratch = Scratch::new();
    let ledger = &scratch.ledger;
    scratch.set_bytes("write", 1000, 1, 0);
    let ticket = write(ledger, 500, 0);
    assert_eq!(ledger.due(&ticket, 0), S / 2);
    // After 0.1 s, 400 units are missing.
    let changes = [
        (500, 1000, 9 * S / 10),
        (250, 1000, 17 * S / 10),
        (4000, 1000, 2 * S / 10),
        (2000, 2, 3 * S / 10),
    ];
    for (rate, burst, due) in changes {
        scratch.set_bytes("write", rate, burst, S / 10);
        assert!(!ledger.stale(&ticket));
        assert_eq!(ledger.due(&ticket, S / 10), due, "{rate}/s");
        assert_eq!(ledger.limits(S / 10)[0].level, -400, "{rate}/s");
    }
}

#[test]
fn a_much_lower_rate_starts_the_line_anew() {
    let scratch = Scratch::new();
    let ledger = &scratch.ledger;
    scratch.set_bytes("write", 1_000_000, 100, 0);
    let ticket = write(ledger, 10_000_000, 0);
    let epoch = scratch.set_bytes("write", 499_999, 100, S);
    // Ten seconds of the old rate are months of the new one: the order is void.
    assert!(ledger.stale(&ticket));
    assert_eq!(ledger.due(&ticket, S), S);
    assert_eq!(ledger.limits(S)[0].level, 0);
    ledger.refund(&ticket, 10_000_000, 1);
    assert_eq!(ledger.limits(S)[0].level, 0);
    let (_, mask, bytes) = ledger.mask(WRITE_FILE);
    assert_eq!(ledger.lease(mask, bytes, 100, 0, epoch).0, 50);

    // Twice in one change, also back up and with another burst, is once.
    for changes in [[(10, 1000), (1, 1)], [(10, 1000), (100, 10)]] {
        scratch.set_bytes("write", 1000, 100, S);
        write(ledger, 1 << 30, S);
        let mut editor = ledger.edit(S).unwrap();
        for (rate, burst) in changes {
            let write = select("write");
            editor
                .set("write", write, true, rate * 1000, burst)
                .unwrap();
        }
        editor.commit();
        assert_eq!(ledger.limits(S)[0].level, 0);
        let first = write(ledger, 1, S);
        assert_eq!(ledger.due(&first, S), S + S / changes[1].0);
    }
}

#[test]
fn a_writer_killed_within_commit_leaves_the_line_usable() {
    let scratch = Scratch::new();
    let ledger = &scratch.ledger;
    // The line's other counter is left far ahead.
    scratch.set_bytes("write", 1_000_000, 100, 0);
    write(ledger, 1 << 40, 0);
    scratch.set_bytes("write", 1000, 100, S);
    for lifted in [true, false] {
        let mut editor = ledger.edit(S).unwrap();
        if lifted {
            editor.clear("write");
        } else {
            editor
                .set("write", select("write"), true, 100_000, 100)
                .unwrap();
        }
        drop(editor);
        // As far as it came: the line has started anew, the limit is what it was.
        ledger.lines[0].generation.fetch_add(1, Ordering::SeqCst);
        let ticket = write(ledger, 1, S);
        assert_eq!(ledger.due(&ticket, S), S + S / 1000);
        ledger.refund(&ticket, 1, 1);
    }
}

#[test]
fn a_rate_of_zero_holds_until_the_next_change() {
    let scratch = Scratch::new();
    let ledger = &scratch.ledger;
    scratch.set_bytes("write", 1000, 1, 0);
    scratch.set_bytes("write", 0, 1000, S);
    let ticket = write(ledger, 400, S);
    assert_eq!(ledger.due(&ticket, 100 * S), u64::MAX);
    scratch.set_bytes("write", 400, 1000, 100 * S);
    assert_eq!(ledger.due(&ticket, 100 * S), 101 * S);
}

#[test]
fn a_retune_does_not_enrich_an_idle_bucket() {
    let scratch = Scratch::new();
    scratch.set_bytes("write", 1000, 10, 0);
    let level = |at| scratch.ledger.limits(at)[0].level;
    assert_eq!(level(60 * S), 5);
    scratch.set_bytes("write", 1000, 1000, 60 * S);
    assert_eq!(level(60 * S), 5);
    assert_eq!(level(61 * S), 500);
    scratch.set_bytes("write", 1000, 10, 61 * S);
    assert_eq!(level(61 * S), 5);
}

#[test]
fn a_lifted_limit_releases_its_tickets() {
    let scratch = Scratch::new();
    let ledger = &scratch.ledger;
    scratch.set_bytes("write", 1, 1, 0);
    let (_, mask, bytes) = ledger.mask(WRITE_FILE);
    let hour = write(ledger, 3600, 0);
    assert_eq!(ledger.due(&hour, 0), 3600 * S);
    scratch.clear("write", S);
    assert_eq!(ledger.due(&hour, S), S);
    assert_eq!(ledger.limits(S), []);
    assert_eq!(ledger.mask(WRITE_FILE).1, 0);

    // A call that had read the limits just before is not held either.
    let late = ledger.take(mask, bytes, 3600, 1, S).unwrap();
    assert_eq!(ledger.due(&late, S), S);
    assert_eq!(ledger.quantum(mask, bytes, S), (0, u64::MAX));
    assert_eq!(ledger.lease(mask, bytes, 100, 0, 4), (0, 0));
}

#[test]
fn tickets_of_a_replaced_limit_are_void() {
    let scratch = Scratch::new();
    let ledger = &scratch.ledger;
    scratch.set_bytes("write", 1, 1, 0);
    let stale = write(ledger, 3600, 0);
    scratch.clear("write", S);
    scratch.set_bytes("read", 1000, 1, S);
    assert_eq!(ledger.limits(S)[0].bucket, 0, "the same bucket");
    assert_eq!(ledger.due(&stale, S), S);

    // Its refund is not the new limit's, whose first unit is due after 1 ms.
    ledger.refund(&stale, 3600, 1);
    let (_, mask, bytes) = ledger.mask(READ_FILE);
    let first = ledger.take(mask, bytes, 1, 1, S).unwrap();
    assert_eq!(ledger.due(&first, S), S + S / 1000);
    ledger.refund(&first, 1, 1);
    assert_eq!(ledger.limits(S)[0].level, 0, "but its own refund is");
}

#[test]
fn clear_and_set_in_one_change_start_anew() {
    let scratch = Scratch::new();
    let ledger = &scratch.ledger;
    scratch.set_bytes("write", 1, 1, 0);
    let stale = write(ledger, 3600, 0);
    let mut editor = ledger.edit(S).unwrap();
    assert!(editor.clear("write"));
    assert!(!editor.clear("write"), "once is enough");
    editor
        .set("write", select("write"), true, 1_000_000, 1)
        .unwrap();
    editor.commit();
    assert_eq!(ledger.due(&stale, S), S);
    let fresh = write(ledger, 1, S);
    assert_eq!(ledger.due(&fresh, S), S + S / 1000);
}

#[test]
fn set_and_clear_in_any_order_start_empty() {
    let scratch = Scratch::new();
    let ledger = &scratch.ledger;
    // Both counters of the line have been in use, one of them far ahead.
    scratch.set_bytes("write", 1_000_000, 1, 0);
    write(ledger, 1 << 40, 0);
    scratch.clear("write", 0);
    let mut editor = ledger.edit(S).unwrap();
    for _ in 0..3 {
        editor
            .set("write", select("write"), true, 1_000_000, 100)
            .unwrap();
        assert!(editor.clear("write"));
    }
    editor
        .set("write", select("write"), true, 1_000_000, 100)
        .unwrap();
    editor.commit();
    assert_eq!(ledger.limits(S)[0].level, 0);
    assert_eq!(ledger.limits(S)[0].bucket, 0, "the line used before");
    let first = write(ledger, 1, S);
    assert_eq!(ledger.due(&first, S), S + S / 1000);
}

#[test]
fn leases_of_an_epoch_are_void_in_the_next() {
    let scratch = Scratch::new();
    let ledger = &scratch.ledger;
    let first = scratch.set_bytes("write", 1000, 100, 0);
    let (_, mask, bytes) = ledger.mask(WRITE_FILE);
    assert_eq!(ledger.quantum(mask, bytes, S / 100), (10, u64::MAX));
    assert_eq!(
        ledger.quantum(mask, bytes, S),
        (38, u64::MAX),
        "three quarters of the budget"
    );
    assert_eq!(ledger.lease(mask, bytes, 40, 0, first).0, 40);
    assert_eq!(
        ledger.lease(mask, bytes, 40, 0, first).0,
        10,
        "half of the burst in all"
    );
    let second = scratch.set_bytes("write", 1000, 200, S);
    assert_eq!(ledger.lease(mask, bytes, 100, 0, second).0, 100);
    ledger.end_lease(mask, bytes, 50, 0, first);
    assert_eq!(ledger.lease(mask, bytes, 1, 0, second).0, 0);
    ledger.end_lease(mask, bytes, 100, 0, second);
    assert_eq!(ledger.lease(mask, bytes, 1, 0, second).0, 1);
}

#[test]
fn the_epoch_is_never_0() {
    let scratch = Scratch::new();
    let ledger = &scratch.ledger;
    let odd = scratch.set_bytes("write", 1, 100, 0);
    assert_eq!(odd % 2, 1);
    let ticket = write(ledger, 10, 0);
    // As after four billion changes.
    ledger.header.epoch.0.store(u32::MAX, Ordering::SeqCst);
    let leased = u64::from(u32::MAX - 1) << 32 | 50;
    ledger.lines[0].leased.store(leased, Ordering::SeqCst);
    let (_, mask, bytes) = ledger.mask(WRITE_FILE);
    assert_eq!(ledger.lease(mask, bytes, 50, 0, u32::MAX).0, 50);

    let next = scratch.set_bytes("write", 2, 100, 0);
    assert_eq!((next, ledger.epoch()), (2, 2));
    assert_eq!(ledger.limits(0)[0].rate_milli, 2000);
    assert_eq!(ledger.due(&ticket, 0), 5 * S);
    assert_eq!(
        ledger.lease(mask, bytes, 50, 0, 2).0,
        50,
        "earlier leases are void"
    );
    assert_eq!(ledger.lease(mask, bytes, 50, 0, u32::MAX).0, 0);
    assert_eq!(scratch.set_bytes("write", 3, 100, 0), 3);
}

#[test]
fn a_change_wakes_sleepers_at_once() {
    use rustix::thread::futex;
    const PATIENCE: futex::Timespec = futex::Timespec {
        tv_sec: 5,
        tv_nsec: 0,
    };
    let scratch = Scratch::new();
    let other = scratch.open();
    let start = now();
    scratch.set_bytes("write", 1, 1, start);
    let ticket = write(&other, 3600, start);
    let asleep = AtomicBool::new(false);
    let woken = std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            loop {
                let epoch = other.epoch();
                let at = now();
                if other.due(&ticket, at) <= at {
                    return Instant::now();
                }
                asleep.store(true, Ordering::SeqCst);
                let word = &other.header.epoch.0;
                let _ = futex::wait(word, futex::Flags::empty(), epoch, Some(&PATIENCE));
            }
        });
        while !asleep.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(20));
        let before = Instant::now();
        scratch.clear("write", now());
        sleeper.join().unwrap() - before
    });
    assert!(woken < Duration::from_secs(1), "{woken:?}");
}

#[test]
fn a_wait_that_ends_early_has_earned_a_part() {
    let scratch = Scratch::new();
    let ledger = &scratch.ledger;
    let mut editor = ledger.edit(0).unwrap();
    for (name, rate) in [("write", 1000), ("disk", 500)] {
        let name_of = select(name);
        editor.set(name, name_of, true, rate * 1000, 1).unwrap();
    }
    editor.set("write", select("write"), false, 1, 1).unwrap();
    editor.commit();
    let ticket = write(ledger, 500, 0);
    // By the slower of the buckets that count bytes.
    for (at, part) in [(0, 0), (S / 10, 50), (S / 2, 250), (S, 500), (9 * S, 500)] {
        assert_eq!(ledger.due_part(&ticket, 500, at), part, "at {at}");
    }
    let behind = write(ledger, 500, 0);
    assert_eq!(ledger.due_part(&behind, 500, S), 0);
    assert_eq!(ledger.due_part(&behind, 500, S + S / 10), 50);
}
