//! Any bytes as a block or a row of the history: an error or points, never a panic; what is a
//! block is the same one when it is written and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| bonsai_history::fuzz::blocks(input));
