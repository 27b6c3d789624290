//! Any bytes as a program's file: it is described or refused in one line.
#![no_main]

use bonsai_host::{elf, libs};
use libfuzzer_sys::fuzz_target;
use std::path::PathBuf;
use std::sync::LazyLock;

static FILE: LazyLock<PathBuf> =
    LazyLock::new(|| PathBuf::from(format!("/dev/shm/bonsai-fuzz-elf-{}", std::process::id())));

/// What most files begin with: without it, little but the refusal is reached.
const ELF: &[u8] = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0\x01\0\0\0";

fuzz_target!(|input: &[u8]| {
    for content in [input.to_vec(), [ELF, input].concat()] {
        std::fs::write(&*FILE, content).expect("room for a file");
        if let Err(error) = elf::inspect(&FILE) {
            assert_eq!(error.to_string().lines().count(), 1);
        }
        for found in [libs::libc_sites(&FILE), libs::moved_sites(&FILE)] {
            if let Err(error) = found {
                assert_eq!(error.to_string().lines().count(), 1);
            }
        }
        let _ = libs::libraries(&FILE);
    }
});
