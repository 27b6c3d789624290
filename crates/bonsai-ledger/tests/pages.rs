//! Pages of counters and descriptions of processes: who gets which, and what the
//! reports make of them.
#![cfg(all(feature = "std", not(any(loom, miri))))]

mod common;

use bonsai_calls::{CALLS, READ_FILE, WRITE_FILE};
use bonsai_ledger::sync::{Ordering, bump};
use bonsai_ledger::{Ledger, Owner, PROCESSES, ProcessId, Reason, THREADS, Unshaped, coverage};
use common::Scratch;

/// The namespace of processes, where it does not matter.
const NAMESPACE: u32 = 0xf000_0011;

fn process(pid: u32) -> ProcessId {
    let namespace = NAMESPACE;
    ProcessId { pid, namespace }
}

fn owner(pid: u32, tid: u32) -> Owner {
    Owner::of(process(pid), tid)
}

/// A page for a thread while all others live and there is memory.
fn claim(ledger: &Ledger, me: Owner) -> usize {
    ledger.claim_page(me, |_| false, |_| true).expect("a page")
}

/// Counts one write of `bytes` in a page.
fn count(ledger: &Ledger, page: usize, bytes: u64) {
    let row = &ledger.threads[page].counts[usize::from(WRITE_FILE)];
    bump(&row.calls, 1);
    bump(&row.bytes, bytes);
}

fn written_by(ledger: &Ledger, pid: u32) -> (u64, u64) {
    ledger.process_counts(process(pid))[usize::from(WRITE_FILE)]
}

fn written(ledger: &Ledger) -> (u64, u64) {
    let totals = ledger.totals();
    let total = &totals[usize::from(WRITE_FILE)];
    assert_eq!(total.call, usize::from(WRITE_FILE));
    (total.calls, total.bytes)
}

#[test]
fn each_thread_gets_a_page_that_was_populated_first() {
    let scratch = Scratch::new();
    let mut populated = Vec::new();
    for tid in 0..5 {
        let page = scratch.ledger.claim_page(
            owner(7, 100 + tid),
            |_| false,
            |i| {
                populated.push(i);
                true
            },
        );
        assert_eq!(page, Some(tid as usize));
    }
    assert_eq!(populated, [0, 1, 2, 3, 4]);
    assert_eq!(scratch.ledger.threads_of(process(7)), 5);
    assert_eq!(scratch.ledger.threads_of(process(8)), 0);
}

#[test]
fn without_memory_there_is_no_page() {
    let scratch = Scratch::new();
    let ledger = &scratch.ledger;
    assert_eq!(ledger.claim_page(owner(7, 7), |_| false, |_| false), None);
    assert_eq!(ledger.header.high.load(Ordering::Relaxed), 0);
    // What is counted in the crowd is in the totals, and of no process.
    let crowd = &ledger.crowd.counts[usize::from(WRITE_FILE)];
    crowd.calls.fetch_add(2, Ordering::Relaxed);
    crowd.bytes.fetch_add(50, Ordering::Relaxed);
    assert_eq!(written(ledger), (2, 50));
    assert_eq!(written_by(ledger, 7), (0, 0));
}

#[test]
fn all_pages_can_be_had_and_not_one_more() {
    let scratch = Scratch::new();
    let ledger = &scratch.ledger;
    for i in 0..THREADS {
        let tid = u32::try_from(i + 1).unwrap();
        assert_eq!(claim(ledger, owner(7, tid)), i);
    }
    assert_eq!(ledger.claim_page(owner(8, 8), |_| false, |_| true), None);
    assert_eq!(ledger.threads_of(process(7)), THREADS);
    // One has ended: it is found within a bounded number of searches.
    let ended = owner(7, 1500);
    let found =
        (0..THREADS / 16).find_map(|_| ledger.claim_page(owner(8, 8), |o| o == ended, |_| true));
    assert_eq!(found, Some(1499));
}

#[test]
fn a_dead_process_leaves_its_counts_to_the_totals_only() {
    let scratch = Scratch::new();
    let ledger = &scratch.ledger;
    let page = claim(ledger, owner(7, 7));
    count(ledger, page, 100);
    count(ledger, page, 20);
    assert_eq!(written_by(ledger, 7), (2, 120));

    let heir = ledger.claim_page(owner(8, 8), |o| o.pid == 7, |_| true);
    assert_eq!(heir, Some(page));
    assert_eq!(
        (written_by(ledger, 7), written_by(ledger, 8)),
        ((0, 0), (0, 0))
    );
    count(ledger, page, 3);
    assert_eq!(written_by(ledger, 8), (1, 3));
    assert_eq!(written(ledger), (3, 123), "nothing is forgotten");
}

#[test]
fn a_thread_of_the_same_process_continues_its_counts() {
    let scratch = Scratch::new();
    let ledger = &scratch.ledger;
    let page = claim(ledger, owner(7, 8));
    count(ledger, page, 100);
    let heir = ledger.claim_page(owner(7, 9), |o| o.tid == 8, |_| true);
    assert_eq!(heir, Some(page));
    count(ledger, page, 20);
    assert_eq!(written_by(ledger, 7), (2, 120));
    // The same thread after an exec.
    assert_eq!(claim(ledger, owner(7, 9)), page);
    assert_eq!(written_by(ledger, 7), (2, 120));
}

#[test]
fn a_page_is_passed_on_by_its_owner_alone() {
    let scratch = Scratch::new();
    let ledger = &scratch.ledger;
    let page = claim(ledger, owner(7, 8));
    count(ledger, page, 100);
    assert!(!ledger.pass_page(page, owner(7, 9), owner(7, 10)));
    assert!(!ledger.pass_page(THREADS, owner(7, 8), owner(7, 10)));
    assert!(ledger.pass_page(page, owner(7, 8), owner(7, 10)));
    count(ledger, page, 20);
    assert_eq!(written_by(ledger, 7), (2, 120));
    assert!(!ledger.pass_page(page, owner(7, 8), owner(7, 11)), "gone");
}

#[test]
fn a_page_that_was_left_is_free() {
    let scratch = Scratch::new();
    let ledger = &scratch.ledger;
    let page = claim(ledger, owner(7, 7));
    count(ledger, page, 100);
    ledger.owners[page].store(0, Ordering::Release);
    assert_eq!(claim(ledger, owner(8, 8)), page);
    assert_eq!(written_by(ledger, 8), (0, 0));
    assert_eq!(written(ledger), (1, 100));
}

#[test]
fn processes_are_described_once() {
    let scratch = Scratch::new();
    let ledger = &scratch.ledger;
    let entry = ledger.claim_process(process(4711), |_| false).unwrap();
    entry
        .coverage
        .store(coverage::ATTACHED | coverage::PATCHED, Ordering::Relaxed);
    entry
        .reason
        .store(Reason::PatchDenied as u32, Ordering::Relaxed);
    entry.sites.store(12, Ordering::Relaxed);
    entry.attached_ns.store(99, Ordering::Relaxed);
    entry.attach_cost_ns.store(1234, Ordering::Relaxed);
    entry.set_program("nginx");
    let again = ledger.claim_process(process(4711), |_| false).unwrap();
    assert!(std::ptr::eq(entry, again));

    let table = scratch.open().process_table();
    assert_eq!(table.len(), 1);
    let report = &table[0];
    assert_eq!(
        (report.id, report.coverage, report.sites),
        (process(4711), 3, 12)
    );
    assert_eq!(
        (report.reason, report.program.as_str()),
        (Reason::PatchDenied, "nginx")
    );
    assert_eq!((report.attached_ns, report.attach_cost_ns), (99, 1234));
}

#[test]
fn entries_of_dead_processes_are_used_again() {
    let scratch = Scratch::new();
    let ledger = &scratch.ledger;
    let all = u32::try_from(PROCESSES).unwrap();
    for pid in 1..=all {
        ledger
            .claim_process(process(pid), |_| false)
            .expect("a free entry");
    }
    assert_eq!(ledger.process_table().len(), PROCESSES);
    assert!(ledger.claim_process(process(5000), |_| false).is_none());
    assert_eq!(ledger.header.processes_lost.load(Ordering::Relaxed), 1);

    // Ten times as many, one after the other, beside one that lives on.
    for pid in 5000..5000 + 10 * all {
        let entry = ledger.claim_process(process(pid), |other| other.pid != 1 && other.pid < pid);
        assert_eq!(
            entry.map(|e| e.id.load(Ordering::Relaxed)),
            Some(process(pid).word())
        );
    }
    let table = ledger.process_table();
    assert_eq!(table.iter().filter(|p| p.id == process(1)).count(), 1);
    assert_eq!(ledger.header.processes_lost.load(Ordering::Relaxed), 1);
}

#[test]
fn waits_are_found_in_the_totals() {
    let scratch = Scratch::new();
    let ledger = &scratch.ledger;
    // Threads are spread over the shards, whatever their numbers.
    for (thread, ns) in [
        (0, 100),
        (1, 2_500),
        (2, 2_600),
        (usize::MAX, 5_000_000_000),
    ] {
        ledger.record_wait(READ_FILE, thread, ns);
    }
    ledger.record_wait(WRITE_FILE, 0, u64::MAX);
    ledger.record_wait(WRITE_FILE, 1, 5);
    let totals = ledger.totals();
    assert_eq!(totals.len(), CALLS.len());
    let read = &totals[usize::from(READ_FILE)];
    let mut counts = [0; bonsai_stats::BUCKETS];
    for ns in [100, 2_500, 2_600, 5_000_000_000] {
        counts[bonsai_stats::bucket_of(ns)] += 1;
    }
    assert_eq!(read.delays.counts(), &counts);
    assert_eq!(read.waited_ns, 5_000_005_200);
    assert_eq!(
        totals[usize::from(WRITE_FILE)].waited_ns,
        u64::MAX,
        "a sum ends there"
    );
    assert_eq!(
        ledger.header.longest_wait_ns.load(Ordering::Relaxed),
        u64::MAX
    );

    ledger.count_unshaped(Unshaped::TooManyLimits);
    let unshaped: Vec<u64> = ledger
        .header
        .unshaped
        .iter()
        .map(|n| n.load(Ordering::Relaxed))
        .collect();
    let mut one = vec![0; unshaped.len()];
    one[Unshaped::TooManyLimits as usize] = 1;
    assert_eq!(unshaped, one);
}

#[test]
fn a_wait_is_shown_while_it_lasts() {
    const S: u64 = 1_000_000_000;
    let scratch = Scratch::new();
    let ledger = &scratch.ledger;
    let page = claim(ledger, owner(7, 71));
    let note = &ledger.threads[page].wait;
    assert_eq!(ledger.waiting(S), []);
    note.begin(S);
    note.sleep(WRITE_FILE, 71, 5, 90 * S, S);
    // The call goes on waiting, with its second ticket, in another bucket.
    note.begin(3 * S);
    note.sleep(WRITE_FILE, 71, 6, 100 * S, 3 * S);
    let [waiting] = ledger.waiting(3 * S)[..] else {
        panic!("one thread waits");
    };
    assert_eq!(waiting.owner, owner(7, 71));
    let noted = waiting.noted;
    assert_eq!((noted.call, noted.bucket), (WRITE_FILE, 6));
    assert_eq!(
        (noted.since_ns, noted.uncounted_ns, noted.due_ns),
        (S, 3 * S, 100 * S)
    );
    note.end();
    assert_eq!(ledger.waiting(3 * S), []);
}

#[test]
fn a_stale_note_is_not_shown() {
    const S: u64 = 1_000_000_000;
    let scratch = Scratch::new();
    let ledger = &scratch.ledger;
    let page = claim(ledger, owner(7, 71));
    let note = &ledger.threads[page].wait;
    let shown = |now: u64| ledger.waiting(now).len();
    // The thread should have looked again after a second, or when it was due.
    note.begin(S);
    note.sleep(WRITE_FILE, 71, 0, 90 * S, S);
    assert_eq!((shown(2 * S), shown(3 * S)), (1, 0));
    note.sleep(WRITE_FILE, 71, 0, 3 * S + 1, 3 * S);
    assert_eq!((shown(3 * S), shown(3 * S + S / 2)), (1, 0));
    // Whoever takes the page over does not inherit the wait.
    note.sleep(WRITE_FILE, 71, 0, 90 * S, 4 * S);
    assert_eq!(shown(4 * S), 1);
    assert!(ledger.pass_page(page, owner(7, 71), owner(7, 72)));
    assert_eq!(shown(4 * S), 0);
}
