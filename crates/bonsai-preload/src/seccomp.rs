//! What a seccomp filter lets us do: the one place that knows, and the one way to calls that
//! the program has not asked for.
//!
//! # Definitions
//! - *Helper call*: a system call that we make on a program's thread for a purpose of our own:
//!   to wait, to see what a descriptor is, to map memory, to see whether a thread lives. Each
//!   one is made by [`ask!`], and stands in [`Helper`]; calls of the program are made as they
//!   came (`slow::make`).
//! - *Forbidden*: the filter of this process does not allow it for certain. Then [`ask!`] makes
//!   no call and answers `EPERM`, and whoever has asked does without; what that means stands
//!   with the helper.
//!
//! # How it is known
//! ```text
//!  prctl, seccomp ──> [`bonsai_filter_comes`]: the filter's own program is run for each helper
//!                     (`extension/judge.rs`), before the kernel has it; what is needed later is
//!                     prepared (`prepare`)
//!  execve ──────────> the next program is told in its environment (`environment.rs`)
//!  fork, threads ───> inherit memory, or share it
//!  any other start ─> PR_GET_SECCOMP; what the filter around `bonsai run` forbids stands in the
//!                     ledger, and of another one nothing is known but that it allows futex
//! ```
//!
//! # Invariants
//! 1. No bit is ever cleared: filters are never taken off.
//! 2. A bit is set before the filter is in force.
//! 3. The extension looks at the same word.

#[cfg(not(feature = "extension"))]
mod coming;

#[cfg(not(feature = "extension"))]
pub(crate) use coming::*;
use core::arch::global_asm;

macro_rules! helpers {
    ($($(#[$doc:meta])* $name:ident = $nr:expr),* $(,)?) => {
        /// Helper calls, each with what is done where it is forbidden.
        #[repr(u8)]
        #[derive(Clone, Copy, PartialEq, Eq)]
        #[allow(dead_code, reason = "some are the extension's alone")]
        pub(crate) enum Helper {
            $($(#[$doc])* $name),*
        }

        /// Their numbers.
        pub(crate) const NUMBERS: &[u16] = &[$($nr),*];
    };
}

helpers! {
    /// Waiting, and waking: the call goes through, and is counted as not waited for
    /// (`Unshaped::WaitFailed`).
    Futex = 202,
    /// Waiting that the kernel restarts as it does slow calls: by `Futex`.
    FutexWaitv = 449,
    /// Waiting where there is no futex: see there.
    ClockNanosleep = 230,
    /// The clock, without a vDSO: it stands still, so that nothing is waited for.
    ClockGettime = 228,
    /// Timer slack: waits end some 50 us later.
    Prctl = 157,
    /// The helper for static programs: those that this process runs are named, and run without
    /// limits, where Yama wants to be told.
    SetPtracer = 157,
    /// Handlers of signals: a wait ends for a signal where the program's handlers wanted that
    /// when the filter came.
    Sigaction = 13,
    /// Whether a handler runs on a stack of its own: taken for no, so that a call that it makes on one
    /// above the thread's may lose what is booked for the call that it has interrupted.
    Sigaltstack = 131,
    /// Whether memory can be read: it is not looked into. What is in vectors and messages is
    /// waited for after the call instead of before it; an address or path is in no limit.
    Sigprocmask = 14,
    /// Threads that have ended: taken for living.
    Tgkill = 234,
    /// Processes that have ended: likewise.
    Kill = 62,
    /// The process: as it was known; in a forked child by libc's own record.
    Getpid = 39,
    /// The thread: by libc's own record; without that it has no counters of its own.
    Gettid = 186,
    /// A vforked child's pid namespace, that of its parent or not: by `Readlink`.
    Getppid = 110,
    /// Whether a program that is run is set-user-ID: it is not named.
    Getuid = 102,
    /// Likewise.
    Geteuid = 107,
    /// The kind of a descriptor: by the call that gave it, otherwise neither file nor socket.
    Fstat = 5,
    /// Which file it is: by `Fstat`.
    Statx = 332,
    /// The path of a descriptor: none (`Unshaped::NoPath`). The pid namespace: its parent's, or not known.
    Readlink = 89,
    /// A file's position, before more than 2 GiB are asked for: taken for 0.
    Lseek = 8,
    /// Whether a descriptor may block: taken for one that does.
    Fcntl = 72,
    /// Sockets' time limits: none. Their type: none that is split.
    Getsockopt = 55,
    /// A socket's own port: none.
    Getsockname = 51,
    /// Its peer: none.
    Getpeername = 52,
    /// Whether the other end has gone: taken for no.
    Poll = 7,
    /// Waiting for readiness to the nanosecond: to the millisecond, by the program's own call.
    Ppoll = 271,
    /// Likewise.
    EpollPwait2 = 441,
    /// Hiding readiness: calls wait.
    EpollCtl = 233,
    /// The wake-up of a set that several threads wait in: its events are shown instead.
    Eventfd = 290,
    /// Threads that slept in a set before there was a limit, and sets that nobody has seen: not known.
    Getdents = 217,
    /// What such a thread waits for: taken for nothing of ours.
    ProcessVmReadv = 310,
    /// Looking into files: programs about to be run, epoll sets. They are not looked into.
    OpenRead = 257,
    /// The ledger, and code through `/proc/self/mem`: there are no limits here, and the
    /// process is named by whoever ran it; code stays as it is.
    OpenWrite = 257,
    /// As `OpenRead`.
    Read = 0,
    /// Likewise.
    Close = 3,
    /// Code through `/proc/self/mem`.
    Pwrite = 18,
    /// Memory for states: those that were made when the filter came; then none, and calls go
    /// through, counted as `Unshaped::Early`.
    Mmap = 9,
    /// The same of files, to be run: the extension, which is mapped when the filter comes.
    MmapCode = 9,
    /// Giving memory back: it stays.
    Munmap = 11,
    /// Replacing instructions: they stay.
    Mprotect = 10,
    /// Memory that forked children do not get: threads share one page of counters and hold no
    /// leases.
    Madvise = 28,
    /// Whether the library opens for the next program: taken for yes.
    Faccessat = 269,
    /// Likewise, by `Faccessat`.
    Faccessat2 = 439,
    /// A line on standard error: it stays unsaid.
    Writev = 20,
    /// A filter of our own (`trap`): code stays untrapped, which is said.
    Seccomp = 317,
    /// Likewise.
    NoNewPrivs = 157,
}

impl Helper {
    /// What [`ask!`] says: the number, and the bit above it.
    pub(crate) const fn word(self) -> usize {
        NUMBERS[self as usize] as usize | (self as usize) << 16
    }

    /// Its bit.
    pub(crate) const fn bit(self) -> u64 {
        1 << self as u64
    }
}

/// Whether there is a filter at all.
pub(crate) const FILTERED: u64 = 1 << 63;

const _: () = {
    assert!(NUMBERS.len() < 63);
    let mut i = 0;
    while i < NUMBERS.len() {
        assert!(bonsai_calls::helpers::is_helper(NUMBERS[i]));
        i += 1;
    }
};

/// What is taken for forbidden of a filter of which nothing is known.
pub(crate) const UNKNOWN: u64 = (FILTERED | ((1 << NUMBERS.len()) - 1)) & !Helper::Futex.bit();

/// Makes a helper call, unless it is forbidden. Registers are those of a system call.
macro_rules! ask {
    ($helper:ident) => { ask!(@ $helper;) };
    ($helper:ident, $a:expr $(,)?) => { ask!(@ $helper; "rdi" $a) };
    ($helper:ident, $a:expr, $b:expr $(,)?) => { ask!(@ $helper; "rdi" $a, "rsi" $b) };
    ($helper:ident, $a:expr, $b:expr, $c:expr $(,)?) => {
        ask!(@ $helper; "rdi" $a, "rsi" $b, "rdx" $c)
    };
    ($helper:ident, $a:expr, $b:expr, $c:expr, $d:expr $(,)?) => {
        ask!(@ $helper; "rdi" $a, "rsi" $b, "rdx" $c, "r10" $d)
    };
    ($helper:ident, $a:expr, $b:expr, $c:expr, $d:expr, $e:expr $(,)?) => {
        ask!(@ $helper; "rdi" $a, "rsi" $b, "rdx" $c, "r10" $d, "r8" $e)
    };
    ($helper:ident, $a:expr, $b:expr, $c:expr, $d:expr, $e:expr, $f:expr $(,)?) => {
        ask!(@ $helper; "rdi" $a, "rsi" $b, "rdx" $c, "r10" $d, "r8" $e, "r9" $f)
    };
    (@ $helper:ident; $($register:tt $arg:expr),*) => {{
        let result: isize;
        core::arch::asm!("call bonsai_ask",
            inlateout("rax") $crate::seccomp::Helper::$helper.word() => result,
            $(in($register) $crate::sys::Word::word($arg),)*
            lateout("rcx") _, lateout("r11") _);
        result
    }};
}
pub(crate) use ask;

#[cfg(not(feature = "extension"))]
pub(crate) use here::*;

#[cfg(not(feature = "extension"))]
mod here {
    use super::FILTERED;
    use core::sync::atomic::{AtomicU64, Ordering};

    /// What is forbidden, a bit each.
    #[unsafe(link_section = ".bss.bonsai_early")]
    pub(crate) static FORBIDDEN: AtomicU64 = AtomicU64::new(0);

    /// All that is forbidden.
    pub(crate) fn word() -> u64 {
        FORBIDDEN.load(Ordering::Relaxed)
    }

    /// A filter is, or is about to be, in force.
    pub(crate) fn forbid(helpers: u64) {
        FORBIDDEN.fetch_or(helpers | FILTERED, Ordering::SeqCst);
    }
}

#[cfg(feature = "extension")]
pub(crate) use there::*;

#[cfg(feature = "extension")]
mod there {
    use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

    static NOTHING: AtomicU64 = AtomicU64::new(0);
    /// Where the library has it.
    pub(crate) static FORBIDDEN_AT: AtomicPtr<AtomicU64> =
        AtomicPtr::new((&raw const NOTHING).cast_mut());

    /// All that is forbidden.
    pub(crate) fn word() -> u64 {
        // SAFETY: set before anything is decided on, and there for good.
        unsafe { (*FORBIDDEN_AT.load(Ordering::Relaxed)).load(Ordering::Relaxed) }
    }
}

/// Whether a filter is in force, or about to be.
pub(crate) fn is_filtered() -> bool {
    word() != 0
}

/// Whether a helper call is forbidden.
pub(crate) fn forbids(helper: Helper) -> bool {
    word() & helper.bit() != 0
}

global_asm!(
    ".pushsection .text.bonsai_ask,\"ax\",@progbits",
    // eax: the number, and above it the bit.
    ".globl bonsai_ask",
    ".hidden bonsai_ask",
    ".type bonsai_ask,@function",
    "bonsai_ask:",
    ".cfi_startproc",
    "mov ecx, eax",
    "shr ecx, 16",
    "mov r11, qword ptr [rip + {word}]",
    ".if {extension}",
    "mov r11, qword ptr [r11]",
    ".endif",
    "bt r11, rcx",
    "jc 2f",
    "movzx eax, ax",
    "syscall",
    "ret",
    // EPERM
    "2: or rax, -1",
    "ret",
    ".cfi_endproc",
    ".popsection",
    word = sym WORD,
    extension = const cfg!(feature = "extension") as u8,
);
#[cfg(not(feature = "extension"))]
use FORBIDDEN as WORD;
#[cfg(feature = "extension")]
use FORBIDDEN_AT as WORD;
