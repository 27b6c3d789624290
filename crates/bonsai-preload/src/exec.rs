//! Starting programs: whatever environment a program hands on, the next one is
//! shaped too, and one that cannot be entered is named.

use crate::amount::Args;
use crate::attach::{self, ledger_variable, preload_path};
use crate::elf;
use crate::elf::{PT_INTERP, Phdr};
use crate::pay::{self, Patience};
use crate::slow;
use crate::state::{self, Own, PATCHED};
use crate::sys::{self, call, nr};
use bonsai_calls as calls;
use bonsai_ledger::{Process, Reason, Segment, coverage};
use core::sync::atomic::Ordering;

type Strings = *const *const u8;

unsafe extern "C" {
    static environ: Strings;
}

/// Environment variables for which there is room on the stack: a vforked child
/// has little of it, and it may not allocate.
const ROOM: usize = 1024;
/// Room for the value of LD_PRELOAD.
const TEXT: usize = 4096;

const PRELOAD: &[u8] = b"LD_PRELOAD=";
const LEDGER: &[u8] = b"BONSAI_LEDGER=";

/// # Safety
/// `at` is a C string or null.
#[inline(never)]
unsafe fn text<'a>(at: *const u8) -> &'a [u8] {
    if at.is_null() {
        return &[];
    }
    // SAFETY: by the caller.
    unsafe { core::slice::from_raw_parts(at, sys::strlen(at)) }
}

/// Runs `next` with an environment in which the interposer and the ledger are
/// named: the given one where they are in it, a copy with them otherwise.
///
/// # Safety
/// `environment` is an array of C strings that ends in a null pointer, or null.
#[inline(never)]
unsafe fn with_environment(environment: Strings, next: &mut dyn FnMut(Strings) -> isize) -> isize {
    let (path, ledger) = (preload_path(), ledger_variable());
    if path.is_empty() || ledger.is_empty() {
        return next(environment);
    }
    let mut preload: &[u8] = &[];
    let (mut has_ledger, mut n) = (false, 0);
    // SAFETY: by the caller.
    unsafe {
        while !environment.is_null() && !(*environment.add(n)).is_null() {
            let entry = text(*environment.add(n));
            if let Some(value) = entry.strip_prefix(PRELOAD) {
                preload = value;
            } else if entry == ledger {
                has_ledger = true;
            }
            n += 1;
        }
    }
    let has_preload = preload
        .split(|b| *b == b':' || *b == b' ')
        .any(|p| p == path);
    if (has_ledger && has_preload) || n > ROOM - 3 {
        // With more variables than there is room for, better the environment as
        // it is than none of it.
        return next(environment);
    }
    let mut line = [0_u8; TEXT];
    let parts: [&[u8]; 4] = [
        PRELOAD,
        preload,
        if preload.is_empty() { b"" } else { b":" },
        path,
    ];
    let bytes = parts.iter().flat_map(|p| p.iter());
    let mut length = 0;
    for (to, from) in line.iter_mut().zip(bytes) {
        *to = *from;
        length += 1;
    }
    if length >= TEXT {
        return next(environment);
    }
    let mut all = [core::ptr::null::<u8>(); ROOM];
    let mut used = 0;
    let mut add = |entry: *const u8| {
        if let Some(slot) = all.get_mut(used) {
            *slot = entry;
            used += 1;
        }
    };
    for i in 0..n {
        // SAFETY: by the caller.
        let entry = unsafe { *environment.add(i) };
        // SAFETY: as above.
        let known = unsafe { text(entry) };
        let replaced = known.starts_with(LEDGER) || (!has_preload && known.starts_with(PRELOAD));
        if !replaced {
            add(entry);
        }
    }
    if !has_preload {
        add(line.as_ptr());
    }
    add(ledger.as_ptr());
    next(all.as_ptr())
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
    let given = args.a;
    let number = args.nr;
    let result = own.suspended(|| {
        // SAFETY: the program's own arguments.
        unsafe {
            with_environment(given[at + 2] as Strings, &mut |environment| {
                let mut a = given;
                a[at + 2] = environment as usize;
                sys::syscall(number, a)
            })
        }
    });
    // Only a failed call comes back.
    if let Some((entry, before)) = noted {
        entry.coverage.store(before, Ordering::Relaxed);
    }
    result
}

/// Whether this is the process that attached, and not a vforked child in its memory.
fn getpid_is_own() -> bool {
    attach::registered() == sys::getpid()
}

const AT_FDCWD: usize = (-100_isize).cast_unsigned();

/// Looks at a program about to be run, and enters it into the ledger if it
/// cannot be covered. Returns what the entry said before.
fn note_uncovered(
    segment: &'static Segment,
    path: *const u8,
    dir: usize,
) -> Option<(&'static Process, u32)> {
    let reason = reason_against(path, dir)?;
    // SAFETY: signal 0 only asks.
    let dead = |pid: u32| unsafe { call!(nr::KILL, pid, 0) == sys::ESRCH };
    let entry = segment.claim_process(sys::getpid(), dead)?;
    let before = entry.coverage.swap(coverage::UNCOVERED, Ordering::Relaxed);
    entry.reason.store(reason as u32, Ordering::Relaxed);
    // SAFETY: the program's own string.
    attach::store_program(&entry.program, unsafe { text(path) });
    Some((entry, before))
}

/// Why the program at `path` cannot be entered; `None` if it can, or if nothing
/// is known against it.
fn reason_against(path: *const u8, dir: usize) -> Option<Reason> {
    // Nothing of this is worth a segmentation fault: the kernel refuses bad paths.
    let mut head = [0_u64; 128];
    let mut stat = [0_u64; 18];
    // SAFETY: the kernel checks `path`; the buffers are as long as said.
    let got = unsafe {
        // openat(O_RDONLY | O_CLOEXEC | O_NONBLOCK)
        let fd = usize::try_from(call!(257, dir, path, 0o2_004_000, 0)).ok()?;
        let got = call!(nr::PREAD64, fd, head.as_mut_ptr(), 1024, 0);
        call!(nr::FSTAT, fd, stat.as_mut_ptr());
        call!(nr::CLOSE, fd);
        got
    };
    // SAFETY: the library's path is a C string; R_OK is 4.
    if unsafe { call!(nr::ACCESS, preload_path().as_ptr(), 4) } != 0 {
        return Some(Reason::NoAccess);
    }
    // SAFETY: any bytes will do.
    let bytes = unsafe { core::slice::from_raw_parts(head.as_ptr().cast::<u8>(), 1024) };
    let bytes = bytes.get(..usize::try_from(got).ok()?)?;
    if !bytes.starts_with(b"\x7fELF") || bytes.len() < 64 {
        return None;
    }
    // EM_X86_64 is 62, ELFCLASS64 is 2.
    if head[2] >> 16 & 0xffff != 62 || bytes[4] != 2 {
        return Some(Reason::ForeignArch);
    }
    // Set-user-ID and set-group-ID bits; as the user it would change to, the
    // loader does not mind.
    let mode = stat[3] & 0o6000;
    let owner = (stat[3] >> 32) as u32;
    // SAFETY: geteuid has no arguments.
    if mode & 0o4000 != 0 && unsafe { call!(107) } != isize::try_from(owner).unwrap_or(-1) {
        return Some(Reason::SetId);
    }
    let (at, count) = (usize::try_from(head[4]).ok()?, (head[7] & 0xffff) as usize);
    let end = at.checked_add(count.checked_mul(size_of::<Phdr>())?)?;
    if at % 8 != 0 || end > bytes.len() {
        return None;
    }
    // SAFETY: within the buffer, aligned; any bits are valid.
    let headers =
        unsafe { core::slice::from_raw_parts(bytes.as_ptr().add(at).cast::<Phdr>(), count) };
    let enters = headers.iter().any(|h| h.kind == PT_INTERP);
    (!enters).then_some(Reason::Static)
}

/// Runs `with` on the thread's state, if the process has a ledger.
fn deciding(with: &mut dyn FnMut(&'static Segment, &mut Own)) {
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
    // SAFETY: the program's own call.
    let result = result.unwrap_or_else(|| unsafe { sys::syscall(number, a) });
    sys::to_errno(result)
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

/// # Safety
/// As `posix_spawn(3)`.
pub(crate) unsafe extern "C" fn bonsai_own_posix_spawn(
    pid: *mut u32,
    path: usize,
    actions: usize,
    attributes: usize,
    argv: usize,
    env: usize,
) -> isize {
    let a = [path, actions, attributes, argv];
    // SAFETY: by the caller.
    unsafe { spawn(b"posix_spawn", pid, a, env as Strings, true) }
}

/// # Safety
/// As `posix_spawnp(3)`.
pub(crate) unsafe extern "C" fn bonsai_own_posix_spawnp(
    pid: *mut u32,
    file: usize,
    actions: usize,
    attributes: usize,
    argv: usize,
    env: usize,
) -> isize {
    let a = [file, actions, attributes, argv];
    // SAFETY: by the caller.
    unsafe { spawn(b"posix_spawnp", pid, a, env as Strings, false) }
}

/// # Safety
/// As the function of that name.
unsafe fn spawn(name: &[u8], pid: *mut u32, a: [usize; 4], env: Strings, is_path: bool) -> isize {
    type Function = unsafe extern "C" fn(*mut u32, usize, usize, usize, usize, Strings) -> i32;
    const ENOSYS: isize = 38;
    let Some((at, _)) = elf::next_definition(name) else {
        return ENOSYS;
    };
    deciding(&mut |segment, own| slow::control(segment, own, calls::VFORK));
    let mut ours = 0;
    let child = if pid.is_null() { &raw mut ours } else { pid };
    // SAFETY: libc's function with the program's arguments.
    let result = unsafe {
        let function = core::mem::transmute::<usize, Function>(at);
        with_environment(env, &mut |environment| {
            function(child, a[0], a[1], a[2], a[3], environment) as isize
        })
    };
    // Patched, the child has named itself.
    if result == 0 && is_path && !PATCHED.load(Ordering::Relaxed) {
        // SAFETY: written by posix_spawn.
        note_child(unsafe { *child }, a[0] as *const u8);
    }
    result
}

/// Names a child whose program cannot be entered.
fn note_child(pid: u32, path: *const u8) {
    let Some(reason) = reason_against(path, AT_FDCWD) else {
        return;
    };
    // SAFETY: signal 0 only asks.
    let dead = |pid: u32| unsafe { call!(nr::KILL, pid, 0) == sys::ESRCH };
    if let Some(entry) = state::segment().and_then(|s| s.claim_process(pid, dead)) {
        entry.coverage.store(coverage::UNCOVERED, Ordering::Relaxed);
        entry.reason.store(reason as u32, Ordering::Relaxed);
        // SAFETY: the program's own string, which posix_spawn has just used.
        attach::store_program(&entry.program, unsafe { text(path) });
    }
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
    // syscall(2): what is in the table is decided on, everything else is libc's.
    ".globl bonsai_own_syscall",
    ".hidden bonsai_own_syscall",
    "bonsai_own_syscall:",
    "cmp rdi, 317",
    "je 5f",
    "cmp rdi, 511",
    "ja 3f",
    "mov r11, qword ptr [rip + BONSAI_BY_NR]",
    "cmp byte ptr [r11 + rdi], 255",
    "je 3f",
    // fork, vfork, clone: they return twice, or on another stack.
    "lea rax, [rdi - 56]",
    "cmp rax, 2",
    "jbe 8f",
    "mov rax, rdi",
    "mov rdi, rsi",
    "mov rsi, rdx",
    "mov rdx, rcx",
    "mov r10, r8",
    "mov r8, r9",
    "mov r9, qword ptr [rsp + 8]",
    "sub rsp, 72",
    "mov qword ptr [rsp], rdi",
    "mov qword ptr [rsp + 8], rsi",
    "mov qword ptr [rsp + 16], rdx",
    "mov qword ptr [rsp + 24], r10",
    "mov qword ptr [rsp + 32], r8",
    "mov qword ptr [rsp + 40], r9",
    "mov qword ptr [rsp + 48], rax",
    "mov rdi, rsp",
    "lea rsi, [rip + bonsai_symbol_sites + 8 * {syscall}]",
    "xor edx, edx",
    "xor ecx, ecx",
    "call bonsai_slow",
    "add rsp, 72",
    "cmp rax, -4096",
    "ja bonsai_failed",
    "ret",
    "3: mov r11, qword ptr [rip + bonsai_symbol_next + 8 * {syscall}]",
    "test r11, r11",
    "jz 4f",
    "jmp r11",
    "4: lea r11, [rip + bonsai_symbol_sites + 8 * {syscall}]",
    "jmp bonsai_real",
    // A program that is about to filter its own system calls does not know those
    // of a wait: from here on only the futex call is made. 317 is seccomp, 22
    // PR_SET_SECCOMP.
    "5: mov byte ptr [rip + BONSAI_GUARDED], 1",
    "jmp 3b",
    "8: push rdi",
    "push rsi",
    "push rdx",
    "push rcx",
    "push r8",
    "push r9",
    "sub rsp, 8",
    "call {before_fork}",
    "add rsp, 8",
    "pop r9",
    "pop r8",
    "pop rcx",
    "pop rdx",
    "pop rsi",
    "pop rdi",
    "jmp 3b",
    ".globl bonsai_own_prctl",
    ".hidden bonsai_own_prctl",
    "bonsai_own_prctl:",
    "cmp edi, 22",
    "jne 6f",
    "mov byte ptr [rip + BONSAI_GUARDED], 1",
    "6: mov r11, qword ptr [rip + bonsai_symbol_next + 8 * {prctl}]",
    "test r11, r11",
    "jz 7f",
    "jmp r11",
    "7: lea r11, [rip + bonsai_symbol_sites + 8 * {prctl}]",
    "jmp bonsai_real",
    ".popsection",
    before_fork = sym crate::slow::bonsai_before_fork,
    syscall = const crate::symbols::SYSCALL,
    prctl = const crate::symbols::PRCTL,
);

/// Where `syscall` looks a number up.
pub(crate) static BONSAI_BY_NR: &[u8; bonsai_calls::NR_LIMIT] = &bonsai_calls::BY_NR;
