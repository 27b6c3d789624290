//! Any pattern and any path: matching ends, and a path is matched by itself.
#![no_main]

use bonsai_calls::pattern::matches;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (Vec<u8>, Vec<u8>)| {
    let (mut pattern, mut path) = input;
    pattern.truncate(160);
    path.truncate(4096);
    let _ = matches(&pattern, &path);
    assert!(matches(b"**", &path));
    let escaped: Vec<u8> = path.iter().flat_map(|byte| [b'\\', *byte]).collect();
    assert!(matches(&escaped, &path));
});
