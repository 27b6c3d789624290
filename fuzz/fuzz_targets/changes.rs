//! Any text as changes of a configuration, a JSON merge patch a line: each is refused and changes
//! nothing, or is in force, does what a dry run said, and can be taken back.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| bonsai_daemon::fuzz::changes(text));
