//! The loader starts us, as the first of a program's libraries.

use super::{BESIDE, DONE, Given, PRELOAD, begin, beside_ledger, keep};
use crate::seccomp::ask;
use crate::uncovered::AT_FDCWD;
use crate::{elf, environment, loaded, patch, resolve, slots, state, wait};
use bonsai_ledger::Reason;
use core::sync::atomic::Ordering;

#[used]
#[unsafe(link_section = ".init_array")]
static START: unsafe extern "C" fn(i32, *const *const u8, *const *const u8) = start;

#[used]
#[unsafe(link_section = ".fini_array")]
static END: unsafe extern "C" fn() = end;

/// The engine's way in for us, which the engine's file names as its entry.
type Beside = unsafe extern "C" fn(usize, *const *const u8, usize) -> u64;

/// Leaves the program's own system calls to the engine, where Go has made it: its stacks
/// are too small for us, and its threads may have no storage of ours. How many sites are
/// patched then, and in the upper half how many could not be: one without an engine. Not
/// by `dlopen`, which is not there in programs without libc.
fn beside(environment: *const *const u8) -> u64 {
    let (path, _) = beside_ledger(b"engine.so");
    // SAFETY: new memory (MAP_PRIVATE), of a file whose entry maps the rest of it, and
    // patches the program; there is one thread.
    unsafe {
        // O_RDONLY | O_CLOEXEC
        let fd = ask!(OpenRead, AT_FDCWD, path.as_ptr(), 0o2_000_000, 0);
        let at = ask!(MmapCode, 0, BESIDE, 5, 2, fd, 0);
        if (-4095..0).contains(&at) {
            return 1 << 32;
        }
        let entry = at + *((at + 24) as *const isize);
        core::mem::transmute::<isize, Beside>(entry)(0, environment, fd.cast_unsigned())
    }
}

/// Whether valgrind runs this program: of the kernel's calls it knows those of its time, and
/// complains of others.
fn is_on_valgrind() -> bool {
    /// A client request of `valgrind.h`: these instructions change nothing, but valgrind
    /// answers in rdx.
    const RUNNING_ON_VALGRIND: usize = 0x1001;
    let request = [RUNNING_ON_VALGRIND, 0, 0, 0, 0, 0];
    let mut answer = 0_usize;
    // SAFETY: rotates rdi by 128 bits in all, and exchanges rbx with itself.
    unsafe {
        core::arch::asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            inout("rdx") answer,
            in("rax") request.as_ptr(),
            in("rdi") 0_usize,
            options(nostack, readonly),
        );
    }
    answer != 0
}

/// At exit, what the last thread holds goes back to the others.
unsafe extern "C" fn end() {
    if let Some(segment) = state::segment() {
        state::release_mine(segment);
    }
}

unsafe extern "C" fn start(_: i32, _: *const *const u8, environment: *const *const u8) {
    let environment = elf::environment().unwrap_or(environment);
    // SAFETY: of a new process.
    let given = unsafe { Given::in_environment(environment) };
    if given.ledger.is_some() && is_on_valgrind() {
        wait::use_plain_futex();
    }
    slots::share();
    elf::survey();
    resolve::find_single_threaded();
    let program = elf::objects().next();
    if let Some(ours) = elf::ours() {
        keep(&PRELOAD, ours.name());
    }
    // SAFETY: of a new process, by its only thread.
    unsafe {
        begin(&given, |segment| {
            let reason = patch::libraries(segment);
            if program.is_none_or(elf::Object::is_go) {
                patch::count_also(beside(environment));
            }
            loaded::watch();
            if program.is_none() {
                return Reason::None;
            }
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
