//! The loader starts us, as the first of a program's libraries.

use super::{DONE, PRELOAD, begin, keep};
use crate::{elf, environment, patch, resolve, slots, state, sys};
use bonsai_ledger::Reason;
use core::sync::atomic::Ordering;

#[used]
#[unsafe(link_section = ".init_array")]
static START: unsafe extern "C" fn(i32, *const *const u8, *const *const u8) = start;

#[used]
#[unsafe(link_section = ".fini_array")]
static END: unsafe extern "C" fn() = end;

/// At exit, what the last thread holds goes back to the others.
unsafe extern "C" fn end() {
    if let Some(segment) = state::segment() {
        state::release_mine(segment);
    }
}

unsafe extern "C" {
    static environ: *const *const u8;
}

unsafe extern "C" fn start(_: i32, _: *const *const u8, environment: *const *const u8) {
    let from = sys::now_early();
    slots::share();
    elf::survey();
    resolve::find_single_threaded();
    let glibc = elf::first_definition(b"gnu_get_libc_version").is_some();
    // glibc hands the environment to constructors, and has not set `environ` yet
    // when the first of them runs; musl has, and hands over nothing.
    let environment = if glibc {
        environment
    } else {
        // SAFETY: libc's own variable.
        unsafe { environ }
    };
    if let Some(ours) = elf::ours() {
        keep(&PRELOAD, ours.name());
    }
    // SAFETY: of a new process, by its only thread.
    unsafe {
        begin(environment, from, |segment| {
            let reason = patch::libraries(segment);
            if reason == Reason::None {
                // glibc's, which is the only libc with known sites, hands over the
                // kernel's array; its own variables point there too.
                environment::restore(environment.cast_mut().cast());
            }
            reason
        });
    }
    DONE.store(true, Ordering::Release);
}
