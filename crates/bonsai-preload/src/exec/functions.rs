//! libc's functions that run programs.

use super::{at_site, made, path, take_back};
use crate::amount::Args;
use crate::environment::{Strings, with_environment};
use crate::state::{self, Own, PATCHED};
use crate::sys::{self, nr};
use crate::uncovered::{AT_FDCWD, Done, see_to};
use crate::{elf, pay, slow};
use bonsai_calls as calls;
use bonsai_ledger::Segment;
use core::sync::atomic::Ordering;

unsafe extern "C" {
    static environ: Strings;
}

/// Runs `with` on the thread's state, if the process has a ledger.
pub(crate) fn deciding(with: &mut dyn FnMut(&'static Segment, &mut Own)) {
    if let Some(segment) = state::segment() {
        // SAFETY: this thread's own state.
        if let Some(own) = unsafe { state::me(segment).as_mut() } {
            own.within(|own| {
                pay::sync(segment, own);
                with(segment, own);
            });
        }
    }
}

fn run(number: usize, a: [usize; 6]) -> isize {
    let mut args = Args { a, nr: number };
    let mut result = None;
    deciding(&mut |segment, own| result = Some(at_site(segment, own, &mut args)));
    sys::to_errno(result.unwrap_or_else(|| made(&args)))
}

/// The environment that functions hand on which are given none.
pub(super) fn our_environment() -> Strings {
    // SAFETY: libc's own variable.
    unsafe { environ }
}

pub(crate) unsafe extern "C" fn bonsai_own_execve(
    path: usize,
    argv: usize,
    environment: usize,
) -> isize {
    run(nr::EXECVE, [path, argv, environment, 0, 0, 0])
}

pub(crate) unsafe extern "C" fn bonsai_own_execv(path: usize, argv: usize) -> isize {
    run(
        nr::EXECVE,
        [path, argv, our_environment() as usize, 0, 0, 0],
    )
}

pub(crate) unsafe extern "C" fn bonsai_own_execveat(
    dir: usize,
    path: usize,
    argv: usize,
    env: usize,
    flags: usize,
) -> isize {
    run(nr::EXECVEAT, [dir, path, argv, env, flags, 0])
}

pub(crate) unsafe extern "C" fn bonsai_own_fexecve(fd: usize, argv: usize, env: usize) -> isize {
    const AT_EMPTY_PATH: usize = 0x1000;
    run(
        nr::EXECVEAT,
        [fd, c"".as_ptr() as usize, argv, env, AT_EMPTY_PATH, 0],
    )
}

/// libc searches PATH and runs shell scripts without `#!`; its `execve` inside is
/// only seen where it is patched, so the environment is set right beforehand.
pub(crate) unsafe extern "C" fn bonsai_own_execvpe(file: usize, argv: usize, env: usize) -> isize {
    type Function = unsafe extern "C" fn(usize, usize, Strings) -> i32;
    let Some((at, _)) = elf::next_definition(b"execvpe") else {
        return run(nr::EXECVE, [file, argv, env, 0, 0, 0]);
    };
    let mut done = None;
    deciding(&mut |segment, own| {
        slow::control(segment, own, calls::EXECVE);
        // Patched, libc's own call sees to it.
        if !PATCHED.load(Ordering::Relaxed) {
            let see = &mut |path| done = see_to(segment, path, AT_FDCWD);
            // SAFETY: the program's own string.
            unsafe { path::found(file as *const u8, see) };
        }
    });
    if matches!(done, Some(Done::Refused)) {
        return sys::to_errno(sys::EPERM);
    }
    // SAFETY: libc's function with the program's arguments.
    let result = unsafe {
        let function = core::mem::transmute::<usize, Function>(at);
        with_environment(env as Strings, &mut |environment| {
            function(file, argv, environment) as isize
        })
    };
    if let Some(segment) = state::segment() {
        take_back(segment, done.as_ref());
    }
    result
}

pub(crate) unsafe extern "C" fn bonsai_own_execvp(file: usize, argv: usize) -> isize {
    // SAFETY: as there.
    unsafe { bonsai_own_execvpe(file, argv, our_environment() as usize) }
}

// Variadic: the arguments in registers are put below those on the stack, which
// makes one array of them. Nothing comes back from a call that succeeds.
core::arch::global_asm!(
    ".pushsection .text.bonsai_execl,\"ax\",@progbits",
    ".macro bonsai_execl name, next, environment",
    ".globl bonsai_own_\\name",
    ".hidden bonsai_own_\\name",
    "bonsai_own_\\name:",
    "pop rax",
    "push r9",
    "push r8",
    "push rcx",
    "push rdx",
    "push rsi",
    "mov rsi, rsp",
    "push rax",
    ".if \\environment",
    "mov rdx, rsi",
    "2: add rdx, 8",
    "cmp qword ptr [rdx - 8], 0",
    "jne 2b",
    "mov rdx, qword ptr [rdx]",
    ".endif",
    "call \\next",
    "pop rcx",
    "add rsp, 40",
    "push rcx",
    "ret",
    ".endm",
    "bonsai_execl execl, bonsai_own_execv, 0",
    "bonsai_execl execlp, bonsai_own_execvp, 0",
    "bonsai_execl execle, bonsai_own_execve, 1",
    ".popsection",
);
