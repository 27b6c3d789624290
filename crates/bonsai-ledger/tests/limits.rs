//! Setting and lifting limits, and what cannot be one.
#![cfg(all(feature = "std", not(any(loom, miri))))]

mod common;

use bonsai_calls::{CALLS, OPENAT, READ_FILE, WRITE_FILE, WRITE_SOCKET};
use bonsai_ledger::sync::Ordering;
use bonsai_ledger::{BUCKETS, LedgerError, Limit, MAX_TICKETS, flags};
use common::{S, Scratch, select, write};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

fn names(limits: &[Limit]) -> Vec<&str> {
    limits.iter().map(|l| l.name.as_str()).collect()
}

#[test]
fn several_limits_come_into_force_together() {
    let scratch = Scratch::new();
    let ledger = &scratch.ledger;
    let mut editor = ledger.edit(S).unwrap();
    editor
        .set("write", select("write"), true, 1_000_000, 100)
        .unwrap();
    editor.set("disk", select("disk"), true, 5_000, 7).unwrap();
    editor.set("open", select("open"), false, 2_500, 1).unwrap();
    assert_eq!(ledger.limits(S), [], "not before commit");
    assert_eq!(ledger.mask(WRITE_FILE), (2, 0, 0));
    assert_eq!(editor.commit(), 3);

    let limit = |name: &str, bytes, rate_milli, burst, bucket| Limit {
        name: name.into(),
        bytes,
        rate_milli,
        burst,
        bucket,
        level: 0,
        per_stream: false,
        scope: bonsai_ledger::Scope::default(),
        used: None,
    };
    let expected = [
        limit("write", true, 1_000_000, 100, 0),
        limit("disk", true, 5_000, 7, 1),
        limit("open", false, 2_500, 1, 2),
    ];
    assert_eq!(ledger.limits(S), expected);
    assert_eq!(scratch.open().limits(S), expected, "seen by every mapping");
    // A bucket starts empty and fills to what the leases leave of its burst.
    let levels: Vec<i64> = ledger.limits(100 * S).iter().map(|l| l.level).collect();
    assert_eq!(levels, [50, 4, 1]);
}

#[test]
fn a_limit_is_drawn_on_by_its_calls_only() {
    let scratch = Scratch::new();
    let mut editor = scratch.ledger.edit(0).unwrap();
    editor.set("write", select("write"), true, 1000, 1).unwrap();
    editor.set("all", select("all"), true, 1000, 1).unwrap();
    editor.set("all", select("all"), false, 1000, 1).unwrap();
    editor
        .set("openat", select("openat"), false, 1000, 1)
        .unwrap();
    editor.commit();
    let masks = |call| {
        let (_, mask, bytes) = scratch.ledger.mask(call);
        assert_eq!(bytes, 0b0011);
        mask
    };
    assert_eq!(masks(WRITE_FILE), 0b0111);
    assert_eq!(masks(WRITE_SOCKET), 0b0110);
    assert_eq!(masks(READ_FILE), 0b0110);
    assert_eq!(masks(OPENAT), 0b1100, "moves no bytes");
    for (id, call) in (0_u8..).zip(CALLS) {
        assert_eq!(masks(id) & 2 != 0, call.moves_bytes(), "{}", call.name);
    }
}

#[test]
fn a_dropped_change_changes_nothing() {
    let scratch = Scratch::new();
    let ledger = &scratch.ledger;
    scratch.set_bytes("write", 1000, 10, 0);
    let ticket = write(ledger, 500, 0);
    let before = (
        ledger.limits(S),
        ledger.due(&ticket, 0),
        ledger.mask(WRITE_FILE),
    );

    let mut editor = ledger.edit(S).unwrap();
    editor.set("write", select("write"), true, 1, 1).unwrap();
    editor.set("read", select("read"), true, 1, 1).unwrap();
    assert!(editor.clear("write"));
    drop(editor);
    let after = (
        ledger.limits(S),
        ledger.due(&ticket, 0),
        ledger.mask(WRITE_FILE),
    );
    assert_eq!(after, before);

    // Nor does it leave anything behind for the next one to bring into force.
    let mut editor = ledger.edit(S).unwrap();
    editor.set("open", select("open"), false, 1000, 1).unwrap();
    editor.commit();
    assert_eq!(names(&ledger.limits(S)), ["write", "open"]);
    assert_eq!(ledger.due(&ticket, 0), before.1);
}

#[test]
fn the_65th_limit_is_refused() {
    let scratch = Scratch::new();
    let ledger = &scratch.ledger;
    let mut names = bonsai_calls::names();
    let mut editor = ledger.edit(0).unwrap();
    for i in 0..BUCKETS {
        let name = names.next().expect("more names than buckets");
        editor
            .set(name, select(name), false, 1000, 1)
            .unwrap_or_else(|e| panic!("limit {i}: {e}"));
    }
    let extra = names.next().expect("more names than buckets");
    let error = editor
        .set(extra, select(extra), false, 1000, 1)
        .unwrap_err();
    let right = format!("{extra}: all 64 limits of the service are in use");
    assert_eq!(error.to_string(), right);
    // Replacing one is no new limit.
    editor.set("all", select("all"), false, 2000, 1).unwrap();
    editor.commit();
    assert_eq!(ledger.limits(0).len(), BUCKETS);

    // A lifted bucket still has sleepers in the change that lifts it.
    let mut editor = ledger.edit(0).unwrap();
    assert!(editor.clear("all"));
    assert!(editor.set(extra, select(extra), false, 1000, 1).is_err());
    editor.commit();
    let mut editor = ledger.edit(0).unwrap();
    editor.set(extra, select(extra), false, 1000, 1).unwrap();
    editor.commit();
    assert_eq!(ledger.limits(0)[0].name, extra);
}

#[test]
fn what_cannot_be_a_limit_is_refused() {
    let scratch = Scratch::new();
    let mut editor = scratch.ledger.edit(0).unwrap();
    let error = editor
        .set("open", select("open"), true, 1000, 1)
        .unwrap_err();
    assert!(matches!(error, LedgerError::Limit(_)));
    let right = "open: moves no bytes, so its limit is in calls, such as open=100/s";
    assert_eq!(error.to_string(), right);
    let error = editor
        .set(&"x".repeat(161), select("all"), true, 1000, 1)
        .unwrap_err();
    assert!(error.to_string().ends_with("at most 160 bytes"), "{error}");
    assert!(!editor.clear("write"), "nothing there to lift");
    editor
        .set(&"x".repeat(160), select("all"), true, 1000, 1)
        .unwrap();
    editor.commit();
    assert_eq!(names(&scratch.ledger.limits(0)), ["x".repeat(160)]);
}

#[test]
fn more_limits_than_a_call_can_wait_for_are_not_taken() {
    let scratch = Scratch::new();
    let ledger = &scratch.ledger;
    let mut editor = ledger.edit(0).unwrap();
    for i in 0..=MAX_TICKETS {
        editor
            .set(&format!("limit {i}"), select("write"), true, 1000, 1)
            .unwrap();
    }
    editor.commit();
    let (_, mask, bytes) = ledger.mask(WRITE_FILE);
    assert!(ledger.take(mask, bytes, 1, 1, 0).is_none());
    assert!(
        ledger
            .lines
            .iter()
            .all(|l| l.issued(l.generation()).load(Ordering::Relaxed) == 0)
    );
    assert!(ledger.take(mask >> 1, bytes, 1, 1, 0).is_some());
}

#[test]
fn clear_lifts_bytes_and_calls() {
    let scratch = Scratch::new();
    let mut editor = scratch.ledger.edit(0).unwrap();
    editor.set("write", select("write"), true, 1000, 1).unwrap();
    editor
        .set("write", select("write"), false, 1000, 1)
        .unwrap();
    editor.set("read", select("read"), true, 1000, 1).unwrap();
    editor.commit();
    assert_eq!(names(&scratch.ledger.limits(0)), ["write", "write", "read"]);
    scratch.clear("write", 0);
    assert_eq!(names(&scratch.ledger.limits(0)), ["read"]);
    assert_eq!(scratch.ledger.mask(WRITE_FILE).1, 0);
}

#[test]
fn a_lease_is_the_smallest_of_its_buckets() {
    let scratch = Scratch::new();
    let mut editor = scratch.ledger.edit(0).unwrap();
    for (name, burst) in [("write", 100), ("disk", 20), ("all", 60)] {
        editor.set(name, select(name), true, 1000, burst).unwrap();
    }
    let epoch = editor.commit();
    let (_, mask, bytes) = scratch.ledger.mask(WRITE_FILE);
    assert_eq!(scratch.ledger.lease(mask, bytes, 40, 0, epoch), (10, 0));
    let out = |line: usize| scratch.ledger.lines[line].leased.load(Ordering::Relaxed) & 0xffff_ffff;
    assert_eq!([0, 1, 2].map(out), [10; 3], "nothing booked in vain");
}

#[test]
fn editors_wait_for_each_other() {
    let scratch = Scratch::new();
    let other = scratch.open();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut editor = scratch.ledger.edit(0).unwrap();
        scope.spawn(|| {
            let mut editor = other.edit(0).unwrap();
            done.store(true, Ordering::SeqCst);
            editor.set("read", select("read"), true, 1000, 1).unwrap();
            editor.commit();
        });
        std::thread::sleep(Duration::from_millis(50));
        assert!(!done.load(Ordering::SeqCst), "two editors at once");
        editor.set("write", select("write"), true, 1000, 1).unwrap();
        editor.commit();
    });
    assert_eq!(names(&scratch.ledger.limits(0)), ["write", "read"]);

    // Of one handle and of several, no change gets lost.
    let before = scratch.ledger.epoch();
    std::thread::scope(|scope| {
        for (ledger, name) in [
            (&other, "open"),
            (&scratch.ledger, "stat"),
            (&scratch.ledger, "sync"),
        ] {
            scope.spawn(move || {
                for rate in 1..=100 {
                    let mut editor = ledger.edit(0).unwrap();
                    editor
                        .set(name, select(name), false, rate * 1000, 1)
                        .unwrap();
                    editor.commit();
                }
            });
        }
    });
    assert_eq!(scratch.ledger.epoch(), before + 300);
    let limits = scratch.ledger.limits(0);
    assert_eq!(limits.len(), 5);
    assert!(
        limits[2..].iter().all(|l| l.rate_milli == 100_000),
        "{limits:?}"
    );
}

#[test]
fn event_loops_are_served_as_asked_and_looked_at_for_good() {
    use bonsai_calls::{EPOLL_WAIT, SENDTO};
    use bonsai_ledger::{EventLoops, Scope, Wanted, flags};
    let scratch = Scratch::new();
    let ledger = &scratch.ledger;
    let now = || ledger.header.flags.load(Ordering::Relaxed) & flags::LOOPS_NOW != 0;
    let change = |per_stream: Option<bool>, loops: Option<EventLoops>| {
        let mut editor = ledger.edit(S).unwrap();
        match per_stream {
            Some(per_stream) => editor
                .put(&Wanted {
                    name: if per_stream { "send/stream" } else { "send" },
                    selection: select("send"),
                    bytes: true,
                    rate_milli: 1_000_000,
                    burst: 100,
                    per_stream,
                    scope: Scope::default(),
                })
                .unwrap(),
            None => {
                editor.clear("send/stream");
            }
        }
        if let Some(loops) = loops {
            editor.event_loops(loops);
        }
        editor.commit();
        (
            now(),
            ledger.is_special(SENDTO),
            ledger.is_special(EPOLL_WAIT),
        )
    };
    assert_eq!(change(Some(false), None), (false, false, false), "auto");
    assert_eq!(
        change(Some(true), None),
        (true, true, true),
        "a limit per stream"
    );
    // What is withheld has to be given back.
    assert_eq!(change(None, None), (false, false, true), "lifted");
    assert_eq!(change(None, Some(EventLoops::On)), (true, true, true), "on");
    assert_eq!(
        change(Some(true), Some(EventLoops::Off)),
        (false, true, true),
        "off"
    );
}

#[test]
fn kept_tickets_are_the_same() {
    let scratch = Scratch::new();
    let ledger = &scratch.ledger;
    let mut editor = ledger.edit(0).unwrap();
    for name in ["write", "disk", "all"] {
        editor.set(name, select(name), true, 1_000_000, 10).unwrap();
    }
    editor
        .set("write", select("write"), false, 1000, 1)
        .unwrap();
    editor.commit();
    let (_, mask, bytes) = ledger.mask(WRITE_FILE);
    let tickets = ledger.take(mask, bytes, 5000, 2, S).unwrap();
    let kept = bonsai_ledger::Tickets::from_words(&tickets.to_words().unwrap());
    assert_eq!(ledger.due_last(&kept, S), ledger.due_last(&tickets, S));
    assert!(ledger.due(&kept, S) > S);
    assert_eq!(format!("{kept:?}"), format!("{tickets:?}"));
}

/// What decides on rings is asked for when something that goes through them is limited,
/// and closing from the first ring on; the limits in force stay what they are.
#[test]
fn rings_are_decided_on_where_they_can_matter() {
    let scratch = Scratch::new();
    let ledger = &scratch.ledger;
    let special = |calls: &[bonsai_calls::CallId]| -> Vec<bool> {
        calls.iter().map(|call| ledger.is_special(*call)).collect()
    };
    let entering = [bonsai_calls::IO_URING_ENTER, bonsai_calls::IO_SUBMIT];
    let made = [
        bonsai_calls::IO_URING_SETUP,
        bonsai_calls::IO_URING_REGISTER,
    ];
    let closing = [
        bonsai_calls::CLOSE,
        bonsai_calls::CLOSE_RANGE,
        bonsai_calls::DUP2,
    ];
    assert_eq!(special(&made), [true; 2], "what a ring is has to be known");
    assert_eq!(special(&entering), [false; 2]);
    let set = |name: &str, rate: u64| {
        let selection = bonsai_calls::select(name).expect(name);
        let mut editor = ledger.edit(1).expect("an editor");
        editor.set(name, selection, false, rate, 10).expect(name);
        editor.commit()
    };
    set("getppid", 1000);
    assert_eq!(special(&entering), [false; 2], "no ring makes that call");
    let before = set("fsync", 1000);
    assert_eq!(special(&entering), [true; 2]);
    assert_eq!(special(&closing), [false; 3]);
    let limits = ledger.limits(1);
    ledger.watch_closing();
    assert_eq!(special(&closing), [true; 3]);
    assert_eq!(ledger.epoch(), before + 2, "threads look again");
    assert_eq!(ledger.limits(1), limits);
    ledger.watch_closing();
    assert_eq!(ledger.epoch(), before + 2, "once");
    assert_eq!(set("write", 1000), before + 3);
    assert_eq!(special(&closing), [true; 3], "from then on");
    assert_eq!(special(&made), [true; 2]);
}

/// Flags that a process sets while an editor changes others are kept, as are the calls that the process
/// marks.
#[test]
fn a_flag_that_a_process_sets_during_a_change_is_not_lost() {
    let scratch = Scratch::new();
    let ledger = &scratch.ledger;
    let edit = |rate: u64| {
        let mut editor = ledger.edit(1).expect("an editor");
        editor
            .set("write", select("write"), true, rate, 10)
            .expect("set");
        editor.commit();
    };
    for round in 0..2000 {
        ledger
            .header
            .flags
            .fetch_and(!flags::RINGS, Ordering::SeqCst);
        edit(1000);
        edit(2000);
        std::thread::scope(|scope| {
            scope.spawn(|| ledger.watch_closing());
            edit(3000 + round);
        });
        let said = ledger.header.flags.load(Ordering::SeqCst);
        assert_ne!(said & flags::RINGS, 0, "round {round}");
        assert!(ledger.is_special(bonsai_calls::CLOSE), "round {round}");
    }
}
