//! Datagrams of the kernel, and what is kept of somebody's disciplines.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    bonsai_link::fuzz::datagram(bytes);
    bonsai_link::fuzz::saved(bytes);
});
