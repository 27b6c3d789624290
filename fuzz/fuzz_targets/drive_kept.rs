//! Any bytes as what is kept of an image, beyond its checksum: runs are what they say, or refused.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    // What is refused is refused with an error.
    let _ = bonsai_nbd::sharing::runs_of(bytes);
});
