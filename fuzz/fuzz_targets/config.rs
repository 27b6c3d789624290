//! Any text as a configuration file: it is refused in one line, or can be planned with, and means
//! the same when it is written and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| bonsai_daemon::fuzz::config(text));
