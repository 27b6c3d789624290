//! What trapped calls cost on this machine: `bonsai run --unpatched trap`.
//!
//! The filter and the handler are what the mechanism needs, and no more: nothing is decided.

use std::arch::global_asm;
use std::io;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use libc::{c_int, c_long, c_void, siginfo_t, sock_filter, sock_fprog, ucontext_t};

/// `AUDIT_ARCH_X86_64`.
const ARCH: u32 = 0xc000_003e;

/// Calls that are measured, in groups of which the fastest half is believed.
const GROUPS: usize = 40;
const CALLS: u32 = 50;

/// What a trap costs.
#[derive(Clone, Copy, Debug)]
pub struct TrapPrice {
    /// How much longer a call takes that is trapped, and made by the handler.
    pub trapped: Duration,
    /// How much longer every other call of the process takes.
    pub other: Duration,
}

global_asm!(
    ".pushsection .text.bonsai_price,\"ax\",@progbits",
    ".balign 64",
    "bonsai_price_call:",
    "mov rax, rdi",
    "syscall",
    "ret",
    "bonsai_price_end:",
    ".popsection",
);

unsafe extern "C" {
    /// The call that is trapped, without arguments.
    fn bonsai_price_call(number: c_long) -> c_long;
    fn bonsai_price_end();
}

/// One at a time: handlers belong to the whole process.
static MEASURING: Mutex<()> = Mutex::new(());

/// Measures both, in a few milliseconds, in a thread of its own.
///
/// # Errors
/// There is no seccomp here.
pub fn trap_price() -> io::Result<TrapPrice> {
    let _one = MEASURING
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let measured = std::thread::Builder::new().spawn(|| {
        let bare = median(call);
        let bare_other = median(other);
        with_trap(|| TrapPrice {
            trapped: median(call).saturating_sub(bare),
            other: median(other).saturating_sub(bare_other),
        })
    })?;
    measured
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("not measured")))
}

fn call() {
    // SAFETY: takes no arguments, and always works.
    unsafe { bonsai_price_call(libc::SYS_getppid) };
}

fn other() {
    let _ = rustix::process::getppid();
}

fn median(call: impl Fn()) -> Duration {
    let mut groups = [Duration::ZERO; GROUPS];
    for group in &mut groups {
        let start = Instant::now();
        for _ in 0..CALLS {
            call();
        }
        *group = start.elapsed() / CALLS;
    }
    groups.sort_unstable();
    groups[GROUPS / 2]
}

/// Puts this thread under a filter, for ever, and runs `f` with a handler for its signal.
fn with_trap<T>(f: impl FnOnce() -> T) -> io::Result<T> {
    rustix::thread::set_no_new_privs(true)?;
    // SAFETY: all zeros is a `sigaction`; ours makes the call, and what was there before is
    // put back.
    unsafe {
        let mut ours: libc::sigaction = std::mem::zeroed();
        ours.sa_sigaction = trapped as *const () as usize;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_RESTART;
        let mut before: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGSYS, &raw const ours, &raw mut before) != 0 {
            return Err(io::Error::last_os_error());
        }
        let result = install().map(|()| f());
        libc::sigaction(libc::SIGSYS, &raw const before, std::ptr::null_mut());
        result
    }
}

unsafe extern "C" fn trapped(_: c_int, _: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's; the call as it stood.
    unsafe {
        let registers = &mut (*context.cast::<ucontext_t>()).uc_mcontext.gregs;
        let number = usize::try_from(libc::REG_RAX).unwrap_or(0);
        registers[number] = libc::syscall(registers[number]);
    }
}

/// As the interposer's: calls from within a range trap.
fn install() -> io::Result<()> {
    const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
    let from = bonsai_price_call as *const () as usize;
    let to = bonsai_price_end as *const () as usize;
    let step = |code: u32, jt: u8, jf: u8, k: u32| sock_filter {
        code: u16::try_from(code).unwrap_or(0),
        jt,
        jf,
        k,
    };
    #[expect(clippy::cast_possible_truncation, reason = "the halves of an address")]
    let (high, low, end) = ((from >> 32) as u32, from as u32, to as u32);
    let (load, equal, at_least, give) = (
        libc::BPF_LD | libc::BPF_W | libc::BPF_ABS,
        libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
        libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K,
        libc::BPF_RET | libc::BPF_K,
    );
    let mut code = [
        step(load, 0, 0, 4),
        step(equal, 1, 0, ARCH),
        step(give, 0, 0, ALLOW),
        step(load, 0, 0, 12),
        step(equal, 0, 4, high),
        step(load, 0, 0, 8),
        step(at_least, 0, 2, low),
        step(at_least, 1, 0, end),
        step(give, 0, 0, libc::SECCOMP_RET_TRAP),
        step(give, 0, 0, ALLOW),
    ];
    let program = sock_fprog {
        len: u16::try_from(code.len()).unwrap_or(0),
        filter: code.as_mut_ptr(),
    };
    // SAFETY: the program lives during the call, which copies it.
    let made = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW,
            &raw const program,
        )
    };
    if made == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::trap_price;

    #[test]
    fn a_trapped_call_is_made_and_costs_more() {
        match trap_price() {
            Ok(price) => assert!(price.trapped.as_nanos() > 300, "{price:?}"),
            Err(error) => eprintln!("SKIP: no seccomp here: {error}"),
        }
    }
}
