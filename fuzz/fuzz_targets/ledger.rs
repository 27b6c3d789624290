//! Any bytes as a segment's file: opening it gives an error or a ledger, and what
//! is read from that ledger, taken from it and changed in it may be nonsense, but
//! never panics, overflows or goes on for ever.
//!
//! # Input
//! The first byte says what the rest is:
//! - 0: the file's content, as it is;
//! - 1: the file's content, made as long as a segment;
//! - otherwise: patches of a new segment, `offset (3 bytes) | length (1) | bytes`,
//!   in the part that the byte names: one time in four with the header's fixed
//!   fields, which only open if they are left alone; two times in the limits.
#![no_main]

use bonsai_calls::CALLS;
use bonsai_ledger::sync::Ordering;
use bonsai_ledger::{FIXED_LEN, Ledger, LedgerError, Owner, Segment, TOTAL_LEN, Unshaped};
use libfuzzer_sys::fuzz_target;
use std::fs::{self, File};
use std::mem::offset_of;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::LazyLock;

/// Where patches go: behind the header's fixed fields, and no farther than the pages
/// of a few threads.
const PATCHED: Range<u64> = 128..FIXED_LEN as u64 + 4 * 4096;
/// The limits and their lines.
const LIMITS: Range<u64> = offset_of!(Segment, configs) as u64..offset_of!(Segment, labels) as u64;

/// One file of this process in memory, and a copy of a new segment's start.
static FILE: LazyLock<(PathBuf, Vec<u8>)> = LazyLock::new(|| {
    let path = PathBuf::from(format!("/dev/shm/bonsai-fuzz-{}", std::process::id()));
    let _ = fs::remove_file(&path);
    drop(Ledger::create(&path, "fuzz").expect("a new segment"));
    let mut start = vec![0; FIXED_LEN];
    let file = File::open(&path).expect("the segment");
    file.read_exact_at(&mut start, 0).expect("its start");
    (path, start)
});

fuzz_target!(|input: &[u8]| {
    let Some((kind, rest)) = input.split_first() else {
        return;
    };
    let (path, start) = &*FILE;
    // Emptied first, so that nothing is left of the last run.
    let file = File::create(path).expect("the file");
    match kind {
        0 | 1 => {
            file.write_all_at(rest, 0).expect("room for the content");
            if *kind == 1 {
                file.set_len(TOTAL_LEN as u64).expect("the length");
            }
        }
        _ => {
            file.set_len(TOTAL_LEN as u64).expect("the length");
            file.write_all_at(start, 0).expect("room for a segment");
            let part = match kind % 4 {
                0 => PATCHED,
                1 => 0..PATCHED.end,
                _ => LIMITS,
            };
            patch(&file, rest, &part);
        }
    }
    drop(file);
    match Ledger::open(path) {
        Ok(ledger) => use_all(&ledger, rest),
        Err(LedgerError::Limit(_)) => panic!("opening a segment sets no limit"),
        Err(error) => assert_eq!(error.to_string().lines().count(), 1),
    }
});

fn patch(file: &File, mut patches: &[u8], part: &Range<u64>) {
    while let [a, b, c, len, rest @ ..] = patches {
        let offset = u64::from(u32::from_le_bytes([*a, *b, *c, 0]));
        let at = part.start + offset % (part.end - part.start);
        let len = usize::from(*len).min(rest.len());
        file.write_all_at(&rest[..len], at)
            .expect("room for a patch");
        patches = &rest[len..];
    }
}

/// Calls everything there is, with instants and numbers from the input.
fn use_all(ledger: &Ledger, input: &[u8]) {
    let mut words = input.rchunks(8).map(|chunk| {
        let mut eight = [0; 8];
        eight[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(eight)
    });
    let mut word = || words.next().unwrap_or(1);
    read(ledger, word());
    let (now, later) = (word(), word());
    let (bytes, calls) = (word(), word());
    for call in [
        0,
        7,
        15,
        u8::try_from(CALLS.len() - 1).expect("a small table"),
    ] {
        let (epoch, mask, byte_buckets) = ledger.mask(call);
        // As a call would, with few enough buckets.
        for mask in [mask, mask & word(), 1 << (word() % 64)] {
            let _ = ledger.quantum(mask, byte_buckets, word());
            let got = ledger.lease(mask, byte_buckets, bytes, calls, epoch);
            assert!(
                got.0 <= bytes && got.1 <= calls,
                "a lease beyond what was asked for"
            );
            if let Some(tickets) = ledger.take(mask, byte_buckets, bytes, calls, now) {
                for at in [now, later] {
                    assert!(ledger.due(&tickets, at) >= at, "due in the past");
                }
                assert!(ledger.due_part(&tickets, bytes, now) <= bytes);
                let _ = ledger.stale(&tickets);
                ledger.refund(&tickets, bytes / 2, calls / 2);
            }
            ledger.refund_mask(mask, byte_buckets, bytes, calls);
            ledger.end_lease(mask, byte_buckets, got.0, got.1, epoch);
        }
        ledger.record_wait(call, usize::try_from(word()).unwrap_or(0), now);
    }
    ledger.count_unshaped(Unshaped::Early);
    claim(ledger, word());
    edit(ledger, now, [word(), word(), word()]);
    read(ledger, later);
}

/// Everything that reports read.
fn read(ledger: &Ledger, now: u64) {
    assert!(ledger.limits(now).len() <= 64);
    assert_eq!(ledger.totals().len(), CALLS.len());
    let _ = ledger.name();
    for process in ledger.process_table().iter().take(4) {
        assert_eq!(ledger.process_counts(process.pid).len(), CALLS.len());
        let _ = (ledger.threads_of(process.pid), process.reason.about());
    }
    let first = ledger.owners[0].load(Ordering::Relaxed);
    if let Some(owner) = Owner::from_word(first) {
        assert_eq!(ledger.process_counts(owner.pid).len(), CALLS.len());
    }
}

/// Takes pages and an entry while those whose number has a bit of `dead` are dead.
fn claim(ledger: &Ledger, dead: u64) {
    let is_dead = |pid: u32| u64::from(pid) & dead != 0;
    for tid in 1..4 {
        let me = Owner { pid: 77, tid };
        let page = ledger.claim_page(me, |o| is_dead(o.pid), |i| i < 4);
        assert!(page.is_none_or(|page| page < ledger.threads.len()));
    }
    if let Some(entry) = ledger.claim_process(77, is_dead) {
        assert_eq!(entry.pid.load(Ordering::Relaxed), 77);
        entry.set_program("fuzz");
    }
}

/// Changes limits as the command line does.
fn edit(ledger: &Ledger, now: u64, [rate, burst, again]: [u64; 3]) {
    let select = |name| bonsai_calls::select(name).expect("a name of the table");
    let mut editor = ledger.edit(now).expect("the lock");
    for (name, bytes) in [("write", true), ("open", false), ("all", true)] {
        // All buckets may be in use.
        let _ = editor.set(name, select(name), bytes, rate, burst);
        let _ = editor.set(name, select(name), bytes, again, rate);
    }
    editor.clear("write");
    let epoch = editor.commit();
    assert!(epoch != 0 && epoch == ledger.epoch());
    assert!(
        !ledger
            .limits(now)
            .iter()
            .any(|l| l.name == "write" && l.bytes)
    );
    let _ = ledger.store_sites(b"fuzz", &[rate, burst]);
}
