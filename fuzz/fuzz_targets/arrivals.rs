//! Any bytes as a file of arrivals: one sentence, or viewers in order and within bounds.
#![no_main]

use bonsai_stream::watch::{Named, read_trace};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| match read_trace(bytes) {
    Ok(found) => {
        assert!((1..=100_000).contains(&found.len()));
        assert!(found.is_sorted_by_key(|one| one.at_ns));
        for one in &found {
            assert!(one.line >= 1 && one.at_ns <= 604_800_000_000_000);
            assert!(one.length_ns.is_none_or(|ns| (100_000_000..=86_400_000_000_000).contains(&ns)));
            assert!(one.video != Some(Named::Number(0)));
        }
    }
    Err(error) => {
        let said = error.to_string();
        assert!(said.lines().count() == 1 && said.len() < 1_000, "{said}");
    }
});
