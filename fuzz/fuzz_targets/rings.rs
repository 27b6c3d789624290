//! Any bytes as the entries of a ring and of a queue: each stands for a call of the
//! table, asks for bytes only where that moves some, and is looked for by its limits.
#![no_main]

use bonsai_calls::CALLS;
use bonsai_calls::ring::{Amount, Meaning, Words, queued, reaches, splice_from, submission, together};
use libfuzzer_sys::fuzz_target;

fn check(entry: &Words, meaning: Meaning) {
    let Meaning::Call(op) = meaning else { return };
    let call = &CALLS[usize::from(op.call)];
    assert!(reaches(call));
    assert_eq!(op.amount != Amount::None, call.moves_bytes(), "{}", call.name);
    if op.by_kind() {
        let three = &CALLS[usize::from(op.call)..usize::from(op.call) + 3];
        assert!(three.iter().all(|c| c.nr == call.nr));
    }
    if let Amount::Bytes(bytes) = op.amount {
        assert!(entry.iter().any(|w| w >> 32 == u64::from(bytes) || w & 0xffff_ffff == u64::from(bytes))
            || bytes == u32::MAX);
    }
    assert!(!op.fixed || op.closes.is_none());
}

fuzz_target!(|input: &[u8]| {
    for chunk in input.chunks_exact(64) {
        let mut entry: Words = [0; 8];
        for (word, bytes) in entry.iter_mut().zip(chunk.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        }
        check(&entry, submission(&entry));
        check(&entry, queued(&entry));
        let _ = splice_from(&entry);
        assert_eq!(together(&entry).key, entry[4]);
    }
});
