//! Raw system calls and the few constants they need.

#[cfg(feature = "extension")]
use crate::held as known;
use crate::seccomp::ask;
#[cfg(not(feature = "extension"))]
use crate::threads as known;
use core::arch::{asm, global_asm};

/// A system call with up to six arguments; the result is negative `errno` on
/// failure, as the kernel returns it.
///
/// # Safety
/// As the system call itself.
#[inline(always)]
pub(crate) unsafe fn syscall(nr: usize, a: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the kernel keeps all registers but rax, rcx and r11; the caller
    // answers for the call.
    unsafe {
        asm!("syscall", inlateout("rax") nr => result, in("rdi") a[0], in("rsi") a[1],
            in("rdx") a[2], in("r10") a[3], in("r8") a[4], in("r9") a[5],
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}

// What the compiler calls for copies and comparisons. libc's choose among several
// each when the program starts, in pages that would not be touched otherwise; here
// they are short, and not in any fast path.
global_asm!(
    ".macro bonsai_function name",
    ".globl \\name",
    ".hidden \\name",
    ".type \\name,@function",
    "\\name:",
    ".cfi_startproc",
    ".endm",
    ".pushsection .text.bonsai_memory,\"ax\",@progbits",
    "bonsai_function memcpy",
    "mov rax, rdi",
    "mov rcx, rdx",
    "rep movsb",
    "ret",
    ".cfi_endproc",
    "bonsai_function memset",
    "mov r8, rdi",
    "mov eax, esi",
    "mov rcx, rdx",
    "rep stosb",
    "mov rax, r8",
    "ret",
    ".cfi_endproc",
    "bonsai_function bcmp",
    "mov rcx, rdx",
    "cmp eax, eax",
    "repe cmpsb",
    "setne al",
    "movzx eax, al",
    "ret",
    ".cfi_endproc",
    ".popsection",
);

// Only whole fields are moved within an array here, and names within a path: never far,
// never much.
global_asm!(
    ".pushsection .text.bonsai_memmove,\"ax\",@progbits",
    "bonsai_function memmove",
    "mov rax, rdi",
    "mov rcx, rdx",
    "mov r8, rdi",
    "sub r8, rsi",
    "cmp r8, rdx",
    "jb 2f",
    "rep movsb",
    "ret",
    "2: lea rdi, [rdi + rcx - 1]",
    "lea rsi, [rsi + rcx - 1]",
    "std",
    "rep movsb",
    "cld",
    "ret",
    ".cfi_endproc",
    ".popsection",
);

/// What can be an argument of a system call.
pub(crate) trait Word {
    fn word(self) -> usize;
}

macro_rules! words {
    ($($type:ty => |$value:ident| $word:expr;)*) => {
        $(impl Word for $type {
            #[inline(always)]
            fn word(self) -> usize {
                let $value = self;
                $word
            }
        })*
    };
}

words! {
    usize => |n| n;
    isize => |n| n.cast_unsigned();
    u32 => |n| n as usize;
    i32 => |n| (n as isize).cast_unsigned();
}

impl<T> Word for *const T {
    #[inline(always)]
    fn word(self) -> usize {
        self as usize
    }
}

impl<T> Word for *mut T {
    #[inline(always)]
    fn word(self) -> usize {
        self as usize
    }
}

#[cfg(any(feature = "alone", feature = "extension"))]
macro_rules! call {
    ($nr:expr $(,)?) => { call!(@ $nr;) };
    ($nr:expr, $a:expr $(,)?) => { call!(@ $nr; "rdi" $a) };
    ($nr:expr, $a:expr, $b:expr $(,)?) => { call!(@ $nr; "rdi" $a, "rsi" $b) };
    ($nr:expr, $a:expr, $b:expr, $c:expr $(,)?) => {
        call!(@ $nr; "rdi" $a, "rsi" $b, "rdx" $c)
    };
    ($nr:expr, $a:expr, $b:expr, $c:expr, $d:expr $(,)?) => {
        call!(@ $nr; "rdi" $a, "rsi" $b, "rdx" $c, "r10" $d)
    };
    ($nr:expr, $a:expr, $b:expr, $c:expr, $d:expr, $e:expr $(,)?) => {
        call!(@ $nr; "rdi" $a, "rsi" $b, "rdx" $c, "r10" $d, "r8" $e)
    };
    ($nr:expr, $a:expr, $b:expr, $c:expr, $d:expr, $e:expr, $f:expr $(,)?) => {
        call!(@ $nr; "rdi" $a, "rsi" $b, "rdx" $c, "r10" $d, "r8" $e, "r9" $f)
    };
    (@ $nr:expr; $($register:tt $arg:expr),*) => {{
        let result: isize;
        core::arch::asm!("syscall", inlateout("rax") $nr as usize => result,
            $(in($register) $crate::sys::Word::word($arg),)*
            lateout("rcx") _, lateout("r11") _, options(nostack));
        result
    }};
}
#[cfg(any(feature = "alone", feature = "extension"))]
pub(crate) use call;

/// The address of what the assembly defines. A declaration would lead through the
/// global offset table, with an entry and a relocation at each start.
macro_rules! place {
    ($name:literal) => {{
        let at: usize;
        // SAFETY: computes an address.
        unsafe {
            core::arch::asm!(concat!("lea {at}, [rip + ", $name, "]"), at = out(reg) at,
                options(pure, nomem, nostack, preserves_flags));
        }
        at
    }};
}
pub(crate) use place;

pub(crate) mod nr {
    pub(crate) const CLOSE: usize = 3;
    pub(crate) const MMAP: usize = 9;
    pub(crate) const MUNMAP: usize = 11;
    pub(crate) const MREMAP: usize = 25;
    pub(crate) const RT_SIGACTION: usize = 13;
    pub(crate) const RT_SIGPROCMASK: usize = 14;
    pub(crate) const EXECVE: usize = 59;
    pub(crate) const PRCTL: usize = 157;
    #[cfg(feature = "alone")]
    pub(crate) const RESTART_SYSCALL: usize = 219;
    #[cfg(not(feature = "extension"))]
    pub(crate) const EXIT_GROUP: usize = 231;
    pub(crate) const SECCOMP: usize = 317;
    pub(crate) const EXECVEAT: usize = 322;
    pub(crate) const CLONE3: usize = 435;
}

pub(crate) const EPERM: isize = -1;
pub(crate) const EINTR: isize = -4;
pub(crate) const EAGAIN: isize = -11;
pub(crate) const ESRCH: isize = -3;
pub(crate) const ENOSYS: isize = -38;
pub(crate) const ETIMEDOUT: isize = -110;

unsafe extern "C" {
    // The program's own errno, wherever it has it: what it finds by this name.
    safe fn __errno_location() -> *mut i32;
}

#[cfg(feature = "extension")]
pub(crate) use crate::clock::now;
#[cfg(not(feature = "extension"))]
pub(crate) use crate::vdso::now;

/// The same by a system call, if that is allowed: at start-up, the kernel's own function would
/// be three pages more to touch.
#[cfg(not(feature = "extension"))]
pub(crate) fn now_early() -> u64 {
    let mut time = [0_u64; 2];
    // SAFETY: writes the two words.
    if unsafe { ask!(ClockGettime, 1, time.as_mut_ptr()) } != 0 {
        return now();
    }
    time[0].wrapping_mul(1_000_000_000).wrapping_add(time[1])
}

/// Gives a raw result the form that libc's functions return.
#[expect(
    clippy::cast_possible_truncation,
    reason = "errno numbers are below 4096"
)]
pub(crate) fn to_errno(result: isize) -> isize {
    if (-4095..0).contains(&result) {
        // SAFETY: libc's pointer to this thread's errno is always valid.
        unsafe { *__errno_location() = -result as i32 };
        return -1;
    }
    result
}

#[inline(always)]
pub(crate) fn pause() {
    core::hint::spin_loop();
}

/// The thread; 0 if that cannot be known.
#[inline(never)]
pub(crate) fn gettid() -> u32 {
    // SAFETY: no arguments, no memory.
    u32::try_from(unsafe { ask!(Gettid) }).unwrap_or_else(|_| known::known_to_libc())
}

/// The process; where that may not be asked, as it was known.
#[inline(never)]
pub(crate) fn getpid() -> u32 {
    // SAFETY: no arguments, no memory.
    u32::try_from(unsafe { ask!(Getpid) }).unwrap_or_else(|_| known::known_process())
}

/// The length of a C string. Not libc's function: at start-up that would be two
/// pages more to touch; so it must not look like it to the compiler either.
///
/// # Safety
/// `s` points to a string that ends in a zero byte.
pub(crate) unsafe fn strlen(s: *const u8) -> usize {
    let mut n = 0;
    // SAFETY: not beyond the terminating zero.
    while unsafe { s.add(n).read_volatile() } != 0 {
        n += 1;
    }
    n
}

/// libc's `errno` of this thread.
pub(crate) fn errno() -> i32 {
    // SAFETY: always valid.
    unsafe { *__errno_location() }
}

/// Sets libc's `errno` of this thread.
pub(crate) fn set_errno(errno: i32) {
    // SAFETY: always valid.
    unsafe { *__errno_location() = errno };
}
