//! Processes of several pid namespaces in one ledger: equal numbers, and what the dead leave.
#![cfg(all(feature = "std", not(any(loom, miri))))]

mod common;

use std::cell::Cell;

use bonsai_calls::WRITE_FILE;
use bonsai_ledger::sync::{Ordering, bump};
use bonsai_ledger::{
    Ledger, Numbers, Owner, ProcessId, coverage, identity_of, own_namespace, own_process,
    short_namespace, thread_numbers,
};
use common::Scratch;

const HOST: u32 = 0xefff_fffc;
const FIRST: u32 = 0xf000_0123;
const SECOND: u32 = 0xf000_0124;

const fn process(pid: u32, namespace: u32) -> ProcessId {
    ProcessId { pid, namespace }
}

fn claim(ledger: &Ledger, process: ProcessId, tid: u32) -> usize {
    ledger
        .claim_page(Owner::of(process, tid), |_| false, |_| true)
        .expect("a page")
}

fn count(ledger: &Ledger, page: usize, bytes: u64) {
    let row = &ledger.threads[page].counts[usize::from(WRITE_FILE)];
    bump(&row.calls, 1);
    bump(&row.bytes, bytes);
}

fn written(ledger: &Ledger, process: ProcessId) -> (u64, u64) {
    ledger.process_counts(process)[usize::from(WRITE_FILE)]
}

#[test]
fn words_hold_all_of_an_identity() {
    // PID_MAX_LIMIT is 2^22.
    let highest = (1 << 22) - 1;
    for pid in [1, 2, 4_711, highest] {
        for namespace in [
            0,
            HOST,
            FIRST,
            u32::MAX,
            0xf000_0000,
            0xf000_0001,
            0xf000_0002,
        ] {
            let process = process(pid, namespace);
            assert_eq!(ProcessId::from_word(process.word()), Some(process));
            assert!(!process.has_ended());
            for tid in [1, 77, highest] {
                let owner = Owner::of(process, tid);
                assert_eq!(Owner::from_word(owner.word()), Some(owner));
                assert_eq!((owner.pid, owner.tid), (pid, tid));
                assert!(owner.is_of(process) && owner.is_in(namespace));
                // Marks of entries that are reclaimed are no namespace.
                assert!(namespace == 0 || owner.namespace > 2, "{namespace:x}");
            }
        }
    }
    assert_eq!(ProcessId::from_word(0), None);
    assert_eq!(ProcessId::from_word(u64::from(FIRST) << 32), None);
    assert_eq!(Owner::from_word(0), None);
    assert_ne!(short_namespace(HOST), short_namespace(FIRST));
    assert_ne!(short_namespace(FIRST), short_namespace(SECOND));
}

#[test]
fn equal_numbers_of_two_namespaces_are_two_processes() {
    let scratch = Scratch::new();
    let ledger = &scratch.ledger;
    let both = [process(1, FIRST), process(1, SECOND)];
    let pages = both.map(|process| claim(ledger, process, 1));
    assert_ne!(pages[0], pages[1]);
    count(ledger, pages[0], 100);
    count(ledger, pages[1], 7);
    assert_eq!(
        both.map(|process| written(ledger, process)),
        [(1, 100), (1, 7)]
    );
    assert_eq!(both.map(|process| ledger.threads_of(process)), [1, 1]);
    assert!(!ledger.pass_page(pages[0], Owner::of(both[1], 1), Owner::of(both[1], 2)));
    for (i, process) in (1..).zip(both) {
        let entry = ledger.claim_process(process, |_| false).expect("an entry");
        entry.attached_ns.store(i, Ordering::Relaxed);
    }
    let table: Vec<_> = ledger.process_table();
    let table: Vec<_> = table.iter().map(|p| (p.id, p.attached_ns)).collect();
    assert_eq!(table, [(both[0], 1), (both[1], 2)]);
    // An exec of the first finds what is its own.
    assert_eq!(claim(ledger, both[0], 1), pages[0]);
}

#[test]
fn a_page_of_another_namespace_begins_anew() {
    let scratch = Scratch::new();
    let ledger = &scratch.ledger;
    let page = claim(ledger, process(7, FIRST), 7);
    count(ledger, page, 100);
    let heir = Owner::of(process(7, SECOND), 7);
    let found = ledger.claim_page(heir, |owner| owner.is_in(FIRST), |_| true);
    assert_eq!(found, Some(page));
    assert_eq!(written(ledger, process(7, SECOND)), (0, 0));
}

/// Reclaims from `HOST`; `ended` are the processes that the first and the second look do not find.
fn reclaim(ledger: &Ledger, ended: [&[ProcessId]; 2], between: impl Fn()) {
    let looks = Cell::new(0);
    ledger.reclaim(HOST, || {
        let look = looks.replace(looks.get() + 1);
        if look == 1 {
            between();
        }
        let ended = ended[look];
        move |pid, namespace| {
            let is_it = |process: &ProcessId| {
                (process.pid, short_namespace(process.namespace)) == (pid, namespace)
            };
            ended.iter().any(is_it)
        }
    });
}

#[test]
fn what_the_dead_of_another_namespace_leave_is_freed_from_above() {
    let scratch = Scratch::new();
    let ledger = &scratch.ledger;
    let (dead, lives, own) = (process(3, FIRST), process(4, FIRST), process(3, HOST));
    for process in [dead, lives, own] {
        let page = claim(ledger, process, process.pid);
        count(ledger, page, 10);
        let entry = ledger.claim_process(process, |_| false).expect("an entry");
        entry.coverage.store(coverage::UNCOVERED, Ordering::Relaxed);
    }
    // The number of the dead one says nothing of the process of the namespace above.
    reclaim(ledger, [&[dead, own], &[dead, own]], || ());
    assert_eq!([dead, lives, own].map(|p| ledger.threads_of(p)), [0, 1, 1]);
    let ended = ledger
        .process_table()
        .into_iter()
        .filter(|p| p.id.has_ended());
    // The program of a process that has ended stays in its entry until another process needs that.
    let ended: Vec<_> = ended.map(|p| (p.id.pid, p.coverage)).collect();
    assert_eq!(ended, [(3, coverage::UNCOVERED)]);
    let page = claim(ledger, process(9, SECOND), 9);
    assert_eq!(page, 0, "its page is free");
    assert_eq!(written(ledger, process(9, SECOND)), (0, 0));
    let entry = ledger.claim_process(dead, |_| false).expect("an entry");
    assert_eq!(ledger.process_table().len(), 3, "its entry, too");
    assert_eq!(entry.id.load(Ordering::Relaxed), dead.word());
    assert!(ledger.process_table().iter().all(|p| !p.id.has_ended()));
}

#[test]
fn what_is_taken_during_a_look_is_not_in_doubt() {
    let scratch = Scratch::new();
    let ledger = &scratch.ledger;
    let (dead, newcomer) = (process(3, FIRST), process(4, FIRST));
    claim(ledger, dead, 3);
    let mut looks = 0;
    ledger.reclaim(HOST, || {
        looks += 1;
        if looks == 1 {
            // It has not been there when `/proc` was read.
            claim(ledger, newcomer, 4);
            expect(ledger, newcomer, "cat", 100);
        }
        let entry = ledger.find_process(newcomer).expect("its entry");
        assert_eq!(ledger.find_expected(4, &entry.program, 0), Some(newcomer));
        assert_eq!(ledger.threads_of(newcomer), 1);
        let is_first = looks == 1;
        move |pid, _| pid == 3 || is_first
    });
    assert_eq!(looks, 2);
    assert_eq!([dead, newcomer].map(|p| ledger.threads_of(p)), [0, 1]);
}

#[test]
fn the_namespace_of_an_entry_in_doubt_is_not_believed() {
    let scratch = Scratch::new();
    let ledger = &scratch.ledger;
    let again = process(4, FIRST);
    expect(ledger, again, "cat", 100);
    let program = &ledger.find_process(again).expect("its entry").program;
    reclaim(ledger, [&[again], &[]], || {
        assert_eq!(ledger.find_expected(4, program, 0), None);
    });
    assert_eq!(ledger.find_expected(4, program, 0), Some(again));
}

#[test]
fn a_number_that_comes_round_keeps_its_page() {
    let scratch = Scratch::new();
    let ledger = &scratch.ledger;
    let again = process(1, FIRST);
    let page = claim(ledger, again, 1);
    let mut other = None;
    // A process with the number of the dead one takes the page while it is looked at: the second
    // look finds it, and no other process gets the page meanwhile.
    reclaim(ledger, [&[again], &[]], || {
        assert_ne!(claim(ledger, process(5, SECOND), 5), page);
    });
    other.get_or_insert(claim(ledger, process(6, SECOND), 6));
    assert_ne!(other, Some(page));
    assert_eq!(claim(ledger, again, 1), page);
    // One that comes after the mark does not find it.
    let late = Cell::new(None);
    reclaim(ledger, [&[again], &[again]], || {
        late.set(Some(claim(ledger, again, 1)));
    });
    assert_ne!(late.get(), Some(page));
}

#[test]
fn this_process_is_found_in_proc() {
    let own = own_process();
    assert_ne!(own_namespace(), 0, "/proc is mounted here");
    assert_eq!(identity_of(std::process::id()), Some(own));
    assert_eq!(identity_of(u32::MAX >> 10), None);
    let numbers = Numbers::of([own].into_iter());
    assert_eq!(numbers.number(own), Some(std::process::id()));
    let stranger = process(own.pid, own.namespace ^ 5);
    let numbers = Numbers::of([own, stranger].into_iter());
    assert_eq!(
        numbers.number(stranger),
        None,
        "the number alone is not believed"
    );
    let tid = rustix::thread::gettid()
        .as_raw_nonzero()
        .get()
        .unsigned_abs();
    assert_eq!(thread_numbers(own.pid).get(&tid), Some(&tid));
}

/// Leaves a note that a process is about to run a program.
fn expect(ledger: &Ledger, process: ProcessId, program: &str, now: u64) {
    let entry = ledger.claim_process(process, |_| false).expect("an entry");
    entry.set_program(program);
    entry.expected_ns.store(now, Ordering::Release);
}

#[test]
fn a_program_finds_the_namespace_of_the_one_before_it() {
    let scratch = Scratch::new();
    let ledger = &scratch.ledger;
    let process = process(7, FIRST);
    let other = ProcessId {
        namespace: SECOND,
        ..process
    };
    expect(ledger, process, "cat", 100);
    let program = &ledger.find_process(process).expect("its entry").program;
    let find = |pid: u32, since: u64| ledger.find_expected(pid, program, since);
    assert_eq!(find(7, 0), Some(process));
    assert_eq!(find(7, 100), Some(process));
    assert_eq!(find(7, 101), None, "too old a note");
    assert_eq!(find(8, 0), None);
    // A process of another namespace with the same number says nothing unless it runs the same program now.
    expect(ledger, other, "dog", 100);
    assert_eq!(find(7, 0), Some(process));
    expect(ledger, other, "cat", 0);
    assert_eq!(find(7, 0), Some(process));
    expect(ledger, other, "cat", 100);
    assert_eq!(find(7, 0), None, "either of two");
    let beside = ProcessId { pid: 8, ..process };
    assert!(ledger.find_process(beside).is_none());
}
