//! Any bytes as queries, bodies and heads of requests: an error that is the client's, or what is
//! meant; names that are not those of the interface are never let through.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    bonsai_daemon::fuzz::queries(input);
    bonsai_daemon::fuzz::heads(input);
});
