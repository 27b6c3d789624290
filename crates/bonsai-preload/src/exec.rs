//! Running programs: whatever environment a program hands on, the next one is
//! shaped too, and one that cannot be entered is named.

use crate::amount::Args;
use crate::environment::{Strings, with_environment};
use crate::pay::{self, Patience};
use crate::state::{self, Own};
use crate::sys::{self, nr};
use crate::uncovered::{AT_FDCWD, note_uncovered};
use crate::{attach, elf, slow};
use bonsai_calls as calls;
use bonsai_ledger::Segment;
use core::sync::atomic::Ordering;

unsafe extern "C" {
    static environ: Strings;
}

/// `execve` or `execveat`, as it stands in the registers of a system call.
pub(crate) fn at_site(segment: &'static Segment, own: &mut Own, args: &mut Args) -> isize {
    let at = usize::from(args.nr == nr::EXECVEAT);
    let call = if at == 1 {
        calls::EXECVEAT
    } else {
        calls::EXECVE
    };
    if pay::acquire(segment, own, call, 0, 1, Patience::Endless) == crate::wait::Wait::Interrupted {
        return sys::EINTR;
    }
    // SAFETY: the thread's own page.
    let page = unsafe { &*own.page };
    if let Some(count) = page.counts.get(usize::from(call)) {
        bonsai_ledger::sync::bump(&count.calls, 1);
    }
    if let Some(entry) = own.entries.get_mut(usize::from(call)) {
        entry.calls -= 1;
    }
    let noted = note_uncovered(
        segment,
        args.a[at] as *const u8,
        if at == 1 { args.a[0] } else { AT_FDCWD },
    );
    // In a vforked child the leases are the parent's, which goes on with them.
    if getpid_is_own() {
        pay::release(segment, own);
    }
    let result = own.suspended(|| made(args));
    // Only a failed call comes back.
    if let Some((entry, before)) = noted {
        entry.coverage.store(before, Ordering::Relaxed);
    }
    result
}

/// Makes the call as it stands, but for the environment.
pub(crate) fn made(args: &Args) -> isize {
    let mut a = args.a;
    let at = 2 + usize::from(args.nr == nr::EXECVEAT);
    // SAFETY: the program's own arguments.
    unsafe {
        with_environment(a[at] as Strings, &mut |environment| {
            a[at] = environment as usize;
            sys::syscall(args.nr, a)
        })
    }
}

/// Whether this is the process that attached, and not a vforked child in its memory.
fn getpid_is_own() -> bool {
    attach::registered() == sys::getpid()
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

fn our_environment() -> Strings {
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
    deciding(&mut |segment, own| {
        slow::control(segment, own, calls::EXECVE);
    });
    // SAFETY: libc's function with the program's arguments.
    unsafe {
        let function = core::mem::transmute::<usize, Function>(at);
        with_environment(env as Strings, &mut |environment| {
            function(file, argv, environment) as isize
        })
    }
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
