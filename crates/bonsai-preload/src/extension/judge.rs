//! What a filter will forbid: its program is run for each helper call, as the kernel will
//! (`Documentation/userspace-api/seccomp_filter.rst`, `net/core/filter.c`).
//!
//! # Limits
//! A helper call is tried with the arguments that matter of it; of a descriptor, an address or a
//! process number, one example stands for all. Whatever is not allowed in so many words is
//! forbidden: an error, a signal, a tracer, a listener or a line in a log as well.

use crate::amount::readable;
use crate::descriptors;
use crate::kind;
use crate::loops;
use crate::own::Own;
use crate::paths::AT_FDCWD;
use crate::seccomp::{FILTERED, Helper, NUMBERS, UNKNOWN, forbids};
use crate::sys;
use crate::wait;
use bonsai_ledger::Segment;

/// `struct sock_fprog`.
#[repr(C)]
struct Program {
    len: u16,
    steps: *const Step,
}

/// `struct sock_filter`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Step {
    code: u16,
    yes: u8,
    no: u8,
    k: u32,
}

/// `BPF_MAXINSNS`
const MOST_STEPS: usize = 4096;
/// `AUDIT_ARCH_X86_64`
const ARCH: u32 = 0xc000_003e;
const ALLOW: u32 = 0x7fff_0000;
/// `SECCOMP_RET_ACTION_FULL`
const ACTION: u32 = 0xffff_0000;

/// Some address, as far as a filter can tell.
const SOME: usize = 0x7f00_0000_0000;
/// Some descriptor.
const FD: usize = 3;

/// The arguments that a helper is tried with; all have to be allowed.
fn examples(helper: Helper) -> &'static [[usize; 6]] {
    macro_rules! with {
        ($([$($arg:expr),*]),*) => { &[$(with!(@ [$($arg),*] [0, 0, 0, 0, 0, 0])),*] };
        (@ [$a:expr] $rest:tt) => { [$a, 0, 0, 0, 0, 0] };
        (@ [$a:expr, $b:expr] $rest:tt) => { [$a, $b, 0, 0, 0, 0] };
        (@ [$a:expr, $b:expr, $c:expr] $rest:tt) => { [$a, $b, $c, 0, 0, 0] };
        (@ [$a:expr, $b:expr, $c:expr, $d:expr] $rest:tt) => { [$a, $b, $c, $d, 0, 0] };
        (@ [$a:expr, $b:expr, $c:expr, $d:expr, $e:expr] $rest:tt) => { [$a, $b, $c, $d, $e, 0] };
        (@ [$a:expr, $b:expr, $c:expr, $d:expr, $e:expr, $f:expr] $rest:tt) => {
            [$a, $b, $c, $d, $e, $f]
        };
    }
    const ANYWHERE: usize = usize::MAX;
    match helper {
        Helper::Futex => with!(
            [SOME, 0, 1, SOME],
            [SOME, 1, 0x7fff_ffff],
            [SOME, 9, 1, SOME, 0, 0xffff_ffff]
        ),
        Helper::FutexWaitv => with!([SOME, 1, 0, SOME, 1]),
        Helper::ClockNanosleep => with!([1, 1, SOME, 0]),
        Helper::ClockGettime => with!([1, SOME], [0, SOME]),
        Helper::Prctl => with!([30], [29, 1], [29, 50_000], [21]),
        Helper::SetPtracer => with!([0x5961_6d61, 1]),
        Helper::Sigaction => with!([1, 0, SOME, 8], [31, SOME, SOME, 8]),
        Helper::Sigaltstack => with!([0, SOME]),
        Helper::Sigprocmask => with!([ANYWHERE, SOME, 0, 8], [1, SOME, 0, 8], [0, 0, SOME, 8]),
        // Some other process: the highest number that there is (`PID_MAX_LIMIT`).
        Helper::Kill => with!([0x40_0000, 0]),
        Helper::Fstat | Helper::Getsockname | Helper::Getpeername => with!([FD, SOME, SOME]),
        Helper::Statx => with!([FD, SOME, 0x1000, 0x17ff, SOME]),
        Helper::Readlink => with!([SOME, SOME, 4096]),
        Helper::Lseek => with!([FD, 0, 1]),
        Helper::Fcntl => with!([FD, 3]),
        Helper::Getsockopt => {
            with!(
                [FD, 1, 3, SOME, SOME],
                [FD, 1, 20, SOME, SOME],
                [FD, 1, 21, SOME, SOME]
            )
        }
        Helper::Poll => with!([SOME, 1, 0]),
        Helper::Ppoll => with!([SOME, 1, SOME]),
        Helper::EpollPwait2 => with!([FD, SOME, 1, SOME]),
        Helper::EpollCtl => with!([FD, 1, FD, SOME], [FD, 2, FD, SOME], [FD, 3, FD, SOME]),
        Helper::Eventfd => with!([0, 0o2_004_000], [1, 0o2_004_000]),
        Helper::Getdents => with!([FD, SOME, 2048]),
        Helper::ProcessVmReadv => with!([1, SOME, 1, SOME, 1, 0]),
        Helper::OpenRead => with!([AT_FDCWD, SOME, 0o2_000_000], [AT_FDCWD, SOME, 0o2_004_000]),
        Helper::OpenWrite => with!([AT_FDCWD, SOME, 0o2_400_002], [AT_FDCWD, SOME, 0o2_000_002]),
        Helper::Read => with!([FD, SOME, 1024]),
        Helper::Close => with!([FD]),
        Helper::Pwrite => with!([FD, SOME, 8, SOME]),
        Helper::Mmap => with!(
            [0, 4096, 3, 0x22, ANYWHERE],
            [0, 4096, 3, 1, FD],
            [0, 4096, 1, 1, FD]
        ),
        Helper::MmapCode => with!([0, 4096, 5, 2, FD], [SOME, 4096, 3, 0x12, FD]),
        Helper::Munmap => with!([SOME, 4096]),
        Helper::Mprotect => with!([SOME, 4096, 7], [SOME, 4096, 5]),
        Helper::Madvise => with!([SOME, 4096, 18], [SOME, 4096, 23], [SOME, 4096, 4]),
        Helper::Faccessat => with!([AT_FDCWD, SOME, 4]),
        Helper::Faccessat2 => with!([AT_FDCWD, SOME, 4, 0x200]),
        Helper::Writev => with!([2, SOME, 3]),
        Helper::Seccomp => with!([1, 5, SOME]),
        Helper::NoNewPrivs => with!([38, 1]),
        Helper::Tgkill
        | Helper::Getpid
        | Helper::Getppid
        | Helper::Gettid
        | Helper::Getuid
        | Helper::Geteuid => {
            with!([0])
        }
    }
}

/// See [`crate::extension::Judge`].
pub(crate) unsafe extern "C" fn judge(
    segment: &'static Segment,
    own: &mut Own,
    program: usize,
) -> u64 {
    if forbids(Helper::Sigprocmask) {
        return UNKNOWN;
    }
    let pages = &mut own.readable;
    if !readable(program, size_of::<Program>(), pages) {
        return 0;
    }
    // SAFETY: readable.
    let Program { len, steps } = unsafe { (program as *const Program).read_unaligned() };
    let (len, at) = (usize::from(len), steps as usize);
    if len == 0 || len > MOST_STEPS || !readable(at, len * size_of::<Step>(), pages) {
        return 0;
    }
    // SAFETY: readable.
    let steps = unsafe { core::slice::from_raw_parts(steps, len) };
    let forbidden = forbidden_by(steps) | FILTERED;
    if forbidden & Helper::Sigaction.bit() != 0 {
        wait::note_handlers();
    }
    if forbidden & Helper::EpollCtl.bit() != 0 {
        // What is hidden could not be shown again.
        loops::leave();
    }
    look_at_descriptors(segment, forbidden);
    forbidden
}

/// Asks of each descriptor what limits on some of them go by.
fn look_at_descriptors(segment: &Segment, forbidden: u64) {
    /// As in `seccomp/coming.rs`.
    const LOOKED_AT: usize = 256;
    let asked = [
        Helper::Fstat,
        Helper::Statx,
        Helper::Readlink,
        Helper::Getsockname,
        Helper::Getpeername,
        Helper::Getsockopt,
    ];
    let (epoch, narrowed) = segment.with_config(bonsai_ledger::Config::narrowed);
    if narrowed == 0 || asked.iter().all(|helper| forbidden & helper.bit() == 0) {
        return;
    }
    for fd in 0..LOOKED_AT {
        let (_, [device, number, _]) = kind::look_all(fd);
        if device | number != 0 {
            descriptors::known(segment, fd, epoch);
        }
    }
}

fn forbidden_by(steps: &[Step]) -> u64 {
    let mut forbidden = 0;
    let (pid, tid) = (sys::getpid() as usize, sys::gettid() as usize);
    let own = [pid, tid, 0, 0, 0, 0];
    for (i, number) in (0_u8..).zip(NUMBERS) {
        // SAFETY: as many as there are numbers, in their order.
        let helper = unsafe { core::mem::transmute::<u8, Helper>(i) };
        let is_own = helper == Helper::Tgkill;
        let examples = if is_own {
            core::slice::from_ref(&own)
        } else {
            examples(helper)
        };
        let allowed = examples.iter().all(|args| {
            run(steps, u32::from(*number), args).is_some_and(|said| said & ACTION == ALLOW)
        });
        if !allowed {
            forbidden |= helper.bit();
        }
    }
    forbidden
}

// Of `linux/bpf_common.h` and `linux/filter.h`: what `seccomp_check_filter` lets through.
const LD_ABS: u16 = 0x20;
const LD_LEN: u16 = 0x80;
const LD_IMM: u16 = 0x00;
const LD_MEM: u16 = 0x60;
const LDX_LEN: u16 = 0x81;
const LDX_IMM: u16 = 0x01;
const LDX_MEM: u16 = 0x61;
const ST: u16 = 0x02;
const STX: u16 = 0x03;
const TAX: u16 = 0x07;
const TXA: u16 = 0x87;
const RET_K: u16 = 0x06;
const RET_A: u16 = 0x16;
const JA: u16 = 0x05;
/// `BPF_X`: by the register instead of the constant.
const BY_X: u16 = 0x08;

/// What a filter says of a call; `None` for a program that the kernel refuses.
#[expect(clippy::cast_possible_truncation, reason = "the halves of words")]
fn run(steps: &[Step], number: u32, args: &[usize; 6]) -> Option<u32> {
    // `struct seccomp_data`
    const WORDS: usize = 16;
    let mut data = [0_u32; WORDS];
    let text = crate::extension::own_text().start;
    let words = [text].into_iter().chain(*args);
    (data[0], data[1]) = (number, ARCH);
    for (to, word) in data[2..].chunks_exact_mut(2).zip(words) {
        (to[0], to[1]) = (word as u32, (word >> 32) as u32);
    }
    let (mut a, mut x, mut memory, mut at) = (0_u32, 0_u32, [0_u32; 16], 0_usize);
    loop {
        let step = steps.get(at)?;
        at += 1;
        let Step { code, yes, no, k } = *step;
        let place = k as usize;
        let other = if code & BY_X == 0 { k } else { x };
        match code {
            LD_ABS => a = *data.get(place / 4).filter(|_| place.is_multiple_of(4))?,
            LD_LEN => a = 4 * WORDS as u32,
            LDX_LEN => x = 4 * WORDS as u32,
            LD_IMM => a = k,
            LDX_IMM => x = k,
            LD_MEM => a = *memory.get(place)?,
            LDX_MEM => x = *memory.get(place)?,
            ST => *memory.get_mut(place)? = a,
            STX => *memory.get_mut(place)? = x,
            TAX => x = a,
            TXA => a = x,
            RET_K => return Some(k),
            RET_A => return Some(a),
            JA => at = at.checked_add(place)?,
            _ if code & 7 == 4 => a = computed(code & 0xf0, a, other)?,
            _ if code & 7 == 5 => {
                let is = compared(code & 0xf0, a, other)?;
                at += usize::from(if is { yes } else { no });
            }
            _ => return None,
        }
    }
}

/// `BPF_ALU`
fn computed(operation: u16, a: u32, by: u32) -> Option<u32> {
    Some(match operation {
        0x00 => a.wrapping_add(by),
        0x10 => a.wrapping_sub(by),
        0x20 => a.wrapping_mul(by),
        // By zero: the kernel's answer is 0, of the whole program.
        0x30 => a.checked_div(by)?,
        0x40 => a | by,
        0x50 => a & by,
        0x60 => a.wrapping_shl(by),
        0x70 => a.wrapping_shr(by),
        0x80 => a.wrapping_neg(),
        0xa0 => a ^ by,
        _ => return None,
    })
}

/// `BPF_JMP`
const fn compared(operation: u16, a: u32, by: u32) -> Option<bool> {
    Some(match operation {
        0x10 => a == by,
        0x20 => a > by,
        0x30 => a >= by,
        0x40 => a & by != 0,
        _ => return None,
    })
}
