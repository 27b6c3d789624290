//! Asking to be entered: asker and helper agree, whoever gives up or dies.
#![cfg(all(feature = "std", not(any(loom, miri))))]

mod common;

use std::time::{Duration, Instant};

use bonsai_ledger::sync::{AtomicU32, Ordering};
use bonsai_ledger::{AskedFor, ENTERING, Futex, Ledger, ProcessId};
use common::Scratch;

/// The pid namespace of all of them but [`ASKER`].
const OUTSIDE: u32 = 0xf000_0011;

const KEEPER: u32 = 1;
const HELPER: u32 = 2;
const ASKER: ProcessId = ProcessId {
    pid: 3,
    namespace: 0xf000_0012,
};

/// The state of a question whose asker is held.
const READY: u32 = 4;

/// Sleeps that look again at once, until an instant.
struct Test<'a> {
    until: Instant,
    dead: &'a [u32],
}

impl<'a> Test<'a> {
    fn new(patience_ms: u64, dead: &'a [u32]) -> Self {
        Self {
            until: Instant::now() + Duration::from_millis(patience_ms),
            dead,
        }
    }
}

impl Futex for Test<'_> {
    fn wait(&mut self, _: &AtomicU32, _: u32) -> bool {
        std::thread::yield_now();
        Instant::now() < self.until
    }

    fn wake(&mut self, _: &AtomicU32) {}

    fn is_dead(&mut self, process: ProcessId) -> bool {
        process.namespace == OUTSIDE && self.dead.contains(&process.pid)
    }
}

fn kept() -> Scratch {
    let scratch = Scratch::new();
    let keeper = &scratch.ledger.header.keeper;
    keeper.store(KEEPER, Ordering::Relaxed);
    outside(&scratch.ledger);
    scratch
}

/// Keeper and helpers are of the namespace in which the service was made.
fn outside(ledger: &Ledger) {
    let namespace = &ledger.header.namespace;
    namespace.store(OUTSIDE.into(), Ordering::Relaxed);
}

/// Waits for a question.
fn question(ledger: &Ledger) -> AskedFor<'_> {
    loop {
        if let Some(number) = ledger.take_questions().next() {
            return ledger.asked(number).expect("a question");
        }
        std::thread::yield_now();
    }
}

/// Waits for a question, answers it, and says whether the asker was told.
fn answer(ledger: &Ledger, held: bool) -> bool {
    let asked = question(ledger);
    assert_eq!(asked.asker(), ASKER);
    let mut futex = Test::new(5000, &[]);
    asked.wait_until_allowed(HELPER, &mut futex) && asked.seized(held, &mut futex)
}

fn all_free(ledger: &Ledger) -> bool {
    let pids = ledger.header.entering.iter();
    pids.map(|entry| entry.asker.load(Ordering::Relaxed))
        .all(|asker| asker == 0)
}

#[test]
fn a_question_is_answered() {
    for held in [true, false] {
        let scratch = kept();
        let ledger = &scratch.ledger;
        let mut allowed = None;
        let number = std::thread::scope(|scope| {
            let helper = scope.spawn(|| answer(ledger, held));
            let allow = |helper: ProcessId| allowed = Some(helper.pid);
            let number = ledger.ask_to_enter(ASKER, &mut Test::new(5000, &[]), allow);
            assert!(helper.join().expect("no panic"));
            number
        });
        assert_eq!(number.is_some(), held);
        assert_eq!(allowed, Some(HELPER), "before it is seized");
        if let Some(number) = number {
            // Its exec failed; until the helper finds out, the entry is in use.
            ledger.cancel_entering(number);
            assert!(!all_free(ledger));
            ledger.header.entering[number]
                .asker
                .store(0, Ordering::Relaxed);
        }
        assert!(all_free(ledger));
    }
}

/// Where the helper may trace the asker without being allowed to, it does so at once.
#[test]
fn a_question_is_answered_without_asking_to_be_allowed() {
    let scratch = kept();
    let ledger = &scratch.ledger;
    let ask = |patience: u64, allowed: &mut bool| {
        let allow = |_: ProcessId| *allowed = true;
        ledger.ask_to_enter(ASKER, &mut Test::new(patience, &[]), allow)
    };
    let mut allowed = false;
    let number = std::thread::scope(|scope| {
        scope.spawn(|| {
            let asked = question(ledger);
            asked.name(HELPER);
            assert!(asked.seized_at_once(&mut Test::new(5000, &[])));
        });
        ask(5000, &mut allowed)
    });
    assert!(number.is_some() && !allowed);
    let entry = &ledger.header.entering[number.expect("held")];
    assert_eq!(entry.helper.load(Ordering::Relaxed), HELPER);
    // A helper that comes late is told that the asker has given up, and changes nothing.
    let late = std::thread::scope(|scope| {
        let asker = scope.spawn(|| ask(50, &mut false));
        let asked = question(ledger);
        assert_eq!(asker.join().expect("no panic"), None);
        asked.seized_at_once(&mut Test::new(50, &[]))
    });
    assert!(!late && !ledger.has_questions());
}

#[test]
fn nobody_is_asked_where_nobody_answers() {
    let scratch = Scratch::new();
    outside(&scratch.ledger);
    let ask = |dead: &[u32]| {
        let mut futex = Test::new(20, dead);
        scratch.ledger.ask_to_enter(ASKER, &mut futex, |_| ())
    };
    assert_eq!(ask(&[]), None, "no keeper");
    scratch
        .ledger
        .header
        .keeper
        .store(KEEPER, Ordering::Relaxed);
    assert_eq!(ask(&[KEEPER]), None, "a dead one");
    let bell = scratch.ledger.header.bell.load(Ordering::Relaxed);
    assert_eq!(bell, 0);
    assert_eq!(ask(&[]), None, "one that does not come");
    assert!(all_free(&scratch.ledger));
}

#[test]
fn what_the_dead_have_left_is_taken() {
    let scratch = kept();
    let ledger = &scratch.ledger;
    let asker = |pid: u32| {
        let namespace = OUTSIDE;
        ProcessId { pid, namespace }.word()
    };
    for (i, entry) in (10..).zip(&ledger.header.entering) {
        entry.asker.store(asker(i), Ordering::Relaxed);
        entry.helper.store(100, Ordering::Relaxed);
        entry.state.store(READY, Ordering::Relaxed);
    }
    let ask = |dead: &[u32]| ledger.ask_to_enter(ASKER, &mut Test::new(20, dead), |_| ());
    assert_eq!(ask(&[]), None, "all {ENTERING} are in use");
    let used = |pid: u32| {
        ledger
            .header
            .entering
            .iter()
            .any(|e| e.asker.load(Ordering::Relaxed) == asker(pid))
    };
    assert!(used(10) && used(11));
    // It gives up again, and the entry is free.
    assert_eq!(ask(&[11]), None);
    assert!(used(10) && !used(11));
    assert_eq!(ask(&[100]), None);
    assert!(ledger.take_questions().next().is_none());
}

/// The same process may ask again, while the helper of its last question is still busy.
#[test]
fn one_that_asks_again_is_answered_again() {
    let scratch = kept();
    let ledger = &scratch.ledger;
    let ask = || ledger.ask_to_enter(ASKER, &mut Test::new(5000, &[]), |_| ());
    std::thread::scope(|scope| {
        let helper = scope.spawn(|| {
            let mut futex = Test::new(5000, &[]);
            let first = question(ledger);
            assert!(first.wait_until_allowed(HELPER, &mut futex));
            assert!(first.seized(true, &mut futex));
            assert!(answer(ledger, true), "the second");
            first.done();
        });
        let first = ask().expect("held");
        let second = ask().expect("held again");
        helper.join().expect("no panic");
        assert_ne!(first, second);
        assert!(ledger.take_questions().next().is_none());
    });
}
